"""Time and memory of saving and loading, beside the safetensors package and a digest.

Run `python -m benchmarks.artifact --help`; what is measured is in benchmarks/README.md.
"""

from pathlib import Path
from typing import Any

from benchmarks import session
from benchmarks.artifact_point import Size
from benchmarks.launch import Effort, launch
from benchmarks.session import load, source, write

OUTPUT = Path(__file__).parent / "results" / "artifact.json"
WEIGHTS, SITES = 6_500_000, 100_000
SLOWER, SECONDS = 2.0, 3.0
MEMORY = {"save": 0.15, "load": 1.15}


def run(effort: Effort, weights: int = WEIGHTS, sites: int = SITES) -> dict[str, Any]:
    """Every point, and the goals."""
    settings = {"source_sha256": source(), "load_per_core_at_start": load()}
    network = Size("DiagonalGaussian", 1, weights)
    found = {kind: point(kind, network, effort) for kind in ("package", "memory")}
    ledgers = [
        point("ledger", Size(family, sites, d), effort)
        for family, d in (("DiagonalGaussian", 10), ("NormalWishart", 3))
    ]
    settings["load_per_core_at_end"] = load()
    return {"settings": settings, **found, "ledgers": ledgers, "goals": goals(found, ledgers)}


def point(kind: str, size: Size, effort: Effort) -> dict[str, Any]:
    return launch(kind, size, effort, module="benchmarks.artifact_point")


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
    write(chosen.output, result)
    session.tell(result["goals"])


if __name__ == "__main__":
    main()
