"""Shape annotations: those of jaxtyping if it has been imported, else placeholders.

Importing jaxtyping costs half as much as importing NumPy, and the command line does not check
shapes. In the tests, and wherever JAX is used, the annotations are those of jaxtyping.

``Real`` is an array of NumPy or JAX, and ``PyTree`` a tree of such arrays. ``ArrayLike`` and
``Index`` are the objects that NumPy converts to an array, or accepts as an index.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import EllipsisType

    from jaxtyping import Bool, Float, Int, Key, Num, UInt32
    from numpy.typing import ArrayLike, DTypeLike

    Index = int | slice | EllipsisType | ArrayLike | tuple[Any, ...] | None
    # The two array types share methods, not stubs: a union would ask for a cast on every line.
    Real = KeyArray = PyTree = Any
    Number = Real | float | int
else:
    # What is converted is checked by whatever converts it, with an error that people can read.
    ArrayLike = DTypeLike = Index = Number = PyTree = Any
    if "jaxtyping" in sys.modules:
        import jax
        import numpy as np
        from jaxtyping import Bool, Float, Int, Key, Num, UInt32

        Real = jax.Array | np.ndarray | np.generic
        KeyArray = Key[jax.Array, ""] | tuple[int, int]
    else:

        class _Unchecked:
            def __class_getitem__(cls, shape: Any) -> Any:
                return Any

        Bool = Float = Int = Key = Num = UInt32 = _Unchecked
        Real = KeyArray = Any

Flat = Float[Real, "*batch dim"]
"""Parameters or statistics of each member of a batch as one vector."""

__all__ = [
    "ArrayLike",
    "Bool",
    "DTypeLike",
    "Flat",
    "Float",
    "Index",
    "Int",
    "Key",
    "KeyArray",
    "Num",
    "Number",
    "PyTree",
    "Real",
    "UInt32",
]

Shape = tuple[int, ...]
"""The lengths of the axes of an array."""
Floats = Float[Real, "..."]
"""Floating-point numbers of any shape."""
