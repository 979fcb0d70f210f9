"""Tables of this folder's README."""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import goals
from experiments.pages import figure, results, table

OURS = "pursue"
OTHERS = ("pursue, reweighted", "NUTS")
"""Methods of the gym that are not variational peers."""
BASE_RULE = "fixed, λ = 1"
ROUNDING = 1e-12
"""Nats that are the rounding of a quadrature."""
INFINITE = 1e300
"""What results files have for infinity."""


def _short(value: float) -> str:
    """Write a number with two digits."""
    return figure(float(f"{value:.2g}"))


def _nats(value: Any) -> str:
    """Write a divergence, which may be the words "infinite"."""
    if isinstance(value, float) and abs(value) < ROUNDING:
        return "0"
    return value if isinstance(value, str) else _short(value)


def _median_nats(methods: Mapping[str, Any], name: str) -> str:
    """Write the median divergence of a method, nothing where it was not run."""
    if name not in methods:
        return ""
    return _nats(methods[name]["KL(q, p)"]["median"])


def _height(value: Any) -> float:
    """Return a divergence as a number that can be compared."""
    return math.inf if isinstance(value, str) else value


def _best_booster(methods: Mapping[str, Any], asked: Sequence[str]) -> str:
    """Write the least median divergence of the boosting peers, and how many of them there are."""
    peers = [name for name in asked if name.startswith("boosting VI")]
    medians = {name: methods[name]["KL(q, p)"]["median"] for name in peers if name in methods}
    if not medians:
        return ""
    heights = {name: _height(value) for name, value in medians.items()}
    best = min(heights, key=heights.__getitem__)
    label = best.removeprefix("boosting VI, ")
    if len(medians) < len(peers):
        label = f"{label}; {len(medians)} of {len(peers)} peers run"
    return f"{_nats(medians[best])} ({label})"


def densities() -> str:
    """Return divergences from densities that one Gaussian does not fit."""
    file = results("pursuit/densities")
    effort = file["effort"]
    title = f"{effort['components']} components"
    body = []
    for target, sizes in file["targets"].items():
        methods = sizes[title]
        if OURS not in methods:
            continue
        ours = methods[OURS]["KL(q, p)"]
        body.append(
            [
                target,
                _nats(ours["median"]),
                _nats(ours["largest"]),
                _best_booster(methods, effort["methods"]),
                _median_nats(methods, "plain VI"),
                _median_nats(methods, "joint mixture VI"),
            ]
        )
    head = [
        "KL(q, p), nats",
        "pursue",
        "its worst seed",
        "best boosting peer",
        "plain VI",
        "joint mixture VI",
    ]
    return table(head, body)


def two_modes() -> str:
    """Return test log likelihoods of posteriors with two modes."""
    file = results("pursuit/two_modes")
    most = str(max(file["effort"]["counts"]))
    body = []
    for name in ("line with two instruments", "twin features"):
        if name in file:
            problem = file[name]
            body.append(
                [
                    name,
                    figure(problem["data sets"]),
                    figure(problem["truth"]),
                    figure(problem[OURS][most]),
                    figure(problem["deep ensemble"][most]),
                    figure(problem["SGLD"]),
                    figure(problem["mean-field VI"]),
                    figure(problem["gain over mean-field VI"]),
                ]
            )
    head = [
        "log likelihood, nats a test record",
        "data sets",
        "true posterior",
        f"pursue, at most {most}",
        f"ensemble of {most}",
        "SGLD",
        "mean-field VI",
        "pursue less mean-field VI",
    ]
    return table(head, body)


def modes() -> str:
    """Return in how many seeds all modes were found, with their weights."""
    body = [
        [
            name,
            figure(row["seeds"]),
            figure(row["found"]),
            figure(row["missed, and converged"]),
            f"{_short(100.0 * row['unseen'])} %",
            figure(row["gradients, median"], 0),
        ]
        for name, row in results("pursuit/modes").items()
        if "found" in row
    ]
    head = [
        "mixture",
        "seeds",
        "all modes found",
        "missed, and called converged",
        "a mode that fewer of the base's draws lead to may be missed",
        "gradients, median",
    ]
    return table(head, body)


def _times_of(tables: Mapping[str, Any], way: str, rule: str) -> list[float]:
    """Return CPU times of a rule over those of λ = 1, of all targets."""
    ways = [target[way] for target in tables.values()]
    both = [column for column in ways if rule in column and BASE_RULE in column]
    return [column[rule]["CPU s"] / column[BASE_RULE]["CPU s"] for column in both]


def rules() -> str:
    """Return on how many targets a rule of λ is best, and its CPU time."""
    file = results("pursuit/schedules")
    counts = file["targets on which a rule is best, or within a tenth"]
    targets = file["targets"]
    names = dict.fromkeys(rule for column in counts.values() for rule in column)
    body = []
    for rule in names:
        row = [rule]
        for way, column in counts.items():
            times = _times_of(targets, way, rule)
            row.append(figure(column[rule]))
            row.append(figure(statistics.median(times), 1) if times else "")
        body.append(row)
    head = [f"rule, of {len(targets)} targets"]
    for way in counts:
        head += [f"{way}: best on", "CPU time"]
    return table(head, body)


def _is_a_law(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no deviation is infinite or nothing, as of a Laplace approximation on a ridge."""
    return all(run["log ratio of deviations"] < INFINITE for run in runs)


def _bias(runs: Sequence[Mapping[str, Any]]) -> float:
    """Return the median squared bias of a method's seeds."""
    return statistics.median(run["squared bias"] for run in runs)


def gym() -> str:
    """Return worst squared biases of means in the Inference Gym."""
    body = []
    for target, methods in results("pursuit/gym")["targets"].items():
        if OURS not in methods:
            continue
        ours = methods[OURS]
        peers = [name for name in methods if name not in (OURS, *OTHERS)]
        medians = {name: _bias(methods[name]) for name in peers if _is_a_law(methods[name])}
        best = ""
        if medians:
            nearest = min(medians, key=medians.__getitem__)
            best = f"{_short(medians[nearest])} ({nearest})"
        said = sum(run["status"].startswith("converged") for run in ours)
        wrong = max(run["log ratio of deviations"] for run in ours)
        others = [_short(_bias(methods[name])) if name in methods else "" for name in OTHERS]
        reweighted, sampler = others
        body.append(
            [
                target,
                _short(_bias(ours)),
                _short(max(run["squared bias"] for run in ours)),
                reweighted,
                best,
                sampler,
                figure(math.exp(wrong), 2),
                f"{said} of {len(ours)}",
            ]
        )
    head = [
        "squared bias, true variances",
        "pursue",
        "its worst seed",
        "reweighted",
        "best variational peer",
        "NUTS",
        "deviations of pursue are wrong by up to a factor of",
        "seeds of pursue called converged",
    ]
    return table(head, body)


TASKS = 5
RULES = {
    "conjugate": "conjugate, all images, none kept",
    "joint network": "joint training of one network, the ceiling of networks",
    "joint, same features": "joint training on the features of the conjugate rule",
    "gated": "gated",
    "coreset, deformed": "replay of 20 deformed images a class",
    "VCL, coreset": "variational continual learning, coreset of 20 a class [nguyen2018]",
    "VCL": "variational continual learning without a coreset",
    "mixture, even": "mixture of old and new posteriors [egorov2019], weights `1/T`",
    "mixture, fitted": "the same mixture, each new weight of the highest ELBO",
    "EWC": "elastic weight consolidation",
    "fine-tuning": "fine-tuning",
}


def _after(curve: Mapping[str, Any], score: str, decimals: int, task: int = -1) -> str:
    """Write a score after a task, with its deviation over seeds if there are several."""
    if score not in curve:
        return ""
    spread = curve.get(f"sd of {score}", [None])
    return figure({"mean": curve[score][task], "sd": spread[task]}, decimals)


def pairs() -> str:
    """Return accuracy and log loss of classes that come in pairs, in both orders."""
    body = []
    for data, found in results("pursuit/incremental")["after each task"].items():
        for rule, words in RULES.items():
            forth = found.get(rule, {}).get("forth")
            if forth is None:
                continue
            back = found[rule].get("back", {})
            accuracies = forth["accuracy"]
            before = [""] * (TASKS - len(accuracies))
            before += [figure(each, 1) for each in accuracies[:-1]]
            body.append(
                [
                    f"{data}, {words}",
                    str(len(forth["seeds"])),
                    *before,
                    _after(forth, "accuracy", 1),
                    _after(forth, "log loss", 3),
                    _after(back, "accuracy", 1),
                    _after(back, "log loss", 3),
                ]
            )
    head = ["accuracy in % after each task", "seeds", "1", "2", "3", "4", "5", "log loss"]
    return table([*head, "back: 5", "log loss"], body)


missed = functools.partial(goals.missed, "pursuit")
