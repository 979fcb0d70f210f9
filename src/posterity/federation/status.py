"""The status of a run or of a posterior: what is left, in nats, whether that is within tolerance,
and what is not known.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from posterity.errors import PosterityError
from posterity.families import ExponentialFamily
from posterity.families.names import described
from posterity.federation.agreement import Agreement
from posterity.federation.certificate import Certificate
from posterity.federation.elsewhere import ELSEWHERE, compared_elsewhere, is_due
from posterity.federation.gossip import OverGraph
from posterity.federation.messages import Part, Report
from posterity.federation.newton import applies, newton_of
from posterity.federation.remaining import (
    LIMITS,
    TOLERANCE,
    Position,
    allowed_nats,
    last_two,
    measured,
    reports_of,
)
from posterity.status import Status

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
NOT_SOUGHT = "no second start was made, as restarts is 0: there may be other optima"
"""The caveat of a converged status if second starts were not wanted."""
EARLY = (
    "second starts ended early, after as many evaluations as restart_budget allows: there may be "
    "other optima"
)
"""The caveat of a converged status if second starts were ended by their budget."""
APART = (
    "a walk cannot move means together, as columns that hang together need: centre them, or take "
    "a full Gaussian, or a schedule with a server"
)
"""The reason if a posterior with independent means has not converged after the first rounds."""


def status_of(run: Position) -> Status:
    """Return the status of a run, by queries to its sites.

    ``left`` is ``KL(optimum ‖ posterior)`` in nats, as quasi-Newton steps on the free energy of all
    sites measure it. It is infinite if sites have no gradients, if the steps do not end, or if too
    few nodes misplace the optimum. It is at least the estimated error of the last visits' sums over
    nodes. The tolerance is the run's; where gradients are noisy, it is multiplied by the number of
    coordinates.
    """
    visits = last_two(run)
    if not np.all(run.posterior.is_proper()):
        return Status.of(math.inf, run.allowed, (IMPROPER,))
    waiting = [s for s, turns in visits.items() if not turns]
    last = {site: turns[0] for site, turns in visits.items() if turns}
    stuck = [site for site, turn in last.items() if turn.outcome in ("failed", "refused")]
    error = math.fsum(turn.quadrature_error for turn in last.values())
    reasons = (
        *_named("waiting for the visit at which to forget", list(run.state.leaving)),
        *_named("no visit yet to", waiting),
        *_named("no update of", stuck),
        *_misplaced(error, run.allowed),
    )
    # Too few nodes have another optimum.
    left = run.left if error <= run.allowed else math.inf
    if left > run.allowed and run.grows:
        return Status("diverged", math.inf, run.allowed, reasons)
    if left > run.allowed and _walks(run):
        reasons = (*reasons, APART)
    if math.isinf(left) and not reasons:
        reasons = (UNKNOWN,)
    status = Status.of(max(left, error), run.allowed, reasons)
    if not status.converged:
        return status
    looked = _of_messages if run.agreement.update.pools else _looked_at_twice
    return looked(run, status)


def _walks(run: Position) -> bool:
    """Return whether a walk had its time, and cannot move means together that have to."""
    late = run.state.step > LIMITS.first * run.round
    return late and isinstance(run.schedule, OverGraph) and applies(run.agreement)


def _of_messages(run: Position, status: Status) -> Status:
    """Return the status of converged partial pooling with a caveat if Gaussian messages of sites'
    records are inaccurate.
    """
    reports = measured(run, lambda run: _error(reports_of(run, ("gradient",)).values()))
    return dataclasses.replace(status, reasons=_inaccurate(reports, status.tolerance))


def _looked_at_twice(run: Position, status: Status) -> Status:
    """Return the status of a run that seems converged after a comparison with a second start."""
    try:
        second = run.second
    except PosterityError as error:
        return Status.of(status.left, status.tolerance, (f"no second start: {error.found}",))
    if second is None:
        agreed = run.agreement
        asked_for_none = not agreed.restarts and agreed.model.known_optima == "unknown"
        return dataclasses.replace(status, reasons=(NOT_SOUGHT,) if asked_for_none else ())
    there = described(second.state.posterior)
    lower = second.lower
    apart = f"a second start leads to {there}, {second.apart:.2g} nats away"
    if second.is_better(status.tolerance):
        why = f"{apart} and {lower:.2g} nats of free energy lower"
        left = second.apart if second.settled else math.inf
        return Status.of(left, status.tolerance, (why,))
    if second.early:
        return dataclasses.replace(status, reasons=(EARLY,))
    if not second.settled:
        return Status.of(math.inf, status.tolerance, (f"{apart}, and has not settled",))
    if abs(lower) <= status.tolerance:
        apart += ", of the same free energy"
    elif not math.isnan(lower):
        apart += f" and {-lower:.2g} nats of free energy higher"
    both = f"this one is {described(run.posterior)}", apart
    return dataclasses.replace(status, state="converged to one of several", reasons=both)


def is_final(run: Any) -> bool:
    """Return whether further rounds are useless: the status is final, or changes grow. It is not
    asked for while the next round of several sites is likely to move the posterior by more than is
    allowed, unless by noise, or while a site waits for the visit at which it is forgotten.
    """
    if run.state.leaving:
        return False
    several = len(run.contributing) > 1 and not (run.agreement.update.noisy or run.exact)
    moves = several and run.ahead > run.allowed
    if math.isinf(run.moved) or (moves and not run.grows):
        return False
    status = run.status
    second = None if status.converged else run.__dict__.get("second")
    better = second is not None and second.is_better(run.tolerance)
    return status.state == "diverged" or (run.left <= run.allowed and not better)


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
        return Status.of(math.inf, allowed_nats(agreed, tolerance), (IMPROPER,))
    certificate = Certificate.of(posterior, reports)
    left = certificate.upper
    if "curvature" in parts_needed(agreed):
        prior: Any = agreed.prior
        q: Any = posterior
        change = newton_of(prior, q, [*reports.values()]).change
        left = change if agreed.update.noisy else max(left, change)
    unknown = [site for site, length in certificate.residuals.items() if not math.isfinite(length)]
    absent = [s for s in agreed.sites if s not in agreed.silent and s not in reports]
    allowed = allowed_nats(agreed, tolerance)
    error = _error(reports.values())
    pools = agreed.update.pools
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
    allowed = min(allowed, ELSEWHERE.better)
    compared = compared_elsewhere(agreed, posterior, values, allowed)
    if compared is None:
        return ["no values of the free energy elsewhere"], []
    lower, same = compared
    if lower > allowed:
        nats = f"the free energy is {lower:.2g} nats lower elsewhere"
        return [f"{nats}: a saddle, or one of several"], []
    return [], [] if same is None else [f"{described(same)} has the same free energy"]


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
