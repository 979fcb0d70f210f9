"""A run between two steps, and how far it is from its end, in nats.

What is left is measured by quasi-Newton steps on the free energy of all sites
(:mod:`posterity.federation.optimum`), whatever the update rule, the family and the schedule. The
lengths of the last rounds only tell when a measurement is due.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from posterity.arrays.typing import KeyArray
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.certificate import Certificate
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import is_due
from posterity.federation.messages import Part, Report
from posterity.federation.optima import Second, second_start
from posterity.federation.optimum import Descended, Descent
from posterity.federation.schedules import Schedule
from posterity.federation.state import State, Visit, contributing, measures
from posterity.ledger import Ledger

TOLERANCE = 1e-3
"""Largest remaining change, in nats, of a posterior that counts as converged."""
SAMPLES = 64
"""Number of estimates that are averaged where gradients are noisy."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of what is measured of a run."""

    first: int = 10
    """Number of first rounds in which growing changes do not yet count as divergence."""
    left: float = 1e6
    """Distance in nats from which it is reported as infinite, as most of its digits are lost."""
    noisy: int = 256
    """Largest number of parameters for which the distance of a noisy run to its optimum is
    computed."""
    evaluations: float = 400
    """Evaluations by all sites together that second starts may take however few the run took: where
    sites are few they cost little, and starts from far away take some hundred by each."""


LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Position:
    """The state of a federation between two steps."""

    federation: Federation
    schedule: Schedule
    state: State
    key: KeyArray
    trace: Sequence[Visit] = ()
    """The visits so far, in order."""
    tolerance: float = TOLERANCE
    """Largest remaining change, in nats, of a posterior that counts as converged."""

    @property
    def agreement(self) -> Agreement:
        """The agreement of all sites: the model, the local rule, and the names of the sites."""
        return self.federation.agreement

    @property
    def posterior(self) -> ExponentialFamily:
        """The current posterior."""
        return self.state.posterior

    @property
    def ledger(self) -> Ledger:
        """The prior and all sites' factors; its posterior equals the run's to the last bit."""
        return self.state.ledger

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that have not been forgotten, sorted."""
        return tuple(s for s in self.agreement.sites if not self.state.is_forgotten(s))

    @property
    def contributing(self) -> tuple[str, ...]:
        """Names of the sites that have records and have not been forgotten, sorted."""
        return contributing(self.agreement, self.state)

    @property
    def exact(self) -> bool:
        """True if each factor depends only on its own site's data, so that forgetting is exact."""
        entries = self.state.entries.values()
        alone = all(entry.independent for entry in entries if entry.factor is not None)
        return self.agreement.update.conjugate and alone

    @functools.cached_property
    def second(self) -> Second | None:
        """The result of a second start; None if it is the same, or if none is due. Raises
        PosterityError if sites fail from every start.
        """
        due = is_due(self.agreement) and self.contributing
        if not due:
            return None
        most = max(self.evaluations, LIMITS.evaluations / len(self.contributing))
        most = self.agreement.restart_budget * most
        return second_start(self.federation, self.state, self.tolerance, most)

    @property
    def evaluations(self) -> float:
        """Evaluations of the log likelihood by a site, on average: in visits, by measurements from
        whose ends the run went on, and by that of what is left.
        """
        visits = sum(visit.evaluations for visit in self.trace) / max(len(self.contributing), 1)
        return visits + (0 if self.descended is None else self.descended.evaluations)

    @functools.cached_property
    def descended(self) -> Descended | None:
        """The end of quasi-Newton steps from here; None if factors are exact, if sites have no
        gradients without noise, or fail and are passed over. Raises SiteError if a site fails.
        """
        if self.exact or not (self.contributing and measurable(self.agreement)):
            return None
        try:
            return Descent(self.federation, self.state).end(self.tolerance)
        except self.agreement.skipped:
            return None

    @property
    def left(self) -> float:
        """The KL divergence, in nats, of the optimum from the posterior; infinite if it is unknown,
        and an upper estimate where gradients are noisy. Raises SiteError if a site fails.
        """
        if self.exact or not self.contributing:
            return 0.0
        if self.agreement.update.trains:  # the next round may move as far as the last one
            return self.moved
        if measurable(self.agreement):
            left = math.inf if self.descended is None else self.descended.left
        else:
            left = measured(self, lambda run: certify(run).upper)
        return left if left <= LIMITS.left else math.inf

    @property
    def bound(self) -> float:
        """An upper estimate of what is left, in nats, if the free energy is as flat as can be told;
        where it is not measured, ``left``.
        """
        return self.left if self.descended is None else self.descended.bound

    @property
    def moved(self) -> float:
        """How far the last round has moved the posterior, in nats; infinite before its end."""
        now, _ = self._lengths
        return math.inf if now is None else now**2 / 2

    @property
    def ahead(self) -> float:
        """How far the next round moves the posterior, in nats, if it is as much shorter than the
        last one as that was than the one before; infinite before the end of the first. In partial
        pooling it is how far the last one did, as sites' messages are told from factors of late.
        """
        now, before = self._lengths
        if self.agreement.update.pools or not (now and before):
            return self.moved
        return self.moved * (now / before) ** 2

    @property
    def grows(self) -> bool:
        """Whether rounds move the posterior by more and more, as those that diverge do; line
        searches of a lone site cannot.
        """
        if len(self.contributing) == 1 and self.agreement.update.searches:
            return False
        now, before = self._lengths
        late = self.state.step > LIMITS.first * self.round
        return late and before is not None and now is not None and now > max(2 * before, 1)

    @property
    def allowed(self) -> float:
        """The tolerance, multiplied by the number of coordinates if gradients are noisy."""
        return allowed_nats(self.agreement, self.tolerance)

    @property
    def _lengths(self) -> list[float | None]:
        return [_length(last_two(self), turn) for turn in (0, 1)]

    @property
    def round(self) -> int:
        """The (expected) number of steps after which every site has had a turn."""
        return self.schedule.round(len(self.agreement.sites))


def measurable(agreed: Agreement) -> bool:
    """Return whether what is left can be measured by gradients without noise. If a run is noisy and
    has many parameters, that takes too long.
    """
    long = agreed.update.noisy and agreed.prior.event_size > LIMITS.noisy
    return agreed.line_search is not None and not long


def allowed_nats(agreed: Agreement, tolerance: float) -> float:
    """Return the tolerance, multiplied by the number of coordinates if gradients are noisy."""
    return tolerance * (agreed.prior.event_size if agreed.update.noisy else 1)


def reports_of(
    run: Position,
    parts: tuple[Part, ...],
    *,
    samples: int = SAMPLES,
    sites: Iterable[str] | None = None,
) -> dict[str, Report]:
    """Return the reports of ``sites``, by default all contributing ones, on the posterior. Raises
    SiteError if a site fails, unless the run skips such sites; their reports are then empty.
    """
    asked = measures(
        run.state, run.contributing if sites is None else sites, parts, samples, run.key
    )
    run.federation.prepare(asked)
    answers = {question.site: run.federation.ask(question) for question in asked}
    return {s: own if isinstance(own, Report) else Report(s) for s, own in answers.items()}


def measured(run: Position, measure: Callable[[Position], float]) -> float:
    """Return the measured value, or infinity if it is not finite or a failed site is skipped."""
    try:
        measured = measure(run)
    except run.agreement.skipped:
        return math.inf
    return measured if math.isfinite(measured) else math.inf


def _length(visits: Mapping[str, list[Visit]], turn: int) -> float | None:
    """Return an upper bound of the distance that a round moved the posterior, in sqrt(nats): the
    sum of the distances of its visits (triangle inequality). None if a site had no such turn.
    """
    if any(len(turns) <= turn for turns in visits.values()):
        return None
    changes = (turns[turn].change for turns in visits.values())
    # Sites that failed did not move it, and are among the reasons.
    return math.fsum(math.sqrt(2 * change) for change in changes if change is not None)


def last_two(run: Position) -> dict[str, list[Visit]]:
    """Return the last two turns of each contributing site since the last forgetting or restart."""
    turns: dict[str, list[Visit]] = {site: [] for site in run.contributing}
    lacking = 2 * len(turns)
    for visit in reversed(run.trace):
        if visit.outcome in ("forgotten", "restarted") or not lacking:
            break
        own = turns.get(visit.site, [])
        if len(own) < 2 and visit.outcome != "relayed" and visit.site in turns:
            own.append(visit)
            lacking -= 1
    return turns


def certify(run: Position, *, samples: int = SAMPLES) -> Certificate:
    """Measure the distance of the run's posterior from the fixed point of its sites' updates. Where
    gradients are noisy, ``samples`` estimates are averaged. Raises SiteError if a site fails,
    unless the run skips such sites.
    """
    return Certificate.of(run.posterior, reports_of(run, ("gradient",), samples=samples))
