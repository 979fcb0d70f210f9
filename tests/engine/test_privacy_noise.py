"""Noise on natural parameters: sensitivities, what accountants say, and attacks that check it."""

import math
import sys

import numpy as np
import pytest
from engine.conjugate import CONJUGATE, PLANE, RNG
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import beta, kstest, norm

from posterity.engine.privacy import noise
from posterity.engine.privacy.noise import GaussianMechanism, proper_factor, record_contributions
from posterity.errors import MissingExtraError, ParameterError, StructureError, UsageError
from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    NormalWishart,
    Plate,
    Product,
)
from posterity.models import FunctionModel, LogisticRegression

REFERENCES = [
    Beta.from_standard(1.3, 2.0),
    Gamma.from_standard(2.0, 3.0),
    Dirichlet.from_standard(np.array([0.5, 1.0, 4.0])),
    Gaussian.from_standard(np.array([3.0, -1.0]), np.array([[2.0, 0.3], [0.3, 0.5]])),
]
by_family = pytest.mark.parametrize("reference", REFERENCES, ids=lambda q: type(q).__name__)


def lengths(reference, rows):
    """In the Fisher metric, by its matrix."""
    fisher = np.asarray(reference.fisher_information())
    return np.sqrt(np.einsum("ni,ij,nj->n", rows, fisher, rows))


def quiet(reference, clip=0.7, **options):
    return GaussianMechanism(reference, clip, 0.0, **options)


# --- sensitivity ---------------------------------------------------------------------------------


@by_family
@pytest.mark.parametrize("relation", ["add or remove", "replace"])
def test_no_neighbour_changes_the_sum_by_more_than_the_sensitivity(reference, relation):
    rng, mechanism = np.random.default_rng(0), quiet(reference, relation=relation)
    largest = 0.0
    for scale in (1e-9, 0.1, 1.0, 1e6, 1e150):
        rows = scale * rng.standard_normal((40, reference.dimension))
        for n in range(20):
            other = np.delete(rows, n, axis=0)
            if relation == "replace":
                other = np.concatenate([other, [-rows[n]]])
            step = mechanism.release(rows) - mechanism.release(other)
            largest = max(largest, lengths(reference, step.natural_parameters[None])[0])
    assert largest <= mechanism.sensitivity * (1 + 1e-12)
    assert largest >= mechanism.sensitivity * 0.999  # as large as it may be


@by_family
@given(power=st.integers(-990, 990), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_contributions_are_shortened_to_the_clip_and_short_ones_stay(reference, power, seed):
    row = np.random.default_rng(seed).standard_normal((1, reference.dimension))
    true = min(float(lengths(reference, row)[0]) * 2.0**power, 0.7)
    found = quiet(reference).clipped(row * 2.0**power)
    shift = 2.0 ** max(-power, 0)
    assert np.linalg.norm(found * shift) <= 0.7 * shift
    assert math.isclose(np.linalg.norm(found * shift), true * shift, rel_tol=1e-8)


def test_a_reference_has_at_most_4096_parameters():
    quiet(DiagonalGaussian.from_standard(np.zeros(2048), np.ones(2048)))
    with pytest.raises(UsageError, match="4098 natural parameters"):
        quiet(DiagonalGaussian.from_standard(np.zeros(2049), np.ones(2049)))


# --- noise and its account -----------------------------------------------------------------------


def test_the_noise_of_the_system_is_normal_and_never_twice_the_same():
    drawn = noise._normal(40_000, None)
    assert kstest(drawn, "norm").pvalue > 1e-6
    assert abs(drawn.std() - 1) < 5 / np.sqrt(2 * len(drawn))
    assert (
        len(np.unique(drawn)) == len(drawn) and not np.isin(drawn, noise._normal(999, None)).any()
    )


def test_each_number_of_noise_is_made_of_four_draws(monkeypatch):
    """Of fewer, its low bits could tell what it was added to (holohan2021)."""
    sizes = []
    monkeypatch.setattr(noise.os, "urandom", lambda size: sizes.append(size) or bytes(size))
    assert len(noise._normal(5, None)) == 5
    assert sizes == [4 * 8 * 5]


def analytic(sigma, delta):
    """The epsilon of one release, by theorem 8 of balle2018: another formula than accountants'."""
    gap = lambda e: (
        norm.cdf(0.5 / sigma - e * sigma)
        - math.exp(e + norm.logcdf(-0.5 / sigma - e * sigma))
        - delta
    )
    return brentq(gap, 0, 500)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("releases", [1, 10])
def test_epsilon_is_that_of_the_analytic_formula(sigma, releases):
    pytest.importorskip("dp_accounting")
    mechanism = GaussianMechanism(PLANE, 1.0, sigma * math.sqrt(releases))
    assert mechanism.epsilon(1e-5, releases) == pytest.approx(analytic(sigma, 1e-5), rel=1e-4)


def test_little_noise_has_a_large_epsilon_and_none_an_infinite_one():
    assert quiet(PLANE).epsilon(1e-5) == math.inf
    pytest.importorskip("dp_accounting")
    for sigma in (0.1, 0.29):
        found = GaussianMechanism(PLANE, 1.0, sigma).epsilon(1e-5)
        assert analytic(sigma, 1e-5) <= found <= 1.2 * analytic(sigma, 1e-5)
    assert GaussianMechanism(PLANE, 1.0, 1e-4).epsilon(1e-5) > 1e6


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 50.0])
def test_calibration_spends_what_it_is_given_and_no_more(epsilon):
    pytest.importorskip("dp_accounting")
    found = GaussianMechanism.calibrated(PLANE, 1.0, epsilon=epsilon, delta=1e-5, releases=4)
    assert 0.99 * epsilon <= found.epsilon(1e-5, 4) <= epsilon


def test_calibration_to_a_small_delta_has_much_noise_and_a_large_epsilon_is_refused():
    pytest.importorskip("dp_accounting")
    known = {"epsilon": 1e-5, "delta": 1e-9, "releases": 1000}
    assert GaussianMechanism.calibrated(PLANE, 1.0, **known).epsilon(1e-9, 1000) <= 1e-5
    with pytest.raises(ParameterError, match="noise of"):
        GaussianMechanism.calibrated(PLANE, 1.0, **known | {"epsilon": 1e9})


def audited(mechanism, delta, trials=2000):
    """A lower bound on epsilon that holds with a chance of .999: the best attack, tried.

    One record, of the greatest length, is there or not; the attack thresholds the noisy sum along
    it. Rates are bounded by Clopper and Pearson's intervals.
    """
    rng = np.random.default_rng(3)
    row = np.linalg.solve(mechanism.root.T, [100.0] + [0.0] * 4)[None]
    rows = {"in": row, "out": -row if mechanism.relation == "replace" else row[:0]}
    along = {
        where: np.array(
            [
                (mechanism.release(given, rng=rng).natural_parameters @ mechanism.root)[0]
                for _ in range(trials)
            ]
        )
        for where, given in rows.items()
    }
    found = 0.0
    for threshold in np.quantile(along["out"], [0.5, 0.7, 0.9, 0.97]):
        hits, alarms = ((along[where] > threshold).sum() for where in ("in", "out"))
        low = beta.ppf(0.0001, hits, trials - hits + 1)
        high = beta.ppf(0.9999, alarms + 1, trials - alarms)
        found = max(found, math.log(max(low - delta, 1e-9) / high))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["add or remove", "replace"])
def test_the_best_attack_finds_no_more_than_epsilon_and_not_much_less(relation):
    sigma = 1.0
    mechanism = GaussianMechanism(PLANE, 0.3, sigma, relation)
    epsilon = analytic(sigma, 0.01)
    assert 0.25 * epsilon < audited(mechanism, 0.01) <= epsilon
    mutant = GaussianMechanism(PLANE, 0.3, sigma / 2, relation)  # as if 2 clip were clip
    assert audited(mutant, 0.01) > epsilon


# --- what a record contributes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "prior", "data"), CONJUGATE, ids=lambda value: type(value).__name__
)
def test_contributions_of_a_conjugate_model_add_up_to_its_factor(model, prior, data):
    from posterity.models.records import Records

    rows = record_contributions(model, prior, data)
    whole = model.factor(Records.of(data)).natural_parameters
    np.testing.assert_allclose(rows.sum(0), whole, atol=1e-12)
    released = GaussianMechanism(prior, 1e6, 0.0).release(rows)
    np.testing.assert_allclose(released.natural_parameters, whole, rtol=1e-9, atol=1e-9)


def test_contributions_of_a_logistic_regression_do_not_depend_on_other_records():
    x, y = RNG.normal(size=(30, 2)), RNG.integers(0, 2, 30) * 1.0
    rows = record_contributions(LogisticRegression(), PLANE, (x, y))
    again = record_contributions(LogisticRegression(), PLANE, (x[7:8], y[7:8]))
    np.testing.assert_allclose(rows[7:8], again, atol=1e-12)
    slope = rows[:, :2].sum(0)  # the precision times the mean; at a mean of zero the gradient
    assert np.sign(slope) @ np.sign((y - 0.5) @ x) == 2
    empty = record_contributions(LogisticRegression(), PLANE, (x[:0], y[:0]))
    assert empty.shape == (0, 5)


def test_models_whose_factor_is_no_sum_over_records_are_refused():
    wide = DiagonalGaussian.from_standard(np.zeros(600), np.ones(600))
    with pytest.raises(UsageError, match="record by record"):
        record_contributions(FunctionModel(lambda z, x: -((x - z[0]) ** 2)), wide, np.ones(3))


# --- back to a distribution ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "prior",
    [
        *REFERENCES,
        DiagonalGaussian.from_standard(np.zeros(3), np.ones(3)),
        NormalWishart.from_standard(np.zeros(2), 1.0, np.eye(2), 4.0),
        Product({"chance": REFERENCES[0], "place": REFERENCES[3]}),
        Plate(Gaussian.from_standard(np.zeros((2, 2)), np.broadcast_to(np.eye(2), (2, 2, 2)))),
    ],
    ids=lambda prior: type(prior).__name__,
)
@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=20, deadline=None)
def test_a_noisy_factor_becomes_one_that_makes_a_distribution(prior, seed, scale):
    rng = np.random.default_rng(seed)
    drawn = scale * rng.standard_normal(prior.natural_parameters.shape)
    found = proper_factor(prior, prior.with_natural_parameters(drawn))
    assert np.all((prior + found).is_proper())


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([[np.nan] * 5], ParameterError),
        ([[np.inf, 0, 0, 0, 0]], ParameterError),
        ([[1.0, 2.0]], StructureError),
        ([1.0] * 5, StructureError),
    ],
    ids=str,
)
def test_rows_that_have_no_length_are_refused(rows, error):
    with pytest.raises(error):
        quiet(PLANE).release(np.array(rows))


def test_a_reference_without_a_metric_is_refused():
    flat = Gaussian.from_standard(np.full(2, 1e9), np.eye(2))
    with pytest.raises(ParameterError, match="Fisher information is singular"):
        quiet(flat).release(np.zeros((1, 5)))


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0.0},
        {"clip": math.inf},
        {"noise": -1.0},
        {"noise": math.nan},
        {"relation": "both"},
        {"shares": 0},
        {"reference": PLANE - PLANE},
        {"reference": Gaussian.from_standard(np.zeros((2, 2)), np.stack([np.eye(2)] * 2))},
    ],
    ids=str,
)
def test_a_mechanism_that_makes_no_sense_is_refused(options):
    given_options = {"reference": PLANE, "clip": 1.0, "noise": 1.0} | options
    with pytest.raises((UsageError, ParameterError, TypeError)):  # TypeError: of the annotations
        GaussianMechanism(**given_options)


def test_without_accountants_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtraError, match="posterity\\[privacy\\]"):
        GaussianMechanism(PLANE, 1.0, 1.0).epsilon(1e-5)
    assert GaussianMechanism(PLANE, 1.0, 1.0).release(np.zeros((0, 5))).dimension == 5
