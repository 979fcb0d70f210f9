"""The manifest: a description of a file's contents, in JSON, with its own digest.

It lists the type and shape of every array and a digest of all their bytes, so a file with other
contents than it claims is refused before its arrays are read. Digests are checksums: they show that
a file was altered, not who wrote it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from posterity.artifact.container import Header, altered, as_bytes, parsed
from posterity.artifact.registry import ARRAY
from posterity.artifact.tree import encode, specs
from posterity.errors import ArtifactError

FORMAT_VERSION = 2
"""Version of the format of files (docs/format.md)."""
KEY, DIGEST = "posterity", "sha256"
"""The metadata keys of the manifest and of its digest."""
FIELDS = {"format", "provenance", "tree", "data"}


class Manifest(NamedTuple):
    """A file's claimed contents; ``data`` is the digest of its arrays, ``digest`` of the whole."""

    tree: dict[str, Any]
    provenance: dict[str, str]
    data: str
    digest: str


def metadata_of(tree: Any, data: str, provenance: Mapping[Any, Any]) -> dict[str, str]:
    """Return the metadata of a file; an ArtifactError if the provenance is not text by key."""
    document = {"format": FORMAT_VERSION, "provenance": dict(provenance), "tree": tree}
    _check_provenance(document["provenance"])
    text = as_text({**document, "data": data})
    return {KEY: text, DIGEST: _of_text(text)}


def read_manifest(header: Header) -> Manifest:
    """Read the manifest of a file; an ArtifactError if there is none or it does not fit."""
    if KEY not in header.metadata:
        raise ArtifactError(
            found="a safetensors file without posterity's manifest",
            expected="one written by posterity.save; foreign weights go through an adapter",
        )
    text = header.metadata[KEY]
    document = parsed(text, "manifest")
    version = document.get("format")
    if type(version) is not int or version != FORMAT_VERSION:
        raise ArtifactError(
            found=f"format version {version!r}",
            expected=f"format version {FORMAT_VERSION}, by a matching release of posterity",
        )
    if not text.isascii() or header.metadata != {KEY: text, DIGEST: _of_text(text)}:
        others = sorted(header.metadata.keys() - {KEY, DIGEST})
        raise altered(f"unknown metadata {others}" if others else "a manifest that was altered")
    tree: Any = document.get("tree")
    posterior = isinstance(tree, dict) and tree.get("type") not in (ARRAY, "tuple")
    if document.keys() != FIELDS or not posterior:
        raise altered(f"a manifest of {sorted(document)} without a posterior")
    _check_provenance(document["provenance"])
    named = dict(specs(tree))
    if named != header.specs:
        apart = {name for name, _ in named.items() ^ header.specs.items()}
        raise altered(f"arrays that the manifest describes otherwise: {sorted(apart)[:10]}")
    return Manifest(tree, document["provenance"], document["data"], _of_text(text))


def _check_provenance(provenance: object) -> None:
    texts = provenance.items() if isinstance(provenance, dict) else [(None,)]
    if not all(isinstance(text, str) for item in texts for text in item):
        raise ArtifactError(found=f"the provenance {provenance!r}", expected="text by key")


# --- digests -------------------------------------------------------------------------------------


def digest(posterior: object) -> str:
    """Return the SHA-256 of the contents: equal for equal posteriors, in any file."""
    arrays: dict[str, np.ndarray] = {}
    tree = encode(posterior, "", arrays)
    return _of_text(as_text({"format": FORMAT_VERSION, "tree": tree, "data": of_arrays(arrays)}))


def of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the bytes of all arrays, sorted by name."""
    return of_pieces(as_bytes(arrays[name]) for name in sorted(arrays))


def of_pieces(pieces: Iterable[Any]) -> str:
    """Return the SHA-256 of the concatenated pieces."""
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()


def _of_text(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def as_text(document: Mapping[str, Any]) -> str:
    """Return JSON in ASCII, equal for equal contents."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
