"""Means and standard errors over seeds with the verdicts, as `expected.json` has them; figures."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.harness import over_seeds, statistics
from experiments.heart.forgetting import AGAIN, ATTACKS, BEFORE, MORE_SWEEPS, RETRAINED, SWEEPS
from experiments.heart.forgetting import after as stage_after
from experiments.heart.kinds import POOLED
from experiments.heart.preparation import SITES
from experiments.heart.trials import EVERYONE, LOCAL

MARGIN = 0.005
GOALS = {
    "federated": f"mean test log likelihood within {MARGIN} nats a patient of pooled",
    "membership": "AUC after forgetting and refinement less AUC after retraining, on the same "
    "patients: within two standard errors of zero. Power is AUC before forgetting less AUC after "
    "retraining: what there was to forget",
}


def summarise(found: Mapping[str, Mapping[int, Any]]) -> dict[str, Any]:
    """Verdicts and all numbers, from what each part found by seed."""
    seeds = {part: list(by_seed.values()) for part, by_seed in found.items()}
    federated = {n: _federated(own) for n, own in seeds.items() if n in ("logistic", "network")}
    membership = {
        part: _membership([seed["forgetting"] for seed in own])
        for part, own in seeds.items()
        if part != "NUTS"
    }
    goals = {
        "federated": {"text": GOALS["federated"], **federated},
        "membership": {"text": GOALS["membership"], **membership},
    }
    return {"goals": goals, "results": {part: over_seeds(own) for part, own in seeds.items()}}


def _federated(seeds: list[Any]) -> dict[str, Any]:
    verdicts = {}
    for method in seeds[0]["log likelihood less pooled"]:
        if method != LOCAL:
            values = np.array([s["log likelihood less pooled"][method][EVERYONE] for s in seeds])
            verdicts[method] = {
                **statistics(values),
                "seeds within": int(np.sum(np.abs(values) <= MARGIN)),
                "met": bool(abs(values.mean()) <= MARGIN),
            }
    return verdicts


def _membership(seeds: list[Any]) -> dict[str, Any]:
    """By attack: hospital by hospital, and their mean, whose errors are over seeds."""
    verdicts: dict[str, Any] = {attack: {} for attack in ATTACKS}
    for attack, own in verdicts.items():
        for title in ("refined less retrained", "other noise less retrained", "power"):
            if title in next(iter(seeds[0].values())):
                rows = [[site[title][attack]["value"] for site in s.values()] for s in seeds]
                own[title] = {"all hospitals": _judged(np.mean(rows, 1))}
                columns = zip(seeds[0], np.transpose(rows), strict=True)
                own[title] |= {site: _judged(values) for site, values in columns}
        own["by stage, less all retrainings, all hospitals"] = _stages(seeds, attack)
    return verdicts


def _stages(seeds: list[Any], attack: str) -> dict[str, Any]:
    """AUC less the mean AUC of the retrainings there are: less noise than less one of them."""
    tables = [[site["AUC"][attack] for site in s.values()] for s in seeds]
    retrainings = [name for name in (RETRAINED, AGAIN) if name in tables[0][0]]
    base = lambda auc: np.mean([auc[name] for name in retrainings])
    return {
        stage: _judged(np.array([np.mean([a[stage] - base(a) for a in t]) for t in tables]))
        for stage in tables[0][0]
        if stage not in retrainings
    }


def _judged(values: np.ndarray) -> dict[str, Any]:
    found = statistics(values)
    error = found["standard error"]
    within = None if error is None else bool(abs(values.mean()) <= 2 * error)
    return {**found, "within two standard errors of zero": within}


NAMES = dict(zip(SITES, ("Cleveland", "Hungary", "Switzerland", "Long Beach"), strict=True))
COLORS = dict(zip(SITES, ("#1d70b8", "#2a9d4b", "#e08e0b", "#8a5fbf"), strict=True))
METHODS = {
    LOCAL: ("each hospital alone", "#999999", "s"),
    "server, sequential": ("federated: server", "#c1121f", "o"),
    "gossip, ring": ("federated: gossip, ring", "#e8707a", "D"),
    POOLED: ("pooled", "#222222", "^"),
}


def draw(summary: Mapping[str, Any], folder: Path) -> None:
    """Write `likelihood.png`, `forgetting.png` and `membership.png` of the parts there are."""
    results, nats = summary["results"], "test log likelihood, nats a patient"
    for name, panel, part_of, rows, label in (
        ("likelihood", _likelihood, "scores", 1, nats),
        ("forgetting", _distance, "forgetting", 1, ""),
        ("membership", _membership_panel, "forgetting", len(ATTACKS), "AUC; 1/2 is chance"),
    ):
        parts = [part for part in results if part_of in results[part]]
        options = {"figsize": (4.4 * len(parts), 3.2 * rows + 0.8), "sharey": bool(label)}
        path = folder / f"{name}.png"
        with harness.figure(path, rows, len(parts), legend=5, **options) as axes:
            for column, part in zip(axes.T, parts, strict=True):
                panel(column, part, results[part][part_of])
                for axis in column:
                    axis.grid(alpha=0.25)
            for axis in axes[:, 0] if label else ():
                axis.set_ylabel(label)


def _title(part: str) -> str:
    return "logistic regression" if part == "logistic" else part


def _likelihood(column: Any, part: str, scores: Mapping[str, Any]) -> None:
    groups = (EVERYONE, *SITES)
    for i, (method, (label, color, marker)) in enumerate(METHODS.items()):
        values = [scores[method][g]["log likelihood"] for g in groups]
        x = np.arange(len(groups)) + (i - 1.5) * 0.17
        style = {"linestyle": "", "markersize": 5, "color": color, "marker": marker}
        harness.errorbar(column[0], x, values, label=label, **style)
    column[0].set_xticks(range(len(groups)), [EVERYONE, *NAMES.values()], fontsize=8)
    column[0].set(title=_title(part))


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
    axis.set(title=f"{_title(part)}: {what}", ylabel=f"KL to retrained, {unit}")


def _membership_panel(column: Any, part: str, forgetting: Mapping[str, Any]) -> None:
    refined = stage_after(max(SWEEPS if part == "logistic" else MORE_SWEEPS))
    stages = (BEFORE, stage_after(0), refined, RETRAINED)
    for axis, attack in zip(column, ATTACKS, strict=True):
        for i, site in enumerate(SITES):
            x = np.arange(len(stages)) + (i - 1.5) * 0.12
            values = [forgetting[site]["AUC"][attack][stage] for stage in stages]
            style = {"linestyle": "", "markersize": 5, "color": COLORS[site], "marker": "o"}
            harness.errorbar(axis, x, values, label=NAMES[site], **style)
        axis.axhline(0.5, color="#666666", linewidth=0.8, linestyle=":")
        axis.set_xticks(range(len(stages)), ("before", "subtracted", "refined", "retrained"))
        axis.set(title=f"{_title(part)}: {attack} attack")
