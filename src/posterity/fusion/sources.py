"""Sources of posteriors: collections, iterators, folders and patterns of file names."""

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from posterity.arrays.stacks import unstacked
from posterity.arrays.tree import leaves
from posterity.artifact import Posterior
from posterity.artifact.many import Alone, Several, read_alone, read_many
from posterity.errors import UsageError
from posterity.families import Distribution, ExponentialFamily
from posterity.fusion.paths import blocks
from posterity.ledger import Ledger

BUDGET = 512 * 2**20  # Bytes of memory that fusing works in, by default
SHARE = 8  # The part of it, one in so many, up to which parameters are matched in memory
IN_MEMORY = BUDGET // SHARE  # Bytes of parameters up to which all sites are matched in memory
TOGETHER = 512  # Files that are read, and sites that are laid down in tables, at a time
SUFFIX = ".safetensors"

Fusible = Posterior | Alone | Several | str | os.PathLike[str]
Item = tuple[str | None, Any]
"""A posterior, ledger, path, or several of them as one batch; by name where it has one."""


def items(posteriors: Any) -> Iterator[Item]:
    """The posteriors to be fused, one after the other, by name where they have one.

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
            paths = [e.path for e in entries if e.name.endswith(SUFFIX) and e.name[0] != "."]
    elif not glob.has_magic(path) or os.path.lexists(path):
        return [path]
    else:
        paths = glob.glob(path, recursive=True)
    if not paths:
        raise UsageError(
            found=f"no file that is meant by {path!r}",
            expected=f"a folder with files *{SUFFIX}, or a pattern that matches some",
            fix="Check the path; quote a pattern, so that the shell leaves it alone.",
        )
    return sorted(paths)


def within(posteriors: Iterator[Item], limit: int) -> tuple[Iterator[Item], bool]:
    """The same once more, and whether all take no more than ``limit`` bytes.

    No more of them are in memory than that.
    """
    first, size = [], 0
    for item in posteriors:
        first.append(item)
        size += size_of(item[1])
        if size > limit:
            return itertools.chain(first, posteriors), False
    return iter(first), True


def is_batch(value: Any) -> bool:
    """True for a batch (sites,) of posteriors with plates, which stands for as many sites."""
    many = isinstance(value, ExponentialFamily) and len(value.batch_shape) == 1
    return many and any(block.is_plate for block in blocks(value).values())


def one_by_one(posteriors: Iterable[Item]) -> Iterator[Item]:
    """The same with files read, and several as one batch taken apart into sites."""
    for name, value in posteriors:
        if isinstance(value, Several):
            parts = zip(value.names, unstacked(value.posterior), value.digests, strict=True)
            for own, law, digest in parts:
                prior = value.prior
                q = law if prior is None else Ledger.of_site(own, prior=prior, posterior=law)
                yield None, Alone(own, q, digest, value.provenance)
        elif name is None and is_batch(value):
            yield from ((None, value[index]) for index in range(value.batch_shape[0]))
        else:
            yield name, read_alone(os.fspath(value), name) if _is_path(value) else value


def together(posteriors: Iterable[Item]) -> Iterator[Item]:
    """The same with files read, those that have no name of their own many at a time."""
    by_path = lambda item: item[0] is None and _is_path(item[1])
    for paths, some in itertools.groupby(posteriors, by_path):
        while paths and (few := [os.fspath(path) for _, path in itertools.islice(some, TOGETHER)]):
            yield from ((None, value) for value in read_many(few))
        for name, value in () if paths else some:
            yield name, read_alone(os.fspath(value), name) if _is_path(value) else value


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def size_of(value: Any) -> int:
    """Bytes of a posterior's parameters, or of a file, zero if it cannot be read."""
    if _is_path(value):
        try:
            return os.stat(value).st_size
        except (OSError, ValueError):  # which reading it will say
            return 0
    value = value.value if isinstance(value, Alone) else value
    law = value.prior if isinstance(value, Ledger) else getattr(value, "posterior", value)
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves(law))
