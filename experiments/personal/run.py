"""Partial pooling beside pooled and local fits, and beside NUTS: `python -m experiments.personal`.

Writes `expected.json` and a figure into `results` beside this file. What each seed found is kept
under the cache folder: a stopped run goes on where it was.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.personal import methods, reference, studies
from experiments.personal.figures import draw
from experiments.personal.summary import GOAL, summarise

RESULTS = Path(__file__).parent / "results"
CACHE = harness.CACHES / "personal"
SEEDS = {"alike": 24, "made": 6, "far apart": 3, "clustered": 3, "hospitals": 1, "writers": 1}

FAR = 2.0
"""A spread from which on local fits need many more looks, and time."""
STUDIES: dict[str, tuple[str, Callable[[int], studies.Study]]] = {
    **{
        f"made, spread {spread:g}": (
            "far apart" if spread >= FAR else "made" if spread else "alike",
            functools.partial(studies.made, spread),
        )
        for spread in studies.SPREADS
    },
    "clustered": ("clustered", studies.clustered),
    "hospitals": ("hospitals", studies.hospitals),
    "writers": ("writers", studies.writers),
}
SAMPLED = {"made, spread 0": 6, "made, spread 0.6": 6, "clustered": 3, "hospitals": 1}
"""Seeds of the studies of which NUTS samples the posterior too."""


def run(*, most: int = 99, cache: Path = CACHE, results: Path = RESULTS) -> dict[str, Any]:
    """At most so many seeds of each study; the summary is written and returned."""
    found = {
        name: [compared(name, seed, cache) for seed in range(min(most, SEEDS[kind]))]
        for name, (kind, _) in STUDIES.items()
    }
    sampled = {
        name: [sampled_too(name, seed, cache) for seed in range(min(most, count))]
        for name, count in SAMPLED.items()
    }
    points = [seed.pop("points") for seeds in sampled.values() for seed in seeds]
    summary = {
        "goal": GOAL,
        "results": summarise(found),
        "NUTS": {name: harness.over_seeds(seeds) for name, seeds in sampled.items()},
        "states": {
            name: dict(collections.Counter(seed["run"]["state"] for seed in seeds))
            for name, seeds in found.items()
        },
        "settings": _settings(),
    }
    harness.write(results, "expected", summary)
    draw(summary, points, results)
    return summary


def compared(name: str, seed: int, cache: Path = CACHE) -> Any:
    """Pooled, local and partially pooled fits of one seed."""
    find = lambda: methods.compare(*_fitted(name, seed))
    return harness.kept(cache, f"{name}-{seed}", find)


def sampled_too(name: str, seed: int, cache: Path = CACHE) -> Any:
    """The partially pooled fit of one seed beside NUTS."""
    find = lambda: reference.compare_with_nuts(*_fitted(name, seed), seed=seed)
    return harness.kept(cache, f"NUTS-{name}-{seed}", find)


@functools.cache
def _fitted(name: str, seed: int) -> Any:
    study = STUDIES[name][1](seed)
    return study, methods.partially_pooled(study)


def _settings() -> dict[str, Any]:
    return {
        "seeds": SEEDS,
        "prior": "N(0, 1) of each coefficient; spreads as by default",
        "federation": "site after site, by default",
        "made": {
            "sites": studies.MADE_SITES,
            "records": {"training": studies.MADE_TRAIN, "held out": studies.MADE_TEST},
        },
        "NUTS": {"warm-up": reference.WARMUP, "draws": reference.DRAWS},
        "versions": harness.versions("numpyro", "scikit-learn"),
    }


def main() -> None:
    """Parse the command line and run."""
    parser = harness.command_line(__doc__, RESULTS, CACHE)
    parser.add_argument("--seeds", type=int, default=99, help="at most so many of each study")
    arguments = parser.parse_args()
    summary = run(most=arguments.seeds, cache=arguments.cache, results=arguments.results)
    for name, study in summary["results"].items():
        print(name, study["partial pooling less the better"])
    for name, study in summary["NUTS"].items():
        print(name, study["ours less NUTS"], study["log spread"])


if __name__ == "__main__":
    main()
