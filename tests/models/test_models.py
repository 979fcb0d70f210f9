"""Models: factors, likelihoods, and what is said of data that cannot be theirs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.conjugate import CONJUGATE, COVARIANCE

from posterity.families import Beta, Gaussian
from posterity.models import (
    BetaBernoulli,
    BetaExponential,
    ConjugateModel,
    DirichletCategorical,
    FunctionModel,
    GammaPoisson,
    GaussianMean,
    GaussianMeanCovariance,
    LinearRegression,
    LogisticRegression,
    Records,
)

NOISE = 0.7
few = settings(max_examples=settings().max_examples // 4)


class Case(NamedTuple):
    model: ConjugateModel
    prior: Any
    data: Callable[[np.random.Generator, int], Any]
    posterior: Callable[[Any, Any], Any]
    event: Callable[[np.random.Generator], Any]


def regression_data(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(count, 2))
    return x, x @ [1.0, -2.0] + rng.normal(size=count)


def regression_posterior(prior: Gaussian, data: Any) -> Gaussian:
    """By conditioning the joint Gaussian of weights and observations (bishop2006, 2.3.1)."""
    x, y = data
    gain = (
        prior.covariance @ x.T @ np.linalg.inv(x @ prior.covariance @ x.T + NOISE * np.eye(len(y)))
    )
    mean = prior.mean + gain @ (y - x @ prior.mean)
    return Gaussian.from_standard(mean, prior.covariance - gain @ x @ prior.covariance)


def of_reference(name: str, model: ConjugateModel, event: Any) -> Case:
    prior, data, posterior = CONJUGATE[name]
    return Case(model, prior, lambda rng, n: data(rng, n, 0.0), posterior, event)


def mean_and_precision(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    root = rng.normal(size=(3, 5))
    return rng.normal(size=3), root @ root.T


CASES = {
    "Beta-Bernoulli": of_reference("Beta-Bernoulli", BetaBernoulli(), lambda rng: rng.beta(2, 2)),
    "Dirichlet-categorical": of_reference(
        "Dirichlet-categorical", DirichletCategorical(4), lambda rng: rng.dirichlet(np.ones(4))
    ),
    "Gamma-Poisson": of_reference("Gamma-Poisson", GammaPoisson(), lambda rng: rng.gamma(4.0)),
    "Gaussian mean": of_reference(
        "Gaussian mean", GaussianMean(COVARIANCE), lambda rng: rng.normal(size=3)
    ),
    "Normal-Wishart": of_reference("Normal-Wishart", GaussianMeanCovariance(), mean_and_precision),
    "linear regression": Case(
        LinearRegression(NOISE),
        Gaussian.from_standard([0.5, 0.0], [[2.0, 0.3], [0.3, 1.0]]),
        regression_data,
        regression_posterior,
        lambda rng: rng.normal(size=2),
    ),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def assert_close(left: Any, right: Any, rtol: float = 1e-11) -> None:
    """Members of equal natural parameters, relative to the largest."""
    left, right = left.natural_parameters, right.natural_parameters
    np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol * np.abs(right).max())


def take(data: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], data)


def events(case: Case) -> list[Any]:
    """A few values of the parameter, as NumPy float64."""
    rng = np.random.default_rng(5)
    return [jax.tree.map(np.asarray, case.event(rng)) for _ in range(4)]


@each
def test_prior_plus_factor_is_the_textbook_posterior(case: Case) -> None:
    data = case.data(np.random.default_rng(0), 37)
    case.model.check(data)
    assert_close(case.prior + case.model.factor(Records.of(data)), case.posterior(case.prior, data))


@each
def test_bayes_rule_holds_at_every_event(case: Case) -> None:
    records = Records.of(case.data(np.random.default_rng(1), 9))
    posterior = case.prior + case.model.factor(records)
    evidence = [
        posterior.log_prob(z) - case.prior.log_prob(z) - case.model.total(z, records)
        for z in events(case)
    ]
    np.testing.assert_allclose(evidence, evidence[0], rtol=1e-11)


@each
def test_likelihood_is_the_same_under_jax(case: Case) -> None:
    data, z = case.data(np.random.default_rng(2), 5), events(case)[0]
    ours = case.model.log_likelihood(z, data)
    assert ours.dtype == np.float64 and isinstance(ours, np.ndarray)
    with jax.enable_x64(True):
        traced = jax.jit(lambda *args: case.model.log_likelihood(*args))(z, data)
    np.testing.assert_allclose(traced, ours, rtol=1e-12)


@each
@few
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 30), part=st.integers(0, 30))
def test_factors_add_over_records(case: Case, seed: int, size: int, part: int) -> None:
    data = case.data(np.random.default_rng(seed), size)
    whole, left, right = (
        case.model.factor(Records.of(take(data, index)))
        for index in (slice(None), slice(part), slice(part, None))
    )
    assert_close(left + right, whole)


@each
@few
@given(seed=st.integers(0, 2**32 - 1), weights=st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_a_weight_counts_a_record_as_often(case: Case, seed: int, weights: list[int]) -> None:
    data = case.data(np.random.default_rng(seed), len(weights))
    weighted = Records(data, np.array(weights, float))
    repeated = Records.of(take(data, np.repeat(np.arange(len(weights)), weights)))
    expected = case.model.factor(repeated)
    atol = 1e-11 * np.abs(case.model.factor(Records.of(data)).natural_parameters).max()
    factor = case.model.factor(weighted)
    np.testing.assert_allclose(
        factor.natural_parameters, expected.natural_parameters, rtol=1e-11, atol=atol
    )


def test_likelihoods_are_scipys() -> None:
    rng = np.random.default_rng(3)
    counts, flips, waits = rng.poisson(3.0, 6), np.array([0, 1, 1]), rng.exponential(0.4, 6)
    vectors, labels = rng.normal(size=(6, 3)), np.array([0, 3, 1])
    mean, chances = np.array([1.0, 0.0, -1.0]), np.array([0.1, 0.2, 0.3, 0.4])
    x, y = regression_data(rng, 5)
    pairs = [
        (
            GammaPoisson().log_likelihood(np.float64(2.5), counts),
            scipy.stats.poisson(2.5).logpmf(counts),
        ),
        (
            BetaBernoulli().log_likelihood(np.float64(0.3), flips),
            scipy.stats.bernoulli(0.3).logpmf(flips),
        ),
        (
            BetaExponential().log_likelihood(np.float64(0.4), waits),
            scipy.stats.expon(scale=0.4).logpdf(waits),
        ),
        (
            GaussianMean(COVARIANCE).log_likelihood(mean, vectors),
            scipy.stats.multivariate_normal(mean, COVARIANCE).logpdf(vectors),
        ),
        (
            GaussianMeanCovariance().log_likelihood((mean, np.linalg.inv(COVARIANCE)), vectors),
            scipy.stats.multivariate_normal(mean, COVARIANCE).logpdf(vectors),
        ),
        (DirichletCategorical(4).log_likelihood(chances, labels), np.log([0.1, 0.4, 0.2])),
        (
            LinearRegression(NOISE).log_likelihood(np.array([1.0, 2.0]), (x, y)),
            scipy.stats.norm(x @ [1.0, 2.0], np.sqrt(NOISE)).logpdf(y),
        ),
    ]
    for ours, scipys in pairs:
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, scipys, rtol=1e-13)


def test_logistic_regression_is_scipys_even_at_extreme_odds() -> None:
    x = np.array([[1.0, 0.0], [0.0, 1.0], [30.0, 4.0], [-800.0, 0.0], [800.0, 0.0]])
    y, z = np.array([1, 0, 1, 0, 0]), np.array([1.0, -0.5])
    ours = LogisticRegression().log_likelihood(z, (x, y))
    expected = scipy.stats.logistic.logcdf((2 * y - 1) * (x @ z))  # log σ(±f)
    np.testing.assert_allclose(ours, expected, rtol=1e-14)


def test_certain_chances_are_no_nan() -> None:
    flips = np.array([0, 1])
    np.testing.assert_array_equal(
        BetaBernoulli().log_likelihood(np.float64(1), flips), [-np.inf, 0]
    )
    np.testing.assert_array_equal(GammaPoisson().log_likelihood(np.float64(0), flips), [0, -np.inf])


@pytest.mark.parametrize("a, b", [(1.5, 0.7), (2.0, 2.0), (60.0, 3.0)])
def test_expected_log_likelihood_of_beta_exponential(a: float, b: float) -> None:
    waits, model = np.array([0.0, 0.3, 4.0]), BetaExponential()
    q = scipy.stats.beta(a, b)

    def expectation(x: float) -> float:
        # The ends behave like powers: let quad know, which integrates (z)^(a-2) (1-z)^(b-1) g.
        g = lambda z: (-z * np.log(z) - x) if z > 0 else -x
        value, _ = scipy.integrate.quad(g, 0, 1, weight="alg", wvar=(a - 2, b - 1), epsrel=1e-12)
        return value / scipy.special.beta(a, b)

    ours = model.expected_log_likelihood(Beta.from_standard(a, b), waits)
    np.testing.assert_allclose(ours, [expectation(x) for x in waits], rtol=1e-7)
    assert q.expect(lambda z: model.log_likelihood(z, np.array([0.3]))[0]) == pytest.approx(
        ours[1], rel=1e-5
    )


def test_beta_exponential_admits_only_finite_expectations() -> None:
    admits = lambda a: bool(BetaExponential().admits(Beta.from_standard(a, 2.0)))
    assert [admits(a) for a in (0.5, 1.0, 1.0001, 3.0)] == [False, False, True, True]


def test_a_function_is_a_model() -> None:
    data, z = regression_data(np.random.default_rng(4), 6), np.array([0.3, 1.0])
    built_in, records = LinearRegression(NOISE), Records.of(data, 0.5)

    def log_likelihood(z: Any, data: Any) -> Any:
        x, y = data
        return -((y - x @ z) ** 2) / NOISE / 2 - np.log(2 * np.pi * NOISE) / 2

    ours = FunctionModel(log_likelihood)
    ours.check(data)
    np.testing.assert_allclose(ours.total(z, records), built_in.total(z, records), rtol=1e-13)


def test_records_of_one_weight() -> None:
    x, y = np.ones((3, 2)), np.array([0, 1, 1])
    records = Records.of((x, y), 2)
    assert records.size == 3 and records.weights.dtype == np.float64
    np.testing.assert_array_equal(records.weights, [2.0, 2.0, 2.0])
    assert Records.of(x[:0]).size == Records.of(None).size == 0


@pytest.mark.parametrize("size, padded", [(1, 64), (64, 64), (65, 256), (1025, 2048)])
def test_padding_has_no_weight(size: int, padded: int) -> None:
    data = regression_data(np.random.default_rng(0), size)
    records, model = Records.of(data, 0.5), LinearRegression(NOISE)
    assert records.padded().size == padded
    for more in (records.padded(), records.padded(size + 130)):
        assert_close(model.factor(more), model.factor(records))
        np.testing.assert_array_equal(take(more.data, slice(size))[0], data[0])
