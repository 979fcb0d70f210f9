"""The status of a run: how much its next rounds would still change, and whether that is little.

Where gradients have no noise, rounds change a posterior by less and less, and the visits tell by
how much: lengths of the last round and of the one before it give the rate, and with it all that is
still to come. Where they are noisy, the sites are asked anew and their answers averaged.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.typing import KeyArray
from posterity.entries import Entry
from posterity.errors import ParameterError, PosterityError, SiteError
from posterity.families import ExponentialFamily
from posterity.families.names import described
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.elsewhere import is_due, lower_elsewhere
from posterity.federation.gossip import OverGraph
from posterity.federation.messages import Part, Report
from posterity.federation.optima import (
    ELSEWHERE,
    ROUNDING,
    Second,
    applies,
    newton,
    newton_of,
    optimum_from,
    second_start,
    to_come,
)
from posterity.federation.schedules import Asynchronous, Schedule
from posterity.federation.state import State, Visit, contributing, distance, measures
from posterity.inference.descent import fisher_length
from posterity.ledger import Ledger
from posterity.status import Status

TOLERANCE = 1e-3
"""Nats that may be left to change in a posterior which is said to have converged."""
EARLY, UNSURE = 3, 10.0
"""Rounds before which a rate is that of the way from the prior; what is left may then be so many
times what one more round would change."""
FAINT = 50.0
"""Nats of free energy beyond which an optimum is no part of what a posterior leaves out."""
FIRST = 10
"""Rounds in which a posterior may move more and more while it finds its place."""
MOST_LEFT = 1e6
"""Nats beyond which it is not told how many are left: most digits of the distance are lost."""
MOST_NOISY = 256
"""Parameters up to which it is measured how far a run with noisy steps is from its optimum."""
UNKNOWN = "how far the optimum is could not be measured"
"""The reason where what is left is not known, and there is no other."""
FURTHER, LITTLE = 9.0, 0.1
"""Times the nats by which a Newton step moves a site that its optimum may be away, if no record's
predictor varies widely (the step was .35 of the way, or more, in 120 small problems), and the share
of the tolerance that is little."""
SAMPLES = 64
"""Estimates averaged where gradients are noisy."""
APART = (
    "a walk cannot move means together, as columns that hang together need: centre them, or take "
    "a full Gaussian, or a schedule with a server"
)
"""The reason where a posterior that holds means apart has not converged in some rounds."""


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a federation between two of its steps."""

    federation: Federation
    schedule: Schedule
    state: State
    key: KeyArray
    trace: Sequence[Visit] = ()
    """What happened so far, visit by visit."""
    tolerance: float = TOLERANCE
    """Nats that may be left to change in a posterior that is said to have converged."""

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
        """The prior and every site's factor; its posterior is the run's, to the last bit."""
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
        """True if each factor depends on its own site's data alone: forgetting is then exact."""
        entries = self.state.entries.values()
        alone = all(entry.independent for entry in entries if entry.factor is not None)
        return self.agreement.update.conjugate and alone

    @functools.cached_property
    def second(self) -> Second | None:
        """Return where another start leads, if elsewhere and that is not known to be impossible; a
        PosterityError if sites fail from wherever they start.
        """
        due = is_due(self.agreement) and self.contributing
        return second_start(self.federation, self.state, self.tolerance) if due else None

    @functools.cached_property
    def claim(self) -> tuple[float, bool]:
        """Nats that rounds to come would change, as the last ones tell, and whether those grow.
        Cheap, and often too little or too much; who claims little is asked more.
        """
        visits = _last_two(self)
        waiting = any(not turns for turns in visits.values())
        return (math.inf, False) if waiting else _left(self, visits)

    @property
    def round(self) -> int:
        """Steps after which every site has had a turn, or may be expected to."""
        return self.schedule.round(len(self.agreement.sites))


def status_of(run: Position) -> Status:
    """Return what is known of a run, from its trace and from its sites.

    ``left`` is the KL divergence of the optimum from the posterior, in nats. Of a run that has
    converged it is an upper end of what rounds to come would still change. Of one that has not, it
    is measured: line searches lead to the optimum (:mod:`posterity.federation.optima`); it is
    infinite where there are none, or they do not end, or too few nodes place the optimum wrongly.
    The tolerance is that of the run, for each coordinate where gradients are noisy.
    """
    visits, allowed = _last_two(run), _allowed(run.agreement, run.tolerance)
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
        return Status.of(math.inf, allowed, reasons)  # an optimum by these nodes is another one
    status = Status.of(left, allowed, reasons)
    if status.converged:
        return _looked_at_twice(run, status)
    if growing:
        return dataclasses.replace(status, state="diverged", left=math.inf)
    if left <= allowed:
        return status
    left = _known(run, from_optimum)
    if left <= allowed and applies(run.agreement):
        left = max(left, _known(run, newton_change))
    apart = isinstance(run.schedule, OverGraph) and applies(run.agreement)
    if apart and left > allowed and run.state.step > FIRST * run.round:
        reasons = (*reasons, APART)
    if math.isinf(left) and not reasons:
        reasons = (UNKNOWN,)
    status = Status.of(left, allowed, reasons)
    return _looked_at_twice(run, status) if status.converged else status


def _looked_at_twice(run: Position, status: Status) -> Status:
    """What is left of a run's claim to have converged, once the sites started elsewhere too."""
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
    if not second.settled:
        return Status.of(math.inf, status.tolerance, (f"{apart}, and has not settled",))
    if -lower > FAINT:
        return status
    if abs(lower) <= status.tolerance:
        apart += ", of the same free energy"
    elif not math.isnan(lower):
        apart += f" and {-lower:.2g} nats of free energy higher"
    both = f"this one is {described(run.posterior)}", apart
    return dataclasses.replace(status, state="converged to one of several", reasons=both)


def is_final(run: Any) -> bool:
    """Return whether more rounds are of no use: they mend nothing but what is left."""
    left, growing = run.claim
    if growing or left > _allowed(run.agreement, run.tolerance):
        return growing
    second = None if run.status.converged else run.__dict__.get("second")
    return second is None or not second.is_better(run.tolerance)


def from_optimum(run: Position) -> float:
    """The KL divergence of the optimum from the posterior in nats; infinite if it is not found. It
    is not looked for where passes take too long, or there are several optima by nature. A SiteError
    if a site fails.
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
        optimum = None  # on the way a log likelihood is not finite
    left = math.inf if optimum is None else distance(run.posterior, optimum.posterior)
    return left if left <= MOST_LEFT else math.inf


def _allowed(agreed: Agreement, tolerance: float) -> float:
    """The tolerance; for each coordinate where noise is what keeps a posterior from settling."""
    return tolerance * (agreed.prior.event_size if agreed.update.noisy else 1)


def _left(run: Position, visits: Mapping[str, list[Visit]]) -> tuple[float, bool]:
    """Nats that are left to change, and whether rounds change more and more."""
    update = run.agreement.update
    if not visits or run.exact:
        return 0.0, False
    if update.conjugate:  # a factor was shortened, to leave a distribution
        return _known(run, next_round), False
    now, before = _lengths(run, visits)
    late = run.state.step > FIRST * run.round
    growing = late and before is not None and now is not None and now > max(2 * before, 1)
    if growing and before is not None and update.searches:
        # What comes late to its place stays there; of who does not answer nobody knows.
        there = _known(run, next_round)
        growing = math.isfinite(there) and there > max(before**2 / 2, run.tolerance)
    if update.trains:  # what the last round moved, the next one may
        return (math.inf if now is None else now**2 / 2), growing
    if update.noisy and applies(run.agreement):  # which has no noise
        return _known(run, newton_change), False
    if update.noisy:
        upper = certify(run).upper
        if upper <= _allowed(run.agreement, run.tolerance) and run.agreement.prior.gaussian:
            # One round may be the least of what is left where means move together only.
            there = _known(run, from_optimum)
            upper = max(upper, there) if math.isfinite(there) else upper
        return (upper if math.isfinite(upper) else math.inf), False
    if len(visits) == 1 and before is None:
        (alone,) = visits.values()
        length = alone[0].residual or 0.0  # nobody else moves what this site found
    elif now is None or before is None:
        return math.inf, False
    else:
        length = to_come(now, before, len(visits))
    # A search that could get no further may have stopped before its end.
    residuals = [turns[0].residual or 0.0 for turns in visits.values()]
    stopped = sum(residual**2 for residual in residuals) * update.searches
    left = max(length**2, stopped) / 2
    # Turns may have changed little for other reasons: a token that had met nobody, a rate that
    # decays, a site that came first. So whoever is about to be believed is asked.
    if left <= run.tolerance:
        anew = update.searches and isinstance(run.schedule, Asynchronous)
        left = max(left, _known(run, rounds_to_come if anew else next_round))
    if left <= run.tolerance and applies(run.agreement):
        left = max(left, _known(run, newton_change))
    early = run.state.step < EARLY * run.round and len(visits) > 1
    return (UNSURE if early else 1.0) * left, growing


def newton_change(run: Position) -> float:
    """Return by how many nats the joint Newton step would move the posterior."""
    return newton(run.federation, run.state).change


def next_round(run: Position) -> float:
    """Return by how many nats a round in which all sites improve at once would move the posterior;
    an upper end of it, by gradients alone, where that is little and they are Newton steps.
    Sites that failed at their last turn, which is a reason of its own, are passed over; of others
    that fail now nobody knows what they would change.
    """
    update, model = run.agreement.update, run.agreement.model
    if not update.searches:
        return certify(run).distance
    # JAX would compile a program for this alone.
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
    """Nats that the sites' Newton steps, or improved factors, would move the posterior by."""
    after = _after(run, part)
    return math.inf if after is None else distance(run.posterior, after.posterior)


def _after(run: Position, part: Part) -> State | None:
    """The state after the sites' Newton steps, or their improved factors, are all taken; None where
    that is no distribution, or a site does not answer.
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
    run: Position, parts: tuple[Part, ...], *, samples: int = SAMPLES
) -> dict[str, Report]:
    """The reports of all sites that contribute on the posterior; none of a site that fails; a
    SiteError if a site fails, unless the run passes over such sites.
    """
    asked = measures(run.state, run.contributing, parts, samples, run.key)
    run.federation.prepare(asked)
    answers = {question.site: run.federation.ask(question) for question in asked}
    return {s: own if isinstance(own, Report) else Report(s) for s, own in answers.items()}


def status_from(
    agreed: Agreement, posterior: ExponentialFamily, reports: Any, tolerance: float = TOLERANCE
) -> Status:
    """The status of a posterior of which nothing is known but its sites' reports. Pure.

    ``reports`` are by site. How far it has come is not known where one of the agreement's sites
    that have records did not report, or where nobody did.

    Reports need :func:`parts_needed`. What is left is the upper end of what one round would change,
    or of what the joint Newton step would, whichever is more; that step alone where gradients are
    noisy.
    """
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
    error = math.fsum(report.quadrature_error for report in reports.values())
    known = math.isfinite(left) and reports and not absent and error <= allowed
    reasons = (
        *_named("no finite report of", unknown),
        *_named("no report of", absent),
        *_misplaced(error, allowed),
        *_elsewhere(agreed, posterior, reports, allowed),
    )
    if not reasons and not known:
        reasons = (UNKNOWN,)
    return Status.of(left if known else math.inf, allowed, reasons)


def parts_needed(agreed: Agreement) -> tuple[Part, ...]:
    """The parts of a report that a status needs."""
    newton: tuple[Part, ...] = ("curvature",) if applies(agreed) else ()
    return ("gradient", *newton, *(("elsewhere",) if is_due(agreed) else ()))


def _elsewhere(agreed: Agreement, posterior: Any, reports: Any, allowed: float) -> list[str]:
    """Whether reports tell of a better member, which is looked for where there may be one."""
    if not (reports and is_due(agreed)):
        return []
    values = [report.elsewhere for report in reports.values()]
    lower = lower_elsewhere(agreed, posterior, values)
    if lower is None:
        return ["no values of the free energy elsewhere"]
    better = f"the free energy is {lower:.2g} nats lower elsewhere: a saddle, or one of several"
    return [better] if lower > min(allowed, ELSEWHERE) else []


def _known(run: Position, measure: Callable[[Position], float]) -> float:
    """What is measured; infinite where it is no number, or a site fails and is passed over."""
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
    """An upper bound of the distance that a round moved the posterior, in sqrt(nats). The sum of
    the distances that its visits moved it (triangle inequality); None if some site had no such
    turn.
    """
    if any(len(turns) <= turn for turns in visits.values()):
        return None
    changes = (turns[turn].change for turns in visits.values())
    # Who failed did not move it, and is among the reasons.
    return math.fsum(math.sqrt(2 * change) for change in changes if change is not None)


def _last_two(run: Position) -> dict[str, list[Visit]]:
    """The last turns of each site that contributes since one left or began anew."""
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


def _misplaced(error: float, allowed: float) -> list[str]:
    return [] if error <= allowed else [f"sums over nodes may be off by {error:.2g} nats"]


def _named(what: str, sites: list[str]) -> list[str]:
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return [f"{what} {', '.join(map(repr, sites[:3]))}{more}"] if sites else []


# --- certificates --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The distance of a posterior from the fixed point of its own sites' free energy.

    ``residuals``: by site the length, in the Fisher metric, of ``∇_μ E_q[log likelihood_k]/α -
    η_k``, in sqrt(nats). ``distance``: half the squared length of their sum, the KL divergence in
    nats, to second order, that one undamped round would still move the posterior; what noise adds
    to it on average is taken off. ``error`` is its standard error, zero where there is no noise. A
    site whose gradient is not finite makes all NaN, and so does one that fails where the run passes
    over it.
    """

    residuals: dict[str, float]
    distance: float
    error: float = 0.0

    @property
    def upper(self) -> float:
        """The distance and two standard errors, which it hardly exceeds."""
        return self.distance + 2 * self.error

    @classmethod
    def of(cls, posterior: ExponentialFamily, reports: Mapping[str, Report]) -> "Certificate":
        """Make the certificate from the gradients in the sites' reports of this posterior."""
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
    """Measure how far the run's posterior is from where its sites would leave it alone. Where
    gradients are noisy, ``samples`` estimates are averaged. A SiteError if a site fails, unless the
    run passes over such sites.
    """
    return Certificate.of(run.posterior, reports_of(run, ("gradient",), samples=samples))
