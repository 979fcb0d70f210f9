"""What the runs of `utility` add up to: statistics over seeds, verdicts and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.dark_knowledge import utility_bandit as bandit
from experiments.dark_knowledge import utility_labels as labels
from experiments.dark_knowledge.utility_networks import Array
from experiments.harness import rounded

Rows = Sequence[Mapping[str, Any]]
COLORS = {
    labels.TEACHER: "#1d70b8",
    labels.STUDENT: "#c1121f",
    labels.PLUGIN: "#6b7280",
    labels.RANDOM: "#b8a038",
    bandit.GREEDY: "#6b7280",
    bandit.EPSILON: "#3a9d6e",
    bandit.UNIFORM: "#b8a038",
}


def statistics(values: Any) -> dict[str, Any]:
    """Those of the harness, and all values."""
    return harness.statistics(values) | {"each": [rounded(value) for value in values]}


def rounded_all(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The same of all floats in a dictionary."""
    return {n: rounded(v) if isinstance(v, float) else v for n, v in tree.items()}


def complete(rows: Rows, methods: Sequence[str]) -> tuple[list[int], dict[str, list[Any]]]:
    """Seeds that all methods have, and each method's rows of these, in order."""
    by = {(row["method"], row["seed"]): row for row in rows}
    seeds = sorted({s for _, s in by if all((method, s) in by for method in methods)})
    return seeds, {method: [by[method, s] for s in seeds] for method in methods}


# --- labels --------------------------------------------------------------------------------------


def of_labels(rows: Rows) -> dict[str, Any]:
    """Curves and verdicts of active learning."""
    seeds, by = complete(rows, labels.METHODS)
    scores = ("accuracy", "log likelihood")
    curve = lambda row, score: [at[score] for at in row["rounds"]]
    # Of what was asked for: the first labels are the same for all.
    over = lambda score: {m: [np.mean(curve(r, score)[1:]) for r in by[m]] for m in by}
    mean = {score: over(score) for score in scores}
    return {
        "seeds": seeds,
        "labels": [at["labels"] for at in by[labels.STUDENT][0]["rounds"]],
        **{
            score: {m: along([curve(row, score) for row in by[m]]) for m in by} for score in scores
        },
        **{
            f"{score}, mean over rounds": {m: statistics(v) for m, v in mean[score].items()}
            for score in scores
        },
        "CPU s of a question": {m: cost(by[m], "CPU s of a question") for m in by},
        "student against its own teacher, on images of the pool": noted(by[labels.STUDENT]),
        **longer(rows, by, seeds),
        "goals": [
            goal
            for score in scores
            for goal in verdicts(
                f"active learning: {score}, mean over rounds", mean[score],
                labels.STUDENT, labels.TEACHER, (labels.PLUGIN, labels.RANDOM),
            )
        ],
    }  # fmt: skip


def longer(rows: Rows, by: Mapping[str, Any], seeds: list[int]) -> dict[str, Any]:
    """What more steps of the student change, on the seeds they were run for; no verdict."""
    found = {row["seed"]: row for row in rows if row["method"] == labels.LONGER}
    common = sorted(set(found) & set(seeds))
    if not common:
        return {}
    own = [found[seed] for seed in common]
    over = lambda rows: [np.mean([at["accuracy"] for at in row["rounds"][1:]]) for row in rows]
    return {
        labels.LONGER: {
            "seeds": common,
            "accuracy, mean over rounds, of the same seeds": {
                labels.LONGER: statistics(over(own)),
                **{m: statistics(over([by[m][seeds.index(s)] for s in common])) for m in by},
            },
            "against its own teacher": noted(own),
            "CPU s of a question": cost(own, "CPU s of a question"),
        }
    }


def along(curves: Any) -> dict[str, list[float]]:
    """Means and standard errors over seeds, point by point."""
    curves = np.asarray(curves, np.float64)
    error = curves.std(0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else 0 * curves[0]
    return {
        "mean": [rounded(v) for v in curves.mean(0)],
        "standard error": [rounded(v) for v in error],
    }


def cost(rows: Rows, what: str) -> float:
    """The median: the first run of a process compiles."""
    return rounded(np.median([row[what] for row in rows]), 3)


def noted(rows: Rows) -> dict[str, Any]:
    """Means over all fits of what they note."""
    notes = [note for row in rows for note in row["notes"]]
    return {name: rounded(np.mean([note[name] for note in notes])) for name in notes[0]}


# --- verdicts ------------------------------------------------------------------------------------


def verdicts(
    what: str,
    scores: Mapping[str, Any],
    student: str,
    teacher: str,
    others: Sequence[str],
    sign: int = 1,
) -> list[dict[str, Any]]:
    """Of differences seed by seed, signed so that more is better."""
    less = lambda other: statistics(sign * (np.array(scores[student]) - np.array(scores[other])))
    found = less(teacher)
    slack = 2 * (found["standard error"] or 0)
    goals = [{
        "goal": f"{what}: student at most two standard errors behind the {teacher}",
        "student's advantage": found,
        "met": bool(found["mean"] >= -slack),
    }]  # fmt: skip
    for other in others:
        found = less(other)
        slack = 2 * (found["standard error"] or 0)
        goals.append({
            "goal": f"{what}: student better than {other}",
            "student's advantage": found,
            "met": bool(found["mean"] > 0),
            "by more than two standard errors": bool(found["mean"] > slack),
        })  # fmt: skip
    return goals


# --- bandit --------------------------------------------------------------------------------------


def of_bandit(rows: Rows) -> dict[str, Any]:
    """Regret and verdicts of the wheel."""
    seeds, by = complete(rows, bandit.METHODS)
    at = np.arange(9, len(by[bandit.STUDENT][0]["regret"]), 10)
    share = lambda row: 100 * row["regret"][-1] / row["regret of uniform, expected"][-1]
    final = {m: [share(row) for row in by[m]] for m in by}
    return {
        "seeds": seeds,
        "decisions": (at + 1).tolist(),
        "cumulative regret": {
            m: along([np.array(row["regret"])[at] for row in by[m]]) for m in by
        },
        "regret at the end, % of uniform's": {m: statistics(v) for m, v in final.items()},
        "CPU s of a fit": {m: cost(by[m], "CPU s of a fit") for m in by},
        "student against its own teacher, anywhere on the wheel": noted(by[bandit.STUDENT]),
        "goals": verdicts("bandit: regret at the end, % of uniform's", final, bandit.STUDENT,
                          bandit.TEACHER, (bandit.GREEDY, bandit.EPSILON), -1),
    }  # fmt: skip


# --- the picture ---------------------------------------------------------------------------------


def picture(found: Mapping[str, Any], path: Path) -> None:
    """Both panels; bands are one standard error."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    canvas, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    one, two = found["active learning"], found["bandit"]
    for method, own in one["accuracy"].items():
        line(left, one["labels"], 100 * np.array(own["mean"]),
             100 * np.array(own["standard error"]), method)  # fmt: skip
    left.set(xlabel="labels", ylabel="test accuracy in %, of the same network for all",
             title=f"Active learning, digits ({len(one['seeds'])} seeds)")  # fmt: skip
    left.legend(title="who asks", frameon=False)
    for method, own in two["cumulative regret"].items():
        line(right, two["decisions"], np.array(own["mean"]), np.array(own["standard error"]),
             method)  # fmt: skip
    seeds = len(two["seeds"])
    right.set(xlabel="decisions", ylabel="cumulative regret", ylim=(0, None),
              title=f"Bandit, wheel of radius {bandit.RADIUS} ({seeds} seeds)")  # fmt: skip
    right.legend(title="who decides", frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)
    plt.close(canvas)


def line(axis: Any, x: Any, mean: Array, error: Array, method: str) -> None:
    style = "--" if method in (labels.RANDOM, bandit.UNIFORM) else "-"
    axis.plot(x, mean, style, color=COLORS[method], label=method, linewidth=1.8)
    axis.fill_between(x, mean - error, mean + error, color=COLORS[method], alpha=0.15, linewidth=0)
