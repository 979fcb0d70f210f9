"""The array functions that families are written in, and their versions by NumPy and SciPy."""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Bool, PyTree, Real


class Namespace:
    """The handful of array functions that the families need: here by NumPy and SciPy.

    ``np`` has NumPy's functions, ``special`` SciPy's special ones.
    """

    np: Any = np
    large: int = 256
    """Rows of a matrix from which SciPy's LAPACK is worth its import, a tenth of a second."""

    @property
    def special(self) -> Any:
        """Special functions by SciPy's names."""
        return scipy.special  # which SciPy loads when it is first asked for

    def digamma(self, x: Real) -> Real:
        """Derivative of ``log Γ``, for positive ``x``."""
        return scipy.special.psi(x)

    def trigamma(self, x: Real) -> Real:
        """Second derivative of ``log Γ``, for positive ``x``; NaN elsewhere."""
        return scipy.special.zeta(2, np.where(np.asarray(x) > 0, x, np.nan))

    def cholesky(self, matrices: Real) -> Real:
        """Lower Cholesky factors; NaN, never an exception, where there is none."""
        try:
            return np.linalg.cholesky(matrices)
        except np.linalg.LinAlgError:
            pass
        factors = np.full_like(np.asarray(matrices), np.nan)
        for index in np.ndindex(factors.shape[:-2]):
            with contextlib.suppress(np.linalg.LinAlgError):
                factors[index] = np.linalg.cholesky(matrices[index])
        return factors

    def solve_positive(self, matrices: Real, vectors: Real) -> Real:
        """``matrices⁻¹ vectors`` for positive definite (..., d, d) and vectors (..., d)."""
        try:
            return np.linalg.solve(matrices, vectors[..., None])[..., 0]
        except np.linalg.LinAlgError:  # one singular matrix fails the whole batch
            regular = (np.linalg.matrix_rank(matrices) == matrices.shape[-1])[..., None, None]
            safe = np.where(regular, matrices, np.nan)
            return np.linalg.solve(safe, vectors[..., None])[..., 0]

    def inverse_positive(self, matrices: Real) -> Real:
        """Inverses of positive definite matrices, symmetric to the last bit; NaN of others, if one
        of them is singular.
        """
        try:
            inverse = np.linalg.inv(matrices)
        except np.linalg.LinAlgError:
            none = np.isnan(self.cholesky(matrices)).any((-2, -1), keepdims=True)
            inverse = np.linalg.inv(np.where(none, np.nan, matrices))
        return (inverse + np.swapaxes(inverse, -1, -2)) / 2

    def inverse_lower(self, factors: Real) -> Real:
        """``factors⁻¹`` for lower triangular (..., d, d); of one large matrix by LAPACK, which
        takes a sixth of the time of a solution.
        """
        if factors.ndim == 2 and len(factors) >= self.large:
            (invert,) = scipy.linalg.get_lapack_funcs(("trtri",), (factors,))
            inverse, singular = invert(factors, lower=1)
            if singular:
                raise np.linalg.LinAlgError("Singular matrix")
            return inverse
        identity = np.eye(factors.shape[-1], dtype=factors.dtype)
        return np.linalg.solve(factors, np.broadcast_to(identity, factors.shape))

    def iterate(self, step: Callable[[Any], Any], state: PyTree, times: int) -> Any:
        """Apply ``step`` to ``state`` again and again; compiled once, not unrolled, by JAX."""
        for _ in range(times):
            state = step(state)
        return state

    def bisected(self, below: Callable[[Any], Any], low: Real, high: Real, halvings: int) -> Real:
        """The roots between these ends, where ``below`` tells whether a place is below a root."""

        def halve(ends: tuple[Real, Real]) -> tuple[Real, Real]:
            low, high = ends
            middle = low / 2 + high / 2  # of which neither overflows
            lower = below(middle)
            return self.np.where(lower, middle, low), self.np.where(lower, high, middle)

        low, high = self.iterate(halve, (low, high), halvings)
        return low / 2 + high / 2

    def repeat(
        self, unfinished: Callable[[Any], Any], step: Callable[[Any], Any], state: PyTree
    ) -> Any:
        """Apply ``step`` to ``state`` while it is ``unfinished``; compiled once by JAX."""
        while unfinished(state):
            state = step(state)
        return state

    def choose(self, condition: Bool[Real, "*g"], yes: PyTree, no: PyTree) -> Any:
        """The arrays of ``yes`` where the condition holds, else those of ``no``.

        Both are tuples of arrays, nested ones too, or over JAX any trees. NumPy's arrays (G, ...)
        may have more axes than the condition (G,). For one condition they may be anything.
        """
        if np.ndim(condition) == 0:
            return yes if condition else no
        if isinstance(yes, tuple):
            return tuple(self.choose(condition, *pair) for pair in zip(yes, no, strict=True))
        axes = (1,) * (np.ndim(yes) - np.ndim(condition))
        return np.where(np.reshape(condition, np.shape(condition) + axes), yes, no)

    def logsumexp(self, x: Real, axis: int = -1) -> Real:
        """``log(sum(exp(x)))`` along ``axis``, without overflow."""
        return self.special.logsumexp(x, axis=axis)

    def multigammaln(self, a: Real, dimension: int) -> Real:
        """Logarithm of the multivariate gamma function."""
        constant = dimension * (dimension - 1) / 4 * math.log(math.pi)
        return constant + self.special.gammaln(self._steps(a, dimension)).sum(-1)

    def multidigamma(self, a: Real, dimension: int) -> Real:
        """Derivative of the logarithm of the multivariate gamma function."""
        return self.digamma(self._steps(a, dimension)).sum(-1)

    def multitrigamma(self, a: Real, dimension: int) -> Real:
        """Second derivative of the logarithm of the multivariate gamma function."""
        return self.trigamma(self._steps(a, dimension)).sum(-1)

    def logdet(self, factors: Real) -> Real:
        """Log determinant of the matrices whose Cholesky factors are given."""
        diagonal = self.np.diagonal(factors, axis1=-2, axis2=-1)
        return 2 * self.np.log(diagonal).sum(-1)

    def _steps(self, a: Real, dimension: int) -> Real:
        return a[..., None] - _halves(dimension).astype(a.dtype, copy=False)


@functools.cache
def _halves(dimension: int) -> np.ndarray:
    return np.arange(dimension) / 2
