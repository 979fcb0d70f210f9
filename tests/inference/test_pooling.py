"""Partial pooling of regressions in closed form, beside sums over grids and other optimisers."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal

from posterity.errors import SiteError, UsageError
from posterity.families import DiagonalGaussian, Gaussian, Product
from posterity.federation import Agreement, Sequential, Synchronous, federate
from posterity.federation.remaining import reports_of
from posterity.federation.status import parts_needed, status_from
from posterity.inference import LocalUpdate, population
from posterity.inference.cubature import Cubature
from posterity.inference.expectation_propagation import Likelihood, Normal
from posterity.inference.pooling import PartialPooling, marginal
from posterity.models import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    PredictorModel,
    Records,
    hierarchical,
)

RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(25), RNG.normal(size=25)])
Y = (RNG.random(25) < expit(X @ [0.5, 1.5])).astype(float)
MEAN, COVARIANCE = np.array([0.2, 0.5]), np.array([[1.5, 0.3], [0.3, 2.0]])


@pytest.mark.parametrize("size", [1.0, 1e6, 1e11])
@pytest.mark.parametrize("spread", [1.0, 1e6, 1e12, 1e18])
def test_a_precision_of_one_direction_is_blurred_to_the_last_digits(size, spread):
    """By the closed form of rank one, where the inverse of ``I + ΛD`` has none."""
    direction, variance = np.array([1e3, -2.0, 0.7]), spread * np.array([1.0, 3.0, 0.0])
    message = Normal(size * direction, size * np.outer(direction, direction))
    (linear, precision), lost = message.blurred(variance[None])
    within = size * variance @ direction**2
    assert np.allclose(precision[0], message.precision / (1 + within), rtol=1e-12, atol=0)
    assert np.allclose(linear[0], message.linear / (1 + within), rtol=1e-12, atol=0)
    assert np.isclose(lost[0], np.log1p(within), rtol=1e-12, atol=0)


def test_an_indefinite_precision_is_blurred():
    """As of a site whose posterior is wider than its prior."""
    precision = np.array([[2.0, 1.0, 0.5], [1.0, -0.3, 0.2], [0.5, 0.2, 1.0]])
    linear, variance = np.array([1.0, -2.0, 3.0]), np.array([4.0, 0.5, 0.0])
    inner = np.eye(3) + precision * variance
    blurred, lost = Normal(linear, precision).blurred(variance[None])
    assert np.allclose(blurred.precision[0], np.linalg.solve(inner, precision), rtol=1e-12)
    assert np.allclose(blurred.linear[0], np.linalg.solve(inner, linear), rtol=1e-12)
    assert np.isclose(lost[0], np.linalg.slogdet(inner)[1], rtol=1e-12)


def test_counts_of_hundred_thousands_have_a_message():
    """Steps from zero lead where rates overflow."""
    rng = np.random.default_rng(0)
    x = np.c_[np.ones(200), rng.normal(size=200)]
    records = Records.of((x, rng.poisson(np.exp(x @ [12.0, -0.7])).astype(float)))
    model, _ = hierarchical(PoissonRegression(), Gaussian.from_standard(MEAN, COVARIANCE), True)
    message = Likelihood(model, records).message(np.zeros(2), COVARIANCE)
    assert np.allclose(message.mean, [12.0, -0.7], atol=1e-3)


class Poisson(PredictorModel):
    """Counts, as a user would write it: in JAX, and not saying its slope."""

    families = (Gaussian, DiagonalGaussian)

    def predictor_log_likelihood(self, f, y):
        return y * f - jnp.exp(f)


def regression(model, size=2):
    prior = Gaussian.from_standard(np.zeros(size), np.eye(size))
    return hierarchical(model, prior, True)[0]


@pytest.mark.parametrize("model", [LogisticRegression(), Poisson()])
def test_a_message_has_the_posteriors_moments(model):
    y = Y if isinstance(model, LogisticRegression) else RNG.poisson(np.exp(X @ [0.5, 0.7])) * 1.0
    message = Likelihood(regression(model), Records.of((X, y))).message(MEAN, COVARIANCE)
    posterior = Normal.matched(MEAN, COVARIANCE).plus(message)
    line = np.linspace(-8, 8, 161)
    grid = posterior.mean + np.stack(np.meshgrid(line, line), -1).reshape(-1, 2) @ (
        np.linalg.cholesky(posterior.covariance).T
    )
    f = grid @ X.T
    log = (y * f - (np.logaddexp(0, f) if y is Y else np.exp(f))).sum(1)
    log = log + multivariate_normal(MEAN, COVARIANCE).logpdf(grid)
    weights = np.exp(log - logsumexp(log))
    mean = weights @ grid
    deviation = np.sqrt(weights @ (grid - mean) ** 2)
    np.testing.assert_allclose(posterior.mean, mean, atol=0.02 * deviation.min())
    np.testing.assert_allclose(np.sqrt(np.diag(posterior.covariance)), deviation, rtol=0.04)


def test_a_linear_message_is_the_likelihood_whatever_came_before():
    y, model = X @ [1.0, 2.0], regression(LinearRegression(0.3))
    weighted = Records((X, y), np.full(25, 0.5))
    for mean in (np.zeros(2), np.array([1e3, -1e3])):
        message = Likelihood(model, weighted).message(mean, np.eye(2))
        np.testing.assert_allclose(message.precision, 0.5 * X.T @ X / 0.3, rtol=1e-14)
        np.testing.assert_allclose(message.linear, 0.5 * X.T @ y / 0.3, rtol=1e-14)


@pytest.mark.parametrize("own", [[0, 1, 2], [2]])
def test_the_marginal_likelihood_and_its_derivatives(own):
    rng = np.random.default_rng(1)
    half, center, mean = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3)
    precision, covariance = half @ half.T + np.eye(3), np.diag([0.5, 1.0, 2.0])
    message = Normal(precision @ center, precision)
    own = np.array(own)

    def value(s):
        variance = np.zeros(3)
        variance[own] = np.exp(2 * s)
        spread = np.diag(variance) + np.linalg.inv(precision)
        known = multivariate_normal(mean, spread).logpdf(center)
        return known - np.trace(np.linalg.solve(spread, covariance)) / 2

    s = rng.normal(size=(4, len(own))) / 2
    result = marginal(message, mean, covariance, s, own)
    expected = np.array([value(row) for row in s])
    np.testing.assert_allclose(result.value - result.value[0], expected - expected[0], atol=1e-10)
    for j, unit in enumerate(np.eye(len(own)) * 1e-5):
        up, down = (marginal(message, mean, covariance, s + h, own) for h in (unit, -unit))
        np.testing.assert_allclose(result.slope[:, j], (up.value - down.value) / 2e-5, atol=1e-7)
        bend = (up.slope - down.slope) / 2e-5
        np.testing.assert_allclose(result.curvature[:, :, j], bend, atol=1e-7)


def test_directions_without_records_say_nothing():
    message = Normal(np.array([1.0, 0.0]), np.diag([2.0, 0.0]))
    result = marginal(message, np.zeros(2), np.eye(2), np.zeros((1, 2)), np.arange(2))
    assert result.slope[0, 1] == result.linear[0, 1] == result.precision[0, 1, 1] == 0


def spread_of_linear(sites, noise):
    """Mean and deviation of the log spread of one intercept, on a grid."""
    _, prior = hierarchical(LinearRegression(noise), ONE, True)
    s, m = np.linspace(-7, 3, 301), np.linspace(-6, 6, 601)
    log = prior.log_spread.log_prob(s[:, None])[:, None] + ONE.log_prob(m[:, None])
    for _, y in sites.values():
        variance = np.exp(2 * s)[:, None] + noise / len(y)
        log = log - (y.mean() - m) ** 2 / variance / 2 - np.log(variance) / 2
    weights = np.exp(log - logsumexp(log)).sum(1)
    mean = weights @ s
    return mean, np.sqrt(weights @ (s - mean) ** 2)


ONE = Gaussian.from_standard([0.0], [[4.0]])


@pytest.mark.parametrize("count", [6, 40])
def test_the_spread_of_intercepts_is_that_of_the_exact_posterior(count):
    rng = np.random.default_rng(count)
    sites = {
        f"site {k}": (np.ones((n, 1)), 1 + 0.7 * rng.normal() + rng.normal(size=n))
        for k, n in enumerate(rng.integers(3, 40, count))
    }
    run = federate(sites, LinearRegression(1.0), ONE, personal=True)
    mean, deviation = spread_of_linear(sites, 1.0)
    assert run.status.converged
    assert abs(run.posterior.log_spread.mean[0] - mean) < 0.1 * deviation
    found = np.sqrt(run.posterior.log_spread.covariance[0, 0])
    assert found == pytest.approx(deviation, rel=0.15 if count == 6 else 0.05)


def clustered(sites=29, records=370, size=10):
    rng = np.random.default_rng(0)
    center, spread = 0.7 * rng.normal(size=size), rng.uniform(0.1, 0.8, size)
    truth, data = {}, {}
    for k in range(sites):
        name = f"site {k:02d}"
        truth[name] = center + spread * rng.normal(size=size)
        x = np.column_stack([np.ones(records), rng.normal(size=(records, size - 1))])
        data[name] = x, (rng.random(records) < expit(x @ truth[name])).astype(float)
    return data, truth, spread


@pytest.mark.slow
def test_twenty_nine_sites_of_ten_columns_take_seconds():
    data, truth, spread = clustered()
    prior = Gaussian.from_standard(np.zeros(10), 4 * np.eye(10))
    run = federate(data, LogisticRegression(), prior, personal=True)
    assert run.status.converged
    law = run.posterior.log_spread
    away = (law.mean - np.log(spread)) / np.sqrt(np.diag(law.covariance))
    assert np.abs(away).max() < 3.5
    errors = np.array([run.site(name).mean - truth[name] for name in data])
    assert np.sqrt((errors**2).mean()) < 0.145  # of empirical Bayes by EM: 0.14


@pytest.mark.slow
@pytest.mark.parametrize("diagonal", [False, True])
def test_columns_in_other_units_are_as_many_nats(diagonal):
    rng = np.random.default_rng(2)
    units = np.array([1.0, 1e3, 1e-3])

    def fitted(units):
        sites = {}
        for name, (x, y) in data.items():
            sites[name] = x * units, y
        family = DiagonalGaussian if diagonal else Gaussian
        scale = (2 / units) ** 2
        prior = family.from_standard(np.zeros(3), scale if diagonal else np.diag(scale))
        return federate(sites, LogisticRegression(), prior, personal=True)

    data = {}
    for name in "abcde":
        x = np.column_stack([np.ones(60), rng.normal(size=(60, 2))])
        y = rng.random(60) < expit(x @ (0.5 + 0.5 * rng.normal(size=3)))
        data[name] = x, y.astype(float)
    plain, scaled = fitted(np.ones(3)), fitted(units)
    assert plain.status.converged
    assert scaled.status.converged
    moved = scaled.posterior.coefficients.mean * units - plain.posterior.coefficients.mean
    assert np.abs(moved).max() < 1e-6
    moved = scaled.posterior.log_spread.mean + np.log(units) - plain.posterior.log_spread.mean
    assert np.abs(moved).max() < 1e-6


def test_few_sites_of_many_records_do_not_answer_each_other_for_ever():
    rng = np.random.default_rng(3)
    sites = {}
    for name, rate in {"a": 0.2, "b": 0.5, "c": 0.05}.items():
        sites[name] = np.ones((300, 1)), (rng.random(300) < rate).astype(float)
    run = federate(sites, LogisticRegression(), ONE, personal=True)
    assert run.status.converged


@pytest.mark.slow
@pytest.mark.parametrize(("count", "records"), [(2, 400), (3, 400), (5, 100)])
def test_few_sites_of_two_columns_beside_the_exact_posterior(count, records):
    rng = np.random.default_rng(count)
    sites = {}
    for k in range(count):
        x = np.column_stack([np.ones(records), rng.normal(size=records)])
        y = rng.random(records) < expit(x @ (0.7 * rng.normal(size=2)))
        sites[f"site {k}"] = x, y.astype(float)
    prior = Gaussian.from_standard(np.zeros(2), 4 * np.eye(2))
    run = federate(sites, LogisticRegression(), prior, personal=True)
    model, joint = hierarchical(LogisticRegression(), prior, True)
    # Sites of many records are Gaussian: on a grid of spreads all else is in closed form.
    line = np.linspace(-6, 4, 81)
    s = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    log, mean, inverse = joint.log_spread.log_prob(s), np.zeros((len(s), 2)), np.eye(2) / 4
    for data in sites.values():
        message = Likelihood(model, Records.of(data)).message(np.zeros(2), 4 * np.eye(2))
        noise = np.linalg.inv(message.precision)
        spread = np.exp(2 * s)[:, :, None] * np.eye(2) + noise + np.linalg.inv(inverse)
        away = noise @ message.linear - mean
        solved = np.linalg.solve(spread, away[..., None])[..., 0]
        log = log - (away * solved).sum(1) / 2 - np.linalg.slogdet(spread)[1] / 2
        covariance = np.linalg.inv(inverse)
        mean = mean + (covariance @ solved[..., None])[..., 0]
        inverse = inverse + np.linalg.inv(spread - covariance)
    weights = np.exp(log - logsumexp(log))
    expected = weights @ s
    deviation = np.sqrt(weights @ (s - expected) ** 2)
    found = run.population.law
    assert run.status.converged
    assert (np.abs(found.log_spread.mean - expected) < 0.1 * deviation).all()
    ratio = np.sqrt(np.diag(found.log_spread.covariance)) / deviation
    assert (np.abs(ratio - 1) < 0.1).all()
    assert (np.abs(found.coefficients.mean - weights @ mean) < 0.1).all()


def test_units_ten_thousand_apart_and_wide_priors():
    rng = np.random.default_rng(5)
    units, sites = np.array([1.0, 1e4, 1e-4]), {}
    for name in "abc":
        x = rng.normal(size=(30, 3))
        sites[name] = x * units, x.sum(1) + rng.normal(size=30)
    prior = Gaussian.from_standard(np.zeros(3), np.diag((2 / units) ** 2))
    for personal in ([0], True):
        run = federate(sites, LinearRegression(1.0), prior, personal=personal)
        assert run.status.converged
        assert np.abs(run.posterior.coefficients.mean * units - 1).max() < 0.5
    wide = Product(coefficients=ONE, log_spread=Gaussian.from_standard([0.0], [[16.0]]))
    ones = {name: (x[:, :1], y) for name, (x, y) in sites.items()}
    with pytest.raises(SiteError, match="log_spread"):
        federate(ones, LinearRegression(1.0), wide, personal=True)


@pytest.mark.parametrize("schedule", [Sequential(), Synchronous()])
def test_a_wide_prior_of_coefficients_leaves_small_spreads_small(schedule):
    """The spread may be far smaller than the prior deviation of the population's coefficient."""
    rng = np.random.default_rng(0)
    sites = {name: (np.ones((20, 1)), 0.5 + rng.normal(size=20)) for name in "abc"}
    wide = Gaussian.from_standard([0.0], [[1e12]])
    law = federate(sites, LinearRegression(1.0), wide, personal={0: 0.25}, schedule=schedule)
    mean = np.mean([y.mean() for _, y in sites.values()])
    assert law.status.converged
    np.testing.assert_allclose(law.population.law.coefficients.mean, [mean], atol=0.05)
    assert law.population.law.log_spread.mean[0] < 0


class Broken(PredictorModel):
    """Counts with a mean that may be negative, where there is no logarithm."""

    families = (Gaussian,)

    def predictor_log_likelihood(self, f, y):
        return y * jnp.log(f) - f


def test_a_likelihood_that_is_nan_is_told():
    with pytest.raises(SiteError, match="NaN"):
        federate(
            {"a": (np.ones((4, 1)), np.array([2.0, 3.0, 1.0, 2.0]))},
            Broken(),
            Gaussian.from_standard([3.0], [[1.0]]),
            personal=True,
        )


def test_what_it_serves_and_what_is_refused():
    joint = Agreement.of(LogisticRegression(), ONE, personal=True)
    assert isinstance(joint.update, PartialPooling)
    assert type(Agreement.of(LogisticRegression(), ONE).update) is LocalUpdate
    with pytest.raises(UsageError, match="personal=True"):
        federate({"a": (X[:, :1], Y)}, LogisticRegression(), ONE, update=PartialPooling())
    with pytest.raises(UsageError, match="nodes"):
        PartialPooling(nodes=2)


@pytest.mark.slow
def test_nodes_over_what_is_shared_say_the_same():
    sites = {"a": (X[:, :1], Y), "b": (X[:9, :1], 1 - Y[:9])}
    cubature = LocalUpdate(Cubature(64, most=64))
    other = federate(sites, LogisticRegression(), ONE, personal=True, update=cubature)
    run = federate(sites, LogisticRegression(), ONE, personal=True)
    deviation = np.sqrt(other.posterior.log_spread.covariance[0, 0])
    moved = run.posterior.log_spread.mean[0] - other.posterior.log_spread.mean[0]
    assert abs(moved) < 0.1 * deviation


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("nodes", [6, 8])
def test_what_a_grid_of_spreads_misplaces_is_told(size, nodes, monkeypatch):
    one = Gaussian.from_standard(np.zeros(size), np.eye(size))
    model, view = hierarchical(LogisticRegression(), one, True)
    records = Records.of((X[:, -size:], Y))
    visit = lambda update: update.improved(model, view, view.zero(), records, 0)
    found = {}
    for count in (nodes, 60):
        monkeypatch.setattr(population, "GRID", {size: count})
        found[count] = visit(PartialPooling())
    monkeypatch.undo()
    found[0] = visit(PartialPooling())
    (rough, told), (fine, little), (enough, _) = found.values()
    apart = float((view + fine).kl(view + rough))
    assert apart > 1e-6 and apart / 5 < told.quadrature_error < 5 * apart
    assert little.quadrature_error < told.quadrature_error / 5
    assert float((view + fine).kl(view + enough)) < 1e-4


@pytest.mark.parametrize(
    ("number", "records", "level", "told"),
    [
        (8, 90, 0, False),
        (29, 16, 1, True),
        pytest.param(30, 1, 0, True, marks=pytest.mark.slow),
        pytest.param(40, 100, -5, True, marks=pytest.mark.slow),
    ],
    ids=["enough", "sixteen", "one", "rare"],
)
def test_few_records_and_rare_events_are_a_caveat(number, records, level, told):
    """From .005 nats (29 sites of sixteen binary records), by exact sums, to .3."""
    rng = np.random.default_rng(number + records)
    chances = expit(level + rng.normal(size=number))
    sites = {
        f"site {i:03d}": (np.ones((records, 1)), (rng.random(records) < p).astype(float))
        for i, p in enumerate(chances)
    }
    wide = Gaussian.from_standard(np.zeros(1), 100 * np.eye(1))
    run = federate(sites, LogisticRegression(), wide, personal=True)
    reports = reports_of(run, parts_needed(run.agreement))
    assert run.status.converged and bool(run.status.reasons) == told
    assert all("may displace the posterior by up to" in reason for reason in run.status.reasons)
    of_reports = status_from(run.agreement, run.posterior, reports, 1.0)
    same = status_from(run.agreement, run.posterior, reports, 1e-9)
    assert of_reports.converged and not of_reports.reasons
    assert same.state == "not converged" and not math.isinf(same.left)
    linear = federate(sites, LinearRegression(0.25), wide, personal=True)
    assert linear.status.converged and not linear.status.reasons
