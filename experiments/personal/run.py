"""Partial pooling beside pooled and local fits, and beside NUTS: `python -m experiments.personal`.

Writes `expected.json` and a figure into `results` beside this file. What each seed found is kept
under the cache folder: a stopped run goes on where it was.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.harness import statistics
from experiments.personal import methods, studies
from experiments.personal.figures import draw
from experiments.personal.methods import LOCAL, PARTIAL, POOLED

RESULTS = Path(__file__).parent / "results"
CACHE = harness.CACHES / "personal"
SEEDS = {"alike": 24, "made": 6, "far apart": 3, "clustered": 3, "hospitals": 1, "writers": 1}
FAR = 2.0  # a spread from which on local fits need many more looks, and time
GOAL = (
    "held-out log likelihood of partial pooling: at least that of the better of pooled and local, "
    "within one standard error, at every spread; strictly better than both in between"
)
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


def run(*, seeds: int = 99, cache: Path = CACHE, results: Path = RESULTS) -> dict[str, Any]:
    """At most so many seeds of each study; the summary is written and returned."""
    found = {
        name: [compared(name, seed, cache) for seed in range(min(seeds, SEEDS[kind]))]
        for name, (kind, _) in STUDIES.items()
    }
    sampled = {
        name: [sampled_too(name, seed, cache) for seed in range(min(seeds, count))]
        for name, count in SAMPLED.items()
    }
    points = [own.pop("points") for rows in sampled.values() for own in rows]
    states = {
        name: collections.Counter(r["run"]["state"] for r in own) for name, own in found.items()
    }
    summary = {
        "goal": GOAL,
        "results": summarise(found),
        "NUTS": {name: harness.over_seeds(rows) for name, rows in sampled.items()},
        "states": {name: dict(counts) for name, counts in states.items()},
        "settings": {
            "seeds": SEEDS,
            "prior": "N(0, 1) of each coefficient; spreads as by default",
            "federation": "site after site, by default",
            "made": {
                "sites": studies.MADE_SITES,
                "records": {"training": studies.MADE_TRAIN, "held out": studies.MADE_TEST},
            },
            "NUTS": {"warm-up": methods.WARMUP, "draws": methods.DRAWS},
            "versions": harness.versions("numpyro", "scikit-learn"),
        },
    }
    harness.write(results, "expected", summary)
    draw(summary, points, results)
    return summary


def compared(name: str, seed: int, cache: Path = CACHE) -> Any:
    """Pooled, local and partially pooled fits of one seed."""
    return harness.kept(cache, f"{name}-{seed}", lambda: methods.compare(*_fitted(name, seed)))


def sampled_too(name: str, seed: int, cache: Path = CACHE) -> Any:
    """The partially pooled fit of one seed beside NUTS."""
    find = lambda: methods.compare_with_nuts(*_fitted(name, seed), seed=seed)
    return harness.kept(cache, f"NUTS-{name}-{seed}", find)


@functools.cache
def _fitted(name: str, seed: int) -> Any:
    study = STUDIES[name][1](seed)
    return study, methods.partially_pooled(study)


def summarise(found: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """By study: log likelihoods of a held-out record, and differences paired by seed."""
    return {
        study: _study([seed["log likelihood"] for seed in seeds]) for study, seeds in found.items()
    }


def _study(scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    by = {name: np.array([seed[name] for seed in scores]) for name in (POOLED, LOCAL, PARTIAL)}
    better = max((POOLED, LOCAL), key=lambda name: by[name].mean())
    gain = statistics(by[PARTIAL] - by[better])
    error = gain["standard error"] or 0.0
    spread = statistics(by[better])["standard error"] or 0.0
    good = "at least as good, within one standard error of the"
    return {
        "log likelihood": {name: statistics(values) for name, values in by.items()},
        "better of pooled and local": better,
        "partial pooling less pooled": statistics(by[PARTIAL] - by[POOLED]),
        "partial pooling less local": statistics(by[PARTIAL] - by[LOCAL]),
        "partial pooling less the better": gain,
        f"{good} log likelihood": bool(gain["mean"] >= -spread),
        f"{good} difference": bool(gain["mean"] >= -error),
        "better, by more than one standard error of the difference": bool(gain["mean"] > error),
    }
