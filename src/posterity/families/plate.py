"""Plates: exchangeable copies of one family, whose labels are arbitrary."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import map_leaves
from posterity.arrays.typing import Float, Int, PyTree, Real, Shape
from posterity.errors import StructureError
from posterity.families.base import ExponentialFamily
from posterity.families.composite import Composite
from posterity.families.dirichlet import Dirichlet
from posterity.families.distribution import Members
from posterity.families.emitting import MixingWeights
from posterity.families.marginals import WEIGHT, Marginal, Names, Table, numbered, unknown
from posterity.families.names import (
    batch,
    called,
    copies,
    few,
    joined,
    names_of,
    not_reordered,
    with_names,
)
from posterity.families.supports import map_supports


class Plate(Composite):
    """``K`` exchangeable members, optionally with a posterior over their mixing weights.

    ``members`` has batch shape ``(..., K)``. ``weights`` is a :class:`Dirichlet` over ``K``
    categories, or a :class:`Beta` with batch ``(..., K)`` of the ordered sticks of a truncated
    Dirichlet process (blei2006). An event is ``(members' event, weights' event)``; the latter is
    ``None`` without weights.

    >>> from posterity.families import DiagonalGaussian
    >>> q = Plate(DiagonalGaussian.from_standard(mean=[[0.0], [5.0]], variance=[[1.0], [1.0]]))
    >>> q.size
    2
    """

    members: ExponentialFamily
    weights: MixingWeights | None = None

    is_plate = True

    def __post_init__(self) -> None:
        members = self.members
        weights = self.weights
        batch = members.batch_shape if isinstance(members, ExponentialFamily) else ()
        known = isinstance(weights, MixingWeights) and weights.weights_shape == batch
        if not batch or not (weights is None or known):
            raise StructureError(
                found=f"members {members!r} with weights {weights!r}",
                expected="members of batch shape (..., K), and one weight a member",
            )

    @classmethod
    def from_standard(
        cls, members: ExponentialFamily, weights: MixingWeights | None = None
    ) -> Self:
        """Make it from the members, a batch of one family, and the law of their weights."""
        return cls(members, weights)

    @property
    def size(self) -> int:
        """The number of members ``K``."""
        return self.members.batch_shape[-1]

    @property
    def batch_shape(self) -> Shape:
        return self.members.batch_shape[:-1]

    def outline(self, *, plates: bool = True) -> Any:
        """Return the outlines of members and weights, and ``K`` if ``plates``."""
        weights = None
        if self.weights is not None:
            weights = self.weights.outline(plates=plates) if plates else type(self.weights)
        size = self.size if plates else None
        return (type(self), size, self.members.outline(plates=plates), weights)

    def location(self) -> PyTree:
        """Return the mean of the members' locations."""
        axis = len(self.batch_shape)
        return map_supports(lambda place: place.mean(axis), self.members.location())

    def _translate(self, offset: PyTree) -> Self:
        # A number is not a valid offset; the members raise the error.
        def one(own):
            return namespace(own).np.expand_dims(own, -2) if np.ndim(own) else own

        each = map_supports(one, offset)
        return type(self)(self.members.translate(each), self.weights)

    def relabel(self, labels: Int[np.ndarray, " k"], size: int, axes: Sequence[int] = (0,)) -> Self:
        """Return a factor whose entry ``k`` along ``axes`` becomes entry ``labels[k]``.

        Axes are those of the batch, then that of the members and their weights, then a member's
        own: for one plate of transitions, axis 0 is the state before and axis 1 the state after.
        """
        weights = self.weights
        batch = len(self.batch_shape)
        for axis in axes:
            if weights is not None and axis < batch:
                weights = weights.relabel(labels, size, (axis,))
            elif weights is not None and axis == batch:
                weights = weights.relabelled(np.asarray(labels), size)
        return type(self)(self.members.relabel(labels, size, axes), weights)

    @property
    def named_size(self) -> int:
        """The number of members ``K``, which can have names."""
        return self.size

    def named_parts(self) -> dict[str, Any]:
        """Return ``members``; weights have the names of the members."""
        return {"members": self.members}

    def reordered(self, places: Int[np.ndarray, " k"]) -> Self:
        """Permute members and weights; a StructureError for sticks, which have an order."""
        if self.weights is not None and not isinstance(self.weights, Dirichlet):
            raise not_reordered(self, places)
        moved = self.relabel(np.argsort(places), self.size, (len(self.batch_shape),))
        return with_names(moved, {k: v for k, v in names_of(self).items() if k})

    def exchangeable_members(self) -> Members:
        """Return the members, with their weights if there is a posterior over them."""
        if self.weights is None:
            return Members("member", self.members, "members", "")
        law = self._weight_marginals(self.weights)
        return Members("member", self.members, "members", "", law.mean, law.sd)

    def _weight_marginals(self, weights: MixingWeights) -> Marginal:
        if np.all(weights.is_proper()):
            return weights.weight_marginals()
        return unknown(weights.weights_shape)

    def _tables(self, names: Names, path: str, block: str) -> list[Table]:
        labels = names.get(path) or numbered(self.size)
        inner = self.members._tables(names, joined(path, "members"), block)
        result = [dataclasses.replace(table, axes=(labels, *table.axes)) for table in inner]
        if self.weights is not None:
            result.append(Table(block, WEIGHT, (), labels, self._weight_marginals(self.weights)))
        return result

    def _described(self, numbers: bool) -> str:
        shown = [copies(self, self.members), *batch(self)]
        if self.weights is not None:
            kind = f"{type(self.weights).__name__} weights"
            if numbers and not self.weights.batch_shape[:-1]:
                mean = np.asarray(map_leaves(np.asarray, self.weights).mean_weights())
                finite = np.isfinite(mean).all()
                kind = f"{kind} {few(mean)}" if finite else f"improper {kind}"
            shown.append(kind)
        return called(self, shown)

    def parts(self) -> Sequence[ExponentialFamily]:
        return [self.members] if self.weights is None else [self.members, self.weights]

    def rebuild(self, parts: Sequence[ExponentialFamily]) -> Self:
        return type(self)(*parts)  # pyright: ignore[reportArgumentType]

    def split_event(self, z: tuple[Any, Any]) -> Sequence[Any]:
        return z[: len(self.parts())]

    def join_event(self, events: Sequence[Any]) -> tuple[Any, Any]:
        return (events[0], events[1] if len(events) > 1 else None)

    def mean_weights(self) -> Float[Real, "*batch k"]:
        """Return the expected mixing weights, equal ones without a posterior over them."""
        if self.weights is not None:
            return self.weights.mean_weights()
        return self.xp.np.full((*self.batch_shape, self.size), 1 / self.size)
