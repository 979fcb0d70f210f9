"""Linear algebra of vectors and symmetric matrices on the last axes, over any batch."""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import Real
from posterity.runtime.jax_loaded import is_jax


@contextlib.contextmanager
def one_thread(columns: float = 0, rows: float = 0, *, small: float = 2**32) -> Iterator[None]:
    """Let BLAS use one thread in a block if its products of matrices, (``rows``, ``columns``) by
    (``columns``, ``columns``) or of squares of ``columns``, take fewer multiplications than
    ``small``, some tenths of a second on one core; without sizes, in every case. Threads wait
    actively for each other at every product, so that beside another busy process a small one takes
    up to a hundred times as long.

    The process's numbers of threads are restored at its end, also after an error. A block within
    one, or beside one in another thread of Python, changes nothing. Threads of JAX are its own, and
    stay as they are.
    """
    if max(rows, columns) * columns**2 >= small or not _holding.acquire(blocking=False):
        yield
        return
    try:
        with _pools("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas"):
            yield
    finally:
        _holding.release()


_holding = threading.Lock()
"""Held by the block that has set the numbers of threads."""


@functools.cache
def _pools(scipy: bool) -> Any:
    """Return the threads of the libraries that are loaded; SciPy's linear algebra has its own."""
    from threadpoolctl import ThreadpoolController  # here, so that imports do not wait for it

    del scipy
    return ThreadpoolController()


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


def root_of_range(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``W`` and signs ``s`` with ``W diag(s) Wᵀ`` a symmetric matrix (..., d, d), and the
    pseudo-inverse of ``W``, whatever the units of the coordinates. Columns beyond the matrix's rank
    are zero; all signs of a positive semidefinite matrix are one.
    """
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    unit = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))[..., None]
    values, vectors = np.linalg.eigh(matrix / unit / np.swapaxes(unit, -1, -2))
    sizes = np.abs(values)
    kept = sizes > sizes.shape[-1] * np.finfo(float).eps * sizes.max(-1, keepdims=True, initial=0.0)
    scale = np.sqrt(np.where(kept, sizes, 1.0))[..., None, :]
    signs = np.where(kept, np.sign(values), 1.0)
    kept = vectors * kept[..., None, :]
    return unit * kept * scale, signs, np.swapaxes(kept / scale / unit, -1, -2)


def pseudo_inverse(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the inverse (d, d) of a positive semidefinite matrix on its range, whatever the units
    of its coordinates, and a projection on that range with the rank as its trace.

    The projection's diagonal is one for coordinates that the matrix determines.
    """
    root, _, inverse = root_of_range(matrix)
    return inverse.T @ inverse, root @ inverse


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
