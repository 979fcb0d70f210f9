"""Checkpoint files of long computations, from which they resume after their process has ended.

A file is replaced as a whole: if the process is killed, it has the state before or the state after.
It also has digests of the computation's arguments, so that another computation cannot resume from
it.
"""

import contextlib
import dataclasses
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from posterity.artifact import open_artifact, save
from posterity.errors import ArtifactError, CheckpointWarning
from posterity.runtime.files import AnyPath, clean_stale, writing
from posterity.runtime.fingerprint import digest, unversioned

SECONDS = float(os.environ.get("POSTERITY_CHECKPOINT_SECONDS", "20"))
"""Seconds after a save from which :attr:`Checkpoint.due` is true."""


@dataclasses.dataclass
class Checkpoint:
    """The file of one computation; without a path nothing is saved.

    ``verb`` is the name of the computation ("distill"); ``parts`` are digests of its arguments, by
    name; ``unknown`` are names of code among them that may change without a change of its digest.
    """

    path: Path | None
    verb: str
    parts: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    _saved: float = -float("inf")
    _lock: Any = dataclasses.field(default_factory=threading.Lock)

    def load(
        self, ignored: Callable[[Any], Collection[str]] = lambda value: ()
    ) -> tuple[Any, dict[str, Any]] | None:
        """Return the last saved value and position, or None if nothing was saved yet. Code that
        may have changed since is a CheckpointWarning.

        ``ignored`` returns, for the value, the names of parts that need not agree.

        Raises:
            ArtifactError: if the file is not a checkpoint of this verb, or is one of another
                computation; the error names the parts that differ.
        """
        if self.path is None or not self.path.exists():
            return None
        value, opened = open_artifact(self.path)
        try:
            document = json.loads(opened.provenance[self.verb])
            saved = document["parts"]
            position = document["position"]
            skipped = ignored(value)
            names = [part for part in {**saved, **self.parts} if part not in skipped]
            differing = [part for part in names if saved.get(part) != self.parts.get(part)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.foreign() from error
        if differing:
            raise ArtifactError(
                found=f"a checkpoint of another computation in {str(self.path)!r}: other "
                f"{', '.join(differing[:5])}{' and more' * (len(differing) > 5)}",
                expected="one of the same data, model, settings and key",
                fix="Remove that file to begin anew, or name another checkpoint.",
            )
        if self.unknown:
            warnings.warn(
                f"{', '.join(self.unknown)} may have changed since {str(self.path)!r} was saved; "
                'code that has a version is compared: posterity.versioned("1").',
                CheckpointWarning,
                stacklevel=2,
            )
        return value, position

    def save(self, value: Any, position: Mapping[str, Any], without: Collection[str] = ()) -> None:
        """Replace the file by this value (any that :func:`posterity.save` takes) and JSON position.

        The digests of the parts ``without`` are left out.

        Raises:
            ArtifactError: if it cannot be written; the previous file then remains.
        """
        if self.path is None:
            return
        with self._lock:  # an interrupted run is saved from another thread
            parts = {part: digest for part, digest in self.parts.items() if part not in without}
            document = json.dumps({"parts": parts, "position": dict(position)})
            save(value, self.path, provenance={self.verb: document})
            self._saved = time.monotonic()

    @property
    def due(self) -> bool:
        """True if there is a file, and the last save is more than ``SECONDS`` ago."""
        return self.path is not None and time.monotonic() - self._saved > SECONDS

    def foreign(self) -> ArtifactError:
        """Return the error for a file that is not a checkpoint of this verb in today's form."""
        return ArtifactError(
            found=f"file {str(self.path)!r}, which is no checkpoint of {self.verb!r}, or one of an "
            "older form",
            expected=f"a file that {self.verb!r} of this version saved",
            fix="Finish with the version that began it, or move the file away to begin anew.",
        )


def of_arguments(path: AnyPath, verb: str, arguments: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint of a computation with these arguments, which is not opened."""
    parts = {name: digest(value) for name, value in arguments.items()}
    return Checkpoint(Path(path), verb, parts, unversioned(list(arguments.values())))


@contextlib.contextmanager
def opened(path: AnyPath | None, verb: str, arguments: Mapping[str, Any]) -> Iterator[Checkpoint]:
    """Open the checkpoint of a computation with these arguments at ``path``, with a lock against
    other processes.

    Removes temporary files of killed writers. Raises ArtifactError if another process has the lock,
    or files cannot be written there.
    """
    if path is None:
        yield Checkpoint(None, verb, {})
        return
    import fcntl  # only on POSIX; reading does not need it

    checkpoint = of_arguments(path, verb, arguments)
    path = Path(path)
    beside = path.with_name(f".{path.name}.lock")  # removed when the block ends
    with writing(path):
        file = beside.open("ab")
    with file:
        free = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # other than BlockingIOError: this file system has no locks
            free = not isinstance(error, BlockingIOError)
        # Another process may have removed the file between its opening and its lock.
        same = beside.exists() and os.path.samestat(os.fstat(file.fileno()), beside.stat())
        if not (free and same):
            raise ArtifactError(
                found=f"{str(path)!r}, which another process writes", expected="one at a time"
            )
        try:
            clean_stale(path)
            yield checkpoint
        finally:
            beside.unlink(missing_ok=True)
