"""Many small files of one structure, read as one batch with the checks of single files.

Files of one model differ only in their numbers, their digests, and, for a ledger, the site's name;
all other bytes of their headers agree. A header is therefore interpreted once per structure, while
both digests of each file are compared. A file with any deviation is read on its own, which either
succeeds or raises an error that says what is wrong with it.
"""

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.leaves import frozen
from posterity.arrays.tree import map_leaves
from posterity.artifact.artifact import open_artifact, outline
from posterity.artifact.container import Spec, opened
from posterity.artifact.tree import decode, specs
from posterity.errors import ArtifactError, PosterityError
from posterity.families import ExponentialFamily
from posterity.ledger import Ledger
from posterity.runtime.files import AnyPath

DATA = b'{\\"data\\":\\"'
MANIFEST = b'{"__metadata__":{"posterity":"' + DATA
"""The beginning of every header, up to the digest of the arrays."""
SHA = b'","sha256":"'
"""The bytes before the digest of the manifest."""
SITES = b',\\"sites\\":[\\"'
"""The bytes before the name of a ledger's only site."""


class Several(NamedTuple):
    """Posteriors of one structure from several files, as one batch (sites,).

    ``prior`` is their common prior if the files hold ledgers of one site each, else None.
    ``digests`` are those of the files. ``names`` are the sites of the ledgers, or the files' names.
    """

    names: list[str]
    posterior: ExponentialFamily
    prior: ExponentialFamily | None
    digests: list[str]
    provenance: dict[str, str]


class Alone(NamedTuple):
    """The value of one file, and the name of its sites or file."""

    name: str
    value: Any
    digest: str
    provenance: dict[str, str]


class _Raw(NamedTuple):
    path: str
    name: str = ""
    digest: str = ""
    data: bytes = b""


class _Kind(NamedTuple):
    """The parts that files of one structure share."""

    tree: dict[str, Any]
    specs: dict[str, Spec]
    size: int
    prior: ExponentialFamily | None
    provenance: dict[str, str]


def read_many(paths: Sequence[str], together: int = 512) -> Iterator[Several | Alone]:
    """Yield the values of many files, those of one structure ``together``, at most so many at a
    time, which bounds the memory.

    Within such a number, structures come in the order of their first files. Raises the error of
    :func:`posterity.load` for the first file that cannot be read.
    """
    kinds: dict[bytes, _Kind | None] = {}
    for start in range(0, len(paths), together):
        alike: dict[bytes, list[_Raw]] = {}
        for path in paths[start : start + together]:
            key, raw = _raw(path)
            if key not in kinds:
                kinds[key] = _kind(path) if key else None
            alike.setdefault(key, []).append(raw)
        for key, files in alike.items():
            kind = kinds[key]
            if kind is None or len(files) < 2 or (batch := _batch(kind, files)) is None:
                yield from (read_alone(raw.path) for raw in files)
            else:
                yield batch


def read_alone(path: str, name: str | None = None) -> Alone:
    """Read one file; raises as :func:`posterity.load`. A ``name`` is given to its only site."""
    value, about = open_artifact(path)
    own = name_in(value, path) if name is None else name
    return Alone(own, called(value, name), about.digest, about.provenance)


def name_in(value: Any, path: AnyPath) -> str:
    """Return the name of a ledger's sites; of anything else, or without sites, that of its file."""
    own = name_of(value.sites) if isinstance(value, Ledger) else ""
    return own or Path(path).stem


def called(value: Any, name: str | None) -> Any:
    """Return a ledger of one site under this name; anything else, or without a name, as it is."""
    if name is None or not isinstance(value, Ledger) or len(value.entries) != 1:
        return value
    return value.renamed(name)


def name_of(contributors: Sequence[str], most: int = 8) -> str:
    """Return the name of a ledger of these sites, which lists up to ``most``; empty for none.

    >>> name_of(["north", "south"])
    'north+south'
    """
    if len(contributors) <= most:
        return "+".join(contributors)
    return f"{contributors[0]} to {contributors[-1]} ({len(contributors)} sites)"


def _raw(path: str) -> tuple[bytes, _Raw]:
    """Read a file; return its structure's key, empty if it may be damaged, and its own parts."""
    content = _content(path)
    start = 8 + int.from_bytes(content[:8], "little")
    header = content[8:start].rstrip(b" ")
    data = content[start:]
    first = len(MANIFEST) + 64
    end = header.find(SHA)
    text = header[len(MANIFEST) - len(DATA) : end].replace(b'\\"', b'"')
    claimed = header[first - 64 : first], header[end + len(SHA) : end + len(SHA) + 64]
    plain = text.isascii() and text.decode().isprintable() and b"\\" not in text
    if not plain or not header.startswith(MANIFEST) or (_digest(data), _digest(text)) != claimed:
        return b"", _Raw(path)
    name = Path(path).stem
    shared = header[first:end]
    site = header.find(SITES, first, end)
    if site > 0:  # the last field, in a ledger of one site
        after = header.find(b'\\"', site + len(SITES), end)
        name = header[site + len(SITES) : after].decode()
        shared = header[first:site] + SITES + header[after:end]
    return shared + header[end + len(SHA) + 64 :], _Raw(path, name, claimed[1].decode(), data)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _content(path: str) -> bytes:
    """Return the bytes of a regular file; empty if it is none or cannot be read."""
    with contextlib.suppress(ArtifactError), opened(path) as (file, size):
        return content if len(content := file.read(size)) == size else b""
    return b""


def _kind(path: str) -> _Kind | None:
    """Return the parts that a file shares with others, if several can be read as one batch."""
    value, about = open_artifact(path)
    ledger = isinstance(value, Ledger)
    law = value.prior if ledger else value
    single = isinstance(law, ExponentialFamily) and not law.batch_shape
    one_site = not ledger or (len(value.entries) == len(value.sites) == 1 and value.independent)
    if not single or not one_site:
        return None
    tree = outline(path)
    arrays = dict(specs(tree))
    if any(spec.dtype != "float64" for spec in arrays.values()):
        return None
    size = sum(spec.size for spec in arrays.values())
    return _Kind(tree, arrays, size, law if ledger else None, about.provenance)


def _batch(kind: _Kind, files: Sequence[_Raw]) -> Several | None:
    """Return the files as one batch; None if one of them deviates."""
    if any(len(raw.data) != kind.size for raw in files):
        return None
    numbers = np.frombuffer(b"".join(raw.data for raw in files), "<f8").reshape(len(files), -1)
    posterior = None
    with contextlib.suppress(PosterityError):  # of one file, which raises when read alone
        posterior = _posterior(kind, numbers) if np.isfinite(numbers).all() else None
    if posterior is None:
        return None
    _, names, digests, _ = map(list, zip(*files, strict=True))
    return Several(names, posterior, kind.prior, digests, kind.provenance)


def _posterior(kind: _Kind, numbers: np.ndarray) -> ExponentialFamily | None:
    arrays = {}
    start = 0
    for name in sorted(kind.specs):  # the order in the file, since all numbers have one width
        shape = kind.specs[name].shape
        own = numbers[:, start : start + math.prod(shape)]
        arrays[name] = frozen(own.reshape(len(numbers), *shape))
        start += math.prod(shape)
    if kind.prior is None:
        return decode(kind.tree, arrays)
    fields = kind.tree["fields"]

    def every(leaf):
        return np.broadcast_to(leaf, (len(numbers), *leaf.shape))

    priors = decode(fields["prior"], arrays, "prior")
    if priors != map_leaves(every, kind.prior):
        return None
    return priors + decode(fields["factors"], arrays, "factors")[:, 0]
