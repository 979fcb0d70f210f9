"""Optima of the free energy: joint Newton steps, passes of line searches, and second starts.

A diagonal Gaussian, or a Product of Gaussians, holds each part in place while another one moves.
Where columns are collinear, means must move together by far more than any moves alone. How the
slopes of all sites change with all means, a matrix, shows that and ends it.

A posterior that no site would change may be a saddle, or one optimum of several: a likelihood that
is symmetric about the prior's mean holds the posterior there. No curvature tells of it: where a
Gaussian is stationary, that of the free energy in its mean is its precision, which is positive. So
before a run is believed the sites start once more, on the other side of the prior's mean.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from posterity.arrays.search import FLATTER, step_by_curvature
from posterity.arrays.tree import structure
from posterity.entries import Entry
from posterity.errors import PosterityError, SiteError
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import start_elsewhere
from posterity.federation.messages import Part, Report
from posterity.federation.site import canonical
from posterity.federation.state import State, commit, contributing, distance, measures
from posterity.inference.joint import (
    is_joint,
    joint_mean,
    moved_to,
    pieces,
    precision_matrix,
    slope_in_mean,
)

MOST = 1024
"""The most parameters of which sites report a whole matrix, of 8 MiB then."""
STEPS = 8
"""Newton steps, at most, between two rounds of the sites."""
HALVINGS = 12
"""How often a step may be halved before it is given up."""
ENOUGH = 1e-7
"""Nats below which no step is worth asking the sites for."""
PASSES = 50
"""Passes over all sites after which an optimum that was not reached is given up."""
ALIKE, SETTLED = 2.0, 1e-2
"""Tolerances: that two posteriors may differ by and be one; that the last pass of a second start
moved it by, once it has ended elsewhere."""
ELSEWHERE = 1.0
"""Nats by which another optimum is better at most, whatever the tolerance, in a run that is not to
be left for it."""
PLACES = 3
"""Starts that are tried, where sites fail at the first."""
SHORT = 1e-2
"""Nats that later passes may still change, as a share of the distance from the run."""
ROUNDING = 1e-12
"""Nats of a site's last change that rounding alone may make: no rate is to be had from less."""


@dataclasses.dataclass(frozen=True)
class Newton:
    """The step by which Newton's method would move the posterior, from all sites' free energy."""

    step: np.ndarray
    """By how much the means would move."""
    there: Any
    """The posterior that it leads to; None if that is no distribution."""
    change: float
    """KL divergence, in nats, to where the posterior would be then; infinite if not known."""
    energy: float
    """Free energy, in nats, up to a constant."""


def applies(agreed: Agreement) -> bool:
    """Return whether the posterior holds means apart, and sites can say how their slopes hang
    together. Where there are several optima by nature, as of a network, the nearest one is not
    worth minutes.
    """
    q, update = agreed.prior, agreed.update
    several = agreed.model.known_optima == "several"
    if update.trains or update.pools or update.conjugate or several:
        return False
    few = is_joint(q) and q.event_size <= MOST
    return few and agreed.line_search is not None


def newton(federation: Federation, state: State) -> Newton:
    """The joint Newton step from the current posterior; a SiteError if a site fails."""
    reports = _reports(federation, state, begun=False)
    return newton_of(state.prior, state.posterior, reports)


def newton_of(prior: ExponentialFamily, q: ExponentialFamily, reports: Sequence[Report]) -> Newton:
    """The joint Newton step of which these reports, each with its curvature, tell. Pure."""
    answers: Any = reports
    if not all(_is_whole(answer, q) for answer in answers):
        return Newton(np.full(q.event_size, np.nan), None, math.inf, math.inf)
    slope, curvature = slope_in_mean(q, prior), precision_matrix(prior)
    there: Any = prior
    for answer in answers:
        slope, curvature = slope + answer.slope, curvature + answer.curvature
        there = there + answer.fixed_point
    step, _ = step_by_curvature(slope, curvature)
    values = [math.nan if answer.value is None else answer.value for answer in answers]
    energy = float(q.kl(prior)) - math.fsum(values)
    if not (np.isfinite(step).all() and there.is_proper()):
        return Newton(step, None, math.inf, energy)
    # In the mean by Newton's step; in the precision by what the sites would now say.
    there = moved_to(there, joint_mean(q) + step)
    return Newton(step, there, distance(q, there), energy)


def stepped(federation: Federation, state: State) -> State | None:
    """The state after Newton steps, each so far that the sites' free energy falls. Means move
    together, and each site's covariances to what its curvatures would have them. None if no step
    helps. A SiteError if a site fails.
    """
    begun, reports = state, _reports(federation, state)
    proposed = newton_of(state.prior, state.posterior, reports)
    for _ in range(STEPS):
        if proposed.change <= ENOUGH or not np.isfinite(proposed.step).all():
            break
        found = _searched(federation, state, reports, proposed)
        if found is None:
            break
        state, reports, proposed = found
    return None if state is begun else state


def _searched(
    federation: Federation, state: State, reports: Sequence[Report], proposed: Newton
) -> tuple[State, Sequence[Report], Newton] | None:
    """Shorten a step until it lowers the free energy; None if no share of it does. Where rounding
    hides whether the energy falls, a step is taken that shortens the next one.
    """
    share = 1.0
    for _ in range(HALVINGS):
        moved = _moved(state, reports, proposed, share)
        share /= 2
        if moved is None:
            continue
        answers = _reports(federation, moved)
        following = newton_of(state.prior, moved.posterior, answers)
        falls = following.energy < proposed.energy
        level = following.energy <= proposed.energy + 1e-13 * (1 + abs(proposed.energy))
        if falls or (level and following.change < FLATTER * proposed.change):
            return moved, answers, following
    return None


def _moved(state: State, reports: Sequence[Report], newton: Newton, share: float) -> State | None:
    """The state after a share of a step; None if that is no distribution. Each factor has the slope
    that its curvature foretells. What these do not add up to, where a step is not all of Newton's,
    all take an equal part of: the means are where the step leads.
    """
    prior: Any = state.prior
    q: Any = state.posterior
    answers: Any = reports
    step = share * newton.step
    mean = joint_mean(q) + step
    factors: list[Any] = [state.factor(answer.site) for answer in answers]
    if newton.there is not None:
        ends = [answer.fixed_point for answer in answers]
        factors = [own * (1 - share) + end * share for own, end in zip(factors, ends, strict=True)]
    there: Any = sum(factors, start=prior)
    if not there.is_proper():
        return None
    there = moved_to(there, mean)
    slopes = [answer.slope - answer.curvature @ step for answer in answers]
    left: Any = (sum(slopes) + slope_in_mean(there, prior)) / len(answers)
    entries = dict(state.entries)
    for answer, factor, slope in zip(answers, factors, slopes, strict=True):
        entry = entries[answer.site]
        new = _at_mean(there, slope - left, factor)
        entries[answer.site] = Entry(entry.epoch, entry.sequence + 1, new, False)
    return state.with_entries(entries)


def _at_mean(q: Any, slope: np.ndarray, factor: Any) -> Any:
    """The factor of these precisions that has this slope at the means of ``q``."""
    own = zip(q.parts(), pieces(q, slope), factor.parts(), strict=True)
    return factor.rebuild([part.at_mean(along, its.precision) for part, along, its in own])


def _reports(federation: Federation, state: State, *, begun: bool = True) -> list[Report]:
    """Curvatures of the sites that contribute; only of those that have a factor if ``begun``. A
    step does not begin for a site that has not had its turn, but what is left depends on it.
    """
    sites = contributing(federation.agreement, state)
    if begun:
        sites = [s for s in sites if np.any(state.factor(s).natural_parameters)]
    return _asked(federation, state, sites, "curvature")


def _asked(federation: Federation, state: State, sites: Sequence[str], part: Part) -> Any:
    federation.prepare(asked := measures(state, sites, (part,)))
    return [federation.demand(question) for question in asked]


def _is_whole(report: Report, q: ExponentialFamily) -> bool:
    """Whether it tells all that a Newton step needs, in finite numbers of the right shapes."""
    fixed: Any = report.fixed_point
    if structure(fixed) != structure(q):
        return False
    size = q.event_size
    parts: Any = fixed.natural_parameters, report.slope, report.curvature
    shapes = np.shape(q.natural_parameters), (size,), (size, size)
    alike = all(np.shape(part) == shape for part, shape in zip(parts, shapes, strict=True))
    # None has the shape of a number.
    return alike and all(np.isfinite(part).all() for part in parts)


@dataclasses.dataclass(frozen=True)
class Second:
    """The posterior where the sites end from another start, if not where they were.

    ``apart`` is the KL divergence of it from the run's posterior, in nats, and ``lower`` by how
    many nats its free energy is below the run's; NaN where that is not known. ``settled`` is
    whether further passes would hardly change it.
    """

    state: State
    apart: float
    lower: float
    settled: bool

    def is_better(self, tolerance: float) -> bool:
        """True if the run goes on from there: it is better by more than the tolerance, or a nat."""
        return self.lower > min(tolerance, ELSEWHERE)


def optimum_from(federation: Federation, state: State, tolerance: float) -> State | None:
    """The optimum that passes lead to from a state; None if that takes too many.

    It is found once all that further passes would change is little beside the distance from where
    they began, or a tenth of the tolerance, in nats. What gradients say where line searches ended
    is to be little too, or within the tolerance: a search that can get no further, as where a
    likelihood jumps, is at no optimum. A SiteError if a site fails, or cannot make a line search.
    """
    last, before = state, 0.0
    for at, stopped in passes(federation, state):
        length = math.sqrt(2 * distance(last.posterior, at.posterior))
        left = to_come(length, before, len(contributing(federation.agreement, state)))
        near = SHORT * distance(state.posterior, at.posterior)
        if left**2 / 2 <= max(near, tolerance / 10) and stopped <= max(near, tolerance):
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
    """Return where a second start leads; None if it is where the state is, or ``tolerance`` nats
    from it. The state is one of those that the sites were asked at: who answers from elsewhere has
    answers to these questions by their epoch and step. A SiteError if sites fail from wherever they
    start.
    """
    tolerance = min(tolerance, ELSEWHERE)
    for place in range(PLACES):
        try:
            return _second(federation, _displaced(federation, state, place), state, tolerance)
        except PosterityError:  # as where sums are beyond float64
            if place == PLACES - 1:
                raise
    raise AssertionError("a start is tried")


def _second(federation: Federation, start: State, state: State, tolerance: float) -> Second | None:
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
    """The states after each of some passes over all sites, last name first, by line searches. And
    with each, in nats, half the squared lengths of the gradients at which the searches ended. A
    SiteError if a site fails, or cannot make a line search.
    """
    for _ in range(PASSES):
        stopped = 0.0
        for site in reversed(contributing(federation.agreement, state)):
            (report,) = _asked(federation, state, [site], "improved")
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
    q, members = state.posterior, contributing(federation.agreement, state)
    energy = float(q.kl(state.prior))
    for report in _asked(federation, state, members, "value"):
        energy -= math.nan if report.value is None else report.value
    for site in set(state.entries) - set(members):
        energy -= float(np.sum(state.factor(site).natural_parameters * q.mean_parameters))
    return energy


def _displaced(federation: Federation, state: State, place: int) -> State:
    """A state with a posterior elsewhere, of which every site holds an equal share."""
    members = contributing(federation.agreement, state)
    start = start_elsewhere(federation.agreement, state.posterior, place)
    others: Any = [state.factor(site) for site in set(state.entries) - set(members)]
    share: Any = start - sum(others, start=state.prior)
    share = canonical(share / len(members))
    entries = dict(state.entries)
    for site in members:
        before = entries.get(site, Entry(0, 0, share))
        entries[site] = Entry(before.epoch, before.sequence + 1, share, False)
    return state.with_entries(entries)
