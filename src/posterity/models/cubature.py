"""Nodes and chances for a standard normal in one dimension and in several."""

import functools
import itertools

import numpy as np
from jaxtyping import Float

TENSOR = {1: 32, 2: 12, 3: 7}
"""Gauss-Hermite nodes an axis, where a grid is still small."""
ROTATIONS = 8


@functools.cache
def hermite(nodes: int) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Gauss-Hermite: exact for polynomials up to degree ``2 nodes - 1``."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points, weights / weights.sum()


@functools.cache
def cubature(size: int) -> tuple[Float[np.ndarray, "m p"], Float[np.ndarray, " m"]]:
    """Nodes (m, p) and chances, all positive, so that a bound stays one.

    A grid of Gauss-Hermite nodes up to three dimensions; beyond, pairs ``±sqrt(p)`` along the
    axes (arasaratnam2009), exact up to degree three, in several rotations.
    """
    if size in TENSOR:
        points, weights = hermite(TENSOR[size])
        grid = itertools.product(range(len(points)), repeat=size)
        index = np.array(list(grid))
        return points[index], weights[index].prod(-1)
    turned = np.concatenate([rotation(size, seed) for seed in range(ROTATIONS)])
    nodes = np.sqrt(size) * np.concatenate([turned, -turned])
    return nodes, np.full(len(nodes), 1 / len(nodes))


def rotation(size: int, seed: int) -> Float[np.ndarray, "p p"]:
    """An orthogonal matrix, the same in every process; the identity for seed 0."""
    if seed == 0:
        return np.eye(size)
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return q * np.sign(np.diagonal(r))
