"""Tables of this folder's README."""

import functools
from collections.abc import Mapping
from typing import Any

from experiments import goals
from experiments.pages import At, at, figure, figures, results, table

FILE = "heart/expected"
METHODS = {
    "local": "each hospital alone",
    "server, sequential": "server, sequential",
    "gossip, ring": "gossip, ring",
    "gossip, star": "gossip, star",
    "pooled": "pooled",
}
HOSPITALS = {
    "cleveland": "Cleveland",
    "hungary": "Hungary",
    "switzerland": "Switzerland",
    "va": "Long Beach",
}
STAGES = {
    "before": "before",
    "after 0 sweeps": "subtracted",
    "after 1 sweeps": "1 sweep",
    "after 2 sweeps": "2",
    "after 5 sweeps": "5",
    "after 20 sweeps": "20",
}
"""What a posterior was, and the heading of its column."""


def _short(value: float) -> str:
    """Write two digits."""
    return figure(float(f"{value:.2g}"))


def _small(value: Mapping[str, Any]) -> str:
    """Write a mean of differences to four decimals, none of them minus zero."""
    error = value["standard error"]
    mean = round(value["mean"], 4) + 0.0
    spread = None if error is None else round(error, 4)
    return figure({"mean": mean, "standard error": spread}, 4)


def federated() -> str:
    """Return scores of held-out patients by model and method, and whether federated is pooled."""
    file = results(FILE)
    seeds = len(file["settings"]["seeds"])
    body = []
    for model in ("logistic", "network"):
        part = file["results"][model]
        verdicts = file["goals"]["federated"][model]
        for method, name in METHODS.items():
            scores = part["scores"][method]["everyone"]
            less = at(part, ["log likelihood less pooled", method, "everyone"])
            within = at(verdicts, [method, "seeds within"])
            body.append(
                [
                    f"{model}: {name}",
                    figure(scores["accuracy"], 3),
                    figure(scores["log likelihood"], 4),
                    figure(scores["calibration error"]["mean"], 3),
                    "" if less is None else _small(less),
                    "" if within is None else f"{within} of {seeds}",
                ]
            )
    head = ["", "accuracy", "log likelihood, nats", "calibration error", "less pooled, nats"]
    return table([*head, "splits within .005"], body)


def sampled() -> str:
    """Return logistic regression of all patients beside NUTS."""
    found = results(FILE)["results"]["NUTS"]
    columns: Mapping[str, At] = {
        "log likelihood less NUTS's, nats": ["pooled less NUTS, log likelihood"],
        "farthest mean, deviations": ["largest error of a mean, in standard deviations"],
        "least deviation / NUTS's": ["smallest ratio of standard deviations"],
        "largest": ["largest ratio of standard deviations"],
    }
    return figures(found, "", {"pooled, logistic": []}, columns)


def _distances(nats: Mapping[str, Mapping[str, Any]], unit: str) -> str:
    """Return mean distances to retrained posteriors, by hospital and stage, in a unit of its own
    for each hospital if it is the name of a stage.
    """
    stages = [stage for stage in STAGES if stage in nats["cleveland"]]
    body = []
    for site, own in nats.items():
        scale = own[unit]["mean"] if unit in own else 1.0
        distances = [_short(own[stage]["mean"] / scale) for stage in stages]
        body.append([HOSPITALS[site], *distances])
    return table(["who leaves", *(STAGES[stage] for stage in stages)], body)


def distances_logistic() -> str:
    """Return nats from the retrained posterior of logistic regression."""
    forgetting = results(FILE)["results"]["logistic"]["forgetting"]
    return _distances({site: own["KL to retrained"] for site, own in forgetting.items()}, "nats")


def distances_network() -> str:
    """Return how far predictions for the leaver's patients are from those of a retrained network,
    where two retrainings with different noise are 1 apart.
    """
    forgetting = results(FILE)["results"]["network"]["forgetting"]
    nats = {}
    for site, own in forgetting.items():
        nats[site] = own["predictive KL to retrained"]["forgotten hospital"]
    return _distances(nats, "retrained, other noise")


def membership() -> str:
    """Return what attacks by ratios gain over those on retrained models, by stage."""
    body = []
    for model, attacks in results(FILE)["goals"]["membership"].items():
        if model == "text":
            continue
        by_stage = attacks["ratio"]["by stage, less all retrainings, all hospitals"]
        row = [model]
        for stage in STAGES:
            gain = by_stage.get(stage)
            shown = ""
            if gain is not None:
                seen = gain["within two standard errors of zero"] is False
                shown = _small(gain) + ("*" if seen else "")
            row.append(shown)
        body.append(row)
    return table(["AUC less retrained", *STAGES.values()], body)


missed = functools.partial(goals.missed, "heart")
