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


def draw(summary: Mapping[str, Any], folder: Path) -> None:
    """Write `likelihood.png`, `forgetting.png` and `membership.png` of the parts there are."""
    results = summary["results"]
    for name, panel, part_of, rows, options in (
        ("likelihood", _likelihood, "scores", 1, {"sharey": True}),
        ("forgetting", _distance, "forgetting", 1, {}),
        ("membership", _membership, "forgetting", len(ATTACKS), {"sharey": True}),
    ):
        parts = [part for part in results if part_of in results[part]]
        size = (4.4 * len(parts), 3.2 * rows + 0.8)
        path = folder / f"{name}.png"
        with harness.figure(path, rows, len(parts), legend=5, figsize=size, **options) as axes:
            for column, part in zip(axes.T, parts, strict=True):
                panel(column, part, results[part][part_of])
                for axis in column:
                    axis.grid(alpha=0.25)
            if name != "forgetting":
                kind = "test log likelihood, nats a patient"
                for axis in axes[:, 0]:
                    axis.set_ylabel(kind if name == "likelihood" else "AUC; 1/2 is chance")


def _likelihood(column: Any, part: str, scores: Mapping[str, Any]) -> None:
    groups = (EVERYONE, *SITES)
    for i, (method, (label, color, marker)) in enumerate(METHODS.items()):
        values = [scores[method][g]["log likelihood"] for g in groups]
        x = np.arange(len(groups)) + (i - 1.5) * 0.17
        _points(column[0], x, values, label=label, color=color, marker=marker)
    column[0].set_xticks(range(len(groups)), [EVERYONE, *NAMES.values()], fontsize=8)
    column[0].set(title=TITLES[part])


def _distance(column: Any, part: str, forgetting: Mapping[str, Any]) -> None:
    """Against sweeps, from before subtraction on; dotted: two retrainings."""
    axis, again = column[0], False
    sweeps, path = MORE_SWEEPS, ("predictive KL to retrained", "forgotten hospital")
    what, unit = "predictions", "nats a patient"
    if part == "logistic":
        sweeps, path, what, unit = SWEEPS, ("KL to retrained",), "posterior", "nats"
    stages = (BEFORE, *(stage_after(n) for n in sweeps))
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
    axis.set(title=f"{TITLES[part]}: {what}", ylabel=f"KL to retrained, {unit}")


def _membership(column: Any, part: str, forgetting: Mapping[str, Any]) -> None:
    refined = stage_after(max(SWEEPS if part == "logistic" else MORE_SWEEPS))
    stages = (BEFORE, stage_after(0), refined, RETRAINED)
    for axis, attack in zip(column, ATTACKS, strict=True):
        for i, site in enumerate(SITES):
            x = np.arange(len(stages)) + (i - 1.5) * 0.12
            values = [forgetting[site]["AUC"][attack][stage] for stage in stages]
            _points(axis, x, values, label=NAMES[site], color=COLORS[site], marker="o")
        axis.axhline(0.5, color="#666666", linewidth=0.8, linestyle=":")
        axis.set_xticks(range(len(stages)), ("before", "subtracted", "refined", "retrained"))
        axis.set(title=f"{TITLES[part]}: {attack} attack")


def _points(axis: Any, x: Any, values: Sequence[Mapping[str, Any]], **style: Any) -> None:
    errors = [value["standard error"] or 0.0 for value in values]
    means = [value["mean"] for value in values]
    axis.errorbar(x, means, errors, linestyle="", markersize=5, capsize=2, **style)
