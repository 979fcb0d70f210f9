"""Nodes and chances for a standard normal in one dimension and in several."""

import functools
import itertools

import numpy as np
from jaxtyping import Float

TENSOR = {1: 32, 2: 12, 3: 7}
"""Gauss-Hermite nodes an axis, where a grid is still small."""
PAIRS = 256
"""Of mirrored nodes at the least, where a grid is not."""


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


@functools.lru_cache(maxsize=32)
def normal_pairs(size: int, pairs: int, seed: int = 0) -> np.ndarray:
    """Pairs of mirrored nodes (2 pairs, size), of mean zero and unit covariance."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    # Of a power of two, as these sequences are made for; what is left over is left out.
    uniform = qmc.Sobol(size, rng=seed).random_base2((pairs - 1).bit_length())[:pairs]
    normal = ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))
    whitened = np.linalg.solve(np.linalg.cholesky(normal.T @ normal / pairs), normal.T).T
    return np.concatenate([whitened, -whitened])
