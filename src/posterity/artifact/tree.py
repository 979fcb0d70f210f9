"""Encoding of values as trees of JSON with separate arrays, and decoding.

A node is a number, a text, true, false or null; a list of nodes; an array, ``{"type": "array",
"dtype": ..., "shape": ...}``, which is stored under the path of the node; or ``{"type": NAME,
"fields": {...}}`` of a registered type, with ``"names": [...]`` if its coordinates have names.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np

from posterity.arrays.leaves import kind_of
from posterity.arrays.tree import LABEL
from posterity.artifact.container import CODES, Spec, altered, is_shape
from posterity.artifact.registry import ARRAY, CODECS, codec_of
from posterity.errors import ArtifactError, ParameterError
from posterity.families import Distribution
from posterity.runtime.jax_loaded import is_jax

SCALARS = frozenset({type(None), bool, int, float, str})


def encode(value: object, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return the node of a value, and add its arrays to ``arrays`` by path."""
    if _is_plain(value):
        return _checked(value, path)
    if type(value) is list:
        return [encode(item, _join(path, str(n)), arrays) for n, item in enumerate(value)]
    if isinstance(value, np.ndarray | np.generic) or is_jax(value):
        array = np.asarray(value)
        if array.dtype.name not in CODES:
            raise ArtifactError(
                found=f"array {path!r} of type {array.dtype}", expected=f"one of {sorted(CODES)}"
            )
        # In C order, without the axis that ascontiguousarray would add.
        arrays[path] = array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        return {"type": ARRAY, "dtype": array.dtype.name, "shape": list(array.shape)}
    name = type(value).__name__
    codec = codec_of(name)
    if codec is None or codec.of is not type(value):
        raise ArtifactError(
            found=f"a {type(value).__module__}.{name}",
            expected=f"numbers, texts, arrays, lists, or one of {sorted(CODECS)}",
            fix="Register a family of your own with posterity.artifact.register.",
        )
    fields = codec.fields(value).items()
    node = {"type": name, "fields": {f: encode(v, _join(path, f), arrays) for f, v in fields}}
    names = getattr(value, "__dict__", {}).get(LABEL)
    if names:
        node["names"] = list(names)
    return node


def specs(node: Any, path: str = "") -> Iterator[tuple[str, Spec]]:
    """Yield path, type and shape of each array in a tree; an ArtifactError for an invalid node."""
    if _is_plain(node):
        return
    if isinstance(node, list):
        for n, item in enumerate(node):
            yield from specs(item, _join(path, str(n)))
    elif node.keys() == {"type", "dtype", "shape"} and node["type"] == ARRAY:
        if not isinstance(node["dtype"], str) or not is_shape(node["shape"], 0):
            raise altered(f"array {path!r} of {node['dtype']!r} and shape {node['shape']!r}")
        yield path, Spec(node["dtype"], tuple(node["shape"]))
    elif (
        node.keys() - {"names"} == {"type", "fields"}
        and isinstance(node["type"], str)
        and isinstance(node["fields"], dict)
    ):
        for name, child in node["fields"].items():
            yield from specs(child, _join(path, name))
    else:
        raise altered(f"a node {path!r} with the keys {sorted(node)}")


def decode(node: Any, arrays: dict[str, np.ndarray], path: str = "", check: bool = False) -> Any:
    """Return the value of a node from its arrays; with ``check`` it may stay incomplete.

    Raises:
        ArtifactError: for a type that is not registered, or invalid fields.
        ParameterError: if a number is NaN or infinite.
    """
    if _is_plain(node):
        return _checked(node, path)
    if isinstance(node, list):
        return [decode(child, arrays, _join(path, str(n)), check) for n, child in enumerate(node)]
    if node["type"] == ARRAY:
        return _array(arrays[path], path)
    codec = codec_of(node["type"])
    if codec is None:
        raise ArtifactError(
            found=f"a family {node['type']!r} that is not registered here",
            expected=f"one of {sorted(CODECS)}; import the package that registers it",
        )
    items = node["fields"].items()
    fields = {name: decode(child, arrays, _join(path, name), check) for name, child in items}
    law = codec.check(fields) if check else codec.build(fields)
    if "names" not in node:
        return law
    names = node["names"]
    if not isinstance(law, Distribution) or not isinstance(names, list) or not names:
        raise altered(f"names {names!r} beside a {type(law).__name__}")
    return law.named({"": names})


def _is_plain(node: object) -> bool:
    """Return True for a number, a text, true, false or null, or a list of these."""
    return type(node) in SCALARS or (type(node) is list and SCALARS.issuperset(map(type, node)))


def _checked(plain: Any, path: str) -> Any:
    """Return a plain value, after a check that its numbers are finite and fit 64 bits."""
    values = plain if isinstance(plain, list) else [plain]
    kinds = set(map(type, values))
    whole = [n for n in values if type(n) is int] if int in kinds else [0]
    if not -(2**63) <= min(whole) <= max(whole) < 2**63:
        raise ArtifactError(
            found=f"a whole number beyond 64 bits at {path!r}", expected="one that fits"
        )
    if float in kinds:
        _array(np.array([n for n in values if type(n) is float]), path)
    return plain


def _array(array: np.ndarray, path: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # NaN in bfloat16
        # The minimum and maximum suffice, and need no memory.
        finite = kind_of(array.dtype) != "f" or np.isfinite([array.min(), array.max()]).all()
    if not finite:
        wrong = array[~np.isfinite(array)]
        raise ParameterError(
            found=f"{wrong[0]} at {path!r} ({wrong.size} such values)", expected="finite numbers"
        )
    return array


def _join(path: str, name: str) -> str:
    # Names of blocks are free text: a slash in one must not make a path.
    part = quote(name, safe="", errors="surrogatepass")
    # The one name that safetensors reserves.
    return f"{path}/{part}" if path else part.replace("__metadata__", "%5F_metadata__")
