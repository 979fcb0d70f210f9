"""Optima that rounds of line searches lead to: from where a run is, and from elsewhere.

How far an unfinished run is from its optimum is known once that is found, whatever the rate, noise
or schedule of the run itself. And a posterior that no site would change may be a saddle, or one
optimum of several: a likelihood that is symmetric about the prior's mean holds the posterior there,
though it is better anywhere else. No curvature tells of it: where a Gaussian is stationary, that of
the free energy in its mean is its precision, which is positive. So before a run is believed the
sites start once more, from a narrow member on the other side of the prior's mean.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from posterity.entries import Entry
from posterity.errors import PosterityError, SiteError
from posterity.families import ExponentialFamily
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import start_elsewhere
from posterity.federation.keys import first_key
from posterity.federation.messages import Measure, Part
from posterity.federation.newton import applies, stepped
from posterity.federation.site import canonical
from posterity.federation.state import State
from posterity.federation.visit import commit, distance

PASSES = 50
"""Passes over all sites after which an optimum that was not reached is given up."""
ALIKE, SETTLED = 2.0, 1e-2
"""Tolerances: that two posteriors may differ by and be one; that the last pass of a second start
moved it by, once it has ended elsewhere."""
PLACES = 3
"""Starts that are tried, where sites fail at the first."""
SHORT = 1e-2
"""Nats that later passes may still change, as a share of the distance from the run."""
ROUNDING = 1e-12
"""Nats of a site's last change that rounding alone may make: no rate is to be had from less."""


@dataclasses.dataclass(frozen=True)
class Second:
    """Where the sites end from another start, if not where they were.

    ``apart`` is the KL divergence of it from the run's posterior, in nats, and ``lower`` by how
    many nats its free energy is below the run's; NaN where that is not known. ``settled`` is
    whether further passes would hardly change it.
    """

    state: State
    apart: float
    lower: float
    settled: bool

    @property
    def posterior(self) -> ExponentialFamily:
        """The posterior there."""
        return self.state.posterior

    def is_better(self, tolerance: float) -> bool:
        """Whether to go on from there: it is better by more than the tolerance."""
        return self.lower > tolerance


def optimum_from(federation: Federation, state: State, enough: float) -> State | None:
    """The optimum that passes lead to from a state; None if that takes too many.

    It is found once all that further passes would change is little beside the distance from where
    they began, or ``enough`` nats, and so is what the gradients say where line searches ended: one
    that can get no further, as where a likelihood jumps, is at no optimum.

    Raises:
        SiteError: if a site fails, or cannot make a line search.
    """
    last, before = state, 0.0
    for at, stopped in passes(federation, state):
        length = math.sqrt(2 * distance(last.posterior, at.posterior))
        left = to_come(length, before, len(_members(federation, state)))
        near = max(SHORT * distance(state.posterior, at.posterior), enough)
        if max(left**2 / 2, stopped) <= near:
            return at
        last, before = at, length
    return None


def to_come(now: float, before: float, sites: int) -> float:
    """The sum of a geometric series of lengths, of which the last two terms are known."""
    if now <= math.sqrt(2 * ROUNDING) * sites:
        return now
    rate = now / before if before > 0 else math.inf
    return now * rate / (1 - rate) if rate < 1 else math.inf


def second_start(federation: Federation, state: State, tolerance: float) -> Second | None:
    """Where a second start leads; None if it is where the state is, or ``tolerance`` nats from it.

    The state is one of those that the sites were asked at: who answers from elsewhere has answers
    to these questions by their epoch and step.

    Raises:
        SiteError: if sites fail from wherever they start.
    """
    for place in range(PLACES):
        try:
            return _second(federation, _displaced(federation, state, place), state, tolerance)
        except PosterityError:  # as where sums are beyond float64
            if place == PLACES - 1:
                raise
    raise AssertionError("a start is tried")


def _second(federation: Federation, start: State, state: State, tolerance: float) -> Second | None:
    """The way from one state, until it settles or comes near to another."""
    at, moved, settled = start, math.inf, False
    for after, _ in passes(federation, start):
        if distance(state.posterior, after.posterior) <= ALIKE * tolerance:
            return None
        last, moved = moved, distance(at.posterior, after.posterior)
        at, settled = after, max(moved, last) <= SETTLED * tolerance
        if settled:
            break
    lower = free_energy(federation, state) - free_energy(federation, at)
    return Second(at, distance(state.posterior, at.posterior), lower, settled)


def passes(federation: Federation, state: State) -> Iterator[tuple[State, float]]:
    """The states after each of some passes over all sites, last name first, by line searches.

    And with each, in nats, half the squared lengths of the gradients at which the searches ended.

    Raises:
        SiteError: if a site fails, or cannot make a line search.
    """
    for _ in range(PASSES):
        stopped = 0.0
        for site in reversed(_members(federation, state)):
            report: Any = federation.demand(_question(state, site, "improved"))
            if report.improved is None:
                raise SiteError(
                    found=f"no factor of site {site!r} by a line search",
                    expected="a free energy that can be computed",
                    fix="Let the run go on by its own steps.",
                )
            after, _ = commit(federation.agreement, state, site, report.improved)
            state, stopped = after or state, stopped + (report.residual or 0.0) ** 2 / 2
        if applies(federation.agreement):
            state = stepped(federation, state) or state
        yield state, stopped


def free_energy(federation: Federation, state: State) -> float:
    """``KL(q ‖ prior) - Σ_k E_q[log likelihood_k]/α``, in nats; NaN where a site cannot tell.

    Factors of sites that take no part, which stay as they are, count as part of the prior.
    """
    q, members = state.posterior, _members(federation, state)
    asked = [_question(state, site, "value") for site in members]
    federation.prepare(asked)
    energy = float(q.kl(state.prior))
    for question in asked:
        report: Any = federation.demand(question)
        energy -= math.nan if report.value is None else report.value
    for site in set(state.entries) - set(members):
        energy -= float(np.sum(state.factor(site).natural_parameters * q.mean_parameters))
    return energy


def _displaced(federation: Federation, state: State, place: int) -> State:
    """A state with a posterior elsewhere, of which every site holds an equal share."""
    members = _members(federation, state)
    start = start_elsewhere(federation.agreement, state.posterior, place)
    others: Any = [state.factor(site) for site in set(state.entries) - set(members)]
    share: Any = start - sum(others, start=state.prior)
    share = canonical(share / len(members))
    entries = dict(state.entries)
    for site in members:
        before = entries.get(site, Entry(0, 0, share))
        entries[site] = Entry(before.epoch, before.sequence + 1, share, False)
    return state.with_entries(entries)


def _members(federation: Federation, state: State) -> list[str]:
    """The sites that contribute, sorted."""
    agreed = federation.agreement
    return [s for s in agreed.sites if s not in agreed.silent and not state.is_forgotten(s)]


def _question(state: State, site: str, part: Part) -> Measure:
    place: Any = {"epoch": state.epoch, "step": state.step}
    return Measure(site, state.posterior, state.factor(site), (part,), 1, first_key(), **place)
