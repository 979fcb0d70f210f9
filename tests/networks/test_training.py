"""Local posteriors: against references where there are any, on digits where not."""

import warnings
from typing import Any

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from posterity.errors import (
    ConvergenceWarning,
    ParameterError,
    PosterityError,
    ScaleWarning,
    StructureError,
    UsageError,
)
from posterity.families import Network
from posterity.networks import (
    Conv,
    Dense,
    GaussianPrior,
    Horseshoe,
    Layers,
    predict,
    train,
    training,
)
from posterity.networks.bound import Bound, regularised, scale_kl, started
from posterity.networks.training import PACING, prior_arrays
from posterity.status import Progress
from tests.networks.digits import LAYERS, TEST, TRAINING, trained

LINEAR = Layers((Dense(2, 1, "identity", bias=False),))


def accuracy(network: Network) -> float:
    return float((predict(network, TEST[0], samples=0).argmax(1) == TEST[1]).mean())


# --- against references --------------------------------------------------------------------------


def test_a_linear_network_finds_the_best_mean_field_gaussian() -> None:
    """Of linear regression it is known: the posterior's mean, and its precision's diagonal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
    y = x @ np.array([0.7, -0.4]) + 0.5 * rng.normal(size=80)
    found = train(
        LINEAR, (x, y), key=jax.random.key(0), likelihood="gaussian", noise_variance=0.25,
        prior=GaussianPrior(0.5), batch_size=80,
    )  # fmt: skip
    precision = x.T @ x / 0.25 + np.eye(2) / 0.5
    deviation = 1 / np.sqrt(np.diagonal(precision))
    mean = np.linalg.solve(precision, x.T @ y / 0.25)
    assert found.status.converged
    assert (np.abs(found.posterior.mean - mean) < 0.1 * deviation).all()
    np.testing.assert_allclose(np.sqrt(found.posterior.variance), deviation, rtol=0.05)
    # The evidence is above the bound, by the divergence that independence costs.
    covariance = x @ x.T * 0.5 + 0.25 * np.eye(80)
    evidence = scipy.stats.multivariate_normal(np.zeros(80), covariance).logpdf(y)
    gap = (np.log(np.diagonal(precision)).sum() - np.linalg.slogdet(precision)[1]) / 2
    noise = 0.05  # of a mean over fifty steps' draws, in nats a record
    assert abs(found.trace[-1] - (evidence - gap) / 80) < noise


def test_divergences_are_those_of_the_family() -> None:
    layers = Layers.dense(3, 2, 2)
    bound = Bound(layers, "categorical", 1.0, 1.0, None)
    prior = Network.prior(layers, (0.3, 0.7))
    own = started(bound, None, key=jax.random.key(0))
    from posterity.networks.bound import as_posterior

    expected = as_posterior(bound, own).kl(prior)
    found = jax.jit(bound.divergence)(own, prior_arrays(prior))
    np.testing.assert_allclose(float(found), expected, rtol=1e-5)


@pytest.mark.parametrize("mean, deviation, scale", [(-3.0, 0.4, 1.0), (0.5, 1.5, 0.3)])
def test_the_divergence_of_scales(mean: float, deviation: float, scale: float) -> None:
    """Against SciPy's half-Cauchy and log-normal, integrated over the logarithm."""
    law = scipy.stats.norm(mean, deviation)
    prior = scipy.stats.halfcauchy(scale=scale)
    integrand = lambda s: law.pdf(s) * (law.logpdf(s) - prior.logpdf(np.exp(s)) - s)
    span = (mean - 9 * deviation, mean + 9 * deviation)
    expected = scipy.integrate.quad(integrand, *span)[0]
    own = {"mean": np.array([mean]), "log_deviation": np.log([deviation])}
    np.testing.assert_allclose(jax.jit(scale_kl)(own, scale), expected, rtol=1e-3)


def test_the_horseshoe_as_a_gaussian_has_its_second_moment() -> None:
    prior = Horseshoe(scale=0.5, slab=2.0)
    density = scipy.stats.halfcauchy(scale=0.5).pdf
    scale = jax.jit(regularised)
    square = lambda t: density(t) * float(scale(np.log(t), 2.0)) ** 2
    expected = scipy.integrate.quad(square, 0, np.inf)[0]
    np.testing.assert_allclose(prior.variances(LAYERS)[0], expected, rtol=1e-5)
    assert prior.network(LAYERS).layers == LAYERS


# --- digits --------------------------------------------------------------------------------------


def alive(network: Network) -> int:
    """Units any of whose outgoing weights stands out from its own uncertainty."""
    mean, variance = (network.layers.unravel(part) for part in (network.mean, network.variance))
    ratio = mean[-1]["kernel"] ** 2 / variance[-1]["kernel"]
    return int((ratio.max(1) > 4).sum())


@pytest.mark.slow
def test_digits_are_learned_and_the_horseshoe_prunes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        plain, sparse = trained(steps=1500), trained(steps=1500, prior=Horseshoe())
    # Of 397 digits, 93 % right are three standard errors below what is found.
    assert accuracy(plain.posterior) > 0.93 and accuracy(sparse.posterior) > 0.93
    assert alive(sparse.posterior) < min(alive(plain.posterior), LAYERS.widths[0] / 2)
    for found in (plain, sparse):
        ledger = found.ledger("here")
        assert ledger.independent and ledger.prior == found.prior
        np.testing.assert_allclose(ledger.posterior.mean, found.posterior.mean, atol=1e-9)


def test_colder_networks_are_less_uncertain_and_start_where_they_are_told() -> None:
    options = {"steps": 10 * PACING.chunk, "batch_size": 100}
    with pytest.warns(ConvergenceWarning, match="Leave `steps` out"):
        warm = trained(**options)
    with pytest.warns(ConvergenceWarning):
        cold = trained(**options, temperature=0.1)
    assert cold.posterior.variance.mean() < warm.posterior.variance.mean()
    assert cold.steps == 10 * PACING.chunk and not cold.status.converged
    seen: list[Progress] = []
    with pytest.warns(ConvergenceWarning):
        further = trained(
            steps=2 * PACING.chunk, prior=cold.posterior, temperature=0.1, progress=seen.append
        )
    assert further.prior == cold.posterior
    assert further.trace[0] > cold.trace[0] + 1  # it did not begin anew
    assert [now.step for now in seen] == [
        PACING.chunk,
        round(0.7 * 2 * PACING.chunk),
        2 * PACING.chunk,
    ]
    assert tuple(now.objective for now in seen) == further.trace
    assert {now.steps for now in seen} == {2 * PACING.chunk}
    assert seen[-1].result.posterior == further.posterior


def test_the_key_says_it_all() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first, again, other = (trained(steps=PACING.chunk, seed=seed) for seed in (1, 1, 2))
    assert first.posterior == again.posterior != other.posterior


def test_numbers_are_not_programs() -> None:
    """Another temperature, rate, noise, scale or number of steps compiles nothing anew."""
    layers, rng = Layers.dense(2, 3, 1), np.random.default_rng(0)
    data = rng.normal(size=(20, 2)), rng.normal(size=(20, 1))

    def once(scale: float, **numbers: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            train(layers, data, likelihood="gaussian", prior=Horseshoe(scale), **numbers)

    once(1.0, steps=PACING.chunk)
    before = training._steps.programs
    once(0.5, steps=PACING.chunk + 7, temperature=0.3, noise_variance=0.2, learning_rate=3e-3)
    assert training._steps.programs == before


def test_progress_may_stop_it() -> None:
    def stop(now: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(progress=stop)


@pytest.mark.slow
def test_convolutions_under_a_horseshoe() -> None:
    """A small network, of few steps."""
    layers = Layers((Conv((3, 3), 1, 6, pool=2), Dense(54, 10, "identity")), (8, 8, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = train(
            layers, TRAINING, key=jax.random.key(0), steps=600, temperature=0.1,
            prior=Horseshoe(),
        )  # fmt: skip
    assert accuracy(found.posterior) > 0.85
    assert found.trace[-1] > found.trace[0] + 0.5


# --- ugly input ----------------------------------------------------------------------------------


def test_inputs_far_from_zero_are_told_of() -> None:
    with (
        pytest.warns(ScaleWarning, match="column 59 has a root mean square of 1"),
        pytest.warns(ConvergenceWarning),
    ):
        trained((130 + 40 * TRAINING[0], TRAINING[1]), steps=PACING.chunk)
    with pytest.warns(ScaleWarning, match="what was observed"), pytest.warns(ConvergenceWarning):
        train(
            LINEAR, (np.ones((9, 2)), np.full(9, 5e3)), key=jax.random.key(0),
            likelihood="gaussian", steps=PACING.chunk,
        )  # fmt: skip


def test_a_site_of_one_record() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = trained((TRAINING[0][:1], TRAINING[1][:1]), steps=2 * PACING.chunk)
    assert np.isfinite(found.posterior.mean).all() and found.posterior.is_proper()


def test_a_bound_that_is_lost_is_an_error() -> None:
    with pytest.raises(ParameterError, match="evidence lower bound of"):
        trained(learning_rate=1e6)


GOOD: dict[str, Any] = {"layers": LAYERS, "data": TRAINING}
BAD: dict[str, tuple[dict[str, Any], type[PosterityError], str]] = {
    "labels": ({"data": (TRAINING[0], TRAINING[1] + 1)}, ParameterError, "labels from 0 to 9"),
    "inputs": ({"data": (TRAINING[0][:, :9], TRAINING[1])}, StructureError, "shapes"),
    "no pair": ({"data": TRAINING[0]}, StructureError, "pair"),
    "nobody": ({"data": (TRAINING[0][:0], TRAINING[1][:0])}, StructureError, "no records"),
    "lengths": ({"data": (TRAINING[0][:9], TRAINING[1])}, StructureError, "shape"),
    "NaN": ({"data": (TRAINING[0] * np.nan, TRAINING[1])}, ParameterError, "NaN"),
    "likelihood": ({"likelihood": "poisson"}, UsageError, "categorical"),
    "temperature": ({"temperature": 0.0}, UsageError, "temperature"),
    "rate": ({"learning_rate": -1.0}, UsageError, "learning_rate"),
    "steps": ({"steps": 0}, UsageError, "steps"),
    "batch": ({"batch_size": 0}, UsageError, "batch_size"),
    "prior": ({"prior": Network.prior(LINEAR)}, UsageError, "same layers"),
    "start": ({"start": Network.prior(LINEAR)}, UsageError, "same layers"),
    "variances": ({"prior": GaussianPrior((1.0, 1.0, 1.0))}, UsageError, "3 variances"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_trained(case: str) -> None:
    changed, kind, said = BAD[case]
    with pytest.raises(kind, match=said):
        train(key=jax.random.key(0), **{**GOOD, **changed})


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianPrior(0.0), lambda: GaussianPrior((1.0, -1.0)),
        lambda: Horseshoe(scale=0.0), lambda: Horseshoe(slab=-1.0),
    ],
)  # fmt: skip
def test_what_no_prior_is(make: Any) -> None:
    with pytest.raises(UsageError, match="positive"):
        make()
