"""Lazy imports of JAX, Equinox, and names of packages that need them.

Importing JAX takes longer, and more memory, than a federation of regressions does.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import operator
import os
import platform
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class _Module:
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
    """Return a function of trees that JAX compiles at its first call: ``equinox.filter_jit``."""
    return _made_once(function, lambda traced: eqx.filter_jit(traced))


def jitted(function: Function, **options: Any) -> Function:
    """Return a function of arrays that JAX compiles at its first call: ``jax.jit``."""
    return _made_once(function, lambda traced: jax.jit(traced, **options))


def sampler(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function ``draw(key, shape, *parameters)`` that JAX compiles as one program.

    The shape is an integer or a sequence of integers. Without x64, parameters are rounded to
    float32; callers compute standard parameters before, since natural ones may cancel.
    """
    compiled = jitted(draw, static_argnames="shape", inline=True)

    @functools.wraps(draw)
    def call(key: Any, shape: Any, *parameters: Any) -> Any:
        import numpy as np  # not above: commands without arrays import this module

        sizes = (shape,) if np.ndim(shape) == 0 else shape
        return compiled(key, tuple(map(operator.index, sizes)), *parameters)

    return call


def _made_once(function: Any, make: Callable[[Any], Any]) -> Any:
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:  # JAX calls it once for each program
        _programs.new += 1
        return function(*args, **kwargs)

    @functools.cache
    def made() -> Any:
        keep_programs()
        return make(traced)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return made()(*args, **kwargs)

    return call


# --- the cache of compiled programs --------------------------------------------------------------

VARIABLE = "POSTERITY_CACHE"
"""Environment variable of the folder of compiled programs; if empty, programs are not cached."""
WORTH = 0.2
"""Compilation time, in seconds, from which a program is cached."""


NEW, MAPPINGS, MORE = 16, 0.5, 0.25
"""Number of new programs after which the memory mappings of the process are counted, the share of
the number that Linux allows from which programs are released, and the share by which they must have
grown since the last release, as other packages may have many mappings."""


@dataclasses.dataclass
class _Programs:
    new: int = 0
    """Number of programs since mappings were counted."""
    others: int = 0
    """Number of mappings after the last release."""


_programs = _Programs()


def release_programs() -> None:
    """Make JAX release all compiled programs if the process has many memory mappings.

    A program takes hundreds of mappings, and LLVM ends a process that has no more. A new function
    means a new program, so a few hundred federations would get there. Not to be called while JAX
    traces a function.
    """
    if _programs.new < NEW:
        return
    _programs.new = 0
    with contextlib.suppress(OSError, ValueError):  # other systems have no such files
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
        used = lambda: Path("/proc/self/maps").read_bytes().count(b"\n")
        if used() > max(MAPPINGS * allowed, _programs.others + MORE * allowed):
            jax.clear_caches()
            _programs.others = used()


def new_programs() -> None:
    """Make JAX trace and compile all functions anew at their next call; nothing without JAX."""
    if "jax" in sys.modules:
        jax.clear_caches()


@functools.cache
def keep_programs() -> None:
    """Make JAX cache compiled programs on disk, unless its cache is configured already.

    If the folder is not writable, nothing is cached, without a warning: results are the same.
    """
    folder = cache_folder()
    if folder is None or jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # programs may hold users' numbers
    except OSError:
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return
    # A process that is killed during a write leaves an unreadable entry.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH)


def cache_folder() -> Path | None:
    """Return the folder of compiled programs; None if they are not cached.

    There is one for each type of processor, as different machines may share a home folder.
    """
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        return Path(asked) if asked else None
    try:
        home, system = Path.home(), platform.system()
    except RuntimeError:  # a user without a home
        return None
    usual = {"Darwin": home / "Library" / "Caches", "Windows": home / "AppData" / "Local"}
    variable = "LOCALAPPDATA" if system == "Windows" else "XDG_CACHE_HOME"
    root = os.environ.get(variable) or usual.get(system, home / ".cache")
    return Path(root) / "posterity" / f"{platform.machine()}-{_instructions()}"


def _instructions() -> str:
    """Return a digest that identifies the type of processor."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        known = sorted({line for line in lines if line.startswith(("flags", "Features"))})
        return hashlib.sha256("".join(known).encode()).hexdigest()[:12]
    return "any"


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
