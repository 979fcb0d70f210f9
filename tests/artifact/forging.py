"""Files made by hand: by the safetensors package or byte by byte, never by what is tested."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def canonical(document: Any) -> str:
    """The digest of a document in the form that files have it in."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode())


def array_node(array: np.ndarray) -> dict[str, Any]:
    return {"type": "array", "dtype": array.dtype.name, "shape": list(array.shape)}


class Forgery:
    """A tree, its arrays and a manifest, to be changed; what is written has digests that fit."""

    def __init__(self, kind: str, arrays: dict[str, np.ndarray], **fields: Any) -> None:
        self.tree: Any = node(kind, **fields)
        self.arrays = arrays
        self.manifest: dict[str, Any] = {"format": 2, "provenance": {}}
        self.metadata: dict[str, str] = {}

    @property
    def fields(self) -> dict[str, Any]:
        return self.tree["fields"]

    def text(self) -> str:
        data = b"".join(self.arrays[name].tobytes() for name in sorted(self.arrays))
        document = {"tree": self.tree, "data": sha256(data), **self.manifest}
        return json.dumps({key: value for key, value in document.items() if value is not ...})

    def all_metadata(self) -> dict[str, str]:
        text = self.text()
        return {"posterity": text, "sha256": sha256(text.encode()), **self.metadata}

    def write(self, path: Path) -> Path:
        safetensors.numpy.save_file(self.arrays, path, self.all_metadata())
        return path

    def write_raw(self, path: Path, entries: dict[str, Any], data: bytes) -> Path:
        """With a header that the safetensors package would not write."""
        return raw(path, json.dumps({"__metadata__": self.all_metadata(), **entries}), data)


def raw(path: Path, header: str, data: bytes) -> Path:
    path.write_bytes(struct.pack("<Q", len(header.encode())) + header.encode() + data)
    return path


def node(kind: str, **fields: Any) -> dict[str, Any]:
    """A node; arrays among the fields become nodes too."""
    return {
        "type": kind,
        "fields": {k: array_node(v) if isinstance(v, np.ndarray) else v for k, v in fields.items()},
    }


def gamma() -> Forgery:
    """``Gamma(1.0, 2.0)``: shape minus one, and rate."""
    one, two = np.array(1.0), np.array(2.0)
    arrays = {"shape_minus_one": one, "rate": two}
    return Forgery("Gamma", arrays, shape_minus_one=one, rate=two)


def ledger() -> Forgery:
    """Of gammas: ``a`` holds (5, 6), ``b`` was forgotten, ``c`` holds (7, 8)."""
    prior, factors = np.array([1.0, 2.0]), np.array([[5.0, 6.0], [7.0, 8.0]])
    arrays: dict[str, np.ndarray] = {}
    for n, leaf in enumerate(("shape_minus_one", "rate")):
        arrays[f"prior/{leaf}"] = np.array(prior[n])
        arrays[f"factors/{leaf}"] = factors[:, n].copy()
    parts = {
        part: node("Gamma", **{leaf: arrays[f"{part}/{leaf}"] for leaf in gamma().arrays})
        for part in ("prior", "factors")
    }
    # As of a file of the prior alone, without its provenance.
    alone = {"format": 2, "tree": gamma().tree, "data": sha256(np.array([2.0, 1.0]).tobytes())}
    digest = canonical(alone)
    return Forgery(
        "Ledger",
        arrays,
        **parts,
        prior_digest=digest,
        sites=["a", "b", "c"],
        epochs=[0, 1, 2],
        sequences=[4, 0, 0],
        forgotten=[False, True, False],
        independent=[True, False, False],
    )
