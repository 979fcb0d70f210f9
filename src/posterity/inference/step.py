"""One step along a natural gradient that stays where there is a posterior to step from.

Natural parameters form a vector space, in which not every vector is a distribution, nor every
distribution one under which the model has expectations. A step that would leave is halved, or bent
along the manifold (lin2020), or not taken.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from posterity.families import ExponentialFamily

Q = TypeVar("Q", bound=ExponentialFamily)

HALVINGS = 40
"""A step that is still outside the domain after so many halvings is not taken."""


class Step(NamedTuple):
    """Where a step led, and what it took to stay inside."""

    q: Any
    halvings: Int[jax.Array, ""]
    taken: Bool[jax.Array, ""]
    """False where no shorter step stays inside either: ``q`` is then what it was."""


def safe_step(
    q: Q, direction: Q, rate: Any, *, admits: Callable[[Q], Any], retract: bool = False
) -> Step:
    """From ``q`` by ``rate`` along ``direction``, halved until it is proper and admitted.

    With ``retract`` (Gaussians) the step follows the manifold, on which precisions stay positive.
    Pure and traceable.
    """

    def move(rate: Any) -> Any:
        return q.retract(direction, rate) if retract else q + direction * rate  # pyright: ignore[reportAttributeAccessIssue]

    def outside(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        halvings, rate = state
        moved = move(rate)
        return ~(moved.is_proper() & admits(moved)) & (halvings <= HALVINGS)

    halve = lambda state: (state[0] + 1, state[1] / 2)
    start = (jnp.zeros((), jnp.int32), jnp.asarray(rate, dtype_of(q)))
    halvings, rate = jax.lax.while_loop(outside, halve, start)
    taken = halvings <= HALVINGS
    moved = jax.tree.map(lambda new, old: jnp.where(taken, new, old), move(rate), q)
    return Step(moved, halvings, taken)


def fisher_length(q: ExponentialFamily, direction: ExponentialFamily) -> Float[jax.Array, ""]:
    """``sqrt(dᵀ F d)`` in sqrt(nats), by a product of the Fisher information with a vector."""
    vector = jnp.asarray(direction.natural_parameters)
    means = lambda eta: q.with_natural_parameters(eta).mean_parameters
    _, moved = jax.jvp(means, (jnp.asarray(q.natural_parameters),), (vector,))
    return jnp.sqrt(jnp.maximum(vector @ moved, 0.0))


def dtype_of(q: ExponentialFamily) -> Any:
    """That of the natural parameters."""
    return q.natural_parameters.dtype
