"""Programs that JAX compiles: what they hold, where they are kept, and when they are released.

JAX (0.10) makes one constant of a NumPy array and uses it for that array everywhere, in single and
in double precision, as long as any program holds it. So a program of posterity holds copies: once
a caller's function is traced in double precision, the caller's own calls of it still are in the
caller's precision. See ``docs/decisions/0050-programs-hold-copies.md``.
"""

import contextlib
import dataclasses
import functools
import gc
import hashlib
import importlib
import operator
import os
import platform
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from posterity.runtime.fingerprint import digest
from posterity.runtime.lazy import eqx, jax

Function = TypeVar("Function", bound=Callable[..., Any])


def program(function: Function) -> Function:
    """Return a function of trees that JAX compiles at its first call: ``equinox.filter_jit``."""
    return _made_once(function, lambda body: eqx.filter_jit(body))


def jitted(function: Function, **options: Any) -> Function:
    """Return a function of arrays that JAX compiles at its first call: ``jax.jit``."""
    return _made_once(function, lambda body: jax.jit(body, **options))


def sampler(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function ``draw(key, shape, *parameters)`` that JAX compiles as one program.

    The shape is an integer or a sequence of integers. Without x64, parameters are rounded to
    float32; callers compute standard parameters before, since natural ones may cancel.
    """
    compiled = jitted(draw, static_argnames="shape", inline=True)

    @functools.wraps(draw)
    def call(key: Any, shape: Any, *parameters: Any) -> Any:
        sizes = (shape,) if np.ndim(shape) == 0 else shape
        return compiled(key, tuple(map(operator.index, sizes)), *parameters)

    return call


def _made_once(function: Any, make: Callable[[Any], Any]) -> Any:
    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:  # JAX calls it once for each program
        _programs.new += 1
        counted.programs += 1
        _keep_on_disk()
        return _with_copies(function, *args, **kwargs)

    @functools.cache
    def made() -> Any:
        importlib.import_module("equinox")  # JAX 0.12 traces again what imports it while it traces
        return make(body)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """``function``; the attribute ``programs`` is how often JAX has traced it."""
        _programs.depth += 1
        before = counted.programs
        if counted.fresh or _verbs.begun:  # it may be compiled now, without being traced
            _keep_on_disk()
        try:
            return made()(*args, **kwargs)
        finally:
            counted.fresh = counted.programs > before
            _programs.depth -= 1
            if _programs.depth == _verbs.begun == 0:
                _restored()

    counted: Any = call
    counted.programs = 0
    counted.fresh = False
    return counted


# --- constants ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Operations:
    """The operations of a function that JAX has traced, apart from the arrays that it uses.

    Two of them are equal if their operations are, so that programs which take one as a static
    argument are compiled once for all functions that differ in their data alone.
    """

    text: str
    """The operations in JAX's notation, what they return, and digests of arrays among them."""
    code: tuple[Any, ...]
    """Derivatives and callbacks of a caller's, which the text does not show."""
    jaxpr: Any = dataclasses.field(compare=False, repr=False)
    outputs: Any = dataclasses.field(compare=False, repr=False)
    """Shapes and dtypes of what the function returns."""

    def __call__(self, constants: Any, *arguments: Any) -> Any:
        """Return the function's value at arguments of the traced shapes, given its arrays."""
        leaves = jax.tree.leaves(arguments)
        values = jax.core.eval_jaxpr(self.jaxpr, list(constants), *leaves)  # pyright: ignore
        return jax.tree.unflatten(jax.tree.structure(self.outputs), values)


def traced(function: Callable[..., Any], *examples: Any) -> tuple[Operations, list[Any]]:
    """Trace a function of arrays at arguments of these shapes, in the precision in force. Return
    its operations, and copies of the arrays that it uses.

    Data that the function reads from globals, attributes and closures are those of this moment. If
    a program of the caller's may hold them in another precision, JAX releases all programs first.
    Errors are the function's own. Not to be called while JAX traces.
    """
    closed, outputs = _traced(function, examples)
    copied = _Copied.of(closed)
    if not copied.converted() <= _programs.narrow:
        del closed, copied
        _release()
        closed, outputs = _traced(function, examples)
        copied = _Copied.of(closed)
        _programs.narrow |= copied.converted()
    parts = [str(closed.jaxpr), str(outputs), *map(digest, copied.inside)]
    own = copied.function
    return Operations(" ".join(parts), tuple(copied.code), own.jaxpr, outputs), list(own.consts)


def _traced(function: Callable[..., Any], examples: Any) -> tuple[Any, Any]:
    # JAX keeps what it has traced as long as the function lives; a new one is traced anew.
    make = jax.make_jaxpr(lambda *own: function(*own), return_shape=True)
    try:
        return make(*examples)
    except jax.errors.JAXTypeError:
        raise
    except TypeError as error:
        if "dtype" not in str(error):
            raise
    _release()  # arrays in another precision do not go together with the arguments
    return make(*examples)


def _with_copies(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that JAX traces, so that the program holds copies of the arrays it uses."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    arrays, settings = eqx.partition(leaves, eqx.is_array)
    returned: list[Any] = []

    def of_arrays(arrays: Any) -> Any:
        args, kwargs = jax.tree.unflatten(structure, eqx.combine(arrays, settings))
        values, tree = jax.tree.flatten(function(*args, **kwargs))
        made, others = eqx.partition(values, eqx.is_array_like)
        returned[:] = tree, others
        return made

    closed, outputs = jax.make_jaxpr(of_arrays, return_shape=True)(arrays)
    own = _Copied.of(closed).function
    values = jax.core.eval_jaxpr(own.jaxpr, own.consts, *jax.tree.leaves(arrays))  # pyright: ignore
    made = jax.tree.unflatten(jax.tree.structure(outputs), values)
    tree, others = returned
    return jax.tree.unflatten(tree, eqx.combine(made, others))


@dataclasses.dataclass
class _Copied:
    """A traced function with copies of the NumPy arrays in it."""

    function: Any = None
    arrays: list[np.ndarray] = dataclasses.field(default_factory=list)
    """The NumPy arrays themselves."""
    inside: list[Any] = dataclasses.field(default_factory=list)
    """All arrays that functions inside it hold."""
    code: list[Any] = dataclasses.field(default_factory=list)
    """Derivatives and callbacks that a caller wrote."""

    @classmethod
    def of(cls, closed: Any) -> "_Copied":
        copied = cls()
        copied.function = copied._closed(closed)
        if _verbs.begun:
            _verbs.held += map(weakref.ref, copied.arrays)
        return copied

    def converted(self) -> set[str]:
        """Return digests of the arrays that JAX may have converted for another precision."""
        return {digest(array) for array in self.arrays if _is_converted(array)}

    def _closed(self, closed: Any) -> Any:
        own = [constant for constant in closed.consts if isinstance(constant, np.ndarray)]
        self.arrays += own
        copies = [np.array(c) if isinstance(c, np.ndarray) else c for c in closed.consts]
        return closed.replace(jaxpr=self._open(closed.jaxpr), consts=copies)

    def _open(self, jaxpr: Any) -> Any:
        equations = []
        for equation in jaxpr.eqns:
            parts = {
                name: jax.tree.map(self._part, part, is_leaf=_is_traced)
                for name, part in equation.params.items()
            }
            equations.append(equation.replace(params=parts))
            self.code += _code(equation)
        return jaxpr.replace(eqns=equations)

    def _part(self, part: Any) -> Any:
        if not _is_traced(part):
            return part
        if not hasattr(part, "consts"):
            return self._open(part)
        self.inside += part.consts
        return self._closed(part)


def _is_traced(part: Any) -> bool:
    """Return whether a part of an operation is a traced function."""
    return hasattr(part, "eqns")


def _code(equation: Any) -> list[Any]:
    """Return code of a caller's in an operation: a derivative, or a callback."""
    if "callback" in equation.params:
        return [equation.params["callback"]]
    if equation.primitive.name not in ("custom_jvp_call", "custom_vjp_call"):
        functions = [f for f in equation.params.values() if isinstance(f, types.FunctionType)]
        return [f for f in functions if not str(f.__module__).startswith(("jax", "posterity"))]
    called = equation.params["call_jaxpr"].jaxpr
    home = Path(called.debug_info.func_filename or "")
    packages = Path(__file__).parents[1], Path(str(jax.__file__)).parent
    known = any(home.is_relative_to(package) for package in packages)
    # A function of JAX's that takes a caller's derivative stands in this file.
    return [] if known and home.name != "custom_derivatives.py" else [called]


def _is_converted(array: np.ndarray) -> bool:
    """Return whether JAX may make another array of what it made this one of: if its numbers are
    wider than this precision has, or if they are narrower and not an array's of somebody else.
    """
    kind = array.dtype.kind
    if kind not in WIDE:
        return False
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return True
    narrower = jax.dtypes.canonicalize_dtype(WIDE[kind]) != array.dtype
    return narrower and sys.getrefcount(array.base) <= ALONE


WIDE = {"f": np.float64, "i": np.int64, "u": np.uint64, "c": np.complex128}
"""The widest numbers of a kind."""
ALONE = 2
"""References to an array that only one other array is made of: by that one, and by the count."""


def _release() -> None:
    """Make JAX release all programs, with the arrays that they hold."""
    jax.clear_caches()
    gc.collect()  # traced functions refer to themselves


def _is_held() -> bool:
    """Return whether something holds an array that JAX made for another precision."""
    alive = [array for own in _verbs.held if (array := own()) is not None]
    return any(_is_converted(own) and digest(own) not in _programs.narrow for own in alive)


@contextlib.contextmanager
def as_found() -> Iterator[None]:
    """Leave the caller's functions as they were, also those that the caller has compiled: if one of
    them holds arrays in another precision than the caller's, make JAX release all programs.

    Around a verb; around several in one thread, the outermost counts.
    """
    _verbs.begun += 1
    try:
        yield
    finally:
        _verbs.begun -= 1
        if not _verbs.begun:
            _restored()
            if _is_held():
                gc.collect()  # what holds it may be of no use to anyone
                if _is_held():
                    _release()
            _verbs.held.clear()


# --- programs on disk, and in memory --------------------------------------------------------------

VARIABLE = "POSTERITY_CACHE"
"""Environment variable of the folder of compiled programs; if empty, programs are not cached."""
WORTH = 0.2
"""Compilation time, in seconds, from which a program is cached."""
NEW, MAPPINGS, MORE = 16, 0.5, 0.25
"""Number of new programs after which the memory mappings of the process are counted, the share of
the number that Linux allows from which programs are released, and the share by which they must have
grown since the last release, as other packages may have many mappings."""


@dataclasses.dataclass
class _Programs:
    new: int = 0
    """Number of programs since mappings were counted."""
    others: int = 0
    """Number of mappings after the last release."""
    depth: int = 0
    """Number of calls of programs that have begun and not ended."""
    before: Any = None
    """What undoes :func:`_keep_on_disk`; None if nothing is to be undone."""
    narrow: set[str] = dataclasses.field(default_factory=set)
    """Digests of arrays whose width is the caller's choice, not that of a precision."""


class _Verbs(threading.local):
    def __init__(self) -> None:
        self.begun = 0
        """Number of verbs that have begun in this thread, and not ended."""
        self.held: list[Any] = []
        """References to the NumPy arrays that these verbs have traced."""


_programs, _verbs = _Programs(), _Verbs()


def release_programs() -> None:
    """Make JAX release all compiled programs if the process has many memory mappings.

    A program takes hundreds of mappings, and LLVM ends a process that has no more. A new function
    means a new program, so a few hundred federations would get there. Not to be called while JAX
    traces a function.
    """
    if _programs.new < NEW:
        return
    _programs.new = 0
    with contextlib.suppress(OSError, ValueError):  # other systems have no such files
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
        used = lambda: Path("/proc/self/maps").read_bytes().count(b"\n")
        if used() > max(MAPPINGS * allowed, _programs.others + MORE * allowed):
            jax.clear_caches()
            _programs.others = used()


def _keep_on_disk() -> None:
    """Make JAX cache what it compiles until :func:`_restored`, unless its cache is in use already.

    If the folder is not writable, nothing is cached, without a warning: results are the same.
    """
    folder = cache_folder()
    if _programs.before is not None or folder is None:
        return
    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # programs may hold users' numbers
    except OSError:
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return
    _programs.before = contextlib.ExitStack()
    _programs.before.enter_context(_cached_in(folder))


@contextlib.contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    from jax.experimental.compilation_cache import compilation_cache

    seconds = jax.config.jax_persistent_cache_min_compile_time_secs  # pyright: ignore
    with warnings.catch_warnings():
        # A process that is killed during a write leaves an unreadable entry.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH)
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
            compilation_cache.reset_cache()


def _restored() -> None:
    """Undo what :func:`_keep_on_disk` has set."""
    if _programs.before is not None:
        _programs.before.close()
        _programs.before = None


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder of compiled programs; None if they are not cached.

    There is one for each type of processor, as different machines may share a home folder.
    """
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        return Path(asked).expanduser() if asked else None
    try:
        home, system = Path.home(), platform.system()
    except RuntimeError:  # a user without a home
        return None
    usual = {"Darwin": home / "Library" / "Caches", "Windows": home / "AppData" / "Local"}
    variable = "LOCALAPPDATA" if system == "Windows" else "XDG_CACHE_HOME"
    root = os.environ.get(variable) or usual.get(system, home / ".cache")
    return Path(root) / "posterity" / f"{platform.machine()}-{_instructions()}"


def _instructions() -> str:
    """Return a digest that identifies the type of processor."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        known = sorted({line for line in lines if line.startswith(("flags", "Features"))})
        return hashlib.sha256("".join(known).encode()).hexdigest()[:12]
    return "any"
