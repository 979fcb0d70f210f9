"""``forget``: take sites out of a ledger or a run, refine what is left, and give a receipt."""

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from typing import Any

from posterity.arguments import NATURAL, Constraint, renamed
from posterity.artifact import loaded
from posterity.checks import check_proper
from posterity.errors import ConvergenceError, LedgerError, SiteError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation.run import ROUNDS, Run
from posterity.federation.state import Visit
from posterity.federation.status import TOLERANCE, UNKNOWN, certify
from posterity.ledger import Ledger
from posterity.receipt import Receipt, Refinement, issue
from posterity.status import ProgressCallback, Status

SHARE = 100
"""A rehearsal goes on until what is left is less than this part of the distance it came."""
NEGLIGIBLE = 1e-9
"""Nats of which nobody needs two digits."""


_TARGET = Constraint("a run or a ledger", lambda target: isinstance(target, Run | Ledger))
_NAMES = Constraint(
    "names of sites, at least one, each an argument of its own",
    lambda sites: sites and all(isinstance(site, str) for site in sites),
)


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """The result of :func:`forget`.

    ``run`` is None where a ledger was given. ``status`` is that of the run once it was refined.
    ``distance`` estimates the KL divergence, in nats, to the posterior that the sites that stay
    would reach if they went on until nothing changes; it is 0 where forgetting is exact. By default
    it is what the sites' certificates say (:func:`~posterity.federation.certify`) or the status
    does, whichever is more; after a rehearsal, the distance that it came. Where gradients are noisy
    it is an upper estimate of what one more round would change, no more.

    Where there is one optimum, that is the distance to what training anew leads to. Where there are
    many, as in networks, refinement stays near the one that the leaver helped to choose.

    None where it cannot be known: for want of the sites' data, or because a site that stays fails,
    its sums over nodes do not suffice, or nothing settles.
    """

    ledger: Ledger
    receipt: Receipt
    run: Run | None
    distance: float | None
    status: Status

    @property
    def posterior(self) -> ExponentialFamily:
        """The posterior that is left."""
        return self.ledger.posterior

    @property
    def trace(self) -> Sequence[Visit]:
        """The visits of the run; empty where a ledger was given."""
        return () if self.run is None else self.run.trace

    @property
    def exact(self) -> bool:
        """True if the ledger's posterior is, to the last bit, that of one that never saw them."""
        return self.receipt.exact


@renamed(unsettled="allow_unconverged")
def forget(
    target: Ledger | Run | str | os.PathLike[str],
    *sites: str,
    sweeps: int | None = None,
    restart: bool = False,
    allow_unconverged: bool = False,
    rehearse: bool = False,
    progress: ProgressCallback | None = None,
) -> Forgotten:
    """Take sites out of a posterior: exactly where that is possible, and saying so where not.

    Their factors are subtracted, on which the ledger's arithmetic leaves no residue. If all other
    factors were found from their own sites' data alone (conjugate models), that is all, and
    ``exact`` is true. Otherwise the others were fitted together with those who left, so in a run
    passes over the sites that stay refine them until that converges, and ``exact`` is false.

    Args:
        target: a run, whose sites can still be asked; or a ledger, or the path of one, where a
            subtraction is all that can be done.
        sites: names, at least one.
        sweeps: passes of refinement, 0 for none, in place of as many as it takes. Only for runs of
            models that are not conjugate.
        restart: set the factors of those who stay to zero before refining them: training anew.
            The way out where what is left after the subtraction is no distribution.
        allow_unconverged: give a receipt also for what is further from there than twice the run's
            tolerance, or for what nobody knows; it says how far that is.
        rehearse: measure the distance by up to a hundred more passes of all sites, on a copy, which
            is exacter and takes longer than to ask each site once.
        progress: called after each pass of refinement, with the run so far as ``result``.

    Raises:
        LedgerError: if a site is unknown, was forgotten before, or contributed nothing yet.
        ParameterError: if what is left is no distribution.
        UsageError: if ``target`` is neither, no site is named, ``sweeps`` is no number of them, or
            refinement is asked of a ledger, or of a run that forgets exactly.
        ConvergenceError: if what is left has not converged, unless ``allow_unconverged``.
        SiteError: if a site fails while it refines. In every case ``target`` is as it was.

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
    if (sweeps or restart or rehearse) and (isinstance(source, Ledger) or source.exact):
        raise UsageError(
            found=f"sweeps={sweeps}, restart={restart}, rehearse={rehearse} for "
            + ("a ledger" if isinstance(source, Ledger) else "a run that forgets exactly"),
            expected="refinement only in runs of models that are not conjugate",
            fix="Leave these arguments out.",
        )
    if isinstance(source, Ledger):
        return _from_ledger(source, sites)
    before = source.ledger
    restart = restart and bool(set(before.sites) - set(sites))  # else no factor is left to zero
    run = (source.restarted() if restart else source).forget(*sites)
    if strangers := sorted(set(sites) - set(before.sites)):
        raise LedgerError(
            found=f"sites {strangers}, which have contributed nothing yet",
            expected=f"some of {list(before.sites)}",
            fix="Bar them from joining by `run.forget`: there is nothing to give a receipt for.",
        )
    if run.ledger.independent and not restart:  # conjugate, or nobody is left
        receipt = issue(before, run.ledger, None)
        return Forgotten(run.ledger, receipt, run, 0.0, Status.of(0.0, run.tolerance))
    refined = run.refined if sweeps is None else functools.partial(run.sweep, sweeps)
    run = refined(progress=progress)
    if not (allow_unconverged or sweeps is not None or run.status.converged):
        raise _not_converged(run, sites, None)
    certificate = certify(run)
    left = _left(run, certificate.upper, rehearse)
    # A status is an estimate: what it calls converged may be a little further.
    if not allow_unconverged and (left is None or left > 2 * run.status.tolerance):
        raise _not_converged(run, sites, left)
    residuals = {site: _known(length) for site, length in certificate.residuals.items()}
    measured = {"residuals": residuals, "estimated_distance_nats": left}
    refinement = Refinement.between(before, run.ledger, restart, **measured)
    return Forgotten(run.ledger, issue(before, run.ledger, refinement), run, left, run.status)


def _from_ledger(before: Ledger, sites: tuple[str, ...]) -> Forgotten:
    after = before.forget(*sites)
    check_proper(after.posterior, "what is left of the ledger")
    receipt = issue(before, after, None)
    if receipt.exact:
        return Forgotten(after, receipt, None, 0.0, Status.of(0.0, TOLERANCE))
    why = ("the sites that stay were not asked to refine their factors",)
    return Forgotten(after, receipt, None, None, Status.of(math.inf, TOLERANCE, why))


def _not_converged(run: Run, sites: tuple[str, ...], left: float | None) -> ConvergenceError:
    measured = f"; {left:.2g} nats from where more sweeps lead" if left is not None else ""
    return ConvergenceError(
        found=f"{run.status}{measured} after {', '.join(map(repr, sites))} left",
        expected="a posterior that has converged, of which a receipt can speak",
        fix="Leave `sweeps` out or raise it, pass `rehearse=True` to measure the distance, or "
        "`allow_unconverged=True` for a receipt all the same; nothing was changed.",
    )


def _left(run: Run, upper: float, rehearse: bool) -> float | None:
    if run.agreement.update.noisy:
        return _known(upper)
    if not rehearse:
        # A certificate is of one round: it says nothing of the way that is left beyond it.
        return None if run.status.reasons else _known(max(upper, run.status.left))
    try:
        far, beyond = _rehearsed(run)
    except SiteError:
        return None
    return _known((math.sqrt(far) + math.sqrt(beyond)) ** 2)  # lengths add up, not divergences


def _rehearsed(run: Run) -> tuple[float, float]:
    """Nats to where a copy gets by more sweeps, and those that it would still move from there."""
    end, far = run, 0.0
    for _ in range(ROUNDS):
        end = end.sweep().newton_step()
        far = max(float(run.posterior.kl(end.posterior)), 0.0)
        left, growing = end.claim
        if left <= max(far / SHARE, NEGLIGIBLE) or growing:
            break
    return far, math.inf if {*end.status.reasons} - {UNKNOWN} else end.claim[0]


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None
