"""Statistics over seeds, verdicts, and how results are written."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import posterity
from experiments.data import REPOSITORY

Array = NDArray[np.float64]
RESULTS = Path(__file__).parent / "results"
CACHE = REPOSITORY / ".cache" / "dark_knowledge"


def statistics(values: Sequence[float] | Array) -> dict[str, Any]:
    """Mean, standard error of the mean (none of one value), least and largest."""
    values = np.asarray(values, np.float64)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
    return {
        "mean": rounded(values.mean()),
        "standard error": None if error is None else rounded(error),
        "least": rounded(values.min()),
        "largest": rounded(values.max()),
        "count": len(values),
    }


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Statistics of each number by name, of those names that all trees have."""
    return {
        name: over_seeds([row[name] for row in rows])
        if isinstance(value, Mapping)
        else statistics([row[name] for row in rows])
        for name, value in rows[0].items()
        if all(name in row for row in rows)
    }


def rounded(value: float, digits: int = 4) -> float:
    """To significant digits: more would claim more than is known."""
    return float(f"{float(value):.{digits}g}")


def at_most(text: str, measured: Mapping[str, Any], bound: float) -> dict[str, Any]:
    """The verdict on a mean over seeds that is to be small."""
    return {"goal": text, "measured": measured, "met": bool(measured["mean"] <= bound)}


def at_least(text: str, measured: Mapping[str, Any], bound: float) -> dict[str, Any]:
    """The verdict on a mean over seeds that is to be large."""
    return {"goal": text, "measured": measured, "met": bool(measured["mean"] >= bound)}


def versions() -> dict[str, str]:
    """What it was made with."""
    packages = ("jax", "numpy", "optax", "numpyro")
    return {
        "python": platform.python_version(),
        "posterity": posterity.__version__,
        **{name: metadata.version(name) for name in packages},
    }


def write(folder: Path, name: str, found: Mapping[str, Any]) -> None:
    """``<folder>/<name>.json``, short lists on one line."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=1, ensure_ascii=False)
    short = re.sub(
        r"\[\s+([^\[\]{}]{1,400}?)\s+\]",
        lambda m: "[" + re.sub(r"\s*\n\s*", " ", m[1]) + "]",
        text,
    )
    (folder / f"{name}.json").write_text(short + "\n")


def kept(name: str, make: Callable[[], Any] | None, *parts: Any, cache: Path = CACHE) -> Any:
    """What ``make`` gives, from the cache if it is there: a stopped run goes on where it was.

    None if it is not there and nothing is to make it.

    ``parts`` say what it depends on, by how they print. Code is not among them, so that a run of an
    hour survives a comment that is reworded: `--cache` names an empty folder to begin anew.
    """
    digest = hashlib.sha256("\n".join(map(repr, parts)).encode())
    path = cache / f"{name}-{digest.hexdigest()[:12]}.json"
    if not path.exists():
        if make is None:
            return None
        found = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(found))
        os.replace(temporary, path)
    return json.loads(path.read_text())
