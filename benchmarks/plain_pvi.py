"""Partitioned variational inference in plain JAX: what rounds of `federate` are timed against.

The same steps on the same numbers, jitted, without checks, safeguards, names or exact sums.
Sources: bui2018; opper2009 for the gradients; khan2018 for the network's.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
SUMS = np.stack([WEIGHTS, WEIGHTS * NODES]) / WEIGHTS.sum()
Natural = tuple[jax.Array, jax.Array]


def logistic_gradient(q: Natural, x: jax.Array, y: jax.Array) -> Natural:
    """Natural gradient of `E_q[log likelihood]`; the precision is a matrix, or its diagonal.

    Of all ways that were tried the one that takes least: an inverse triangular factor and one
    product in place of solving for each record, nodes by records, a hyperbolic tangent, and both
    sums over nodes as one product.
    """
    shift, precision = q
    if precision.ndim == 2:
        factor = jnp.linalg.cholesky(precision)
        half = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(shift)), lower=True)
        mean = half.T @ (half @ shift)
        variance = ((x @ half.T) ** 2).sum(1)
    else:
        mean, variance = shift / precision, (x**2) @ (1 / precision)
    deviation = jnp.sqrt(variance)
    predictor = x @ mean + deviation * NODES[:, None]
    slopes = y - 0.5 - 0.5 * jnp.tanh(0.5 * predictor)
    slope, bend = SUMS @ slopes
    bend = -bend / deviation
    if precision.ndim == 2:
        curvature = (x.T * bend) @ x
        return slope @ x + curvature @ mean, curvature
    curvature = bend @ x**2
    return slope @ x + curvature * mean, curvature


@functools.partial(jax.jit, static_argnames=("steps", "rate"))
def logistic_visit(
    total: Natural, own: Natural, x: jax.Array, y: jax.Array, *, steps: int, rate: float
) -> tuple[Natural, Natural]:
    """The posterior and the site's factor after its steps."""

    def step(carry: Any, _: Any) -> tuple[Any, None]:
        total, own = carry
        found = logistic_gradient(total, x, y)
        move = [rate * (new - old) for new, old in zip(found, own, strict=True)]
        return tuple(tuple(a + b for a, b in zip(c, move, strict=True)) for c in carry), None

    return jax.lax.scan(step, (total, own), length=steps)[0]


def logistic_round(state: Any, sites: list[Any], *, steps: int, rate: float) -> Any:
    """One visit of each site in turn; `state` is the posterior and a list of factors."""
    total, factors = state
    after = []
    for (x, y), own in zip(sites, factors, strict=True):
        total, own = logistic_visit(total, own, x, y, steps=steps, rate=rate)
        after.append(own)
    return jax.block_until_ready((total, after))


def network_log_likelihood(z: jax.Array, x: jax.Array, y: jax.Array, sizes: Any) -> jax.Array:
    """Of all records: one hidden layer of hyperbolic tangents, and a softmax."""
    inputs, hidden, outputs = sizes
    first, second = z[: inputs * hidden], z[inputs * hidden :]
    logits = jnp.tanh(x @ first.reshape(inputs, hidden)) @ second.reshape(hidden, outputs)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1)
    return chosen.sum()


@functools.partial(jax.jit, static_argnames=("sizes", "steps", "samples", "rate"))
def network_visit(
    total: Natural,
    own: Natural,
    x: Any,
    y: Any,
    key: Any,
    *,
    sizes: Any,
    steps: int,
    samples: int,
    rate: float,
) -> tuple[Natural, Natural]:
    """Variational online Newton with antithetic draws; no precision is more than halved."""

    def step(carry: Any, number: Any) -> tuple[Any, None]:
        (shift, precision), (own_shift, own_precision) = carry
        mean, deviation = shift / precision, 1 / jnp.sqrt(precision)
        key_now = jax.random.fold_in(key, number)
        noise = jax.random.normal(key_now, (samples // 2, len(mean)), mean.dtype)
        noise = jnp.concatenate([noise, -noise])
        slope = jax.grad(network_log_likelihood)
        slopes = jax.vmap(lambda e: slope(mean + deviation * e, x, y, sizes))(noise)
        bend = -(slopes * noise).mean(0) / deviation
        found = (slopes.mean(0) + bend * mean, bend)
        move = (rate * (found[0] - own_shift), rate * (found[1] - own_precision))
        keep = jnp.where(precision + move[1] > precision / 2, 1.0, 0.0)
        both = lambda pair: (pair[0] + keep * move[0], pair[1] + keep * move[1])
        return (both(carry[0]), both(carry[1])), None

    return jax.lax.scan(step, (total, own), jnp.arange(steps))[0]
