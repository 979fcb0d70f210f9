"""Expectations under one-dimensional members, by sums over few nodes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.families import Beta, Gamma
from posterity.families.special import trigamma

CORE, TAIL = 9.0, 38.0
"""How far the nodes reach: standard deviations, and nats of exponential decay beyond."""


class Nodes(NamedTuple):
    """Events, their sufficient statistics, and chances that sum to one."""

    z: Float[jax.Array, "nodes ..."]
    statistics: Float[jax.Array, "nodes dim"]
    chances: Float[jax.Array, " nodes"]


def expectation_nodes(q: Any, nodes: int) -> Nodes:
    """Nodes with ``E_q[f] ≈ Σ p f(z)``.

    The support is mapped to the whole line (logit for the Beta, logarithm for the Gamma), where
    densities are analytic and decay at least exponentially; equidistant nodes then converge
    faster than any power of their number (trefethen2014).
    """
    if isinstance(q, Beta):
        return _beta_nodes(jnp.asarray(q.a), jnp.asarray(q.b), nodes)
    if isinstance(q, Gamma):
        return _gamma_nodes(jnp.asarray(q.shape), jnp.asarray(q.rate), nodes)
    mean, deviation = q.mean[0], 1 / jnp.sqrt(jnp.asarray(q.precision).reshape(()))
    x = _line(mean, CORE * deviation, CORE * deviation, nodes)
    chances = jax.nn.softmax(-(((x - mean) / deviation) ** 2) / 2)
    return Nodes(x[:, None], q.sufficient_statistics(x[:, None]), chances)


def _beta_nodes(a: jax.Array, b: jax.Array, nodes: int) -> Nodes:
    # The logit has this deviation, and its density decays like exp(a x) and exp(-b x).
    deviation = CORE * jnp.sqrt(trigamma(a) + trigamma(b))
    x = _line(jnp.log(a) - jnp.log(b), deviation + TAIL / a, deviation + TAIL / b, nodes)
    statistics = jnp.stack([jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)], axis=-1)
    limits = jnp.finfo(x.dtype)  # where z rounds to 0 or 1, take its neighbour inside
    z = jnp.clip(jax.nn.sigmoid(x), limits.tiny, 1 - limits.epsneg)
    return Nodes(z, statistics, jax.nn.softmax(statistics @ jnp.stack([a, b])))


def _gamma_nodes(shape: jax.Array, rate: jax.Array, nodes: int) -> Nodes:
    deviation = CORE * jnp.sqrt(trigamma(shape))
    x = _line(jnp.log(shape) - jnp.log(rate), deviation + TAIL / shape, deviation, nodes)
    z = jnp.maximum(jnp.exp(x), jnp.finfo(x.dtype).tiny)
    return Nodes(z, jnp.stack([x, -z], axis=-1), jax.nn.softmax(shape * x - rate * z))


def gauss_hermite(
    nodes: int, dtype: Any
) -> tuple[Float[jax.Array, " nodes"], Float[jax.Array, " nodes"]]:
    """Nodes and chances for a standard normal."""
    x, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return jnp.asarray(x, dtype), jnp.asarray(weights / weights.sum(), dtype)


def _line(centre: Any, left: Any, right: Any, nodes: int) -> jax.Array:
    return centre - left + (left + right) * jnp.linspace(0.0, 1.0, nodes)
