"""Who updates when: over a server, one by one, all at once, or whenever one is done."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.federation.state import Problem, State, Visit, site_key, visit
from posterity.ledger import Entry

Step = tuple[State, tuple[Visit, ...]]


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """An order of visits, as pure ``init`` and ``step``."""

    unit: ClassVar[str] = "rounds"
    """What one step is called."""
    saveable: ClassVar[bool] = True
    """Whether its own state is JSON data, as a checkpoint needs."""

    def init(self, sites: tuple[str, ...], *, key: jax.Array) -> Any:
        """The schedule's own state before the first step."""
        del sites, key

    @abc.abstractmethod
    def step(self, problem: Problem, state: State, *, key: jax.Array) -> Step:
        """One step; ``state.step`` counts those before it."""

    def replace(self, own: Any, changed: Mapping[str, Entry]) -> Any:
        """The schedule's own state once entries of sites were changed from outside."""
        del changed
        return own


@dataclasses.dataclass(frozen=True)
class Sequential(Schedule):
    """Each site in turn, seeing what all before it did; one step is one pass over all sites.

    Source: bui2018, sequential PVI.
    """

    def step(self, problem: Problem, state: State, *, key: jax.Array) -> Step:
        """One pass, in the order of the sites' names."""
        visits = []
        for site in problem.sites:
            state, happened = visit(problem, state, site, key=key)
            visits.append(happened)
        return state, tuple(visits)


@dataclasses.dataclass(frozen=True)
class Synchronous(Schedule):
    """All sites at once from the same posterior; one step is one round.

    Each change is taken to the share ``damping``; where their sum would make the posterior
    improper, all shares are halved until it is proper. Undamped rounds may oscillate where sites
    share what they know (bui2018, section 3); a damping of one over the number of sites is the
    cautious end. Factors of conjugate models are never damped: they are exact.

    Source: bui2018, synchronous PVI.
    """

    damping: float = 0.5

    def __post_init__(self) -> None:
        _check_share(self.damping)

    def step(self, problem: Problem, state: State, *, key: jax.Array) -> Step:
        """One round."""
        start, together, visits = state, state, []
        for site in problem.sites:
            # On its own each site's change must be good: a bad site is found by name.
            alone, happened = visit(problem, start, site, key=key)
            visits.append(happened)
            if happened.outcome == "updated":
                together = _joined(together, alone, site)
        changed = [v.site for v in visits if v.outcome == "updated"]
        share = 1.0 if problem.update.conjugate else self.damping
        return _damped(problem, start, together, changed, share), tuple(visits)


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
        _check_share(self.damping)
        for site, speed in self.speeds.items():
            if not (math.isfinite(speed) and speed > 0):
                raise UsageError(
                    found=f"speed {speed} of site {site!r}",
                    expected="positive numbers",
                    fix="Leave a site out that never answers.",
                )

    def init(self, sites: tuple[str, ...], *, key: jax.Array) -> Any:
        """When each site reports, how often it has, and what it works on; None is the prior."""
        unknown = sorted(set(self.speeds) - set(sites))
        if unknown:
            raise UsageError(
                found=f"speeds of {unknown}", expected=f"sites of {list(sites)}", fix="Check names."
            )
        done = {site: self._duration(site, 0, key) for site in sites}
        zeros, nothing = dict.fromkeys(sites, 0), dict.fromkeys(sites)
        return {"done": done, "reports": zeros, "fetched": nothing}

    def step(self, problem: Problem, state: State, *, key: jax.Array) -> Step:
        """The next report."""
        own = state.schedule
        site = min(own["done"], key=lambda name: (own["done"][name], name))
        view = self._view(state, site)
        state, happened = visit(problem, state, site, key=key, view=view, damping=self.damping)
        reports = {**own["reports"], site: own["reports"][site] + 1}
        wait = self._duration(site, reports[site], key)
        schedule = {
            "done": {**own["done"], site: own["done"][site] + wait},
            "reports": reports,
            "fetched": {**own["fetched"], site: state.posterior.natural_parameters.tolist()},
        }
        return dataclasses.replace(state, schedule=schedule), (happened,)

    def replace(self, own: Any, changed: Mapping[str, Entry]) -> Any:
        """All fetch anew: what they hold was seen in the company of the site that left."""
        del changed
        return {**own, "fetched": {}}

    def _view(self, state: State, site: str) -> ExponentialFamily:
        """What the site fetched, its own factor as it is now among it."""
        fetched = state.schedule["fetched"]
        if site not in fetched:
            return state.posterior
        if fetched[site] is None:
            return state.prior
        return state.prior.with_natural_parameters(np.asarray(fetched[site]))

    def _duration(self, site: str, report: int, key: jax.Array) -> float:
        own_key = jax.random.fold_in(site_key(key, site), report)
        return float(jax.random.exponential(own_key)) / self.speeds.get(site, 1.0)


def _joined(together: State, alone: State, site: str) -> State:
    """With the entry and the count that the site has in ``alone``."""
    return dataclasses.replace(
        together,
        entries={**together.entries, site: alone.entries[site]},
        counts={**together.counts, site: alone.counts[site]},
    )


def _damped(
    problem: Problem, start: State, together: State, changed: list[str], damping: float
) -> State:
    """``start`` with every change taken to the same share, the largest that the model admits.

    Raises:
        ParameterError: if sums leave the grid.
    """
    share = damping
    # Ends: a share small enough rounds every change to zero.
    while True:
        entries = dict(start.entries)
        for site in changed:
            old, entry = start.factor(site), together.entries[site]
            assert entry.factor is not None, "forgotten sites do not update"
            factor = old + problem.grid.round((entry.factor - old) * share)
            alone = entry.independent and share == 1
            entries[site] = entry._replace(factor=factor, independent=alone)
        state = start.with_entries(entries)
        problem.grid.check(state.load, "the posterior after a round")
        if problem.admits(state.posterior):
            return dataclasses.replace(state, counts=together.counts)
        share /= 2


def _check_share(damping: float) -> None:
    if not 0 < damping <= 1:
        raise UsageError(
            found=f"damping={damping}",
            expected="a share of each change, in (0, 1]",
            fix="Use 1.0 for undamped updates.",
        )
