"""A posterior as a file: one safetensors file, arrays by path, a manifest in its metadata.

Types come from an explicit registry, never from pickle or an import path. A digest over the
manifest and every array tells a file that was altered; it is a checksum, not a signature.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors
import safetensors.numpy

import posterity.families as families
from posterity.checks import check_finite
from posterity.errors import ArtifactError, PosterityError
from posterity.families import ExponentialFamily, Mixture
from posterity.ledger import Entry, Ledger

FORMAT_VERSION = 1
_KEY = "posterity"
_REGISTRY: dict[str, type] = dict(families.exported())

Posterior = ExponentialFamily | Mixture | Ledger
"""What a file can hold."""


def register(family: type[ExponentialFamily]) -> type[ExponentialFamily]:
    """Let artifacts hold a family of your own; usable as a decorator.

    Raises:
        ArtifactError: if another family already has the name.
    """
    if _REGISTRY.setdefault(family.__name__, family) is not family:
        raise ArtifactError(
            found=f"a second family named {family.__name__!r}",
            expected="one family a name",
            fix="Rename the new family.",
        )
    return family


def save(
    posterior: Posterior,
    path: str | os.PathLike[str],
    *,
    provenance: Mapping[str, str] | None = None,
) -> None:
    """Write a family, mixture or ledger to ``path``, whole or not at all.

    Equal contents give equal bytes. ``provenance`` is free text by key, kept in the manifest.

    Raises:
        ParameterError: if a parameter is NaN or infinite; nothing is written.
        ArtifactError: if the file cannot be written; what was there before stays.
    """
    arrays: dict[str, np.ndarray] = {}
    tree = _encode(posterior, "", arrays)
    for name, array in arrays.items():
        check_finite(array, f"{name!r}, which was to be saved")
    manifest: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "tree": tree,
        "provenance": dict(sorted((provenance or {}).items())),
    }
    manifest["digest"] = _digest(manifest, arrays)
    content = safetensors.numpy.save(arrays, {_KEY: json.dumps(manifest, sort_keys=True)})
    write_file(Path(path), content)


def load(path: str | os.PathLike[str]) -> Posterior:
    """Read what :func:`save` wrote, bit for bit, as NumPy arrays.

    Raises:
        ArtifactError: if the file is missing, truncated, foreign, altered, or of a format
            version that this release does not know.
        ParameterError: if a parameter is NaN or infinite.
    """
    manifest, arrays = _read(Path(path))
    try:
        posterior = _decode(manifest["tree"], "", arrays)
    except PosterityError as error:
        raise error.at(f"file {os.fspath(path)!r}") from error
    except Exception as error:  # whatever a crafted tree can trip over
        raise _corrupt(path, f"a manifest that does not fit its arrays ({error})") from error
    if arrays:
        raise _corrupt(path, f"arrays that the manifest does not name: {sorted(arrays)}")
    return posterior


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What a file holds, without building it."""

    path: str
    kind: str
    format: int
    digest: str
    provenance: dict[str, str]
    arrays: dict[str, tuple[str, tuple[int, ...]]]
    sites: tuple[str, ...]
    bytes: int


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Check a file and say what is in it; raises as :func:`load` does."""
    manifest, arrays = _read(Path(path))
    tree = manifest["tree"]
    return Inspection(
        path=os.fspath(path),
        kind=tree["type"],
        format=manifest["format"],
        digest=manifest["digest"],
        provenance=manifest["provenance"],
        arrays={name: (str(a.dtype), a.shape) for name, a in sorted(arrays.items())},
        sites=tuple(sorted(tree.get("entries", {}))),
        bytes=Path(path).stat().st_size,
    )


def digest(posterior: Posterior) -> str:
    """SHA-256 of the contents: equal for equal posteriors, wherever they are kept."""
    arrays: dict[str, np.ndarray] = {}
    return _digest({"format": FORMAT_VERSION, "tree": _encode(posterior, "", arrays)}, arrays)


# --- trees: a node of JSON a family, arrays beside it ------------------------------------------


def _encode(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None:
        return None
    if isinstance(value, np.ndarray | np.generic):
        arrays[path] = np.asarray(value, order="C")  # ascontiguousarray would add an axis
        return "array"
    if isinstance(value, Ledger):
        return _encode_ledger(value, path, arrays)
    if isinstance(value, dict):
        items = {name: _encode(v, _join(path, name), arrays) for name, v in value.items()}
        return {"type": "dict", "items": items}
    name = type(value).__name__
    if _REGISTRY.get(name) is not type(value):
        raise ArtifactError(
            found=f"a {type(value).__module__}.{name}",
            expected=f"a Ledger or one of the registered families {sorted(_REGISTRY)}",
            fix="Register a family of your own with posterity.artifact.register.",
        )
    fields = [field.name for field in dataclasses.fields(value)]
    return {
        "type": name,
        "fields": {f: _encode(getattr(value, f), _join(path, f), arrays) for f in fields},
    }


def _encode_ledger(ledger: Ledger, path: str, arrays: dict[str, np.ndarray]) -> Any:
    entries = {
        site: {
            "epoch": entry.epoch,
            "sequence": entry.sequence,
            "factor": _encode(entry.factor, _join(path, "sites", site), arrays),
            **({"independent": True} if entry.independent else {}),
        }
        for site, entry in ledger.entries.items()
    }
    prior = _encode(ledger.prior, _join(path, "prior"), arrays)
    return {
        "type": "Ledger",
        "prior": prior,
        "prior_digest": digest(ledger.prior),
        "entries": entries,
    }


def _decode(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if node is None:
        return None
    if node == "array":
        array = arrays.pop(path)
        check_finite(array, repr(path))
        return array
    if node["type"] == "dict":
        items = node["items"].items()
        return {name: _decode(child, _join(path, name), arrays) for name, child in items}
    if node["type"] == "Ledger":
        return _decode_ledger(node, path, arrays)
    if node["type"] not in _REGISTRY:
        raise ArtifactError(
            found=f"a family {node['type']!r} that this installation does not know",
            expected=f"one of {sorted(_REGISTRY)}",
            fix="Import the package that defines and registers it, or upgrade posterity.",
        )
    fields = {f: _decode(n, _join(path, f), arrays) for f, n in node["fields"].items()}
    return _REGISTRY[node["type"]](**fields)


def _decode_ledger(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Ledger:
    prior = _decode(node["prior"], _join(path, "prior"), arrays)
    entries = {
        site: Entry(
            int(entry["epoch"]),
            int(entry["sequence"]),
            _decode(entry["factor"], _join(path, "sites", site), arrays),
            bool(entry.get("independent", False)),
        )
        for site, entry in node["entries"].items()
    }
    return Ledger(prior, entries)


def _join(*parts: str) -> str:
    # Names of sites and blocks are free text: a slash in one must not make a path.
    head, *rest = parts
    quoted = [quote(part, safe="", errors="surrogatepass") for part in rest]
    return "/".join([head, *quoted] if head else quoted)


# --- bytes -------------------------------------------------------------------------------------


def _digest(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    signed = {key: value for key, value in manifest.items() if key != "digest"}
    sha = hashlib.sha256(json.dumps(signed, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        sha.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise ArtifactError(
            found=f"file {os.fspath(path)!r} that cannot be read ({error.strerror or error})",
            expected="a readable file written by posterity.save",
            fix="Check the path and its permissions.",
        ) from error
    except Exception as error:  # safetensors has one error for all that is malformed
        raise _corrupt(path, f"no valid safetensors content ({error})") from error
    return _manifest(path, metadata, arrays), arrays


def _manifest(path: Path, metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> Any:
    if _KEY not in metadata:
        raise ArtifactError(
            found=f"a safetensors file without posterity's manifest: {os.fspath(path)!r}",
            expected="a file written by posterity.save",
            fix="Read foreign weights with their own library, and convert them by an adapter.",
        )
    try:
        manifest = json.loads(metadata[_KEY])
        version, intact = manifest["format"], _digest(manifest, arrays) == manifest["digest"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupt(path, f"an unreadable manifest ({error})") from error
    if version != FORMAT_VERSION:
        raise ArtifactError(
            found=f"format version {version!r} in {os.fspath(path)!r}",
            expected=f"format version {FORMAT_VERSION}",
            fix="Upgrade posterity, or save the posterior again with a matching release.",
        )
    if not intact:
        raise _corrupt(path, "contents that do not match their digest")
    tree, provenance = manifest.get("tree"), manifest.get("provenance")
    if not (isinstance(tree, dict) and isinstance(tree.get("type"), str)):
        raise _corrupt(path, "a manifest without a posterior")
    if not (isinstance(provenance, dict) and isinstance(tree.get("entries", {}), dict)):
        raise _corrupt(path, "a manifest of unknown layout")
    return manifest


def _corrupt(path: str | os.PathLike[str], what: str) -> ArtifactError:
    return ArtifactError(
        found=f"{what} in {os.fspath(path)!r}",
        expected="a file as posterity.save wrote it",
        fix="The file was truncated, altered or is not a posterity file: fetch it again from "
        "its sender.",
    )


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; an ArtifactError if that fails."""
    try:
        write_atomically(path, lambda file: file.write(content))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(
            found=f"output {os.fspath(path)!r} that cannot be written ({reason})",
            expected="a writable path in a folder that exists",
            fix="Choose another output, or mend permissions or disk space; nothing was changed.",
        ) from error


def write_atomically(path: Path, write: Callable[[Any], Any]) -> None:
    """Call ``write`` on a temporary binary file that then takes the place of ``path``.

    Raises:
        OSError: if that fails anywhere; ``path`` is then as it was.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
