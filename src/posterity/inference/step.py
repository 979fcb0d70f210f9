"""One step along a noisy natural gradient, no further than it can be trusted.

Natural parameters form a vector space, in which not every vector is a distribution, nor every
distribution one under which the model has expectations. Besides, a gradient holds about where it
was taken alone: far from there the free energy may be anything. A step that goes too far is halved.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from posterity.arrays.namespace import is_jax, namespace
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Bool, Float, Int, Number, Real
from posterity.families import ExponentialFamily
from posterity.lazy import jax, jnp

Q = TypeVar("Q", bound=ExponentialFamily)

HALVINGS = 40
"""A step that is still outside the domain after so many halvings is not taken."""
TRUST = 4.0
"""Nats, and one more a coordinate, that a noisy step may put between two members, both ways: it
lets a mean move by two standard deviations, and a variance grow or shrink tenfold."""


class Step(NamedTuple):
    """The result of a step, and what it took to stay inside."""

    q: Any
    halvings: Int[Real, ""]
    taken: Bool[Real, ""]
    """False where no shorter step stays inside either: ``q`` is then what it was."""


def safe_step(
    q: Q,
    direction: Q,
    rate: Number,
    *,
    admits: Callable[[Q], Any],
    retract: bool = False,
    reach: Float[Any, ""] | float | None = None,
) -> Step:
    """From ``q`` by ``rate`` along ``direction``, halved until it is proper, admitted and near.

    Near is what the divergence both ways says, ``reach`` nats at most (None: anything goes): it
    bounds mean and precision of a Gaussian, and does the like in every family. With ``retract``
    (Gaussians) the step follows the manifold, on which precisions stay positive (lin2020), and
    bounds both itself. Pure and traceable.
    """

    def move(rate: Number) -> Any:
        return q.retract(direction, rate) if retract else q + direction * rate  # pyright: ignore[reportAttributeAccessIssue]

    def outside(state: tuple[Real, Real]) -> Real:
        halvings, rate = state
        moved = move(rate)
        near = reach is None or ~(q.kl(moved) + moved.kl(q) > reach)
        return ~(moved.is_proper() & admits(moved) & near) & (halvings <= HALVINGS)

    xp = q.xp
    halve = lambda state: (state[0] + 1, state[1] / 2)
    start = (xp.np.zeros((), np.int32), xp.np.asarray(rate, dtype_of(q)))
    halvings, rate = xp.repeat(outside, halve, start)
    taken = halvings <= HALVINGS
    return Step(either(taken, lambda: move(rate), lambda: q), halvings, taken)


def either(condition: Bool[Real, ""] | bool, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One tree or the other, each a function that makes it: called where it is what is needed."""
    if not is_jax(condition):
        return yes() if condition else no()
    return jax.tree.map(lambda one, other: jnp.where(condition, one, other), yes(), no())


def fisher_length(q: ExponentialFamily, direction: ExponentialFamily) -> Float[Real, ""]:
    """``sqrt(dᵀ F d)`` in sqrt(nats)."""
    squared = q.squared_length(direction)
    np_ = namespace(squared).np
    return np_.sqrt(np_.maximum(squared, 0.0))


def dtype_of(q: ExponentialFamily) -> Any:
    """That of the natural parameters."""
    return np.result_type(*(leaf.dtype for leaf in leaves(q)))
