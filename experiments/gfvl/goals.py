"""What was to be shown, and whether a run shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.gfvl.curves import Curve, significant
from experiments.gfvl.problem import WITHIN

HOPS, OVER_FLOOR, Z = 30, 1.5, 2.0
PAPERS, BEST = "REINFORCE, c = 0 (the paper's)", "closed form"
Goal = dict[str, Any]


def floor_reached(curves: Mapping[str, Curve], floor: float) -> Goal:
    """The floor is reached by the default estimator, and the paper's stalls above it."""
    end = {name: curves[name].kl[:, -1] / floor for name in (PAPERS, BEST)}
    half = curves[PAPERS].mean[len(curves[PAPERS].visits) // 2] / floor
    return {
        "goal": "the floor is reached by the default estimator where the paper's stalls",
        "KL over floor at the end": {
            name: {
                "mean": significant(ratio.mean()),
                "standard error": significant(curves[name].standard_error[-1] / floor),
            }
            for name, ratio in end.items()
        },
        "the paper's, half-way": significant(half),
        "met": bool(end[BEST].mean() <= WITHIN < end[PAPERS].mean() / 10),
    }


def few_hops(hops: Mapping[str, Any]) -> Goal:
    """Mean hops until a walk is at the floor."""
    name = next(iter(hops))
    mean, error = hops[name]["mean"], hops[name]["standard error"]
    return {
        "goal": f"KL at most {WITHIN} times the floor after {HOPS} hops of a walk, on average",
        "measured": hops[name],
        "with": name,
        "met": mean <= HOPS,
        "met within a standard error": mean - error <= HOPS,
    }


def forgotten(covered: Mapping[str, Mapping[str, Any]]) -> Goal:
    """One cover after a request."""
    ratios = {
        f"{case}, {how}": row["KL over floor after one cover"]
        for case, rows in covered.items()
        for how, row in rows.items()
        if "KL over floor after one cover" in row
    }
    return {
        "goal": f"after forgetting and one cover at most {OVER_FLOOR} times the floor, on average",
        "measured": ratios,
        "met": all(r["mean"] + 2 * r["standard error"] <= OVER_FLOOR for r in ratios.values()),
    }


def theory(times: Mapping[str, Mapping[str, Any]]) -> Goal:
    """Cover and unlearning times."""
    scores = {
        f"{graph}, {kind}": row["z"] for graph, rows in times.items() for kind, row in rows.items()
    }
    return {
        "goal": "mean cover and unlearning times as theory has them, within standard error",
        "z scores": scores,
        "mean square of z (1 is expected)": significant(
            sum(z * z for z in scores.values()) / len(scores)
        ),
        "met": all(abs(z) <= Z for z in scores.values()),
        "judged as": f"all |z| at most {Z:.0f}",
    }
