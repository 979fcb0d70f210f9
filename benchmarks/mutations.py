"""Random bytes and documents, and alterations of good ones, from a seeded source."""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from posterity.artifact import container
from posterity.artifact.container import Spec
from posterity.artifact.manifest import metadata_of, of_arrays
from posterity.artifact.tree import encode

DEEP = "[" * 20_000  # placed in a text where a value was: JSON that is nested too deep
DIGITS = "9" * 400
PLAIN: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**53, 2**63, -(2**64), 10**40, 0.5, -0.0, 1e308, 5e-324),
    *("", "a", "z", "\0", "\r\n", "\u202e", "\ud800", "x" * 5000, "0" * 64, "../../etc", "1e999"),
    *([], {}, [[]], {"": {}}, [None], ["a", "a"], [1, "b"], {"type": "array"}, [0] * 100),
)
WORDS = (
    b"\0",
    b"\xff" * 8,
    b"{",
    b"}",
    b"]",
    b'"',
    b"\n",
    b"\\u0000",
    b"NaN",
    b"1e999",
    b"-",
    b"\xed\xa0\x80",
    b"[" * 5000,
    b"9" * 400,
)


class Mutator:
    """Alterations of bytes, texts, documents and artifacts."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng

    def happens(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def below(self, most: int) -> int:
        """A whole number from zero to below ``most``."""
        return int(self.rng.integers(max(most, 1)))

    def one(self, choices: Any) -> Any:
        return choices[self.below(len(choices))]

    def plain(self) -> Any:
        """A value of JSON, mostly out of place."""
        return copy.deepcopy(self.one(PLAIN))

    def junk(self) -> bytes:
        """Random bytes of any length up to some thousands, the shorter the likelier."""
        return self.rng.bytes(int(2 ** (12 * self.rng.random())))

    def content(self, content: bytes) -> bytes:
        """Bytes altered in one to three places, or others instead."""
        if self.happens(0.03):
            return self.junk()
        for _ in range(1 + self.below(3)):
            at, end = sorted((self.below(len(content) + 1), self.below(len(content) + 1)))
            end = min(end, at + 64) if self.happens(0.7) else end
            match self.below(8):
                case 0 | 1 if content:
                    place = self.below(len(content))
                    flipped = content[place] ^ 1 << self.below(8)
                    content = content[:place] + bytes([flipped]) + content[place + 1 :]
                case 2:
                    content = content[:at]
                case 3:
                    content = content[:at] + content[end:]
                case 4:
                    content = content[:at] + self.one(WORDS) + content[at:]
                case 5:
                    content = content[:end] + content[at:end] + content[end:]
                case 6:
                    content = content[:at] + self.rng.bytes(end - at) + content[end:]
                case _:
                    content = content[:at] + content[at:end][::-1] + content[end:]
        return content

    def document(self, document: Any) -> Any:
        """A document of JSON with a value, a key or a place that is another."""
        document = json.loads(json.dumps(document))
        for _ in range(1 + self.below(2)):
            holders = [each for each in _nodes(document) if isinstance(each, dict | list) and each]
            if not holders:
                return self.plain()
            node = self.one(holders)
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = self.one(keys)
            match self.below(6):
                case 0 | 1:
                    node[key] = self.plain()
                case 2:
                    del node[key]
                case 3:
                    other = self.one(keys)
                    node[key], node[other] = node[other], node[key]
                case 4 if isinstance(node, dict):
                    node[str(self.one(("", "more", "type", "site", "epoch")))] = self.plain()
                case _:
                    node[key] = self._near(node[key])
        return document

    def _near(self, value: Any) -> Any:
        match value:
            case bool():
                return not value
            case int():
                return value + self.one((-1, 1, 10**9, -(10**9)))
            case float():
                return value * self.one((-1.0, 0.0, 1e-300, 1e300))
            case str():
                return self.content(value.encode("utf-8", "surrogatepass")).decode(
                    "utf-8", "replace"
                )
            case list():
                return [*value, *value]
        return [value]

    def text(self, document: Any, write: Callable[[Any], str]) -> str:
        """An altered document as text; at times with a key twice, or nested too deep."""
        text = write(self.document(document))
        if self.happens(0.1) and text.startswith("{") and len(text) > 2:
            text = "{" + text[1:-1] + "," + text[1:]
        if self.happens(0.05):
            at = text.find(":") + 1
            text = text[:at] + self.one((DEEP, DIGITS, "NaN", "-Infinity", "1e999")) + text[at:]
        return text

    def artifact(self, value: Any) -> bytes:
        """An artifact whose digests fit, and whose tree and arrays are others."""
        arrays: dict[str, np.ndarray] = {}
        tree = encode(value, "", arrays)
        if self.happens(0.6):
            tree = self.document(tree)
        if arrays and self.happens(0.6):
            name = self.one(sorted(arrays))
            arrays[name] = self._array(arrays[name])
            if self.happens(0.7):
                _describe(tree, "", arrays)
        return packed(tree, arrays)

    def _array(self, array: np.ndarray) -> np.ndarray:
        """An array of other numbers, of another shape or of another type."""
        flat = np.array(array, copy=True)
        match self.below(5):
            case 0:
                return np.full(flat.shape, self.one((np.nan, np.inf, -np.inf)))
            case 1:
                return np.full(flat.shape, self.one((1e308, -1e308, 1e300, 1e13, -1.0, 5e-324)))
            case 2:
                return np.ones(self.one(((), (1,), (3,), (2, 2), (1, 1, 1), (4096,))))
            case 3:
                return np.ones(flat.shape, self.one((np.int64, np.float32, np.bool_, np.uint8)))
        return flat * self.rng.normal(size=flat.shape)


def packed(tree: Any, arrays: Mapping[str, np.ndarray]) -> bytes:
    """An artifact of any tree and arrays, with digests that fit."""
    arrays = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
    specs = {name: Spec(a.dtype.name, a.shape) for name, a in arrays.items()}
    header = container.write_header(specs, metadata_of(tree, of_arrays(arrays), {}))
    ordered = (arrays[name].tobytes() for name in container.in_file_order(specs))
    return b"".join([header, *ordered])


def _describe(node: Any, path: str, arrays: Mapping[str, np.ndarray]) -> None:
    if isinstance(node, dict):
        if node.get("type") == "array" and path in arrays:
            node |= {"dtype": arrays[path].dtype.name, "shape": list(arrays[path].shape)}
        fields = node.get("fields")
        for name, child in fields.items() if isinstance(fields, dict) else ():
            _describe(child, f"{path}/{name}" if path else name, arrays)
    elif isinstance(node, list):
        for n, child in enumerate(node):
            _describe(child, f"{path}/{n}", arrays)


def _nodes(node: Any) -> list[Any]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [node, *(each for child in children for each in _nodes(child))]
