"""What a federation refuses, and that nothing is changed by asking."""

from functools import cache, partial

import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from federation.examples import CONJUGATE, NAMES, NORMAL, logistic_sites, snapshot

from posterity.artifact import digest
from posterity.distillation import Langevin
from posterity.errors import (
    ArtifactError,
    LedgerError,
    ParameterError,
    StructureError,
    UsageError,
)
from posterity.families import Beta, Dirichlet, Gaussian
from posterity.federation import Asynchronous, Gossip, LedgerGossip, Synchronous, federate, forget
from posterity.federation.site import failure_of
from posterity.graphs import ring
from posterity.ledger import Ledger
from posterity.models import (
    BetaBernoulli,
    DirichletCategorical,
    FunctionModel,
    LinearRegression,
    LogisticRegression,
)
from posterity.pursuit import Joint

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

MODEL, PRIOR, DATA = CONJUGATE["Beta"]
RING = ring(list(NAMES))


def refuse(act, error, says):
    with pytest.raises(error, match=says):
        act()


# --- before the first step ---------------------------------------------------------------------

UNIFORM = Beta.from_standard(1.0, 1.0)
PLANE = Gaussian.from_standard(np.zeros(2), np.eye(2))
SEVERAL = Gaussian.from_standard(np.zeros((3, 2)), np.tile(np.eye(2), (3, 1, 1)))
SQUARE = {"a": (np.eye(2), np.ones(2))}
TABLE = {"a": (np.ones((5, 3)), np.ones(5))}
USUAL = {"sites": {"a": np.ones(2)}, "model": BetaBernoulli(), "prior": UNIFORM, "steps": 1}
MISFIT = (StructureError, "at site 'a'.*matching dimensions")
STARTS = {
    "no sites": ({"sites": {}}, UsageError, "at least one"),
    "steps": ({"steps": -1}, UsageError, "steps=-1"),
    "weight of nobody": ({"weights": {"z": 1.0}}, UsageError, "'z'"),
    "negative weight": ({"weights": {"a": -1.0}}, UsageError, "not negative"),
    "a text as weight": ({"weights": {"a": "1"}}, UsageError, "finite weights"),
    "infinite weight": ({"weights": {"a": np.inf}}, UsageError, "finite weights"),
    "improper prior": ({"prior": Beta(-2.0, 1.0)}, ParameterError, "improper Beta in the prior"),
    "no prior": ({"prior": 3}, StructureError, "a int in the prior"),
    "batch": ({"prior": Beta(np.ones(2), np.ones(2))}, UsageError, "batch shape"),
    "family": ({"prior": NORMAL}, UsageError, "Gaussian"),
    "NaN": ({"sites": {"a": np.array([1.0, np.nan])}}, ParameterError, "data of site 'a'"),
    "values": ({"sites": {"a": np.array([1.0, 0.5])}}, ParameterError, "data of site 'a'"),
    "shape": ({"sites": {"a": np.ones((2, 2))}}, StructureError, "data of site 'a'"),
    "graph": ({"schedule": Gossip(ring(["b"]))}, StructureError, "a site without a node"),
    "start": ({"schedule": Gossip(ring(["a"]), start="yew")}, UsageError, "'yew'"),
    "speeds": ({"schedule": Asynchronous(speeds={"yew": 1.0})}, UsageError, "'yew'"),
    "logistic": ({"model": LogisticRegression(), "prior": PLANE, "sites": TABLE}, *MISFIT),
    "linear": ({"model": LinearRegression(), "prior": PLANE, "sites": TABLE}, *MISFIT),
    "function": (
        {"model": lambda z, x: x @ z, "prior": PLANE, "sites": {"a": np.ones((5, 3))}}, *MISFIT
    ),
    "categories": (
        {"model": DirichletCategorical(4), "prior": Dirichlet.from_standard(np.ones(3))}, *MISFIT
    ),
    "own of several": (
        {"model": LogisticRegression(), "prior": SEVERAL, "sites": SQUARE, "own": [0]},
        StructureError, "expected one Gaussian, and its coefficients",
    ),
}  # fmt: skip


@pytest.mark.parametrize("changes, error, says", STARTS.values(), ids=list(STARTS))
def test_what_cannot_start(changes, error, says):
    refuse(partial(federate, **(USUAL | changes)), error, says)


SETTINGS = {
    "share of 0": (lambda: Synchronous(damping=0.0), UsageError, "damping=0.0"),
    "share above 1": (lambda: Synchronous(damping=1.5), UsageError, "damping=1.5"),
    "share of NaN": (lambda: Asynchronous(damping=float("nan")), UsageError, "damping=nan"),
    "speed of 0": (lambda: Asynchronous(speeds={"a": 0.0}), UsageError, "speed of site 'a'=0.0"),
    "infinite speed": (lambda: Asynchronous(speeds={"a": np.inf}), UsageError, "'a'=inf"),
    "no tokens": (lambda: LedgerGossip(ring(3), tokens=0), UsageError, "tokens=0"),
    "parts": (lambda: Gossip(nx.Graph(["ab", "cd"])), StructureError, "parts without a link"),
}  # fmt: skip


@pytest.mark.parametrize("make, error, says", SETTINGS.values(), ids=list(SETTINGS))
def test_settings_that_make_no_sense(make, error, says):
    refuse(make, error, says)


# --- of a run and of a ledger ------------------------------------------------------------------


@cache
def conjugate():
    """A run whose sites all contribute, ``oak`` having left."""
    return federate(DATA, MODEL, PRIOR, steps=1).forget("oak")


@cache
def logistic():
    return federate(logistic_sites(), LogisticRegression(), NORMAL, steps=1).forget("oak")


@cache
def ledger():
    return conjugate().ledger


STRANGER = (LedgerError, "'yew'")
GONE = (LedgerError, "'oak', which is forgotten already")
REFINED = (UsageError, "refinement")
RUNS = {
    "forget a stranger": (conjugate, lambda run: run.forget("ash", "yew"), *STRANGER),
    "forget twice": (conjugate, lambda run: run.forget("oak"), *GONE),
    "forget one twice": (conjugate, lambda run: run.forget("ash", "ash"), LedgerError, "'ash'"),
    "readmit a stranger": (conjugate, lambda run: run.readmit("yew"), *STRANGER),
    "readmit who is there": (conjugate, lambda run: run.readmit("ash"), LedgerError, "not forg"),
    "sweeps": (conjugate, lambda run: run.sweep(-1), UsageError, "sweeps=-1"),
    "token": (conjugate, lambda run: run.token, UsageError, "Gossip, which alone"),
    "in turn": (conjugate, lambda run: run.forget("ash", when="visit"), UsageError, "Gossip"),
    "refine": (conjugate, lambda run: forget(run, "ash", sweeps=1), *REFINED),
    "restart": (conjugate, lambda run: forget(run, "ash", restart=True), *REFINED),
    "fewer sweeps": (logistic, lambda run: forget(run, "ash", sweeps=-1), UsageError, "sweeps=-1"),
    "nobody": (logistic, forget, UsageError, "at least one"),
    "a stranger": (logistic, lambda run: forget(run, "ash", "yew"), *STRANGER),
    "again": (logistic, lambda run: forget(run, "oak"), *GONE),
    "ledger of a stranger": (
        conjugate, lambda run: run.with_ledger(run.ledger.update("yew", PRIOR)), *STRANGER
    ),
    "ledger of a prior": (
        conjugate, lambda run: run.with_ledger(Ledger(UNIFORM)), LedgerError, "federation's prior"
    ),
}  # fmt: skip


@pytest.mark.parametrize("make, act, error, says", RUNS.values(), ids=list(RUNS))
def test_what_a_run_refuses(make, act, error, says):
    run = make()
    before = snapshot(run)
    refuse(lambda: act(run), error, says)
    assert snapshot(run) == before


LEDGERS = {
    "refine": (lambda ledger: forget(ledger, "ash", sweeps=1), UsageError, "for a ledger"),
    "a stranger": (lambda ledger: forget(ledger, "ash", "yew"), *STRANGER),
    "again": (lambda ledger: forget(ledger, "oak"), LedgerError, "it was forgotten"),
    "nobody": (forget, UsageError, "at least one"),
    "come back": (lambda old: federate(DATA, MODEL, old), LedgerError, "'oak'.*has forgotten"),
}


@pytest.mark.parametrize("act, error, says", LEDGERS.values(), ids=list(LEDGERS))
def test_what_a_ledger_refuses(act, error, says):
    before = digest(ledger())
    refuse(lambda: act(ledger()), error, says)
    assert digest(ledger()) == before


# --- of a file ---------------------------------------------------------------------------------

FILES = {
    "steps": ({"steps": -1}, UsageError, "steps=-1"),
    "no folder": ({"checkpoint": "no/run"}, ArtifactError, "cannot be written"),
}  # fmt: skip


@pytest.mark.parametrize("changes, error, says", FILES.values(), ids=list(FILES))
def test_checkpoints_that_cannot_be_made(changes, error, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = {"steps": 1, "checkpoint": "run"}
    refuse(partial(federate, DATA, MODEL, PRIOR, **(usual | changes)), error, says)
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_uses_neighbouring_records_is_refused():
    def lagged(z, x):
        before = jnp.concatenate([jnp.zeros(1), x[:-1]])
        return -((x - z[0] * before) ** 2) / 2

    x, prior = np.array([1.0, 2.0, 0.5, -1.0]), Gaussian.from_standard([0.0], [[1.0]])
    with pytest.raises(StructureError, match="depends on no other record"):
        federate({"a": x}, lagged, prior)
    with pytest.raises(StructureError, match="on no other"):  # by the last of many records alone
        late = lambda z, x: -((x - jnp.where(x > 5, x.min(), 0) - z[0]) ** 2)
        federate({"a": np.r_[np.zeros(50), 9.0]}, late, prior)
    with pytest.raises(StructureError, match="on no random numbers"):
        federate({"a": x}, lambda z, x: -((x - np.random.normal() - z[0]) ** 2), prior)
    with pytest.raises(StructureError, match="of dtype int"):
        federate({"a": x}, lambda z, x: -jnp.round(abs(x - z[0])).astype(int), prior)
    with pytest.raises(StructureError, match="index 1 is out of bounds"):
        federate({"a": x}, lambda z, x: -((x - z[0]) ** 2) / 2 - z[1] ** 2, prior)


def test_an_error_of_linear_algebra_names_the_site():
    """As where its records are in other units by eight digits, and sites differ."""
    told = str(failure_of(np.linalg.LinAlgError("Singular matrix"), "b"))
    assert "numbers too far apart" in told and "site 'b'" in told and "units" in told


def test_minibatches_of_a_function_that_uses_neighbouring_records_are_refused():
    x, prior = np.arange(9.0) % 4, Gaussian.from_standard([0.0], [[1.0]])
    lagged = FunctionModel(lambda z, x: -((x - z[0] * jnp.roll(x, 1)) ** 2) / 2)
    assert np.isfinite(Joint(lagged, prior, x).log_density(np.zeros(1)))
    with pytest.raises(StructureError, match="depends on no other record"):
        Langevin(lagged, prior, x, batch_size=4)
