"""Shape annotations: jaxtyping's where something can check them, nothing elsewhere.

Importing jaxtyping costs half as much as importing NumPy, and nobody checks shapes when the
command line adds files up. In the tests, and wherever JAX is at work, the annotations are real.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Key, Num

    # The two array types share methods, not stubs: a union would ask for a cast on every line.
    Real = Any
    KeyArray = Any
elif "jaxtyping" in sys.modules:
    import jax
    import numpy as np
    from jaxtyping import Bool, Float, Int, Key, Num

    Real = jax.Array | np.ndarray | np.generic
    KeyArray = Key[jax.Array, ""]
else:

    class _Unchecked:
        def __class_getitem__(cls, shape: Any) -> Any:
            return Any

    Bool = Float = Int = Key = Num = _Unchecked
    Real = KeyArray = Any

__all__ = ["Bool", "Float", "Int", "Key", "KeyArray", "Num", "Real"]
