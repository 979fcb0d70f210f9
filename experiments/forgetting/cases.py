"""Federations that one site leaves: ordinary ones, and ones made to be hard to forget."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import expit

from experiments.robustness.problems import poisson, student
from posterity.families import DiagonalGaussian, Gaussian
from posterity.federation import Asynchronous, Gossip, Schedule, Sequential, Synchronous
from posterity.graphs import complete, ring
from posterity.inference import LocalUpdate
from posterity.inference.cubature import Cubature
from posterity.models import LogisticRegression

Array = np.ndarray
LEAVER = "leaver"
FEW, SOME, MANY = 4, 30, 250  # records of a site: three sizes, so that little is compiled
COLUMNS = 3
ROUNDS = 5  # of every third federation, which the leaver then leaves half trained


@dataclasses.dataclass(frozen=True)
class Case:
    """A federation with a site that will leave."""

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
    family = DiagonalGaussian if seed % 2 else Gaussian
    spread = np.full(COLUMNS, setting.variance)
    prior = family.from_standard(np.zeros(COLUMNS), spread if seed % 2 else np.diag(spread))
    return Case(kind, sites, prior, *_training(sites, seed))


def _hospital(
    rng: np.random.Generator, setting: Setting, truth: Array, name: str, records: int
) -> tuple[Array, Array]:
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
    function = {"Poisson": poisson, "Student": student}[kind]
    return Case(kind, sites, prior, *_training(sites, seed), model=function)


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
