import jax
import numpy as np
import pytest
from federation.examples import (
    BROKEN,
    CONJUGATE,
    NAMES,
    NORMAL,
    SCHEDULES,
    Moody,
    logistic_sites,
    snapshot,
)
from laws.table import identical

from posterity.families import Beta
from posterity.federation import Asynchronous, Sequential, Synchronous, federate
from posterity.federation.federate import start
from posterity.models import BetaBernoulli, BetaExponential, LogisticRegression

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

SITES = logistic_sites()
STEPS = {"rounds": 30, "reports": 100, "hops": 120}


@pytest.fixture(scope="module")
def pooled():
    """The fixed point of one site that holds all data."""
    data = tuple(np.concatenate(parts) for parts in zip(*SITES.values(), strict=True))
    return federate({"all": data}, LogisticRegression(), NORMAL, steps=20).posterior


@pytest.mark.parametrize("name", [*SCHEDULES, "undamped"])
def test_every_schedule_reaches_the_pooled_fixed_point(name, pooled):
    schedule = {**SCHEDULES, "undamped": Synchronous(damping=1.0)}[name]
    run = federate(
        SITES, LogisticRegression(), NORMAL, schedule=schedule, steps=STEPS[schedule.unit]
    )
    assert float(run.posterior.kl(pooled)) < 1e-12
    assert identical(run.posterior, run.ledger.posterior)


@pytest.mark.parametrize("damping", [0.25, 1.0])
def test_a_synchronous_round_takes_a_share_of_every_change(damping):
    run = federate(
        SITES, LogisticRegression(), NORMAL, schedule=Synchronous(damping=damping), steps=1
    )
    for site in NAMES:
        # From the prior, all by itself: what a sequential pass starts with.
        alone = federate({site: SITES[site]}, LogisticRegression(), NORMAL, steps=1)
        expected = alone.ledger.factor(site).natural_parameters * damping
        found = run.ledger.factor(site).natural_parameters
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_shares_are_halved_until_all_changes_together_are_proper():
    BROKEN.add("slight")
    data = {"a": np.array([9, 1]), "b": np.array([9, 0, 1])}
    try:
        run = federate(data, Moody(), Beta.from_standard(2.0, 2.0), schedule=Synchronous(), steps=1)
    finally:
        BROKEN.clear()
    assert [(v.outcome, v.halvings) for v in run.trace] == [("updated", 0)] * 2
    assert run.posterior.standard_parameters() == {"a": 2.0 - 2 * 1.5 / 2, "b": 2.0 + 2 / 2}
    assert identical(run.posterior, run.ledger.posterior)
    # Each is as short as the other's asked for.
    assert not any(entry.independent for entry in run.ledger.entries.values())


class Choosy(BetaBernoulli):
    """Coin flips that may change one parameter of the prior, but not both."""

    def admits(self, q):
        return (q.a == 2.0) | (q.b == 2.0)


def test_changes_of_which_no_share_is_admitted_together_are_refused():
    data = {"ash": np.ones(3), "elm": np.zeros(5), "fir": None}
    run = start(data, Choosy(), Beta.from_standard(2.0, 2.0), schedule=Synchronous())
    after = run.advance(1)
    assert [v.outcome for v in after.trace] == ["refused", "refused", "relayed"]
    assert identical(after.posterior, run.posterior)
    assert after.ledger.sites == ()


@pytest.mark.slow
def test_no_schedule_leaves_where_the_model_has_expectations():
    # E[1/z] is finite for a > 1 only: a proper posterior beyond it would have no gradient.
    rng = np.random.default_rng(0)
    data = {name: rng.exponential(0.05, 12) for name in "abc"}
    prior = Beta.from_standard(1.2, 1.2)
    for schedule in (Synchronous(damping=1.0), Asynchronous(), Sequential()):
        run = federate(data, BetaExponential(), prior, schedule=schedule, steps=12)
        assert run.agreement.admits(run.posterior)


@pytest.mark.parametrize("name", SCHEDULES)
def test_equal_keys_give_equal_runs(name):
    model, prior, data = CONJUGATE["Beta"]
    make = lambda seed: federate(
        data, model, prior, schedule=SCHEDULES[name], steps=9, key=jax.random.key(seed)
    )
    one, again, other = make(3), make(3), make(4)
    assert snapshot(one) == snapshot(again)
    assert one.trace == again.trace
    if name not in ("sequential", "synchronous"):
        assert [v.site for v in one.trace] != [v.site for v in other.trace]


def test_asynchronous_sites_do_not_see_what_was_reported_meanwhile():
    sites = {site: SITES[site] for site in ("ash", "oak")}
    run = start(sites, LogisticRegression(), NORMAL, schedule=Asynchronous())
    while len(run.ledger.sites) < 2:
        run = run.advance(1)
    # Who reports first has begun at the prior, and so has who reports last.
    last = run.trace[-1].site
    alone = federate({last: sites[last]}, LogisticRegression(), NORMAL, steps=1)
    assert identical(run.ledger.factor(last), alone.ledger.factor(last))
