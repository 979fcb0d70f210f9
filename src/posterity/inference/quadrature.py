"""Expectations under one-dimensional members, by sums over few nodes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posterity.families import Beta, Gamma

TAIL = 300.0
"""How far the nodes reach: to where the density is this many nats below its peak. Functions that
grow towards the ends, such as ``1/z``, call for far more than the 37 nats that rounding hides."""
REACH = 9.0
"""The same for functions of linear predictors, in standard deviations: 40 nats."""


class Nodes(NamedTuple):
    """Events, their sufficient statistics, and chances that sum to one."""

    z: Float[jax.Array, "nodes ..."]
    statistics: Float[jax.Array, "nodes dim"]
    chances: Float[jax.Array, " nodes"]


def expectation_nodes(q: Any, nodes: int) -> Nodes:
    """Nodes with ``E_q[f] ≈ Σ p f(z)``.

    The support is mapped to the whole line (logit for the Beta, logarithm for the Gamma), where
    densities decay at least exponentially, and then by ``sinh``, under which they decay doubly
    so while the middle keeps its scale. Equidistant nodes then converge exponentially in their
    number, also for densities that pile up at the ends of their support (trefethen2014).
    """
    if isinstance(q, Beta):
        return _beta_nodes(jnp.asarray(q.a), jnp.asarray(q.b), nodes)
    if isinstance(q, Gamma):
        return _gamma_nodes(jnp.asarray(q.shape), jnp.asarray(q.rate), nodes)
    mean, deviation = q.mean[0], 1 / jnp.sqrt(jnp.asarray(q.precision).reshape(()))
    end = np.sqrt(2 * TAIL)
    offset, log_spacing = _line(deviation, -end * deviation, end * deviation, nodes)
    chances = jax.nn.softmax(log_spacing - (offset / deviation) ** 2 / 2)
    z = (mean + offset)[:, None]
    return Nodes(z, q.sufficient_statistics(z), chances)


def _beta_nodes(a: jax.Array, b: jax.Array, nodes: int) -> Nodes:
    # In x = logit z the log density is a log σ(x) + b log σ(-x): peak at log(a/b), curvature
    # ab/(a + b), and no more than a x and -b x, which say where the tails have run out.
    peak = -a * jnp.log1p(b / a) - b * jnp.log1p(a / b)
    centre, scale = jnp.log(a) - jnp.log(b), 1 / jnp.sqrt(1 + a / (1 + a / b))
    ends = (peak - TAIL) / a - centre, (TAIL - peak) / b - centre
    offset, log_spacing = _line(scale, *ends, nodes)
    x = centre + offset
    statistics = jnp.stack([jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)], axis=-1)
    limits = jnp.finfo(x.dtype)  # where z rounds to 0 or 1, take its neighbour inside
    z = jnp.clip(jax.nn.sigmoid(x), limits.tiny, 1 - limits.epsneg)
    return Nodes(z, statistics, jax.nn.softmax(statistics @ jnp.stack([a, b]) + log_spacing))


def _gamma_nodes(shape: jax.Array, rate: jax.Array, nodes: int) -> Nodes:
    # In y = log(z rate/shape) the log density is shape (y - exp y).
    drop = TAIL / shape
    ends = -1 - drop, jnp.log1p(drop + jnp.sqrt(2 * drop))
    y, log_spacing = _line(1 / jnp.sqrt(1 + shape), *ends, nodes)
    x = y + jnp.log(shape) - jnp.log(rate)
    z = jnp.maximum(jnp.exp(x), jnp.finfo(x.dtype).tiny)
    chances = jax.nn.softmax(shape * (y - jnp.expm1(y)) + log_spacing)
    return Nodes(z, jnp.stack([x, -z], axis=-1), chances)


def normal_nodes(
    nodes: int, dtype: Any
) -> tuple[Float[jax.Array, " nodes"], Float[jax.Array, " nodes"]]:
    """Equidistant nodes and chances for a standard normal.

    For functions narrower than the normal these beat as many Gauss-Hermite nodes, which spend
    themselves on the far tails (trefethen2014).
    """
    x = jnp.linspace(-REACH, REACH, nodes, dtype=dtype)
    return x, jax.nn.softmax(-(x**2) / 2)


def _line(scale: Any, left: Any, right: Any, nodes: int) -> tuple[jax.Array, jax.Array]:
    """Points ``scale · sinh u`` from ``left`` to ``right``, and the logs of their spacings."""
    low, high = jnp.arcsinh(left / scale), jnp.arcsinh(right / scale)
    u = low + (high - low) * jnp.linspace(0.0, 1.0, nodes)
    return scale * jnp.sinh(u), jnp.logaddexp(u, -u)
