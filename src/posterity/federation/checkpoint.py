"""A run as a file, so that it survives an interruption: a ledger, and where the walk stands."""

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from posterity.artifact import open_artifact, save
from posterity.errors import ArtifactError, LedgerError
from posterity.federation.fingerprint import differing, fingerprint, without_data
from posterity.federation.history import History, beside, sole_writer
from posterity.federation.members import Members
from posterity.federation.run import Run
from posterity.files import clean_stale
from posterity.ledger import Ledger

KEY = "federation"


@dataclasses.dataclass
class Checkpoint:
    """A file that a run is kept in, and beside it one that its history is appended to.

    The first is replaced as a whole, and says how far the second counts; the second is written
    first. So whenever the process is killed, the state before or the state after is there.
    """

    path: Path
    file: BinaryIO
    """That of the history, which nobody else writes."""
    parts: Mapping[str, str]
    """The fingerprint of what the run was set up from."""
    run: Run
    """As it is kept; as it was set up, if it is not yet."""
    history: History
    lock: Any = dataclasses.field(default_factory=threading.Lock)

    def save(self, run: Run) -> None:
        """Keep a later state of the run; the data stay out of the file.

        Raises:
            ArtifactError: if a file cannot be written; what was there before stays.
        """
        with self.lock:
            self.history.extend(self.file, run.history)
            found, position = _packed(run)
            position["fingerprint"] = without_data(self.parts, run.ledger.forgotten)
            position["history"] = self.history.mark
            save(found, self.path, provenance={KEY: json.dumps(position)})
            self.run = run


@contextlib.contextmanager
def keep(run: Run, path: str | os.PathLike[str]) -> Iterator[Checkpoint]:
    """The checkpoint of a run that was set up like this one, for no other process meanwhile.

    Raises:
        ArtifactError: as ``load_checkpoint``, and if the files cannot be written, or another
            process writes them.
        UsageError: as ``load_checkpoint``.
    """
    path = Path(path)
    with sole_writer(beside(path)) as file:
        clean_stale(path)
        parts = fingerprint(run)
        kept = _read(run, parts, path) if path.exists() else (run, History(beside(path)))
        yield Checkpoint(path, file, parts, *kept)


def save_checkpoint(run: Run, path: str | os.PathLike[str]) -> None:
    """Save a run once; what is there must be an earlier state of it. Errors as of ``keep``."""
    with keep(run, path) as checkpoint:
        checkpoint.save(run)


def load_checkpoint(run: Run, path: str | os.PathLike[str]) -> Run:
    """The run that was saved, given one that was set up in the same way.

    The data of sites that were forgotten may be gone; their names must be among the sites.

    Raises:
        ArtifactError: if the file is no checkpoint, has lost its history, or is one of another
            federation; the parts that differ are named.
        UsageError: if a function cannot be told from a changed one (see :func:`versioned`).
    """
    return _read(run, fingerprint(run), Path(path))[0]


# --- what is in the file -------------------------------------------------------------------------


def _packed(run: Run) -> tuple[Any, dict[str, Any]]:
    """A ledger, with members of the family beside it if the schedule needs any, and JSON data."""
    state, members = run.state, Members(run.state.entries)
    position = {
        "step": state.step,
        "counts": dict(state.counts),
        "leaving": state.leaving,
        "schedule": members.packed(state.schedule),
        "known": members.packed(state.known),
    }
    stack = members.stack(state.prior)
    return run.ledger if stack is None else {"ledger": run.ledger, "others": stack}, position


def _read(run: Run, parts: Mapping[str, str], path: Path) -> tuple[Run, History]:
    """What was saved of the run, and its history."""
    found, about = open_artifact(path)
    ledger, stack = (found["ledger"], found["others"]) if _is_pair(found) else (found, None)
    try:
        position = json.loads(about.provenance[KEY])
        differ = differing(position["fingerprint"], parts, ledger.forgotten)
        if not differ:
            history = History.read(beside(path), position["history"])
            resumed = _unpacked(run, ledger, Members(ledger.entries, stack), position)
            return dataclasses.replace(resumed, history=history.visits), history
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _foreign(path) from error
    raise ArtifactError(
        found=f"a checkpoint of another federation in {str(path)!r}: "
        f"other {', '.join(differ[:5])}{' and more' * (len(differ) > 5)}",
        expected="one with the same data, model, prior, schedule, local rule and key",
        fix="Restore what was changed, or remove the checkpoint to begin anew.",
    )


def _unpacked(run: Run, ledger: Ledger, members: Members, position: dict[str, Any]) -> Run:
    state = dataclasses.replace(
        with_ledger(run, ledger).state,
        step=position["step"],
        counts=position["counts"],
        leaving=tuple(position["leaving"]),
        schedule=members.unpacked(position["schedule"]),
        known=members.unpacked(position["known"]),
    )
    return dataclasses.replace(run, state=state)


def _is_pair(found: Any) -> bool:
    return isinstance(found, dict) and found.keys() == {"ledger", "others"}


def _foreign(path: Path) -> ArtifactError:
    return ArtifactError(
        found=f"file {str(path)!r}, which is no checkpoint of this release",
        expected="a file that a federation saved",
        fix="Name another file; this one was not touched.",
    )


def with_ledger(run: Run, ledger: Ledger) -> Run:
    """The run with the factors of a ledger that has its prior.

    Raises:
        LedgerError: if the prior or the sites are others.
    """
    strangers = sorted(set(ledger.entries) - {*run.federation.sites, *run.federation.begun})
    if strangers or ledger.prior != run.state.prior:
        raise LedgerError(
            found=f"a ledger of sites {sorted(ledger.entries)} with "
            + ("another prior" if not strangers else f"{strangers} among them"),
            expected=f"the federation's prior, and sites among {sorted(run.federation.sites)}",
            fix="Set the federation up with the prior and the sites that made the ledger.",
        )
    state = run.state.with_entries(ledger.entries)
    return dataclasses.replace(run, state=run.schedule.learn(state, state.entries))
