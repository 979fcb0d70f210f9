"""One formula, two homes: NumPy float64 at rest, JAX under a transformation.

Families are written once, over a :class:`Namespace`. Natural parameters held as NumPy arrays
are computed on by NumPy and SciPy, in the precision they have; traced or device arrays are
computed on by JAX, so the same formula differentiates, vectorises and compiles. JAX itself is
imported by whoever first makes such an array, never here.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.arrays.functions import Namespace
from posterity.runtime.jax_loaded import is_jax, jax_module

NUMPY = Namespace()
"""Functions of NumPy and SciPy, in the precision of the arguments."""


def namespace(*arrays: Any) -> Namespace:
    """JAX if any of the arrays is JAX's (traced ones are), else NumPy."""
    for array in arrays:
        if type(array) is not np.ndarray and is_jax(array):
            return _jax()
    return NUMPY


def is_traced(value: object) -> bool:
    """Tell whether ``value`` is a traced array of JAX."""
    return is_jax(value) and isinstance(value, jax_module().core.Tracer)


def compiled(static: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """A function of arrays whose loops JAX would compile anew at every call, compiled once a shape.

    Of NumPy's arrays it stays as it is.
    """

    def decorate(function: Any) -> Any:
        @functools.cache
        def program() -> Any:
            return jax_module().jit(function, static_argnames=static)

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return (program() if any(map(is_jax, args)) else function)(*args)

        return call

    return decorate


@functools.cache
def _jax() -> Namespace:
    from posterity.arrays.jax_namespace import JaxNamespace

    return JaxNamespace()
