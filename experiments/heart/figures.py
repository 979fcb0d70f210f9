"""Three figures: log likelihood by hospital, distance after forgetting, membership inference."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.heart.forgetting import AGAIN, ATTACKS, BEFORE, MORE_SWEEPS, RETRAINED, SWEEPS
from experiments.heart.forgetting import after as stage_after
from experiments.heart.kinds import POOLED
from experiments.heart.preparation import SITES
from experiments.heart.summary import refined_name
from experiments.heart.trials import EVERYONE, LOCAL

NAMES = dict(zip(SITES, ("Cleveland", "Hungary", "Switzerland", "Long Beach"), strict=True))
COLORS = dict(zip(SITES, ("#1d70b8", "#2a9d4b", "#e08e0b", "#8a5fbf"), strict=True))
TITLES = {
    "logistic": "logistic regression",
    "network": "network",
    "overfitted network": "overfitted network",
}
METHODS = {
    LOCAL: ("each hospital alone", "#999999", "s"),
    "server, sequential": ("federated: server", "#c1121f", "o"),
    "gossip, ring": ("federated: gossip, ring", "#e8707a", "D"),
    POOLED: ("pooled", "#222222", "^"),
}

Results = Mapping[str, Any]


def draw(summary: Mapping[str, Any], folder: Path) -> None:
    """Write `likelihood.png`, `forgetting.png` and `membership.png` of the parts there are."""
    results = summary["results"]
    scored = [part for part in results if "scores" in results[part]]
    left = [part for part in results if "forgetting" in results[part]]
    for name, panels, parts, rows, options in (
        ("likelihood", _likelihood, scored, 1, {"sharey": True}),
        ("forgetting", _forgetting, left, 1, {}),
        ("membership", _membership, left, len(ATTACKS), {"sharey": True}),
    ):
        size = (4.4 * len(parts), 3.2 * rows + 0.8)
        path = folder / f"{name}.png"
        with harness.figure(path, rows, len(parts), legend=5, figsize=size, **options) as axes:
            panels(results, parts, axes)


def _likelihood(results: Results, parts: Sequence[str], axes: Any) -> None:
    groups = (EVERYONE, *SITES)
    for axis, part in zip(axes[0], parts, strict=True):
        scores = results[part]["scores"]
        for i, (method, (label, color, marker)) in enumerate(METHODS.items()):
            values = [scores[method][g]["log likelihood"] for g in groups]
            x = np.arange(len(groups)) + (i - 1.5) * 0.17
            _points(axis, x, values, label=label, color=color, marker=marker)
        names = [EVERYONE, *(NAMES[s] for s in SITES)]
        axis.set_xticks(range(len(groups)), names, fontsize=8)
        axis.set(title=TITLES[part])
        axis.grid(alpha=0.25)
    axes[0, 0].set_ylabel("test log likelihood, nats a patient")


def _forgetting(results: Results, parts: Sequence[str], axes: Any) -> None:
    for axis, part in zip(axes[0], parts, strict=True):
        forgetting = results[part]["forgetting"]
        if part == "logistic":
            _distance(axis, forgetting, SWEEPS, ("KL to retrained",))
            what, unit = "posterior", "nats"
        else:
            path = ("predictive KL to retrained", "forgotten hospital")
            _distance(axis, forgetting, MORE_SWEEPS, path)
            what, unit = "predictions", "nats a patient"
        axis.set(title=f"{TITLES[part]}: {what}", ylabel=f"KL to retrained, {unit}")


def _distance(
    axis: Any, forgetting: Mapping[str, Any], sweeps: Sequence[int], path: tuple[str, ...]
) -> None:
    """Against sweeps, from before subtraction on; dotted: two retrainings."""
    stages, again = (BEFORE, *(stage_after(n) for n in sweeps)), False
    for site in SITES:
        tree = functools.reduce(lambda found, name: found[name], path, forgetting[site])
        values = [max(tree[stage]["mean"], 1e-16) for stage in stages]
        axis.plot(values, color=COLORS[site], marker="o", markersize=4.5, label=NAMES[site])
        if again := AGAIN in tree:
            axis.axhline(tree[AGAIN]["mean"], color=COLORS[site], linestyle=":", linewidth=1.2)
    if again:
        axis.plot([], [], color="#666666", linestyle=":", label="two retrainings, other noise")
    names = [BEFORE, "sub-\ntracted", *(f"{n}" for n in sweeps[1:])]
    axis.set_xticks(range(len(stages)), names, fontsize=8)
    axis.set(yscale="log", xlabel="sweeps of refinement after forgetting")
    axis.grid(alpha=0.25)


def _membership(results: Results, parts: Sequence[str], axes: Any) -> None:
    for row, attack in zip(axes, ATTACKS, strict=True):
        for axis, part in zip(row, parts, strict=True):
            stages = (BEFORE, stage_after(0), refined_name(part), RETRAINED)
            for i, site in enumerate(SITES):
                auc = results[part]["forgetting"][site]["AUC"][attack]
                x = np.arange(len(stages)) + (i - 1.5) * 0.12
                values = [auc[stage] for stage in stages]
                _points(axis, x, values, label=NAMES[site], color=COLORS[site], marker="o")
            axis.axhline(0.5, color="#666666", linewidth=0.8, linestyle=":")
            names = ("before", "subtracted", "refined", "retrained")
            axis.set_xticks(range(len(stages)), names)
            axis.set(title=f"{TITLES[part]}: {attack} attack")
            axis.grid(alpha=0.25)
        row[0].set_ylabel("AUC; 1/2 is chance")


def _points(axis: Any, x: Any, values: Sequence[Mapping[str, Any]], **style: Any) -> None:
    errors = [value["standard error"] or 0.0 for value in values]
    means = [value["mean"] for value in values]
    axis.errorbar(x, means, errors, linestyle="", markersize=5, capsize=2, **style)
