"""Expectations under one-dimensional members, by sums over few nodes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from posterity.families import ExponentialFamily

TAIL = 300.0
"""How far the nodes reach: to where the density is this many nats below its peak. Functions that
grow towards the ends, such as ``1/z``, call for far more than the 37 nats that rounding hides."""


class Nodes(NamedTuple):
    """Events, their sufficient statistics, and chances that sum to one."""

    z: Float[jax.Array, "nodes ..."]
    statistics: Float[jax.Array, "nodes dim"]
    chances: Float[jax.Array, " nodes"]


def expectation_nodes(q: ExponentialFamily, nodes: int) -> Nodes:
    """Nodes with ``E_q[f] ≈ Σ p f(z)``, for a member that has a :meth:`line`.

    Along that line (of logits for the Beta, of logarithms for the Gamma) densities decay at least
    exponentially; mapped by ``sinh`` they do so doubly, while the middle keeps its scale.
    Equidistant nodes then converge exponentially in their number, also for densities that pile up
    at the ends of their support (trefethen2014).
    """
    line = jax.tree.map(jnp.asarray, q).line(TAIL)
    low, high = jnp.arcsinh(line.left / line.scale), jnp.arcsinh(line.right / line.scale)
    u = low + (high - low) * jnp.linspace(0.0, 1.0, nodes)
    z, statistics, log_density = line.at(line.scale * jnp.sinh(u))
    log_spacing = jnp.logaddexp(u, -u)
    return Nodes(z, statistics, jax.nn.softmax(log_density + log_spacing))
