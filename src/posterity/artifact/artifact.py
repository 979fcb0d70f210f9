"""Save, load and inspect files of posteriors."""

import contextlib
import dataclasses
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.tree import Node
from posterity.arrays.typing import Shape
from posterity.artifact import container
from posterity.artifact.architecture import Architecture
from posterity.artifact.codecs import SiteVersion, columns_of
from posterity.artifact.container import File
from posterity.artifact.manifest import (
    FORMAT_VERSION,
    Manifest,
    digest,
    metadata_of,
    of_arrays,
    of_pieces,
    read_manifest,
)
from posterity.artifact.registry import codec_of
from posterity.artifact.tree import decode, encode
from posterity.errors import ArtifactError, PosterityError, within
from posterity.families import Distribution
from posterity.ledger import Ledger
from posterity.runtime.files import AnyPath, write_file
from posterity.runtime.text import typed

__all__ = ["Inspection", "Posterior", "digest", "inspect", "load", "open_artifact", "save"]

Posterior = Distribution | Ledger
"""A posterior that a site sends. Files can also hold architectures and dictionaries of values."""


def save(posterior: object, path: AnyPath, *, provenance: Mapping[str, str] | None = None) -> None:
    """Write a family, mixture or ledger to ``path``, completely or not at all.

    A student, an :class:`Architecture` and a dictionary can be saved too. A dictionary may hold all
    of these, arrays, numbers, texts, and lists, tuples and dictionaries of them. Equal contents
    give equal bytes. ``provenance`` is free text by key, kept in the manifest. Contents that
    :func:`load` would refuse are not written.

    Raises:
        ParameterError: if a parameter is NaN or infinite.
        ArtifactError: if files cannot hold it, or the file cannot be written; an earlier file then
            stays as it was.

    >>> import tempfile
    >>> from posterity import Beta
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Beta.from_standard(2.0, 3.0), f"{folder}/q.safetensors")
    ...     load(f"{folder}/q.safetensors")
    Beta(0.4 ± 0.2)
    """
    with within("what was to be saved"):
        pieces = _pieces(posterior, provenance or {})
    write_file(Path(path), *pieces)


def _pieces(value: object, provenance: Mapping[Any, Any]) -> list[Any]:
    """Return the bytes of a file in pieces, after a check that they can be read."""
    codec = codec_of(type(value).__name__)
    whole = codec is not None and codec.whole and codec.of is type(value)
    if not whole and not isinstance(value, Node | Ledger | Architecture | dict):
        raise ArtifactError(
            found=f"a {type(value).__name__}",
            expected="a posterior, a ledger, an architecture, or a dictionary of values",
        )
    arrays: dict[str, np.ndarray] = {}
    tree = encode(value, "", arrays)
    specs = {name: container.Spec(a.dtype.name, a.shape) for name, a in arrays.items()}
    metadata = metadata_of(tree, of_arrays(arrays), provenance)
    content = container.write_header(specs, metadata)
    size = len(content) + sum(spec.size for spec in specs.values())
    header = container.read_header(io.BytesIO(content), size)
    decode(read_manifest(header).tree, arrays, check=True)
    order = container.in_file_order(specs)
    return [content, *(container.as_bytes(arrays[name]) for name in order)]


def to_bytes(value: object) -> bytes:
    """Return the bytes that :func:`save` would write; raises as it does."""
    return b"".join(bytes(piece) for piece in _pieces(value, {}))


def from_bytes(content: bytes, *, what: str = "a message") -> Any:
    """Read a value from :func:`to_bytes`; raises as :func:`load`, in errors named ``what``."""
    with _read(io.BytesIO(content), len(content), what) as opened:
        return opened.value()


def load(path: AnyPath) -> Any:
    """Read a file by :func:`save`, bit for bit, as read-only NumPy arrays.

    Raises:
        ArtifactError: if the file is missing, truncated, foreign, altered, of an unknown format
            version, or has contents that ``save`` does not write.
    """
    with _opened(path) as opened:
        return opened.value()


def loaded(value: object) -> Any:
    """Return an argument of a verb: the content of the file if it is a path, else itself."""
    return load(value) if isinstance(value, str | os.PathLike) else value


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The description of a file: type and shape of each array, and versions of a ledger's sites.

    For a file that holds no ledger ``prior_digest`` is None, and ``sites`` is empty.
    """

    path: str
    kind: str
    format: int
    digest: str
    provenance: dict[str, str]
    arrays: dict[str, tuple[str, Shape]]
    sites: dict[str, SiteVersion]
    prior_digest: str | None
    bytes: int


def inspect(path: AnyPath) -> Inspection:
    """Check a file's digests and describe its contents; raises as :func:`load`.

    >>> import tempfile
    >>> from posterity import Beta
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Beta.from_standard(2.0, 3.0), f"{folder}/q.safetensors")
    ...     inspect(f"{folder}/q.safetensors").arrays
    {'a_minus_one': ('float64', ()), 'b_minus_one': ('float64', ())}
    """
    with _opened(path) as opened:
        opened.check_pieces()
        return _inspection(path, opened)


def outline(path: AnyPath) -> dict[str, Any]:
    """Return the tree of types in a file, without its arrays; raises as :func:`load`.

    The digest of the arrays, which are not read, is not checked.
    """
    with _opened(path) as opened:
        return opened.manifest.tree


def open_artifact(path: AnyPath) -> tuple[Any, Inspection]:
    """Return the results of :func:`load` and :func:`inspect` in one read; raises as ``load``."""
    with _opened(path) as opened:
        return opened.value(), _inspection(path, opened)


class _Opened(NamedTuple):
    file: File
    size: int
    header: container.Header
    manifest: Manifest

    def check(self, data: str) -> None:
        """Raise an ArtifactError unless the digest of the arrays is that in the manifest."""
        if self.manifest.data != data:
            raise container.altered("arrays that do not match their digest")

    def check_pieces(self) -> None:
        """Check the digest while reading the arrays a piece at a time."""
        self.check(of_pieces(container.read_pieces(self.file, self.header)))

    def value(self) -> Any:
        """Return the value after checking the arrays."""
        if container.is_sparse(self.file, self.size):  # check before memory is allocated
            self.check_pieces()
        arrays = container.read_arrays(self.file, self.header, self.size)
        self.check(of_arrays(arrays))
        return decode(self.manifest.tree, arrays)


TABLES = (".csv", ".tsv", ".txt", ".parquet", ".xlsx", ".dta", ".sav", ".sas7bdat")
"""Endings of tables, which are no files of posteriors."""


@contextlib.contextmanager
def _opened(path: AnyPath) -> Iterator[_Opened]:
    """Open a file and read its header and manifest; errors name the file."""
    where = f"file {os.fspath(path)!r}"
    try:
        with container.opened(path) as (file, size), _read(file, size, where) as opened:
            yield opened
    except ArtifactError as error:
        name = os.fspath(path)
        if not str(name).lower().endswith(TABLES):
            raise
        raise ArtifactError(
            found=f"a table of records, {name!r}, in place of a posterior",
            expected="a file that posterity wrote",
            fix=f"Fit it first: {typed('posterity fit', name)} --target NAME --model MODEL -o "
            "FILE.safetensors; or, of a table of coefficients, posterity import.",
        ) from error


@contextlib.contextmanager
def _read(file: File, size: int, what: str) -> Iterator[_Opened]:
    """Read the header and manifest of a file; errors name ``what``."""
    try:
        header = container.read_header(file, size)
        yield _Opened(file, size, header, read_manifest(header))
    except (OSError, MemoryError):
        raise
    except PosterityError as error:
        start = error.found[:1000]  # a file's content may be of any length
        refused = ArtifactError(found=start, expected=error.expected, fix=error.fix)
        raise refused.at(what) from error
    except Exception as error:  # from a family's constructor
        refused = container.altered(f"contents that do not fit together ({error})")
        raise refused.at(what) from error


def _inspection(path: AnyPath, opened: _Opened) -> Inspection:
    kind = opened.manifest.tree["type"]
    fields = opened.manifest.tree["fields"]
    ledger = kind == Ledger.__name__
    names, *versions = columns_of(fields) if ledger else ((), (), (), (), ())
    specs = sorted(opened.header.specs.items())
    return Inspection(
        path=os.fspath(path),
        kind=kind,
        format=FORMAT_VERSION,
        digest=opened.manifest.digest,
        provenance=opened.manifest.provenance,
        arrays={name: (spec.dtype, spec.shape) for name, spec in specs},
        sites=dict(zip(names, map(SiteVersion, *versions), strict=True)),
        prior_digest=str(fields.get("prior_digest")) if ledger else None,
        bytes=opened.size,
    )
