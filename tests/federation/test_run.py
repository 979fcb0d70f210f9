import numpy as np
import pytest
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

from posterity import load, save
from posterity.errors import (
    LedgerError,
    SiteError,
    StructureError,
    UsageError,
)
from posterity.families import Beta, Gaussian
from posterity.federation import Gossip, federate
from posterity.federation.federate import start
from posterity.graphs import ring
from posterity.inference import LocalUpdate
from posterity.models import (
    BetaBernoulli,
    GaussianMean,
    LogisticRegression,
)

# --- whatever happens to a conjugate federation ------------------------------------------------

sites = st.sampled_from(NAMES)
events = st.one_of(
    st.tuples(st.just("advance"), st.integers(0, 4)),
    st.tuples(st.sampled_from(["forget", "rejoin", "leave", "deliver"]), sites),
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
                return run.rejoin(what)
            case "restart":
                return run.restarted()
            case "deliver":
                return run.deliver(run.token, what)
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


@pytest.mark.parametrize("name", CONJUGATE)
def test_gossip_forgets_to_the_last_bit(name, tmp_path):
    model, prior, data = CONJUGATE[name]
    run = federate(data, model, prior, schedule=SCHEDULES["gossip"], steps=20)
    assert set(run.ledger.sites) == set(NAMES)
    run = run.forget("elm").advance(20)
    assert identical(run.posterior, never_saw(name, ["ash", "fir", "oak"]))
    save(run.ledger, tmp_path / "ledger")
    assert load(tmp_path / "ledger") == run.ledger
    assert identical(load(tmp_path / "ledger").posterior, run.posterior)


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
        run.posterior.natural_parameters, pooled.posterior.natural_parameters, rtol=1e-6
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
    run.advance(5).forget("oak").rejoin("oak").sweep(2).restarted()
    assert snapshot(run) == before
    assert run.history == ()


def test_callbacks_see_every_step():
    model, prior, data = CONJUGATE["Beta"]
    steps = []
    run = federate(data, model, prior, steps=3, callback=lambda run: steps.append(run.state.step))
    run.sweep(2, callback=lambda run: steps.append(run.state.step))
    assert steps == [1, 2, 3, 4, 5]


# --- faults: each has a stated outcome, and nothing is half changed -----------------------------


@pytest.fixture
def broken():
    """Switch faults on; all are off again afterwards."""
    yield BROKEN
    BROKEN.clear()


FAULTS = {
    "raise": (2, "ConnectionError: the ward is closed in the update of site 'b'"),
    "nan": (3, "nan .* in the update of site 'b'"),
    "huge": (4, "sizes add up to .* in the update of site 'b'; .* larger `reach`"),
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
    assert resumed.history == whole.history


@pytest.mark.parametrize("fault", FAULTS)
def test_a_site_that_fails_is_passed_over(fault, broken):
    broken.add(fault)
    data = MOODY | {"b": np.array([FAULTS[fault][0], 1])}
    run = federate(data, Moody(), UNIFORM, steps=2, on_error="pass")
    assert [v.outcome for v in run.history] == ["updated", "failed", "updated"] * 2
    assert "in the update of site 'b'" in run.history[1].error
    assert run.ledger.sites == ("a", "c")
    assert identical(run.posterior, federate(MOODY, Moody(), UNIFORM, steps=1).posterior)
    broken.clear()
    assert run.advance(1).ledger.sites == ("a", "b", "c")


def test_an_update_that_makes_the_posterior_improper_is_shortened(broken):
    broken.add("improper")
    data = MOODY | {"b": np.array([5, 1])}
    run = federate(data, Moody(), UNIFORM, steps=1)
    visit = next(v for v in run.history if v.site == "b")
    assert (visit.outcome, visit.halvings) == ("updated", 6)
    assert run.posterior.is_proper()
    assert not run.ledger.entries["b"].independent  # so short as the others' factors asked for
    assert run.ledger.entries["a"].independent


def test_an_update_that_no_share_makes_proper_is_refused(broken):
    broken.add("hopeless")
    data = MOODY | {"b": np.array([6, 1])}
    run = federate(data, Moody(), UNIFORM, steps=2)
    assert [v.outcome for v in run.history] == ["updated", "refused", "updated"] * 2
    assert run.ledger.sites == ("a", "c")


def test_a_loss_that_is_nan_at_one_site():
    data = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, -1.0])}
    prior = Beta.from_standard(2.0, 2.0)
    with pytest.raises(SiteError, match=r"gradient .* in the update of site 'b'") as caught:
        federate(data, flips, prior, steps=1)
    assert caught.value.run.ledger.sites == ()
    run = federate(data, flips, prior, steps=2, on_error="pass")
    assert [v.outcome for v in run.history] == ["updated", "failed"] * 2
    alone = federate({"a": data["a"]}, flips, prior, steps=2)
    assert identical(run.posterior, alone.posterior)


def test_a_function_that_raises_or_returns_a_sum():
    def closed(z, x):
        raise ConnectionError("closed")

    data = {"a": np.array([1.0, 0.0])}
    with pytest.raises(SiteError, match="ConnectionError: closed in the update of site 'a'"):
        federate(data, closed, Beta(1.0, 1.0), steps=1)
    with pytest.raises(StructureError, match=r"shape \(\).*at site 'a'.*one number a record"):
        federate(data, lambda z, x: flips(z, x).sum(), Beta(1.0, 1.0), steps=1)


def test_an_interrupt_keeps_what_there_was(broken):
    broken.add("interrupt")
    data = {"a": np.array([1, 0]), "b": np.array([8, 1])}
    run = start(data, Moody(), UNIFORM, schedule=Gossip(ring(["a", "b"]), start="a"))
    with pytest.raises(KeyboardInterrupt) as caught:
        run.advance(30)
    assert caught.value.run.ledger.sites == ("a",)


def test_data_that_the_grid_does_not_reach():
    run = start({"a": np.ones(100)}, BetaBernoulli(), Beta(0.5, 0.5), reach=64.0)
    before = snapshot(run)
    with pytest.raises(SiteError, match=r"at most 32, .* larger `reach`"):
        run.advance(1)
    assert snapshot(run) == before
    federate({"a": np.ones(100)}, BetaBernoulli(), Beta(0.5, 0.5), reach=256.0, steps=1)


def test_factors_that_cancel_are_refused_before_they_are_rounded():
    # Sums stay small while sizes do not: partial sums in another order would leave the grid.
    model, prior = GaussianMean([[1.0]]), Gaussian.from_standard([1.0], [[1.0]])
    data = {f"s{k}": np.array([[10.0 * (-1) ** k]]) for k in range(8)}
    with pytest.raises(SiteError, match="sizes add up to"):
        federate(data, model, prior, reach=64.0, steps=1)
    run = federate(data, model, prior, reach=128.0, steps=1)
    assert identical(run.posterior, run.ledger.posterior)


def test_sites_without_data_take_part():
    data = {"a": np.ones(3), "b": np.ones(0), "c": None, "d": np.zeros(1)}
    run = federate(data, BetaBernoulli(), UNIFORM, schedule=Gossip(ring(list("abcd"))), steps=60)
    assert {v.site: v.outcome for v in run.history if v.site in "bc"} == dict.fromkeys(
        "bc", "relayed"
    )
    assert run.ledger.sites == ("a", "d")
    assert run.posterior.standard_parameters() == {"a": 4.0, "b": 2.0}
    empty = federate({"a": None}, BetaBernoulli(), UNIFORM, steps=2)
    assert identical(empty.posterior, empty.state.prior)


def test_the_last_site_leaves_the_prior():
    model, prior, data = CONJUGATE["Dirichlet"]
    run = federate(data, model, prior, steps=1).forget(*NAMES)
    assert identical(run.posterior, run.state.prior)
    assert run.sites == ()
    assert {v.outcome for v in run.advance(1).history[-4:]} == {"relayed"}


def test_a_forgotten_site_comes_back_only_by_rejoining():
    model, prior, data = CONJUGATE["Gamma"]
    run = federate(data, model, prior, steps=1)
    gone = run.forget("oak")
    assert gone.advance(1).ledger.forgotten == ("oak",)
    # Whoever merges an old message in still does not count the site.
    assert (gone.ledger | run.ledger) == (run.ledger | gone.ledger) == gone.ledger
    back = gone.rejoin("oak").advance(1)
    assert identical(back.posterior, run.posterior)
    assert back.ledger.entries["oak"].epoch == 1
    assert (back.ledger | run.ledger | gone.ledger).factor("oak") is not None


def test_logistic_runs_agree_with_their_ledger():
    run = federate(logistic_sites(), LogisticRegression(), NORMAL, steps=3)
    assert identical(run.posterior, run.ledger.posterior)
    assert not run.ledger.independent
    assert not run.exact
    updates = [v for v in run.history if v.outcome == "updated"]
    assert len(updates) == 12
    assert updates[-1].residual < updates[0].residual
