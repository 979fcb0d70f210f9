"""Checkpoints of runs, from which an interrupted run can continue."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.artifact.checkpoint import Checkpoint, opened
from posterity.errors import UsageError
from posterity.federation.keys import step_key
from posterity.federation.run import Run
from posterity.federation.schedules import Pending
from posterity.federation.state import Visit
from posterity.ledger import Ledger
from posterity.runtime.files import AnyPath
from posterity.runtime.interrupts import deferred
from posterity.runtime.sharing import SharedMap
from posterity.status import ProgressCallback

VERB = "federate"
DATA = "data of site {!r}"


def kept(
    run: Run,
    path: AnyPath,
    steps: int,
    converged: bool,
    progress: ProgressCallback | None = None,
) -> Run:
    """Resume the run saved at ``path``, if any, continue it to its goal, and save it periodically.

    ``run`` is a run with the same arguments before its first step. The data of forgotten sites may
    be missing, but not their names. Ctrl-C or SIGTERM ends the run after the current step is saved;
    a second Ctrl-C ends it at once. Raises ArtifactError if the file is not a checkpoint of this
    run, is in use by another process, or cannot be written. Raises UsageError if the saved run is
    beyond the last step; KeyboardInterrupt or Terminated if interrupted. Functions that may have
    changed since are a CheckpointWarning (see :func:`posterity.versioned`).
    """
    with opened(path, VERB, arguments_of(run)) as checkpoint:
        latest = saved = load(run, checkpoint)
        if latest.state.step > steps:
            raise UsageError(
                found=f"steps = {steps}, and a checkpoint with {latest.state.step} "
                f"{run.schedule.unit}",
                expected="as many as the checkpoint has made, or more",
                fix="Raise steps, or remove the checkpoint to begin anew.",
            )

        def rescue() -> None:
            nonlocal saved
            if latest is not saved:  # no file is written if the first step fails
                save(latest, checkpoint)
                saved = latest

        with deferred() as interrupts, interrupts.rescued_by(rescue):
            while not latest.is_at_goal(steps, converged):
                interrupts.check()
                try:
                    latest = latest.towards(steps, converged, progress)
                except BaseException as error:
                    left = getattr(error, "run", latest)
                    if left.state.pending is not None:  # some visits of a pass are complete
                        latest = left
                    raise
                if checkpoint.due:
                    rescue()
        interrupts.check()
        return latest


def arguments_of(run: Run) -> dict[str, Any]:
    """Return the arguments of a run, by name."""
    agreement = run.agreement
    federation = run.federation
    schedule = {
        field.name: getattr(run.schedule, field.name)
        for field in dataclasses.fields(run.schedule)
        if field.name != "graph"  # the network has the same content
    }
    return {
        "names of the sites": list(agreement.sites),
        "model": agreement.model,
        "likelihood": agreement.model.operations,
        "prior": run.state.prior,
        "schedule": (type(run.schedule), schedule),
        "local rule (update)": agreement.update,
        "key": run.key,
        **({"ledger": dict(federation.before)} if federation.before else {}),
        **{DATA.format(name): records for name, records in federation.data.items()},
    }


def save(run: Run, checkpoint: Checkpoint) -> None:
    """Save the run without the sites' data. Raises ArtifactError if the file cannot be written; the
    previous content then remains.
    """
    state = run.state
    position = {
        "step": state.step,
        "epoch": state.epoch,
        "counts": dict(state.counts),
        "leaving": state.leaving,
        "had": 0 if state.pending is None else state.pending.had,
    }
    held = Ledger(state.prior).holding
    own = {name: _plain(part) for name, part in (state.schedule or {}).items()}
    value = {
        "ledger": run.ledger,
        "schedule": own,
        "known": {
            kind: {n: held(own) for n, own in maps.items()} for kind, maps in state.known.items()
        },
        "trace": of_visits(run.trace),
    }
    checkpoint.save(value, position, without=_gone(value))


def load(run: Run, checkpoint: Checkpoint) -> Run:
    """Return the last saved run, from a run with the same arguments; that run itself if none was
    saved. Raises ArtifactError if the file is not a checkpoint of this federation.
    """
    saved = checkpoint.load(_gone)
    if saved is None:
        return run
    value, position = saved
    try:
        had = position.pop("had")
        epoch, by = position.pop("epoch")
        leaving = tuple(position.pop("leaving"))
        known = {
            kind: {name: dict(ledger.entries) for name, ledger in maps.items()}
            for kind, maps in value["known"].items()
        }
        about = {"epoch": (epoch, by), "leaving": leaving, "known": known, **position}
        begun = run.with_ledger(value["ledger"]).state
        state = dataclasses.replace(begun, schedule=value["schedule"] or None, **about)
        if had:
            turns = run.schedule.turns(run.agreement, state)
            pending = Pending(step_key(run.key, state.step), turns, had)
            state = dataclasses.replace(state, pending=pending)
        return dataclasses.replace(run, state=state, trace=visits_of(value["trace"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise checkpoint.foreign() from error


def of_visits(trace: Sequence[Visit]) -> np.ndarray:
    """Return visits as the bytes of JSON."""
    rows = [list(vars(visit).values()) for visit in trace]
    return np.frombuffer(json.dumps(rows).encode(), np.uint8)


def visits_of(content: np.ndarray) -> tuple[Visit, ...]:
    """Return the visits from these bytes; raise ValueError or TypeError if they are others."""
    return tuple(Visit(*row) for row in json.loads(content.tobytes()))


def _plain(part: Any) -> Any:
    """Return a part of a schedule's own state as files hold it."""
    return dict(part) if isinstance(part, SharedMap) else part


def _gone(value: dict[str, Any]) -> set[str]:
    """Return the names of arguments of forgotten sites, whose data may be missing."""
    return {DATA.format(site) for site in value["ledger"].forgotten}
