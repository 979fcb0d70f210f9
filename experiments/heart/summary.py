"""Means and standard errors over seeds, and the verdicts, as `expected.json` holds them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.harness import over_seeds, statistics
from experiments.heart.forgetting import AGAIN, ATTACKS, RETRAINED
from experiments.heart.trials import EVERYONE, LOCAL

MARGIN = 0.005
GOALS = {
    "federated": f"mean test log likelihood within {MARGIN} nats a patient of pooled",
    "membership": "AUC after forgetting and refinement less AUC after retraining, on the same "
    "patients: within two standard errors of zero. Power is AUC before forgetting less AUC after "
    "retraining: what there was to forget",
}

Found = Mapping[str, Mapping[int, Any]]


def summarise(found: Found) -> dict[str, Any]:
    """Everything that is claimed, from what each part found by seed: verdicts, and all numbers."""
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
    methods = [name for name in seeds[0]["log likelihood less pooled"] if name != LOCAL]
    verdicts = {}
    for method in methods:
        values = np.array([s["log likelihood less pooled"][method][EVERYONE] for s in seeds])
        verdicts[method] = {
            **statistics(values),
            "seeds within": int(np.sum(np.abs(values) <= MARGIN)),
            "met": bool(abs(values.mean()) <= MARGIN),
        }
    return verdicts


def _membership(seeds: list[Any]) -> dict[str, Any]:
    """By attack: hospital by hospital, and their mean, whose errors are over seeds."""
    verdicts: dict[str, Any] = {}
    for attack in ATTACKS:
        verdicts[attack] = {}
        for title in ("refined less retrained", "other noise less retrained", "power"):
            if title in next(iter(seeds[0].values())):
                verdicts[attack][title] = _differences(seeds, title, attack)
        verdicts[attack]["by stage, less all retrainings, all hospitals"] = _stages(seeds, attack)
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


def _differences(seeds: list[Any], title: str, attack: str) -> dict[str, Any]:
    table = np.array([[site[title][attack]["value"] for site in s.values()] for s in seeds])
    sites = dict(zip(seeds[0], table.T, strict=True))
    return {
        "all hospitals": _judged(table.mean(1)),
        **{site: _judged(values) for site, values in sites.items()},
    }


def _judged(values: np.ndarray) -> dict[str, Any]:
    found = statistics(values)
    error = found["standard error"]
    within = None if error is None else bool(abs(values.mean()) <= 2 * error)
    return {**found, "within two standard errors of zero": within}
