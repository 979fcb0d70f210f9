"""Many trees of one structure at once: an array a leaf, with a first axis over the trees.

A call a tree costs more than the numbers in a small one; a call a leaf serves all trees.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.tree import Node, field_names


def columns(like: Any, trees: Sequence[Any]) -> list[Sequence[Any]]:
    """For each leaf of ``like``, in the order of fields and keys, the leaf of each tree.

    Raises:
        ValueError: if a tree differs from ``like`` in types or names; shapes are not compared.
    """
    if not _branches(like):
        return [trees]
    names = _names(like)
    inner = [_children(tree) for tree in trees if type(tree) is type(like)]
    fixed = isinstance(like, Node)  # the type says the names
    if len(inner) < len(trees) or not (fixed or all(tree.keys() == names for tree in inner)):
        raise ValueError(f"a tree that is not like {like!r}")
    own = _children(like)
    parts = (columns(own[name], [tree[name] for tree in inner]) for name in names)
    return list(itertools.chain.from_iterable(parts))


def rows(like: Any, leaves: Iterable[Iterable[Any]]) -> list[Any]:
    """The inverse of :func:`columns`: trees like ``like`` around these leaves, unchecked."""
    return list(_rows(like, iter(leaves)))


def stacked(like: Any, trees: Sequence[Any]) -> Any:
    """One tree whose leaves hold those of all trees; ValueError if they differ in structure."""
    return rows(like, [[frozen(np.array(column))] for column in columns(like, trees)])[0]


def unstacked(tree: Any) -> list[Any]:
    """The trees that were stacked; their leaves are views."""
    return rows(tree, [_split(leaf) for (leaf,) in columns(tree, [tree])])


def _rows(like: Any, leaves: Iterator[Iterable[Any]]) -> Iterable[Any]:
    if like is None:
        return itertools.repeat(None)
    if not _branches(like):
        return next(leaves)
    own = _children(like)
    together = zip(*[_rows(own[name], leaves) for name in _names(like)], strict=False)
    if isinstance(like, Node):
        return [type(like).of_children(row) for row in together]
    if isinstance(like, dict):
        return [dict(zip(like, row, strict=True)) for row in together]
    return [type(like)(row) for row in together]


def _split(leaf: np.ndarray) -> list[np.ndarray]:
    # Iterating over numbers gives scalars, which are no arrays.
    return list(leaf) if leaf.ndim > 1 else [leaf[index, ...] for index in range(len(leaf))]


def _branches(tree: Any) -> bool:
    return tree is None or isinstance(tree, Node | dict | list | tuple)


def _children(tree: Any) -> dict[Any, Any]:
    if isinstance(tree, dict):
        return tree
    if isinstance(tree, Node):
        return dict(zip(_names(tree), tree.children(), strict=True))
    return {} if tree is None else dict(enumerate(tree))


def _names(tree: Any) -> Any:
    if isinstance(tree, Node):
        return field_names(type(tree))
    return _children(tree).keys()
