"""Second starts: other optima of the free energy.

A fixed point of all sites may be a saddle point, or one of several optima: if the likelihood is
symmetric about the prior's mean, the posterior can remain there. The curvature in the mean does not
show this, because at a stationary Gaussian it is the precision, which is positive. So a run counts
as converged only after the sites have also started elsewhere.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np

from posterity.errors import PosterityError
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import starts_elsewhere
from posterity.federation.messages import Part
from posterity.federation.optimum import Descent, asked, started_at
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
    whether its steps have converged.
    """

    state: State
    apart: float
    lower: float
    settled: bool

    def is_better(self, tolerance: float) -> bool:
        """Return whether its free energy is lower by more than the tolerance (at most one nat)."""
        return self.lower > min(tolerance, ELSEWHERE)


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
    about = federation, state, here, tolerance
    ends = (_second(*about, started_at(state, start, sites)) for start in starts)
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
    start: State,
) -> Second | None:
    """Return the end of quasi-Newton steps from a start; None if they return to the state, of which
    ``here`` is the free energy.
    """
    ended = Descent(federation, start).end(tolerance)
    apart = distance(state.posterior, ended.state.posterior)
    if ended.settled and apart <= ALIKE * tolerance:
        return None
    return Second(ended.state, apart, here - ended.energy, ended.settled)


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
