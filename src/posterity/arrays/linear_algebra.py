"""Vectors and symmetric matrices on the last axes, over any batch."""

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Real


def outer(x: Real) -> Real:
    """``x xᵀ`` over the last axis."""
    return x[..., :, None] * x[..., None, :]


def symmetric(matrix: Real) -> Real:
    """The symmetric part, which rounding may have lost."""
    return (matrix + namespace(matrix).np.swapaxes(matrix, -1, -2)) / 2


def quadratic(matrix: Real, x: Real) -> Real:
    """``xᵀ matrix x`` over the last axes."""
    return namespace(matrix, x).np.einsum("...i,...ij,...j->...", x, matrix, x)


def triangle(dimension: int) -> int:
    """Entries in the upper triangle of a square matrix."""
    return dimension * (dimension + 1) // 2


def half_vectorize(matrix: Real) -> Real:
    """Symmetric (..., d, d) to (..., d(d+1)/2), keeping inner products.

    Entries off the diagonal are scaled by the square root of two, so that
    ``half_vectorize(a) @ half_vectorize(b) == (a * b).sum()``.
    """
    rows, columns = np.triu_indices(matrix.shape[-1])
    scale = np.where(rows == columns, 1.0, np.sqrt(2.0)).astype(matrix.dtype)
    return matrix[..., rows, columns] * scale


def unhalf_vectorize(vector: Real, dimension: int) -> Real:
    """The inverse of :func:`half_vectorize`."""
    rows, columns = np.triu_indices(dimension)
    scale = np.where(rows == columns, 1.0, np.sqrt(0.5)).astype(vector.dtype)
    position = np.zeros((dimension, dimension), dtype=int)
    position[rows, columns] = position[columns, rows] = np.arange(rows.size)
    return (vector * scale)[..., position]
