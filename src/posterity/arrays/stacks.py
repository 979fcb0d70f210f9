"""Stacks of trees of one structure: one array per leaf, with a first axis over the trees.

For small trees one call per leaf is much faster than one call per tree.
"""

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.tree import Node, field_names, is_branch
from posterity.arrays.typing import PyTree

CHUNK = 2**18
"""Numbers of one leaf that are processed at a time, which bounds the memory."""


def columns(like: PyTree, trees: Sequence[Any]) -> list[Sequence[Any]]:
    """Return for each leaf of ``like``, in the order of fields and keys, the leaf of each tree.

    Raises:
        ValueError: if a tree differs from ``like`` in types or names; shapes are not compared.
    """
    if not is_branch(like):
        return [trees]
    if not {type(like)}.issuperset(map(type, trees)) or not _named_alike(like, trees):
        raise ValueError(f"a tree that is not like {like!r}")
    families = zip(*map(_getter(like), (like, *trees)), strict=True)
    parts = (columns(own, others) for own, *others in families)
    return list(itertools.chain.from_iterable(parts))


def rows(like: PyTree, leaves: Iterable[Iterable[Any]]) -> list[Any]:
    """Return trees like ``like`` with these leaves, unchecked; the inverse of :func:`columns`."""
    return list(_rows(like, iter(leaves)))


def blocks(column: Sequence[Any]) -> Iterator[tuple[Sequence[Any], np.ndarray]]:
    """Yield some arrays at a time, with the same as one array; ValueError if shapes differ."""
    step = max(1, CHUNK // max(1, np.size(column[0]))) if column else 1
    for start in range(0, len(column), step):
        part = column[start : start + step]
        yield part, np.array(part) if step > 1 else np.asarray(part[0])[None]


def stacked(like: PyTree, trees: Sequence[Any]) -> Any:
    """Return one tree of stacked leaves, views of them if it is one; ValueError if the trees differ
    in structure.
    """
    return rows(like, [[frozen(_stack(column))] for column in columns(like, trees)])[0]


def _stack(column: Sequence[Any]) -> np.ndarray:
    """Stack arrays; for many small ones this is ten times as fast as ``np.array``."""
    shape = np.shape(column[0])
    if len(column) == 1:
        return np.asarray(column[0])[None]
    if not shape or {*map(np.shape, column)} != {shape}:
        return np.array(column)
    return np.concatenate(column).reshape(len(column), *shape)


def unstacked(tree: PyTree) -> list[Any]:
    """Return the trees of a stack; their leaves are views."""
    return rows(tree, [_split(leaf) for (leaf,) in columns(tree, [tree])])


def _rows(like: PyTree, leaves: Iterator[Iterable[Any]]) -> Iterable[Any]:
    if like is None:
        return itertools.repeat(None)
    if not is_branch(like):
        return next(leaves)
    parts = [_rows(child, leaves) for child in _getter(like)(like)]
    together = zip(*parts, strict=False)  # what is None has no end
    if isinstance(like, Node):
        return [type(like).of_children(row, like.kept()) for row in together]
    if isinstance(like, dict):
        return [dict(zip(like, row, strict=True)) for row in together]
    return [type(like)(row) for row in together]


def _split(leaf: np.ndarray) -> list[np.ndarray]:
    # Iterating over numbers gives scalars, which are no arrays.
    return list(leaf) if leaf.ndim > 1 else [leaf[index, ...] for index in range(len(leaf))]


def _named_alike(like: PyTree, trees: Sequence[Any]) -> bool:
    """True if trees of one type have the same names; those of a node follow from its type."""
    if isinstance(like, dict):
        return all(tree.keys() == like.keys() for tree in trees)
    return not isinstance(like, list | tuple) or all(len(tree) == len(like) for tree in trees)


def _getter(like: PyTree) -> Callable[[Any], Sequence[Any]]:
    if isinstance(like, dict):
        return lambda tree: [tree[name] for name in like]
    if not isinstance(like, Node):
        return lambda tree: () if tree is None else tree
    kind: Any = type(like)
    names = field_names(kind)
    if kind.children is Node.children and len(names) > 1:  # as it gives them, but faster
        return operator.attrgetter(*names)
    return kind.children
