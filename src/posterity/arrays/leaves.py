"""What an array of parameters is: floating-point numbers that nobody can write to."""

from typing import Any

import numpy as np

from posterity.arrays.namespace import is_jax
from posterity.arrays.typing import Real
from posterity.errors import ParameterError


def as_leaf(value: Any) -> Real:
    """``value`` as a floating-point array of one's own: JAX's stay, all else becomes NumPy's.

    float32 and float64 keep their precision; whole numbers and float16 become float64 (JAX's, the
    widest that JAX is set to).

    Raises:
        ParameterError: for complex numbers, text and other things that are no real numbers.
    """
    if is_jax(value):
        return value if value.dtype in (np.float32, np.float64) else _widened(value)
    array = np.asarray(value)
    if array.dtype in (np.float32, np.float64):
        return frozen(array if array is not value else _owned(array))
    _check_real(array.dtype, array.dtype.kind in "biuf")
    return frozen(array.astype(np.float64))


def frozen(array: Any) -> Any:
    """The same array, NumPy's no longer writable; only for arrays that nobody else holds."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
        return array
    return array if is_jax(array) else frozen(np.asarray(array))


def _owned(array: np.ndarray) -> np.ndarray:
    """The array itself where nobody can write to its memory, else a copy."""
    memory: Any = array
    while isinstance(memory, np.ndarray):
        if memory.flags.writeable:
            return array.copy()
        memory = memory.base
    return array if memory is None or isinstance(memory, bytes) else array.copy()


def _widened(value: Any) -> Any:
    import jax.numpy as jnp

    _check_real(value.dtype, not jnp.issubdtype(value.dtype, jnp.complexfloating))
    return value.astype(float)  # float32 or float64, as JAX is set


def _check_real(dtype: Any, fine: bool) -> None:
    if not fine:
        raise ParameterError(
            found=f"parameters of dtype {dtype}",
            expected="real numbers",
            fix="Convert them to floating point first.",
        )
