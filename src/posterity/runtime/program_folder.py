"""The folder on disk of the programs that JAX compiles for posterity."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posterity.runtime.lazy import jax

VARIABLE = "POSTERITY_CACHE"
"""Environment variable of the folder of compiled programs; if empty, programs are not cached."""
WORTH = 0.2
"""Compilation time, in seconds, from which a program is cached."""


@dataclasses.dataclass
class _Undo:
    before: Any = None
    """What undoes :func:`keep_on_disk`; None if nothing is to be undone."""


_undo = _Undo()


def keep_on_disk() -> None:
    """Make JAX cache what it compiles until :func:`restored`, unless its cache is in use already.

    If the folder is not writable, nothing is cached, without a warning: results are the same.
    """
    folder = cache_folder()
    if _undo.before is not None or folder is None:
        return
    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # programs may hold users' numbers
    except OSError:
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return
    _undo.before = contextlib.ExitStack()
    _undo.before.enter_context(_cached_in(folder))


@contextlib.contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    from jax.experimental.compilation_cache import compilation_cache

    seconds = jax.config.jax_persistent_cache_min_compile_time_secs  # pyright: ignore
    with warnings.catch_warnings():
        # A process that is killed during a write leaves an unreadable entry.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH)
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
            compilation_cache.reset_cache()


def restored() -> None:
    """Undo what :func:`keep_on_disk` has set."""
    if _undo.before is not None:
        _undo.before.close()
        _undo.before = None


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder of compiled programs; None if they are not cached.

    There is one for each type of processor, as different machines may share a home folder.
    """
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        return Path(asked).expanduser() if asked else None
    try:
        usual = Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    root = os.environ.get("XDG_CACHE_HOME") or usual
    return Path(root) / "posterity" / f"{platform.machine()}-{_instructions()}"


def _instructions() -> str:
    """Return a digest that identifies the type of processor."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        known = sorted({line for line in lines if line.startswith(("flags", "Features"))})
        return hashlib.sha256("".join(known).encode()).hexdigest()[:12]
    return "any"
