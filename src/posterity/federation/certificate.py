"""How far a run's posterior is from where its own sites would leave it alone."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from posterity.arrays.tree import map_leaves
from posterity.families import ExponentialFamily, at_rest
from posterity.federation.keys import site_key
from posterity.federation.visit import SiteProblem, failure_of
from posterity.inference.step import dtype_of, fisher_length
from posterity.inference.update import LocalUpdate

if TYPE_CHECKING:
    from posterity.federation.run import Run

DRAWS = 64
"""Estimates averaged where gradients are noisy."""


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How far a posterior is from the fixed point of its own sites' free energy.

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
        """What the distance hardly exceeds: two standard errors more."""
        return self.distance + 2 * self.error


def certify(run: "Run", *, draws: int = DRAWS) -> Certificate:
    """Measure how far the run's posterior is from where its sites would leave it alone.

    Where gradients are noisy, ``draws`` estimates are averaged.

    Raises:
        SiteError: if a site fails, unless the run passes over such sites.
    """
    q, noise, residuals = run.posterior, 0.0, {}
    total = q.zero()
    with jax.enable_x64(True):
        for site in run.sites:
            if not run.federation.sites[site].silent:
                mean, variance = _asked(run, site, draws)
                residuals[site] = float(_length(q, mean))
                total, noise = total + at_rest(mean), noise + float(variance)
        squared = float(_length(q, total)) ** 2
    distance = max(squared - noise, 0.0) / 2
    error = math.sqrt(4 * 2 * distance * noise + 2 * noise**2) / 2
    return Certificate(residuals, distance if math.isfinite(squared) else math.nan, error)


def _asked(run: "Run", site: str, draws: int) -> tuple[Any, Any]:
    """What the site says, and how noisy it is; NaN if it fails and is passed over."""
    problem, factor = run.federation.site(site), run.state.factor(site)
    try:
        return direction(problem, run.posterior, factor, draws, key=site_key(run.key, site))
    except Exception as error:
        if run.federation.on_error == "raise":
            raise failure_of(error, site) from error
        return map_leaves(lambda leaf: np.full_like(leaf, np.nan), factor), np.nan


def direction(
    problem: SiteProblem, q: ExponentialFamily, factor: ExponentialFamily, draws: int, *, key: Any
) -> tuple[Any, Any]:
    """``∇_μ E_q[log likelihood]/α - η`` of one site: what it would still change.

    Beside it the squared Fisher length that noise gives to the mean of the draws.
    """
    update, model, records = problem.update, problem.model, problem.records
    if update.conjugate:
        return update.exact_factor(model, records) - factor, 0.0
    if update.trains:  # which takes too long to do it several times
        return problem.improve(q, factor, key=key).factor - factor, 0.0
    keys = jax.random.split(key, draws if update.noisy else 1)
    return _direction(update.traced(), model, q, factor, records.padded(), keys)


@eqx.filter_jit
def _direction(
    update: LocalUpdate, model: Any, q: Any, factor: Any, records: Any, keys: Any
) -> tuple[Any, Any]:
    # One draw after another: side by side, those of a network do not fit into memory.
    records, count = records.widened(), keys.shape[0]

    def add(carry: Any, key: Any) -> tuple[Any, None]:
        total, squares = carry
        drawn = update.direction(model, q, factor, records, key=key)
        return (total + drawn, squares + q.squared_length(drawn)), None

    start = (jax.tree.map(jnp.asarray, q.zero()), jnp.zeros((), dtype_of(q)))
    (total, squares), _ = jax.lax.scan(add, start, keys)
    mean = total / count
    spread = squares / count - q.squared_length(mean)
    return mean, jnp.maximum(spread, 0.0) / max(count - 1, 1)


@eqx.filter_jit
def _length(q: Any, step: Any) -> jax.Array:
    return fisher_length(q, step)
