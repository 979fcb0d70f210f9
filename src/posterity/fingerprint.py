"""Digests of a computation's arguments, equal in every process and on every machine.

The digest of an array depends on its type, shape and numbers; that of plain data, dataclasses,
pytrees and other objects on their class and content. Definitions of installed packages enter by
name. A user's function or class enters by its module, name and source text; a function also by its
defaults, its closure and the globals that it names, but not by the content of modules that it uses.
If there is no source, or it is not sufficient, :func:`versioned` gives a function an explicit
version. Bytecode is not used, as it differs between versions of Python.
"""

import dataclasses
import functools
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from posterity.arrays.keys import Words
from posterity.arrays.namespace import is_jax
from posterity.errors import UsageError, within
from posterity.lazy import jax

VERSION = "__posterity_version__"
KEY = "key<fry>"
"""JAX's name of the key type of :class:`~posterity.arrays.keys.Words`."""
PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), type(...))
CHECKERS = ("beartype", "jaxtyping")
"""Packages whose wrappers only check types of arguments."""
Function = TypeVar("Function", bound=Callable[..., Any])


def versioned(version: str) -> Callable[[Function], Function]:
    """Return a decorator: the function's digest depends on its name and version, not its source.

    It is for functions without a source, and for those that may be edited between checkpoints.
    Change the version whenever the results of the function change.

    >>> import ctypes
    >>> logarithm = versioned("1")(ctypes.CDLL(None).log)
    """

    def mark(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        setattr(call, VERSION, str(version))
        return call  # type: ignore[return-value]

    return mark


def digest(value: Any) -> str:
    """Return SHA-256 of the content of a value, in hexadecimal digits. Raises UsageError if a part
    of it can be identified neither by content nor by name.

    >>> digest({"a": 1, "b": 2.0}) == digest({"b": 2.0, "a": 1}) != digest({"a": 1, "b": 2})
    True
    """
    return _Walk().digest(value).hex()


def digests(parts: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each part by name. Errors of :func:`digest` name the part."""
    result = {}
    for part, value in parts.items():
        with within(f"the {part}"):
            result[part] = digest(value)
    return result


class _Walk:
    """One traversal of a value. References to an enclosing value enter by their depth."""

    def __init__(self) -> None:
        self.path: list[int] = []
        self.functions: dict[int, tuple[Any, bytes]] = {}  # with the value, which keeps its address

    def digest(self, value: Any) -> bytes:
        if type(value) in PLAIN:
            return _hash("plain", type(value).__name__.encode(), repr(value).encode())
        if id(value) in self.path:
            return _hash("cycle", str(self.path[::-1].index(id(value))).encode())
        if id(value) in self.functions:
            return self.functions[id(value)][1]
        self.path.append(id(value))
        try:
            result = self.parts(value)
        finally:
            self.path.pop()
        if isinstance(value, types.FunctionType):
            self.functions[id(value)] = value, result
        return result

    def all(self, tag: str, *values: Any) -> bytes:
        return _hash(tag, *map(self.digest, values))

    def parts(self, value: Any) -> bytes:
        """Return the digest of a value that is not plain, from those of its parts."""
        if isinstance(value, np.ndarray | np.generic) or is_jax(value):
            return self.array(value)
        if isinstance(value, Mapping):
            items = sorted((self.digest(name), item) for name, item in value.items())
            return _hash("mapping", *(b for name, item in items for b in (name, self.digest(item))))
        if isinstance(value, set | frozenset):
            return _hash("set", *sorted(map(self.digest, value)))
        if isinstance(value, Words):
            return self.all("key", KEY, value.array)
        if isinstance(value, list | tuple):
            return self.all("sequence", type(value), *value)
        if isinstance(value, type):
            own = [kind for kind in value.__mro__ if not _is_packaged(kind.__module__)]
            return self.all("type", *_name(value), *map(_source, own))
        if isinstance(value, types.ModuleType):
            return self.all("module", value.__name__)
        if version := getattr(value, VERSION, None):
            return self.all("version", *_name(value), version)
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, types.MethodType):
            return self.all("method", value.__func__, value.__self__)
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
            return self.all("object", type(value), fields)
        if _is_importable(value):
            return self.all("name", *_name(value))
        if wrapped := getattr(value, "__wrapped__", None):  # compiled, or kept by a cache
            return self.all("wrapped", wrapped)
        return self.object(value)

    def array(self, value: Any) -> bytes:
        if is_jax(value) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return self.all("key", str(value.dtype), jax.random.key_data(value))
        if isinstance(value, np.ma.MaskedArray):
            return self.all("masked", value.data, np.ma.getmaskarray(value))
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            return self.all("objects", np.shape(value), array.tolist())
        kind = f"{array.dtype}{np.shape(value)}".encode()
        return _hash("array", kind, array.reshape(-1).view(np.uint8))

    def function(self, function: types.FunctionType) -> bytes:
        code, home = function.__code__, function.__globals__.get("__name__", "")
        checks = code.co_filename.startswith("<@beartype(") or home.startswith(CHECKERS)
        if checks and (wrapped := getattr(function, "__wrapped__", None)):
            return self.digest(wrapped)
        cells = dict(zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=True))
        within = cells, function.__defaults__, function.__kwdefaults__
        if _is_packaged(home):
            local = "<locals>" in code.co_qualname  # otherwise the name identifies it
            return self.all("function", home, code.co_qualname, *(within if local else ()))
        names = set(_names(code)) & function.__globals__.keys()
        seen = {name: function.__globals__[name] for name in names}
        source = _source(function)
        if code.co_name == "<lambda>" and source.count("lambda") > 1:
            raise _opaque(function, "that stands among others on the same lines")
        return self.all("function", *_name(function), source, *within, seen)

    def object(self, value: Any) -> bytes:
        """Return the digest of the value's pickled content, without cached properties."""
        try:
            parts = value.__reduce_ex__(4)
        except Exception as error:  # objects that cannot be pickled may raise any error
            raise _opaque(value, "that cannot be copied") from error
        if isinstance(parts, str):
            raise _opaque(value, "that is known by its name alone")
        parts = [list(part) if isinstance(part, Iterator) else part for part in parts]
        if len(parts) > 2 and isinstance(parts[2], dict):
            kept = lambda name: getattr(type(value), name, None)
            parts[2] = {
                name: item
                for name, item in parts[2].items()
                if not isinstance(kept(name), functools.cached_property)
            }
        return self.all("object", *parts)


def _hash(tag: str, *parts: Any) -> bytes:
    sha = hashlib.sha256(f"{tag} {len(parts)} ".encode())
    for part in parts:
        sha.update(f"{len(part)} ".encode())
        sha.update(part)
    return sha.digest()


def _name(value: Any) -> tuple[str, str]:
    kind = type(value)
    name = getattr(value, "__qualname__", getattr(value, "__name__", kind.__qualname__))
    return str(getattr(value, "__module__", None) or kind.__module__), str(name)


def _source(value: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError) as error:
        raise _opaque(value, "whose source is not known") from error


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return ...


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@functools.cache
def _is_packaged(module: str) -> bool:
    """Return whether a module is of Python, of posterity or of an installed package."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "posterity":
        return True
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module, top)]
    folders = {part for file in files if file for part in Path(file).parts}
    return not folders.isdisjoint({"site-packages", "dist-packages"})


def _is_importable(value: Any) -> bool:
    """Return whether a package has the value under its name, as C functions and decorated ones."""
    module, name = _name(value)
    homes = [module, *(["numpy", "scipy.special"] if isinstance(value, np.ufunc) else [])]
    find = lambda home: functools.reduce(
        lambda owner, part: getattr(owner, part, None), name.split("."), sys.modules.get(home)
    )
    return any(_is_packaged(home) and find(home) is value for home in homes)


def _opaque(value: Any, why: str) -> UsageError:
    module, name = _name(value)
    return UsageError(
        found=f"{module}.{name}, a {type(value).__name__} {why}, which cannot be compared",
        expected="functions and objects that can be told from changed ones",
        fix='Wrap the function that uses it: posterity.fingerprint.versioned("1")(function); '
        "and change the version when it changes.",
    )
