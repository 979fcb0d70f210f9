"""Proportional odds: rows of one predictor each, beside probabilities and beside statsmodels."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from statsmodels.miscmodels.ordinal_model import OrderedModel

from posterity import Gaussian, federate
from posterity.errors import ParameterError, UsageError
from posterity.models import ProportionalOdds, rows_of


def levels_of(seed, count, thresholds, slopes):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, len(slopes)))
    return x, np.digitize(x @ slopes + rng.logistic(size=count), thresholds)


def wide(thresholds, columns):
    sd = np.repeat([1000.0, 10.0], [thresholds, columns])
    return Gaussian.from_standard(np.zeros(len(sd)), np.diag(sd**2))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_records_rows_have_the_probability_of_its_level(count):
    rng = np.random.default_rng(count)
    above = np.sort(rng.normal(size=count - 1))[::-1]
    slopes = rng.normal(size=2)
    x = rng.normal(size=(50, 2))
    y = rng.integers(count, size=50)
    rows, targets, record = rows_of(x, y, count)
    z = np.concatenate([above, slopes])
    each = ProportionalOdds().log_likelihood(z, (rows, targets))
    odds = expit((x @ slopes)[:, None] + above)
    ends = np.column_stack([np.ones(50), odds, np.zeros(50)])
    chances = ends[np.arange(50), y] - ends[np.arange(50), y + 1]
    np.testing.assert_allclose(np.bincount(record, each), np.log(chances), rtol=1e-9)


@pytest.mark.parametrize("least", [1e-3, 0.5])
def test_gaps_are_concave_and_finite_for_thresholds_in_any_order(least):
    """The slope is that of the value, and never rises."""
    f = np.linspace(-3, 3, 20001)
    value, slope = ProportionalOdds(least).predictor_value_and_slope(f, np.full(len(f), 2.0))
    assert np.isfinite(value).all() and (np.diff(slope) < 0).all()
    between = np.diff(value) / np.diff(f)
    assert (between <= slope[:-1]).all() and (between >= slope[1:]).all()
    exact = f > least
    np.testing.assert_allclose(value[exact], np.log1p(-np.exp(-f[exact])), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "mean, deviation", [(1, 0.1), (0.05, 0.02), (-0.5, 0.3), (0.002, 0.001), (0.3, 1e-4), (3, 90)]
)
def test_expectations_of_gaps_are_those_of_quadrature(mean, deviation):
    """Also where a normal gap is below the least, which it never is of the levels themselves."""
    model = ProportionalOdds()
    gap = np.full(1, 2.0)
    found = model.predictor_expectation(np.full(1, mean), np.full(1, deviation**2), gap)
    ends = [mean - 9 * deviation, 1e-3, 1e-2, 0.1, 1, 10, mean + 9 * deviation]
    ends = sorted(np.clip(ends, ends[0], ends[-1]))

    def weighted(f, place):
        density = np.exp(-(((f - mean) / deviation) ** 2) / 2) / deviation / np.sqrt(2 * np.pi)
        own = model.predictor_value_and_slope(np.full(1, f), gap)
        each = (*own, own[1] * (f - mean) / deviation**2)
        return float(each[place][0]) * density

    for place in range(3):
        parts = [quad(weighted, a, b, (place,), limit=200)[0] for a, b in pairwise(ends) if b > a]
        assert found[place][0] == pytest.approx(sum(parts), rel=1e-6)


def test_a_fit_is_that_of_statsmodels():
    x, y = levels_of(1, 2000, [-1.5, -0.2, 0.9], [0.8, -0.4])
    rows, targets, _ = rows_of(x, y, 4)
    run = federate({"a": (rows, targets)}, ProportionalOdds(), wide(3, 2))
    assert run.status.converged
    posterior: Any = run.posterior
    model = OrderedModel(y, x, distr="logit")
    other = model.fit(method="bfgs", disp=0)
    above = -model.transform_threshold_params(other.params)[1:-1]
    sd = np.sqrt(posterior.marginal_variance)
    distance = (posterior.mean - np.concatenate([above, other.params[:2]])) / sd
    np.testing.assert_allclose(distance, 0, atol=0.1)
    np.testing.assert_allclose(sd[3:], other.bse[:2], rtol=0.02)


@pytest.mark.slow
def test_a_site_without_a_level_between_learns_its_thresholds_from_the_others():
    x, y = levels_of(2, 900, [-1, 0.5, 1.5], [0.7])
    place = np.arange(900) % 3
    sites = {}
    for site in range(3):
        own = (place == site) & ((site > 0) | (y != 2))
        sites[f"site {site}"] = rows_of(x[own], y[own], 4)[:2]
    run = federate(sites, ProportionalOdds(), wide(3, 1))
    posterior: Any = run.posterior
    assert run.status.converged and (np.diff(posterior.mean[:3]) < 0).all()
    both = [np.concatenate(parts) for parts in zip(*sites.values(), strict=True)]
    alone = federate({"all": tuple(both)}, ProportionalOdds(), wide(3, 1)).posterior
    assert alone.kl(posterior) < 1e-3


def test_targets_other_than_those_of_rows_are_refused():
    with pytest.raises(ParameterError, match="labels from 0 to 2"):
        federate({"a": (np.ones((2, 2)), np.array([0, 3]))}, ProportionalOdds(), wide(1, 1))
    with pytest.raises(UsageError, match="least"):
        ProportionalOdds(0.0)
