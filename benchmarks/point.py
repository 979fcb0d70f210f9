"""One point of a benchmark, in a process of its own: JSON in as the argument, JSON out."""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.measure import answer, peak, timings
from benchmarks.problems import Shape, draw
from posterity import Plate, fuse, load, save
from posterity.arrays.tree import leaves
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
    """Wall and CPU seconds and peak bytes of one process, which may keep compiled modules, as an
    installed package has them.
    """
    keeps = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=ROOT,
        env=keeps,
        capture_output=True,
        text=True,
    )
    if done.returncode != ConvergenceError.exit_code:  # of a matching that hangs on little
        done.check_returncode()
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return {"wall_s": wall, "cpu_s": cpu, "peak_bytes": int(done.stderr.split()[-1])}


LONG = 20.0  # a first call of more CPU seconds than this is the only one
SHORT = 0.5
"""Seconds that short calls are repeated for: a median of a few of some milliseconds scatters."""


def growth_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Time and peak memory of `fuse`, after a warm-up on a tiny problem of the same family."""
    warm_up(shape)
    sites = draw(shape, seed)
    found: list[int] = []
    call = lambda: found.append(fuse(sites).components)
    first = peak(call)
    seconds = timings(call, runs=runs, budget=budget) if first["cpu_s"] < LONG else {}
    sizes = {"input_bytes": input_bytes(sites), "globals": shape.globals_, "found": found[0]}
    return {**first, **seconds, **sizes}


def klfusion_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Beside KL-fusion, with as many components as there are."""
    return beside(peers.klfusion, shape, shape.globals_, seed, runs=runs, budget=budget)


def klfusion_40_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Beside KL-fusion when the number is not known: it may use forty."""
    return beside(peers.klfusion, shape, 40, seed, runs=runs, budget=budget)


def spahm_point(shape: Shape, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Beside SPAHM, which matches means only."""
    return beside(peers.match_means, shape, seed, runs=runs, budget=budget)


def beside(
    peer: Callable[..., tuple[str, peers.Call]], shape: Shape, *arguments: int, **effort: Any
) -> dict[str, Any]:
    """`fuse` and a peer on the same inputs in one process, each after a warm-up."""
    warm_up(shape)
    sites = draw(shape, arguments[-1])
    peer(draw(dataclasses.replace(shape, sites=2, components=2), 0), *arguments)[1]()
    code, call = peer(sites, *arguments)
    found: list[int] = []
    fuse(sites)
    ours = timings(lambda: found.append(fuse(sites).components), least=SHORT, **effort)
    theirs = timings(lambda: found.append(call()), least=SHORT, **effort)
    return {
        "posterity": {**ours, "found": found[0]},
        "peer": {**theirs, "found": found[-1], "code": code},
        "globals": shape.globals_,
    }


def warm_up(shape: Shape) -> None:
    """Two calls on three sites of three components: imports, caches, the allocator."""
    for seed in range(2):
        fuse(draw(dataclasses.replace(shape, sites=3, components=3), seed))


def input_bytes(sites: list[Plate]) -> int:
    """Bytes of all natural parameters, as passed."""
    return sum(np.asarray(leaf).nbytes for leaf in leaves(sites))


KINDS = {
    "command": command_point,
    "growth": growth_point,
    "klfusion": klfusion_point,
    "klfusion-40": klfusion_40_point,
    "spahm": spahm_point,
}


if __name__ == "__main__":
    answer(Shape, KINDS)
