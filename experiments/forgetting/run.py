"""Reported over true distance: `python -m experiments.forgetting.run`.

Federations that one site leaves: ordinary ones, and ones made to be hard to forget. A run goes on
where an earlier one ended (`results/leavers.jsonl`), and writes `results/expected.json`.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from scipy.special import expit

from experiments import harness
from experiments.robustness.problems import Problem, poisson, student, wide
from experiments.robustness.reference import gap_of
from posterity import federate, forget
from posterity.errors import ParameterError
from posterity.families import DiagonalGaussian, Gaussian
from posterity.federation import (
    Asynchronous,
    Gossip,
    Run,
    Schedule,
    Sequential,
    Synchronous,
    certify,
)
from posterity.graphs import complete, ring
from posterity.inference import LocalUpdate
from posterity.inference.cubature import Cubature
from posterity.models import LogisticRegression

Array = np.ndarray
PLACE = harness.Place.of(__file__)
LEAVER = "leaver"
FEW, SOME, MANY = 4, 30, 250  # records of a site: three sizes, so that little is compiled
COLUMNS = 3
ROUNDS = 5  # of every third federation, which the leaver then leaves half trained


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    sites: Mapping[str, tuple[Array, Array]]
    prior: Any
    schedule: Schedule
    rounds: int | None  # in training; None for as many as it takes
    model: Any = dataclasses.field(default_factory=LogisticRegression)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further arguments of ``federate``."""

    @property
    def rest(self) -> dict[str, tuple[Array, Array]]:
        return {site: data for site, data in self.sites.items() if site != LEAVER}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What makes a logistic regression hard to forget."""

    leaver: int = SOME
    rest: tuple[int, ...] = (SOME, SOME, SOME)
    opinion: float = 1.0  # the leaver's slopes, as a multiple of the others'
    separable: bool = False  # whether those who stay are without noise
    alike: float = 0.0  # correlation of columns
    mean: float = 0.0
    scale: float = 1.0
    variance: float = 4.0


SETTINGS = {
    "ordinary": Setting(leaver=MANY, rest=(FEW, SOME, MANY)),
    "nearly all the data": Setting(leaver=MANY, rest=(FEW, FEW, FEW)),
    "contradicts the others": Setting(leaver=MANY, opinion=-3.0),
    "without it separable": Setting(leaver=MANY, opinion=0.0, separable=True, variance=100.0),
    "leaves a tiny rest": Setting(rest=(FEW,)),
    "columns alike": Setting(alike=0.99, opinion=-1.0),
    "raw columns": Setting(mean=130.0, scale=15.0),
    "vague prior": Setting(leaver=MANY, variance=1e4),
    "one of many": Setting(leaver=MANY, rest=(SOME,) * 11, opinion=-1.0),
    "all of it at once": Setting(
        leaver=MANY, rest=(FEW, FEW, SOME), opinion=-3.0, separable=True, alike=0.9, variance=1e3
    ),
}


def logistic(kind: str, seed: int) -> Case:
    """Logistic regression with an intercept; full and diagonal posteriors in turn."""
    setting, rng = SETTINGS[kind], np.random.default_rng([len(kind), seed])
    truth = rng.normal(size=COLUMNS) * np.array([0.5, 1.5, 1.5])
    sizes = {LEAVER: setting.leaver, **{f"site {k}": n for k, n in enumerate(setting.rest)}}
    sites = {name: _hospital(rng, setting, truth, name, n) for name, n in sizes.items()}
    prior = wide(np.full(COLUMNS, setting.variance), diagonal=seed % 2)
    return Case(kind, sites, prior, *_training(sites, seed))


def _hospital(rng: Any, setting: Setting, truth: Array, name: str, records: int) -> Any:
    own, shared = rng.normal(size=(records, COLUMNS - 1)), rng.normal(size=(records, 1))
    z = np.sqrt(1 - setting.alike) * own + np.sqrt(setting.alike) * shared
    opinion = setting.opinion if name == LEAVER else 1.0
    odds = np.hstack([np.ones((records, 1)), z]) @ truth * opinion
    certain = setting.separable and name != LEAVER
    y = odds > 0 if certain else rng.random(records) < expit(odds)
    return np.hstack([np.ones((records, 1)), setting.mean + setting.scale * z]), y.astype(float)


def _training(sites: Mapping[str, Any], seed: int) -> tuple[Schedule, int | None]:
    names = list(sites)
    graph = ring if len(names) > 2 else complete
    schedules = [Sequential(), Synchronous(), Asynchronous(), Gossip(complete(names))]
    schedule = [*schedules, Gossip(graph(names))][seed % 5]
    return schedule, None if seed % 3 else ROUNDS


def of_a_user(kind: str, seed: int) -> Case:
    """Counts, or errors with heavy tails, by functions as users write them."""
    rng = np.random.default_rng([len(kind), seed])
    sites = {}
    for name in (LEAVER, "site 0", "site 1"):
        x = np.column_stack([np.ones(SOME), rng.normal(size=SOME)])
        mean = x @ np.array([0.5, -2.0 if name == LEAVER else 0.8])
        y = rng.poisson(np.exp(np.clip(mean, -4, 4)))
        if kind == "Student":
            y = mean + rng.standard_t(3, size=SOME)
        sites[name] = x, y.astype(float)
    size = 2 + (kind == "Student")
    prior = Gaussian.from_standard(np.zeros(size), 10.0 * np.eye(size))
    model = student if kind == "Student" else poisson
    return Case(kind, sites, prior, *_training(sites, seed), model=model)


def hierarchical(kind: str, seed: int) -> Case:
    """Partial pooling of intercepts: a leaver unlike all others."""
    rng, sites = np.random.default_rng([len(kind), seed]), {}
    for name in (LEAVER, *(f"site {k}" for k in range(5))):
        chance = expit(4.0 if name == LEAVER else rng.normal() - 0.5)
        sites[name] = np.ones((SOME, 1)), rng.binomial(1, chance, SOME).astype(float)
    prior = Gaussian.from_standard([0.0], [[4.0]])
    options = {"personal": True, "update": LocalUpdate(Cubature(16))}
    return Case(kind, sites, prior, *_training(sites, seed), options=options)


def noisy(kind: str, seed: int) -> Case:
    """Logistic regression by draws, whose distance is an upper estimate of the next round."""
    case = logistic("contradicts the others", 2 * seed)
    options = {"update": LocalUpdate("reparameterization")}
    return dataclasses.replace(case, kind=kind, schedule=Sequential(), rounds=30, options=options)


NOISY = "by draws"
CASES: dict[str, tuple[Callable[[str, int], Case], int]] = {
    **{kind: (logistic, 10) for kind in SETTINGS},
    "Poisson": (of_a_user, 6),
    "Student": (of_a_user, 6),
    NOISY: (noisy, 4),
    "partial pooling": (hierarchical, 1),
}
"""What makes a case, and how many seeds of it are tried: 0, 1, 2, ..."""

SWEEPS = (0, 1, 2, 5, None)  # passes of refinement; None for as many as it takes, the default
ENOUGH = 1e-11  # nats that may be left to change in what was trained anew
SMALL = 1e-8  # nats: less of a distance is rounding of those who are compared
QUANTILES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "largest": 1.0}


def measured(case: Case) -> dict[str, Any]:
    """True and reported distances of one leaver, by number of sweeps.

    Those who stay are federated anew from nothing, and without noise where the others had it.
    """
    steps = case.rounds and case.rounds * case.schedule.round(len(case.sites))
    options = {"schedule": case.schedule, "steps": steps, **case.options}
    anew: Any = {} if case.kind == NOISY else case.options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is warned of is in the statuses
        never = federate(case.rest, case.model, case.prior, tolerance=ENOUGH, **anew)
        trained = federate(case.sites, case.model, case.prior, **options)
    gap = None
    if case.kind in SETTINGS:  # by an optimiser that shares nothing with posterity
        family = "diagonal" if isinstance(case.prior, DiagonalGaussian) else "full"
        problem = Problem(f"logistic, {family}", case.model, case.rest, case.prior, {})
        gap = gap_of(problem)(never.posterior)
    told = {
        "anew": {"status": never.status.state, "nats left": never.status.left},
        "nats above the least of BFGS": gap,
        "before": float(trained.posterior.kl(never.posterior)),
    }
    return told | {"sweeps": [_forgotten(trained, never, sweeps) for sweeps in SWEEPS]}


def _forgotten(trained: Run, never: Run, sweeps: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"sweeps": sweeps, "allow_unconverged": True}
    try:
        done, restart = forget(trained, LEAVER, **options), False
    except ParameterError:  # the subtraction left no distribution
        done, restart = forget(trained, LEAVER, **options, restart=True), True
    assert done.run is not None
    return {
        "sweeps": sweeps,
        "restart": restart,
        "true": float(done.ledger.posterior.kl(never.posterior)),
        "reported": done.distance,
        "bound": done.bound,
        "certificate": certify(done.run).distance,
        "converged": done.run.status.converged,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Quantiles of reported over true, by number of sweeps; what noise blurs apart."""
    exact = [row for row in rows if row["kind"] != NOISY]
    at = lambda sweeps: [r for row in exact for r in row["sweeps"] if r["sweeps"] == sweeps]
    most = lambda numbers: max((n for n in numbers if n is not None), default=None)
    named = {"default" if s is None else f"{s} sweeps": at(s) for s in SWEEPS}
    noisy = [r for row in rows if row["kind"] == NOISY for r in row["sweeps"]]
    above = "nats above the least of BFGS"
    return {
        "seeds": "0, 1, 2, ... of each kind",
        "leavers": len(exact),
        "trained anew, nats left, at most": most(r["anew"]["nats left"] for r in exact),
        f"trained anew, {above}, at most": most(row[above] for row in exact),
        "reported over true": {name: ratios(own, "reported") for name, own in named.items()},
        "bound over true": {name: ratios(own, "bound") for name, own in named.items()},
        "certificate over true": {name: ratios(own, "certificate") for name, own in named.items()},
        "nats left by default, at most": most(r["true"] for r in at(None)),
        "by draws, reported over true": ratios(noisy, "reported"),
    }


def ratios(rows: Iterable[dict[str, Any]], what: str) -> dict[str, Any]:
    """Of ``what`` to true; where the truth is rounding, only how large ``what`` is."""
    rows = list(rows)
    known = [row for row in rows if row[what] is not None]
    large = [row for row in known if row["true"] > SMALL]
    small = [row[what] for row in known if row["true"] <= SMALL]
    found = np.array([row[what] / row["true"] for row in large])
    spread = {n: harness.rounded(np.quantile(found, q), 3) for n, q in QUANTILES.items() if large}
    return {
        **spread,
        "distances": len(large),
        "unknown": len(rows) - len(known),
        f"true below {SMALL:g}": {"distances": len(small), "at most": max(small, default=None)},
    }


def run(
    place: harness.Place = PLACE, *, most: int | None = None, kinds: tuple[str, ...] = tuple(CASES)
) -> dict[str, Any]:
    """All cases, or ``most`` of each kind; those that are in the file already are not run again."""
    counts = {kind: CASES[kind][1] if most is None else min(CASES[kind][1], most) for kind in kinds}
    keys = [(kind, seed) for kind, count in counts.items() for seed in range(count)]
    measure = lambda kind, seed: measured(CASES[kind][0](kind, seed))
    found = summary(harness.rows(place.results / "leavers.jsonl", ("kind", "seed"), keys, measure))
    place.write("expected", found)
    return found


if __name__ == "__main__":
    harness.command(run, kinds=CASES)
