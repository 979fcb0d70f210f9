"""Nodes and chances: for a standard normal, and for members of families over one number."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Float, Real
from posterity.families import ExponentialFamily
from posterity.lazy import jax, jnp

TENSOR = {1: 32, 2: 12, 3: 7}
"""Gauss-Hermite nodes an axis, where a grid is still small."""
PAIRS, ROTATIONS = 256, 16
"""The least numbers of mirrored nodes, where there is no grid, and of their rotations."""
DEVIATIONS = 9.0
"""How far equidistant nodes reach, in standard deviations: 40 nats."""
PEAK, ZOOMS = 128, 2
"""Equidistant nodes about a peak, and how often they are drawn closer about it."""
FURTHEST = 40.0
"""How far out, in standard deviations, a peak of what is integrated is looked for: 800 nats."""
BELOW = 40.0
"""In nats: what lies further below the peak, rounding hides."""
TAIL = 300.0
"""How far the nodes reach: to where the density is this many nats below its peak. Functions that
grow towards the ends, such as ``1/z``, call for far more than the 37 nats that rounding hides."""


@functools.cache
def hermite(nodes: int) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Gauss-Hermite: exact for polynomials up to degree ``2 nodes - 1``."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points, weights / weights.sum()


@functools.cache
def cubature(size: int) -> tuple[Float[np.ndarray, "m p"], Float[np.ndarray, " m"]]:
    """Nodes (m, p) and chances, all positive, exact up to degree three at the least.

    A grid of Gauss-Hermite nodes up to three dimensions; beyond, quasi-random pairs, whose error
    falls a little more slowly than their number grows. A bound that is computed by such sums is
    one up to their error.
    """
    if size in TENSOR:
        points, weights = hermite(TENSOR[size])
        grid = itertools.product(range(len(points)), repeat=size)
        index = np.array(list(grid))
        return points[index], weights[index].prod(-1)
    nodes = normal_pairs(size, max(PAIRS, 16 * size))
    return nodes, np.full(len(nodes), 1 / len(nodes))


@functools.cache
def rotations(size: int) -> Float[np.ndarray, "r p p"]:
    """Orthogonal matrices by which the nodes of :func:`cubature` are turned, from record to record.

    Turned nodes are as good, and what is off by them alone does not add up over records. There is
    only the identity where nodes are a grid, which is accurate enough.
    """
    draws = np.random.default_rng(0).normal(size=(ROTATIONS - 1, size, size))
    turned = draws if size not in TENSOR else draws[:0]
    return np.concatenate([np.eye(size)[None], np.linalg.qr(turned).Q])


@functools.lru_cache(maxsize=32)
def normal_pairs(size: int, pairs: int, seed: int = 0) -> np.ndarray:
    """Pairs of mirrored nodes (2 pairs, size), of mean zero.

    Their covariance is the identity where there are as many pairs as coordinates.
    """
    from scipy.special import ndtri
    from scipy.stats import qmc

    # Of a power of two, as these sequences are made for; what is left over is left out.
    uniform = qmc.Sobol(size, rng=seed).random_base2((pairs - 1).bit_length())[:pairs]
    normal = ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))
    if size > pairs:
        return np.concatenate([normal, -normal])
    whitened = np.linalg.solve(np.linalg.cholesky(normal.T @ normal / pairs), normal.T).T
    return np.concatenate([whitened, -whitened])


@functools.lru_cache(maxsize=32)
def normal_nodes(nodes: Any, dtype: Any) -> tuple[Float[Real, " nodes"], Float[Real, " nodes"]]:
    """Equidistant nodes and chances for a standard normal.

    For functions narrower than the normal these beat as many Gauss-Hermite nodes, which spend
    themselves on the far tails (trefethen2014).
    """
    x = np.linspace(-DEVIATIONS, DEVIATIONS, nodes)
    chances = np.exp(-(x**2) / 2)
    return frozen(x.astype(dtype)), frozen((chances / chances.sum()).astype(dtype))


def log_normal_mean(
    log_function: Callable[[Float[Real, "*n m"]], Float[Real, "*n m"]], like: Float[Real, "*n"]
) -> Float[Real, "*n"]:
    """``log E[exp log_function(u)]``, ``u`` standard normal, of ``n`` functions with a peak each.

    However narrow beside the normal: nodes are equidistant, first over all that may matter, then
    over what is seen to, and over that once more.
    """
    xp = namespace(like)
    steps = np.linspace(0.0, 1.0, PEAK).astype(like.dtype)
    low = xp.np.full((*like.shape, 1), -FURTHEST, like.dtype)
    high = -low
    for _ in range(ZOOMS):
        u, values = _integrand(log_function, low, high, steps)
        spacing = u[..., 1:2] - u[..., :1]
        matters = values >= values.max(-1, keepdims=True) - BELOW
        low = xp.np.where(matters, u, np.inf).min(-1, keepdims=True) - spacing
        high = xp.np.where(matters, u, -np.inf).max(-1, keepdims=True) + spacing
    u, values = _integrand(log_function, low, high, steps)
    return xp.logsumexp(values) + xp.np.log(u[..., 1] - u[..., 0])


def _integrand(
    log_function: Callable[..., Any], low: Real, high: Real, steps: Real
) -> tuple[Any, Any]:
    u = low + (high - low) * steps
    return u, log_function(u) - (u**2 + math.log(2 * math.pi)) / 2


class Nodes(NamedTuple):
    """Events, their sufficient statistics, and chances that sum to one."""

    z: Float[Real, "nodes ..."]
    statistics: Float[Real, "nodes dim"]
    chances: Float[Real, " nodes"]


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
