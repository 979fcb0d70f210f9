"""Regressions and conjugate models in NumPy: JAX's posteriors, and never an import of JAX."""

import subprocess
import sys
from typing import ClassVar

import jax
import numpy as np
import pytest

from posterity import DiagonalGaussian, Gaussian, federate
from posterity.arrays import keys
from posterity.inference import PredictorQuadrature
from posterity.models import (
    LogisticRegression,
    PoissonRegression,
    PredictorModel,
    Records,
)


class CompiledLogistic(LogisticRegression):
    """The same formulas, of which it is not known that NumPy is enough for them."""


def problem(seed):
    """Sites of unequal sizes, with raw columns."""
    rng = np.random.default_rng(seed)
    size, sites = 4, {}
    truth, far = rng.normal(size=size), rng.choice([0.0, 1.0, 5.0])
    for site in range(int(rng.integers(1, 6))):
        x = rng.normal(size=(int(rng.integers(2, 64)), size)) * rng.choice([0.3, 1, 3]) + far
        x[:, 0] = 1
        chance = 1 / (1 + np.exp(-np.clip(x @ truth, -30, 30)))
        sites[f"s{site}"] = x, (rng.uniform(size=len(x)) < chance).astype(float)
    return sites, size


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", [Gaussian, DiagonalGaussian])
def test_numpy_finds_the_posterior_that_jax_finds(seed, family):
    sites, size = problem(seed)
    wide = 4 * (np.eye(size) if family is Gaussian else np.ones(size))
    prior = family.from_standard(np.zeros(size), wide)
    one = federate(sites, LogisticRegression(), prior)
    other = federate(sites, CompiledLogistic(), prior)
    # Searches end where a step would gain 1e-14 nats, and rounding decides which is the last.
    assert abs(one.posterior.kl(other.posterior)) < 1e-11
    away = (one.posterior.mean - other.posterior.mean) / np.sqrt(other.posterior.marginal_variance)
    assert abs(away).max() < 1e-5
    assert one.status.state == other.status.state == "converged"
    assert one.state.step == other.state.step


def test_a_gradient_of_many_records_is_that_of_jax():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3000, 3)), rng.integers(0, 2, 3000).astype(float)
    q, records = Gaussian.from_standard(np.ones(3), 0.1 * np.eye(3)), Records.of((x, y))
    estimator = PredictorQuadrature()
    known = estimator.evaluate(LogisticRegression(), q, records)
    with jax.enable_x64(True):
        evaluate = jax.jit(lambda *own: estimator.evaluate(LogisticRegression(), *own))
        compiled = jax.device_get(evaluate(q, records))
    np.testing.assert_allclose(known.value, compiled.value, rtol=1e-12)
    ours, theirs = known.gradient, compiled.gradient
    np.testing.assert_allclose(
        ours.natural_parameters, theirs.natural_parameters, rtol=1e-10, atol=1e-9
    )


@pytest.mark.parametrize("deviation", [0.0, 0.4, 1.1, 30.0, 1e4])
def test_expectations_of_a_logistic_predictor_of_any_width_are_those_of_many_nodes(deviation):
    rng, model = np.random.default_rng(1), LogisticRegression()
    mean, y = 10 * rng.normal(size=8), rng.integers(0, 2, 8)
    u = np.linspace(-9, 9, 200_001)
    chances = np.exp(-(u**2) / 2) / np.exp(-(u**2) / 2).sum()
    f = mean[:, None] + deviation * u
    value, slope = model.predictor_value_and_slope(f, y[:, None])
    chance = np.exp(-np.logaddexp(0, -f))
    every = value @ chances, slope @ chances, -(chance * (1 - chance)) @ chances
    for one, other in zip(
        model.predictor_expectation(mean, np.full(8, deviation**2), y), every, strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("exposure", [False, True])
def test_poisson_expectations_are_those_of_nodes_and_zero_counts_end(exposure):
    rng, model = np.random.default_rng(2), PoissonRegression(exposure)
    mean, variance, y = rng.normal(size=30), rng.gamma(1.0, size=30), rng.poisson(2.0, 30)
    data = np.column_stack([y, rng.gamma(2.0, size=30)]) if exposure else y
    known = model.predictor_expectation(mean, variance, data)
    u, chances = np.polynomial.hermite_e.hermegauss(80)
    f = mean[:, None] + np.sqrt(variance)[:, None] * u
    value, slope = model.predictor_value_and_slope(f, data[:, None])
    for one, other in zip(known, (value, slope), strict=False):
        np.testing.assert_allclose(one, other @ chances / chances.sum(), rtol=1e-8)
    x, none = np.column_stack([np.ones(30), rng.normal(size=30)]), np.zeros(30)
    prior = Gaussian.from_standard(np.zeros(2), np.diag([1e6, 100.0]))
    data = np.column_stack([none, np.ones(30)]) if exposure else none
    run = federate({"a": (x, data)}, model, prior, tolerance=1e-6)
    assert run.status.converged and run.posterior.mean[0] < -500


def test_classes_told_apart_end_whatever_the_prior_allows():
    x = np.random.default_rng(3).normal(size=(60, 3))
    y = 1.0 * (x[:, 0] + x[:, 1] > 0)
    means = []
    for wide in (1e8, 1e12):
        prior = Gaussian.from_standard(np.zeros(3), wide * np.eye(3))
        run = federate({"a": (x, y)}, LogisticRegression(), prior, tolerance=1e-6)
        assert run.status.converged
        means.append(run.posterior.mean / np.sqrt(wide))
    # Far out a logistic likelihood is a step, of which nothing but the prior says how far.
    np.testing.assert_allclose(*means, atol=0.02)


class Poisson(PredictorModel):
    """Counts with logarithmic link: a user's own, in NumPy."""

    families: ClassVar = (Gaussian,)
    numpy: ClassVar[bool] = True

    def predictor_log_likelihood(self, f, y):
        return y * f - np.exp(f)

    def predictor_value_and_slope(self, f, y):
        return self.predictor_log_likelihood(f, y), y - np.exp(f)


def test_a_model_of_ones_own_may_run_in_numpy():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(90), rng.normal(size=90)])
    y = rng.poisson(np.exp(x @ [0.5, -0.3])).astype(float)
    prior = Gaussian.from_standard(np.zeros(2), np.eye(2))
    sites = {name: (x[part::3], y[part::3]) for part, name in enumerate("abc")}
    run = federate(sites, Poisson(), prior, tolerance=1e-9)
    assert not run.agreement.update.needs_jax(run.agreement.model) and run.status.converged
    q = run.posterior  # where the optimum of the free energy is known in closed form
    rate = np.exp(x @ q.mean + ((x @ q.covariance) * x).sum(1) / 2)
    np.testing.assert_allclose(x.T @ (y - rate), prior.precision @ q.mean, atol=1e-3)
    curved = (x.T * rate) @ x + prior.precision
    np.testing.assert_allclose(q.precision, curved, rtol=1e-4, atol=1e-3)


SCRIPT = """
import sys
import numpy as np
import posterity
from posterity import graphs, models
from posterity.federation import Asynchronous, Gossip, Synchronous

x = np.random.default_rng(0).normal(size=(60, 2))
y = (x[:, 0] > 0).astype(float)
sites = {name: (x[k::3], y[k::3]) for k, name in enumerate("abc")}
full = posterity.Gaussian.from_standard(np.zeros(2), np.eye(2))
diagonal = posterity.DiagonalGaussian.from_standard(np.zeros(2), np.ones(2))
ring = graphs.ring(["a", "b", "c"])
for schedule in (None, Synchronous(), Asynchronous(), Gossip(ring)):
    for prior in (full, diagonal):
        run = posterity.federate(sites, models.LogisticRegression(), prior, schedule=schedule)
        assert run.status.converged, (schedule, run.status)
done = posterity.forget(run.converge(1e-6), "b")
assert done.status.converged and not done.exact
coins = {name: np.array([1, 1, 0]) for name in "abc"}
conjugate = [
    (models.BetaBernoulli(), posterity.Beta.from_standard(1.0, 1.0), coins),
    (models.GammaPoisson(), posterity.Gamma.from_standard(1.0, 1.0), coins),
    (models.LinearRegression(), full, sites),
    (models.GaussianMean(np.eye(2)), full, {name: own[0] for name, own in sites.items()}),
    (models.DirichletCategorical(2), posterity.Dirichlet.from_standard([1.0, 1.0]), coins),
]
for model, prior, data in conjugate:
    run = posterity.federate(data, model, prior)
    assert run.exact and posterity.forget(run, "b").exact
print(sorted({"jax", "jaxlib", "equinox", "jaxtyping"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_federations_of_regressions_and_conjugate_models_import_no_jax():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("seed", [0, 2**31 + 5, 2**32 - 1])
def test_keys_give_the_numbers_that_jax_draws(seed):
    known, ours = jax.random.key(seed), keys.seeded(seed)
    assert ours == keys.plain(known) and keys.of_jax(ours) == known
    assert ours == keys.plain(jax.random.key(seed, impl="rbg"))  # two such keys
    for number in (0, 3, 2**32 - 1):
        assert keys.plain(jax.random.fold_in(known, np.uint32(number))) == keys.fold_in(
            ours, number
        )
    assert keys.bits(ours, 2) == int(jax.random.bits(known, (3,), np.uint32)[2])
    for size in (1, 3, 100_000):
        drawn = jax.random.randint(known, (4,), 0, size).tolist()
        assert keys.below(ours, size, 4) == keys.below(known, size, 4) == drawn
    assert keys.exponential(ours) == pytest.approx(float(jax.random.exponential(known)), rel=1e-6)
