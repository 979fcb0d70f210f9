"""Digests of a computation's arguments, equal in every process and on every machine.

The digest of an array depends on its type, shape and numbers; that of plain data, dataclasses,
pytrees and other objects on their class and content. Definitions of installed packages enter by
name. A user's function or class enters by its module, name and source text; a function also by its
defaults, its closure and the globals that it names, a class by its attributes and methods, and a
module of the user by those of its contents that the function names. If there is no source, or it is
not sufficient, :func:`versioned` gives a function an explicit version. Bytecode is not used, as it
differs between versions of Python.

:func:`renew_programs` compares the same within a process, where JAX compiles a function once and
would not notice that the data it uses have changed since.
"""

import dataclasses
import functools
import hashlib
import inspect
import sys
import textwrap
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from posterity.arrays.keys import Words
from posterity.arrays.namespace import is_jax
from posterity.errors import UsageError, within
from posterity.lazy import jax, new_programs

VERSION = "__posterity_version__"
KEY = "key<fry>"
"""JAX's name of the key type of :class:`~posterity.arrays.keys.Words`."""
PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), type(...))
WIDE = (np.float64, np.int64, np.uint64)
"""Types of numbers that JAX has in two precisions."""
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


_compiled: dict[int, tuple[Callable[[], Any], bytes]] = {}
"""Functions, callable objects and classes by address, with what they were when last compared."""


def renew_programs(*values: Any, double: bool) -> None:
    """Make JAX release all compiled programs if a function of the user among the values, or data
    that it uses, has changed since the last call with it, or was used in the other precision;
    ``double`` is whether the programs that follow compute in double precision.

    JAX compiles a function once for the same object: what it reads from globals, attributes and
    arrays that are changed in place would stay as it was then. What cannot be compared, such as a
    lock or a function of a C library, is taken as unchanged. Not to be called while JAX traces.
    """
    roots = {id(root): root for value in values for root in _roots(value)}
    changed, arrays = False, list[np.ndarray]()
    for address, root in roots.items():
        walk = _Walk(here=True)
        seen, now = _compiled.get(address), walk.digest(root)
        arrays += walk.arrays
        changed |= seen is not None and seen[0]() is root and seen[1] != now
        try:
            kept: Any = weakref.ref(root, lambda _, address=address: _compiled.pop(address, None))
        except TypeError:  # a class with slots
            kept = lambda root=root: root
        _compiled[address] = kept, now
    if changed or (arrays and "jax" in sys.modules and _is_rounded(arrays, double)):
        new_programs()


def _is_rounded(arrays: list[np.ndarray], double: bool) -> bool:
    """Return whether JAX would take one of these arrays in the other precision.

    As long as a program holds the constant of a NumPy array, JAX uses that constant for the array
    everywhere (0.10.2): in double precision with the digits of single precision, or not at all.
    """
    with jax.enable_x64(double), np.errstate(over="ignore"):
        taken = jax.eval_shape(lambda: [jax.lax.neg(array) for array in arrays])
        own = [jax.dtypes.canonicalize_dtype(array.dtype) for array in arrays]
    return any(one.dtype != kind for one, kind in zip(taken, own, strict=True))


def _roots(value: Any) -> Iterator[Any]:
    """Yield the functions, callable objects and classes by which JAX knows a value's programs."""
    if type(value) in PLAIN or isinstance(value, np.ndarray | np.generic) or is_jax(value):
        return
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _roots(item)
    elif isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, types.MethodType):
        yield from (*_roots(value.__self__), value.__func__)
    elif callable(value) or dataclasses.is_dataclass(value):
        kind = value if isinstance(value, type) else type(value)
        if not _is_packaged(kind.__module__):
            yield kind
        if value is not kind and dataclasses.is_dataclass(value):
            yield from _roots([vars(value).get(each.name) for each in dataclasses.fields(value)])
        elif value is not kind:
            yield value
            yield from _roots([getattr(value, "func", None), getattr(value, "__wrapped__", None)])


class _Walk:
    """One traversal of a value. References to an enclosing value enter by their depth.

    Within this process (``here``), code enters by its bytecode, and what has no digest by its
    address.
    """

    def __init__(self, *, here: bool = False) -> None:
        self.here = here
        self.path: list[int] = []
        self.arrays: list[np.ndarray] = []  # those of 64 bits, if ``here``
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
        except UsageError:
            if not self.here:
                raise
            result = _hash("address", str(id(value)).encode())
        finally:
            self.path.pop()
        if isinstance(value, types.FunctionType | type):
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
            members = {f"{kind.__name__}.{n}": m for kind in own for n, m in _members(kind)}
            return self.all("type", *_name(value), *map(self.source, own), members)
        if isinstance(value, types.ModuleType):
            return self.all("module", value.__name__)
        if not self.here and (version := getattr(value, VERSION, None)):
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
        if self.here and isinstance(value, np.ndarray) and value.dtype in WIDE:
            self.arrays.append(value)
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
        seen = _named(set(_names(code)), function.__globals__)
        source = self.source(function)
        if code.co_name == "<lambda>" and source.count("lambda") > 1:
            raise _opaque(function, "that stands among others on the same lines")
        return self.all("function", *_name(function), source, *within, seen)

    def source(self, value: Any) -> str:
        """Return the source text of a function or class; of a function here, its bytecode."""
        if not self.here:
            return _source(value)
        return str(hash(value.__code__)) if isinstance(value, types.FunctionType) else ""

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


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a class's methods and data, without what Python has generated."""
    for name, member in vars(kind).items():
        for part in ("fget", "func", "__func__"):  # of properties, cached ones and static methods
            member = getattr(member, part, member)
        member = inspect.unwrap(member) if callable(member) else member
        if isinstance(member, types.FunctionType):
            if not member.__code__.co_filename.startswith("<string>"):
                yield name, member
        elif not name.startswith("__") and (
            type(member) in PLAIN or isinstance(member, np.ndarray | list | tuple | dict)
        ):
            yield name, member


def _named(names: set[str], contents: Mapping[str, Any], *modules: str) -> dict[str, Any]:
    """Return what code with these names may use of a module's contents, and of further modules of
    the user that it reaches through them.
    """
    seen = {name: contents[name] for name in names & contents.keys()}
    for name, value in seen.items():
        if isinstance(value, types.ModuleType) and not _is_packaged(value.__name__):
            inner = value.__name__ not in modules
            seen[name] = _named(names, vars(value), *modules, value.__name__) if inner else name
    return seen


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
