"""The functions that families need, in JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special

from posterity.arrays.functions import Namespace
from posterity.arrays.special import digamma, trigamma
from posterity.arrays.typing import Bool, Real


class JaxNamespace(Namespace):
    """Traceable, and in the precision of the arguments."""

    np = jnp

    @property
    def special(self) -> Any:
        """Special functions by SciPy's names."""
        return jax.scipy.special

    def digamma(self, x: Real) -> Real:
        """Derivative of ``log Γ``, for positive ``x``."""
        return digamma(x)

    def trigamma(self, x: Real) -> Real:
        """Second derivative of ``log Γ``, for positive ``x``."""
        return trigamma(x)

    def cholesky(self, matrices: Real) -> Real:
        """Lower Cholesky factors; NaN where there is none."""
        return jnp.linalg.cholesky(matrices)

    def solve_vectors(self, matrices: Real, vectors: Real) -> Real:
        """``matrices⁻¹ vectors`` for stacked matrices and vectors."""
        return jnp.linalg.solve(matrices, vectors[..., None])[..., 0]

    def solve_positive(self, matrices: Real, vectors: Real) -> Real:
        """By Cholesky factors, which compile to far less than the pivots of LU."""
        factors = jnp.linalg.cholesky(matrices), True
        return jax.scipy.linalg.cho_solve(factors, vectors[..., None])[..., 0]

    def inverse_positive(self, matrices: Real) -> Real:
        """By the inverses of Cholesky factors."""
        factors = jnp.linalg.cholesky(matrices)
        unit = jnp.broadcast_to(jnp.eye(factors.shape[-1], dtype=factors.dtype), factors.shape)
        half = jax.scipy.linalg.solve_triangular(factors, unit, lower=True)
        return jnp.swapaxes(half, -1, -2) @ half

    def solve_lower(self, factors: Real, columns: Real) -> Real:
        """``factors⁻¹ columns`` by substitution."""
        return jax.scipy.linalg.solve_triangular(factors, columns, lower=True)

    def iterate(self, step: Callable[[Any], Any], state: Any, times: int) -> Any:
        """A loop that is compiled once."""
        return jax.lax.fori_loop(0, times, lambda _, carry: step(carry), state)

    def repeat(
        self, unfinished: Callable[[Any], Any], step: Callable[[Any], Any], state: Any
    ) -> Any:
        """A loop that is compiled once."""
        return jax.lax.while_loop(unfinished, step, state)

    def choose(self, condition: Bool[Real, "*g"], yes: Any, no: Any) -> Any:
        """Leaf by leaf."""
        return jax.tree.map(lambda one, other: jnp.where(condition, one, other), yes, no)
