"""The functions that families need, in JAX.

Digamma and trigamma are for positive numbers alone: the recurrence lifts the argument to nine or
more, where the asymptotic series has all digits of a float64 (abramowitz1964, 6.3.5, 6.3.18,
6.4.12). Natural gradients evaluate them at every local step of every site; the general functions,
which also serve negative and complex-order arguments, cost 5 to 60 times as much.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
from jax.scipy.special import polygamma

from posterity.arrays.functions import SHIFT, TRIGAMMA, Namespace
from posterity.arrays.typing import Bool, PyTree, Real

_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


@jax.custom_jvp
@jax.jit  # traced and compiled once a shape, wherever it is called from
def digamma(x: jax.Array) -> jax.Array:
    """``ψ(x)`` for positive ``x``; NaN elsewhere."""
    lifted = sum(1 / (x + step) for step in range(SHIFT))
    y = jnp.where(x > 0, x, jnp.nan) + SHIFT
    return jnp.log(y) - 1 / (2 * y) - _series(_DIGAMMA, 1 / y**2) - lifted


@jax.custom_jvp
@jax.jit
def trigamma(x: jax.Array) -> jax.Array:
    """``ψ'(x)`` for positive ``x``; NaN elsewhere."""
    lifted = sum(1 / (x + step) ** 2 for step in range(SHIFT))
    y = jnp.where(x > 0, x, jnp.nan) + SHIFT
    return (1 + 1 / (2 * y) + _series(TRIGAMMA, 1 / y**2)) / y + lifted


digamma.defjvps(lambda tangent, _, x: tangent * trigamma(x))
trigamma.defjvps(lambda tangent, _, x: tangent * polygamma(2, x))


def _series(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    """``Σ c_i x^i`` from ``i = 1``, by Horner's rule."""
    total = jnp.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = (total + coefficient) * x
    return total


class JaxNamespace(Namespace):
    """Traceable, and in the precision of the arguments."""

    np = jnp
    special = jax.scipy.special  # pyright: ignore[reportAssignmentType]
    digamma = staticmethod(digamma)
    trigamma = staticmethod(trigamma)
    cholesky = staticmethod(jnp.linalg.cholesky)

    def solve_vectors(self, matrices: Real, vectors: Real) -> Real:
        """``matrices⁻¹ vectors`` for stacked matrices and vectors."""
        return jnp.linalg.solve(matrices, vectors[..., None])[..., 0]

    def solve_positive(self, matrices: Real, vectors: Real) -> Real:
        """Cholesky factors, which compile to far less than the pivots of LU."""
        factors = jnp.linalg.cholesky(matrices), True
        return jax.scipy.linalg.cho_solve(factors, vectors[..., None])[..., 0]

    def inverse_positive(self, matrices: Real) -> Real:
        """The inverses of Cholesky factors, multiplied."""
        factors = jnp.linalg.cholesky(matrices)
        unit = jnp.broadcast_to(jnp.eye(factors.shape[-1], dtype=factors.dtype), factors.shape)
        half = jax.scipy.linalg.solve_triangular(factors, unit, lower=True)
        return jnp.swapaxes(half, -1, -2) @ half

    def solve_lower(self, factors: Real, columns: Real) -> Real:
        """``factors⁻¹ columns`` by substitution."""
        return jax.scipy.linalg.solve_triangular(factors, columns, lower=True)

    def iterate(self, step: Callable[[Any], Any], state: PyTree, times: int) -> Any:
        """A loop that is compiled once."""
        return jax.lax.fori_loop(0, times, lambda _, carry: step(carry), state)

    def repeat(
        self, unfinished: Callable[[Any], Any], step: Callable[[Any], Any], state: PyTree
    ) -> Any:
        """A loop that is compiled once."""
        return jax.lax.while_loop(unfinished, step, state)

    def choose(self, condition: Bool[Real, "*g"], yes: PyTree, no: PyTree) -> Any:
        """Leaf by leaf."""
        return jax.tree.map(lambda one, other: jnp.where(condition, one, other), yes, no)
