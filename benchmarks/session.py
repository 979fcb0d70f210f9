"""A session of a benchmark: its command line, parts that are written when they are done, goals."""

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import posterity
from benchmarks.launch import Effort
from experiments import provenance


def source() -> str:
    """Digest of the code that is measured: a run that saw it change is no measurement."""
    folder = Path(posterity.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def load() -> float:
    """Processes waiting for each core: above one, wall time is longer than the work."""
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Replace a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


def run(
    output: Path,
    parts: Mapping[str, Callable[[], Mapping[str, Any]]],
    effort: Effort,
    goals: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None,
    **about: Any,
) -> dict[str, Any]:
    """Measure parts; each is written when it is done, and others stay as the file has them.

    ``goals`` makes the goals of a whole result; ``about`` is added to the settings of each part.
    """
    result: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    for part, measure in parts.items():
        settings: dict[str, Any] = {
            "environment": effort.environment,
            "cores": os.cpu_count(),
            provenance.KEY: provenance.made_with(),
            "source_sha256": source(),
            "load_per_core_at_start": load(),
            **about,
        }
        measured = measure()
        settings["load_per_core_at_end"] = load()
        settings["source_unchanged"] = settings["source_sha256"] == source()
        result[part] = {"settings": settings, **measured}
        if goals is not None:
            result["goals"] = goals(result)
        write(output, result)
    return result


def at_most(rows: Iterable[tuple[str, float | None, float]]) -> list[dict[str, Any]]:
    """Goals of numbers that are to be small: the goal in words, what was found, the limit."""
    return [
        {"goal": g, "found": f, "at_most": m, "met": f is not None and f <= m} for g, f, m in rows
    ]


def command_line(
    description: str | None, output: Path, quick: str, limit: int = 900, parts: Iterable[str] = ()
) -> argparse.ArgumentParser:
    """A parser with the options that benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--output", type=Path, default=output, help="JSON")
    parser.add_argument("--limit", type=int, default=limit, help="CPU seconds a point may take")
    if parts := list(parts):
        parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="parts to run")
    return parser


def tell(goals: Iterable[Mapping[str, Any]]) -> None:
    """A line for each goal: whether it was met, and what was found."""
    words = {True: "met    ", False: "not met", None: "unknown"}
    for goal in goals:
        numbers = {name: value for name, value in goal.items() if name not in ("goal", "met")}
        shown = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in numbers.items()
        )
        print(words[goal["met"]], goal["goal"], ", ".join(shown))
