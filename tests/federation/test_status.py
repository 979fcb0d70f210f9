"""What a run says of how far it has come, against how far it is."""

import dataclasses
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation.couriers import Checked

from experiments.estimators import BonnetPrice, Reinforce
from posterity.errors import ConvergenceWarning, SiteError
from posterity.families import Beta, DiagonalGaussian, Gaussian
from posterity.federation import (
    Asynchronous,
    Federation,
    Gossip,
    LedgerGossip,
    Synchronous,
    certify,
    federate,
)
from posterity.federation.federate import start
from posterity.federation.messages import Measure
from posterity.federation.site import NODES
from posterity.federation.status import status_from
from posterity.graphs import ring, star
from posterity.inference.estimators import PredictorQuadrature
from posterity.inference.update import LocalUpdate
from posterity.models import LogisticRegression, PoissonRegression
from tests.federation.examples import CONJUGATE, NAMES, NORMAL, logistic_sites

SITES = logistic_sites()
MODEL = LogisticRegression()


@pytest.fixture(scope="module")
def settled():
    """The optimum."""
    return federate(SITES, MODEL, NORMAL, tolerance=1e-12)


def said(function):
    """What is warned of, and what comes back."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        back = function()
    return [str(w.message) for w in caught if w.category is ConvergenceWarning], back


# --- when it ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [None, Synchronous(), Gossip(star(list(NAMES))), LedgerGossip(ring(list(NAMES)))],
    ids=["sequential", "synchronous", "a star", "two tokens"],
)
def test_what_has_converged_is_no_further_off_than_it_says(schedule, settled):
    """On a star a token goes to and fro, and changes nothing, before it has met everyone."""
    for seed in range(3):
        heard, run = said(
            lambda seed=seed: federate(
                SITES, MODEL, NORMAL, schedule=schedule, key=jax.random.key(seed)
            )
        )
        assert run.status.converged and not heard
        assert float(run.posterior.kl(settled.posterior)) < 2 * run.status.tolerance


def test_a_smaller_tolerance_takes_more_rounds(settled):
    runs = [federate(SITES, MODEL, NORMAL, tolerance=tolerance) for tolerance in (1.0, 1e-6)]
    assert runs[0].state.step < runs[1].state.step <= settled.state.step
    assert all(run.status.left <= run.tolerance for run in runs)
    assert runs[0].converge(1e-6).status.left <= 1e-6
    assert runs[1].converge().state.step == runs[1].state.step


def test_with_steps_and_a_tolerance_it_ends_at_whichever_comes_first():
    assert federate(SITES, MODEL, NORMAL, steps=50, tolerance=1e-3).state.step < 50
    heard, run = said(lambda: federate(SITES, MODEL, NORMAL, steps=1, tolerance=1e-3))
    assert run.state.step == 1 and len(heard) == 1


def test_conjugate_models_are_done_when_all_had_their_turn():
    example = CONJUGATE["Beta"]
    run = federate(example.sites, example.model, example.prior)
    assert run.state.step == 1 and run.status.left == 0
    heard, run = said(lambda: federate(
        example.sites, example.model, example.prior, schedule=Gossip(ring(list(NAMES))), steps=2
    ))  # fmt: skip
    assert "no visit yet to" in heard[0]
    assert run.converge().status.converged


# --- what it says ---------------------------------------------------------------------------


def test_too_few_rounds_are_warned_of(settled):
    heard, run = said(lambda: federate(SITES, MODEL, NORMAL, steps=1))
    left = float(settled.posterior.kl(run.posterior))
    assert run.status.state == "not converged"
    assert run.status.left == pytest.approx(left, rel=0.05)
    assert heard == [f"The posterior has {run.status} (after 1 rounds)."]
    assert said(lambda: federate(SITES, MODEL, NORMAL, steps=0))[0] == []


def test_one_site_alone_is_done_at_once():
    run = federate({"ash": SITES["ash"]}, MODEL, NORMAL)
    assert run.state.step == 1 and run.status.converged
    # Each of its line searches lowers the free energy, so that longer visits are no divergence.
    trace = [dataclasses.replace(run.trace[0], change=change) for change in (0.005, 2.0)]
    far = dataclasses.replace(run.restarted().state, step=20)
    longer = dataclasses.replace(run, state=far, trace=trace)
    assert not longer.grows and longer.status.state == "not converged"


def test_the_rule_is_said():
    run = start(SITES, MODEL, NORMAL, schedule=Gossip(ring(list(NAMES))))
    assert "PredictorQuadrature of 64 nodes, line search" in run.rule
    assert run.rule.endswith("Gossip, hops")
    update = LocalUpdate(Reinforce(), batch_size=4, rate=0.1)
    rule = start(SITES, MODEL, NORMAL, update=update).rule
    assert "30 samples and leave-one-out baseline, batches of 4" in rule and "rate of 0.1" in rule


@pytest.mark.slow
def test_an_expectation_that_nodes_miss_is_not_converged():
    """Weibull times with a normal log shape: the log likelihood has no expectation, and of three
    records what nodes do not see is less than a part in ten at 12 deviations, infinite at 14."""

    def weibull(z, data):
        x, y = data
        scaled = jnp.log(y) - x @ z[:-1]
        return z[-1] + jnp.exp(z[-1]) * scaled - jnp.exp(jnp.exp(z[-1]) * scaled)

    sites = {"ash": (np.array([[0.561], [-1.016], [-0.662]]), np.array([1.866, 6.126, 6.118]))}
    prior = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, 10.0))
    messages, run = said(lambda: federate(sites, weibull, prior))
    assert run.status.state == "not converged" and math.isinf(run.status.left)
    assert messages and "sums over nodes may be off" in messages[-1]


def test_nodes_are_added_until_they_suffice(settled):
    """Eight of them place it wrongly; asked for no more, they would not be believed."""
    few = LocalUpdate(PredictorQuadrature(nodes=8))
    run = federate(SITES, MODEL, NORMAL, update=few)
    assert run.status.converged and float(run.posterior.kl(settled.posterior)) < 1e-3
    errors = [visit.quadrature_error for visit in run.trace]
    assert 0 < max(errors) <= NODES.error
    assert run.status.left >= math.fsum(errors[-len(NAMES) :])


# --- what could deceive it ------------------------------------------------------------------


def test_a_rate_that_decays_is_no_convergence(settled):
    """Rounds shrink since the rate does, far from the end."""
    update = LocalUpdate(rate=lambda t: 0.05 * 0.9**t)
    run = start(SITES, MODEL, NORMAL, update=update).advance(6)
    assert float(run.posterior.kl(settled.posterior)) > 0.1
    assert run.status.state == "not converged"


def test_factors_that_were_set_do_not_pass_for_the_sites_own():
    """Not even where they are exact: nobody was asked since."""
    example = CONJUGATE["Beta"]
    run = federate(example.sites, example.model, example.prior)
    other = run.ledger.update("ash", Beta(50.0, 1.0), independent=True)
    for again in (run.restarted(), run.with_ledger(other)):
        assert not again.status.converged and "no visit yet to 'ash'" in str(again.status)
        assert again.trace[: len(run.trace)] == run.trace
        assert again.converge().posterior == run.posterior and again.converge().status.converged


def oak_is_closed(question):
    """Oak answers when its turn comes, and fails when it is asked how it stands."""
    if isinstance(question, Measure) and question.site == "oak":
        raise ConnectionError("the ward is closed")


def closed(run, on_error):
    agreement = dataclasses.replace(run.agreement, on_error=on_error)
    sites = run.federation.sites
    courier = Checked(Federation(agreement, sites), oak_is_closed)
    return dataclasses.replace(run, federation=Federation(agreement, sites, courier=courier))


def test_a_site_that_fails_for_a_while_is_not_taken_for_content(settled):
    run = closed(settled, "pass")
    assert math.isinf(run.status.left) and run.status.state == "not converged"
    assert run.status.reasons
    assert math.isnan(certify(run).distance)


def test_errors_of_the_status_and_of_the_newton_step_have_the_run(settled):
    with pytest.raises(SiteError, match="the ward is closed") as caught:
        _ = closed(settled, "raise").status
    assert caught.value.run.state is settled.state
    prior = DiagonalGaussian.from_standard(np.zeros(2), 4 * np.ones(2))
    run = closed(start(SITES, MODEL, prior).advance(1), "raise")
    with pytest.raises(SiteError, match="the ward is closed") as caught:
        run.newton_step()
    assert caught.value.run is run
    with pytest.raises(SiteError, match="the ward is closed") as caught:
        run.converge()
    assert caught.value.run.state.step == 2


def test_a_site_that_left_or_came_back_is_noticed(settled):
    left = settled.forget("oak")
    assert left.status.state == "not converged"
    back = left.converge().readmit("oak")
    assert "no visit yet to 'oak'" in str(back.status)
    assert float(back.converge(1e-6).posterior.kl(settled.posterior)) < 1e-5


@pytest.mark.parametrize(
    "jump",
    [
        lambda z, x: jnp.where(x < z[0], -1.0, -2.0) + 0 * z[1],
        # Beside a slope, rounding has none: the posterior of what is rounded would be the prior's.
        pytest.param(
            lambda z, x: -((jnp.round(4 * z[0]) / 4 - x) ** 2) / 2 - (z[1] - x) ** 2 / 2,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_likelihood_that_jumps_is_told(jump):
    """Its derivative is zero wherever there is one."""
    data = {"a": 1.3 + np.random.default_rng(0).normal(size=30)}
    heard, run = said(lambda: federate(data, jump, NORMAL, steps=3))
    assert run.status.state == "not converged" and run.status.left > 0.1 and heard


def test_reports_out_of_turn_do_not_pass_for_convergence():
    """Who reports twice before the other one does changes nothing at the second time."""
    rng = np.random.default_rng(2)
    d, _, n, spread = (*rng.integers([1, 2, 4], [5, 5, 40]), 10.0 ** rng.uniform(0, 2))
    coefficients, sites = rng.normal(size=d) * rng.choice([1, 3, 10]), {}
    for name in "ab":
        x = rng.normal(size=(n, d))
        odds = x @ coefficients
        sites[name] = x, (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(float)
    prior = Gaussian.from_standard(np.zeros(d), spread**2 * np.eye(d))
    run = federate(sites, MODEL, prior, schedule=Asynchronous(), key=jax.random.key(2))
    true = float(run.converge(1e-7).posterior.kl(run.posterior))
    assert run.status.converged and true < run.tolerance
    assert true < 2 * run.status.left


def test_counts_of_nothing_under_a_wide_prior_are_no_further_off_than_allowed():
    """Predictors vary so much that a Newton step is a small part of the way."""
    x = np.random.default_rng(0).normal(size=(2, 25, 8))
    sites = {"a": (x[0], np.zeros(25)), "b": (x[1], np.zeros(25))}
    prior = Gaussian.from_standard(np.zeros(8), 1e3 * np.eye(8))
    run = federate(sites, PoissonRegression(), prior)
    assert run.status.converged and run.left < run.tolerance
    x = np.column_stack([np.ones(200), np.random.default_rng(5).normal(size=(200, 59))])
    prior = Gaussian.from_standard(np.zeros(60), 100 * np.eye(60))
    run = federate({"a": (x, np.zeros(200))}, PoissonRegression(), prior)
    assert run.status.converged and run.state.step == 1


@pytest.mark.slow
def test_noise_is_taken_off_and_allowed_for():
    update = LocalUpdate(BonnetPrice(), steps=5)
    run = start(SITES, MODEL, NORMAL, update=update)
    certificate = certify(run)
    assert run.advance(1).status.tolerance == 2 * run.tolerance  # one a coordinate
    assert certificate.distance > 20 * certificate.error > 0
    # At the optimum next to nothing is left but noise.
    there = federate(SITES, MODEL, Gaussian.from_standard(np.zeros(2), 4 * np.eye(2)))
    noisy = start(SITES, MODEL, NORMAL, update=update)._with(there.state, NAMES)
    assert certify(noisy).distance < 4 * certify(noisy).error


# --- how far it is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [None, Synchronous(damping=0.2), Asynchronous(), Gossip(ring(list(NAMES)))],
    ids=["sequential", "synchronous", "asynchronous", "gossip"],
)
@pytest.mark.parametrize(
    "update",
    [
        LocalUpdate(),
        LocalUpdate(rate=0.01),
        pytest.param(LocalUpdate(BonnetPrice(), steps=3), marks=pytest.mark.slow),
    ],
    ids=["search", "tiny rate", "noise"],
)
def test_what_an_unfinished_run_has_left_is_its_distance_from_the_optimum(
    schedule, update, settled
):
    run = start(SITES, MODEL, NORMAL, schedule=schedule, update=update).advance(3)
    left = float(settled.posterior.kl(run.posterior))
    if run.status.converged:
        assert left < 10 * run.tolerance
    else:
        assert left / 3 < run.status.left < 3 * left


@pytest.mark.parametrize("family", [Gaussian, DiagonalGaussian])
def test_a_run_that_has_not_begun_is_as_far_from_the_optimum_as_it_says(family):
    """From a wide prior the first natural gradients lead far beyond it."""
    rng, sites = np.random.default_rng(4), {}
    for name in NAMES:
        x = rng.normal(size=(40, 4)) + np.array([0, 5, 0, 5])
        odds = (x - x.mean(0)) @ rng.normal(size=4)
        sites[name] = x, (rng.random(40) < 1 / (1 + np.exp(-odds))).astype(float)
    spread = 4 * np.ones(4)
    prior = family.from_standard(np.zeros(4), spread if family.diagonal else np.diag(spread))
    done = federate(sites, MODEL, prior, tolerance=1e-9)
    again = done.restarted()
    assert again.status.left == pytest.approx(float(done.posterior.kl(prior)), rel=0.01)
    assert again.status.state == "not converged"


def test_noise_does_not_hide_that_a_posterior_is_the_optimum(settled):
    update = LocalUpdate(Reinforce(), steps=2)
    run = start(SITES, MODEL, NORMAL, update=update)._with(settled.state, NAMES)
    assert run.left < 1e-6


def test_a_run_whose_factors_have_vanished_has_not_converged():
    """Steps that led out of all bounds are halved until they change nothing."""
    prior = DiagonalGaussian.from_standard(np.zeros(NORMAL.event_size), np.ones(NORMAL.event_size))
    update = LocalUpdate("variational-online-newton")
    run = start(SITES, MODEL, prior, update=update).advance(1)
    back = dataclasses.replace(run, state=dataclasses.replace(run.restarted().state, step=1))
    true = float(federate(SITES, MODEL, prior).posterior.kl(prior))
    assert not back.status.converged and true / 3 < back.status.left < 3 * true


def test_an_improper_posterior_has_not_converged():
    """As sums of natural parameters are, where rounding takes the prior's part."""
    case = CONJUGATE["Beta"]
    run = federate(case.sites, case.model, case.prior)
    assert run.status.converged
    entry, less = run.state.entries["ash"], run.posterior + run.posterior
    entries = {**run.state.entries, "ash": entry._replace(factor=entry.factor - less)}
    lost = dataclasses.replace(run, state=run.state.with_entries(entries))
    for status in (lost.status, status_from(lost.agreement, lost.posterior, {})):
        assert not status.converged and math.isinf(status.left)
        assert "improper" in str(status)
