"""``forget``: remove sites from a ledger or a run, refine the other factors, issue a receipt."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

from posterity.arguments import NATURAL, Constraint
from posterity.artifact import loaded
from posterity.errors import ConvergenceError, LedgerError, SiteError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation.remaining import TOLERANCE, certify
from posterity.federation.run import Run
from posterity.federation.state import Visit, check_left
from posterity.ledger import Ledger
from posterity.receipt import Receipt, Refinement, issue
from posterity.runtime.files import AnyPath
from posterity.runtime.tracing import as_found
from posterity.status import ProgressCallback, Status

_TARGET = Constraint("a run or a ledger", lambda target: isinstance(target, Run | Ledger))
_NAMES = Constraint(
    "names of sites, at least one, each an argument of its own",
    lambda sites: sites and all(isinstance(site, str) for site in sites),
)


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """The result of :func:`forget`.

    ``run`` is None if the target was a ledger. ``status`` is the status of the refined run.
    ``distance`` estimates the KL divergence, in nats, to the posterior that the remaining sites
    would reach at convergence, by quasi-Newton steps to there on a copy; it is 0 if forgetting is
    exact. ``bound`` is the distance if the free energy is as flat at the end of these steps as they
    could tell. Where gradients are noisy and cannot be computed otherwise, both are an upper
    estimate of the change by one more round only.

    If there is one optimum, this is the distance to the result of retraining. If there are several,
    as for networks, refinement stays near the one that the forgotten site influenced.

    Both are None if they cannot be computed: without the sites' data, or if a remaining site fails,
    sums over nodes are too inaccurate, or the steps do not end.
    """

    ledger: Ledger
    receipt: Receipt
    run: Run | None
    distance: float | None
    status: Status
    bound: float | None = None

    @property
    def posterior(self) -> ExponentialFamily:
        """The posterior of the remaining sites."""
        return self.ledger.posterior

    @property
    def trace(self) -> Sequence[Visit]:
        """The visits of the run; empty if the target was a ledger."""
        return () if self.run is None else self.run.trace

    @property
    def exact(self) -> bool:
        """True if the posterior is, to the last bit, that of a ledger that never had the sites."""
        return self.receipt.exact


@as_found()
def forget(
    target: Ledger | Run | AnyPath,
    *sites: str,
    sweeps: int | None = None,
    restart: bool = False,
    allow_unconverged: bool = False,
    progress: ProgressCallback | None = None,
) -> Forgotten:
    """Remove sites from a posterior: exactly where that is possible, else with refinement.

    The factors of the sites are subtracted exactly; no rounding error remains. If all other factors
    were computed from their own sites' data only (conjugate models), nothing else is needed, and
    ``exact`` is true. Otherwise the other factors depend on the removed ones. In a run, passes over
    the remaining sites then refine them until convergence. ``exact`` is false.

    Args:
        target: a run, whose remaining sites are queried; or a ledger or the path of one, for which
            only the subtraction is possible.
        sites: names of the sites to forget, at least one.
        sweeps: number of passes of refinement, 0 for none; by default as many as convergence
            takes. Only for runs of models that are not conjugate.
        restart: whether to set the remaining factors to zero before refinement, which is
            retraining; useful if the posterior after the subtraction is improper.
        allow_unconverged: whether to issue a receipt also if the distance is more than twice the
            run's tolerance, or unknown; the receipt contains the distance.
        progress: function called after each pass of refinement, with the run so far as ``result``.

    Raises:
        LedgerError: if a site is unknown, was already forgotten, or has not yet contributed.
        ParameterError: if the remaining posterior is improper.
        UsageError: if ``target`` has another type, no site is named, ``sweeps`` is not a natural
            number, or refinement is requested for a ledger or for a run that forgets exactly.
        ConvergenceError: if the remaining run has not converged, unless ``allow_unconverged``.
        SiteError: if a site fails during refinement. ``target`` is never changed.

    Source: gong2021, section IV.

    >>> import numpy as np
    >>> from posterity.families import Beta
    >>> from posterity.federation import federate
    >>> from posterity.models import BetaBernoulli
    >>> coins = {"north": np.array([1, 1, 0]), "south": np.array([0, 1])}
    >>> run = federate(coins, BetaBernoulli(), Beta.from_standard(1.0, 1.0), steps=1)
    >>> done = forget(run, "north")
    >>> done.exact, float(done.ledger.posterior.a)
    (True, 2.0)
    """
    source: Any = loaded(target)
    _TARGET.check(target=source)
    _NAMES.check(sites=sites)
    NATURAL.or_none().check(sweeps=sweeps)
    sites = tuple(dict.fromkeys(sites))
    if (sweeps or restart) and (isinstance(source, Ledger) or source.exact):
        raise UsageError(
            found=f"sweeps={sweeps}, restart={restart} for "
            + ("a ledger" if isinstance(source, Ledger) else "a run that forgets exactly"),
            expected="refinement only in runs of models that are not conjugate",
        )
    if isinstance(source, Ledger):
        return _from_ledger(source, sites)
    before = source.ledger
    restart = restart and bool(set(before.sites) - set(sites))  # otherwise no factor remains
    run = (source.restarted() if restart else source).forget(*sites)
    strangers = sorted(set(sites) - set(before.sites))
    if strangers:
        raise LedgerError(
            found=f"sites {strangers}, which have contributed nothing yet",
            expected=f"some of {list(before.sites)}",
            fix="Bar them from joining by `run.forget`: there is nothing to give a receipt for.",
        )
    if run.ledger.independent and not restart:  # conjugate, or no site remains
        receipt = issue(before, run.ledger, None)
        return Forgotten(run.ledger, receipt, run, 0.0, Status.of(0.0, run.tolerance), 0.0)
    refined = run.refined if sweeps is None else functools.partial(run.sweep, sweeps)
    run = refined(progress=progress)
    if not (allow_unconverged or sweeps is not None or run.status.converged):
        raise _not_converged(run, sites, None)
    certificate = certify(run)
    left, bound = _measured(run)
    # A status is an estimate: the distance of a converged run may be slightly larger.
    if not allow_unconverged and (left is None or left > 2 * run.status.tolerance):
        raise _not_converged(run, sites, left)
    residuals = {site: _known(length) for site, length in certificate.residuals.items()}
    measured = {"residuals": residuals, "estimated_distance_nats": left}
    refinement = Refinement.between(before, run.ledger, restart, **measured)
    receipt = issue(before, run.ledger, refinement)
    return Forgotten(run.ledger, receipt, run, left, run.status, bound)


def _from_ledger(before: Ledger, sites: tuple[str, ...]) -> Forgotten:
    after = before.forget(*sites)
    check_left(after.total.is_proper(), sites)
    receipt = issue(before, after, None)
    if receipt.exact:
        return Forgotten(after, receipt, None, 0.0, Status.of(0.0, TOLERANCE), 0.0)
    why = ("the sites that stay were not asked to refine their factors",)
    return Forgotten(after, receipt, None, None, Status.of(math.inf, TOLERANCE, why))


def _not_converged(run: Run, sites: tuple[str, ...], left: float | None) -> ConvergenceError:
    measured = f"; {left:.2g} nats from where more sweeps lead" if left is not None else ""
    return ConvergenceError(
        found=f"{run.status}{measured} after {', '.join(map(repr, sites))} left",
        expected="a posterior that has converged, of which a receipt can speak",
        fix="Raise sweeps=, or leave it out, or pass allow_unconverged=True for a receipt all the "
        "same; nothing was changed.",
    )


def _measured(run: Run) -> tuple[float | None, float | None]:
    """Return the estimated distance and its upper estimate; None where a site fails."""
    try:
        distance = run.left
        ended = run.descended
        if ended is not None and math.isfinite(distance):
            # The receipt is of the posterior that stays, so the divergence is that from the limit.
            far = max(float(run.posterior.kl(ended.state.posterior)), 0.0)
            distance = (math.sqrt(far) + math.sqrt(ended.rest)) ** 2
        return _known(distance), _known(max(distance, run.bound))
    except SiteError:
        return None, None


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None
