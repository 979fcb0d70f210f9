"""Models: factors, likelihoods, and what is said of data that cannot be theirs."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.conjugate import CONJUGATE, COVARIANCE

from posterity.errors import ParameterError, PosterityError, StructureError, UsageError
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
    NeuralNetwork,
    PredictorModel,
    Records,
)
from posterity.models.separation import separating

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


@pytest.mark.parametrize("deviation", [0.2, 0.5, 1.0, 1.001, 3.0])
def test_expectations_of_a_logistic_function_have_twelve_digits(deviation: float) -> None:
    mean = np.linspace(-9.0, 9.0, 37)
    found = LogisticRegression().predictor_expectation(mean, np.full(37, deviation**2), np.ones(37))
    assert found is not None
    z, weights = scipy.special.roots_hermitenorm(400)
    f = mean + deviation * z[:, None]
    on, off = scipy.special.expit(f), scipy.special.expit(-f)
    parts = (np.log(on), off, -on * off)
    truth = [weights @ part / weights.sum() for part in parts]
    for ours, theirs in zip(found, truth, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-12)


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


# --- what is refused ---------------------------------------------------------------------------

X, Y = np.ones((3, 2)), np.array([0, 1, 1])
PAIR = GaussianMean(np.eye(2))
ANY = FunctionModel(lambda z, x: x)


def network(outputs: int, likelihood: str = "categorical") -> NeuralNetwork:
    apply = lambda p, x: jnp.tanh(x @ p["w"] + p["b"])
    parameters = {"w": np.zeros((2, outputs)), "b": np.zeros(outputs)}
    return NeuralNetwork(apply, parameters, likelihood=likelihood)


DATA = {
    "NaN": (GammaPoisson(), np.array([1.0, np.nan]), ParameterError, r"infinity.* \(1 such"),
    "infinite": (BetaExponential(), np.array([np.inf, 1.0]), ParameterError, "NaN or infinity"),
    "NaN in inputs": (LogisticRegression(), (X * np.nan, Y), ParameterError, r"infinity.*\(6 such"),
    "NaN for a function": (ANY, X * np.nan, ParameterError, r"infinity.*\(6 such"),
    "text": (BetaBernoulli(), np.array(["yes", "no"]), StructureError, "real numbers"),
    "objects": (BetaBernoulli(), np.array([None, 1]), StructureError, "dtype object"),
    "complex": (BetaExponential(), np.array([1j]), StructureError, "real numbers"),
    "a coin of 2": (BetaBernoulli(), np.array([0, 2, 1]), ParameterError, r"found 2 .*\{0, 1\}"),
    "half a coin": (BetaBernoulli(), np.array([0.5]), ParameterError, "found 0.5 "),
    "coins in a table": (BetaBernoulli(), X, StructureError, r"\(3, 2\)"),
    "coins with labels": (BetaBernoulli(), (Y, Y), StructureError, "2 arrays; .* one array"),
    "label too large": (DirichletCategorical(3), np.array([0, 3]), ParameterError, "0 to 2"),
    "label negative": (DirichletCategorical(3), np.array([0, -1]), ParameterError, "found -1"),
    "label fractional": (DirichletCategorical(3), np.array([0.5]), ParameterError, "found 0.5"),
    "one-hot labels": (DirichletCategorical(3), np.eye(3), StructureError, r"shape \(n,\)"),
    "count negative": (GammaPoisson(), np.array([3, -2]), ParameterError, "found -2"),
    "count fractional": (GammaPoisson(), np.array([1.5]), ParameterError, "counts 0, 1, 2"),
    "time negative": (BetaExponential(), np.array([-0.1]), ParameterError, "not negative"),
    "vectors too long": (PAIR, np.ones((4, 3)), StructureError, "n, 2"),
    "numbers for vectors": (GaussianMeanCovariance(), np.ones(4), StructureError, "n, d"),
    "no labels": (LinearRegression(), X, StructureError, "ndarray; .* pair"),
    "three arrays": (LinearRegression(), (X, Y, Y), StructureError, "tuple of 3; .* pair"),
    "named arrays": (LogisticRegression(), {"x": X, "y": Y}, StructureError, "dict; .* pair"),
    "flat inputs": (LinearRegression(), (Y, Y), StructureError, "x of shape"),
    "column of labels": (LogisticRegression(), (X, Y[:, None]), StructureError, "y of shape"),
    "labels of 1 and 2": (LogisticRegression(), (X, Y + 1), ParameterError, "found 2 .*labels in"),
    "net: NaN": (network(3), (X * np.nan, Y), ParameterError, r"infinity.*\(6 such"),
    "net: no labels": (network(3), X, StructureError, "pair"),
    "net: label too large": (network(3), (X, Y + 2), ParameterError, "found 3 .*0 to 2"),
    "net: label negative": (network(3), (X, Y - 1), ParameterError, "found -1"),
    "net: label of 2": (network(1, "bernoulli"), (X, 2 * Y), ParameterError, "found 2"),
    "net: column of labels": (network(3), (X, Y[:, None]), StructureError, r"y of shape \(n,\)"),
    "net: three logits": (network(3, "bernoulli"), (X, Y), StructureError, "one logit"),
    "net: two means": (network(2, "gaussian"), (X, X[:, :1]), StructureError, "shaped as y"),
    "net: lengths differ": (network(3), (X, Y[:2]), StructureError, r"\(3, 3\).*\(2,\)"),
    "net: wide inputs": (network(3), (np.ones((3, 5)), Y), StructureError, r"\(3, 5\)"),
}


@pytest.mark.parametrize("model, data, kind, says", DATA.values(), ids=list(DATA))
def test_data_that_cannot_be_the_models(
    model: Any, data: Any, kind: type[PosterityError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        model.check(data)


def total_of(function: Any) -> None:
    FunctionModel(function).total(jnp.asarray(0.5), Records.of(np.arange(3.0)))


ONE_A_RECORD = (StructureError, r"one number a record, of .*expected shape \(3\)")
COMMON_AXIS = (StructureError, "first axes agree")
BAD_NOISE = (ParameterError, "noise_variance=.* a positive number")
FLOATS = (UsageError, "a pytree of arrays of floats, at least one.*from_equinox")
net = partial(NeuralNetwork, lambda p, x: x)
REST = {
    "a sum": (lambda: total_of(lambda z, x: (x * z).sum()), *ONE_A_RECORD),
    "a column": (lambda: total_of(lambda z, x: (x * z)[:, None]), *ONE_A_RECORD),
    "too few": (lambda: total_of(lambda z, x: (x * z)[:2]), *ONE_A_RECORD),
    "a constant": (lambda: total_of(lambda z, x: 0.0), *ONE_A_RECORD),
    "lengths differ": (lambda: Records.of((X, Y[:2])), *COMMON_AXIS),
    "a list of arrays": (lambda: Records.of([X, Y[:2]]), *COMMON_AXIS),
    "a number": (lambda: Records.of(np.float64(3.0)), *COMMON_AXIS),
    "nothing": (lambda: Records.of(()), *COMMON_AXIS),
    "named lengths differ": (lambda: Records.of({"x": X, "y": np.ones(4)}), *COMMON_AXIS),
    "oblong": (lambda: GaussianMean(np.ones((2, 3))), StructureError, "d x d matrices"),
    "several": (lambda: GaussianMean(np.stack([np.eye(2)] * 2)), StructureError, "matrix"),
    "no matrix": (lambda: GaussianMean(2.0), StructureError, "matrix"),
    "indefinite": (lambda: GaussianMean([[1, 2], [2, 1]]), ParameterError, "positive definite"),
    "asymmetric": (lambda: GaussianMean([[1, 0.5], [0, 1]]), ParameterError, "asymmetric"),
    **{
        f"noise {x}": (partial(LinearRegression, x), *BAD_NOISE)
        for x in (0.0, -1.0, np.nan, np.inf)
    },
    "net: noise": (lambda: net([np.zeros(2)], noise_variance=0.0), *BAD_NOISE),
    "net: likelihood": (lambda: net([X], likelihood="poisson"), UsageError, "'poisson'.*'gauss"),
    "net: nothing": (lambda: net({}), *FLOATS),
    # Its activation is a leaf, too.
    "net: module": (lambda: net(eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))), *FLOATS),
    "net: a count": (lambda: net({"w": X, "count": 3}), UsageError, r"\['int'\]"),
}


@pytest.mark.parametrize("act, kind, says", REST.values(), ids=list(REST))
def test_what_makes_no_sense(act: Any, kind: type[PosterityError], says: str) -> None:
    with pytest.raises(kind, match=says):
        act()


# --- classes with a likelihood of their own keep no formula of another one ------------------------


def test_a_likelihood_beside_the_slope_of_another_one_is_refused():
    with pytest.raises(UsageError, match=r"predictor_value_and_slope of LogisticRegression"):

        class Squared(LogisticRegression):
            def predictor_log_likelihood(self, f, y):
                return -0.5 * (f**2 - y) ** 2


def test_a_likelihood_beside_the_factor_of_another_one_is_refused():
    for base, formula in ((LinearRegression, "factor"), (BetaBernoulli, "factor")):
        with pytest.raises(UsageError, match=rf"{formula} of {base.__name__}"):
            type("Half", (base,), {"log_likelihood": lambda self, z, data: 0.0})


def test_a_log_likelihood_that_would_not_be_asked_is_refused():
    with pytest.raises(UsageError, match="predictor_log_likelihood of LogisticRegression"):
        type("Half", (LogisticRegression,), {"log_likelihood": lambda self, z, data: 0.0})


def test_who_says_both_or_changes_something_else_may_derive():
    class Scaled(LogisticRegression):
        def predictor_log_likelihood(self, f, y):
            return super().predictor_log_likelihood(2 * f, y)

        def predictor_value_and_slope(self, f, y):
            value, slope = super().predictor_value_and_slope(2 * f, y)
            return value, 2 * slope

    class Choosy(BetaBernoulli):
        def admits(self, q):
            return np.asarray(q.a > 1)

    class Plain(PredictorModel):
        def predictor_log_likelihood(self, f, y):
            return -((y - f) ** 2)

    for model in (Scaled(), Choosy(), Plain()):
        assert isinstance(model, PredictorModel | BetaBernoulli)


@pytest.mark.parametrize("count", [100, 1_000, 20_000])
@pytest.mark.parametrize("overlap", [-1e-3, 1e-4, 0.01, 0.05])
def test_classes_that_overlap_by_little_are_not_separated(count: int, overlap: float) -> None:
    """One record lies on the wrong side, by so much of a column that reaches from -1 to 1."""
    age = np.linspace(-1.0, 1.0, count)
    died = age > 0
    age[[0, -1]] = overlap, 0.0
    found = separating(np.column_stack([np.ones(count), age]), died)
    assert found.tolist() == [False, overlap < 0]
