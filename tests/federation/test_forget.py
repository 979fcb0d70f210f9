import inspect
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from federation.examples import (
    BROKEN,
    CONJUGATE,
    NAMES,
    NORMAL,
    Moody,
    flips,
    logistic_sites,
    snapshot,
)
from laws.table import identical

from posterity.artifact import digest
from posterity.errors import ConvergenceError, LedgerError, ParameterError, SiteError, UsageError
from posterity.families import Beta, DiagonalGaussian, Gamma, Gaussian
from posterity.federation import Gossip, certify, federate, forget
from posterity.federation.computed import gradient
from posterity.federation.federate import start
from posterity.federation.site import Site
from posterity.graphs import ring
from posterity.inference import LocalUpdate
from posterity.ledger import Ledger
from posterity.models import FunctionModel, LogisticRegression, Records
from posterity.receipt import verify

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

unchecked: Any = inspect.unwrap(forget)  # as it is without the tests' checks of types
SITES = logistic_sites()
STAY = {site: SITES[site] for site in NAMES if site != "oak"}


@pytest.fixture(scope="module")
def trained():
    return federate(SITES, LogisticRegression(), NORMAL, steps=8)


@pytest.fixture(scope="module")
def retrained():
    return federate(STAY, LogisticRegression(), NORMAL, steps=20).posterior


# --- exactly -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONJUGATE)
@pytest.mark.parametrize("gone", [("fir",), ("ash", "oak"), NAMES])
def test_conjugate_runs_forget_to_the_last_bit(name, gone):
    model, prior, data = CONJUGATE[name]
    run = federate(data, model, prior, steps=1)
    before = snapshot(run)
    done = forget(run, *gone)
    stay = {site: data[site] for site in NAMES if site not in gone}
    never = federate(stay, model, prior, steps=1).posterior if stay else run.state.prior
    assert done.exact
    assert done.distance == 0
    assert identical(done.ledger.posterior, never)
    assert identical(done.run.posterior, never)
    assert done.receipt.refinement is None
    assert verify(done.receipt, run.ledger, done.ledger).passed
    assert snapshot(run) == before


def test_of_a_site_that_was_never_visited_there_is_nothing_to_forget():
    model, prior, data = CONJUGATE["Beta"]
    run = start(data, model, prior, schedule=Gossip(ring(list(NAMES)), start="ash")).advance(1)
    for target in (run, run.ledger):
        with pytest.raises(LedgerError, match="'fir'"):
            forget(target, "ash", "fir")
    barred = run.forget("fir").advance(30)
    assert identical(barred.posterior, forget(run.advance(30), "fir").run.posterior)


def test_a_conjugate_factor_that_had_to_be_shortened_is_not_forgotten_exactly():
    BROKEN.add("improper")
    data = {"a": np.array([1, 0]), "b": np.array([5, 0, 1])}
    try:
        run = federate(data, Moody(), Beta.from_standard(1.0, 1.0), steps=1)
        assert not run.exact
        with pytest.raises(ParameterError, match="restart=True"):
            forget(run, "a")
        done = forget(run, "a", sweeps=2, restart=True, allow_unconverged=True)
        assert not done.exact
        assert forget(run, "b").exact  # what stays was found alone
    finally:
        BROKEN.clear()
    assert verify(done.receipt, run.ledger, done.ledger).passed


# --- ledgers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("independent", [True, False])
def test_a_ledger_says_whether_it_forgets_exactly(independent):
    ledger = Ledger(Gamma.from_standard(1.0, 1.0))
    for site, factor in {"a": Gamma(3.0, 2.0), "b": Gamma(5.0, 4.0)}.items():
        ledger = ledger.update(site, factor, independent=independent or site == "a")
    done = forget(ledger, "a")
    assert done.exact is independent
    assert done.distance == (0.0 if independent else None)
    assert done.run is None
    assert done.ledger == ledger.forget("a")
    assert forget(ledger, "b").exact
    assert forget(ledger, "a", "b").exact
    for other in (done, forget(ledger, "b", "b")):
        assert verify(other.receipt, ledger, other.ledger).passed


def test_a_ledger_of_which_nothing_proper_is_left():
    ledger = Ledger(Beta(0.0, 0.0)).update("a", Beta(5.0, 1.0)).update("b", Beta(-3.0, 1.0))
    before = digest(ledger)
    with pytest.raises(
        ParameterError, match=r"improper posterior without 'a'.*run of the sites that stay"
    ):
        forget(ledger, "a")
    assert digest(ledger) == before


# --- not exactly -------------------------------------------------------------------------------


@pytest.mark.parametrize("sweeps", [0, 1, 2])
def test_the_distance_is_honest(trained, retrained, sweeps):
    done = forget(trained, "oak", sweeps=sweeps, allow_unconverged=True)
    true = float(done.ledger.posterior.kl(retrained))
    assert not done.exact
    assert true / 1.2 < done.distance < true * 1.2
    assert done.distance <= done.bound
    if sweeps == 0:  # those who stay had no turn since
        assert not done.status.converged
    assert done.posterior == done.ledger.posterior and done.trace == done.run.trace
    assert verify(done.receipt, trained.ledger, done.ledger).passed
    refinement = done.receipt.refinement
    assert refinement.updates == dict.fromkeys(STAY, sweeps)
    assert refinement.estimated_distance_nats == done.distance


def test_the_default_refines_until_that_converges(trained, retrained):
    before = snapshot(trained)
    with pytest.raises(ConvergenceError, match=r"after 'oak' left.*allow_unconverged=True"):
        forget(trained, "oak", sweeps=0)
    assert snapshot(trained) == before
    done = forget(trained, "oak")
    assert done.run.status.converged
    assert float(done.ledger.posterior.kl(retrained)) < 2 * done.distance < trained.tolerance
    assert len(set(done.receipt.refinement.updates.values())) == 1
    again = forget(done.run, "ash")
    apart = federate({s: SITES[s] for s in ("elm", "fir")}, LogisticRegression(), NORMAL, steps=20)
    assert float(again.ledger.posterior.kl(apart.posterior)) < again.bound
    assert again.receipt.sites == ("ash",)


@pytest.mark.parametrize(
    ("sites", "options", "words"),
    [
        ((), {}, "one site|at least one"),
        ((["oak", "ash"],), {}, "each an argument of its own"),
        ((3,), {}, "names of sites"),
        *((("oak",), {"sweeps": bad}, "sweeps=.*at least 0") for bad in (-1, 1.5, "2", np.nan)),
    ],
)
def test_arguments_that_make_no_sense(trained, sites, options, words):
    for target in (trained, trained.ledger):
        with pytest.raises(UsageError, match=words):
            unchecked(target, *sites, **options)


def test_what_cannot_forget(trained):
    with pytest.raises(UsageError, match="a run or a ledger"):
        unchecked(trained.posterior, "oak")
    with pytest.raises(UsageError, match="only in runs"):
        forget(trained.ledger, "oak", sweeps=1)
    with pytest.raises(LedgerError, match="'oak'"):
        forget(forget(trained, "oak").run, "oak")


def test_several_sites_leave_at_once(trained):
    done = forget(trained, "oak", "ash", sweeps=4)
    stay = {site: SITES[site] for site in ("elm", "fir")}
    target = federate(stay, LogisticRegression(), NORMAL, steps=20).posterior
    assert float(done.ledger.posterior.kl(target)) < 1e-6
    assert done.ledger.forgotten == ("ash", "oak")
    assert forget(trained, *NAMES).exact
    assert identical(forget(trained, *NAMES).ledger.posterior, trained.state.prior)
    none = forget(trained, *NAMES, restart=True)
    assert none.exact
    assert verify(none.receipt, trained.ledger, none.ledger).passed


def improper_without_ash():
    factor = lambda precision: Gaussian(np.zeros(2), precision * np.eye(2))
    run = start(SITES, LogisticRegression(), NORMAL)
    ledger = Ledger(run.state.prior).update("ash", factor(5.0)).update("elm", factor(-3.0))
    return run.with_ledger(ledger)


def test_a_remainder_that_is_no_distribution_has_a_way_out():
    run = improper_without_ash()
    before = snapshot(run)
    with pytest.raises(ParameterError, match=r"improper posterior without 'ash'.*restart=True"):
        forget(run, "ash")
    with pytest.raises(ParameterError, match="improper posterior without 'oak', 'ash'"):
        run.forget("oak", "ash")
    assert snapshot(run) == before
    done = forget(run, "ash", restart=True)
    assert done.ledger.posterior.is_proper()
    assert verify(done.receipt, run.ledger, done.ledger).passed


# --- certificates ------------------------------------------------------------------------------


def test_a_fixed_point_is_certified(trained):
    certificate = certify(trained.sweep(6))
    assert set(certificate.residuals) == set(NAMES)
    assert certificate.distance < 1e-12
    assert max(certificate.residuals.values()) < 1e-5
    assert certify(start(SITES, LogisticRegression(), NORMAL)).distance > 1


def test_noise_makes_a_certificate_larger_and_not_the_distance(trained, retrained):
    noisy = LocalUpdate("reparameterization", steps=1)
    run = start(SITES, LogisticRegression(), NORMAL, update=noisy)
    run = run.with_ledger(trained.sweep(6).ledger)
    few, many = certify(run, samples=4), certify(run, samples=64)
    assert few.upper > many.upper > 0
    assert certify(run).upper == many.upper
    done = forget(run, "oak", sweeps=1, allow_unconverged=True)
    assert done.distance == pytest.approx(float(done.posterior.kl(retrained)), rel=0.1)


def test_memory_of_a_certificate_does_not_grow_with_its_draws():
    d, records = 20_000, Records.of(np.zeros((3, 2)))
    model = FunctionModel(lambda z, x: -((z.sum() - x.sum(1)) ** 2))
    q = DiagonalGaussian(np.zeros(d), np.ones(d))
    update = LocalUpdate().resolve(model, q)
    assert update.noisy
    with jax.enable_x64(True):
        jitted = eqx.filter_jit(gradient)
        arguments = update.traced, model, q, records, q.zero(), 64, jax.random.key(0)
        compiled = jitted.lower(*arguments).compile()
    kept = compiled.compiled.memory_analysis().temp_size_in_bytes
    assert kept < 64 * q.natural_parameters.nbytes / 2


@pytest.mark.slow
def test_a_site_that_fails_while_others_refine():
    prior = Beta.from_standard(2.0, 2.0)
    run = federate({"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}, flips, prior, steps=2)
    data = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, -1.0])}
    for on_error in ("raise", "pass"):
        sick = start(data, flips, prior, on_error=on_error).with_ledger(run.ledger)
        before = snapshot(sick)
        if on_error == "raise":
            with pytest.raises(SiteError, match="site 'b'"):
                forget(sick, "a")
        else:
            with pytest.raises(ConvergenceError, match="no update of 'b'"):
                forget(sick, "a")
            done = forget(sick, "a", sweeps=1, allow_unconverged=True)
            assert done.distance is None
            assert done.receipt.refinement.residuals == {"b": None}
            assert done.receipt.refinement.updates == {"b": 0}
            assert verify(done.receipt, run.ledger, done.ledger).passed
            assert done.run.trace[-1].outcome == "failed"
        assert snapshot(sick) == before


def test_a_refinement_that_is_interrupted_is_of_the_runs_own_schedule(monkeypatch):
    run = federate(SITES, LogisticRegression(), NORMAL, steps=12, schedule=Gossip(ring(NAMES)))
    improve, asked = Site.improve, []

    def second_fails(self, *given, **named):
        asked.append(self.name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return improve(self, *given, **named)

    monkeypatch.setattr(Site, "improve", second_fails)
    with pytest.raises(KeyboardInterrupt) as info:
        forget(run, "oak")
    left: Any = info.value.run  # pyright: ignore[reportAttributeAccessIssue]
    assert left.schedule == run.schedule and left.trace[-1].site == asked[0]
    assert left.advance(1).state.step == left.state.step + 1
