"""Tables of this folder's README."""

import functools

from experiments import goals
from experiments.pages import at, figure, results, table

FILE = "personal/expected"


def scores() -> str:
    """Return log likelihoods of held-out records by study and method."""
    body = []
    for study, own in results(FILE)["results"].items():
        by_method = own["log likelihood"]
        gain = own["partial pooling less the better"]
        body.append(
            [
                study,
                figure(by_method["pooled"]["count"]),
                *(figure(by_method[how], 4) for how in ("pooled", "local", "partial pooling")),
                figure(gain, 4),
            ]
        )
    head = ["", "seeds", "pooled", "local", "partial pooling", "partial less the better"]
    return table(head, body)


def sampled() -> str:
    """Return partial pooling beside NUTS on the hierarchical model."""
    body = []
    for study, own in results(FILE)["NUTS"].items():
        less = own["ours less NUTS"]
        spread = own["log spread"]
        least = spread["least ratio of standard deviations"]["least"]
        largest = spread["largest ratio of standard deviations"]["largest"]
        error = spread["largest error of a mean, in standard deviations"]["mean"]
        body.append(
            [
                study,
                figure(less["log likelihood"]["count"]),
                figure(less["log likelihood"]),
                figure(less["AUC"]),
                figure(error, 2),
                f"{figure(least, 2)} to {figure(largest, 2)}",
            ]
        )
    head = ["ours less NUTS", "seeds", "nats a record", "AUC", "log spread: farthest mean"]
    return table([*head, "its deviations / NUTS's"], body)


def intervals() -> str:
    """Return how often intervals of 95 % cover, over all kinds of fields, by method."""
    file = results("personal/one_shot")
    kinds = len(file["results"])
    every = kinds + len(file["left out"])
    least = file["least coverage"]
    mean = file["mean coverage"]
    whole = [name for name in least if ";" not in name]
    body = []
    for name in whole:
        row = [name]
        for target in (name, f"{name}; a new site", f"{name}; the spread"):
            lowest = at(least, [target])
            average = at(mean, [target])
            shown = "" if lowest is None else f"{figure(average, 3)}, {figure(lowest, 3)}"
            row.append(shown)
        body.append(row)
    return table(
        [
            f"mean, least coverage of {kinds} of {every} kinds",
            "the mean",
            "a new study",
            "the spread",
        ],
        body,
    )


missed = functools.partial(goals.missed, "personal")
