"""Where posteriors come from: collections, iterators, folders and patterns of file names."""

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from posterity.arrays.tree import leaves
from posterity.errors import UsageError
from posterity.families import Distribution, ExponentialFamily, Plate
from posterity.fusion.paths import blocks
from posterity.ledger import Ledger

IN_MEMORY = 64 * 2**20
"""Bytes of parameters up to which all sites are matched in memory."""
BUDGET = 512 * 2**20
"""Bytes of parameters that a stream keeps in memory, unless it is told otherwise."""
SUFFIX = ".safetensors"

Item = tuple[str | None, Any]
"""A posterior, ledger, path, or several of them as one batch; by name where it has one."""


def items(posteriors: Any) -> Iterator[Item]:
    """What is to be fused, one after the other, by name where it has one.

    A folder stands for the files in it that end in ``.safetensors``, a pattern for those that
    match it, in the order of their names.
    """
    if isinstance(posteriors, Mapping):
        yield from posteriors.items()
        return
    alone = isinstance(posteriors, str | os.PathLike | Distribution | Ledger)
    if not alone and not isinstance(posteriors, Iterable):
        raise UsageError(
            found=f"posteriors {posteriors!r}",
            expected="posteriors, ledgers or paths in a list, a mapping or an iterator",
            fix="Pass the posteriors of all sites together.",
        )
    for value in [posteriors] if alone else posteriors:
        if isinstance(value, str | os.PathLike):
            yield from ((None, path) for path in files(value))
        else:
            yield None, value


def files(path: str | os.PathLike[str]) -> list[str]:
    """The files that a path stands for: itself, those in a folder, or those of a pattern.

    Raises:
        UsageError: for a folder or a pattern without files.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            found = [e.path for e in entries if e.name.endswith(SUFFIX) and e.name[0] != "."]
    elif not glob.has_magic(path) or os.path.lexists(path):
        return [path]
    else:
        found = glob.glob(path, recursive=True)
    if not found:
        raise UsageError(
            found=f"no file that is meant by {path!r}",
            expected=f"a folder with files *{SUFFIX}, or a pattern that matches some",
            fix="Check the path; quote a pattern, so that the shell leaves it alone.",
        )
    return sorted(found)


def small(posteriors: Any, limit: int | None = IN_MEMORY) -> tuple[Any, Iterator[Item] | None]:
    """All of them as a collection; or, if they take more than ``limit`` bytes, one by one.

    Batches of posteriors with plates are taken apart into sites in the former.
    """
    incoming, held, size = items(posteriors), [], 0
    for item in incoming:
        held.append(item)
        size += 0 if limit is None else size_of(item[1])
        if limit is not None and size > limit:
            return [], itertools.chain(held, incoming)
    if isinstance(posteriors, Mapping):
        return dict(held), None
    return [value for _, value in one_by_one(held)], None


def one_by_one(held: Iterable[tuple[str | None, Any]]) -> Iterator[Item]:
    """The same, with batches of posteriors with plates taken apart into sites."""
    for name, value in held:
        many = isinstance(value, ExponentialFamily) and len(value.batch_shape) == 1
        if many and any(isinstance(block, Plate) for block in blocks(value).values()):
            yield from ((None, value[index]) for index in range(value.batch_shape[0]))
        else:
            yield name, value


def size_of(value: Any) -> int:
    """Bytes of a posterior's parameters, or of a file, zero if it cannot be read."""
    if isinstance(value, str | os.PathLike):
        try:
            return os.stat(value).st_size
        except (OSError, ValueError):  # which reading it will say
            return 0
    posterior = value.prior if isinstance(value, Ledger) else value
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves(posterior))
