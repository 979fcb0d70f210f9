import dataclasses
import functools
import pickle
from fractions import Fraction

import jax
import numpy as np
import pytest
from federation.couriers import Checked
from federation.examples import (
    BROKEN,
    CONJUGATE,
    NAMES,
    NORMAL,
    SCHEDULES,
    Moody,
    flips,
    logistic_sites,
    snapshot,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.table import identical

from posterity.errors import LedgerError, SiteError, UsageError
from posterity.families import Beta, Gaussian
from posterity.federation import Gossip, federate
from posterity.federation.federate import start
from posterity.graphs import ring
from posterity.inference import LocalUpdate
from posterity.models import BetaBernoulli, GaussianMean, LogisticRegression

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

KEY = jax.random.key(5)

# --- whatever happens to a conjugate federation ------------------------------------------------

sites = st.sampled_from(NAMES)
events = st.one_of(
    st.tuples(st.just("advance"), st.integers(0, 4)),
    st.tuples(st.sampled_from(["forget", "rejoin", "leave"]), sites),
    st.tuples(st.sampled_from(["sweep", "restart"]), st.none()),
)


def happen(run, event, what):
    """The run after an event, and whether the rules allowed it."""
    before = snapshot(run)
    try:
        match event:
            case "advance" | "sweep":
                return getattr(run, event)(what or 1)
            case "forget":
                return run.forget(what)
            case "leave":
                return run.forget(what, when="visit")
            case "rejoin":
                return run.readmit(what)
            case "restart":
                return run.restarted()
    except (LedgerError, UsageError):
        assert snapshot(run) == before
        return run


@pytest.mark.parametrize(
    "name, schedule",
    [*((name, "gossip") for name in CONJUGATE), *(("Beta", s) for s in SCHEDULES if s != "gossip")],
)
@settings(max_examples=max(settings().max_examples // 25, 4))
@given(happened=st.lists(events, max_size=8))
def test_whatever_happens_the_posterior_is_that_of_the_sites_that_stay(name, schedule, happened):
    model, prior, data = CONJUGATE[name]
    run = start(data, model, prior, schedule=SCHEDULES[schedule])
    for event, what in happened:
        run = happen(run, event, what)
        assert identical(run.posterior, run.ledger.posterior)
        assert run.ledger.independent
    run = run.sweep()
    assert identical(run.posterior, never_saw(name, run.sites))


def never_saw(name, stay):
    """The posterior of a federation of these sites alone."""
    model, prior, data = CONJUGATE[name]
    if not stay:
        return start(data, model, prior).posterior
    return federate({site: data[site] for site in stay}, model, prior, steps=1).posterior


@given(st.permutations(NAMES))
@settings(max_examples=8)
def test_the_order_of_sites_does_not_matter(order):
    model, prior, data = CONJUGATE["Gaussian"]
    run = federate({site: data[site] for site in order}, model, prior, steps=1)
    assert identical(run.posterior, never_saw("Gaussian", NAMES))


def test_the_conjugate_posterior_is_that_of_pooled_data():
    model, prior, data = CONJUGATE["NormalWishart"]
    run = federate(data, model, prior, steps=1)
    pooled = federate({"all": np.concatenate(list(data.values()))}, model, prior, steps=1)
    np.testing.assert_allclose(
        run.posterior.natural_parameters, pooled.posterior.natural_parameters, rtol=1e-12
    )


def test_weights_and_temperature():
    data = {"a": np.ones(4), "b": np.zeros(2)}
    run = federate(data, BetaBernoulli(), Beta(0.0, 0.0), weights={"a": 0.25, "b": 0.0}, steps=1)
    assert run.posterior.standard_parameters() == {"a": 2.0, "b": 1.0}
    cool = LocalUpdate(temperature=0.5)
    run = federate(data, BetaBernoulli(), Beta(0.0, 0.0), update=cool, steps=1)
    assert run.posterior.standard_parameters() == {"a": 9.0, "b": 5.0}


def test_runs_are_values():
    model, prior, data = CONJUGATE["Beta"]
    run = start(data, model, prior, schedule=SCHEDULES["gossip"])
    before = snapshot(run)
    run.advance(5).forget("oak").readmit("oak").sweep(2).restarted()
    assert snapshot(run) == before
    assert run.trace == ()


# --- faults: each has a stated outcome, and nothing is half changed -----------------------------


@pytest.fixture
def broken():
    """Switch faults on; all are off again afterwards."""
    yield BROKEN
    BROKEN.clear()


FAULTS = {
    "raise": (2, "ConnectionError: the ward is closed in the update of site 'b'"),
    "nan": (3, "nan in the update of site 'b'"),
    "infinite": (4, "inf in the update of site 'b'"),
    "shape": (7, "what the model found in the update of site 'b'"),
}
MOODY = {"a": np.array([1, 0]), "c": np.array([0, 0, 1])}
UNIFORM = Beta.from_standard(1.0, 1.0)


@pytest.mark.parametrize(
    ("fault", "schedule"),
    [*((fault, "gossip") for fault in FAULTS), ("raise", "synchronous"), ("raise", "asynchronous")],
)
def test_a_site_that_fails_later(fault, schedule, broken):
    data = MOODY | {"b": np.array([FAULTS[fault][0], 1])}
    order = {**SCHEDULES, "asynchronous": type(SCHEDULES["asynchronous"])()}[schedule]
    order = Gossip(ring(["a", "b", "c"]), start="a") if schedule == "gossip" else order
    run = federate(data, Moody(), UNIFORM, schedule=order, steps=8)
    good, before = run.posterior, snapshot(run)
    broken.add(fault)
    anew(run)
    with pytest.raises(SiteError, match=FAULTS[fault][1]) as caught:
        run.advance(16)
    left = caught.value.run
    assert identical(left.posterior, good)
    assert identical(left.posterior, left.ledger.posterior)
    assert snapshot(run) == before
    broken.clear()
    whole = run.advance(16)
    resumed = left.advance(16 + run.state.step - left.state.step)
    assert snapshot(resumed) == snapshot(whole)
    assert resumed.trace == whole.trace


def anew(run):
    """Let sites find their factors again."""
    for site in run.federation.sites.values():
        vars(site).pop("exact", None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_site_that_fails_is_passed_over(fault, broken):
    broken.add(fault)
    data = MOODY | {"b": np.array([FAULTS[fault][0], 1])}
    run = federate(data, Moody(), UNIFORM, steps=2, on_error="pass")
    assert [v.outcome for v in run.trace] == ["updated", "failed", "updated"] * 2
    assert "in the update of site 'b'" in run.trace[1].error
    assert run.ledger.sites == ("a", "c")
    assert identical(run.posterior, federate(MOODY, Moody(), UNIFORM, steps=1).posterior)
    broken.clear()
    assert run.advance(1).ledger.sites == ("a", "b", "c")


def test_an_update_that_makes_the_posterior_improper_is_shortened(broken):
    broken.add("improper")
    data = MOODY | {"b": np.array([5, 1])}
    run = federate(data, Moody(), UNIFORM, steps=1)
    visit = next(v for v in run.trace if v.site == "b")
    assert (visit.outcome, visit.halvings) == ("updated", 6)
    assert run.posterior.is_proper()
    assert not run.ledger.entries["b"].independent  # so short as the others' factors asked for
    assert run.ledger.entries["a"].independent


@pytest.mark.slow
def test_a_loss_that_is_nan_at_one_site():
    data = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, -1.0])}
    prior = Beta.from_standard(2.0, 2.0)
    with pytest.raises(SiteError, match=r"gradient .* in the update of site 'b'") as caught:
        federate(data, flips, prior, steps=1)
    assert caught.value.run.ledger.sites == ("a",)
    run = federate(data, flips, prior, steps=2, on_error="pass")
    assert [v.outcome for v in run.trace] == ["updated", "failed"] * 2
    alone = federate({"a": data["a"]}, flips, prior, steps=2)
    assert identical(run.posterior, alone.posterior)


def test_an_interrupt_keeps_what_there_was(broken):
    broken.add("interrupt")
    data = {"a": np.array([1, 0]), "b": np.array([8, 1])}
    run = start(data, Moody(), UNIFORM, schedule=Gossip(ring(["a", "b"]), start="a"))
    with pytest.raises(KeyboardInterrupt) as caught:
        run.advance(30)
    assert caught.value.run.ledger.sites == ("a",)


WIDE = np.array([1e-3, 1e-1, 1.0, 1e2, 1e4, 1e6])
"""Standard deviations of one prior, which in one leaf have precisions 10^18 apart."""


@pytest.mark.parametrize("schedule", ["sequential", "gossip"])
def test_priors_narrow_and_wide_match_the_closed_form(schedule):
    rng, noise = np.random.default_rng(0), np.array([1.0, 1e-4, 1e-6, 1.0, 1e6, 1.0])
    data = {site: 1e3 * rng.normal(size=(5, 6)) for site in NAMES}
    prior = Gaussian.from_standard(np.ones(6), np.diag(WIDE**2))
    steps = {"sequential": 1, "gossip": 60}[schedule]
    run = federate(
        data, GaussianMean(np.diag(noise)), prior, schedule=SCHEDULES[schedule], steps=steps
    )
    x = np.concatenate(list(data.values()))
    precision = 1 / WIDE**2 + len(x) / noise
    mean = (1 / WIDE**2 + x.sum(0) / noise) / precision
    found = run.posterior.standard_parameters()
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(np.diag(found["covariance"]), 1 / precision, rtol=1e-12)
    left = run.forget(*NAMES[1:]).forget(NAMES[0])
    assert identical(left.posterior, prior)


def test_sums_beyond_float64_are_refused_before_anything_is_kept():
    data = {site: np.array([[1e154]]) for site in NAMES}
    model, prior = GaussianMean([[1e-154]]), Gaussian.from_standard([0.0], [[1.0]])
    run = start(data, model, prior).advance(0)
    with pytest.raises(SiteError, match="beyond the range of float64 in the update of site 'elm'"):
        federate(data, model, prior, steps=1)
    assert run.ledger.sites == ()


def test_factors_that_cancel_are_kept_whole():
    model, prior = GaussianMean([[1.0]]), Gaussian.from_standard([1.0], [[1.0]])
    data = {f"s{k}": np.array([[1e17 * (-1) ** k + 0.1 * k]]) for k in range(8)}
    run = federate(data, model, prior, steps=1)
    expected = 1 + sum(Fraction(float(x[0, 0])) for x in data.values())
    assert run.posterior.precision_mean[0] == float(expected)
    assert identical(run.posterior, run.ledger.posterior)
    assert identical(run.forget(*data).posterior, run.state.prior)


def test_sites_without_data_take_part():
    data = {"a": np.ones(3), "b": np.ones(0), "c": None, "d": np.zeros(1)}
    run = federate(data, BetaBernoulli(), UNIFORM, schedule=Gossip(ring(list("abcd"))), steps=60)
    assert {v.site: v.outcome for v in run.trace if v.site in "bc"} == dict.fromkeys(
        "bc", "relayed"
    )
    assert run.ledger.sites == ("a", "d")
    assert run.posterior.standard_parameters() == {"a": 4.0, "b": 2.0}
    empty = federate({"a": None}, BetaBernoulli(), UNIFORM, steps=2)
    assert identical(empty.posterior, empty.state.prior)


def test_a_forgotten_site_comes_back_only_by_rejoining():
    model, prior, data = CONJUGATE["Gamma"]
    run = federate(data, model, prior, steps=1)
    gone = run.forget("oak")
    assert gone.advance(1).ledger.forgotten == ("oak",)
    # Whoever merges an old message in still does not count the site.
    assert (gone.ledger | run.ledger) == (run.ledger | gone.ledger) == gone.ledger
    back = gone.readmit("oak").advance(1)
    assert identical(back.posterior, run.posterior)
    assert back.ledger.entries["oak"].epoch == 1
    assert (back.ledger | run.ledger | gone.ledger).factor("oak") is not None


def closed_once(question, closed):
    if question.site in closed:
        closed.remove(question.site)
        raise ConnectionError("the ward is closed")


def closing(run, *sites):
    """The run, at whose sites some fail once, and are open again then."""
    courier = Checked(run.federation, functools.partial(closed_once, closed={*sites}))
    return dataclasses.replace(run, federation=dataclasses.replace(run.federation, courier=courier))


@pytest.mark.parametrize("schedule", ["sequential", "synchronous"])
@pytest.mark.parametrize("kind", ["conjugate", "logistic"])
def test_a_site_that_fails_does_not_discard_what_the_others_did(schedule, kind):
    model, prior, data = CONJUGATE["NormalWishart"]
    if kind == "logistic":
        model, prior, data = LogisticRegression(), NORMAL, logistic_sites()
    run = start(data, model, prior, schedule=SCHEDULES[schedule], key=KEY).advance(1)
    whole, left, visited = run.advance(2), closing(run, "fir", "oak"), []
    for _ in range(2):
        with pytest.raises(SiteError, match="the ward is closed") as caught:
            left.advance(2)
        left = pickle.loads(pickle.dumps(caught.value.run))
        visited.append([visit.site for visit in left.trace[4:]])
    if schedule == "sequential":
        assert visited == [["ash", "elm"], ["ash", "elm", "fir"]]
        assert left.state.entries["fir"].sequence == 1 != left.state.entries["oak"].sequence
    end = left.advance(2)
    assert snapshot(end) == snapshot(whole) and end.trace == whole.trace
    assert end.status == whole.status


def test_a_pass_of_another_schedule_that_breaks_off_keeps_its_visits():
    model, prior, data = LogisticRegression(), NORMAL, logistic_sites()
    run = start(data, model, prior, schedule=Gossip(ring(list(NAMES))), key=KEY).advance(1)
    with pytest.raises(SiteError, match="the ward is closed") as caught:
        closing(run, "fir").sweep()
    left = caught.value.run
    assert [visit.site for visit in left.trace[1:]] == ["ash", "elm"]
    assert left.state.pending is None and left.state.epoch > run.state.epoch
    assert left.sweep(60).status.converged


def test_federations_of_data_in_parts_of_different_shapes_print():
    sites = {"a": (np.ones((3, 2)), np.ones(3))}
    run = start(sites, LogisticRegression(), Gaussian.from_standard(np.zeros(2), np.eye(2)))
    assert "[(3, 2), (3,)]" in repr(run.federation.sites["a"])
