"""A site by itself: what it keeps, what it takes in and sends on, and what all agree on."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest
from federation.examples import CONJUGATE, NAMES, NORMAL, logistic_sites

from posterity.arrays.tree_sums import TreeSum
from posterity.entries import Entry
from posterity.errors import LedgerError, ParameterError, StructureError, UsageError
from posterity.families import Beta, DiagonalGaussian, Gamma, Gaussian
from posterity.federation import (
    Agreement,
    Gossip,
    Site,
    SiteState,
    certify,
    federate,
    site_key,
    start,
    status_from,
    step_key,
    turn,
)
from posterity.federation.certificate import Certificate
from posterity.federation.messages import Token
from posterity.federation.newton import newton_of
from posterity.federation.remaining import reports_of
from posterity.federation.status import parts_needed
from posterity.graphs import complete
from posterity.inference import LocalUpdate
from posterity.inference.cubature import Cubature
from posterity.models import BetaBernoulli, LogisticRegression

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

KEY = jax.random.key(7)
MODEL, PRIOR, DATA = CONJUGATE["Beta"]
GOSSIP = Gossip(complete(list(NAMES)))
NOISY = LocalUpdate("reparameterization", steps=2, rate=0.1)
KINDS = {
    "conjugate": (MODEL, PRIOR, DATA, None),
    "quadrature": (LogisticRegression(), NORMAL, logistic_sites(), None),
    "noisy": (LogisticRegression(), NORMAL, logistic_sites(), NOISY),
}


def alone(kind="conjugate"):
    """An agreement, and four sites that were each set up without the others."""
    model, prior, data, update = KINDS[kind]
    agreement = Agreement.of(model, prior, update, padding=False)
    return agreement, {name: Site.of(agreement, name, own) for name, own in data.items()}


def first_token(agreement, epoch=(0, "")):
    return Token(agreement.digest, epoch, 0, TreeSum.of([agreement.prior]))


# --- turns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_sites_by_themselves_walk_as_one_process_does(kind):
    model, prior, data, update = KINDS[kind]
    run = start(data, model, prior, schedule=GOSSIP, update=update, padding=False, key=KEY)
    agreement, sites = alone(kind)
    states, token = {name: SiteState(name) for name in NAMES}, first_token(agreement)
    at = run.state.schedule["at"]
    for _ in range(12):
        key, before = step_key(KEY, token.sequence), token.sender
        states[at], token, _ = turn(sites[at], states[at], token, key=key)
        at, run = GOSSIP.hop(at, before, key=key), run.advance(1)
        assert at == run.state.schedule["at"]
        assert token == run.token and token.digest == run.token.digest
    held = {name: state.entry for name, state in states.items() if state.entry is not None}
    assert held == run.state.entries
    factors = [entry.factor for entry in held.values()]
    assert token.exact_sum == TreeSum.of([agreement.prior, *factors])


def test_an_epoch_counts_the_whole_factor_once_and_fences_off_the_one_before():
    agreement, sites = alone("quadrature")
    ash, token, _ = turn(sites["ash"], SiteState("ash"), first_token(agreement), key=KEY)
    elm, token, _ = turn(sites["elm"], SiteState("elm"), token, key=KEY)
    ash, token, _ = turn(sites["ash"], ash, token, key=KEY)
    begun = first_token(agreement, (1, "elm"))
    new, second, _ = turn(sites["elm"], elm, begun, key=KEY)
    assert second.exact_sum == TreeSum.of([agreement.prior, new.entry.factor])
    with pytest.raises(LedgerError, match="above epoch 1"):
        turn(sites["elm"], new, token, key=KEY)
    last, third, _ = turn(sites["ash"], ash, second, key=KEY)
    factors = [new.entry.factor, last.entry.factor]
    assert third.exact_sum == TreeSum.of([agreement.prior, *factors])
    # Two that begin an epoch at once are ordered by their names.
    other = first_token(agreement, (1, "ash"))
    with pytest.raises(LedgerError, match="above epoch 1"):
        turn(sites["elm"], new, other, key=KEY)
    assert turn(sites["elm"], new, first_token(agreement, (1, "fir")), key=KEY)[0].counted


def test_a_site_leaves_once_something_is_left_without_it():
    agreement, sites = alone("quadrature")
    entry = Entry(0, 3, Gaussian(np.zeros(2), -5 * np.eye(2)))
    lonely = SiteState("ash", Entry(0, 1, Gaussian(np.zeros(2), 9 * np.eye(2))), 3, leaving=True)
    without = first_token(agreement).exact_sum.changed(add=[entry.factor])
    token = dataclasses.replace(first_token(agreement), exact_sum=without)
    own, after, visit = turn(sites["ash"], lonely, token, key=KEY)
    assert visit.outcome == "refused" and own.leaving and own.entry == lonely.entry
    assert after.exact_sum == without.changed(add=[own.entry.factor])
    back = dataclasses.replace(after, exact_sum=after.exact_sum.changed(take=[entry.factor]))
    gone, last, visit = turn(sites["ash"], own, dataclasses.replace(back, sequence=2), key=KEY)
    assert visit.outcome == "forgotten" and not gone.leaving
    assert last.exact_sum == TreeSum.of([agreement.prior])


def test_a_site_that_fails_passes_the_token_on_if_that_was_agreed():
    agreement, sites = alone()
    patient = dataclasses.replace(agreement, on_error="pass")
    records = dataclasses.replace(sites["ash"].records, data="none")
    broken = dataclasses.replace(sites["ash"], agreement=patient, records=records)
    own, token, visit = turn(broken, SiteState("ash"), first_token(agreement), key=KEY)
    assert visit.outcome == "failed" and "site 'ash'" in visit.error
    assert token.exact_sum == first_token(agreement).exact_sum and own.answered == 0


def test_tokens_of_another_kind_are_refused():
    agreement, sites = alone()
    other = dataclasses.replace(first_token(agreement), exact_sum=TreeSum.of([Gamma(1.0, 1.0)]))
    with pytest.raises(StructureError, match="epoch 0, sequence 0"):
        turn(sites["ash"], SiteState("ash"), other, key=KEY)


# --- what all agree on ---------------------------------------------------------------------------


def test_what_is_agreed_on_tells_and_membership_does_not():
    agreement = Agreement.of(LogisticRegression(), NORMAL)
    others = [
        Agreement.of(LogisticRegression(), NORMAL * 2.0),
        Agreement.of(LogisticRegression(), NORMAL, LocalUpdate(steps=3)),
        Agreement.of(LogisticRegression(), NORMAL, padding=False),
        Agreement.of(LogisticRegression(), NORMAL, total_weight=100.0),
        Agreement.of(LogisticRegression(), NORMAL, personal=[0]),
    ]
    assert len({agreement.digest, *(other.digest for other in others)}) == 6
    same = Agreement.of(
        LogisticRegression(), NORMAL, LocalUpdate(), sites=["b", "a"], on_error="pass"
    )
    assert same.digest == agreement.digest and same.sites == ("a", "b")
    with pytest.raises(UsageError, match="total_weight=-1"):
        Agreement.of(LogisticRegression(), NORMAL, total_weight=-1.0)
    with pytest.raises(ParameterError, match="improper"):
        Agreement.of(BetaBernoulli(), Beta(-3.0, 0.0))


def test_a_sites_digits_do_not_depend_on_who_else_takes_part():
    data = {n: (x[: 5 + k], y[: 5 + k]) for k, (n, (x, y)) in enumerate(logistic_sites().items())}
    few = {name: data[name] for name in NAMES[:2]}
    all_of_them, two = (
        start(own, LogisticRegression(), NORMAL, padding=True, key=KEY) for own in (data, few)
    )
    agreement = Agreement.of(LogisticRegression(), NORMAL)
    assert agreement.digest == all_of_them.agreement.digest == two.agreement.digest
    sites = [run.federation.sites["ash"] for run in (all_of_them, two)]
    sites.append(Site.of(agreement, "ash", data["ash"]))
    answers = [site.improve(NORMAL, NORMAL.zero(), key=KEY) for site in sites]
    assert answers[0] == answers[1] == answers[2]


def test_a_site_puts_its_columns_in_the_order_of_the_priors_names():
    (x, y), prior = logistic_sites()["ash"], NORMAL.named(["age", "dose"])
    agreement = Agreement.of(LogisticRegression(), prior)
    frame = pd.DataFrame({"dose": x[:, 1], "age": x[:, 0]})
    plain, named = (Site.of(agreement, "ash", (data, y)) for data in (x, frame))
    assert np.array_equal(named.records.data[0], plain.records.data[0])
    with pytest.raises(StructureError, match="'ash'"):
        Site.of(agreement, "ash", (frame.rename(columns={"age": "years"}), y))
    with pytest.raises(ParameterError, match="the data of site 'ash'"):
        Site.of(agreement, "ash", (x, np.full(len(y), 7.0)))
    with pytest.raises(StructureError, match="at site 'ash'"):
        Site.of(agreement, "ash", (np.ones((4, 3)), np.ones(4)))


# --- reports -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_status_is_made_of_reports_alone(kind):
    model, prior, data, update = KINDS[kind]
    run = start(data, model, prior, update=update, padding=False, key=KEY)
    done = run.converge(1e-6) if kind == "quadrature" else run.sweep()
    _, sites = alone(kind)
    for now in (run, done):
        reports = {
            name: site.report(now.posterior, now.state.factor(name), key=site_key(KEY, name))
            for name, site in sites.items()
        }
        assert reports == {
            name: dataclasses.replace(report, epoch=(0, ""), step=0)
            for name, report in reports_of(now, ("gradient",)).items()
        }
        assert Certificate.of(now.posterior, reports) == certify(now)
        status = status_from(now.agreement, now.posterior, reports)
        assert status.converged == (now is done and kind != "noisy")
    lost = reports | {"ash": dataclasses.replace(reports["ash"], direction=None)}
    status = status_from(done.agreement, done.posterior, lost)
    assert status.reasons == ("no finite report of 'ash'",) and not status.converged
    silent = {name: own for name, own in reports.items() if name != "ash"}
    for known in (silent, {}):
        status = status_from(done.agreement, done.posterior, known)
        assert "no report of 'ash'" in status.reasons[0] and status.left == np.inf


def test_a_status_of_reports_knows_collinear_columns():
    """Rounds change next to nothing there, far from the optimum."""
    beside = lambda x: np.column_stack([np.ones(len(x)), x[:, 0] + 30])
    data = {name: (beside(x), y) for name, (x, y) in logistic_sites().items()}
    prior = DiagonalGaussian.from_standard(np.zeros(2), 100 * np.ones(2))
    ended = federate(data, LogisticRegression(), prior)
    agreement = ended.agreement
    assert parts_needed(agreement) == ("gradient", "curvature")
    early = start(data, LogisticRegression(), prior).advance(3)
    statuses = [
        status_from(agreement, run.posterior, reports_of(run, parts_needed(agreement)), 0.01)
        for run in (early, ended)
    ]
    assert [status.converged for status in statuses] == [False, True]
    assert statuses[0].left > certify(early).upper


@pytest.mark.slow
def test_a_status_of_reports_knows_of_too_few_nodes():
    prior = Gaussian.from_standard(np.zeros(2), 100 * np.eye(2))
    coarse = LocalUpdate(Cubature(8, most=8))
    run = federate(logistic_sites(), LogisticRegression(), prior, update=coarse)
    for parts in (("gradient",), ("noiseless",), ("gradient", "curvature")):
        q = run.posterior
        if "curvature" in parts:
            q = DiagonalGaussian.from_standard(q.mean, np.diag(q.covariance))
        site = run.federation.sites["ash"]
        assert site.report(q, q.zero(), parts, key=KEY).quadrature_error > 0
    reports = reports_of(run, parts_needed(run.agreement))
    told = sum(report.quadrature_error for report in reports.values())
    status = status_from(run.agreement, run.posterior, reports, told / 2)
    assert told > 0 and f"sums over nodes may be off by {told:.2g} nats" in status.reasons
    assert status.left == np.inf
    assert not status_from(run.agreement, run.posterior, reports, 2 * told).reasons
    within = dataclasses.replace(run, tolerance=told / 100)
    assert any("sums over nodes may be off" in reason for reason in within.status.reasons)
    assert within.status.left == np.inf  # by other nodes the optimum is elsewhere


def test_reports_that_lack_parts_tell_of_no_newton_step():
    prior = DiagonalGaussian.from_standard(np.zeros(2), 4 * np.ones(2))
    run = federate(logistic_sites(), LogisticRegression(), prior)
    reports = reports_of(run, ("gradient", "curvature"))
    assert np.isfinite(newton_of(prior, run.posterior, [*reports.values()]).change)
    whole = reports["ash"]
    for lack in (
        {"curvature": None},
        {"slope": None},
        {"fixed_point": None},
    ):
        lacking = reports | {"ash": dataclasses.replace(whole, **lack)}
        assert newton_of(prior, run.posterior, [*lacking.values()]).change == np.inf
        status = status_from(run.agreement, run.posterior, lacking)
        assert status.left == np.inf and not status.converged
