"""A run as a file, so that it survives an interruption: a ledger, and where the walk stands."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from posterity.artifact import inspect, load, save
from posterity.errors import ArtifactError, LedgerError, UsageError
from posterity.federation.run import Run
from posterity.federation.visit import Visit
from posterity.ledger import Ledger

KEY = "federation"


def save_checkpoint(run: Run, path: str | os.PathLike[str]) -> None:
    """Write the run's ledger and position, whole or not at all; the data stay out of the file.

    Raises:
        UsageError: if the schedule's state is more than numbers and names (:class:`LedgerGossip`).
        ArtifactError: if the file cannot be written; what was there before stays.
    """
    check_saveable(run)
    position = {
        "fingerprint": fingerprint(run, run.ledger.forgotten),
        "step": run.state.step,
        "counts": dict(run.state.counts),
        "schedule": run.state.schedule,
        "leaving": run.state.leaving,
        "history": [dataclasses.astuple(visit) for visit in run.history],
    }
    save(run.ledger, path, provenance={KEY: json.dumps(position)})


def check_saveable(run: Run) -> None:
    """Raise a UsageError unless the schedule's state is JSON data."""
    if run.state.known:
        raise UsageError(
            found=f"schedule {type(run.schedule).__name__}, whose state holds factors",
            expected="one ledger, and beside it numbers and names",
            fix="Run it without a checkpoint, or use Gossip with one token.",
        )


def load_checkpoint(run: Run, path: str | os.PathLike[str]) -> Run:
    """The run that ``save_checkpoint`` wrote, given one that was set up in the same way.

    The data of sites that were forgotten may be gone; their names must be among the sites.

    Raises:
        ArtifactError: if the file is no checkpoint, or one of another federation: other data,
            model, prior, schedule, local rule or key.
    """
    provenance, ledger = inspect(path).provenance, load(path)
    if KEY not in provenance or not isinstance(ledger, Ledger):
        raise ArtifactError(
            found=f"file {os.fspath(path)!r}, which is no checkpoint",
            expected="a file that a federation saved",
            fix="Name another file; this one was not touched.",
        )
    position = _position(provenance[KEY])
    if position.get("fingerprint") != fingerprint(run, ledger.forgotten):
        raise ArtifactError(
            found=f"a checkpoint of another federation in {os.fspath(path)!r}",
            expected="one with the same data, model, prior, schedule, local rule and key",
            fix="Restore what was changed, or remove the checkpoint to begin anew.",
        )
    history = tuple(Visit(*visit) for visit in position["history"])
    state = dataclasses.replace(
        with_ledger(run, ledger).state,
        counts=position["counts"],
        step=position["step"],
        schedule=position["schedule"],
        leaving=tuple(position["leaving"]),
    )
    return dataclasses.replace(run, state=state, history=history)


def resumed(run: Run, path: Path) -> Run:
    """The run as its checkpoint has it, where there is one; errors as ``load_checkpoint``."""
    return load_checkpoint(run, path) if path.exists() else run


def _position(text: str) -> dict[str, Any]:
    """What a checkpoint says beside its ledger; nothing if it is not what was saved."""
    try:
        position = json.loads(text)
    except ValueError:
        return {}
    return position if isinstance(position, dict) else {}


def with_ledger(run: Run, ledger: Ledger) -> Run:
    """The run with the factors of a ledger that has its prior.

    Raises:
        LedgerError: if the prior or the sites are others.
    """
    strangers = sorted(set(ledger.entries) - set(run.federation.sites))
    if strangers or ledger.prior != run.state.prior:
        raise LedgerError(
            found=f"a ledger of sites {sorted(ledger.entries)} with "
            + ("another prior" if not strangers else f"{strangers} among them"),
            expected=f"the federation's prior, and sites among {sorted(run.federation.sites)}",
            fix="Set the federation up with the prior and the sites that made the ledger.",
        )
    state = run.state.with_entries(ledger.entries)
    return dataclasses.replace(run, state=run.schedule.learn(state, state.entries))


def fingerprint(run: Run, forgotten: Collection[str] = ()) -> str:
    """SHA-256 of all that a run is set up from, equal in every process.

    Of ``forgotten`` sites the names count and not the data, which should be gone.
    """
    sha, federation = hashlib.sha256(), run.federation
    data = {site: d for site, d in federation.sites.items() if site not in forgotten}
    rule = [federation.model, federation.update, run.schedule, run.state.prior]
    _feed(sha, [list(federation.sites), data, *rule, jax.random.key_data(run.key)])
    return sha.hexdigest()


def _feed(sha: Any, value: Any) -> None:
    """Type names, fields, and the bytes of arrays; a function counts by its name alone."""
    length = len(value) if isinstance(value, Mapping | list | tuple) else ""
    sha.update(f"\n{type(value).__qualname__} {length} ".encode())
    if isinstance(value, np.ndarray | jax.Array | np.generic):
        array = np.asarray(value)
        sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    elif isinstance(value, Mapping):
        for name in sorted(value):
            sha.update(repr(name).encode())
            _feed(sha, value[name])
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(sha, item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            # A graph is described by the network made of it.
            if field.name != "graph":
                _feed(sha, getattr(value, field.name))
    elif callable(value):
        sha.update(getattr(value, "__qualname__", "").encode())
    else:
        sha.update(repr(value).encode())
