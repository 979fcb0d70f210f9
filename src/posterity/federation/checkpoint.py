"""Checkpoints of runs, from which an interrupted run can continue."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.stacks import stacked, unstacked
from posterity.artifact.checkpoint import Checkpoint, opened
from posterity.entries import Entry
from posterity.errors import UsageError
from posterity.families import ExponentialFamily, at_rest
from posterity.federation.keys import step_key
from posterity.federation.run import Run
from posterity.federation.schedules import Pending
from posterity.federation.state import Map, Visit
from posterity.runtime.interrupts import deferred
from posterity.status import ProgressCallback, Status

VERB = "federate"
DATA = "data of site {!r}"


def kept(
    run: Run,
    path: str | os.PathLike[str],
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
            if latest is not saved:  # compute the status, which is saved too
                _ = latest.status
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
    members = Members(run.state.entries)
    position = {
        "step": state.step,
        "epoch": list(state.epoch),
        "counts": dict(state.counts),
        "leaving": list(state.leaving),
        "schedule": members.packed(state.schedule),
        "known": members.packed(state.known),
        "had": 0 if state.pending is None else state.pending.had,
    }
    status: Status | None = run.__dict__.get("status")
    if status is not None and status.converged:  # saves computing it again
        position["converged"] = [status.left, status.tolerance, run.tolerance]
    value: dict[str, Any] = {"ledger": run.ledger}
    if members.others:
        value["others"] = stacked(state.prior, list(map(at_rest, members.others)))
    if run.trace:
        value["trace"], position["errors"] = visit_columns(run.trace)
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
        ledger = value["ledger"]
        trace = value.get("trace")
        others = value.get("others")
        members = Members(ledger.entries, [] if others is None else unstacked(at_rest(others)))
        state = dataclasses.replace(
            run.with_ledger(ledger).state,
            step=position["step"],
            epoch=(int(position["epoch"][0]), str(position["epoch"][1])),
            counts=position["counts"],
            leaving=tuple(position["leaving"]),
            schedule=members.unpacked(position["schedule"]),
            known=members.unpacked(position["known"]),
        )
        had = position["had"]
        if had:
            turns = run.schedule.turns(run.agreement, state)
            pending = Pending(step_key(run.key, state.step), turns, had)
            state = dataclasses.replace(state, pending=pending)
        visits = () if trace is None else visits_of(trace, position["errors"])
        found = dataclasses.replace(run, state=state, trace=visits)
        left, allowed, tolerance = position.get("converged", (0.0, 0.0, None))
        if tolerance == run.tolerance:
            found.__dict__["status"] = Status.of(float(left), float(allowed))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise checkpoint.foreign() from error
    return found


def _gone(value: dict[str, Any]) -> set[str]:
    """Return the names of arguments of forgotten sites, whose data may be missing."""
    return {DATA.format(site) for site in value["ledger"].forgotten}


# --- the trace as arrays -----------------------------------------------------------------------

OUTCOMES = ("updated", "relayed", "refused", "failed", "forgotten", "restarted")
NUMBERS = ("residual", "change", "quadrature_error")


def visit_columns(trace: Sequence[Visit]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the visits as columns, and the errors by the visit's number."""
    names = sorted({visit.site for visit in trace})
    places = {name: place for place, name in enumerate(names)}
    rows = [
        (v.step, places[v.site], OUTCOMES.index(v.outcome), v.halvings, v.evaluations)
        for v in trace
    ]
    numbers = [[getattr(visit, name) for name in NUMBERS] for visit in trace]
    bits = np.array(numbers, float).view(np.int64)  # None becomes NaN, which files cannot hold
    none = np.array([[value is None for value in row] for row in numbers])
    errors = {str(n): visit.error for n, visit in enumerate(trace) if visit.error is not None}
    return {"sites": names, "visits": np.array(rows), "bits": bits, "none": none}, errors


def visits_of(columns: dict[str, Any], errors: dict[str, str]) -> tuple[Visit, ...]:
    """Return the visits from these columns."""
    sites = columns["sites"]
    numbers = columns["bits"].view(float).tolist()
    rows = zip(columns["visits"].tolist(), numbers, columns["none"].tolist(), strict=True)
    visits = []
    for number, ((step, site, outcome, halvings, looks), values, none) in enumerate(rows):
        known: Any = [None if empty else v for v, empty in zip(values, none, strict=True)]
        error = errors.get(str(number))
        told = {"error": error, "evaluations": looks}
        visits.append(Visit(step, sites[site], OUTCOMES[outcome], halvings, *known, **told))
    return tuple(visits)


# --- the state of a schedule as JSON -----------------------------------------------------------


class Members:
    """Members of a family that JSON data refer to: factors of a ledger by site, others by number.
    Each is stored once, even if several maps contain it.
    """

    def __init__(self, entries: Map, others: Sequence[ExponentialFamily] = ()):
        self.others = list(others)
        self.factors = {s: entry.factor for s, entry in entries.items() if entry.factor is not None}
        self.known: dict[int, str | int] = {id(f): site for site, f in self.factors.items()}

    def packed(self, value: Any) -> Any:
        """Return plain data as JSON data, with dictionaries tagged by kind."""
        if isinstance(value, ExponentialFamily):
            if id(value) not in self.known:
                self.known[id(value)] = len(self.others)
                self.others.append(value)
            return {"member": self.known[id(value)]}
        if isinstance(value, Entry):
            return {"entry": [self.packed(part) for part in value]}
        if isinstance(value, Mapping):
            return {"map": {name: self.packed(item) for name, item in value.items()}}
        return [self.packed(item) for item in value] if isinstance(value, list | tuple) else value

    def unpacked(self, value: Any) -> Any:
        """Return the data that were packed; raise an error of any kind if the JSON is invalid."""
        if isinstance(value, list):
            return [self.unpacked(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "map":
            return {name: self.unpacked(item) for name, item in content.items()}
        if kind == "entry":
            return Entry(*map(self.unpacked, content))
        return self.factors[content] if isinstance(content, str) else self.others[content]
