"""Exact sums of trees of NumPy float64 arrays, all of one structure."""

import functools
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from posterity.arrays.exact_sums import condensed, exact_sum
from posterity.arrays.leaves import frozen
from posterity.arrays.stacks import CHUNK, blocks, columns, rows
from posterity.arrays.tree import Node, leaves
from posterity.arrays.typing import PyTree


class TreeSum(Node):
    """An exact sum of trees, which is rounded once when it is read.

    ``layers`` are trees of the same structure, as in :mod:`posterity.arrays.exact_sums`: equal sums
    have equal layers, so a tree that was added and subtracted again leaves no trace.

    >>> total = TreeSum.of([np.array(0.1)])
    >>> float(total.changed(add=[np.array(1e20)]).changed(take=[np.array(1e20)]).value)
    0.1
    """

    layers: tuple[Any, ...]

    @classmethod
    def of(cls, trees: Sequence[Any]) -> Self:
        """Return the sum of one or more trees, all with the structure of the first.

        Raises:
            ValueError: if their structures differ.
            ParameterError: if a number is not finite, or a sum is beyond the range of float64.
        """
        return cls._of_terms(trees[0], _flat(trees[0], trees))

    @classmethod
    def _of_terms(cls, like: PyTree, terms: np.ndarray) -> Self:
        total = cls(_trees(like, layers := exact_sum(terms)))
        total.__dict__["_terms"] = layers
        return total

    @functools.cached_property
    def _terms(self) -> np.ndarray:
        """The layers as flat vectors, one row each."""
        return _flat(self.value, self.layers)

    @property
    def value(self) -> Any:
        """The tree of all sums, each rounded to nearest."""
        return self.layers[0]

    @property
    def nbytes(self) -> int:
        """The size of the sum in a message, in bytes."""
        return sum(leaf.nbytes for leaf in leaves(self))

    def changed(self, add: Sequence[Any] = (), take: Sequence[Any] = ()) -> Self:
        """Return the sum after adding some trees and subtracting others; errors as :meth:`of`."""
        like = self.value
        terms = [self._terms]
        terms += [_flat(like, add)] if add else []
        terms += [-_flat(like, take)] if take else []
        return self._of_terms(like, np.concatenate(terms))


def total(trees: Sequence[Any], *, together: int = CHUNK) -> Any:
    """Return the sum of one or more trees, rounded once: the value of their :class:`TreeSum`, of
    large trees so many numbers ``together``, which bounds the memory beside the sum's own.

    Errors are those of :meth:`TreeSum.of`.
    """
    like = trees[0]
    own = columns(like, trees)
    if sum(np.size(column[0]) for column in own) * len(trees) <= together:
        return TreeSum.of(trees).value
    return rows(like, [[frozen(_total(column, together))] for column in own])[0]


def _total(column: Sequence[Any], together: int) -> np.ndarray:
    flat = [np.reshape(leaf, -1) for leaf in column]
    result = np.empty(len(flat[0]))
    pieces = -(-result.size * len(flat) // together)
    step = max(1, -(-result.size // max(1, pieces)))
    for start in range(0, result.size, step):
        part = slice(start, start + step)
        result[part] = exact_sum(np.array([leaf[part] for leaf in flat]))[0]
    return result.reshape(np.shape(column[0]))


# --- trees as rows of numbers --------------------------------------------------------------------


def _flat(like: PyTree, trees: Sequence[Any]) -> np.ndarray:
    """Flatten each tree to a row; many rows are condensed to fewer with the same sums."""
    parts = [_rows(column) for column in columns(like, trees)]
    most = max(map(len, parts))
    full = [p if len(p) == most else np.pad(p, ((0, most - len(p)), (0, 0))) for p in parts]
    return np.concatenate(full, axis=1)


def _rows(column: Sequence[Any]) -> np.ndarray:
    """Flatten one leaf of all trees to rows, condensed to fewer rows if there are many."""
    together = np.concatenate([condensed(block) for _, block in blocks(column)])
    return together.reshape(len(together), -1)


def _trees(like: PyTree, flat: np.ndarray) -> tuple[Any, ...]:
    columns_of = []
    start = 0
    for (leaf,) in columns(like, [like]):
        own = flat[:, start : start + leaf.size]
        columns_of.append([row.reshape(leaf.shape) for row in own])
        start += leaf.size
    return tuple(rows(like, columns_of))
