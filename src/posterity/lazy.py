"""What is imported when it is first used: JAX, Equinox, and names of packages that need them.

Importing JAX takes longer, and more memory, than a federation of regressions does.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class _Module:
    """A module that is imported when it is first asked for something."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
else:
    eqx, jax, jnp = _Module("equinox"), _Module("jax"), _Module("jax.numpy")


def program(function: Function) -> Function:
    """A function of trees that JAX compiles when it is first called: ``equinox.filter_jit``."""
    return _made_once(function, lambda: eqx.filter_jit(function))


def jitted(function: Function, **options: Any) -> Function:
    """A function of arrays that JAX compiles when it is first called: ``jax.jit``."""
    return _made_once(function, lambda: jax.jit(function, **options))


def _made_once(function: Any, make: Callable[[], Any]) -> Any:
    made = functools.cache(make)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return made()(*args, **kwargs)

    return call


def exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562) whose modules hold these names."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in homes:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        vars(sys.modules[package])[name] = value
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *home_of})
