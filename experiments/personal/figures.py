"""One figure: what partial pooling gains, and how it agrees with NUTS."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.personal.methods import LOCAL, PARTIAL, POOLED
from experiments.personal.studies import SPREADS

COLORS = {POOLED: "#222222", LOCAL: "#999999", PARTIAL: "#c1121f"}
PARTS = {"population": "#1d70b8", "log spread": "#e08e0b", "sites": "#2a9d4b"}


def draw(summary: Mapping[str, Any], points: Sequence[Any], folder: Path) -> None:
    """Write `personal.png`; ``points`` are means of parameters by NUTS and by partial pooling."""
    with harness.figure(folder / "personal.png", 1, 3, figsize=(13, 4)) as axes:
        _by_spread(axes[0, 0], summary["results"])
        _real(axes[0, 1], summary["results"])
        _agreement(axes[0, 2], points)


def _by_spread(axis: Any, results: Mapping[str, Any]) -> None:
    studies = [results[f"made, spread {spread:g}"] for spread in SPREADS]
    places, score = range(len(SPREADS)), lambda own, name: own["log likelihood"][name]["mean"]
    better = [score(own, own["better of pooled and local"]) for own in studies]
    for method, color in COLORS.items():
        gains = np.subtract([score(own, method) for own in studies], better)
        axis.plot(places, gains, "o-", color=color, label=method)
    gains = [own["partial pooling less the better"] for own in studies]
    mean, error = ([gain[kind] or 0.0 for gain in gains] for kind in ("mean", "standard error"))
    axis.errorbar(places, mean, error, color=COLORS[PARTIAL], capsize=3)
    axis.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    axis.set_xticks(places, [f"{s:g}" for s in SPREADS])
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


def _agreement(axis: Any, points: Sequence[Any]) -> None:
    for part, color in PARTS.items():
        ours, theirs = (np.concatenate([p[part][who] for p in points]) for who in ("ours", "NUTS"))
        axis.plot(theirs, ours, ".", color=color, label=f"mean, {part}", markersize=4)
    ends = np.array(axis.get_xlim())
    axis.plot(ends, ends, color="#bbbbbb", linewidth=0.8, zorder=0)
    axis.set(xlabel="NUTS", ylabel="federated")
    axis.set_title("posterior means of the hierarchical model")
    axis.legend(frameon=False)
