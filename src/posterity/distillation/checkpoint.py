"""A distillation as a file, so that it survives whatever happens to its process.

The file is replaced as a whole, and holds all that the next step needs; the numbers of the steps
give the random numbers. So whenever the process is killed, the same call goes on from the last
chunk that was saved, to the result that it would have had.
"""

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.artifact import open_artifact, save
from posterity.errors import ArtifactError
from posterity.files import clean_stale
from posterity.fingerprint import digests

KEY = "distillation"
SECONDS = 20.0
"""Between two savings, at least: a network of half a million weights is some megabytes."""


@dataclasses.dataclass
class Kept:
    """The file of one run; without a path nothing is kept."""

    path: Path | None
    fingerprint: dict[str, str]
    shape: Any
    """Gives the tree of shapes of a state, for one that is read."""
    saved: float = -float("inf")
    step: int = -1
    lock: Any = dataclasses.field(default_factory=threading.Lock)

    def loaded(self) -> tuple[Any, tuple[Any, ...]]:
        """The state and the trace that were saved; None and nothing if none were.

        Raises:
            ArtifactError: if the file is no checkpoint, or one of another run.
        """
        from posterity.distillation.distill import Progress

        if self.path is None or not self.path.exists():
            return None, ()
        found, about = open_artifact(self.path)
        try:
            position = json.loads(about.provenance[KEY])
            differ = [
                part for part in {**position["fingerprint"], **self.fingerprint}
                if position["fingerprint"].get(part) != self.fingerprint.get(part)
            ]  # fmt: skip
            if not differ:
                state = self._state(found["leaves"])
                self.step = int(state.step)
                return state, tuple(Progress(int(a), b, c) for a, b, c in found["trace"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                found=f"file {str(self.path)!r}, which is no checkpoint of a distillation",
                expected="a file that a distillation saved",
                fix="Name another file; this one was not touched.",
            ) from error
        raise ArtifactError(
            found=f"a checkpoint of another distillation in {str(self.path)!r}: other "
            + ", ".join(differ),
            expected="one with the same teacher, data, student, inputs, settings and key",
            fix="Restore what was changed, or remove the checkpoint to begin anew.",
        )

    def _state(self, leaves: list[Any]) -> Any:
        kinds, tree = jax.tree.flatten(self.shape())
        if [leaf.shape for leaf in kinds] != [np.shape(leaf) for leaf in leaves]:
            raise ValueError("arrays of other shapes")
        return jax.tree.unflatten(
            tree, [jnp.asarray(leaf, kind.dtype) for leaf, kind in zip(leaves, kinds, strict=True)]
        )

    def save_now_and_then(self, state: Any, trace: tuple[Any, ...]) -> None:
        """Save if the last time is a while ago."""
        if self.path is not None and time.monotonic() - self.saved > SECONDS:
            self.save(state, trace)

    def save(self, state: Any, trace: tuple[Any, ...]) -> None:
        """Replace the file.

        Raises:
            ArtifactError: if it cannot be written; what was there before stays.
        """
        with self.lock:  # who ends a run in a hurry saves from a thread of its own
            if self.path is None or int(state.step) == self.step:
                return
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
            position = json.dumps({"fingerprint": self.fingerprint, "step": int(state.step)})
            rows = [[float(n) for n in row] for row in trace]
            save({"leaves": leaves, "trace": rows}, self.path, provenance={KEY: position})
            self.saved, self.step = time.monotonic(), int(state.step)


@contextlib.contextmanager
def keep(run: Any, path: str | os.PathLike[str] | None) -> Iterator[Kept]:
    """The checkpoint of a run at a path.

    Raises:
        UsageError: if a function that the run was set up from cannot be told from a changed one.
    """
    if path is None:
        yield Kept(None, {}, lambda: None)
        return
    path = Path(path)
    clean_stale(path)
    shape = lambda: jax.eval_shape(run.begun, run.constants.teacher.blank())
    yield Kept(path, _fingerprint(run), shape)


def _fingerprint(run: Any) -> dict[str, str]:
    plan, constants = run.plan, run.constants
    parts = {
        "teacher": constants.teacher,
        "inputs": constants.inputs,
        "probe": constants.probe,
        "student": (run.network, run.parameters),
        "units": run.scaling,
        "optimiser": plan.optimiser,
        "settings": (plan.head, plan.batch, plan.reservoir, plan.steps),
        "key": (run.key, constants.key),
    }
    return digests({name: _plain(part) for name, part in parts.items()})


def _plain(part: Any) -> Any:
    """With typed keys as their words."""
    is_key = lambda leaf: hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, part)
