"""Adam, over any tree of arrays, with a rate of its own for each leaf."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

DECAY = (0.9, 0.999)
EPSILON = 1e-8


class Moments(NamedTuple):
    """Decaying averages of gradients and of their squares, and how many went in."""

    first: Any
    second: Any
    count: Any

    @classmethod
    def of(cls, tree: Any) -> "Moments":
        """Before the first gradient."""
        zeros = jax.tree.map(jnp.zeros_like, tree)
        return cls(zeros, zeros, jnp.zeros((), jnp.int32))


def ascend(tree: Any, gradient: Any, moments: Moments, rates: Any) -> tuple[Any, Moments]:
    """``tree`` after one step up the gradient; ``rates`` is a tree of numbers like it.

    Source: kingma2014.
    """
    b1, b2 = DECAY
    count = moments.count + 1
    first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, moments.first, gradient)
    second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, moments.second, gradient)
    one, two = 1 - b1**count, 1 - b2**count

    def moved(leaf: Any, m: Any, v: Any, rate: Any) -> Any:
        return leaf + rate * (m / one) / (jnp.sqrt(v / two) + EPSILON)

    return jax.tree.map(moved, tree, first, second, rates), Moments(first, second, count)
