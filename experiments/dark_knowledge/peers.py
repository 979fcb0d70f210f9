"""The posterior itself, as far as sampling goes (NUTS of NumPyro), and plug-in networks.

All in double precision.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from posterity.models.forward import outputs
from posterity.networks import Layers

Array = np.ndarray


def classes(layers: Layers, x: Array, y: Array, variance: float) -> Callable[[Any], Any]:
    """The log density of flat weights, up to a constant: labels, and N(0, variance)."""

    def log_density(z: Any) -> Any:
        logits = jax.nn.log_softmax(outputs(layers, z, jnp.asarray(x)))
        chosen = jnp.take_along_axis(logits, jnp.asarray(y, jnp.int32)[:, None], 1)
        return chosen.sum() - (z**2).sum() / (2 * variance)

    return log_density


def values(
    layers: Layers, x: Array, y: Array, variances: Array, noise_variance: float
) -> Callable[[Any], Any]:
    """The same of numbers with Gaussian noise; each weight has a prior variance of its own."""

    def log_density(z: Any) -> Any:
        residual = jnp.asarray(y) - outputs(layers, z, jnp.asarray(x))[:, 0]
        return -(residual**2).sum() / (2 * noise_variance) - (z**2 / (2 * variances)).sum()

    return log_density


def nuts(
    log_density: Any, start: Array, *, warmup: int, draws: int, seed: int, depth: int = 10
) -> Array:
    """(chains, draws, p) weights; one chain a row of ``start``, at most 2 ** ``depth`` steps each.

    Source: hoffman2014; phan2019.
    """
    from numpyro.infer import MCMC, NUTS

    with jax.enable_x64(True):
        sampler = MCMC(
            NUTS(potential_fn=lambda z: -log_density(z), max_tree_depth=depth),
            num_warmup=warmup,
            num_samples=draws,
            num_chains=len(start),
            chain_method="vectorized" if len(start) > 1 else "sequential",
            progress_bar=False,
        )
        first = jnp.asarray(start if len(start) > 1 else start[0], jnp.float64)
        sampler.run(jax.random.key(seed), init_params=first)
        return np.asarray(sampler.get_samples(group_by_chain=True), np.float64)


def flat(stack: Any) -> Array:
    """(S, p) flat weights of stored draws."""
    leaves = jax.tree.leaves(stack)
    return np.concatenate([np.asarray(a, np.float64).reshape(len(a), -1) for a in leaves], 1)


def mode(log_density: Callable[[Any], Any], size: int, *, seed: int, starts: int = 5) -> Array:
    """(size,) the best of several climbs by L-BFGS."""
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        value = jax.jit(jax.value_and_grad(lambda z: -log_density(z)))
        both = lambda z: tuple(np.asarray(part, np.float64) for part in value(jnp.asarray(z)))
        options = {"jac": True, "method": "L-BFGS-B", "options": {"maxiter": 5000}}
        begin = [0.5 * rng.normal(size=size) for _ in range(starts)]
        found = [scipy.optimize.minimize(both, start, **options) for start in begin]
    return min(found, key=lambda end: end.fun).x
