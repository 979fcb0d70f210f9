"""The bytes of a safetensors file: a header in JSON, then the arrays, nothing else.

The safetensors package copies each array to memory of its own. Here the header is checked against
the size of the file before anything else is read, and the arrays are views of one buffer.
"""

import contextlib
import io
import json
import math
import os
import stat
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import ml_dtypes  # makes bfloat16 a type of NumPy
import numpy as np

from posterity.arrays.typing import Shape
from posterity.errors import ArtifactError
from posterity.runtime.files import AnyPath

File = io.FileIO | io.BytesIO
Buffer = TypeVar("Buffer", bytearray, memoryview)
MAX_HEADER = 2**25
"""Bytes: a manifest of half a million sites. Larger headers are refused unread."""
MAX_AXES = 32
"""As many as NumPy allowed before its second version."""
CODES = {
    "bool": "BOOL",
    ml_dtypes.bfloat16.__name__: "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    **{f"int{n}": f"I{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"U{n}" for n in (8, 16, 32, 64)},
}
"""Names in safetensors of the NumPy types that posterity's files hold."""
_TYPES = {code: name for name, code in CODES.items()}


class Spec(NamedTuple):
    """The type and shape of an array."""

    dtype: str
    shape: Shape

    @property
    def itemsize(self) -> int:
        """Number of bytes of one item."""
        return np.dtype(self.dtype).itemsize

    @property
    def size(self) -> int:
        """Number of bytes of the array."""
        return math.prod(self.shape) * self.itemsize


class Header(NamedTuple):
    """The header of a file; ``starts`` are positions of arrays in the file."""

    metadata: dict[str, str]
    specs: dict[str, Spec]
    starts: dict[str, int]


def altered(what: str) -> ArtifactError:
    """Return the error for contents that ``save`` does not write."""
    fix = "The file was truncated, altered or is not posterity's: fetch it again from its sender."
    return ArtifactError(found=what, expected="a file as posterity.save wrote it", fix=fix)


# --- writing -----------------------------------------------------------------------------------


def write_header(specs: Mapping[str, Spec], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the arrays, which follow in the order of :func:`in_file_order`."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name in in_file_order(specs):
        spec = specs[name]
        end = start + specs[name].size
        described = {"dtype": CODES[spec.dtype], "shape": spec.shape}
        entries[name] = {**described, "data_offsets": (start, end)}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def in_file_order(specs: Mapping[str, Spec]) -> list[str]:
    """Return the names of arrays, widest items first, so that all are aligned."""
    return sorted(specs, key=lambda name: (-specs[name].itemsize, name))


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the memory of a contiguous array as a row of bytes."""
    return array.reshape(-1).view(np.uint8)


# --- reading -----------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(path: AnyPath) -> Iterator[tuple[io.FileIO, int]]:
    """Open a regular file and yield it with its size; an ArtifactError if it cannot be read."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)  # without waiting: a pipe might have no writer
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is a folder, a pipe or a device")
            with open(handle, "rb", buffering=0, closefd=False) as file:
                yield file, status.st_size
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(
            found=f"file {os.fspath(path)!r} that cannot be read ({reason})",
            expected="a readable file written by posterity.save",
        ) from error


def read_header(file: File, size: int) -> Header:
    """Read the header of a file of ``size`` bytes; an ArtifactError if it does not fit them."""
    start = file.read(9)
    length = struct.unpack("<Q", start[:8])[0] if len(start) == 9 else 0
    if not 2 <= length <= size - 8 or start[8:] != b"{":
        if start[:1] == b"{":
            raise ArtifactError(
                found="a JSON document",
                expected="a file as posterity.save wrote it",
                fix="A receipt is checked by posterity verify RECEIPT BEFORE AFTER.",
            )
        raise altered(f"{size} bytes that are not a safetensors file")
    if length > MAX_HEADER:
        raise ArtifactError(found=f"a header of {length} bytes", expected=f"at most {MAX_HEADER}")
    file.seek(8)
    text = _filled(file, bytearray(length))
    if b"\0" in text:
        raise altered("a header that is no text")
    entries = parsed(text.decode("utf-8"), "header")
    metadata = entries.pop("__metadata__", {})
    if not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise altered("metadata that is not text by key")
    slots = {name: _slot(name, entry) for name, entry in entries.items()}
    starts = {}
    end = 8 + length
    for name in sorted(slots, key=lambda name: slots[name][1]):  # contiguous, up to the end
        spec, (first, last) = slots[name]
        if first + 8 + length != end or last - first != spec.size:
            what = f"array {name!r} of type {spec.dtype} and shape {spec.shape}"
            raise altered(f"{what} at bytes {first} to {last}: not its place, or not its size")
        starts[name], end = end, last + 8 + length
    if end != size:
        raise altered(f"{size} bytes where the header speaks of {end}")
    return Header(metadata, {name: spec for name, (spec, _) in slots.items()}, starts)


def _slot(name: str, entry: Any) -> tuple[Spec, tuple[int, int]]:
    known = isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}
    offsets = entry["data_offsets"] if known else []
    if not is_shape(offsets, 0) or len(offsets) != 2:
        raise altered(f"array {name!r}, described as nothing that safetensors knows")
    dtype = entry["dtype"]
    shape = entry["shape"]
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise altered(f"array {name!r} of type {dtype}")
    if not is_shape(shape):
        raise ArtifactError(
            found=f"array {name!r} of shape {shape!r}",
            expected=f"at most {MAX_AXES} axes, each of length one or more",
        )
    return Spec(_TYPES[dtype], tuple(shape)), (offsets[0], offsets[1])


def is_shape(value: object, least: int = 1) -> bool:
    """Return True for a list of integers, each ``least`` or more, such as an array's shape."""
    if not isinstance(value, list) or len(value) > MAX_AXES:
        return False
    return all(type(n) is int and least <= n < 2**63 for n in value)


def read_arrays(file: File, header: Header, size: int) -> dict[str, np.ndarray]:
    """Read all arrays at once, as read-only views of one buffer."""
    start = min(header.starts.values(), default=size)
    file.seek(start)
    content = file.read()
    if len(content) != size - start:
        raise altered("a file that changed while it was read")

    def little(spec):
        return np.dtype(spec.dtype).newbyteorder("<")

    return {
        name: np.ndarray(spec.shape, little(spec), content, header.starts[name] - start)
        for name, spec in header.specs.items()
    }


def is_sparse(file: File, size: int, large: int = 2**26) -> bool:
    """Return True for a ``large`` file that takes less than half of ``size`` bytes on disk."""
    if isinstance(file, io.BytesIO):
        return False
    blocks = getattr(os.fstat(file.fileno()), "st_blocks", None)
    return blocks is not None and size > large and 512 * blocks < size / 2


def read_pieces(file: File, header: Header, most: int = 2**20) -> Iterator[memoryview]:
    """Yield the bytes of all arrays, sorted by name, at most so many at a time."""
    buffer = memoryview(bytearray(most))
    for name in sorted(header.specs):
        file.seek(header.starts[name])
        left = header.specs[name].size
        while left:
            piece = _filled(file, buffer[: min(left, most)])
            yield piece
            left -= len(piece)


def _filled(file: File, buffer: Buffer) -> Buffer:
    view = memoryview(buffer)
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise altered("a file that changed while it was read")
        done += count
    return buffer


def parsed(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object without duplicate keys; an ArtifactError for anything else."""
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise altered(f"a {what} that cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise altered(f"a {what} that is no JSON object")
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Hook of ``json.loads`` that returns an object; a ValueError for a duplicate key."""
    if len(dict(pairs)) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r} comes twice")
    return dict(pairs)


def no_number(text: str) -> float:
    """Hook of ``json.loads`` that refuses NaN and infinity."""
    raise ValueError(f"{text} is not a JSON number")
