"""Marginals of laws of bounded events: monotone maps of numbers, and draws of all else."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from posterity.families.marginals import Sampled, Table, unknown
from posterity.families.numeric import DRAWS
from posterity.families.supports import Continuous, PositiveDefiniteMatrices


def event_tables(law: Any, names: tuple[str, ...], block: str) -> Iterator[Table]:
    """A table for each part of the event of a ``Transformed`` law.

    Quantiles of numbers are those of the law of real vectors, mapped. What is mapped together, such
    as probabilities and covariances, is drawn 4,096 times, always with the same seed.

    Args:
        law: the transformed law.
        names: of the unconstrained coordinates, or none.
        block: the path of the block that the law is.
    """
    proper, size = bool(np.all(law.is_proper())), law.bijection.size
    numbers = law.law.marginals()[0] if proper else unknown((*law.batch_shape, size))
    draws, start = None, 0
    for path, support in _parts(law.supports.tree, ""):
        count = int(np.prod(support.free_shape, dtype=int))
        where, own = slice(start, start + count), names[start : start + count]
        if support.normal_image is None:
            draws = _events(law, proper) if draws is None else draws
            values = _entries(support, _at(draws, path), len(law.batch_shape))
            own, found = _entry_names(support, values.shape[-1]), Sampled(values)
            found = found if proper else unknown(values.shape[1:])
        else:
            path, own = _under_names(path, own) if own else _numbered(path, support)
            found = numbers.mapped_normal(support.normal_image).picked((..., where))
        yield Table("/".join(filter(None, (block, path))), "", (), own, found)
        start += count


def _parts(tree: Any, path: str) -> Iterator[tuple[str, Continuous]]:
    """Supports by path, in the order in which their numbers lie."""
    if isinstance(tree, dict | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for name, part in items:
            yield from _parts(part, f"{path}/{name}" if path else str(name))
    elif tree is not None:
        yield path, tree


def _under_names(path: str, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Names that begin with their part's, ``sigma`` or ``beta[0]``, say where they are."""
    head, _, last = path.rpartition("/")
    said = last and all(name == last or name.startswith(f"{last}[") for name in names)
    return (head if said else path), names


def _numbered(path: str, support: Continuous) -> tuple[str, tuple[str, ...]]:
    """A number goes by its part's name, several by their places in it."""
    if not support.shape:
        head, _, last = path.rpartition("/")
        return head, (last or "0",)
    index = np.ndindex(*support.shape)
    return path, tuple(str(i[0]) if len(i) == 1 else str(i) for i in index)


def _events(law: Any, proper: bool) -> Any:
    """Draws of the event; of an improper law only their shapes mean something."""
    blank = np.zeros((1, *law.batch_shape, *law.law.event_shape))
    flat = law.law.numpy_draws(np.random.default_rng(0), DRAWS) if proper else blank
    bijection = law.bijection
    return bijection.forward(bijection.unravel(flat))


def _at(tree: Any, path: str) -> Any:
    for part in path.split("/") if path else []:
        tree = tree[int(part)] if isinstance(tree, tuple) else tree[part]
    return tree


def _entries(support: Continuous, values: Any, batch: int) -> np.ndarray:
    """All numbers of one part on the last axis, of symmetric matrices each once."""
    values = np.asarray(values, float)
    if isinstance(support, PositiveDefiniteMatrices):
        rows, columns = np.triu_indices(support.shape[-1])
        values = values[..., rows, columns]
    return values.reshape((*values.shape[: 1 + batch], -1))


def _entry_names(support: Continuous, count: int) -> tuple[str, ...]:
    if isinstance(support, PositiveDefiniteMatrices):
        rows, columns = np.triu_indices(support.shape[-1])
        inner = [f"({i}, {j})" for i, j in zip(rows, columns, strict=True)]
    else:
        inner = [str(i) for i in range(support.shape[-1])] if support.axes else [""]
    outer = [", ".join(map(str, index)) for index in np.ndindex(*support.outer)]
    found = tuple(" ".join(filter(None, (o, i))) or "0" for o in outer for i in inner)
    return found if len(found) == count else tuple(map(str, range(count)))
