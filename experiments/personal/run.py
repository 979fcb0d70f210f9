"""Partial pooling beside pooled and local fits, and beside NUTS: `python -m experiments.personal`.

Writes `expected.json` and a figure; a stopped run goes on where it was.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness, provenance
from experiments.harness import statistics
from experiments.personal import methods, studies
from experiments.personal.methods import LOCAL, PARTIAL, POOLED

PLACE = harness.Place.of(__file__, "personal")
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


def run(place: harness.Place = PLACE, *, seeds: int = 99) -> dict[str, Any]:
    """At most so many seeds of each study; the summary is written and returned."""
    found = {
        name: [compared(name, seed, place) for seed in range(min(seeds, SEEDS[kind]))]
        for name, (kind, _) in STUDIES.items()
    }
    sampled = {
        name: [sampled_too(name, seed, place) for seed in range(min(seeds, count))]
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
        "states": states,
        "settings": {
            "seeds": SEEDS,
            "prior": "N(0, 1) of each coefficient; spreads as by default",
            "federation": "site after site, by default",
            "made": {
                "sites": studies.MADE_SITES,
                "records": {"training": studies.MADE_TRAIN, "held out": studies.MADE_TEST},
            },
            "NUTS": {"warm-up": methods.WARMUP, "draws": methods.DRAWS},
            "versions": provenance.versions("numpyro", "scikit-learn"),
        },
    }
    place.write("expected", summary)
    draw(summary["results"], points, place.results)
    return summary


def compared(name: str, seed: int, place: harness.Place) -> Any:
    """Pooled, local and partially pooled fits of one seed."""
    return place.kept(f"{name}-{seed}", lambda: methods.compare(*_fitted(name, seed)))


def sampled_too(name: str, seed: int, place: harness.Place) -> Any:
    """The partially pooled fit of one seed beside NUTS."""
    find = lambda: methods.compare_with_nuts(*_fitted(name, seed), seed=seed)
    return place.kept(f"NUTS-{name}-{seed}", find)


@functools.cache
def _fitted(name: str, seed: int) -> Any:
    study = STUDIES[name][1](seed)
    return study, methods.partially_pooled(study)


def summarise(found: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """By study: log likelihoods of a held-out record, and differences paired by seed."""
    return {study: _study(seeds) for study, seeds in found.items()}


def _study(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = lambda name: np.array([seed["log likelihood"][name] for seed in seeds])
    by = {name: values(name) for name in (POOLED, LOCAL, PARTIAL)}
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


COLORS = {POOLED: "#222222", LOCAL: "#999999", PARTIAL: "#c1121f"}
PARTS = {"population": "#1d70b8", "log spread": "#e08e0b", "sites": "#2a9d4b"}


def draw(results: Mapping[str, Any], points: Sequence[Any], folder: Path) -> None:
    """Write `personal.png`; ``points`` are means of parameters by NUTS and by partial pooling."""
    with harness.figure(folder / "personal.png", 1, 3, figsize=(13, 4)) as axes:
        _by_spread(axes[0, 0], results)
        _real(axes[0, 1], results)
        axis = axes[0, 2]
        for part, color in PARTS.items():
            pairs = [np.concatenate([p[part][who] for p in points]) for who in ("NUTS", "ours")]
            axis.plot(*pairs, ".", color=color, label=f"mean, {part}", markersize=4)
        ends = np.array(axis.get_xlim())
        axis.plot(ends, ends, color="#bbbbbb", linewidth=0.8, zorder=0)
        axis.set(xlabel="NUTS", ylabel="federated")
        axis.set_title("posterior means of the hierarchical model")
        axis.legend(frameon=False)


def _by_spread(axis: Any, results: Mapping[str, Any]) -> None:
    rows = [results[f"made, spread {spread:g}"] for spread in studies.SPREADS]
    places, score = range(len(rows)), lambda own, name: own["log likelihood"][name]["mean"]
    better = [score(own, own["better of pooled and local"]) for own in rows]
    for method, color in COLORS.items():
        gains = np.subtract([score(own, method) for own in rows], better)
        axis.plot(places, gains, "o-", color=color, label=method)
    gains = [own["partial pooling less the better"] for own in rows]
    harness.errorbar(axis, places, gains, color=COLORS[PARTIAL], capsize=3)
    axis.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    axis.set_xticks(places, [f"{s:g}" for s in studies.SPREADS])
    label = "held-out log likelihood less the better\nof pooled and local, nats a record"
    axis.set(ylim=(-0.06, 0.045), ylabel=label, title="12 made-up sites of 30 records")
    axis.set_xlabel("standard deviation of coefficients between sites")
    axis.legend(frameon=False)


def _real(axis: Any, results: Mapping[str, Any]) -> None:
    names = [name for name in ("hospitals", "writers") if name in results]
    for i, (method, color) in enumerate(COLORS.items()):
        scores = [results[name]["log likelihood"][method] for name in names]
        mean, error = ([s[kind] or 0.0 for s in scores] for kind in ("mean", "standard error"))
        style = {"yerr": error, "color": color, "label": method, "capsize": 3}
        axis.bar(np.arange(len(names)) + 0.25 * (i - 1), mean, 0.22, **style)
    axis.set_xticks(range(len(names)), names)
    axis.set_ylabel("held-out log likelihood, nats a record")
    axis.set_title("4 hospitals; 35 blocks of handwritten digits")
