"""Lazy imports of JAX, Equinox and networkx, and names of packages that need them.

Importing JAX takes longer, and more memory, than a federation of regressions does.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any


class _Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import networkx
else:
    eqx = _Module("equinox")
    jax = _Module("jax")
    jnp = _Module("jax.numpy")
    networkx = _Module("networkx")


def exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562) with names by module.

    A package without ``__all__`` gets one: these names, and the functions that it imported before.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    own = vars(sys.modules[package])
    before = {n for n, v in own.items() if n[0] != "_" and callable(v) and v is not exports}
    own.setdefault("__all__", sorted(before | home_of.keys()))

    def get(name: str) -> Any:
        if name in homes:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        vars(sys.modules[package])[name] = value
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes, *home_of})
