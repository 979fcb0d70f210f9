"""Monte Carlo estimates of a mixture against quadrature on a grid, in one dimension."""

import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from scipy import special

from posterity.families import DiagonalGaussian, Gaussian, Mixture
from tests.laws.table import mixture, to_jax

GRID = np.linspace(-30, 30, 60_001)
NEAR = Mixture.from_standard(
    [0.2, 0.5, 0.3],
    DiagonalGaussian.from_standard([[-3.0], [0.0], [4.0]], [[0.5], [1.0], [2.0]]),
)
OTHER = Mixture.from_standard(
    [0.6, 0.4], DiagonalGaussian.from_standard([[-1.0], [2.0]], [[4.0], [9.0]])
)


def integral(values: np.ndarray) -> float:
    """The trapezoidal rule on the grid; exact to rounding for smooth, decaying functions."""
    return float(np.trapezoid(values, GRID))


def on_grid(q: Mixture) -> np.ndarray:
    return q.log_prob(GRID[:, None])


def test_the_density_integrates_to_one() -> None:
    for q in (NEAR, OTHER):
        assert abs(integral(np.exp(on_grid(q))) - 1) < 1e-12


@jax.jit
def estimate(p: Mixture, q: Mixture, key: jax.Array) -> Any:
    return p.kl(q, key=key, num_samples=4096)


@pytest.mark.parametrize("seed", range(3))
def test_kl_is_within_its_standard_error(seed: int) -> None:
    p, q = on_grid(NEAR), on_grid(OTHER)
    with jax.enable_x64(True):
        found = estimate(NEAR, OTHER, jax.random.key(seed))
    value, standard_error = float(found.value), float(found.standard_error)
    assert 0 < standard_error < 0.05
    assert abs(value - integral(np.exp(p) * (p - q))) <= 4 * standard_error


def test_standard_errors_are_honest() -> None:
    """Over many keys the errors, in standard errors, have variance one."""
    p, q = on_grid(NEAR), on_grid(OTHER)
    exact = integral(np.exp(p) * (p - q))
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 400)
        near, other = to_jax(NEAR), to_jax(OTHER)
        found = jax.jit(jax.vmap(lambda k: near.kl(other, key=k, num_samples=256)))(keys)
    score = (np.asarray(found.value) - exact) / np.asarray(found.standard_error)
    # The variance of 400 scores has standard error sqrt(2 / 400) = 0.07.
    assert abs(score.mean()) < 4 / 20
    assert abs(score.var() - 1) < 4 * 0.0707


def test_samples_follow_the_weights() -> None:
    q = mixture(np.random.default_rng(0), (), 2)
    z = np.asarray(jax.jit(lambda key: q.sample(key, (20_000,)))(jax.random.key(1)))
    share = special.softmax(q.components.log_prob(z[:, None]) + np.log(q.weights), axis=-1)
    error = share.mean(0) - q.weights
    assert np.all(np.abs(error) <= 4 * share.std(0) / len(z) ** 0.5)


def test_weights_need_not_be_normalised_and_may_be_tiny() -> None:
    components = Gaussian.from_standard(np.zeros((2, 1)), np.ones((2, 1, 1)))
    shifted = Mixture(np.array([5.0, 5.0 - 800.0]), components)
    assert shifted.log_prob(np.zeros(1)) == pytest.approx(-np.log(2 * np.pi) / 2, rel=1e-14)
    far = Gaussian.from_standard([[0.0], [100.0]], np.ones((2, 1, 1)))
    tail = Mixture(np.array([0.0, -800.0]), far).log_prob(np.array([100.0]))
    assert tail == pytest.approx(-800 - np.log(2 * np.pi) / 2, rel=1e-12)


def test_log_prob_is_the_weighted_sum_of_densities() -> None:
    q = mixture(np.random.default_rng(0), (), 2)
    z = np.random.default_rng(1).normal(size=(7, 2))
    parts = np.stack([q.components[k].log_prob(z) for k in range(3)], -1)
    expected = special.logsumexp(parts, b=q.weights, axis=-1)
    np.testing.assert_allclose(q.log_prob(z), expected, rtol=1e-12)


DRAWN = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import jax, numpy as np
from posterity.families import Gaussian, Mixture, Product
rng = np.random.default_rng(0)
half = rng.normal(size=(3, 5, 5))
law = Gaussian.from_standard(rng.normal(size=(3, 5)), half @ half.mT + np.eye(5))
for components in (law, Product(one=law, two=law)):
    mixture = Mixture.from_standard([0.2, 0.3, 0.5], components)
    draw = jax.jit(lambda key: mixture.sample(key, (200_000,)))
    for seed in range(3):
        z = jax.block_until_ready(draw(jax.random.key(seed)))
    mean = np.asarray(z if components is law else z["two"], float).mean(0)
    expected = np.array([0.2, 0.3, 0.5]) @ law.mean
    assert np.abs(mean - expected).max() < 0.05, mean
"""


@pytest.mark.slow
def test_compiled_draws_end_on_two_threads_with_users_flags() -> None:
    """Batched factorisations side by side once waited for each other's threads for ever."""
    flags = {"XLA_FLAGS": "", "JAX_ENABLE_X64": "1"}
    command = [sys.executable, "-c", DRAWN]
    subprocess.run(command, env=os.environ | flags, timeout=120, check=True)
