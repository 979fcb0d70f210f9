"""Saddles and several optima: what a second start finds, whatever the schedule and the family."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from posterity.errors import ConvergenceWarning, SiteError, UsageError
from posterity.families import Beta, DiagonalGaussian, Gamma, Gaussian, Product
from posterity.federation import Asynchronous, Gossip, LedgerGossip, Synchronous, federate
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import ELSEWHERE, starts_elsewhere
from posterity.federation.federate import start
from posterity.federation.messages import Measure, dumps, loads
from posterity.federation.optima import Places, free_energy, second_start, starts
from posterity.federation.optimum import asked, started_at
from posterity.federation.remaining import reports_of
from posterity.federation.site import Site
from posterity.federation.status import parts_needed, status_from
from posterity.graphs import ring
from posterity.inference.descent import NARROWER
from posterity.inference.estimators import Nodal
from posterity.models import FunctionModel, LogisticRegression
from tests.federation.examples import square

RNG = np.random.default_rng(0)
SQUARES = {site: 9 + 0.3 * RNG.normal(size=10) for site in "abc"}
CENTRED = Gaussian.from_standard([0.0], [[4.0]])
SEVERAL = "converged to one of several"


def quietly(*args, **settings):
    """Federated, without the warning that there are several."""
    with pytest.warns(ConvergenceWarning):
        return federate(*args, **settings)


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        Synchronous(),
        Asynchronous(),
        Gossip(ring(list("abc"))),
        LedgerGossip(ring(list("abc"))),
    ],
    ids=["sequential", "synchronous", "asynchronous", "gossip", "two tokens"],
)
def test_a_run_leaves_a_symmetric_saddle_and_tells_of_both_optima(schedule):
    run = quietly(SQUARES, square, CENTRED, schedule=schedule)
    assert abs(abs(float(run.posterior.mean[0])) - 3) < 0.05
    assert run.status.state == SEVERAL and not run.status.converged
    assert run.status.left <= run.tolerance
    this, other = run.status.reasons
    assert "2.99 ± 0.031" in this and "2.99 ± 0.031" in other and "same free energy" in other
    assert run.second is not None
    assert run.second.state.posterior.mean == pytest.approx(-run.posterior.mean, abs=1e-3)


def test_rounding_does_not_choose_among_mirrored_optima():
    """Of a product, from its saddle at the prior's mean: to the same one on every processor."""
    slopes = np.random.default_rng(3).normal(size=(2, 12))

    def product(z, data):
        x, y = data
        return -((y - z[0] * z[1] * x) ** 2) / 2

    prior = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, 100.0))
    sides = set()
    for seed in range(5):
        noise = 1 + np.random.default_rng(seed).integers(-2, 3, size=(2, 12)) * 2.0**-52
        sites = {site: (x, 0.3 * x * n) for site, x, n in zip("ab", slopes, noise, strict=True)}
        run = start(sites, product, prior).advance(8)
        assert np.abs(run.posterior.mean).min() > 0.1
        sides.add(tuple(np.sign(run.posterior.mean).tolist()))
    assert len(sides) == 1


def test_steps_alone_stay_on_the_saddle_and_the_status_says_so():
    run = start(SQUARES, square, CENTRED).advance(2)
    assert abs(float(run.posterior.mean[0])) < 1e-6
    assert run.status.state == "not converged" and run.status.left == run.second.apart > 1
    assert "of free energy lower" in str(run.status)
    assert run.converge().status.state == SEVERAL


@pytest.mark.slow
def test_a_posterior_over_two_exchangeable_optima_is_left_for_one_of_them():
    y = np.array([-0.89, -0.47, 0.08, 0.1, 0.8, 1.81, 1.94, 2.09, 2.99, 3.56, 3.99, 4.95])

    def either(z, y):
        return jnp.logaddexp(-((y - z[0]) ** 2) / 2, -((y - z[1]) ** 2) / 2)

    run = quietly({"a": y}, either, Gaussian.from_standard(np.zeros(2), 100 * np.eye(2)))
    assert run.status.state == SEVERAL
    assert np.ptp(run.posterior.mean) > 2  # both are 1.75 at the other fixed point


@pytest.mark.parametrize("family", [pytest.param("full", marks=pytest.mark.slow), "product"])
def test_a_product_of_parameters_from_a_prior_mean_of_zero(family):
    rng, sites = np.random.default_rng(1), {}
    for site in "abc":
        x = rng.normal(size=20)
        sites[site] = x, 2 * x + 0.5 * rng.normal(size=20)
    one = DiagonalGaussian.from_standard([0.0], [4.0])
    priors = {
        "full": Gaussian.from_standard(np.zeros(2), 4 * np.eye(2)),
        "product": Product({"a": one, "b": one}),
    }

    def likelihood(z, data):
        x, y = data
        a, b = (z["a"][0], z["b"][0]) if family == "product" else (z[0], z[1])
        return -0.5 * (y - a * b * x) ** 2

    run = quietly(sites, likelihood, priors[family])
    q = run.posterior
    a, b = np.concatenate([part.mean for part in q.parts()])
    assert a * b == pytest.approx(2, abs=0.15) and not run.status.converged
    assert family == "product" or run.status.state == SEVERAL


@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_a_symmetric_optimum_is_left_for_better_ones_in_whatever_direction_they_are(sign):
    """It is no saddle: the free energy is 2.5 nats lower where a product is ± 0.15."""
    product = lambda z, data: -0.5 * (data[1] - z[0] * z[1] * data[0]) ** 2
    prior = Gaussian.from_standard(np.zeros(2), 8 * np.eye(2))
    run = quietly({"a": (np.array([22.7]), np.array([sign * 3.36]))}, product, prior)
    assert run.status.state == SEVERAL and sign * run.posterior.mean.prod() > 0.1


def test_a_narrow_optimum_opposite_the_prior_s_mean_is_seen_from_nearby():
    spiked = lambda z, y: -0.5 * (y - z[0]) ** 2 + jnp.logaddexp(0, 8 - (z[0] + 0.6) ** 2 / 0.005)
    run = quietly({"a": np.array([1.2])}, spiked, Gaussian.from_standard([0.0], [[1.0]]))
    assert run.status.state == SEVERAL and abs(run.posterior.mean[0] + 0.6) < 0.02


def test_an_optimum_of_a_beta_posterior_that_draws_from_the_prior_find():
    twice = lambda z, x: -480 * (z - 0.2) ** 2 * (z - 0.8) ** 2 * x
    sites = {site: np.ones(5) for site in "ab"}
    run = quietly(sites, twice, Beta.from_standard(2.0, 2.0))
    assert run.second is not None
    means = sorted(float(q.a / (q.a + q.b)) for q in (run.posterior, run.second.state.posterior))
    assert means == pytest.approx([0.2, 0.8], abs=0.01)


def test_whoever_ends_at_the_worse_of_two_optima_goes_on_from_the_better():
    """Heavy tails, and two groups of records: the first site sees the smaller one alone."""
    rng = np.random.default_rng(2)
    sites = {"a": -8 + rng.normal(size=15), "b": 9 + rng.normal(size=20)}
    run = quietly(sites, lambda z, x: -2 * jnp.log1p((x - z[0]) ** 2 / 3),
                  Gaussian.from_standard([0.0], [[100.0]]))  # fmt: skip
    assert float(run.posterior.mean[0]) > 8 and run.second is not None
    assert run.second.lower < 0 and run.second.settled
    here, there = (free_energy(run.federation, state) for state in (run.state, run.second.state))
    assert there - here == pytest.approx(-run.second.lower)


@pytest.mark.slow
def test_one_optimum_is_believed_wherever_it_is_sought():
    rng = np.random.default_rng(3)
    sites = {site: rng.poisson(3.0, size=12).astype(float) for site in "abcd"}
    rates = lambda z, y: y * z[0] - jnp.exp(z[0])
    run = federate(sites, rates, Gaussian.from_standard([0.0], [[9.0]]))
    assert run.status.converged and run.second is None
    reports = reports_of(run, parts_needed(run.agreement))
    status = status_from(run.agreement, run.posterior, reports)
    assert status.converged and "no second start was made" in str(status)


def test_sites_that_fail_from_everywhere_else_leave_a_claim_in_doubt(monkeypatch):
    run = start(SQUARES, square, CENTRED).advance(2)
    answer = Site.answer

    def refuses(self, question):
        far = isinstance(question, Measure) and abs(question.posterior.mean[0]) > 0.1
        if far:
            raise ConnectionError("the ward is closed")
        return answer(self, question)

    monkeypatch.setattr(Site, "answer", refuses)
    assert run.status.state == "not converged" and "no second start" in str(run.status)
    with pytest.raises(SiteError, match="the ward is closed"):
        _ = run.second


def test_reports_alone_tell_of_a_saddle_by_values_elsewhere():
    """As where no server asks twice: a survey's answers are all that there is."""
    saddle = start(SQUARES, square, CENTRED).advance(2)
    end = saddle.converge()
    parts = parts_needed(saddle.agreement)
    assert parts == ("gradient", "elsewhere")
    for run, state, why in (
        (saddle, "not converged", "nats lower elsewhere"),
        (end, SEVERAL, "± 0.031) has the same free energy"),
    ):
        reports = {site: loads(dumps(report)) for site, report in reports_of(run, parts).items()}
        status = status_from(run.agreement, run.posterior, reports)
        assert status.state == state and why in str(status)
        lacking = reports_of(run, ("gradient",))
        assert not status_from(run.agreement, run.posterior, lacking).converged


def test_members_are_placed_over_all_of_the_prior():
    prior = Gaussian.from_standard([1.0, -2.0], np.diag([4.0, 9.0]))
    agreed = Agreement.of(FunctionModel(lambda z, x: -((x - z[0]) ** 2)), prior)
    q = Gaussian.from_standard([3.0, -2.0], np.diag([0.01, 900.0]))
    (mirrored,), members = starts_elsewhere(agreed, q)
    np.testing.assert_allclose(mirrored.mean, [-1.0, -2.0])
    deviations = np.array([m.mean - prior.mean for m in members]) / np.sqrt([4.0, 9.0])
    placed = ELSEWHERE.placed
    expected = scipy.special.ndtri((np.arange(placed) + 0.5) / placed)
    np.testing.assert_allclose(np.sort(deviations[:, 0]), expected, atol=1e-12)
    for member in (mirrored, *members):
        np.testing.assert_allclose(member.covariance, q.covariance / NARROWER)
    assert starts_elsewhere(agreed, prior)[0] == []  # it is its own image


WIDE = Gaussian.from_standard([0.0], [[25.0]])


def two(z, x):
    return jnp.logaddexp(-0.5 * (z[0] - 9) ** 2, -0.5 * (z[0] + 2) ** 2 - 2.0) + 0 * x


def test_a_better_optimum_beyond_a_barrier_is_reached_from_the_prior():
    sites = {"a": np.zeros(4), "b": np.zeros(4)}
    run: Any = quietly(sites, two, WIDE)
    assert run.status.state == SEVERAL
    np.testing.assert_allclose(run.posterior.mean, 9.0, atol=0.1)


@pytest.mark.slow
def test_several_modes_that_the_posterior_covers_are_told():
    """Two equal ones, three deviations to both sides of a wide posterior that explains both."""

    def pair(z, x):
        near = jnp.stack([((z - side * jnp.array([2.4, 1.8])) ** 2).sum() for side in (-1, 1)])
        return jax.nn.logsumexp(-near / 2) / 4 + 0 * x

    prior = Gaussian.from_standard(np.zeros(2), 25 * np.eye(2))
    run: Any = quietly({"a": np.zeros(2), "b": np.zeros(2)}, pair, prior)
    assert run.status.state == SEVERAL


def test_a_site_that_fails_again_and_again_is_not_asked_further(monkeypatch):
    run = start(SQUARES, square, CENTRED).advance(2)
    asked = []

    def lost(self, question):
        asked.append(question)
        raise SiteError(found="no answer", expected="one", fix="Mend it.")

    here = free_energy(run.federation, run.state)
    monkeypatch.setattr(Federation, "demand", lost)
    with pytest.raises(SiteError):
        starts(run.federation, run.state, here)
    assert len(asked) == ELSEWHERE.failures + 1


def test_a_climb_begins_where_the_posterior_does_not_explain_the_density():
    """Of the places nearest to a narrow optimum the density is lower than at explained ones."""

    def unequal(z, x):
        wide = -0.5 * (z[0] / 0.5) ** 2
        return jnp.logaddexp(wide, 5 - 0.5 * ((z[0] - 11) / 0.2) ** 2) / 4 + 0 * x

    sites = {"a": np.zeros(2), "b": np.zeros(2)}
    run = quietly(sites, unequal, Gaussian.from_standard([0.0], [[25.0]]))
    assert run.status.state == SEVERAL
    assert run.posterior.mean == pytest.approx(11 * 25 / 25.04, abs=1e-3)
    assert "1.7 nats of free energy higher" in str(run.status)


def test_restarts_are_an_argument():
    """None are made of what has one optimum; without them the status says what is not known."""
    alone = federate(SQUARES, square, CENTRED, restarts=0)
    assert alone.second is None and "there may be other optima" in str(alone.status)
    rows = {site: (np.ones((4, 1)), np.array([0, 1, 1, 0])) for site in "ab"}
    for given, number in ((None, 0), (3, 3)):
        agreed = start(rows, LogisticRegression(), CENTRED, restarts=given).agreement
        assert agreed.restarts == number
    with pytest.raises(UsageError, match="restarts"):
        federate(SQUARES, square, CENTRED, restarts=-1)


def test_second_starts_take_no_more_evaluations_than_their_budget(monkeypatch):
    run = quietly(SQUARES, square, CENTRED)
    whole = second_start(run.federation, run.state, run.tolerance)
    assert whole is not None and whole.settled and not whole.early
    asked = []
    answer = Site.answer

    def counted(self, question):
        asked.append(question.parts)
        return answer(self, question)

    monkeypatch.setattr(Site, "answer", counted)
    most = 4
    short = second_start(run.federation, run.state, run.tolerance, most)
    assert short is not None and short.early and not short.settled
    assert asked.count(("noiseless",)) == (1 + most // 2) * len(SQUARES)  # with other nodes


def test_a_status_tells_that_second_starts_ended_early():
    run = federate({"a": np.zeros(4)}, two, WIDE, restart_budget=1e-3)
    assert run.status.converged and "second starts ended early" in str(run.status)
    with pytest.raises(UsageError, match="restart_budget"):
        federate(SQUARES, square, CENTRED, restart_budget=0)


def test_no_descent_begins_at_modes_that_the_posterior_explains():
    counts = {site: np.array([2.0, 3.0, 5.0]) for site in "ab"}
    rates = lambda z, y: y * z[0] - jnp.exp(z[0])
    run = federate(counts, rates, Gaussian.from_standard([0.0], [[9.0]]))
    assert run.status.converged and not run.status.reasons
    assert starts(run.federation, run.state, free_energy(run.federation, run.state)) == []
    lone = Gaussian.from_standard([5.0], [[0.01]])  # explains nothing of the sites' mode
    away = started_at(run.state, lone, "ab")
    (begun,) = starts(run.federation, away, free_energy(run.federation, away))
    assert begun.posterior.mean == pytest.approx(np.log(20 / 6), abs=0.05)


# --- where members are placed ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "records", "prior"),
    [
        (
            lambda p, x: jnp.logaddexp(-200 * (x - p) ** 2, -200 * (x - 1 + p) ** 2),
            0.2 + 0.05 * RNG.normal(size=(2, 20)),
            Beta.from_standard(2.0, 3.0),
        ),
        (
            lambda z, x: -((x - (z - 3) ** 2) ** 2) / 0.18,
            np.abs(3 + 0.1 * RNG.normal(size=(2, 20))),
            Gamma.from_standard(2.0, 0.5),
        ),
    ],
    ids=["beta", "gamma"],
)
def test_another_optimum_of_other_families_is_told(likelihood, records, prior):
    run = quietly(dict(zip("ab", records, strict=True)), likelihood, prior)
    assert run.status.state == SEVERAL


def test_no_member_has_no_rank():
    """A model may admit none of those that are placed."""
    run = quietly(SQUARES, square, CENTRED)
    assert Places(run.federation, run.state, run.sites).ranked([], 0.0) == []


def test_more_nodes_are_not_tried_where_a_likelihood_is_not_finite(monkeypatch):
    sites = {site: RNG.normal(size=5) for site in "ab"}
    run = start(sites, lambda z, x: jnp.where(z[0] > 0, -((x - z[0]) ** 2), jnp.nan), CENTRED)
    outside = started_at(run.state, Gaussian.from_standard([-2.0], [[0.01]]), run.sites)
    finer = []
    monkeypatch.setattr(Nodal, "finer", finer.append)
    for report in asked(run.federation, outside, run.sites, "noiseless"):
        assert report.direction is None
    assert not finer
