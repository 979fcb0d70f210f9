"""A digest of what a value is made of, be it data, an object, or a function with all it refers to.

Equal in every process: neither addresses nor the order of sets and dictionaries enter. What a
package brings counts by its name; what a user wrote, by its code.
"""

import copyreg
import dataclasses
import dis
import enum
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from posterity.arrays.namespace import is_jax
from posterity.artifact.container import as_bytes
from posterity.errors import UsageError

VERSION = "__checkpoint_version__"
PLAIN = (bool, int, float, complex, str, bytes, range, slice)
GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
CHECKERS = {"beartype", "jaxtyping"}
LIBRARIES = {"site-packages", "dist-packages"}
TRANSPARENT = (type(functools.cache(len)), type(jax.jit(len)))
"""Types written in C whose objects compute what the function that they wrap does."""
COMPILED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
)


def versioned(version: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: to checkpoints the function counts as its name and this version.

    For functions whose code cannot be compared, and for those that may be changed while a run is
    kept. Whoever changes what it computes changes the version.

    >>> import ctypes
    >>> logarithm = versioned("1")(ctypes.CDLL(None).log)
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        setattr(call, VERSION, str(version))
        return call

    return mark


def content(value: Any) -> str:
    """SHA-256 of what the value is made of.

    Raises:
        UsageError: if part of it can be told apart neither by content nor by name.
    """
    return _Contents().of(value).hex()


class _Node(NamedTuple):
    """What is not a digest yet, as it leads to a cycle."""

    tag: str
    parts: tuple["Part", ...]
    ordered: bool


Part = bytes | int | _Node
"""A digest, the number of a value in or before a cycle, or what has such parts."""


class _Contents:
    """One walk over a value: what was seen before is not walked again.

    What leads to no cycle has a digest at once. All else is numbered, and told apart at the end.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, Part]] = {}  # with the value, which keeps its address
        self.numbered: dict[int, Part] = {}

    def of(self, value: Any) -> bytes:
        """The digest of a value, cycles and all.

        Values are told apart by their own content first, then by that of what they refer to, and
        so on until that tells no more apart: the order in which they were met does not enter.
        """
        found, classes = self.digest(value), 0
        if isinstance(found, bytes):
            return found
        digests = dict.fromkeys(self.numbered, b"")
        while True:
            digests = {n: _closed(part, digests) for n, part in self.numbered.items()}
            if len(distinct := set(digests.values())) == classes:
                return _hash("cycle", _closed(found, digests), *sorted(distinct))
            classes = len(distinct)

    def digest(self, value: Any) -> Part:
        if value is None or value is ... or value is NotImplemented or type(value) in PLAIN:
            return _hash("plain", type(value).__name__.encode(), repr(value).encode())
        if id(value) in self.known:
            return self.known[id(value)][1]
        number = len(self.known)
        self.known[id(value)] = (value, number)  # met again below, it is in a cycle
        found = self._digest(value)
        if not isinstance(found, bytes):
            self.numbered[number] = found
            return number
        self.known[id(value)] = (value, found)
        return found

    def all(self, tag: str, *values: Any) -> Part:
        return _part(tag, *map(self.digest, values))

    def _digest(self, value: Any) -> Part:
        if isinstance(value, np.ndarray | np.generic) or is_jax(value):
            return self._array(value)
        if isinstance(value, Mapping):
            pairs = (self.all("pair", name, item) for name, item in value.items())
            return _part("mapping", *pairs, ordered=False)
        if isinstance(value, set | frozenset):
            return _part("set", *map(self.digest, value), ordered=False)
        if isinstance(value, list | tuple):
            return self.all("sequence", type(value), *value)
        if isinstance(value, type):
            return self._type(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, enum.Enum):
            return self.all("member", type(value), value.name)
        if isinstance(value, types.ModuleType):
            return _hash("module", value.__name__.encode())
        if callable(value):
            return self._callable(value)
        return self._object(value)

    def _array(self, value: Any) -> Part:
        if is_jax(value) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return self.all("key", str(value.dtype), jax.random.key_data(value))
        if isinstance(value, np.ma.MaskedArray):
            return self.all("masked", value.data, np.ma.getmaskarray(value))
        array = np.asarray(value)
        if array.dtype.hasobject:
            return self.all("objects", array.shape, array.tolist())
        shape = f"{array.dtype}{array.shape}".encode()
        return _hash("array", shape, as_bytes(np.ascontiguousarray(array)))

    # --- functions ------------------------------------------------------------------------------

    def _callable(self, value: Any) -> Part:
        if version := getattr(value, VERSION, None):
            return self.all("versioned", _name(value), version)
        if _is_importable(value):
            return self.all("name", _name(value))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self.all("method", value.__func__, value.__self__)
        if isinstance(value, functools.partial):
            return self.all("partial", value.func, value.args, value.keywords)
        if isinstance(value, weakref.ref):
            return self.all("reference", value())
        if isinstance(value, TRANSPARENT):
            return self.all("wrapped", value.__wrapped__)  # type: ignore[attr-defined]
        if isinstance(value, types.BuiltinMethodType) and _is_bound(value):
            return self.all("method", value.__name__, value.__self__)
        if isinstance(value, COMPILED):
            raise _opaque(value)
        return self._object(value)

    def _function(self, function: types.FunctionType) -> Part:
        """Code, defaults, and what it refers to outside; of a package's, the name for the code."""
        defaults = (function.__defaults__, function.__kwdefaults__)
        cells = dict(zip(function.__code__.co_freevars, map(_held, function.__closure__ or ()),
                         strict=True))  # fmt: skip
        home = function.__globals__.get("__name__", "")
        if _is_checker(function, home):
            return self.digest(function.__wrapped__)  # type: ignore[attr-defined]
        if _is_library(home):
            name = (home, function.__code__.co_qualname)
            made = "<locals>" in function.__code__.co_qualname  # else the name says it all
            return self.all("function", name, *((defaults, cells) if made else ()))
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        outside = [*_globals(function), *_imported(function)]
        seen = {name: _seen(value, names) for name, value in outside}
        inside = {name: _seen(value, names) for name, value in cells.items()}
        own = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        return self.all("function", function.__code__, defaults, inside, seen, own)

    def _code(self, code: types.CodeType) -> Part:
        numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        steps = (code.co_code, code.co_exceptiontable)
        return self.all("code", numbers, names, steps, code.co_consts)

    # --- objects --------------------------------------------------------------------------------

    def _type(self, kind: type) -> Part:
        """A package's by its name; a user's by all that was written in its body and its bases'."""
        name = _name(kind)
        if _is_library(kind.__module__):
            return _hash("type", *map(str.encode, name))
        body = {name: member for name, member in vars(kind).items() if _is_written(name, member)}
        return self.all("type", kind.__qualname__, kind.__bases__, body)

    def _object(self, value: Any) -> Part:
        if isinstance(value, jax.tree_util.PyTreeDef):
            return self.all("structure", value.node_data(), value.num_leaves, value.children())
        if isinstance(value, staticmethod | classmethod):
            return self.all("member", type(value), value.__func__)
        if isinstance(value, property):
            return self.all("property", value.fget, value.fset)
        if isinstance(value, functools.cached_property):
            return self.all("property", value.func)
        if dataclasses.is_dataclass(value):
            return self.all("object", type(value), _fields(value))
        try:
            reduce = copyreg.dispatch_table.get(type(value), lambda value: value.__reduce_ex__(4))
            parts = reduce(value)
        except Exception as error:  # whatever it is that does not want to be copied
            raise _opaque(value) from error
        if isinstance(parts, str):  # a name alone
            raise _opaque(value)
        parts = [list(part) if isinstance(part, Iterator) else part for part in parts]
        if len(parts) > 2 and isinstance(parts[2], dict):  # its attributes
            parts[2] = {n: item for n, item in parts[2].items() if not _is_derived(value, n)}
        return self.all("object", *parts)


def _part(tag: str, *parts: Part, ordered: bool = True) -> Part:
    """A digest as soon as all parts are."""
    node = _Node(tag, parts, ordered)
    return _closed(node, {}) if all(isinstance(part, bytes) for part in parts) else node


def _closed(part: Part, digests: Mapping[int, bytes]) -> bytes:
    """The digest of a part, given those of what is numbered."""
    if isinstance(part, bytes):
        return part
    if isinstance(part, int):
        return digests[part]
    closed = [_closed(inner, digests) for inner in part.parts]
    return _hash(part.tag, *(closed if part.ordered else sorted(closed)))


def _hash(tag: str, *parts: Any) -> bytes:
    sha = hashlib.sha256(f"{tag} {len(parts)} ".encode())
    for part in parts:
        sha.update(f"{len(part)} ".encode())
        sha.update(part)
    return sha.digest()


def _is_checker(function: types.FunctionType, home: str) -> bool:
    """Whether it only checks the types of what it hands on; names in such code are addresses."""
    made = function.__code__.co_filename.startswith("<@beartype(")
    return (made or home.partition(".")[0] in CHECKERS) and hasattr(function, "__wrapped__")


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return NotImplemented


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of all that are defined within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What the function, and those within it, read from their module."""
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            if step.opname in GLOBALS and step.argval in function.__globals__:
                yield step.argval, function.__globals__[step.argval]


def _imported(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The modules that the function, and those within it, import when they are called."""
    for code in _codes(function.__code__):
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname == "IMPORT_NAME":
                where = (step.argval, function.__globals__, None, names.argval, level.argval)
                yield f"{level.argval} {step.argval} {names.argval}", _module(*where)


def _module(*where: Any) -> Any:
    try:
        return __import__(*where)
    except Exception:  # whatever else the function does without it
        return NotImplemented


def _seen(value: Any, names: Iterable[str], *above: Any) -> Any:
    """What a function sees of a value: of a user's module, what it names there."""
    if not isinstance(value, types.ModuleType) or _is_library(value.__name__):
        return value
    above = (*above, value)
    used = {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}
    inner = {name: item for name, item in used.items() if not any(item is one for one in above)}
    return {name: _seen(item, names, *above) for name, item in inner.items()}


def _name(value: Any) -> tuple[str, str]:
    kind = type(value)
    name = getattr(value, "__qualname__", getattr(value, "__name__", kind.__qualname__))
    return str(getattr(value, "__module__", None) or kind.__module__), str(name)


def _is_importable(value: Any) -> bool:
    """Whether a package has it under its name: what is written in C, or made by a decorator."""
    module, name = _name(value)
    homes = [module, *(["numpy", "scipy.special"] if isinstance(value, np.ufunc) else [])]
    return any(_is_library(home) and _found(home, name) is value for home in homes)


def _found(module: str, name: str) -> Any:
    return functools.reduce(
        lambda found, part: getattr(found, part, None), name.split("."), sys.modules.get(module)
    )


def _is_bound(method: types.BuiltinMethodType) -> bool:
    return method.__self__ is not None and not isinstance(method.__self__, types.ModuleType)


def _fields(value: Any) -> dict[str, Any]:
    """Fields of a dataclass, and what else was set on it, but not what is derived.

    Where a package brings the class or a base of it, names with an underscore are its own affair.
    """
    brought = any(map(_is_packaged, type(value).__mro__))
    names = {name for name in getattr(value, "__dict__", ()) if not (brought and name[0] == "_")}
    names |= {field.name for field in dataclasses.fields(value)}
    present = (name for name in names if hasattr(value, name))
    return {name: getattr(value, name) for name in present if not _is_derived(value, name)}


def _is_derived(value: Any, name: str) -> bool:
    return isinstance(getattr(type(value), name, None), functools.cached_property)


def _is_packaged(kind: type) -> bool:
    """Whether a class is of a package, but not of Python."""
    module = kind.__module__
    return _is_library(module) and module.partition(".")[0] not in sys.stdlib_module_names


@functools.cache
def _is_library(module: str) -> bool:
    """Whether a module belongs to Python, to posterity or to an installed package."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "posterity":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not LIBRARIES.isdisjoint(Path(file).parts)


def _is_written(name: str, member: Any) -> bool:
    """Whether a member of a class says what its objects do."""
    special = name.startswith("__") and name.endswith("__")
    return callable(member) if special else name != "_abc_impl"


def _opaque(value: Any) -> UsageError:
    module, name = _name(value)
    return UsageError(
        found=f"{module}.{name}, a {type(value).__name__} whose content cannot be compared",
        expected="functions and objects that a checkpoint can tell from changed ones",
        fix='Wrap the function that uses it: posterity.federation.versioned("1")(function); '
        "and raise the version when it changes.",
    )
