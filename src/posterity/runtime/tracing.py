"""Programs that JAX compiles hold copies of arrays, and leave a caller's functions as they were.

JAX (0.10) makes one constant of a NumPy array and uses it for that array everywhere, in single and
in double precision, as long as any program holds it. So a program of posterity holds copies: once
a caller's function is traced in double precision, the caller's own calls of it still are in the
caller's precision. See ``docs/decisions/0050-programs-hold-copies.md``.
"""

import contextlib
import dataclasses
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from posterity.runtime.fingerprint import digest
from posterity.runtime.lazy import eqx, jax
from posterity.runtime.program_folder import restored


class _Verbs(threading.local):
    def __init__(self) -> None:
        self.begun = 0
        """Number of verbs that have begun in this thread, and not ended."""
        self.held: list[Any] = []
        """References to the NumPy arrays that these verbs have traced."""


verbs = _Verbs()
_narrow: set[str] = set()
"""Digests of arrays whose width is the caller's choice, not that of a precision."""


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
    if not copied.converted() <= _narrow:
        del closed, copied
        _release()
        closed, outputs = _traced(function, examples)
        copied = _Copied.of(closed)
        _narrow.update(copied.converted())
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


def with_copies(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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
        if verbs.begun:
            verbs.held += map(weakref.ref, copied.arrays)
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
    # An array that only this one is made of is referred to by this one, and by the count.
    return narrower and sys.getrefcount(array.base) <= 2


WIDE = {"f": np.float64, "i": np.int64, "u": np.uint64, "c": np.complex128}
"""The widest numbers of a kind."""


def _release() -> None:
    """Make JAX release all programs, with the arrays that they hold."""
    jax.clear_caches()
    gc.collect()  # traced functions refer to themselves


def _is_held() -> bool:
    """Return whether something holds an array that JAX made for another precision."""
    alive = [array for own in verbs.held if (array := own()) is not None]
    return any(_is_converted(own) and digest(own) not in _narrow for own in alive)


@contextlib.contextmanager
def as_found() -> Iterator[None]:
    """Leave the caller's functions as they were, also those that the caller has compiled: if one of
    them holds arrays in another precision than the caller's, make JAX release all programs.

    Around a verb; around several in one thread, the outermost counts.
    """
    verbs.begun += 1
    try:
        yield
    finally:
        verbs.begun -= 1
        if not verbs.begun:
            restored()
            if _is_held():
                gc.collect()  # what holds it may be of no use to anyone
                if _is_held():
                    _release()
            verbs.held.clear()
