"""Arrays of parameters: floating-point numbers that are not writable."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from posterity.arrays.typing import ArrayLike, Real
from posterity.errors import ParameterError
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jnp


def as_leaf(value: Any) -> Real:
    """``value`` as a floating-point array of one's own: JAX's stay, all else becomes NumPy's.

    float32 and float64 keep their precision; whole numbers, float16 and bfloat16 become float64
    (JAX's, the widest that JAX is set to).

    Raises:
        ParameterError: for complex numbers, text and other things that are no real numbers, and for
            masked values.
    """
    if is_jax(value):
        return value if value.dtype in (np.float32, np.float64) else _widened(value)
    if np.ma.is_masked(value):
        raise _unreal("masked parameters", "Give a value for each, as filled(value) does.")
    try:  # a copy: views and buffers can be written to elsewhere
        array = value if type(value) is np.ndarray and _of_bytes(value) else np.array(value)
    except ValueError as error:
        raise _unreal(f"parameters that are no array ({error})") from error
    if array.dtype not in (np.float32, np.float64):
        if kind_of(array.dtype) not in "biuf":
            raise _unreal(f"parameters of dtype {array.dtype}")
        array = array.astype(np.float64)
    return frozen(array)


def as_leaves(values: Mapping[str, Any]) -> dict[str, Real]:
    """Each value :func:`as_leaf`; all of them JAX's, in its precision, if one is."""
    made = {name: as_leaf(value) for name, value in values.items()}
    one = next((leaf for leaf in made.values() if is_jax(leaf)), None)
    if one is None:
        return made
    return {n: leaf if is_jax(leaf) else jnp.asarray(leaf, one.dtype) for n, leaf in made.items()}


def kind_of(dtype: Any) -> str:
    """Return NumPy's letter of a type, that of floats for bfloat16 too, which NumPy calls void."""
    return "f" if str(dtype) == "bfloat16" else getattr(dtype, "kind", "")


def frozen(array: ArrayLike) -> Any:
    """Return the array, read-only if it is NumPy's; only for arrays without other references."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
        return array
    return array if is_jax(array) else frozen(np.asarray(array))


class known_at_rest:  # as other decorators
    """A property of a node that is found once, and is not writable: an array, or another node.

    Of a node that JAX traces it is kept where it was found in the trace of the node's own leaves: a
    trace within, as of the body of a loop, has values that the node outlives.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, node: Any, owner: Any = None) -> Any:
        if node is None:
            return self
        value = self.function(node)
        if type(value) is np.ndarray:  # the usual case
            node.__dict__[self.function.__name__] = frozen(value)
            return value
        array = hasattr(value, "dtype")
        own = node.children()
        found = [value] if array else value.children()
        if all(not is_jax(part) or _traced_together(part, own) for part in found):
            # From now on it is found in the dictionary, without a call.
            node.__dict__[self.function.__name__] = frozen(value) if array else value
        return value


def _traced_together(value: Any, leaves: tuple[Any, ...]) -> bool:
    trace = getattr(value, "_trace", None)  # without which JAX would but find it again
    return trace is not None and all(getattr(leaf, "_trace", None) is trace for leaf in leaves)


def _of_bytes(array: np.ndarray) -> bool:
    """True if the memory is that of immutable bytes, as of a file that was read."""
    memory: Any = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return isinstance(memory, bytes)


def _widened(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise _unreal(f"parameters of dtype {value.dtype}")
    return value.astype(float)  # float32 or float64, as JAX is set


def _unreal(
    found: str, fix: str = "Convert them to an array of floating point first."
) -> ParameterError:
    return ParameterError(found=found, expected="real numbers, as many in every row", fix=fix)
