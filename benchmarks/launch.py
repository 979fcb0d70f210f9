"""Starts one process a point, with its threads held, and records what became of it."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SINGLE = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

WAITING = 12
"""Wall seconds allowed for each CPU second: the limit is on work, not on a busy machine."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """Runs a point, the seconds they may take together, the CPU seconds a process may take."""

    runs: int
    budget: float
    limit: int
    threads: int = 1

    @property
    def environment(self) -> dict[str, str]:
        """What is set for every process beside what it inherits."""
        return {**dict.fromkeys(SINGLE, str(self.threads)), "XLA_FLAGS": ""}  # as users have it


def launch(
    kind: str, shape: Any, effort: Effort, seed: int = 0, module: str = "benchmarks.point"
) -> dict[str, Any]:
    """The measurements of one point, with its status; a point is never left out.

    `shape` is a dataclass that the module, which makes the measurement, knows.
    """
    task = {"kind": kind, "shape": dataclasses.asdict(shape), "seed": seed}
    task |= {"runs": effort.runs, "budget": effort.budget, "limit": effort.limit}
    record = {**dataclasses.asdict(shape), "seed": seed}
    command = [sys.executable, "-m", module, json.dumps(task)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | effort.environment,
            capture_output=True,
            text=True,
            timeout=WAITING * effort.limit,
        )
    except subprocess.TimeoutExpired:
        return {**record, "status": "did not finish", "limit_s": effort.limit}
    if done.returncode == -signal.SIGXCPU:
        return {**record, "status": "did not finish", "limit_s": effort.limit}
    if done.returncode:
        return {**record, "status": "failed", "error": done.stderr.strip().splitlines()[-1:]}
    return {**record, "status": "finished", **json.loads(done.stdout.splitlines()[-1])}
