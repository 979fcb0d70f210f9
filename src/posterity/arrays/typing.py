"""Shape annotations: jaxtyping's where something can check them, nothing elsewhere.

Importing jaxtyping costs half as much as importing NumPy, and nobody checks shapes when the
command line adds files up. In the tests, and wherever JAX is at work, the annotations are real.

``Real`` is an array of NumPy or of JAX, ``PyTree`` a tree of such arrays, and ``ArrayLike`` and
``Index`` what NumPy converts to an array, and takes for an index.
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
"""Parameters or statistics of each member as one vector."""

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
