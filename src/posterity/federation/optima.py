"""Second starts: other optima of the free energy.

A fixed point of all sites may be a saddle point, or one of several optima: if the likelihood is
symmetric about the prior's mean, the posterior can remain there. The curvature in the mean does not
show this, because at a stationary Gaussian it is the precision, which is positive. So a run counts
as converged only after the sites have also started elsewhere.
"""

import dataclasses
import itertools
import math

import numpy as np

from posterity.errors import PosterityError
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import starts_elsewhere
from posterity.federation.messages import Part
from posterity.federation.optimum import EFFORT, Descent, asked, started_at
from posterity.federation.state import State, contributing, distance

ALIKE = 2.0
"""Largest distance between two posteriors that count as the same, in tolerances."""
ELSEWHERE = 1.0
"""Largest decrease of the free energy, in nats, by another optimum that does not make a run move
there, whatever the tolerance."""
FAINT = 50.0
"""Excess of free energy, in nats, from which another optimum has negligible posterior mass."""


@dataclasses.dataclass(frozen=True)
class Second:
    """The result of a second start that ended at another posterior than the run's.

    ``apart`` is the KL divergence of that posterior from the run's, in nats. ``lower`` is the
    run's free energy minus that of the second start, in nats; NaN if unknown. ``settled`` is
    whether its steps have converged, and ``early`` whether the budget ended them.
    ``evaluations`` counts those of all sites.
    """

    state: State
    apart: float
    lower: float
    settled: bool
    early: bool
    evaluations: int

    def is_better(self, tolerance: float) -> bool:
        """Return whether its free energy is lower by more than the tolerance (at most one nat)."""
        return self.lower > min(tolerance, ELSEWHERE)

    def tells(self, tolerance: float) -> bool:
        """Return whether there is another optimum that matters, or may be."""
        if self.early:
            return True
        returned = self.settled and self.apart <= ALIKE * tolerance
        return not (returned or -self.lower > FAINT)

    @property
    def rank(self) -> tuple[bool, float]:
        """That of the most telling result is the largest; an unknown free energy is the run's."""
        return not self.early, 0.0 if math.isnan(self.lower) else self.lower


def second_start(
    federation: Federation, state: State, tolerance: float, most: float = math.inf
) -> Second | None:
    """Return the result of the first start that ends at a lower free energy, else of the best that
    ends elsewhere; None if all end close to the state, or where the posterior has negligible mass.
    Starts are made from the mirror image and the members placed over the prior of least free energy
    (:mod:`.elsewhere`), as many as were agreed. They end early after ``most`` evaluations of all
    sites in total, beside those at the means of placed members.

    Questions to the sites have the epoch and step of the state, by which a remote driver identifies
    the answers. Raises the error of a site (a PosterityError, such as SiteError) if no site answers
    anywhere else.
    """
    tolerance = min(tolerance, ELSEWHERE)
    here = free_energy(federation, state)
    sites = contributing(federation.agreement, state)
    mirrored, *halves = starts_elsewhere(federation.agreement, state.posterior)
    energies: list[dict[int, float]] = [{}, {}]
    failure = None
    for known, members in zip(energies, halves, strict=True):
        for number, member in enumerate(members):
            try:  # sums may not be finite there
                energy = free_energy(federation, started_at(state, member, sites), "rough")
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
    ends: list[Second] = []
    for start in starts:
        begun = started_at(state, start, sites)
        left = most - sum(end.evaluations for end in ends)
        end = _second(federation, state, here, tolerance, begun, left)
        if end.is_better(tolerance):
            return end
        ends.append(end)
    telling = [end for end in ends if end.tells(tolerance)]
    return max(telling, key=lambda end: end.rank, default=None)


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
    if most < 1:
        return Second(start, distance(home, start.posterior), math.nan, False, True, 0)
    effort = dataclasses.replace(EFFORT, most=min(most, EFFORT.most))
    ended = Descent(federation, start, effort, home=home).end(tolerance)
    apart = distance(home, ended.state.posterior)
    early = most < EFFORT.most and ended.evaluations >= most and not ended.settled
    lower = here - ended.energy
    return Second(ended.state, apart, lower, ended.settled, early, ended.evaluations)


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
