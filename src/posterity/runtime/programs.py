"""Programs that JAX compiles at their first call, and that are released before memory runs out."""

import contextlib
import dataclasses
import functools
import importlib
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from posterity.runtime.lazy import eqx, jax
from posterity.runtime.program_folder import keep_on_disk, restored
from posterity.runtime.tracing import verbs, with_copies

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass
class _Programs:
    new: int = 0
    """Number of programs since mappings were counted."""
    others: int = 0
    """Number of mappings after the last release."""
    depth: int = 0
    """Number of calls of programs that have begun and not ended."""


_programs = _Programs()


def program(function: Function) -> Function:
    """Return a function of trees that JAX compiles at its first call: ``equinox.filter_jit``."""
    return _made_once(function, lambda body: eqx.filter_jit(body))


def jitted(function: Function, **options: Any) -> Function:
    """Return a function of arrays that JAX compiles at its first call: ``jax.jit``."""
    return _made_once(function, lambda body: jax.jit(body, **options))


def sampler(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function ``draw(key, shape, *parameters)`` that JAX compiles as one program.

    The shape is an integer or a sequence of integers. Without x64, parameters are rounded to
    float32; callers compute standard parameters before, since natural ones may cancel.
    """
    compiled = jitted(draw, static_argnames="shape", inline=True)

    @functools.wraps(draw)
    def call(key: Any, shape: Any, *parameters: Any) -> Any:
        sizes = (shape,) if np.ndim(shape) == 0 else shape
        return compiled(key, tuple(map(operator.index, sizes)), *parameters)

    return call


def _made_once(function: Any, make: Callable[[Any], Any]) -> Any:
    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:  # JAX calls it once for each program
        _programs.new += 1
        counted.programs += 1
        keep_on_disk()
        return with_copies(function, *args, **kwargs)

    @functools.cache
    def made() -> Any:
        importlib.import_module("equinox")  # JAX 0.12 traces again what imports it while it traces
        return make(body)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """``function``; the attribute ``programs`` is how often JAX has traced it."""
        _programs.depth += 1
        before = counted.programs
        if counted.fresh or verbs.begun:  # it may be compiled now, without being traced
            keep_on_disk()
        try:
            return made()(*args, **kwargs)
        finally:
            counted.fresh = counted.programs > before
            _programs.depth -= 1
            if _programs.depth == verbs.begun == 0:
                restored()

    counted: Any = call
    counted.programs = 0
    counted.fresh = False
    return counted


def release_programs(new: int = 16, mappings: float = 0.5, more: float = 0.25) -> None:
    """Make JAX release all compiled programs if the process has many memory mappings.

    They are counted after so many ``new`` programs. Programs are released from ``mappings`` on, a
    share of the number that Linux allows, if they have grown by the share ``more`` since the last
    release, as other packages may have many.

    A program takes hundreds of mappings, and LLVM ends a process that has no more. A new function
    means a new program, so a few hundred federations would get there. Not to be called while JAX
    traces a function.
    """
    if _programs.new < new:
        return
    _programs.new = 0
    with contextlib.suppress(OSError, ValueError):  # other systems have no such files
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())

        def used():
            return Path("/proc/self/maps").read_bytes().count(b"\n")

        if used() > max(mappings * allowed, _programs.others + more * allowed):
            jax.clear_caches()
            _programs.others = used()
