"""Quadrature nodes and weights, for a standard normal and for families over one number."""

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
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax, jnp

TENSOR = {1: 32, 2: 12, 3: 7}
"""Gauss-Hermite nodes per axis, by the number of dimensions for which a grid is used."""
AXES = {2: 20, 3: 10}
"""Gauss-Hermite nodes per axis of a grid, by dimension; otherwise nodes are quasi-random pairs."""


@functools.cache
def hermite(nodes: int) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Return Gauss-Hermite nodes and weights, exact for polynomials up to ``2 nodes - 1``."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points, weights / weights.sum()


@functools.cache
def hermite_grid(size: int, nodes: int) -> tuple[Float[np.ndarray, "m p"], Float[np.ndarray, " m"]]:
    """Return a grid of Gauss-Hermite nodes (m, p), ``nodes`` along each axis, and weights."""
    points, weights = hermite(nodes)
    index = np.array(list(itertools.product(range(nodes), repeat=size)))
    return points[index], weights[index].prod(-1)


@functools.cache
def cubature(
    size: int, *, pairs: int = 256
) -> tuple[Float[np.ndarray, "m p"], Float[np.ndarray, " m"]]:
    """Return nodes (m, p) and positive weights, exact at least up to degree three.

    They are a grid of Gauss-Hermite nodes up to three dimensions, and quasi-random pairs beyond,
    with an error of nearly 1/m: ``pairs`` of them or more. A bound computed with them is a bound up
    to this error.
    """
    if size in TENSOR:
        return hermite_grid(size, TENSOR[size])
    nodes = normal_pairs(size, max(pairs, 16 * size))
    return nodes, np.full(len(nodes), 1 / len(nodes))


@functools.cache
def rotations(size: int, *, count: int = 16) -> Float[np.ndarray, "r p p"]:
    """Return ``count`` matrices that rotate the nodes of :func:`cubature` from record to record.

    Errors of rotated nodes do not accumulate over records. For a grid there is only the identity,
    as it is accurate enough.
    """
    draws = np.random.default_rng(0).normal(size=(count - 1, size, size))
    turned = draws if size not in TENSOR else draws[:0]
    return np.concatenate([np.eye(size)[None], np.linalg.qr(turned).Q])


@functools.lru_cache(maxsize=32)
def normal_pairs(size: int, pairs: int, seed: int = 0) -> np.ndarray:
    """Return quasi-random normal nodes in mirrored pairs (2 pairs, size), of mean zero.

    Their covariance is the identity if there are at least as many pairs as coordinates.
    """
    from scipy.special import ndtri
    from scipy.stats import qmc

    # Sobol sequences are drawn in powers of two; excess points are dropped.
    uniform = qmc.Sobol(size, rng=seed).random_base2((pairs - 1).bit_length())[:pairs]
    normal = ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))
    if size > pairs:
        return np.concatenate([normal, -normal])
    whitened = np.linalg.solve(np.linalg.cholesky(normal.T @ normal / pairs), normal.T).T
    return np.concatenate([whitened, -whitened])


@functools.lru_cache(maxsize=32)
def normal_nodes(
    nodes: Any, dtype: Any, *, reach: float = 9.0
) -> tuple[Float[Real, " nodes"], Float[Real, " nodes"]]:
    """Return equidistant nodes and weights for a standard normal, up to ``reach`` deviations: at 9
    the density is 40 nats below its peak, beyond rounding.

    For functions narrower than the normal they are more accurate than as many Gauss-Hermite nodes,
    many of which lie in the far tails (trefethen2014).
    """
    x = np.linspace(-reach, reach, nodes)
    chances = np.exp(-(x**2) / 2)
    return frozen(x.astype(dtype)), frozen((chances / chances.sum()).astype(dtype))


def log_normal_mean(
    log_function: Callable[[Float[Real, "*n m"]], Float[Real, "*n m"]],
    like: Float[Real, "*n"],
    *,
    nodes: int = 128,
    zooms: int = 2,
    reach: float = 40.0,
    depth: float = 40.0,
) -> Float[Real, "*n"]:
    """Return ``log E[exp log_function(u)]`` for standard normal ``u`` and ``n`` unimodal functions.

    Functions may be arbitrarily narrow: equidistant ``nodes`` first cover the whole range, up to
    ``reach`` deviations (800 nats), and are then refined, ``zooms`` times, to the region of values
    less than ``depth`` nats below the largest; others are below rounding error.
    """
    xp = namespace(like)
    steps = np.linspace(0.0, 1.0, nodes).astype(like.dtype)
    low = xp.np.full((*like.shape, 1), -reach, like.dtype)
    high = -low
    for _ in range(zooms):
        u, values = _integrand(log_function, low, high, steps)
        spacing = u[..., 1:2] - u[..., :1]
        matters = values >= values.max(-1, keepdims=True) - depth
        low = xp.np.where(matters, u, np.inf).min(-1, keepdims=True) - spacing
        high = xp.np.where(matters, u, -np.inf).max(-1, keepdims=True) + spacing
    u, values = _integrand(log_function, low, high, steps)
    return xp.logsumexp(values) + xp.np.log(u[..., 1] - u[..., 0])


def _integrand(
    log_function: Callable[..., Any], low: Real, high: Real, steps: Real
) -> tuple[Any, Any]:
    u = low + (high - low) * steps
    return u, log_function(u) - (u**2 + math.log(2 * math.pi)) / 2


def in_parts(
    function: Callable[..., Any], columns: tuple[Any, ...], nodes: int, *, at_a_time: int = 1 << 13
) -> tuple[Any, ...]:
    """Return ``function(*columns)``, which evaluates ``nodes`` for each row of columns (n,); by
    NumPy in parts of ``at_a_time`` nodes, whose arrays of 64 KiB stay in the processor's cache.
    """
    rows = len(columns[0])
    size = max(1, at_a_time // nodes)
    if rows <= size or any(map(is_jax, columns)):
        return tuple(function(*columns))
    starts = range(0, rows, size)
    parts = [function(*(column[at : at + size] for column in columns)) for at in starts]
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


class Nodes(NamedTuple):
    """Events, their sufficient statistics, and weights that sum to one."""

    z: Float[Real, "nodes ..."]
    statistics: Float[Real, "nodes dim"]
    chances: Float[Real, " nodes"]


def expectation_nodes(q: ExponentialFamily, nodes: int) -> Nodes:
    """Return nodes with ``E_q[f] ≈ Σ p f(z)``, for a law that has a :meth:`line`.

    Along the line (logits for the Beta, logarithms for the Gamma) densities decay at least
    exponentially; after the ``sinh`` map they decay doubly exponentially, with the scale of the
    middle unchanged. Equidistant nodes then converge exponentially in their number, also for
    densities that are singular at the ends of their support (trefethen2014).
    """
    line = jax.tree.map(jnp.asarray, q).line()
    low, high = jnp.arcsinh(line.left / line.scale), jnp.arcsinh(line.right / line.scale)
    u = low + (high - low) * jnp.linspace(0.0, 1.0, nodes)
    z, statistics, log_density = line.at(line.scale * jnp.sinh(u))
    log_spacing = jnp.logaddexp(u, -u)
    return Nodes(z, statistics, jax.nn.softmax(log_density + log_spacing))
