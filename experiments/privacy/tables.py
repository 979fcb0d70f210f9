"""Tables of this folder's README."""

from typing import Any

from experiments import goals as verdicts
from experiments.pages import at, figure, results, table

FILE = "privacy/expected"
UNNOISED = {
    "federated": "none: `federate`, many rounds",
    "one shot, nothing clipped": "none: one sum, nothing clipped",
}


def _budgets(scores: dict[str, Any], unit: str) -> list[str]:
    """Return the values of epsilon that were run for a unit, the large ones first."""
    start = f"{unit}, each, "
    found = [name.removeprefix(start) for name in scores if name.startswith(start)]
    return sorted(found, key=float, reverse=True)


def patients() -> str:
    """Return scores and the attack's success by epsilon of a patient."""
    found = results(FILE)["results"]
    scores = found["scores"]
    attack = found["attack"]
    rows = {name: [scores[key], None, None] for key, name in UNNOISED.items()}
    rows[UNNOISED["one shot, nothing clipped"]][2] = attack["no noise"]
    for epsilon in _budgets(scores, "record"):
        own = scores[f"record, each, {epsilon}"]
        shared = scores[f"record, shared, {epsilon}"]
        rows[epsilon] = [own, shared, attack[epsilon]]
    rows["nothing is learned: the prior"] = [scores["prior"], None, None]
    body = []
    for name, (own, shared, area) in rows.items():
        row = [name, figure(own["log likelihood"], 3), figure(own["AUROC"], 3)]
        for kind in ("log likelihood", "AUROC"):
            value = at(shared, [kind])
            row.append("" if value is None else figure(value, 3))
        row.append("" if area is None else figure(area, 2))
        body.append(row)
    head = ["epsilon a patient (delta 1e-5)", "log likelihood, nats", "AUROC"]
    head += ["log likelihood, noise shared", "AUROC, noise shared"]
    return table([*head, "attack on one hospital's release, AUC"], body)


def hospitals() -> str:
    """Return AUROCs by epsilon of a whole hospital."""
    scores = results(FILE)["results"]["scores"]
    body = []
    for epsilon in _budgets(scores, "site"):
        areas = [scores[f"site, {how}, {epsilon}"]["AUROC"] for how in ("each", "shared")]
        body.append([epsilon, *(figure(area, 2) for area in areas)])
    return table(["epsilon a hospital", "AUROC", "AUROC, noise shared"], body)


def goals() -> str:
    """Return the goals, and how each ended."""
    found = verdicts.verdicts(results(FILE)["goals"])
    body = [[each.goal, each.measured, each.outcome] for each in found]
    return table(["goal", "measured", ""], body)
