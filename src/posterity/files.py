"""Files that are written whole or not at all, and what killed writers leave behind."""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from posterity.errors import ArtifactError


def write_file(path: Path, *parts: Any) -> None:
    """Write the parts, bytes or contiguous arrays of bytes, one after the other; an ArtifactError
    if that fails; ``path`` is then as it was.
    """
    with writing(path):
        write_atomically(path, lambda file: file.writelines(parts))


@contextlib.contextmanager
def alongside(path: Path, content: bytes) -> Iterator[None]:
    """Files that are written within the block are there only if this one can be written too.

    The content lies on disk before the block begins, and takes its name after it.

    Raises:
        ArtifactError: if it cannot be written; the block is then not entered.
    """
    with writing(path):
        clean_stale(path)
        temporary, file = _temporary(path)
    with file:
        try:
            with writing(path):
                if path.is_dir():
                    raise IsADirectoryError(0, "it is a folder")
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield
            with writing(path):
                os.replace(temporary, path)
                force_to_disk(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the system says of a file that is written into an ArtifactError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(
            found=f"output {os.fspath(path)!r} that cannot be written ({reason})",
            expected="a writable path in a folder that exists",
            fix="Choose another output, or mend permissions or disk space; nothing was changed.",
        ) from error


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call ``write`` on a temporary binary file, forced to disk, that then replaces ``path``; an
    OSError if that fails anywhere; ``path`` is then as it was.
    """
    clean_stale(path)
    temporary, file = _temporary(path)
    try:
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            # Before the lock goes with the file: nobody must take it for a dead writer's.
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    force_to_disk(path.parent)


def clean_stale(path: Path) -> None:
    """Remove what killed writers of ``path`` left beside it: ``.NAME.XXXXXXXX.tmp``.

    A living writer holds a lock on its temporary file, which is left alone.
    """
    ours = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.tmp")
    with contextlib.suppress(OSError):  # no such folder: whoever writes there will say so
        for name in filter(ours.fullmatch, os.listdir(path.parent)):
            _remove_if_dead(path.parent / name)


def _temporary(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside ``path``, locked for as long as it is open."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        file = temporary.open("xb")
        _lock(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            # Else another writer's clean-up came between the file and its lock.
            if os.path.samestat(os.fstat(file.fileno()), os.lstat(temporary)):
                return temporary, file
        file.close()


def _lock(handle: int) -> None:
    import fcntl  # writing is for POSIX; whoever only reads goes without

    with contextlib.suppress(OSError):  # no locks on this file system: nothing is cleaned up there
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
    """See to it that files that were made or replaced in a folder are there for good."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
