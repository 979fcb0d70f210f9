"""A second start, elsewhere: whether a run that has settled is where others would settle too.

A posterior that no site would change may be a saddle, or one optimum of several: a likelihood that
is symmetric about the prior's mean holds the posterior there, though it is better anywhere else. No
curvature tells of it: where a Gaussian is stationary, that of the free energy in its mean is its
precision, which is positive. So before a run is believed the sites are asked to settle once more,
from a narrow member on the other side of the prior's mean, and in reverse order.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from posterity.entries import Entry
from posterity.errors import PosterityError
from posterity.families import ExponentialFamily
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import start_elsewhere
from posterity.federation.keys import first_key
from posterity.federation.messages import Measure, Part
from posterity.federation.newton import applies, stepped
from posterity.federation.site import canonical
from posterity.federation.state import State
from posterity.federation.visit import commit, distance

SWEEPS = 50
"""Passes after which a second start that has not settled is left alone."""
ALIKE, SETTLED = 2.0, 1e-2
"""Tolerances: that two posteriors may differ by and be one; that the last pass of one that has
settled elsewhere moved it by."""
PLACES = 3
"""Starts that are tried, where sites fail at the first."""


@dataclasses.dataclass(frozen=True)
class Second:
    """Where the sites settle from another start, if not where they were.

    ``apart`` is the KL divergence of it from the run's posterior, in nats, and ``lower`` by how
    many nats its free energy is below the run's; NaN where that is not known.
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


def second_start(federation: Federation, state: State, tolerance: float) -> Second | None:
    """Where a second start leads; None if it is where the state is, or ``tolerance`` nats from it.

    The state is one of those that the sites were asked at: who answers from elsewhere has answers
    to these questions by their epoch and step.

    Raises:
        SiteError: if sites fail from wherever they start.
    """
    for place in range(PLACES):
        try:
            return _settled(federation, _displaced(federation, state, place), state, tolerance)
        except PosterityError:  # as where sums are beyond float64
            if place == PLACES - 1:
                raise
    raise AssertionError("a start is tried")


def _settled(federation: Federation, at: State, state: State, tolerance: float) -> Second | None:
    """The way from one state, until it settles or comes near to another."""
    moved, settled = math.inf, False
    for _ in range(SWEEPS):
        before, last = at.posterior, moved
        at = _swept(federation, at)
        if applies(federation.agreement):
            at = stepped(federation, at) or at
        if distance(state.posterior, at.posterior) <= ALIKE * tolerance:
            return None
        moved = distance(before, at.posterior)
        settled = max(moved, last) <= SETTLED * tolerance
        if settled:
            break
    lower = free_energy(federation, state) - free_energy(federation, at)
    return Second(at, distance(state.posterior, at.posterior), lower, settled)


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


def _swept(federation: Federation, state: State) -> State:
    """The state after a pass over all sites, last name first."""
    for site in reversed(_members(federation, state)):
        report: Any = federation.demand(_question(state, site, "improved"))
        after, _ = commit(federation.agreement, state, site, report.improved)
        state = after or state
    return state


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
