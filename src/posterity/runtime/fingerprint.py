"""Digests of a computation's arguments, equal in every process and on every machine.

Arrays, plain data, containers and dataclasses enter by their content; functions and classes by
module, name and version (:func:`versioned`). Code itself is not looked at: what has no version may
have changed, and :func:`unversioned` names it.
"""

import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax

VERSION = "__posterity_version__"
CONTENT = "__posterity_content__"
"""Name of a method that returns a word for what an object is, and the values that it stands for."""
PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), type(...))
Code = TypeVar("Code", bound=Callable[..., Any])


def versioned(version: str) -> Callable[[Code], Code]:
    """Return a decorator that gives a function or a class a version, which its digest depends on:
    change it whenever results change, also because other data are read.

    >>> @versioned("1")
    ... def log_likelihood(z, x):
    ...     return -((x - z[0]) ** 2)
    >>> unversioned(log_likelihood)
    ()
    """

    def mark(code: Code) -> Code:
        if isinstance(code, type):
            setattr(code, VERSION, str(version))
            return code  # type: ignore[return-value]

        @functools.wraps(code)
        def call(*args: Any, **kwargs: Any) -> Any:
            return code(*args, **kwargs)

        setattr(call, VERSION, str(version))
        return call  # type: ignore[return-value]

    return mark


def digest(value: Any) -> str:
    """Return SHA-256 of the content of a value, in hexadecimal digits."""
    return _Reader().digest(value).hex()


def unversioned(value: Any) -> tuple[str, ...]:
    """Return the names of the code in a value that may change without a change of its digest."""
    reader = _Reader()
    reader.digest(value)
    return tuple(dict.fromkeys(reader.unknown))


@dataclasses.dataclass
class _Reader:
    """One reading of a value; inside itself, the value enters by its depth."""

    path: list[int] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)

    def digest(self, value: Any) -> bytes:
        if type(value) in PLAIN:
            return _hash("plain", type(value).__name__.encode(), repr(value).encode())
        if id(value) in self.path:
            return _hash("cycle", str(self.path[::-1].index(id(value))).encode())
        self.path.append(id(value))
        try:
            return self.parts(value)
        finally:
            self.path.pop()

    def all(self, tag: str, *values: Any) -> bytes:
        return _hash(tag, *map(self.digest, values))

    def parts(self, value: Any) -> bytes:
        """Return the digest of a value that is not plain, from those of its parts."""
        if isinstance(value, np.ndarray | np.generic) or is_jax(value):
            return self.array(value)
        if isinstance(value, Mapping):
            return self.all("mapping", {self.all("item", *item) for item in value.items()})
        if isinstance(value, set | frozenset):
            return _hash("set", *sorted(map(self.digest, value)))
        if hasattr(type(value), CONTENT):
            return self.all(*getattr(value, CONTENT)())
        if isinstance(value, list | tuple):
            return self.all("sequence", type(value), *value)
        if isinstance(value, functools.partial):
            return self.all("partial", value.func, value.args, value.keywords)
        if isinstance(value, types.MethodType):
            return self.all("method", value.__func__, value.__self__)
        if isinstance(value, np.dtype | enum.Enum) or type(value).__name__ == "PyTreeDef":
            return self.all("text", type(value).__name__, str(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value) if field.compare]
            content = {name: getattr(value, name) for name in fields if hasattr(value, name)}
            return self.all("object", type(value), content)
        return self.code(value)

    def array(self, value: Any) -> bytes:
        if is_jax(value) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return self.all("key", str(value.dtype), jax.random.key_data(value))
        if isinstance(value, np.ma.MaskedArray):
            return self.all("masked", value.data, np.ma.getmaskarray(value))
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            return self.all("objects", np.shape(value), array.tolist())
        return _hash("array", f"{array.dtype}{np.shape(value)}".encode(), array.tobytes())

    def code(self, value: Any) -> bytes:
        """Return the digest of a function or class; of another object, that of its class."""
        named = value if hasattr(value, "__qualname__") else type(value)
        home = str(named.__module__)
        name = named.__qualname__
        version = getattr(value, VERSION, None)
        # A function within another one, or an object, has content that its name does not show.
        shown = version is not None or ("<locals>" not in name and _is_packaged(home))
        if named is not value or not shown:
            self.unknown.append(f"{home}.{name}")
        return self.all("code", home, name, version)


def _hash(tag: str, *parts: Any) -> bytes:
    sha = hashlib.sha256(f"{tag} {len(parts)} ".encode())
    for part in parts:
        sha.update(f"{len(part)} ".encode())
        sha.update(part)
    return sha.digest()


@functools.cache
def _is_packaged(module: str) -> bool:
    """Return whether a module is of Python, of posterity or of an installed package."""
    top = module.partition(".")[0]
    if top in {*sys.stdlib_module_names, "posterity"}:
        return True
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module, top)]
    folders = {part for file in files if file for part in Path(file).parts}
    return not folders.isdisjoint({"site-packages", "dist-packages"})
