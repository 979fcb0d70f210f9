"""Figures 2 and 3 of KL-fusion: `python -m experiments.klfusion.gmm`.

Mixtures with known components are fitted at ten sites and fused by several methods; errors are
drawn against the separation of components and against the heterogeneity of sites. Writes
`figure2.png`, `figure3.png` and `expected.json` into `results` beside this file. Local fits and
fused means are kept under the cache folder: a stopped run goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.progress import track

from experiments import harness
from experiments.klfusion.baselines import METHODS
from experiments.klfusion.figures import draw
from experiments.klfusion.generate import Array
from experiments.klfusion.local_fits import (
    DEFAULT_CACHE,
    POINTS,
    Point,
    Repetition,
    fill_cache,
    load_point,
)
from experiments.klfusion.metrics import hausdorff, size_error
from experiments.klfusion.ours import OURS
from experiments.klfusion.summary import summarise

RESULTS = Path(__file__).parent / "results"
ORACLE = "oracle VI on pooled data"
Method = Callable[..., Array]


def errors(repetition: Repetition, method: Method | None, seed: int) -> tuple[float, int, float]:
    """Hausdorff distance of means, error in their number, and seconds; the oracle for None."""
    start = time.perf_counter()
    means = repetition.oracle.means if method is None else method(repetition.sites, seed=seed)
    seconds = time.perf_counter() - start
    return (
        hausdorff(means, repetition.true_means),
        size_error(means, repetition.true_means),
        seconds,
    )


def measure(
    cache: Path, point: Point, repetitions: int, methods: dict[str, Method | None]
) -> dict[str, Array]:
    """For each method the errors (R, 3) at one point of a figure; finished ones are read back."""
    loaded = list(load_point(cache, point, repetitions))
    found = {}
    for name, method in methods.items():
        path = cache / "fused" / f"{point.name}-{_slug(name)}-{repetitions}.npy"
        if not path.exists() or name in OURS:  # ours may have changed since, and takes no time
            rows = [errors(repetition, method, number) for number, repetition in loaded]
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".part.npy")
            np.save(temporary, np.array(rows))
            temporary.replace(path)
        found[name] = np.load(path, allow_pickle=False)
    return found


def run(
    cache: Path, results: Path, repetitions: int, points: Sequence[Point], processes: int
) -> dict:
    """Fit, fuse, measure, draw and write; returns what `expected.json` holds."""
    fill_cache(cache, points, repetitions, processes)
    methods: dict[str, Method | None] = {ORACLE: None, **METHODS, **OURS}
    measured = {
        point: measure(cache, point, repetitions, methods)
        for point in track(points, description="Fusing")
    }
    summary = summarise(measured, oracle=ORACLE, ours="posterity")
    harness.write(results, "expected", summary)
    draw(measured, results)
    return summary


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def main() -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, DEFAULT_CACHE)
    parser.add_argument("--repetitions", type=int, default=32, help="a point (default: 32)")
    parser.add_argument("--processes", type=int, default=2, help="for the local fits")
    arguments = parser.parse_args()
    summary = run(
        arguments.cache, arguments.results, arguments.repetitions, POINTS, arguments.processes
    )
    print(json.dumps(summary["average over points"], indent=1))
    print(json.dumps(summary["goal"], indent=1))


if __name__ == "__main__":
    main()
