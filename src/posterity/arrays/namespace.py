"""One formula, two homes: NumPy float64 at rest, JAX under a transformation.

Families are written once, over a :class:`Namespace`. Natural parameters held as NumPy arrays
are computed on by NumPy and SciPy, in the precision they have; traced or device arrays are
computed on by JAX, so the same formula differentiates, vectorises and compiles.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special

from posterity.arrays.special import digamma, trigamma

if TYPE_CHECKING:
    # The two array types share methods, not stubs: a union would ask for a cast on every line.
    Real = Any
else:
    Real = jax.Array | np.ndarray | np.generic
"""What a number or an array of numbers may be."""


class Namespace(NamedTuple):
    """The handful of array functions that the families need."""

    np: Any
    special: Any

    def digamma(self, x: Real) -> Real:
        """Derivative of ``log Γ``, for positive ``x``."""
        return scipy.special.psi(x) if self.np is np else digamma(x)

    def trigamma(self, x: Real) -> Real:
        """Second derivative of ``log Γ``, for positive ``x``."""
        if self.np is np:
            return scipy.special.polygamma(1, x).astype(x.dtype)  # SciPy widens float32
        return trigamma(x)

    def logsumexp(self, x: Real, axis: int = -1) -> Real:
        """``log(sum(exp(x)))`` along ``axis``, without overflow."""
        return self.special.logsumexp(x, axis=axis)

    def multigammaln(self, a: Real, dimension: int) -> Real:
        """Logarithm of the multivariate gamma function."""
        steps = self.np.arange(dimension, dtype=a.dtype) / 2
        constant = dimension * (dimension - 1) / 4 * math.log(math.pi)
        return constant + self.special.gammaln(a[..., None] - steps).sum(-1)

    def multidigamma(self, a: Real, dimension: int) -> Real:
        """Derivative of the logarithm of the multivariate gamma function."""
        steps = self.np.arange(dimension, dtype=a.dtype) / 2
        return self.digamma(a[..., None] - steps).sum(-1)

    def multitrigamma(self, a: Real, dimension: int) -> Real:
        """Second derivative of the logarithm of the multivariate gamma function."""
        steps = self.np.arange(dimension, dtype=a.dtype) / 2
        return self.trigamma(a[..., None] - steps).sum(-1)

    def cholesky(self, matrices: Real) -> Real:
        """Lower Cholesky factors; NaN, never an exception, where there is none."""
        if self.np is not np:
            return jnp.linalg.cholesky(matrices)
        try:
            return np.linalg.cholesky(matrices)
        except np.linalg.LinAlgError:
            return _cholesky_or_nan(np.asarray(matrices))

    def solve_vectors(self, matrices: Real, vectors: Real) -> Real:
        """``matrices⁻¹ vectors`` for stacked matrices (..., d, d) and vectors (..., d)."""
        try:
            return self.np.linalg.solve(matrices, vectors[..., None])[..., 0]
        except np.linalg.LinAlgError:  # NumPy only: one singular matrix fails the whole batch
            regular = (np.linalg.matrix_rank(matrices) == matrices.shape[-1])[..., None, None]
            safe = np.where(regular, matrices, np.nan)
            return np.linalg.solve(safe, vectors[..., None])[..., 0]

    def iterate(self, step: Callable[[Any], Any], state: Any, times: int) -> Any:
        """Apply ``step`` to ``state`` again and again; compiled once, not unrolled, by JAX."""
        if self.np is not np:
            return jax.lax.fori_loop(0, times, lambda _, carry: step(carry), state)
        for _ in range(times):
            state = step(state)
        return state

    def logdet(self, factors: Real) -> Real:
        """Log determinant of the matrices whose Cholesky factors are given."""
        diagonal = self.np.diagonal(factors, axis1=-2, axis2=-1)
        return 2 * self.np.log(diagonal).sum(-1)


_NUMPY = Namespace(np, scipy.special)
_JAX = Namespace(jnp, jax.scipy.special)


def namespace(*arrays: Any) -> Namespace:
    """JAX if any of the arrays is JAX's (traced ones are), else NumPy."""
    return _JAX if any(isinstance(a, jax.Array) for a in arrays) else _NUMPY


def as_leaf(value: Any) -> Real:
    """``value`` as a floating-point array: JAX's stay, all else becomes NumPy's."""
    if isinstance(value, jax.Array):
        return value
    array = np.asarray(value)
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)


def outer(x: Real) -> Real:
    """``x xᵀ`` over the last axis."""
    return x[..., :, None] * x[..., None, :]


def symmetric(matrix: Real) -> Real:
    """The symmetric part, which rounding may have lost."""
    return (matrix + namespace(matrix).np.swapaxes(matrix, -1, -2)) / 2


def quadratic(matrix: Real, x: Real) -> Real:
    """``xᵀ matrix x`` over the last axes."""
    return namespace(matrix, x).np.einsum("...i,...ij,...j->...", x, matrix, x)


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


def _cholesky_or_nan(matrices: np.ndarray) -> np.ndarray:
    factors = np.full_like(matrices, np.nan)
    for index in np.ndindex(matrices.shape[:-2]):
        try:
            factors[index] = np.linalg.cholesky(matrices[index])
        except np.linalg.LinAlgError:
            continue
    return factors
