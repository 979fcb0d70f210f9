"""Optima of the free energy: joint Newton steps, passes of line searches, and second starts.

With a diagonal Gaussian, or a Product of Gaussians, a site moves each part with the others fixed.
If columns are collinear, means must move jointly by far more than any can move separately. The
matrix of derivatives of all sites' slopes in all means gives that joint step.

A fixed point of all sites may be a saddle point, or one of several optima: if the likelihood is
symmetric about the prior's mean, the posterior can remain there. The curvature in the mean does not
show this, because at a stationary Gaussian it is the precision, which is positive. So a run counts
as converged only after the sites have also started elsewhere.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from posterity.arrays.search import RULE, step_by_curvature
from posterity.arrays.tree import structure
from posterity.entries import Entry
from posterity.errors import PosterityError, SiteError
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import starts_elsewhere
from posterity.federation.messages import Part, Report
from posterity.federation.quasi_newton import SOON, asked, exhausted, quasi_newton, started_at
from posterity.federation.state import State, commit, contributing, distance
from posterity.inference.joint import (
    is_joint,
    joint_mean,
    moved_to,
    pieces,
    precision_matrix,
    slope_in_mean,
)

MOST = 1024
"""Largest number of parameters for which sites report a full matrix (8 MiB)."""
STEPS = 8
"""Largest number of Newton steps between two rounds of the sites."""
HALVINGS = 12
"""Largest number of halvings of a step."""
ENOUGH = 1e-7
"""Change in nats below which no Newton step is made."""
PASSES = 50
"""Largest number of passes over all sites in a search for an optimum."""
ALIKE, SETTLED = 2.0, 1e-2
"""Multiples of the tolerance: the largest distance between two posteriors that count as the same,
and the largest change by a pass at which a second start has converged."""
ELSEWHERE = 1.0
"""Largest decrease of the free energy, in nats, by another optimum that does not make a run move
there, whatever the tolerance."""
LOOK = 5
"""Number of passes after which the free energy of a second start is looked at."""
FAINT = 50.0
"""Excess of free energy, in nats, from which another optimum has negligible posterior mass."""
SHORT = 1e-2
"""Largest change in nats by later passes at an optimum, relative to its distance from the run."""
ROUNDING = 1e-12
"""Change by a site, in nats, that can be rounding error; no rate is computed from smaller ones."""


@dataclasses.dataclass(frozen=True)
class Newton:
    """The joint Newton step of the posterior for the free energy of all sites."""

    step: np.ndarray
    """Change of the means."""
    there: Any
    """The posterior after the step; None if that is improper."""
    change: float
    """KL divergence of the posterior after the step from that before, in nats; inf if unknown."""
    energy: float
    """Free energy, in nats, up to a constant."""


def applies(agreed: Agreement) -> bool:
    """Return whether the posterior has independent means and sites can report joint curvatures.
    False for models with several optima, such as networks, where the nearest optimum is not worth
    minutes of computation.
    """
    q = agreed.prior
    update = agreed.update
    several = agreed.model.known_optima == "several"
    if update.trains or update.pools or update.conjugate or several:
        return False
    few = is_joint(q) and q.event_size <= MOST
    return few and agreed.line_search is not None


def newton(federation: Federation, state: State) -> Newton:
    """Return the joint Newton step from the current posterior. Raises SiteError if a site fails."""
    reports = _reports(federation, state, begun=False)
    return newton_of(state.prior, state.posterior, reports)


def newton_of(prior: ExponentialFamily, q: ExponentialFamily, reports: Sequence[Report]) -> Newton:
    """Return the joint Newton step from reports that include curvatures. Pure."""
    answers: Any = reports
    if not all(_is_whole(answer, q) for answer in answers):
        return Newton(np.full(q.event_size, np.nan), None, math.inf, math.inf)
    slope = slope_in_mean(q, prior)
    curvature = precision_matrix(prior)
    there: Any = prior
    for answer in answers:
        slope = slope + answer.slope
        curvature = curvature + answer.curvature
        there = there + answer.fixed_point
    step, _ = step_by_curvature(slope, curvature)
    values = [math.nan if answer.value is None else answer.value for answer in answers]
    energy = float(q.kl(prior)) - math.fsum(values)
    if not (np.isfinite(step).all() and there.is_proper()):
        return Newton(step, None, math.inf, energy)
    # The mean moves by Newton's step, the precision to the sum of the sites' fixed points.
    there = moved_to(there, joint_mean(q) + step)
    return Newton(step, there, distance(q, there), energy)


def stepped(federation: Federation, state: State) -> State | None:
    """Return the state after Newton steps, each shortened until the free energy falls. Means move
    jointly, and each factor's precision moves to its fixed point. Return None if no step helps.
    Raises SiteError if a site fails.
    """
    begun = state
    reports = _reports(federation, state)
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
    """Shorten a step until it lowers the free energy; return None if no share of it does. If the
    change of the energy is below rounding, a step that shortens the next one is accepted.
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
        if falls or (level and following.change < RULE.flatter * proposed.change):
            return moved, answers, following
    return None


def _moved(state: State, reports: Sequence[Report], newton: Newton, share: float) -> State | None:
    """Return the state after a share of a step, or None if that is improper. Each factor has the
    slope that its curvature predicts. After a partial step, the sum of slopes is not zero and is
    subtracted from all factors equally, so that the means are at the end of the step.
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
    """Return the factor with the precisions of ``factor`` and this slope at the means of ``q``."""
    own = zip(q.parts(), pieces(q, slope), factor.parts(), strict=True)
    return factor.rebuild([part.at_mean(along, its.precision) for part, along, its in own])


def _reports(federation: Federation, state: State, *, begun: bool = True) -> list[Report]:
    """Return reports with curvatures of the contributing sites; with ``begun``, only of those with
    a nonzero factor. Steps exclude sites that have not had a turn; the remaining change does not.
    """
    sites = contributing(federation.agreement, state)
    if begun:
        sites = [s for s in sites if np.any(state.factor(s).natural_parameters)]
    return asked(federation, state, sites, "curvature")


def _is_whole(report: Report, q: ExponentialFamily) -> bool:
    """Return whether a report has all parts of a Newton step, finite and of the right shapes."""
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
    """The result of a second start that ended at another posterior than the run's.

    ``apart`` is the KL divergence of that posterior from the run's, in nats. ``lower`` is the
    run's free energy minus that of the second start, in nats; NaN if unknown. ``settled`` is
    whether its passes have converged.
    """

    state: State
    apart: float
    lower: float
    settled: bool

    def is_better(self, tolerance: float) -> bool:
        """Return whether its free energy is lower by more than the tolerance (at most one nat)."""
        return self.lower > min(tolerance, ELSEWHERE)


def optimum_from(federation: Federation, state: State, tolerance: float) -> State | None:
    """Return the optimum that passes reach from a state; None if that takes too long.

    A state is the optimum if the estimated change by further passes, in nats, is small relative to
    the distance from the start, or at most a tenth of the tolerance. The remaining gradients must
    also be small, or within the tolerance: a line search that stops elsewhere, as where a
    likelihood jumps, is not at an optimum. Quasi-Newton steps go on after too many passes. Raises
    SiteError if a site fails or has no line search.
    """
    last = state
    before = 0.0
    for number, (at, stopped) in enumerate(passes(federation, state), 1):
        length = math.sqrt(2 * distance(last.posterior, at.posterior))
        left = to_come(length, before, len(contributing(federation.agreement, state)))
        near = SHORT * distance(state.posterior, at.posterior)
        if left**2 / 2 <= max(near, tolerance / 10) and stopped <= max(near, tolerance):
            return at
        last = at
        before = length
        if number == SOON[0] and exhausted(federation.agreement, stopped):
            ended = quasi_newton(federation, last)
            if ended is not None and ended.left <= tolerance / 10:
                return ended.state
    ended = quasi_newton(federation, last)
    return ended.state if ended is not None and ended.left <= tolerance / 10 else None


def to_come(now: float, before: float, sites: int) -> float:
    """Return the sum of all further terms of a geometric series from its last two terms."""
    if now <= math.sqrt(2 * ROUNDING) * sites:
        return now
    rate = now / before if before > 0 else math.inf
    return now * rate / (1 - rate) if rate < 1 else math.inf


def second_start(federation: Federation, state: State, tolerance: float) -> Second | None:
    """Return the result of the first start that ends at a lower free energy, else of the best that
    ends elsewhere; None if all end close to the state. Starts are made from the mirror image
    and the members placed over the prior of least free energy (:mod:`.elsewhere`), as many as were
    agreed.

    Questions to the sites have the epoch and step of the state, by which a remote driver identifies
    the answers. Raises the error of a site (a PosterityError, such as SiteError) if no site answers
    anywhere else.
    """
    tolerance = min(tolerance, ELSEWHERE)
    here = free_energy(federation, state)
    mirrored, *halves = starts_elsewhere(federation.agreement, state.posterior)
    energies: list[dict[int, float]] = [{}, {}]
    failure = None
    for known, members in zip(energies, halves, strict=True):
        for number, member in enumerate(members):
            try:  # sums may not be finite there
                energy = free_energy(federation, started_at(federation, state, member), "rough")
            except PosterityError as error:
                failure = error
                continue
            if math.isfinite(energy):
                known[number] = energy
    if failure is not None and not any(energies):
        raise failure
    ranked = [
        [members[number] for number in sorted(known, key=known.__getitem__)]
        for known, members in zip(energies, halves, strict=True)
    ]
    pairs = itertools.zip_longest(*ranked)
    placed = [member for pair in pairs for member in pair if member is not None]
    starts = [*mirrored, *placed[: federation.agreement.restarts]]
    about = federation, state, here, tolerance
    ends = (_second(*about, start) for start in starts)
    return _first(ends, tolerance)


def _first(ends: Iterator[Second | None], tolerance: float) -> Second | None:
    """Return the first result that is better than the run, else that of least free energy, if any;
    an unknown one is taken to be the run's.
    """
    known: list[Second] = []
    for end in ends:
        if end is not None and end.is_better(tolerance):
            return end
        known += [end] if end is not None else []
    return max(known, key=lambda end: 0.0 if math.isnan(end.lower) else end.lower, default=None)


def _second(
    federation: Federation,
    state: State,
    here: float,
    tolerance: float,
    start: Any,
) -> Second | None:
    """Return the end of passes from a start; None if they return to the state. They end early where
    their gains are too small to reach ``here``, the state's free energy.
    """
    alike = ALIKE * tolerance
    at = started_at(federation, state, start)
    moved = math.inf
    settled = False
    before = math.inf
    for number, (after, _) in enumerate(passes(federation, at), 1):
        if distance(state.posterior, after.posterior) <= alike:
            return None
        last = moved
        moved = distance(at.posterior, after.posterior)
        at = after
        settled = max(moved, last) <= SETTLED * tolerance
        if settled:
            break
        if number % LOOK == 0:
            now = free_energy(federation, at)
            if now - here > max(FAINT, (before - now) * (PASSES - number) / LOOK):
                return Second(at, distance(state.posterior, at.posterior), here - now, False)
            before = now
    ended = None if settled else quasi_newton(federation, at, here + FAINT)
    if ended is not None:
        at = ended.state
        settled = ended.left <= SETTLED * tolerance
        if settled and distance(state.posterior, at.posterior) <= alike:
            return None
    lower = here - free_energy(federation, at)
    return Second(at, distance(state.posterior, at.posterior), lower, settled)


def passes(federation: Federation, state: State) -> Iterator[tuple[State, float]]:
    """Yield the states after passes of line searches over all sites, in reverse order of names.
    With each, yield the sum of half the squared lengths, in nats, of the gradients at the ends of
    the searches. Raises SiteError if a site fails or has no line search.
    """
    for _ in range(PASSES):
        stopped = 0.0
        for site in reversed(contributing(federation.agreement, state)):
            (report,) = asked(federation, state, [site], "improved")
            if report.improved is None:
                raise SiteError(
                    found=f"no factor of site {site!r} by a line search",
                    expected="a free energy that can be computed",
                    fix="Let the run go on by its own steps.",
                )
            after, _ = commit(federation.agreement, state, site, report.improved)
            state = after or state
            stopped = stopped + (report.residual or 0.0) ** 2 / 2
        if applies(federation.agreement):
            state = stepped(federation, state) or state
        yield state, stopped


def free_energy(federation: Federation, state: State, part: Part = "value") -> float:
    """Return ``KL(q ‖ prior) - Σ_k E_q[log likelihood_k]/α`` in nats; NaN if a site has no value.
    Constant factors of sites that do not take part are treated as part of the prior.
    """
    q = state.posterior
    members = contributing(federation.agreement, state)
    energy = float(q.kl(state.prior))
    for report in asked(federation, state, members, part):
        energy -= math.nan if report.value is None else report.value
    for site in set(state.entries) - set(members):
        energy -= float(np.sum(state.factor(site).natural_parameters * q.mean_parameters))
    return energy
