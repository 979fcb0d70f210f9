"""What was to be shown, and whether a run shows it."""

from collections.abc import Mapping
from typing import Any

from experiments.gfvl.curves import Curve, significant
from experiments.gfvl.problem import WITHIN
from experiments.gfvl.waiting import BEST, DEFAULT, ONE_COVER, PAPERS, TWO_COVERS

HOPS, OVER_FLOOR, Z = 30, 1.5, 2.0


def floor_reached(curves: Mapping[str, Curve], floor: float) -> dict[str, Any]:
    """The floor is reached by the default estimator, and the paper's stalls above it."""
    end = {name: float(curves[name].mean[-1] / floor) for name in (PAPERS, BEST)}
    half = curves[PAPERS].mean[len(curves[PAPERS].visits) // 2] / floor
    return {
        "goal": "the floor is reached by the default estimator where the paper's stalls",
        "KL over floor at the end": {
            name: {
                "mean": significant(ratio),
                "standard error": significant(curves[name].standard_error[-1] / floor),
                "diverged": curves[name].diverged,
            }
            for name, ratio in end.items()
        },
        "the paper's, half-way": significant(half),
        "met": bool(end[BEST] <= WITHIN < end[PAPERS] / 10),
    }


def few_hops(hops: Mapping[str, Any], data_sets: Mapping[str, Any]) -> dict[str, Any]:
    """Mean hops until a walk is at the floor, over walks and data."""
    return {
        "goal": f"KL at most {WITHIN} times the floor after {HOPS} hops of a walk, on average",
        "with": DEFAULT,
        "measured, over data sets": data_sets,
        "measured, one data set": hops[DEFAULT],
        "met": data_sets["mean"] <= HOPS,
    }


def forgotten(covered: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    rows = {f"{case}, {how}": row for case, own in covered.items() for how, row in own.items()}
    ratios = {name: row[ONE_COVER] for name, row in rows.items() if ONE_COVER in row}
    return {
        "goal": f"after forgetting and one cover at most {OVER_FLOOR} times the floor, on average",
        "measured": ratios,
        "after two covers": {n: row[TWO_COVERS] for n, row in rows.items() if TWO_COVERS in row},
        "met": all(r["mean"] + 2 * r["standard error"] <= OVER_FLOOR for r in ratios.values()),
    }


def theory(times: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    scores = {f"{graph}, {kind}": r["z"] for graph, own in times.items() for kind, r in own.items()}
    square = sum(z * z for z in scores.values()) / len(scores)
    return {
        "goal": "mean cover and unlearning times as theory has them, within standard error",
        "z scores": scores,
        "mean square of z (1 is expected)": significant(square),
        "met": all(abs(z) <= Z for z in scores.values()),
        "judged as": f"all |z| at most {Z:.0f}",
    }
