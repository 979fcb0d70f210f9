"""`posterity fuse` from a cold start: a new process for each run, its own peak memory."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import answer
from benchmarks.problems import Shape, draw
from posterity import load, save
from posterity.errors import ConvergenceError

CODE = """
import sys
from posterity.cli import main
try:
    main()
finally:
    from benchmarks.resident import highest
    print(highest(), file=sys.stderr)
"""
"""What the script `posterity` does, and then the process's high-water mark."""

ROOT = Path(__file__).parents[1]


def command_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Medians over the runs, after one that fills the caches of the disk."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"site-{j}.safetensors") for j in range(shape.sites)]
        for path, plate in zip(paths, draw(shape, seed), strict=True):
            save(plate, path)
        output = str(Path(folder) / "all.safetensors")
        once = lambda: _once(["fuse", *paths, "-o", output])
        once()
        done = [once() for _ in range(runs)]
        found = load(output).size
    columns = {key: median(run[key] for run in done) for key in done[0]}
    return {**columns, "runs": runs, "found": found}


def _once(arguments: list[str]) -> dict[str, float]:
    """Wall and CPU seconds and peak bytes of one process."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode != ConvergenceError.exit_code:  # of a matching that hangs on little
        done.check_returncode()
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return {"wall_s": wall, "cpu_s": cpu, "peak_bytes": int(done.stderr.split()[-1])}


KINDS = {"command": command_point}


if __name__ == "__main__":
    answer(Shape, KINDS)
