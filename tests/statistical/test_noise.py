"""Injected noise has its law, and chains that are driven by it theirs.

Every tolerance is a number of standard errors; keys are fixed. Noise from counted bits is held
against the exact binomial law, in its moments, its tails and its bits, and against independence of
neighbours, leaves, keys and steps; chains against the stationary variance of the discretised
dynamics, which has a closed form on a Gaussian.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from posterity.distillation.sampling import noise
from posterity.distillation.sampling.kernels import SGHMC, SGLD

normal = jax.jit(noise.normal, static_argnames="kind")
bits = jax.jit(noise.bits, static_argnums=1)
indices = jax.jit(noise.indices, static_argnums=(1, 2))
COUNT = 1 << 20
LAW = stats.binom(noise.BITS, 0.5)
LEVEL = 1e-4
"""Of the tests by chi-square and Kolmogorov-Smirnov: each file of them fails once in a thousand."""
ERRORS = 4.5
"""Standard errors: what a sound generator passes once in 150,000, of some 300 looked at."""


def quick_first(*cases):
    """The first case is tried quickly, the others where there is time."""
    return [cases[0], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[1:])]


@functools.cache
def drawn(seed, kind="binomial"):
    return np.asarray(normal(jax.random.key(seed), np.zeros(COUNT, np.float32), kind=kind), float)


def in_errors(products):
    """How many standard errors a mean of independent terms of mean zero is from zero."""
    return products.mean() / products.std() * len(products) ** 0.5


@pytest.mark.parametrize("kind, fourth", [("binomial", 3 - 2 / noise.BITS), ("normal", 3.0)])
def test_moments_to_the_fourth(kind, fourth):
    z = drawn(0, kind)
    for power, moment in [(1, 0.0), (2, 1.0), (3, 0.0), (4, fourth)]:
        assert abs(in_errors(z**power - moment)) < ERRORS, power


def chi_square(found, expected):
    """The level at which counts are as expected; cells are joined until each has ten."""
    order = np.argsort(expected)
    small = np.cumsum(expected[order]) < 10
    joined = order[: small.sum() + 1]
    rest = order[small.sum() + 1 :]
    found = np.append(found[rest], found[joined].sum())
    expected = np.append(expected[rest], expected[joined].sum())
    return stats.chi2.sf(((found - expected) ** 2 / expected).sum(), len(expected) - 1)


@pytest.mark.parametrize("seed", quick_first(0, 1))
def test_law_is_the_binomial_one_to_its_tails(seed):
    ones = np.rint(drawn(seed) * 8**0.5 + 16).astype(int)
    found = np.bincount(ones, minlength=33)
    assert chi_square(found, LAW.pmf(np.arange(33)) * COUNT) > LEVEL
    for tail in (2.8, 3.5, 4.2):  # in standard deviations: 1 in 100 to 1 in 100,000
        expected = 2 * LAW.sf(np.floor(16 + tail * 8**0.5)) * COUNT
        beyond = (abs(ones - 16) > np.floor(tail * 8**0.5)).sum()
        assert abs(beyond - expected) < ERRORS * expected**0.5


def test_tails_are_nearly_a_normals_to_three_standard_deviations():
    """What the binomial law itself gives up, stated: a fifth of the chance beyond three."""
    beyond = 2 * (LAW.sf(16 + 8) + LAW.pmf(16 + 8) / 2)  # half of the cell at 2.83
    assert abs(beyond / (2 * stats.norm.sf(8 / 8**0.5)) - 1) < 0.2


def test_bits_are_fair_and_do_not_know_each_other():
    words = np.asarray(bits(jax.random.key(0), (COUNT // 4,)))
    signs = 1.0 - 2.0 * ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1)
    size = len(words)
    single = signs.sum(0) ** 2 / size
    assert stats.chi2.sf(single.sum(), 32) > LEVEL
    pairs = (signs.T @ signs)[np.triu_indices(32, 1)] ** 2 / size
    assert stats.chi2.sf(pairs.sum(), len(pairs)) > LEVEL
    # ... nor the same word's neighbours'
    cross = (signs[:-1].T @ signs[1:]).ravel() ** 2 / (size - 1)
    assert stats.chi2.sf(cross.sum(), cross.size) > LEVEL


@pytest.mark.slow
def test_bytes_are_uniform():
    words = np.asarray(bits(jax.random.key(9), (COUNT,)))
    for place in range(4):
        counts = np.bincount((words >> np.uint32(8 * place)) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > LEVEL
    # every word of a stream is another: the hash of places is one to one
    assert len(np.unique(words)) == COUNT


LAGS = (1, 2, 3, 4, 8, 10, 16, 32, 50, 64, 100, 128, 256, 400, 784, 1024, 4096, 65_536)


def test_entries_are_independent_at_every_lag():
    z = drawn(0)
    for lag in LAGS:
        a, b = z[:-lag], z[lag:]
        assert abs(in_errors(a * b)) < ERRORS, lag
        assert abs(in_errors((a**2 - 1) * (b**2 - 1))) < ERRORS, lag
        assert abs(in_errors((a**2 - 1) * b)) < ERRORS, lag


def test_neighbours_have_the_product_law():
    z = np.rint(drawn(5) * 8**0.5).astype(int).clip(-6, 6) + 6
    law = LAW.pmf(np.arange(33))
    law = np.concatenate([[law[:11].sum()], law[11:22], [law[22:].sum()]])
    for lag in (1, 400):
        found = np.bincount(13 * z[:-lag] + z[lag:], minlength=169)
        assert chi_square(found, np.outer(law, law).ravel() * (COUNT - lag)) > LEVEL


def keys_nearby():
    """Pairs of keys as people and programs make them, the likeliest first."""
    key = jax.random.key
    yield "neighbours", key(0), key(1)
    yield "far", key(0), key(2**31)
    yield "folded", jax.random.fold_in(key(0), 1), jax.random.fold_in(key(0), 2)
    one, two = jax.random.split(key(0))
    yield "split", one, two
    raw = lambda a, b: jax.random.wrap_key_data(np.array([a, b], np.uint32))
    yield "first word", raw(1, 7), raw(2, 7)
    yield "exchanged", raw(3, 4), raw(4, 3)


PAIRS = {name: keys for name, *keys in keys_nearby()}


@pytest.mark.parametrize("name", quick_first(*PAIRS))
def test_keys_give_independent_streams(name):
    one, two = PAIRS[name]
    a, b = (np.asarray(normal(key, np.zeros(COUNT, np.float32)), float) for key in (one, two))
    for lag in (0, 1, 7, 1024):
        x, y = a[lag:], b[: COUNT - lag]
        assert abs(in_errors(x * y)) < ERRORS
        assert abs(in_errors((x**2 - 1) * (y**2 - 1))) < ERRORS


def test_leaves_are_independent():
    one, two, three = (
        np.asarray(leaf, float)
        for leaf in normal(jax.random.key(6), [np.zeros(COUNT // 4, np.float32)] * 3)
    )
    for a, b in [(one, two), (two, three), (one, three)]:
        for lag in (0, 1):
            assert abs(in_errors(a[lag:] * b[: len(b) - lag])) < ERRORS


@pytest.mark.parametrize("shape", [(10, 16), (2, 5, 32)])  # entries or chains last
def test_steps_chains_and_parameters_are_independent(shape):
    """The covariance of all entries over the steps of a scan is the identity."""
    keys = jax.random.split(jax.random.key(7), 8192)
    draw = jax.jit(jax.vmap(lambda key: noise.normal(key, jnp.zeros(shape))))
    z = np.asarray(draw(keys), float)
    z = z.reshape(len(keys), -1)
    pairs = (z.T @ z)[np.triu_indices(z.shape[1], 1)] ** 2 / len(z)
    assert stats.norm.sf((pairs.mean() - 1) / (2 / len(pairs)) ** 0.5) > LEVEL
    for lag in (1, 2, 10):
        later = (z[:-lag].T @ z[lag:]).ravel() ** 2 / (len(z) - lag)
        assert abs(later.mean() - 1) / (2 / later.size) ** 0.5 < ERRORS


def test_sums_over_steps_are_normal():
    """What a chain feels: the sum over a few hundred steps cannot be told from a normal."""
    keys = jax.random.split(jax.random.key(8), 400)
    add = lambda total, key: (total + noise.normal(key, total), None)
    added = jax.jit(lambda keys: jax.lax.scan(add, jnp.zeros(50_000), keys)[0])
    total = np.asarray(added(keys), float) / 20
    # a sum of 12,800 bits lies on a grid: spread each over its cell
    total += np.random.default_rng(0).uniform(-0.5, 0.5, total.size) / (20 * 8**0.5)
    assert stats.kstest(total, "norm").pvalue > LEVEL


@pytest.mark.parametrize("below", quick_first(7, 1000))
@pytest.mark.parametrize("kind", ["binomial", "normal"])
def test_places_are_uniform_and_independent(below, kind):
    places = np.asarray(indices(jax.random.key(10), (COUNT,), below))
    assert stats.chisquare(np.bincount(places, minlength=below)).pvalue > LEVEL
    share = (places + 0.5) / below - 0.5
    for lag in (1, 2, 20, 100):
        assert abs(in_errors(share[:-lag] * share[lag:])) < ERRORS
    z = drawn(10, kind)  # under the same key
    assert abs(in_errors(share * z)) < ERRORS


# --- chains --------------------------------------------------------------------------------------

CURVATURE = np.array([0.5, 2.0, 10.0])
CHAINS, STEPS, BURN = 2000, 900, 400
"""The slowest direction forgets its start by a factor of e in 40 steps."""
KINDS = quick_first("binomial", "normal")
"""Exact normals take ten times as long; what they are is seen quickly, in single steps, above."""


def stationary(kernel, curvature):
    """Per curvature, the exact variance of the discretised chain, by its Lyapunov equation."""
    f, eps = getattr(kernel, "friction", 1.0), kernel.step_size
    pull = f * eps * curvature / 2
    # (theta, v) -> (theta + v', v'), v' = (1 - f) v - pull theta + f sqrt(eps T) noise
    move = np.array([[1 - pull, 1 - f], [-pull, 1 - f]])
    kick = f**2 * eps * kernel.temperature * np.ones((2, 2))
    solved = np.linalg.solve(np.eye(4) - np.kron(move, move), kick.ravel())
    return solved[0]


def stationary_langevin(eps, curvature):
    """The same without momentum, in closed form."""
    return eps / (1 - (1 - eps * curvature / 2) ** 2)


def test_stationary_variance_has_the_closed_form_without_momentum():
    eps, curvature = 0.07, 3.0
    closed = stationary_langevin(eps, curvature)
    np.testing.assert_allclose(stationary(SGLD(eps), curvature), closed, rtol=1e-12)
    # and momentum lessens its error
    assert abs(stationary(SGHMC(eps, 0.1), 3.0) * 3 - 1) < abs(closed * 3 - 1) / 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "kernel",
    [SGLD(0.1), SGLD(0.1, temperature=0.3), SGHMC(0.1, friction=0.3), SGHMC(0.3, friction=0.5)],
    ids=str,
)
def test_chains_have_the_variance_of_the_discretised_dynamics(kernel, kind):
    kernel = type(kernel)(**{**vars(kernel), "noise": kind})
    draws, curvature = run(kernel), CURVATURE
    for index, lam in enumerate(curvature):
        expected = stationary(kernel, lam)
        # one number a chain, and chains are independent
        per_chain = (draws[:, index] ** 2).mean(0)
        error = per_chain.std() / CHAINS**0.5
        assert error < 0.03 * expected
        assert abs(per_chain.mean() - expected) < ERRORS * error
        assert abs(in_errors(draws[:, index].mean(0))) < ERRORS


@pytest.mark.parametrize("kind", KINDS)
def test_a_fixed_preconditioner_leaves_each_entry_its_posterior(kind):
    """Steps of ``eps s`` with ``s`` one over the curvature: the same relative error for all."""
    kernel = SGLD(0.2, noise=kind)
    draws = run(kernel, scale=1 / CURVATURE[:, None])
    expected = stationary(kernel, 1.0) / CURVATURE
    per_chain = (draws**2).mean(0)
    error = per_chain.std(-1) / CHAINS**0.5
    assert (abs(per_chain.mean(-1) - expected) < ERRORS * error).all()


def test_long_run_fourth_moment_is_a_normals():
    """Where the posterior is much wider than a step, the noise's own law is forgotten."""
    draws = run(SGLD(0.1))[:, 0]  # curvature 0.5: a variance of 2 by steps of 0.1
    z = draws / stationary(SGLD(0.1), 0.5) ** 0.5
    per_chain = (z**4).mean(0)
    # the excess of -1/16 of one increment leaves less than 0.002 of the stationary law's
    error = per_chain.std() / CHAINS**0.5
    assert abs(per_chain.mean() - 3) < ERRORS * error + 0.002


def test_a_scale_of_each_entry_leaves_the_posterior():
    curvature = CURVATURE[:, None]
    spread = np.random.default_rng(12).uniform(0.5, 2.0, (len(CURVATURE), CHAINS))
    scale = spread / curvature
    expected = stationary_langevin(0.1 * scale, curvature)
    relative = (run(SGLD(0.1), scale=scale) ** 2).mean(0) / expected
    assert (abs(relative.mean(-1) - 1) < ERRORS * relative.std(-1) / CHAINS**0.5).all()


def run(kernel, *, scale=None, steps=STEPS, burn=BURN):
    """Draws (kept, curvature, chain), each tenth after burn-in; chains last."""
    curvature = CURVATURE.astype(np.float32)[:, None]
    start = np.zeros((len(CURVATURE), CHAINS), np.float32)
    scale = None if scale is None else np.asarray(scale, np.float32)

    def step(state, key):
        return kernel.step(state, -curvature * state.position, key=key)[0], None

    def ten(state, keys):
        state = jax.lax.scan(step, state, keys)[0]
        return state, state.position

    keys = jax.random.split(jax.random.key(11), steps).reshape(-1, 10)
    chain = jax.jit(lambda scale, keys: jax.lax.scan(ten, kernel.init(start, scale), keys)[1])
    kept = chain(scale, keys)
    return np.asarray(kept, float)[burn // 10 :]
