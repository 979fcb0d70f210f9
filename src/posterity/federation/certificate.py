"""How far a run's posterior is from where its own sites would leave it alone."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.families import ExponentialFamily
from posterity.federation.keys import site_key
from posterity.federation.run import Run
from posterity.federation.visit import SiteProblem, failure_of
from posterity.inference.step import fisher_length
from posterity.inference.update import LocalUpdate

DRAWS = 64
"""Estimates averaged where gradients are noisy."""


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
    directions = {}
    with jax.enable_x64(True):
        for site in run.sites:
            if run.federation.sites[site].size:
                directions[site] = _asked(run, site, draws)
        residuals = {s: float(_length(run.posterior, v)) for s, v in directions.items()}
        zero = jnp.zeros_like(run.posterior.natural_parameters)
        total = _length(run.posterior, sum(directions.values(), start=zero))
    return Certificate(residuals, float(total) ** 2 / 2)


def _asked(run: Run, site: str, draws: int) -> Any:
    """What the site says; NaN if it fails and is passed over."""
    problem, factor = run.federation.site(site), run.state.factor(site)
    try:
        return direction(problem, run.posterior, factor, draws, key=site_key(run.key, site))
    except Exception as error:
        if run.federation.on_error == "raise":
            raise failure_of(error, site) from error
        return np.full_like(factor.natural_parameters, np.nan)


def direction(
    problem: SiteProblem, q: ExponentialFamily, factor: ExponentialFamily, draws: int, *, key: Any
) -> Any:
    """``∇_μ E_q[log likelihood]/α - η`` of one site, flat: what it would still change."""
    update, model, records = problem.update, problem.model, problem.records
    if update.conjugate:
        return (update.exact_factor(model, records) - factor).natural_parameters
    keys = jax.random.split(key, draws if update.noisy else 1)
    return _direction(update, model, q, factor, records.padded(), keys)


@eqx.filter_jit
def _direction(
    update: LocalUpdate, model: Any, q: Any, factor: Any, records: Any, keys: Any
) -> jax.Array:
    # One draw after another: side by side, those of a network do not fit into memory.
    def add(total: jax.Array, key: Any) -> tuple[jax.Array, None]:
        drawn = update.direction(model, q, factor, records, key=key)
        return total + drawn.natural_parameters, None

    zero = jnp.zeros_like(jnp.asarray(q.natural_parameters))
    return jax.lax.scan(add, zero, keys)[0] / keys.shape[0]


@eqx.filter_jit
def _length(q: Any, vector: jax.Array) -> jax.Array:
    return fisher_length(q, q.with_natural_parameters(jnp.asarray(vector)))
