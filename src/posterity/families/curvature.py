"""Second derivatives of log normalizers, compiled once for members of one family and shape."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from posterity.arrays.typing import Real


@jax.jit
def hessians(like: Any, vectors: Float[Real, "n dim"]) -> Float[Real, "n dim dim"]:
    """Of the log normalizer at flat natural parameters, for the family and the sizes of ``like``.

    One after the other: a Hessian of many dimensions is large.
    """
    normalizer = lambda eta: like.with_natural_parameters(eta).log_normalizer()
    return jax.lax.map(jax.hessian(normalizer), jnp.asarray(vectors))


@jax.jit
def squared_length(q: Any, along: Float[Real, "*batch dim"]) -> Float[Real, ""]:
    """``alongᵀ F(q) along``, summed over a batch, by one derivative of the mean parameters."""
    means = lambda eta: q.with_natural_parameters(eta).mean_parameters
    _, moved = jax.jvp(means, (jnp.asarray(q.natural_parameters),), (along,))
    return (along * moved).sum()
