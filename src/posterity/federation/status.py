"""The status of a run: the estimated change by further rounds, and whether it is within tolerance.

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
from posterity.errors import ParameterError, PosterityError, SiteError
from posterity.families import ExponentialFamily
from posterity.families.names import described
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import compared_elsewhere, is_due
from posterity.federation.gossip import OverGraph
from posterity.federation.messages import Part, Report
from posterity.federation.optima import (
    ELSEWHERE,
    FAINT,
    ROUNDING,
    Second,
    applies,
    newton,
    newton_of,
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
from posterity.inference.descent import fisher_length
from posterity.ledger import Ledger
from posterity.status import Status

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
IMPROPER = "the posterior is improper: neither prior nor records determine all parameters"
"""The reason if a sum of natural parameters is that of no distribution."""
UNKNOWN = "how far the optimum is could not be measured"
"""The reason if the remaining change is unknown and there is no other reason."""
COMPARED = " where values were compared"
UNSEARCHED = (
    "no second start was made: the free energy is not lower at some members elsewhere, but there "
    "may be other optima"
)
"""What a converged status is limited to, in words, and the caveat, if sites only reported."""
GROWING = "the last visits changed the posterior by more and more"
"""The reason if changes grow at a lone site, whose line searches cannot diverge."""
FURTHER, LITTLE = 9.0, 0.1
"""Largest ratio of a site's distance from its optimum to the length of its Newton step, both in
nats, if no record's predictor varies widely (the step was .35 of the way or more in 120 small
problems); a small share of the tolerance."""
SAMPLES = 64
"""Number of estimates that are averaged where gradients are noisy."""
APART = (
    "a walk cannot move means together, as columns that hang together need: centre them, or take "
    "a full Gaussian, or a schedule with a server"
)
"""The reason if a posterior with independent means has not converged after ``FIRST`` rounds."""


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
        last = [turns[0].residual for turns in _last_two(self).values() if turns]
        stopped = math.fsum((residual or 0.0) ** 2 / 2 for residual in last)
        return exhausted(self.agreement, stopped)

    @functools.cached_property
    def claim(self) -> tuple[float, bool]:
        """The estimated change in nats by further rounds, and whether changes grow. A cheap
        estimate from the last rounds; a small one is checked by measurements.
        """
        visits = _last_two(self)
        waiting = any(not turns for turns in visits.values())
        return (math.inf, False) if waiting else _left(self, visits)

    @property
    def round(self) -> int:
        """The (expected) number of steps after which every site has had a turn."""
        return self.schedule.round(len(self.agreement.sites))


def status_of(run: Position) -> Status:
    """Return the status of a run from its trace and from queries to its sites.

    ``left`` is ``KL(optimum ‖ posterior)`` in nats. For a converged run it is an upper estimate of
    the change by further rounds. Otherwise line searches find the optimum
    (:mod:`posterity.federation.optima`), and ``left`` is measured. It is infinite if there is no
    line search, if it does not end, or if too few nodes misplace the optimum. It is at least the
    estimated error of the last visits' sums over nodes. The tolerance is the run's; where gradients
    are noisy, it is multiplied by the number of coordinates.
    """
    visits, allowed = _last_two(run), _allowed(run.agreement, run.tolerance)
    if not np.all(run.posterior.is_proper()):
        return Status.of(math.inf, allowed, (IMPROPER,))
    waiting = [s for s, turns in visits.items() if not turns]
    stuck = [
        s for s, turns in visits.items() if turns and turns[0].outcome in ("failed", "refused")
    ]
    error = math.fsum(turns[0].quadrature_error for turns in visits.values() if turns)
    left, growing = run.claim
    reasons = (
        *_named("waiting for the visit at which to forget", list(run.state.leaving)),
        *_named("no visit yet to", waiting),
        *_named("no update of", stuck),
        *_misplaced(error, allowed),
    )
    if not error <= allowed and not growing:
        return Status.of(math.inf, allowed, reasons)  # these nodes have another optimum
    status = Status.of(max(left, error), allowed, reasons)
    if status.converged and run.agreement.update.pools:
        return _of_messages(run, status)
    if status.converged:
        return _looked_at_twice(run, status)
    if growing and len(visits) == 1 and run.agreement.update.searches:
        # Each visit lowers the free energy, however much it changes the posterior.
        return Status.of(math.inf, allowed, (*reasons, GROWING))
    if growing:
        return dataclasses.replace(status, state="diverged", left=math.inf)
    if left <= allowed:
        return status
    left = _known(run, from_optimum)
    if left <= allowed and applies(run.agreement):
        left = max(left, _known(run, newton_change))
    if left <= allowed:
        left = max(left, _known(run, along_ridge))
    apart = isinstance(run.schedule, OverGraph) and applies(run.agreement)
    if apart and left > allowed and run.state.step > FIRST * run.round:
        reasons = (*reasons, APART)
    if math.isinf(left) and not reasons:
        reasons = (UNKNOWN,)
    status = Status.of(max(left, error), allowed, reasons)
    return _looked_at_twice(run, status) if status.converged else status


def _of_messages(run: Position, status: Status) -> Status:
    """Return the status of converged partial pooling with a caveat if Gaussian messages of sites'
    records are inaccurate.
    """
    reports = _known(run, lambda run: _error(reports_of(run, ("gradient",)).values()))
    return dataclasses.replace(status, reasons=_inaccurate(reports, status.tolerance))


def _looked_at_twice(run: Position, status: Status) -> Status:
    """Return the status of a run that seems converged after a comparison with a second start."""
    try:
        second = run.second
    except PosterityError as error:
        return Status.of(status.left, status.tolerance, (f"no second start: {error.found}",))
    if second is None:
        return status
    there, lower = described(second.state.posterior), second.lower
    apart = f"a second start leads to {there}, {second.apart:.2g} nats away"
    if second.is_better(status.tolerance):
        why = f"{apart} and {lower:.2g} nats of free energy lower"
        left = second.apart if second.settled else math.inf
        return Status.of(left, status.tolerance, (why,))
    if -lower > FAINT:
        return status
    if not second.settled:
        return Status.of(math.inf, status.tolerance, (f"{apart}, and has not settled",))
    if abs(lower) <= status.tolerance:
        apart += ", of the same free energy"
    elif not math.isnan(lower):
        apart += f" and {-lower:.2g} nats of free energy higher"
    both = f"this one is {described(run.posterior)}", apart
    return dataclasses.replace(status, state="converged to one of several", reasons=both)


def is_final(run: Any) -> bool:
    """Return whether further rounds are useless: changes are within tolerance, or grow."""
    left, growing = run.claim
    if growing or left > _allowed(run.agreement, run.tolerance):
        return growing
    second = None if run.status.converged else run.__dict__.get("second")
    return second is None or not second.is_better(run.tolerance)


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


def _allowed(agreed: Agreement, tolerance: float) -> float:
    """Return the tolerance, multiplied by the number of coordinates if gradients are noisy."""
    return tolerance * (agreed.prior.event_size if agreed.update.noisy else 1)


def _left(run: Position, visits: Mapping[str, list[Visit]]) -> tuple[float, bool]:
    """Return the estimated remaining change in nats, and whether the changes of rounds grow."""
    update = run.agreement.update
    if not visits or run.exact:
        return 0.0, False
    if update.conjugate:  # a factor was shortened, to leave a distribution
        return _known(run, next_round), False
    now, before = _lengths(run, visits)
    late = run.state.step > FIRST * run.round
    growing = late and before is not None and now is not None and now > max(2 * before, 1)
    if growing and before is not None and update.searches:
        # A late jump to the optimum is no divergence, and neither is a site that does not answer.
        there = _known(run, next_round)
        growing = math.isfinite(there) and there > max(before**2 / 2, run.tolerance)
    if update.trains:  # the next round may move as far as the last one
        return (math.inf if now is None else now**2 / 2), growing
    if update.noisy and applies(run.agreement):  # the Newton change has no noise
        return _known(run, newton_change), False
    if update.noisy:
        upper = certify(run).upper
        if upper <= _allowed(run.agreement, run.tolerance) and run.agreement.prior.gaussian:
            # If means can only move together, one round may be a small part of the distance.
            there = _known(run, from_optimum)
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
        left = max(left, _known(run, rounds_to_come if anew else next_round))
    if left <= run.tolerance and applies(run.agreement):
        left = max(left, _known(run, newton_change))
    early = run.state.step < EARLY * run.round and len(visits) > 1
    left = (UNSURE if early else 1.0) * left
    if left <= run.tolerance:
        left = max(left, _known(run, along_ridge))
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
    update, model = run.agreement.update, run.agreement.model
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
    if (once := _after(run, "improved")) is None:
        return math.inf
    nats = distance(run.posterior, once.posterior)
    if not ROUNDING < nats <= run.tolerance:
        return nats
    if (twice := _after(dataclasses.replace(run, state=once), "improved")) is None:
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
    share, variance = along / length, max(squared / length - (along / length) ** 2, 0.0)
    return nats * max(1.0, (1 + 3 * variance / share**2) / share**2)


def _moved(run: Position, part: Part) -> float:
    """Return the change of the posterior, in nats, by sites' Newton steps or improved factors."""
    after = _after(run, part)
    return math.inf if after is None else distance(run.posterior, after.posterior)


def _after(run: Position, part: Part) -> State | None:
    """Return the state after all sites' Newton steps, or improved factors; None if it is improper
    or a site does not answer.
    """
    state, entries = run.state, {}
    failed = {s for s, turns in _last_two(run).items() if turns and turns[0].outcome == "failed"}
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


def status_from(
    agreed: Agreement, posterior: ExponentialFamily, reports: Any, tolerance: float = TOLERANCE
) -> Status:
    """Return the status of a posterior from its sites' reports only. Pure.

    ``reports`` are by site, with the parts :func:`parts_needed`. ``left`` is infinite if one of the
    agreement's sites with records did not report, or if there are no reports.

    Otherwise it is the largest of the error of sums over nodes and two upper estimates: the change
    by one round, and the change by the joint Newton step. Where gradients are noisy and the Newton
    step applies, the change by one round is left out.

    Where a run makes a second start, reports have values of the free energy at some members
    elsewhere only. A converged status says so.
    """
    if not np.all(posterior.is_proper()):
        return Status.of(math.inf, _allowed(agreed, tolerance), (IMPROPER,))
    certificate = Certificate.of(posterior, reports)
    left = certificate.upper
    if "curvature" in parts_needed(agreed):
        prior: Any = agreed.prior
        q: Any = posterior
        change = newton_of(prior, q, [*reports.values()]).change
        left = change if agreed.update.noisy else max(left, change)
    unknown = [site for site, length in certificate.residuals.items() if not math.isfinite(length)]
    absent = [s for s in agreed.sites if s not in agreed.silent and s not in reports]
    allowed = _allowed(agreed, tolerance)
    error, pools = _error(reports.values()), agreed.update.pools
    messages = _inaccurate(error, allowed) if pools else ()
    error = 0.0 if pools else error  # of messages, which is a caveat
    known = math.isfinite(left) and reports and not absent and error <= allowed
    elsewhere, several = _elsewhere(agreed, posterior, reports, allowed)
    reasons = (
        *_named("no finite report of", unknown),
        *_named("no report of", absent),
        *_misplaced(error, allowed),
        *elsewhere,
    )
    if not reasons and not known:
        reasons = (UNKNOWN,)
    status = Status.of(max(left, error) if known else math.inf, allowed, reasons)
    if not status.converged:
        return status
    if several:
        both = f"this one is {described(posterior)}", *several
        return dataclasses.replace(status, state="converged to one of several", reasons=both)
    if is_due(agreed):
        return dataclasses.replace(status, reasons=(*messages, UNSEARCHED), scope=COMPARED)
    return dataclasses.replace(status, reasons=messages)


def parts_needed(agreed: Agreement) -> tuple[Part, ...]:
    """Return the parts of a report that :func:`status_from` needs."""
    newton: tuple[Part, ...] = ("curvature",) if applies(agreed) else ()
    return ("gradient", *newton, *(("elsewhere",) if is_due(agreed) else ()))


def _elsewhere(
    agreed: Agreement, posterior: Any, reports: Any, allowed: float
) -> tuple[list[str], list[str]]:
    """Return a reason if reports show that another member has lower free energy, where due, and
    one if another has the same.
    """
    if not (reports and is_due(agreed)):
        return [], []
    values = [report.elsewhere for report in reports.values()]
    allowed = min(allowed, ELSEWHERE)
    compared = compared_elsewhere(agreed, posterior, values, allowed)
    if compared is None:
        return ["no values of the free energy elsewhere"], []
    lower, same = compared
    if lower > allowed:
        nats = f"the free energy is {lower:.2g} nats lower elsewhere"
        return [f"{nats}: a saddle, or one of several"], []
    return [], [] if same is None else [f"{described(same)} has the same free energy"]


def _known(run: Position, measure: Callable[[Position], float]) -> float:
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
    length, lacking = 0.0, {*visits}
    for visit in reversed(run.trace):
        if visit.outcome in ("forgotten", "restarted") or len(lengths) == 2:
            break
        length += math.sqrt(2 * (visit.change or 0.0))
        lacking.discard(visit.site)
        if not lacking:
            lengths.append(length)
            length, lacking = 0.0, {*visits}
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


def _last_two(run: Position) -> dict[str, list[Visit]]:
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


def _error(reports: Iterable[Report]) -> float:
    return math.fsum(report.quadrature_error for report in reports)


def _inaccurate(error: float, allowed: float) -> tuple[str, ...]:
    """Return a caveat if messages of partial pooling are inaccurate by more than is allowed."""
    if error <= allowed:
        return ()
    nats = f"by up to {error:.1g} nats" if math.isfinite(error) else "by an unknown number of nats"
    why = "likelihoods of sites with few records or events are far from Gaussian"
    return (f"{why}, which may displace the posterior {nats}",)


def _misplaced(error: float, allowed: float) -> list[str]:
    return [] if error <= allowed else [f"sums over nodes may be off by {error:.2g} nats"]


def _named(what: str, sites: list[str]) -> list[str]:
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return [f"{what} {', '.join(map(repr, sites[:3]))}{more}"] if sites else []


# --- certificates --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The distance of a posterior from the fixed point of its own sites' free energy.

    ``residuals``: by site, the length of ``∇_μ E_q[log likelihood_k]/α - η_k`` in the Fisher
    metric, in sqrt(nats). ``distance``: half the squared length of their sum in nats, which to
    second order is the KL divergence by which one undamped round would move the posterior; the
    average contribution of noise is subtracted. ``error``: the standard error of ``distance``, zero
    without noise. ``distance`` and ``error`` are NaN if the gradient of a site is not finite, or if
    a site fails and the run skips it.
    """

    residuals: dict[str, float]
    distance: float
    error: float = 0.0

    @property
    def upper(self) -> float:
        """The distance plus two standard errors: an approximate upper confidence bound."""
        return self.distance + 2 * self.error

    @classmethod
    def of(cls, posterior: ExponentialFamily, reports: Mapping[str, Report]) -> "Certificate":
        """Make the certificate of a posterior from the gradients in its sites' reports."""
        noise, residuals = 0.0, {}
        total: Any = posterior.zero()
        for site, report in reports.items():
            if report.direction is None:
                residuals[site] = noise = math.nan
                continue
            residuals[site] = float(fisher_length(posterior, report.direction))
            total, noise = total + report.direction, noise + report.variance
        length = float(fisher_length(posterior, total))
        squared = length * length + 0.0 * noise
        distance = max(squared - noise, 0.0) / 2
        error = math.sqrt(4 * 2 * distance * noise + 2 * noise * noise) / 2
        return cls(residuals, distance if math.isfinite(squared) else math.nan, error)


def certify(run: Position, *, samples: int = SAMPLES) -> Certificate:
    """Measure the distance of the run's posterior from the fixed point of its sites' updates. Where
    gradients are noisy, ``samples`` estimates are averaged. Raises SiteError if a site fails,
    unless the run skips such sites.
    """
    return Certificate.of(run.posterior, reports_of(run, ("gradient",), samples=samples))
