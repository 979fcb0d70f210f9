"""Checksums: they tell what was altered, not who wrote it."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from posterity.artifact.container import as_bytes
from posterity.artifact.tree import encode

FORMAT_VERSION = 2


def digest(posterior: Any) -> str:
    """SHA-256 of the contents: equal for equal posteriors, wherever they are kept."""
    arrays: dict[str, np.ndarray] = {}
    tree = encode(posterior, "", arrays)
    return of_text(as_text({"format": FORMAT_VERSION, "tree": tree, "data": of_arrays(arrays)}))


def of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the bytes of all arrays, one after the other by name."""
    return of_pieces(as_bytes(arrays[name]) for name in sorted(arrays))


def of_pieces(pieces: Iterable[Any]) -> str:
    """SHA-256 of bytes that come piece by piece."""
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()


def of_text(text: str) -> str:
    """SHA-256 of ASCII text."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def as_text(document: Mapping[str, Any]) -> str:
    """JSON in ASCII, of one form for equal contents."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
