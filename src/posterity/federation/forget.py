"""``forget``: take sites out of a ledger or a run, refine what is left, and give a receipt."""

import dataclasses
import math

from posterity.checks import check_proper
from posterity.errors import ConvergenceError, LedgerError, SiteError, UsageError
from posterity.federation.certificate import certify
from posterity.federation.run import Run
from posterity.ledger import Ledger
from posterity.receipt import Receipt, Refinement, issue

AFTERWARDS = 30
"""Sweeps that a copy makes, at most, to see how far those that were asked for fell short."""


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """What ``forget`` gives back.

    ``run`` is None where a ledger was given. ``distance`` is the KL divergence, in nats, to the
    posterior that the sites that stay reach on their own when they go on until nothing changes; 0
    where forgetting is exact. Where gradients are noisy it is an upper estimate of what one more
    round would change, nothing more: a network has many optima, and trained anew it may well end
    in another. None where it cannot be known: for want of the sites' data, or because a site that
    stays fails, or they do not settle.
    """

    ledger: Ledger
    receipt: Receipt
    run: Run | None
    distance: float | None

    @property
    def exact(self) -> bool:
        """Whether the ledger's posterior is, to the last bit, that of one that never saw them."""
        return self.receipt.exact


def forget(
    target: Ledger | Run,
    *sites: str,
    sweeps: int | None = None,
    restart: bool = False,
    unsettled: bool = False,
) -> Forgotten:
    """Take sites out of a posterior: exactly where that is possible, and saying so where not.

    Their factors are subtracted, on which the ledger's arithmetic leaves no residue. If all other
    factors were found from their own sites' data alone (conjugate models), that is all, and
    ``exact`` is true. Otherwise the others were fitted in the company of those who left, so in a
    run passes over the sites that stay refine them until that converges, and ``exact`` is false.

    Args:
        target: a run, whose sites can still be asked; or a ledger, where a subtraction is all
            that can be done.
        sites: names, at least one.
        sweeps: passes of refinement, 0 for none, in place of as many as it takes. Only for runs of
            models that are not conjugate.
        restart: set the factors of those who stay to zero before refining them: training anew.
            The way out where what is left after the subtraction is no distribution.
        unsettled: give a receipt also for what has not converged; it says how far that is.

    Raises:
        LedgerError: if a site is unknown, was forgotten before, or contributed nothing yet.
        ParameterError: if what is left is no distribution.
        UsageError: if no site is named, or refinement is asked of a ledger, or of a run that
            forgets exactly.
        ConvergenceError: if what is left has not converged, unless ``unsettled``.
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
    refinable = isinstance(target, Run) and not target.exact
    sites = tuple(dict.fromkeys(sites))
    if not sites or ((sweeps or restart) and not refinable) or (sweeps or 0) < 0:
        raise UsageError(
            found=f"sites {list(sites)}, sweeps={sweeps}, restart={restart} for "
            + ("a ledger" if isinstance(target, Ledger) else "a run")
            + (" that forgets exactly" if isinstance(target, Run) and target.exact else ""),
            expected="at least one site; refinement, by no negative number of sweeps, only in "
            "runs of models that are not conjugate",
            fix="Name the sites, and leave `sweeps` and `restart` out.",
        )
    if isinstance(target, Ledger):
        return _from_ledger(target, sites)
    return _from_run(target, sites, sweeps, restart, unsettled)


def _from_ledger(before: Ledger, sites: tuple[str, ...]) -> Forgotten:
    after = before.forget(*sites)
    check_proper(after.posterior, "what is left of the ledger")
    receipt = issue(before, after, None)
    return Forgotten(after, receipt, None, 0.0 if receipt.exact else None)


def _from_run(
    target: Run, sites: tuple[str, ...], sweeps: int | None, restart: bool, unsettled: bool
) -> Forgotten:
    before = target.ledger
    restart = restart and bool(set(before.sites) - set(sites))  # else no factor is left to zero
    run = (target.restarted() if restart else target).forget(*sites)
    _check_contributed(before, sites)
    if run.ledger.independent and not restart:  # conjugate, or nobody is left
        return Forgotten(run.ledger, issue(before, run.ledger, None), run, 0.0)
    run = run.refined() if sweeps is None else run.sweep(sweeps)
    left = _left(run)
    if not unsettled and (left is None or left > run.status.tolerance):
        raise ConvergenceError(
            found=f"{run.status} after {', '.join(map(repr, sites))} left",
            expected="a posterior that has converged, of which a receipt can speak",
            fix="Leave `sweeps` out or raise it, or pass `unsettled=True` for a receipt all the "
            "same; nothing was changed.",
        )
    certificate = certify(run)
    residuals = {site: _known(length) for site, length in certificate.residuals.items()}
    measured = {"residuals": residuals, "estimated_distance_nats": left}
    refinement = Refinement.between(before, run.ledger, restart, **measured)
    return Forgotten(run.ledger, issue(before, run.ledger, refinement), run, left)


def _left(run: Run) -> float | None:
    """How far the run is from where more sweeps lead, by making them where noise allows it."""
    if run.federation.update.noisy or run.status.converged:
        return _known(run.status.change)
    try:
        end = run.refined(most=AFTERWARDS)
    except SiteError:
        return None
    if not end.status.converged:
        return None
    return max(float(run.posterior.kl(end.posterior)), 0.0) + end.status.change


def _check_contributed(before: Ledger, sites: tuple[str, ...]) -> None:
    if strangers := sorted(set(sites) - set(before.sites)):
        raise LedgerError(
            found=f"sites {strangers}, which have contributed nothing yet",
            expected=f"some of {list(before.sites)}",
            fix="Bar them from joining by `run.forget`: there is nothing to give a receipt for.",
        )


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None
