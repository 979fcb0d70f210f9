"""Partial pooling beside pooled and local fits, and beside NUTS: `python -m experiments.personal`.

Writes `expected.json` and a figure into `results` beside this file. What each seed found is kept
under the cache folder: a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import posterity
from experiments.data import REPOSITORY
from experiments.personal import methods, reference, studies
from experiments.personal.figures import draw
from experiments.personal.summary import GOAL, summarise

RESULTS = Path(__file__).parent / "results"
CACHE = REPOSITORY / ".cache" / "personal"
SEEDS = {"made": 6, "hospitals": 2, "writers": 3}

STUDIES: dict[str, tuple[str, Callable[[int], studies.Study]]] = {
    **{
        f"made, spread {spread:g}": ("made", functools.partial(studies.made, spread))
        for spread in studies.SPREADS
    },
    "hospitals": ("hospitals", studies.hospitals),
    "writers": ("writers", studies.writers),
}
SAMPLED = ("made, spread 0.6", "hospitals", "writers")


def run(*, most: int = 99, cache: Path = CACHE, results: Path = RESULTS) -> dict[str, Any]:
    """At most so many seeds of each study; the summary is written and returned."""
    found: dict[str, list[Any]] = {}
    for name, (kind, study) in STUDIES.items():
        seeds = range(min(most, SEEDS[kind]))
        found[name] = [
            _cached(cache / f"{name}-{s}.json", lambda s=s, study=study: methods.compare(study(s)))
            for s in seeds
        ]
    sampled = {
        name: _cached(
            cache / f"NUTS-{name}.json",
            lambda name=name: reference.compare_with_nuts(STUDIES[name][1](0), 0),
        )
        for name in SAMPLED
    }
    summary = {
        "goal": GOAL,
        "results": summarise(found),
        "NUTS": sampled,
        "runs": {name: [seed["run"] for seed in seeds] for name, seeds in found.items()},
        "settings": _settings(),
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / "expected.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(summary, results)
    return summary


def _cached(path: Path, find: Callable[[], Any]) -> Any:
    if not path.exists():
        found = find()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(found))
        os.replace(temporary, path)
        print(path.stem, found.get("log likelihood"), found.get("run"), flush=True)
    return json.loads(path.read_text())


def _settings() -> dict[str, Any]:
    return {
        "seeds": SEEDS,
        "prior": "N(0, 1) of each coefficient; spreads as by default",
        "federation": f"site after site, up to {methods.PASSES} passes or until "
        f"{methods.TOLERANCE} nats are left to change",
        "local rule": f"{methods.NODES} nodes, or four a parameter; up to {methods.LOOKS} points a "
        "visit",
        "hospitals": f"up to {methods.PASSES_WIDE} passes, {methods.LOOKS_WIDE} points a visit",
        "made": {
            "sites": studies.MADE_SITES,
            "records": {"training": studies.MADE_TRAIN, "held out": studies.MADE_TEST},
        },
        "NUTS": {"warm-up": reference.WARMUP, "draws": reference.DRAWS, "seed": 0},
        "versions": {
            "python": platform.python_version(),
            "posterity": posterity.__version__,
            **{
                name: metadata.version(name) for name in ("jax", "numpy", "numpyro", "scikit-learn")
            },
        },
    }


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=99, help="at most so many of each study")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for what seeds found")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to")
    arguments = parser.parse_args()
    summary = run(most=arguments.seeds, cache=arguments.cache, results=arguments.results)
    for name, study in summary["results"].items():
        print(name, study["partial pooling less the better"], study["at least as good"])


if __name__ == "__main__":
    main()
