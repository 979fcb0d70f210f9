"""Linear algebra of vectors and symmetric matrices on the last axes, over any batch."""

import functools
from typing import NamedTuple

import numpy as np

from posterity.arrays.namespace import is_jax, namespace
from posterity.arrays.typing import Real


def outer(x: Real) -> Real:
    """Return ``x xᵀ`` over the last axis, (..., d, d)."""
    return x[..., :, None] * x[..., None, :]


def symmetric(matrix: Real) -> Real:
    """Return the symmetric part of a matrix, which removes asymmetry by rounding."""
    return (matrix + namespace(matrix).np.swapaxes(matrix, -1, -2)) / 2


def quadratic(matrix: Real, x: Real) -> Real:
    """Return ``xᵀ matrix x`` over the last axes."""
    return namespace(matrix, x).np.einsum("...i,...ij,...j->...", x, matrix, x)


def sum_of_squares(x: Real) -> Real:
    """``xᵀ x`` over the last axis; by NumPy without an array of squares."""
    return (x**2).sum(-1) if is_jax(x) else np.einsum("...i,...i->...", x, x)


def gram(x: Real, weights: Real) -> Real:
    """Return ``Xᵀ W X`` (d, d) of rows ``x`` (n, d), which NumPy may hold sparse."""
    if type(x) is type(weights) is np.ndarray and (weights >= 0).all():
        half = x * np.sqrt(weights)[:, None]
        return half.T @ half  # BLAS computes one triangle only
    product = (x.T * weights) @ x
    return product.toarray() if hasattr(product, "toarray") else product


def triangle(dimension: int) -> int:
    """Return the number of entries in the upper triangle of a square matrix."""
    return dimension * (dimension + 1) // 2


def half_vectorize(matrix: Real) -> Real:
    """Flatten symmetric matrices (..., d, d) to (..., d(d+1)/2), preserving inner products.

    Entries off the diagonal are scaled by the square root of two, so that
    ``half_vectorize(a) @ half_vectorize(b) == (a * b).sum()``.
    """
    size = matrix.shape[-1]
    halves = _halves(size)
    flat = matrix.reshape(*matrix.shape[:-2], size * size)
    return flat[..., halves.entries] * halves.scale.astype(matrix.dtype, copy=False)


def unhalf_vectorize(vector: Real, dimension: int) -> Real:
    """Return the symmetric matrices of vectors; the inverse of :func:`half_vectorize`."""
    halves = _halves(dimension)
    flat = (vector * halves.unscale.astype(vector.dtype, copy=False))[..., halves.places]
    return flat.reshape(*vector.shape[:-1], dimension, dimension)


class _Halves(NamedTuple):
    """Indices of the upper triangle in a flat matrix, of each entry in the triangle; scales."""

    entries: np.ndarray
    places: np.ndarray
    scale: np.ndarray
    unscale: np.ndarray


@functools.cache
def _halves(size: int) -> _Halves:
    rows, columns = np.triu_indices(size)
    places = np.zeros((size, size), np.int32)
    places[rows, columns] = places[columns, rows] = np.arange(rows.size)
    scales = (np.where(rows == columns, 1.0, np.sqrt(square)) for square in (2.0, 0.5))
    # Of 32 bits, so that they are the same whether JAX holds numbers in 32 bits or in 64.
    return _Halves((rows * size + columns).astype(np.int32), places.ravel(), *scales)
