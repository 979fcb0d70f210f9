"""What happened in a run, as a file that grows: one line of JSON a visit, never rewritten."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from posterity.errors import ArtifactError
from posterity.federation.visit import Visit
from posterity.files import force_to_disk, writing

HEADER = b'{"format": "history of a posterity checkpoint, version 1"}\n'


def beside(checkpoint: Path) -> Path:
    """Where the history of a checkpoint is kept: ``NAME.history``."""
    return checkpoint.with_name(f"{checkpoint.name}.history")


@dataclasses.dataclass
class History:
    """Visits that a file holds in its first ``size`` bytes; what follows them is torn.

    The mark, kept elsewhere, says how far the file counts and what it holds up to there. Lines are
    added after that place and forced to disk before a new mark is made: whenever the writer is
    killed, the old mark or the new one holds.
    """

    path: Path
    visits: tuple[Visit, ...] = ()
    size: int = 0
    sha: Any = dataclasses.field(default_factory=hashlib.sha256)

    @classmethod
    def read(cls, path: Path, mark: dict[str, Any]) -> "History":
        """What the mark speaks of; an ArtifactError if the file lost or changed any of it."""
        content = path.read_bytes()[: mark["bytes"]] if path.is_file() else b""
        sha = hashlib.sha256(content)
        if sha.hexdigest() != mark["sha256"]:
            raise ArtifactError(
                found=f"another history in {str(path)!r} than its checkpoint speaks of",
                expected="the file that grew with the checkpoint, beside it",
                fix="Put it back, or remove the checkpoint to begin anew.",
            )
        visits = tuple(Visit(**json.loads(line)) for line in content.splitlines()[1:])
        return cls(path, visits, len(content), sha)

    @property
    def mark(self) -> dict[str, Any]:
        """How far the file counts, and the digest of what it holds up to there."""
        return {"bytes": self.size, "sha256": self.sha.hexdigest()}

    def extend(self, file: BinaryIO, visits: tuple[Visit, ...]) -> None:
        """Add those of the visits that the file does not hold yet, forced to disk.

        Raises:
            ArtifactError: if they do not begin with those that it holds, or it cannot be written.
        """
        known = len(self.visits)
        # What is not a number equals itself only once it is written.
        if visits[:known] != self.visits and _lines(visits[:known]) != _lines(self.visits):
            raise ArtifactError(
                found=f"a run that does not go on from the {known} visits in {str(self.path)!r}",
                expected="the run that was saved there, later on",
                fix="Save it elsewhere.",
            )
        added = b"".join([b"" if self.size else HEADER, *_lines(visits[known:])])
        with writing(self.path):
            file.seek(self.size)
            file.truncate()
            file.write(added)
            file.flush()
            os.fsync(file.fileno())
            if not self.size:
                force_to_disk(self.path.parent)
        self.visits, self.size = visits, self.size + len(added)
        self.sha.update(added)


def _lines(visits: tuple[Visit, ...]) -> list[bytes]:
    return [json.dumps(dataclasses.asdict(visit)).encode() + b"\n" for visit in visits]


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[BinaryIO]:
    """The file, which no other process writes meanwhile; if it stays empty it goes again.

    Raises:
        ArtifactError: if another process has it, if it is no such file, or cannot be written.
    """
    with writing(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        file = open(os.open(path, flags, 0o666), "r+b")  # noqa: SIM115  # closed below
    with file:
        _lock(file, path)
        if not HEADER.startswith(file.read(len(HEADER))):
            raise ArtifactError(
                found=f"{str(path)!r}, which is no history of a checkpoint",
                expected="the name of a checkpoint, beside which a history can be kept",
                fix="Choose another checkpoint; nothing was changed.",
            )
        try:
            yield file
        finally:
            if os.fstat(file.fileno()).st_size == 0:
                path.unlink(missing_ok=True)


def _lock(file: BinaryIO, path: Path) -> None:
    import fcntl  # writing is for POSIX; whoever only reads goes without

    taken = False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        taken = True
    except OSError:
        pass  # no locks on this file system
    if taken or not _is_at(path, file):
        raise ArtifactError(
            found=f"{str(path)!r}, which another process writes",
            expected="one process a checkpoint",
            fix="Wait until it is done, or name another checkpoint.",
        )


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether no other process removed the file between its opening and its lock."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
