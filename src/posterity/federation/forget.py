"""``forget``: take sites out of a ledger or a run, refine what is left, and give a receipt."""

import dataclasses
import math

from posterity.arguments import NATURAL, Constraint
from posterity.checks import check_proper
from posterity.errors import ConvergenceError, LedgerError, SiteError, UsageError
from posterity.federation.certificate import certify
from posterity.federation.run import ROUNDS, Run
from posterity.ledger import Ledger
from posterity.receipt import Receipt, Refinement, issue

SHARE = 100
"""A copy goes on from what is left until it will move less than this part of the way it came."""
NEGLIGIBLE = 1e-9
"""Nats of which nobody needs two digits."""


_TARGET = Constraint("a run or a ledger", lambda target: isinstance(target, Run | Ledger))
_NAMES = Constraint(
    "names of sites, at least one, each an argument of its own",
    lambda sites: sites and all(isinstance(site, str) for site in sites),
)


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """What ``forget`` gives back.

    ``run`` is None where a ledger was given. ``distance`` is the KL divergence, in nats, to the
    posterior that the sites that stay reach from here when they go on until nothing changes: they
    do, on a copy, to measure it. It is 0 where forgetting is exact. Where gradients are noisy it is
    an upper estimate of what one more round would change, no more.

    Where there is one optimum, as in logistic regression, that is the distance to what training
    anew leads to. Where there are many, as in networks, it is not: two trainings may end hundreds
    of nats apart, and refinement stays near the optimum that the leaver helped to choose.

    None where it cannot be known: for want of the sites' data, or because a site that stays fails,
    its sums over nodes do not suffice, or nothing settles.
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
        unsettled: give a receipt also for what is further from there than twice the run's
            tolerance, or for what nobody knows; it says how far that is.

    Raises:
        LedgerError: if a site is unknown, was forgotten before, or contributed nothing yet.
        ParameterError: if what is left is no distribution.
        UsageError: if ``target`` is neither, no site is named, ``sweeps`` is no number of them, or
            refinement is asked of a ledger, or of a run that forgets exactly.
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
    _TARGET.check(target=target)
    _NAMES.check(sites=sites)
    NATURAL.or_none().check(sweeps=sweeps)
    sites = tuple(dict.fromkeys(sites))
    if (sweeps or restart) and (isinstance(target, Ledger) or target.exact):
        raise UsageError(
            found=f"sweeps={sweeps}, restart={restart} for "
            + ("a ledger" if isinstance(target, Ledger) else "a run that forgets exactly"),
            expected="refinement only in runs of models that are not conjugate",
            fix="Leave `sweeps` and `restart` out.",
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
    if not (unsettled or sweeps is not None or run.status.converged):
        raise _unsettled(run, sites, None)
    certificate = certify(run)
    left = _left(run, certificate.upper)
    # A status is an estimate: what it calls converged may be a little further.
    if not unsettled and (left is None or left > 2 * run.status.tolerance):
        raise _unsettled(run, sites, left)
    residuals = {site: _known(length) for site, length in certificate.residuals.items()}
    measured = {"residuals": residuals, "estimated_distance_nats": left}
    refinement = Refinement.between(before, run.ledger, restart, **measured)
    return Forgotten(run.ledger, issue(before, run.ledger, refinement), run, left)


def _unsettled(run: Run, sites: tuple[str, ...], left: float | None) -> ConvergenceError:
    measured = f"; {left:.2g} nats from where more sweeps lead" if left is not None else ""
    return ConvergenceError(
        found=f"{run.status}{measured} after {', '.join(map(repr, sites))} left",
        expected="a posterior that has converged, of which a receipt can speak",
        fix="Leave `sweeps` out or raise it, or pass `unsettled=True` for a receipt all the same; "
        "nothing was changed.",
    )


def _left(run: Run, upper: float) -> float | None:
    """How far the run is from where more sweeps lead, by making them where noise allows it."""
    if run.federation.update.noisy:
        return _known(upper)
    try:
        far, beyond = _rehearsed(run)
    except SiteError:
        return None
    return _known((math.sqrt(far) + math.sqrt(beyond)) ** 2)  # lengths add up, not divergences


def _rehearsed(run: Run) -> tuple[float, float]:
    """Nats to where a copy gets by more sweeps, and those that it would still move from there."""
    end, far = run, 0.0
    for _ in range(ROUNDS):
        end = end.sweep().settled()
        far = max(float(run.posterior.kl(end.posterior)), 0.0)
        if end.status.change <= max(far / SHARE, NEGLIGIBLE) or end.status.state == "diverged":
            break
    return far, math.inf if end.status.reasons else end.status.change


def _check_contributed(before: Ledger, sites: tuple[str, ...]) -> None:
    if strangers := sorted(set(sites) - set(before.sites)):
        raise LedgerError(
            found=f"sites {strangers}, which have contributed nothing yet",
            expected=f"some of {list(before.sites)}",
            fix="Bar them from joining by `run.forget`: there is nothing to give a receipt for.",
        )


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None
