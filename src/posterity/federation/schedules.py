"""Who updates when: over a server, one by one, all at once, or whenever one is done."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax

from posterity.arguments import POSITIVE, SHARE
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.federation.keys import fold_in, site_key
from posterity.federation.state import Map, State
from posterity.federation.visit import Federation, Visit, part_way, visit
from posterity.inference.step import HALVINGS

Step = tuple[State, tuple[Visit, ...]]


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """An order of visits, as pure ``init`` and ``step``."""

    unit: ClassVar[str] = "rounds"
    """What one step is called."""

    def init(self, state: State, sites: tuple[str, ...], *, key: jax.Array) -> State:
        """The state with what the schedule itself needs before the first step."""
        del sites, key
        return state

    @abc.abstractmethod
    def step(self, federation: Federation, state: State, *, key: jax.Array) -> Step:
        """One step; ``state.step`` counts those before it."""

    def round(self, sites: int) -> int:
        """Steps after which every site has had a turn, or may be expected to."""
        del sites
        return 1

    @property
    def rule(self) -> str:
        """Who has a turn when, in words."""
        return f"{type(self).__name__}, {self.unit}"

    def learn(self, state: State, changed: Map) -> State:
        """The state once entries of sites were changed other than by the schedule."""
        del changed
        return state


@dataclasses.dataclass(frozen=True)
class Sequential(Schedule):
    """Each site in turn, seeing what all before it did; one step is one pass over all sites.

    Source: bui2018, sequential PVI.
    """

    def step(self, federation: Federation, state: State, *, key: jax.Array) -> Step:
        """One pass, in the order of the sites' names."""
        visits = []
        for site in federation.sites:
            state, happened = visit(federation, state, site, key=key)
            visits.append(happened)
        return state, tuple(visits)


@dataclasses.dataclass(frozen=True)
class Synchronous(Schedule):
    """All sites at once from the same posterior; one step is one round.

    Each change is taken to the share ``damping``; where their sum would make the posterior
    improper, all shares are halved until it is proper, or after 40 times all are refused. Undamped
    rounds may oscillate where sites share what they know (bui2018, section 3); a damping of one
    over the number of sites is the cautious end. Factors of conjugate models are never damped:
    they are exact.

    Source: bui2018, synchronous PVI.
    """

    damping: float = 0.5

    def __post_init__(self) -> None:
        SHARE.check(damping=self.damping)

    def step(self, federation: Federation, state: State, *, key: jax.Array) -> Step:
        """One round."""
        # On its own each site's change must be good: a bad site is found by name.
        alone = {site: visit(federation, state, site, key=key) for site in federation.sites}
        changed = {site: after for site, (after, v) in alone.items() if v.outcome == "updated"}
        visits = tuple(happened for _, happened in alone.values())
        together = _together(federation, state, changed, self.damping)
        return (state, tuple(map(_refused, visits))) if together is None else (together, visits)


@dataclasses.dataclass(frozen=True)
class Asynchronous(Schedule):
    """Sites work on the posterior they last fetched and report when done; a step is one report.

    All begin at the prior, and fetch the current posterior when they report. Working times are
    exponential with mean ``1 / speed`` (``speeds`` by site; 1 by default), on a simulated clock.
    A change that would make the current posterior improper is halved until it does not. Factors
    of conjugate models are never damped: they are exact.

    Source: bui2018, asynchronous PVI.
    """

    damping: float = 1.0
    speeds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    unit: ClassVar[str] = "reports"

    def __post_init__(self) -> None:
        SHARE.check(damping=self.damping)
        POSITIVE.check(**{f"speed of site {site!r}": v for site, v in self.speeds.items()})

    def init(self, state: State, sites: tuple[str, ...], *, key: jax.Array) -> State:
        """When each site reports, how often it has, and what it works on; None is the prior."""
        unknown = sorted(set(self.speeds) - set(sites))
        if unknown:
            raise UsageError(
                found=f"speeds of {unknown}", expected=f"sites of {list(sites)}", fix="Check names."
            )
        done = {site: self._duration(site, 0, key) for site in sites}
        zeros, nothing = dict.fromkeys(sites, 0), dict.fromkeys(sites)
        own = {"done": done, "reports": zeros, "fetched": nothing}
        return dataclasses.replace(state, schedule=own)

    def step(self, federation: Federation, state: State, *, key: jax.Array) -> Step:
        """The next report."""
        own = state.schedule
        site = min(own["done"], key=lambda name: (own["done"][name], name))
        view = self._view(state, site)
        state, happened = visit(federation, state, site, key=key, view=view, damping=self.damping)
        reports = {**own["reports"], site: own["reports"][site] + 1}
        wait = self._duration(site, reports[site], key)
        schedule = {
            "done": {**own["done"], site: own["done"][site] + wait},
            "reports": reports,
            "fetched": {**own["fetched"], site: state.posterior},
        }
        return dataclasses.replace(state, schedule=schedule), (happened,)

    def round(self, sites: int) -> int:
        """A report of each site, if they are equally fast."""
        return sites

    def learn(self, state: State, changed: Map) -> State:
        """All fetch anew: what they hold was seen in the company of the site that left."""
        del changed
        return dataclasses.replace(state, schedule={**state.schedule, "fetched": {}})

    def _view(self, state: State, site: str) -> ExponentialFamily:
        """What the site fetched, its own factor as it is now among it."""
        fetched = state.schedule["fetched"]
        return fetched.get(site, state.posterior) or state.prior

    def _duration(self, site: str, report: int, key: jax.Array) -> float:
        own_key = fold_in(site_key(key, site), report)
        return float(jax.random.exponential(own_key)) / self.speeds.get(site, 1.0)


def _together(
    federation: Federation, start: State, changed: Mapping[str, State], damping: float
) -> State | None:
    """``start`` with the change of each site, all to one share, the largest that is admitted.

    None if no share is: where posteriors that the model admits are no convex set.

    Raises:
        ParameterError: if a sum is beyond the range of float64.
    """
    largest = 1.0 if federation.update.conjugate else damping
    counts = {**start.counts, **{site: after.counts[site] for site, after in changed.items()}}
    for halvings in range(HALVINGS):
        share, entries = largest / 2**halvings, dict(start.entries)
        for site, after in changed.items():
            entry = after.entries[site]
            factor = part_way(start.factor(site), after.factor(site), share)
            alone = entry.independent and share == 1
            entries[site] = entry._replace(factor=factor, independent=alone)
        state = start.with_entries(entries)
        if federation.admits(state.posterior):
            return dataclasses.replace(state, counts=counts)
    return None


def _refused(happened: Visit) -> Visit:
    updated = happened.outcome == "updated"
    return dataclasses.replace(happened, outcome="refused") if updated else happened
