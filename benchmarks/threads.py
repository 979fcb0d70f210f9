"""Small problems alone and beside a busy process: wall and CPU time, and their ratios.

Run `python -m benchmarks.threads --help`; what is measured is in benchmarks/README.md. Each problem
has a process of its own, in which threads are as many as NumPy takes: JSON in as the argument.
"""

import contextlib
import csv
import dataclasses
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression as Peer

from benchmarks import session
from benchmarks.launch import SINGLE, Effort, launch
from benchmarks.measure import answer, peak, timings
from benchmarks.problems import Shape, draw
from posterity import Gaussian, federate, fuse
from posterity.models import LogisticRegression
from posterity.tabular import fit
from posterity.tabular.estimators import FederatedLogisticRegression
from posterity.tabular.recipe import Recipe

BUSY = """
import numpy as np
matrix = np.ones((600, 600))
while True:
    matrix @ matrix
"""
"""A process that multiplies matrices, on one thread."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Records, columns of numbers, levels of a category, and sites."""

    records: int
    columns: int
    levels: int = 0
    sites: int = 1


def table(size: Size, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers (n, d), levels (n,) of which each occurs, and labels (n,)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size.records, size.columns)).round(3)
    level = rng.permutation(np.arange(size.records) % max(size.levels, 1))
    effect = 0.7 * rng.normal(size=max(size.levels, 1))
    chance = 1 / (1 + np.exp(-x[:, 0] - effect[level] * (size.levels > 0)))
    return x, level, (rng.random(size.records) < chance).astype(float)


def of_fit(size: Size, seed: int, folder: Path) -> Callable[[], Any]:
    """`posterity.tabular.fitting` of a file."""
    x, level, y = table(size, seed)
    names = [f"x{k}" for k in range(size.columns)]
    known = [f"level {k}" for k in range(size.levels)]
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["y", *names, *["level"] * bool(known)])
        writer.writerows([a, *b, *known[c : c + 1]] for a, b, c in zip(y, x, level, strict=True))
    recipe = Recipe("logistic", "y", categories={"level": tuple(known)} if known else {})
    return lambda: fit(folder / "table.csv", recipe)


def of_peer(size: Size, seed: int, folder: Path) -> Callable[[], Any]:
    """The mode by scikit-learn on the same design, under the same prior."""
    x, level, y = table(size, seed)
    design = np.column_stack([x, np.eye(max(size.levels, 1))[level][:, 1:]])
    return lambda: Peer(C=100.0, max_iter=1000).fit(design, y)


def by_site(size: Size, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, _, y = table(size, seed)
    return {f"site {k}": (x[k :: size.sites], y[k :: size.sites]) for k in range(size.sites)}


def of_federate(size: Size, seed: int, folder: Path, **options: Any) -> Callable[[], Any]:
    """`posterity.federate` of regressions."""
    sites, wide = by_site(size, seed), 100 * np.eye(size.columns)
    prior = Gaussian.from_standard(np.zeros(size.columns), wide)
    return lambda: federate(sites, LogisticRegression(), prior, **options).status


def of_pooling(size: Size, seed: int, folder: Path) -> Callable[[], Any]:
    """`posterity.federate` with coefficients that differ between sites."""
    return of_federate(size, seed, folder, personal=True)


def of_gaussians(size: Size, seed: int, folder: Path) -> Callable[[], Any]:
    """`posterity.fuse` of Gaussians."""
    rng, columns = np.random.default_rng(seed), size.columns
    prior = Gaussian.from_standard(np.zeros(columns), 100 * np.eye(columns))
    inputs = rng.normal(size=(size.sites, 2 * columns, columns))
    factors = [Gaussian(x.sum(0), x.T @ x) for x in inputs]
    sites = {f"site {k}": prior + factor for k, factor in enumerate(factors)}
    return lambda: fuse(sites, prior=prior)


def of_mixtures(size: Size, seed: int, folder: Path) -> Callable[[], Any]:
    """`posterity.fuse` of plates, whose components are matched."""
    plates = draw(Shape("NormalWishart", size.sites, size.levels, size.columns), seed)
    return lambda: fuse(plates)


def of_estimator(size: Size, seed: int, folder: Path) -> Callable[[], Any]:
    """An estimator in scikit-learn's form: fit, and predictions of all records."""
    x, _, y = table(size, seed)
    return lambda: FederatedLogisticRegression().fit(x, y).predict_proba(x)


KINDS = {
    "fit": of_fit,
    "scikit-learn": of_peer,
    "federate": of_federate,
    "partial pooling": of_pooling,
    "fuse Gaussians": of_gaussians,
    "fuse mixtures": of_mixtures,
    "estimator": of_estimator,
}
POINTS = [
    ("fit", Size(60, 200)),
    ("scikit-learn", Size(60, 200)),
    ("fit", Size(3000, 1, levels=300)),
    ("scikit-learn", Size(3000, 1, levels=300)),
    ("fit", Size(6000, 1, levels=1500)),
    ("scikit-learn", Size(6000, 1, levels=1500)),
    ("federate", Size(1000, 100, sites=5)),
    ("partial pooling", Size(400, 2, sites=8)),
    ("fuse Gaussians", Size(0, 50, sites=200)),
    ("fuse mixtures", Size(0, 5, levels=10, sites=100)),
    ("estimator", Size(200, 100)),
]
"""What is measured, with its size."""
QUICK = [("fit", Size(60, 20)), ("fuse mixtures", Size(0, 2, levels=3, sites=5))]
TWICE = 2.0
"""Largest time beside a busy process, over that alone."""


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """A process beside this one that never waits."""
    single = os.environ | dict.fromkeys(SINGLE, "1")
    other = subprocess.Popen([sys.executable, "-c", BUSY], env=single)
    try:
        yield
    finally:
        other.kill()
        other.wait()


def measured(kind: str) -> Callable[..., dict[str, Any]]:
    """A point: the call alone and beside a busy process; a short first call is left out."""

    def point(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory() as folder:
            call = KINDS[kind](size, seed, Path(folder))
            first = peak(call)
            alone = timings(call, runs=runs, budget=budget) if first["cpu_s"] < budget else first
            with busy():
                beside = timings(call, runs=runs, budget=budget)
        ratios = {f"ratio_{clock}": beside[f"{clock}_s"] / alone[f"{clock}_s"] for clock in CLOCKS}
        return {"first": first, "alone": alone, "beside": beside, **ratios}

    return point


CLOCKS = ("wall", "cpu")
OUTPUT = Path(__file__).parent / "results" / "threads.json"


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Each of ours within twice its time alone, by both clocks."""
    ours = [p for p in result["points"]["points"] if p["kind"] != "scikit-learn"]
    rows = []
    for point in ours:
        size = {name: point[name] for name in ("records", "columns", "levels", "sites")}
        shown = ", ".join(f"{value} {name}" for name, value in size.items() if value)
        for clock in CLOCKS:
            name = f"{point['kind']} of {shown}: {clock} time beside a busy process, over alone"
            rows.append((name, point.get(f"ratio_{clock}"), TWICE))
    return session.at_most(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = session.command_line(__doc__, OUTPUT, "two small points")
    chosen = parser.parse_args(arguments)
    effort = Effort(runs=3, budget=6.0, limit=chosen.limit, threads=os.cpu_count() or 1)
    each = lambda kind, size: {"kind": kind} | launch(kind, size, effort, module=MODULE)
    points = QUICK if chosen.quick else POINTS
    parts = {"points": lambda: {"points": [each(*point) for point in points]}}
    session.tell(session.run(chosen.output, parts, effort, goals)["goals"])


MODULE = "benchmarks.threads"
if __name__ == "__main__" and not answer(Size, {kind: measured(kind) for kind in KINDS}):
    main()
