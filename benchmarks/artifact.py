"""Time and memory of saving and loading, beside the safetensors package and a digest.

Run `python -m benchmarks.artifact --help`; what is measured is in benchmarks/README.md. Each point
is measured by a process of its own: JSON in as the argument, JSON out.
"""

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import safetensors.numpy

from benchmarks import session
from benchmarks.launch import Effort, launch
from benchmarks.measure import answer, peak, timings
from experiments import provenance
from posterity import Ledger, load, save
from posterity.families import DiagonalGaussian, NormalWishart


@dataclasses.dataclass(frozen=True)
class Size:
    """Weights of a network, or sites of a ledger and the dimension of its factors."""

    family: str
    sites: int
    dimension: int


def content(size: Size, seed: int) -> DiagonalGaussian:
    """Two arrays of float64."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=size.dimension), rng.uniform(1, 2, size.dimension)
    return DiagonalGaussian(*draws)


def package(member: DiagonalGaussian, path: Path) -> dict[str, Callable[[], Any]]:
    """What the safetensors package and a digest take; it does not force files to disk."""

    def digest(arrays: dict[str, np.ndarray]) -> str:
        sha = hashlib.sha256()
        for name in sorted(arrays):
            sha.update(arrays[name])
        return sha.hexdigest()

    def save_both() -> None:
        arrays = {"precision_mean": member.precision_mean, "precision": member.precision}
        safetensors.numpy.save_file(arrays, path, {"sha256": digest(arrays)})

    return {"save": save_both, "load": lambda: digest(safetensors.numpy.load_file(path))}


def against_the_package(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Both in turns, on the same numbers."""
    member = content(size, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours"
        ours = {"save": lambda: save(member, path), "load": lambda: load(path)}
        theirs = package(member, Path(folder) / "theirs")
        turns: dict[str, list[Any]] = {"save": [], "load": []}
        for _ in range(runs):
            for verb, pairs in turns.items():
                sides = [timings(side[verb], runs=1, budget=budget) for side in (ours, theirs)]
                pairs.append(sides)
    return {"content_bytes": 16 * size.dimension, **{v: ratios(p) for v, p in turns.items()}}


def ratios(pairs: list[Any]) -> dict[str, Any]:
    """Medians over turns, and the ratio of the two."""
    found: dict[str, Any] = {"turns": len(pairs)}
    for clock in ("wall", "cpu"):
        ours, theirs = (median(pair[side][f"{clock}_s"] for pair in pairs) for side in (0, 1))
        found[f"posterity_{clock}_s"], found[f"package_{clock}_s"] = ours, theirs
        found[f"ratio_{clock}"] = ours / theirs
    return found


def memory(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """The rise of the resident set, over the bytes of the arrays."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        member = content(size, seed)
        saving = peak(lambda: save(member, path))["peak_bytes"]
        del member
        loading = peak(lambda: load(path))["peak_bytes"]
    bytes_ = 16 * size.dimension
    return {"content_bytes": bytes_, "save": saving / bytes_, "load": loading / bytes_}


def ledger(size: Size, seed: int, runs: int, budget: float) -> dict[str, Any]:
    """Building a ledger of many sites, saving, loading and adding it up."""
    rng = np.random.default_rng(seed)
    prior = one(size)
    scales = rng.uniform(0.5, 1.5, size.sites)
    factors = {f"site-{n:06d}": prior * scale for n, scale in enumerate(scales)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        held = Ledger(prior).extend(factors)
        verbs: dict[str, Callable[[], Any]] = {
            "extend": lambda: Ledger(prior).extend(factors),
            "save": lambda: save(held, path),
            "load": lambda: load(path),
            "sum": lambda: held.cavity("site-000000"),  # of all but one, which is not kept
        }
        found = {verb: timings(call, runs=runs, budget=budget) for verb, call in verbs.items()}
    together = [found[verb] for verb in ("save", "load", "sum")]
    return found | {f"together_{c}": sum(f[c] for f in together) for c in ("wall_s", "cpu_s")}


def one(size: Size) -> Any:
    d = size.dimension
    if size.family == "DiagonalGaussian":
        return DiagonalGaussian.from_standard(np.arange(float(d)), np.ones(d))
    return NormalWishart.from_standard(
        mean=np.arange(float(d)), mean_precision=1.0, scale=np.eye(d), degrees_of_freedom=d + 2.0
    )


OUTPUT = Path(__file__).parent / "results" / "artifact.json"
WEIGHTS, SITES = 6_500_000, 100_000
SLOWER, SECONDS = 2.0, 3.0
MEMORY = {"save": 0.15, "load": 1.15}


def run(effort: Effort, weights: int = WEIGHTS, sites: int = SITES) -> dict[str, Any]:
    """Every point, and the goals."""
    settings = {"source_sha256": session.source(), "load_per_core_at_start": session.load()}
    network = Size("DiagonalGaussian", 1, weights)
    found = {kind: point(kind, network, effort) for kind in ("package", "memory")}
    ledgers = [
        point("ledger", Size(family, sites, d), effort)
        for family, d in (("DiagonalGaussian", 10), ("NormalWishart", 3))
    ]
    settings["load_per_core_at_end"] = session.load()
    return {"settings": settings, **found, "ledgers": ledgers, "goals": goals(found, ledgers)}


def point(kind: str, size: Size, effort: Effort) -> dict[str, Any]:
    return launch(kind, size, effort, module="benchmarks.artifact")


def goals(found: dict[str, Any], ledgers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    rows = []
    for verb in ("save", "load"):
        for clock in ("wall", "cpu"):
            ratio = found["package"][verb][f"ratio_{clock}"]
            rows.append((f"{verb}: {clock} time over the package's, SHA-256", ratio, SLOWER))
        rows.append(
            (f"{verb}: memory over that of the arrays", found["memory"][verb], MEMORY[verb])
        )
    for one in ledgers:
        name = f"{one['sites']} sites of {one['family']} saved, loaded and added up, seconds of"
        for clock in ("wall", "cpu"):
            rows.append((f"{name} {clock} time", one[f"together_{clock}_s"], SECONDS))
    return session.at_most(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = session.command_line(__doc__, OUTPUT, "a tenth of the sizes", limit=120)
    chosen = parser.parse_args(arguments)
    effort = Effort(runs=3 if chosen.quick else 15, budget=60.0, limit=chosen.limit)
    sizes = (WEIGHTS // 10, SITES // 10) if chosen.quick else (WEIGHTS, SITES)
    result = run(effort, *sizes)
    session.write(chosen.output, result | {provenance.KEY: provenance.made_with()})
    session.tell(result["goals"])


if __name__ == "__main__" and not answer(
    Size, {"package": against_the_package, "memory": memory, "ledger": ledger}
):
    main()
