"""Second starts: other optima of the free energy.

A fixed point of all sites may be a saddle point, or one of several optima: if the likelihood is
symmetric about the prior's mean, the posterior can remain there. The curvature in the mean does not
show this, because at a stationary Gaussian it is the precision, which is positive. So a run counts
as converged only after the sites have also started elsewhere.
"""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from posterity.errors import PosterityError
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import ELSEWHERE, starts_elsewhere
from posterity.federation.messages import Report
from posterity.federation.optimum import EFFORT, TINY, Descent, asked, started_at, without
from posterity.federation.state import State, contributing, distance
from posterity.inference.joint import (
    event_of,
    is_gaussian,
    joint_mean,
    moved_to,
    slope_in_mean,
    whitened,
)
from posterity.inference.modes import RULE, climbs, found


@dataclasses.dataclass(frozen=True)
class Second:
    """The result of a second start that ended at another posterior than the run's.

    ``apart`` is the KL divergence of that posterior from the run's, in nats. ``lower`` is the
    run's free energy minus that of the second start, in nats; NaN if unknown. ``settled`` is
    whether its steps have converged, and ``early`` whether the budget ended them.
    ``evaluations`` counts those by a site, on average.
    """

    state: State
    apart: float
    lower: float
    settled: bool
    early: bool
    evaluations: float

    def is_better(self, tolerance: float) -> bool:
        """Return whether its free energy is lower by more than the tolerance (at most one nat)."""
        return self.lower > min(tolerance, ELSEWHERE.better)

    def tells(self, tolerance: float) -> bool:
        """Return whether there is another optimum that matters, or may be."""
        if self.early:
            return True
        returned = self.settled and self.apart <= ELSEWHERE.alike * tolerance
        return not (returned or -self.lower > ELSEWHERE.faint)

    @property
    def rank(self) -> tuple[bool, float]:
        """That of the most telling result is the largest; an unknown free energy is the run's."""
        return not self.early, 0.0 if math.isnan(self.lower) else self.lower


def second_start(
    federation: Federation, state: State, tolerance: float, most: float = math.inf
) -> Second | None:
    """Return the result of the first start that ends at a lower free energy, else of the best that
    ends elsewhere; None if all end close to the state, or where the posterior has negligible mass.
    They end early after ``most`` evaluations by each site in total, on average, beside those at
    single places.

    Questions to the sites have the epoch and step of the state, by which a remote driver identifies
    the answers. Raises the error of a site (a PosterityError, such as SiteError) if no site answers
    anywhere else.
    """
    tolerance = min(tolerance, ELSEWHERE.better)
    here = free_energy(federation, state)
    ends: list[Second] = []
    for start in starts(federation, state, here):
        left = most - sum(end.evaluations for end in ends)
        end = _second(federation, state, here, tolerance, start, left)
        if end.is_better(tolerance):
            return end
        ends.append(end)
    telling = [end for end in ends if end.tells(tolerance)]
    return max(telling, key=operator.attrgetter("rank"), default=None)


def starts(federation: Federation, state: State, here: float) -> list[State]:
    """Return the states of second starts: from narrow members at modes of the density of the
    parameters that the posterior does not explain (:mod:`posterity.inference.modes`); for families
    other than Gaussians, and if sites tell no slopes, from members placed over the prior.

    Climbs to modes begin at the posterior's mirror image and at as many of the placed members
    (:mod:`.elsewhere`) as were agreed: first those of higher density than their neighbours, each of
    which may be of a mode of its own (torn1992); where the posterior explains the density they
    begin last. ``here`` is the free energy of the state. Raises the error of a site if none answers
    elsewhere.
    """
    places = Places(federation, state, contributing(federation.agreement, state))
    mirrored, placed = starts_elsewhere(federation.agreement, state.posterior)
    ranked = places.ranked(placed, here)
    if places.failures and not ranked:
        raise places.failures[0]
    members = [*mirrored, *ranked[: federation.agreement.restarts]]
    climbed = is_gaussian(state.posterior) and members and not places.flat
    chosen = places.modes(members, here) if climbed else members
    return [started_at(state, member, places.sites) for member in chosen]


class Places:
    """Places of parameters, the means of narrow members: the density there by all sites' reports.

    ``failures`` are the errors of sites so far, and ``flat`` is whether one told no slope.
    """

    def __init__(self, federation: Federation, state: State, sites: Sequence[str]) -> None:
        self.federation = federation
        self.state = state
        self.sites = sites
        self.constant = without(state, sites)
        self.failures: list[PosterityError] = []
        self.flat = False

    def look(self, member: Any) -> tuple[float, Any]:
        """Return minus the log density of parameters and data at the mean of a Gaussian and its
        slope, or the free energy of a member of another family and zero. The first is infinite
        where a site does not tell it. Raises the error of a site that fails again and again, which
        is not asked further.
        """
        begun = started_at(self.state, member, self.sites)
        try:
            reports = asked(self.federation, begun, self.sites, "rough")
        except PosterityError as error:  # sums may not be finite there
            self.failures.append(error)
            if len(self.failures) > ELSEWHERE.failures:
                raise
            reports = [Report("")]
        told = [report for report in reports if report.value is not None]
        if len(told) < len(self.sites):
            return math.inf, 0.0
        prior: Any = self.state.prior
        value = math.fsum(report.value for report in told)  # pyright: ignore[reportArgumentType]
        if not is_gaussian(member):
            return float(member.kl(prior)) - value - self._others(member.mean_parameters), 0.0
        slopes = [report.slope for report in told if report.slope is not None]
        self.flat = self.flat or len(slopes) < len(told)
        event = event_of(member, joint_mean(member))
        value += float(prior.log_prob(event)) + self._others(prior.sufficient_statistics(event))
        return -value, -sum(slopes, start=slope_in_mean(member, self.constant))

    def _others(self, statistics: Any) -> float:
        """Return what the factors of sites that take no part say of statistics."""
        return float(np.sum((self.constant - self.state.prior).natural_parameters * statistics))

    def ranked(self, members: Sequence[Any], here: float) -> list[Any]:
        """Return the members at which the density is known: first those of higher density than
        their nearest neighbours, then where the posterior, of free energy ``here``, does not
        explain the density, then by rising free energy; by turns those nearer to the posterior and
        those further from it.
        """
        if not members:
            return []
        q: Any = self.state.posterior
        gaussian = is_gaussian(q)
        energies = np.array([self.look(member)[0] for member in members])
        points = np.array([joint_mean(m) if gaussian else m.mean_parameters for m in members])
        points = points.reshape(len(members), -1)
        apart = cdist(*[points / np.maximum(points.std(0), TINY)] * 2)
        beside = np.argsort(apart)[:, : ELSEWHERE.neighbours + 1]
        lower = energies[beside].min(1) < energies
        pairs = zip(points, energies, strict=True)
        known = [gaussian and self._explained(*pair, here) for pair in pairs]
        order = np.lexsort((energies, np.array(known), lower))
        away = np.array([float(member.kl(q)) for member in members])
        further = (away > np.median(away))[order]
        turns = np.where(further, further.cumsum(), (~further).cumsum())
        order = order[np.lexsort((further, turns))]
        return [members[place] for place in order if energies[place] < np.inf]

    def _explained(self, z: np.ndarray, energy: Any, here: float) -> bool:
        """Return whether the posterior, of free energy ``here``, explains a density."""
        q: Any = self.state.posterior
        return bool(RULE.explains(q.log_prob(event_of(q, z)) - here, np.asarray(-energy)))

    def modes(
        self, members: Sequence[Any], here: float, *, most: int = 200, gain: float = 1e-6
    ) -> list[Any]:
        """Return narrow members at the modes to which climbs from the members' means lead, those of
        highest density first, without those far below the density at the posterior's mean. The
        posterior, of free energy ``here``, explains a mode that is the only one, or its own; it may
        cover several. A climb has at most so many evaluations, and ends where less than the
        relative ``gain`` is promised.
        """
        q: Any = self.state.posterior
        narrow = members[0]
        root = whitened(q, np.eye(q.event_size))
        unit = np.linalg.norm(root, axis=1)

        def look(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            energies, slopes = zip(*(self.look(moved_to(narrow, z)) for z in places), strict=True)
            return np.array(energies), np.array([np.zeros_like(unit) + slope for slope in slopes])

        begin = np.array([joint_mean(member) for member in members])
        ends = climbs(look, begin, root, most=most, gain=gain)
        mean = joint_mean(q)
        lowest = self.look(moved_to(narrow, mean))[0] + ELSEWHERE.faint
        modes = found(ends.among(ends.energies <= lowest), lambda at: unit)
        several = len(modes) > 1
        kept = [
            mode.at
            for mode in modes
            if not self._explained(mode.at, mode.energy, here) or (several and not mode.near(mean))
        ]
        return [moved_to(narrow, z) for z in kept]


def _second(
    federation: Federation,
    state: State,
    here: float,
    tolerance: float,
    start: State,
    most: float,
) -> Second:
    """Return the end of quasi-Newton steps from a start, after at most so many evaluations.
    ``here`` is the free energy of the state.
    """
    home = state.posterior
    if most <= 0:
        return Second(start, distance(home, start.posterior), math.nan, False, True, 0)
    effort = dataclasses.replace(EFFORT, budget=most)
    ended = Descent(federation, start, effort, home=home).end(tolerance)
    apart = distance(home, ended.state.posterior)
    early = ended.evaluations >= most and not ended.settled
    lower = here - ended.energy
    return Second(ended.state, apart, lower, ended.settled, early, ended.evaluations)


def free_energy(federation: Federation, state: State) -> float:
    """Return ``KL(q ‖ prior) - Σ_k E_q[log likelihood_k]/α`` in nats; NaN if a site has no value.
    Constant factors of sites that do not take part are treated as part of the prior.
    """
    return Descent(federation, state).place(state).energy
