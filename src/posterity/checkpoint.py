"""A long computation as a file: it survives whatever happens to its process, and goes on.

The file is replaced as a whole, so that the state before or the state after is there whenever the
process is killed. Beside the state it holds digests of what the computation was set up from:
another computation does not go on from it.
"""

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from posterity.artifact import open_artifact, save
from posterity.errors import ArtifactError
from posterity.files import clean_stale

SECONDS = 20.0
"""The least time after which :attr:`Checkpoint.due` asks for another save."""


@dataclasses.dataclass
class Checkpoint:
    """The file of one computation; without a path nothing is kept.

    ``verb`` names what computes ("distill"); ``parts`` are digests, by name, of what it was set up
    from.
    """

    path: Path | None
    verb: str
    parts: Mapping[str, str]
    _saved: float = -float("inf")
    _lock: Any = dataclasses.field(default_factory=threading.Lock)

    def load(self, ignored: Collection[str] = ()) -> tuple[Any, dict[str, Any]] | None:
        """The value and the position that were saved last, or None if nothing was saved yet.

        ``ignored`` names parts that need not agree.

        Raises:
            ArtifactError: if the file is no checkpoint of this verb, or one of another computation;
                the parts that differ are named.
        """
        if self.path is None or not self.path.exists():
            return None
        value, opened = open_artifact(self.path)
        try:
            document = json.loads(opened.provenance[self.verb])
            saved, position = document["parts"], document["position"]
            names = [part for part in {**saved, **self.parts} if part not in ignored]
            differing = [part for part in names if saved.get(part) != self.parts.get(part)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.foreign() from error
        if differing:
            raise ArtifactError(
                found=f"a checkpoint of another computation in {str(self.path)!r}: other "
                f"{', '.join(differing[:5])}{' and more' * (len(differing) > 5)}",
                expected="one with the same data, model, settings and key",
                fix="Restore what was changed, or remove the checkpoint to begin anew.",
            )
        return value, position

    def save(self, value: Any, position: Mapping[str, Any]) -> None:
        """Replace the file by this value (anything :func:`posterity.save` takes) and JSON position.

        Raises:
            ArtifactError: if it cannot be written; what was there before stays.
        """
        if self.path is None:
            return
        with self._lock:  # an interrupted run is saved from a thread of its own
            document = json.dumps({"parts": dict(self.parts), "position": dict(position)})
            save(value, self.path, provenance={self.verb: document})
            self._saved = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether there is a file, and the last save is a while ago."""
        return self.path is not None and time.monotonic() - self._saved > SECONDS

    def foreign(self) -> ArtifactError:
        """The error for a file that holds something else."""
        return ArtifactError(
            found=f"file {str(self.path)!r}, which is no checkpoint of {self.verb!r}",
            expected=f"a file that {self.verb!r} saved",
            fix="Name another file; this one was not touched.",
        )


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str] | None, verb: str, parts: Mapping[str, str]
) -> Iterator[Checkpoint]:
    """The checkpoint at ``path``, once what killed writers left beside it is removed."""
    if path is not None:
        clean_stale(Path(path))
    yield Checkpoint(None if path is None else Path(path), verb, parts)
