"""The JAX implementation of the functions that families need.

Digamma and trigamma are defined for positive numbers alone: the recurrence raises the argument to
nine or more, where the asymptotic series is accurate to all digits of a float64 (abramowitz1964,
6.3.5, 6.3.18, 6.4.12). Natural gradients evaluate them at every local step of every site; JAX's
general functions, which also accept negative arguments, cost 5 to 60 times as much.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
from jax.scipy.special import polygamma

from posterity.arrays.functions import Namespace
from posterity.arrays.typing import Bool, PyTree, Real

SHIFT = 9
"""The shift of the argument by the recurrence: the series then has all digits of a float64."""
TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""Coefficients of its asymptotic series in odd powers (abramowitz1964, 6.4.12)."""
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""Coefficients of its asymptotic series in even powers (abramowitz1964, 6.3.18)."""


@jax.custom_jvp
@jax.jit  # traced and compiled once a shape, wherever it is called from
def digamma(x: jax.Array) -> jax.Array:
    """``ψ(x)`` for positive ``x``; NaN elsewhere."""
    lifted = sum(1 / (x + step) for step in range(SHIFT))
    y = jnp.where(x > 0, x, jnp.nan) + SHIFT
    return jnp.log(y) - 1 / (2 * y) - _series(DIGAMMA, 1 / y**2) - lifted


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


# --- factorisations ------------------------------------------------------------------------------


def _few_together(function: Callable[[Any], Any], limit: int = 150_000) -> Callable[[Any], Any]:
    """Return a function of matrices (..., d, d) that calls this one with few of them at a time.

    A call takes at most ``limit`` multiplications, unless a single matrix takes more. From 200,000
    on jaxlib 0.10 distributes the matrices of a call over its threads and waits for them, so that
    as many such calls as there are threads, in parallel, deadlock.
    """

    @jax.custom_batching.custom_vmap
    def call(matrices: Real) -> Any:
        *batch, size, _ = matrices.shape
        most = max(1, limit // max(size, 1) ** 3)
        if not matrices.size:
            return matrices
        if math.prod(batch) <= most:
            return function(matrices)
        each = matrices.reshape(-1, size, size)
        return jax.lax.map(function, each, batch_size=most).reshape(matrices.shape)

    @call.def_vmap
    def _(size: int, mapped: Any, matrices: Real) -> Any:
        del size, mapped
        return call(matrices), True

    return call


def _solved_identity(factor: jax.Array) -> jax.Array:
    unit = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return jax.scipy.linalg.solve_triangular(factor, unit, lower=True)


_factorised = _few_together(jnp.linalg.cholesky)
_lower = _few_together(_solved_identity)
cholesky = jax.custom_jvp(lambda matrices: _factorised(matrices))
inverse_lower = jax.custom_jvp(lambda factors: _lower(factors))
# Derivatives are products of matrices: no other factorisation is ever asked for.
inverse_lower.defjvps(lambda tangent, known, _: -known @ jnp.tril(tangent) @ known)


@cholesky.defjvp
def _(primals: PyTree, tangents: PyTree) -> tuple[Any, Any]:
    factor = cholesky(*primals)
    half = inverse_lower(factor)
    moved = (tangents[0] + jnp.swapaxes(tangents[0], -1, -2)) / 2
    inner = half @ moved @ jnp.swapaxes(half, -1, -2)
    unit = jnp.eye(inner.shape[-1], dtype=inner.dtype)
    return factor, factor @ (jnp.tril(inner) - inner * unit / 2)


class JaxNamespace(Namespace):
    """Functions of JAX arrays, which can be traced and keep the precision of their arguments."""

    np = jnp
    special = jax.scipy.special  # pyright: ignore[reportAssignmentType]
    digamma = staticmethod(digamma)
    trigamma = staticmethod(trigamma)
    cholesky = staticmethod(cholesky)

    def solve_positive(self, matrices: Real, vectors: Real) -> Real:
        """Use inverses of Cholesky factors, which compile faster than the pivots of LU."""
        half = inverse_lower(cholesky(matrices))
        return (jnp.swapaxes(half, -1, -2) @ (half @ vectors[..., None]))[..., 0]

    def inverse_positive(self, matrices: Real) -> Real:
        half = inverse_lower(cholesky(matrices))
        return jnp.swapaxes(half, -1, -2) @ half

    def inverse_lower(self, factors: Real) -> Real:
        return inverse_lower(factors)

    def iterate(self, step: Callable[[Any], Any], state: PyTree, times: int) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, carry: step(carry), state)

    def repeat(
        self, unfinished: Callable[[Any], Any], step: Callable[[Any], Any], state: PyTree
    ) -> Any:
        return jax.lax.while_loop(unfinished, step, state)

    def choose(self, condition: Bool[Real, "*g"], yes: PyTree, no: PyTree) -> Any:
        return jax.tree.map(lambda one, other: jnp.where(condition, one, other), yes, no)
