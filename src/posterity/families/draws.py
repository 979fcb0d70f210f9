"""Draws of the logarithm of gamma variates, several times as fast as JAX's own."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from posterity.arrays.typing import KeyArray, PyTree

REST = 8
"""The part of the draws, as a divisor, that rounds after the first try again at once."""


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
@functools.partial(jax.jit, static_argnums=2)
def log_gamma(key: KeyArray, a: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Logarithms of Gamma(a, 1) draws of ``shape``, with which ``a`` broadcasts.

    JAX draws element by element, in a loop for each; here all draws are proposed at once, and the
    few that are rejected (below one in twenty) once more, until none is left. Differentiable in
    ``a`` implicitly, as JAX's are (figurnov2018). Of a shape that is negative or NaN a draw is NaN.

    Source: marsaglia2000.
    """
    size, first, rest, last = math.prod(shape), *jax.random.split(key, 3)
    flat = jnp.broadcast_to(a, shape).ravel()
    if not size:
        return flat.reshape(shape)
    flat = jnp.where(flat >= 0, flat, jnp.nan)
    raised = jnp.where(flat < 1, flat + 1, flat)
    drawn, accepted = _proposed(first, raised)
    accepted |= ~jnp.isfinite(raised)  # no further proposal would be better
    width = max(1, size // REST)

    def again(state: PyTree) -> Any:
        number, drawn, accepted = state
        those = jnp.nonzero(~accepted, size=width, fill_value=size)[0]
        own = raised[jnp.minimum(those, size - 1)]
        new, fine = _proposed(jax.random.fold_in(rest, number), own)
        write = lambda old, new: old.at[those].set(new, mode="drop")
        return number + 1, write(drawn, new), write(accepted, fine)

    pending = lambda state: ~state[2].all()
    drawn = jax.lax.while_loop(pending, again, (0, drawn, accepted))[1]
    # Minus the logarithm of a uniform draw is an exponential one, without a zero to be met.
    fall = jax.random.exponential(last, (size,), flat.dtype) / flat
    return (drawn - jnp.where(flat < 1, fall, 0.0)).reshape(shape)


@log_gamma.defjvp
def _derivative(
    key: KeyArray, shape: PyTree, primals: PyTree, tangents: PyTree
) -> tuple[jax.Array, jax.Array]:
    (a,), (moved,) = primals, tangents
    drawn = log_gamma(key, a, shape)
    value = jnp.maximum(jnp.exp(drawn), jnp.finfo(drawn.dtype).tiny)
    # JAX's stub asks for a dtype that its function does not take.
    slope = jax.lax.random_gamma_grad(jnp.broadcast_to(a, shape), value)  # pyright: ignore[reportCallIssue]
    return drawn, slope / value * moved


def _proposed(key: KeyArray, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One proposal for each shape ``a`` of one or more, and whether it is accepted."""
    normal, uniform = jax.random.split(key)
    x = jax.random.normal(normal, a.shape, a.dtype)
    height = jax.random.exponential(uniform, a.shape, a.dtype)
    d = a - 1 / 3
    root = 1 + x / jnp.sqrt(9 * d)
    log_v = 3 * jnp.log(jnp.maximum(root, jnp.finfo(a.dtype).tiny))
    accepted = (root > 0) & (-height < x**2 / 2 + d * (1 - root**3 + log_v))
    return jnp.log(d) + log_v, accepted
