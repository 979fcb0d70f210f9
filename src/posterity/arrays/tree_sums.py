"""Exact sums of trees of one structure, at rest: NumPy float64 throughout."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from posterity.arrays.exact_sums import FEW, condensed, exact_sum
from posterity.arrays.stacks import blocks, columns, rows
from posterity.arrays.tree import Node, leaves
from posterity.arrays.typing import PyTree


class TreeSum(Node):
    """A sum of trees, exact however many come and go, and rounded once when read.

    ``layers`` are trees like those that were added, as :mod:`posterity.arrays.exact_sums` has
    them: equal sums have equal layers, so what was added and taken away leaves no trace.

    >>> total = TreeSum.of([np.array(0.1)])
    >>> float(total.changed(add=[np.array(1e20)]).changed(take=[np.array(1e20)]).value)
    0.1
    """

    layers: tuple[Any, ...]

    @classmethod
    def of(cls, trees: Sequence[Any]) -> Self:
        """The sum of these, at least one, all of the first one's structure.

        Raises:
            ValueError: if their structures differ.
            ParameterError: if a number is not finite, or a sum is beyond the range of float64.
        """
        like = trees[0]
        return cls(_trees(like, exact_sum(_flat(like, trees))))

    @property
    def value(self) -> Any:
        """The tree of all sums, each rounded to nearest."""
        return self.layers[0]

    @property
    def nbytes(self) -> int:
        """The size of the sum in a message, in bytes."""
        return sum(leaf.nbytes for leaf in leaves(self))

    def changed(self, add: Sequence[Any] = (), take: Sequence[Any] = ()) -> Self:
        """The sum with trees added and others taken out; errors as of :meth:`of`."""
        terms = _flat(self.value, [*self.layers, *add])
        if take:
            terms = np.concatenate([terms, -_flat(self.value, take)])
        return type(self)(_trees(self.value, exact_sum(terms)))


# --- trees as rows of numbers --------------------------------------------------------------------


def _flat(like: PyTree, trees: Sequence[Any]) -> np.ndarray:
    """A row a tree, its leaves side by side; of many trees fewer rows with the same sums."""
    parts = [_rows(column) for column in columns(like, trees)]
    flat = np.zeros((max(map(len, parts)), sum(part.shape[1] for part in parts)))
    start = 0
    for part in parts:
        flat[: len(part), start : start + part.shape[1]] = part
        start += part.shape[1]
    return flat


def _rows(column: Sequence[Any]) -> np.ndarray:
    """One leaf of all trees, a row each, or what these are condensed to."""
    few = [block if len(block) <= FEW else condensed(block) for _, block in blocks(column)]
    together = few[0] if len(few) == 1 else np.concatenate(few)
    return together.reshape(len(together), -1)


def _trees(like: PyTree, flat: np.ndarray) -> tuple[Any, ...]:
    """The trees like ``like`` of which these are the rows."""
    columns_of, start = [], 0
    for (leaf,) in columns(like, [like]):
        own = flat[:, start : start + leaf.size]
        columns_of.append([row.reshape(leaf.shape) for row in own])
        start += leaf.size
    return tuple(rows(like, columns_of))
