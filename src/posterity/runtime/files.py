"""Atomic writing of files, and the removal of temporary files of killed writers.

Files to read are checked not to be pipes.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from posterity.errors import ArtifactError

AnyPath = str | os.PathLike[str]
"""The path of a file, as people pass it."""


def check_regular(path: Path) -> None:
    """Raise an ArtifactError for a pipe or a device, which might never end."""
    # A name that is too long counts as a file that does not exist.
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise ArtifactError(
            found=f"{str(path)!r}, which is a pipe or a device", expected="a regular file"
        )


def write_file(path: Path, *parts: Any, mode: int = 0o666) -> None:
    """Write the parts, bytes or contiguous arrays of bytes, one after the other, atomically. The
    file has the permissions ``mode`` less the umask from the start. Raises ArtifactError if that
    fails; ``path`` is then unchanged.
    """
    with alongside(path, *parts, mode=mode):
        pass


@contextlib.contextmanager
def alongside(path: Path, *parts: Any, mode: int = 0o666) -> Iterator[None]:
    """Write this file around a block that writes others, which runs only if this can be written.

    The parts are written to a temporary file before the block, which is renamed after the block.

    Raises:
        ArtifactError: if it cannot be written; if possible, before the block is entered.
    """
    with writing(path):
        clean_stale(path)
        temporary, file = _temporary(path, mode)
    try:
        with writing(path):
            if path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        yield
        with writing(path):  # before the file is closed and unlocked: others would remove it
            os.replace(temporary, path)
            force_to_disk(path.parent)
    finally:
        with contextlib.suppress(OSError):  # of a full disk, for the second time
            file.close()
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert the system's errors of writing a file to an ArtifactError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(
            found=f"output {os.fspath(path)!r} that cannot be written ({reason})",
            expected="a writable path in a folder that exists",
        ) from error


def clean_stale(path: Path) -> None:
    """Remove the temporary files ``.NAME.XXXXXXXX.tmp`` of killed writers of ``path``.

    The temporary file of a living writer is locked, and is not removed.
    """
    ours = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.tmp")
    with contextlib.suppress(OSError):  # no such folder: writing there raises an error later
        for name in filter(ours.fullmatch, os.listdir(path.parent)):
            _remove_if_dead(path.parent / name)


def _temporary(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Return a new file next to ``path``, locked while it is open."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        file = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
        _lock(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            # Otherwise another writer removed the file before it was locked.
            if os.path.samestat(os.fstat(file.fileno()), os.lstat(temporary)):
                return temporary, file
        file.close()


def _lock(handle: int) -> None:
    import fcntl  # only on POSIX; reading does not need it

    with contextlib.suppress(OSError):  # without locks on this file system, nothing is cleaned up
        fcntl.flock(handle, fcntl.LOCK_EX)


def _remove_if_dead(temporary: Path) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        handle = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError if the writer lives
            if os.path.samestat(os.fstat(handle), os.lstat(temporary)):
                os.unlink(temporary)
        finally:
            os.close(handle)


def force_to_disk(folder: Path) -> None:
    """Flush a folder to disk, so that files created or replaced in it persist."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def named(path: AnyPath) -> tuple[str | None, Path]:
    """Return the name and the path in ``NAME=FILE``; no name for a path that exists as it is, nor
    where a second equals sign may belong to either and no file decides.

    >>> named("north=a.safetensors")
    ('north', PosixPath('a.safetensors'))
    >>> named("year=1/month=2.safetensors")
    (None, PosixPath('year=1/month=2.safetensors'))
    """
    name, equals, file = os.fspath(path).partition("=")
    plain = not equals or not name or not file or os.sep in name or os.path.lexists(path)
    unsure = "=" in file and not os.path.lexists(file)
    return (None, Path(path)) if plain or unsure else (name, Path(file))
