"""A run between two steps, and estimates of how far it is from its end, in nats.

Without noise, the lengths of the last two rounds in the recorded visits give the rate of
convergence, and so the sum of all changes to come. With noisy gradients, the sites are queried
again and their answers are averaged.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.typing import KeyArray
from posterity.entries import Entry
from posterity.errors import ParameterError, SiteError
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.certificate import Certificate
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import is_due
from posterity.federation.messages import Part, Report
from posterity.federation.optima import (
    ROUNDING,
    Second,
    applies,
    newton,
    optimum_from,
    passes,
    second_start,
    to_come,
)
from posterity.federation.quasi_newton import (
    FLAT,
    SOON,
    Descended,
    descends,
    exhausted,
    flattest,
    quasi_newton,
)
from posterity.federation.schedules import Asynchronous, Schedule
from posterity.federation.state import State, Visit, contributing, distance, measures
from posterity.ledger import Ledger

TOLERANCE = 1e-3
"""Largest remaining change, in nats, of a posterior that counts as converged."""
EARLY, UNSURE = 3, 10.0
"""Number of first rounds, in which the rate is still that of the path from the prior, and the
multiplier of the estimated remaining change that applies in them."""
FIRST = 10
"""Number of first rounds in which growing changes do not yet count as divergence."""
MOST_LEFT = 1e6
"""Distance in nats from which it is reported as infinite, as most of its digits are lost."""
MOST_NOISY = 256
"""Largest number of parameters for which the distance of a noisy run to its optimum is computed."""
FURTHER, LITTLE = 9.0, 0.1
"""Largest ratio of a site's distance from its optimum to the length of its Newton step, both in
nats, if no record's predictor varies widely (the step was .35 of the way or more in 120 small
problems); a small share of the tolerance."""
SAMPLES = 64
"""Number of estimates that are averaged where gradients are noisy."""


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
        return second_start(self.federation, self.state, self.tolerance) if due else None

    @functools.cached_property
    def descended(self) -> Descended | None:
        """The end of quasi-Newton steps; None if that is the posterior, or if they do not apply."""
        return quasi_newton(self.federation, self.state)

    @property
    def is_exhausted(self) -> bool:
        """True if the last searches of all sites end so far from their optima that quasi-Newton
        steps should follow at once.
        """
        rounds, rest = divmod(self.state.step, self.round)
        if rest or rounds not in SOON or not self.agreement.update.searches:
            return False
        last = [turns[0].residual for turns in last_two(self).values() if turns]
        stopped = math.fsum((residual or 0.0) ** 2 / 2 for residual in last)
        return exhausted(self.agreement, stopped)

    @functools.cached_property
    def claim(self) -> tuple[float, bool]:
        """The estimated change in nats by further rounds, and whether changes grow. A cheap
        estimate from the last rounds; a small one is checked by measurements.
        """
        visits = last_two(self)
        waiting = any(not turns for turns in visits.values())
        return (math.inf, False) if waiting else nats_left(self, visits)

    @property
    def round(self) -> int:
        """The (expected) number of steps after which every site has had a turn."""
        return self.schedule.round(len(self.agreement.sites))


def from_optimum(run: Position) -> float:
    """Return ``KL(optimum ‖ posterior)`` in nats; infinite if the optimum is not found. It is not
    searched for if passes take too long, or if the model has several optima. Raises SiteError if a
    site fails.
    """
    agreed = run.agreement
    long = agreed.model.joint or (agreed.update.noisy and agreed.prior.event_size > MOST_NOISY)
    if agreed.model.known_optima == "several" or agreed.line_search is None or long:
        return math.inf
    try:
        optimum = optimum_from(run.federation, run.state, run.tolerance)
    except SiteError as error:
        if not isinstance(error.__cause__, ParameterError):
            raise
        optimum = None  # a log likelihood was not finite during the search
    left = math.inf if optimum is None else distance(run.posterior, optimum.posterior)
    return left if left <= MOST_LEFT else math.inf


def allowed_nats(agreed: Agreement, tolerance: float) -> float:
    """Return the tolerance, multiplied by the number of coordinates if gradients are noisy."""
    return tolerance * (agreed.prior.event_size if agreed.update.noisy else 1)


def nats_left(run: Position, visits: Mapping[str, list[Visit]]) -> tuple[float, bool]:
    """Return the estimated remaining change in nats, and whether the changes of rounds grow."""
    update = run.agreement.update
    if not visits or run.exact:
        return 0.0, False
    if update.conjugate:  # a factor was shortened, to leave a distribution
        return measured(run, next_round), False
    now, before = _lengths(run, visits)
    late = run.state.step > FIRST * run.round
    growing = late and before is not None and now is not None and now > max(2 * before, 1)
    if growing and before is not None and update.searches:
        # A late jump to the optimum is no divergence, and neither is a site that does not answer.
        there = measured(run, next_round)
        growing = math.isfinite(there) and there > max(before**2 / 2, run.tolerance)
    if update.trains:  # the next round may move as far as the last one
        return (math.inf if now is None else now**2 / 2), growing
    if update.noisy and applies(run.agreement):  # the Newton change has no noise
        return measured(run, newton_change), False
    if update.noisy:
        upper = certify(run).upper
        if upper <= allowed_nats(run.agreement, run.tolerance) and run.agreement.prior.gaussian:
            # If means can only move together, one round may be a small part of the distance.
            there = measured(run, from_optimum)
            upper = max(upper, there) if math.isfinite(there) else upper
        return (upper if math.isfinite(upper) else math.inf), False
    if len(visits) == 1 and before is None:
        (alone,) = visits.values()
        if alone[0].quadrature_error > run.tolerance:
            return math.inf, False  # its nodes were too few, as the change was large
        length = alone[0].residual or 0.0  # no other site moves the posterior
    elif now is None or before is None:
        return math.inf, False
    else:
        length = to_come(now, before, len(visits))
    # A line search may have stopped early, at its limit of evaluations.
    residuals = [turns[0].residual or 0.0 for turns in visits.values()]
    stopped = sum(residual**2 for residual in residuals) * update.searches
    left = max(length**2, stopped) / 2
    # Turns may have changed little for other reasons: a token that has seen few sites, a decaying
    # rate, a site that came first. So small estimates are confirmed by queries to the sites.
    if left <= run.tolerance:
        anew = update.searches and isinstance(run.schedule, Asynchronous)
        left = max(left, measured(run, rounds_to_come if anew else next_round))
    if left <= run.tolerance and applies(run.agreement):
        left = max(left, measured(run, newton_change))
    early = run.state.step < EARLY * run.round and len(visits) > 1
    left = (UNSURE if early else 1.0) * left
    if left <= run.tolerance:
        left = max(left, measured(run, along_ridge))
    return left, growing


def along_ridge(run: Position) -> float:
    """Return how many nats are left along a curved ridge, where visits change the posterior little
    however far the optimum is: by quasi-Newton steps, if the free energy is flat in a direction.
    """
    if not (is_due(run.agreement) and descends(run.agreement) and run.contributing):
        return 0.0
    after, _ = next(passes(run.federation, run.state))
    curvature, left = flattest(run.federation, run.state, after.posterior)
    if curvature >= FLAT and left <= run.tolerance:  # neither if they are not known
        return left
    ended = run.descended
    if ended is None:
        return 0.0
    known = math.isfinite(ended.left)
    return distance(run.posterior, ended.state.posterior) if known else math.inf


def newton_change(run: Position) -> float:
    """Return the change of the posterior, in nats, by the joint Newton step."""
    return newton(run.federation, run.state).change


def next_round(run: Position) -> float:
    """Return the change of the posterior, in nats, by a round in which all sites update at once.
    If gradients are Newton steps and an upper bound from them is small, that bound is returned.
    Sites that failed at their last turn, which the status reports separately, are skipped; the
    change is infinite if another site fails now.
    """
    update = run.agreement.update
    model = run.agreement.model
    if not update.searches:
        return certify(run).distance
    # With JAX this would compile a program for this purpose only.
    if update.newtonian(model, run.agreement.prior) and not update.needs_jax(model):
        upper = FURTHER * _moved(run, "newton")
        if upper <= LITTLE * run.tolerance:
            return upper
    return _moved(run, "improved")


def rounds_to_come(run: Position) -> float:
    """Return how many nats are left, where a trace has no rounds, as two rounds in which all sites
    improve at once tell; infinite where the second does not shrink along the way of the first.

    A round goes a share of what is left in each direction. Two rounds tell the mean of these shares
    along the way (a secant) and their variance, from which the mean inverse square follows to
    second order.
    """
    once = _after(run, "improved")
    if once is None:
        return math.inf
    nats = distance(run.posterior, once.posterior)
    if not ROUNDING < nats <= run.tolerance:
        return nats
    twice = _after(dataclasses.replace(run, state=once), "improved")
    if twice is None:
        return math.inf
    q, first, second = (state.posterior for state in (run.state, once, twice))
    # Changes of natural parameters times those of mean parameters are squared Fisher lengths.
    step = first.natural_parameters - q.natural_parameters
    moved = first.mean_parameters - q.mean_parameters
    less = step - (second.natural_parameters - first.natural_parameters)
    moved_less = moved - (second.mean_parameters - first.mean_parameters)
    length, along, squared = (
        float(np.sum(a * b)) for a, b in ((moved, step), (moved, less), (moved_less, less))
    )
    if not (length > 0 and along > 0):
        return math.inf
    share = along / length
    variance = max(squared / length - (along / length) ** 2, 0.0)
    return nats * max(1.0, (1 + 3 * variance / share**2) / share**2)


def _moved(run: Position, part: Part) -> float:
    """Return the change of the posterior, in nats, by sites' Newton steps or improved factors."""
    after = _after(run, part)
    return math.inf if after is None else distance(run.posterior, after.posterior)


def _after(run: Position, part: Part) -> State | None:
    """Return the state after all sites' Newton steps, or improved factors; None if it is improper
    or a site does not answer.
    """
    state = run.state
    entries = {}
    failed = {s for s, turns in last_two(run).items() if turns and turns[0].outcome == "failed"}
    for site, report in reports_of(run, (part,)).items():
        factor: Any = state.factor(site)
        if part == "improved" and report.improved is not None:
            factor = report.improved
        elif part == "newton" and report.direction is not None:
            factor = factor + report.direction
        elif site not in failed:
            return None
        before = state.entries.get(site, Entry(0, -1, factor))
        entries[site] = Entry(before.epoch, before.sequence + 1, factor, False)
    after = state.with_entries(state.entries | entries)
    return after if run.agreement.admits(after.posterior) else None


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
    except SiteError:
        if run.agreement.on_error == "raise":
            raise
        return math.inf
    return measured if math.isfinite(measured) else math.inf


def _lengths(run: Position, visits: Mapping[str, list[Visit]]) -> list[float | None]:
    """The lengths of the last round and of the one before it. Where sites report whenever they are
    done, one of them perhaps twice before others do, a round is a part of the trace in which all
    sites report.
    """
    if not isinstance(run.schedule, Asynchronous):
        return [_length(visits, turn) for turn in (0, 1)]
    lengths: list[float | None] = []
    length = 0.0
    lacking = {*visits}
    for visit in reversed(run.trace):
        if visit.outcome in ("forgotten", "restarted") or len(lengths) == 2:
            break
        length += math.sqrt(2 * (visit.change or 0.0))
        lacking.discard(visit.site)
        if not lacking:
            lengths.append(length)
            length = 0.0
            lacking = {*visits}
    return [*lengths, None, None][:2]


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
