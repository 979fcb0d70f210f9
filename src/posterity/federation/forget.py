"""``forget``: take sites out of a ledger or a run, refine what is left, and give a receipt."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from posterity.checks import check_proper
from posterity.errors import LedgerError, UsageError
from posterity.federation.run import Run
from posterity.federation.state import failure_of, padded, site_key
from posterity.inference.update import LocalUpdate, fisher_length
from posterity.ledger import Ledger
from posterity.models import ConjugateModel
from posterity.receipt import Receipt, Refinement, issue

SWEEPS, NOISY_SWEEPS = 2, 20
"""Sweeps of refinement over the sites that stay: with exact gradients, and with noisy ones."""
DRAWS = 64
"""Estimates averaged for the certificate where gradients are noisy."""


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """What ``forget`` gives back.

    ``run`` is None where a ledger was given. ``distance`` estimates, in nats, the KL divergence
    to the posterior that the sites that stay would have reached on their own; it is 0 where
    forgetting is exact and None where it cannot be known: for want of the sites' data, or
    because a site that stays fails.
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
    target: Ledger | Run, *sites: str, sweeps: int | None = None, restart: bool = False
) -> Forgotten:
    """Take sites out of a posterior: exactly where that is possible, and saying so where not.

    Their factors are subtracted, on which the ledger's arithmetic leaves no residue. If all other
    factors were found from their own sites' data alone (conjugate models), that is all, and
    ``exact`` is true. Otherwise the others were fitted in the company of those who left, so in a
    run ``sweeps`` more passes over the sites that stay refine them, and ``exact`` is false.

    Args:
        target: a run, whose sites can still be asked; or a ledger, where a subtraction is all
            that can be done.
        sites: names, at least one.
        sweeps: passes of refinement, 0 for none; by default 2 where gradients are exact and 20
            where they are noisy. Only for runs of models that are not conjugate.
        restart: set the factors of those who stay to zero before refining them: training anew.
            The way out where what is left after the subtraction is no distribution.

    Raises:
        LedgerError: if a site is unknown, was forgotten before, or contributed nothing yet.
        ParameterError: if what is left is no distribution.
        UsageError: if no site is named, or refinement is asked of a ledger, or of a run that
            forgets exactly.
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
    if sweeps is None:
        sweeps = NOISY_SWEEPS if target.problem.update.noisy else SWEEPS
    return _from_run(target, sites, sweeps, restart)


def _from_ledger(before: Ledger, sites: tuple[str, ...]) -> Forgotten:
    after = before.forget(*sites)
    check_proper(after.posterior, "what is left of the ledger")
    receipt = issue(before, after, None)
    return Forgotten(after, receipt, None, 0.0 if receipt.exact else None)


def _from_run(target: Run, sites: tuple[str, ...], sweeps: int, restart: bool) -> Forgotten:
    before = target.ledger
    restart = restart and bool(set(before.sites) - set(sites))  # else no factor is left to zero
    run = (target.restarted() if restart else target).forget(*sites)
    _check_contributed(before, sites)
    if run.ledger.independent and not restart:  # conjugate, or nobody is left
        return Forgotten(run.ledger, issue(before, run.ledger, None), run, 0.0)
    run = run.sweep(sweeps)
    certificate = certify(run)
    distance = _known(certificate.distance)
    residuals = {site: _known(length) for site, length in certificate.residuals.items()}
    measured = {"residuals": residuals, "estimated_distance_nats": distance}
    refinement = Refinement.between(before, run.ledger, restart, **measured)
    return Forgotten(run.ledger, issue(before, run.ledger, refinement), run, distance)


def _check_contributed(before: Ledger, sites: tuple[str, ...]) -> None:
    if strangers := sorted(set(sites) - set(before.sites)):
        raise LedgerError(
            found=f"sites {strangers}, which have contributed nothing yet",
            expected=f"some of {list(before.sites)}",
            fix="Bar them from joining by `run.forget`: there is nothing to give a receipt for.",
        )


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How far a posterior is from the fixed point of its own sites' free energy.

    ``residuals``: by site the length, in the Fisher metric, of ``∇_μ E_q[log likelihood_k]/α -
    η_k``, in sqrt(nats). ``distance``: half the squared length of their sum, the KL divergence in
    nats, to second order, that one undamped round would still move the posterior. A site whose
    gradient is not finite makes both NaN, and so does one that fails where the run passes over it.
    """

    residuals: dict[str, float]
    distance: float


def certify(run: Run, *, draws: int = DRAWS) -> Certificate:
    """Measure how far the run's posterior is from where its sites would leave it alone.

    Where gradients are noisy, ``draws`` estimates are averaged and the noise that remains makes
    both figures too large rather than too small, on average.

    Raises:
        SiteError: if a site fails, unless the run passes over such sites.
    """
    problem, state = run.problem, run.state
    assert problem.update.estimator is not None, "runs resolve their update"
    noisy = problem.update.noisy
    directions, residuals = [], {}
    with jax.enable_x64(True):
        for site in run.sites:
            records = problem.sites[site]
            if records.size == 0:
                continue
            try:
                vector = _site_direction(run, site, draws if noisy else 1)
            except Exception as error:
                if problem.on_error == "raise":
                    raise failure_of(error, site) from error
                vector = jnp.full_like(state.posterior.natural_parameters, jnp.nan)
            directions.append(vector)
            residuals[site] = float(_length(state.posterior, vector))
        total = sum(directions, start=jnp.zeros_like(state.posterior.natural_parameters))
        distance = float(_length(state.posterior, total)) ** 2 / 2
    return Certificate(residuals, distance)


def _site_direction(run: Run, site: str, draws: int) -> Any:
    """``∇_μ E_q[log likelihood]/α - η`` of one site, flat."""
    problem, factor, records = run.problem, run.state.factor(site), run.problem.sites[site]
    update, model = problem.update, problem.model
    if update.conjugate and isinstance(model, ConjugateModel):  # need not be traceable
        return (model.factor(records) / update.temperature - factor).natural_parameters
    keys = jax.random.split(site_key(run.key, site), draws)
    return _direction(update, model, run.posterior, factor, padded(records), keys)


@eqx.filter_jit
def _direction(
    update: LocalUpdate, model: Any, q: Any, factor: Any, records: Any, keys: Any
) -> jax.Array:
    one = lambda key: update.direction(model, q, factor, records, key=key).natural_parameters
    return jax.vmap(one)(keys).mean(0)


@eqx.filter_jit
def _length(q: Any, vector: jax.Array) -> jax.Array:
    return fisher_length(q, q.with_natural_parameters(jnp.asarray(vector)))
