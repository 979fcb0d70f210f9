"""Arrays of JAX, told from others without importing JAX."""

import sys
from typing import Any

import numpy as np


def jax_module() -> Any:
    """Return JAX if it has been completely imported, else None."""
    module = sys.modules.get("jax")
    return module if hasattr(module, "Array") else None


def is_jax(value: object) -> bool:
    """True if ``value`` is an array of JAX, traced or not."""
    if type(value) is np.ndarray:  # the usual case, asked for at every leaf
        return False
    jax = jax_module()
    return jax is not None and isinstance(value, jax.Array)
