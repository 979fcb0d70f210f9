"""Figures 3, 4 and 5 of gong2021: `python -m experiments.gfvl.run`.

Writes `expected.json` and the pictures into `results` beside this file. Figures that are not chosen
stay as an earlier run left them.
"""

import json
import time
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.gfvl import conjugate, report, waiting
from experiments.gfvl.problem import FULL, QUICK, Effort
from experiments.gfvl.report import Curve, significant

PLACE = harness.Place.of(__file__)
SLOTS, ITERATIONS = (10, 20, 50, 100, 200), (1000, 2000, 5000, 10_000, 20_000)
VISITS = (0, 1, 5, 10, 20, 26, 50, 100)

PROTOTYPE = {
    "figure 3, mean KL after 10, 20, 50, 100 slots": {
        "star": [3.68, 2.08, 0.71, 0.25],
        "ring": [0.82, 0.35, 0.047, 0.003],
        "complete": [0.29, 0.057, 0.0018, 0],
    },
    "figure 4, sum loss, L = 1, mean KL after 1000, 2000, 5000, 20000 iterations": {
        "REINFORCE, c = 0 (the paper's)": [1.39, 1.34, 1.01, 1.09],
        "REINFORCE, leave-one-out": [0.46, 0.10, 0.0055, 0.0017],
        "closed form": [0.46, 0.097, 0.0048, 0.0013],
    },
    "hops to 1.2 times the floor, rate 1/2, L = 20": 29.5,
    "forgetting a leaver that disagrees, KL": {
        "after subtraction": 3.58,
        "after 50 hops": 0.00135,
        "from scratch, after 50 hops": 0.0023,
        "floor": 0.00075,
    },
}
"""An earlier prototype in NumPy: other draws of data and walks."""


def third(effort: Effort, results: Path) -> dict[str, Any]:
    curves, times = conjugate.learning(effort), conjugate.times(effort)
    report.figure3(curves, results)
    rows = {name: curve.at(SLOTS) for name, curve in curves.items()}
    return {"KL after slots": rows, "times": times, "goals": [report.theory(times)]}


def fourth(effort: Effort, results: Path) -> dict[str, Any]:
    paper = {
        f"{kind} loss": waiting.local_iterations(effort, mean_loss=kind == "mean")
        for kind in ("mean", "sum")
    }
    report.figure4(paper, results)
    estimators = waiting.by_estimator(effort, paper["sum loss"][0].get("L = 1"))
    defaults = waiting.by_default(effort)
    report.figure4_ours(estimators, defaults, results)
    data_sets = waiting.over_data_sets(effort)
    return {
        "KL after local iterations": {loss: _iterations(*found) for loss, found in paper.items()},
        "KL after local iterations, sum loss, L = 1": _iterations(*estimators),
        "hops to 1.2 times the floor": defaults[1],
        "hops to 1.2 times the floor, default, over data sets": data_sets,
        "fixed point": fixed_point(),
        "goals": [report.floor_reached(*estimators), report.few_hops(defaults[1], data_sets)],
    }


def fifth(effort: Effort, results: Path) -> dict[str, Any]:
    conjugates = conjugate.unlearning(effort)
    cases = {case: waiting.unlearning(effort, leavers=mean) for case, mean in waiting.CASES.items()}
    report.figure5(conjugates, cases, results)
    visits = lambda curves: {name: curve.at(VISITS) for name, curve in curves.items()}
    return {
        "KL after visits, Beta-Bernoulli": {g: visits(curves) for g, curves in conjugates.items()},
        "KL after visits, Beta-exponential": {
            case: {"floor": significant(floor), **visits(curves), "one cover": covered}
            for case, (curves, covered, floor) in cases.items()
        },
        "goals": [report.forgotten({case: covered for case, (_, covered, _) in cases.items()})],
    }


def fixed_point() -> dict[str, Any]:
    """The floor by optimisation, and KL where the closed-form iteration ends."""
    q, target = waiting.fixed_point()
    return {
        "floor": significant(target.floor, 8),
        "best Beta": [significant(x, 7) for x in target.best],
        "KL of the iteration's end": significant(float(target.kl(q.a, q.b)), 8),
        "its Beta": [significant(q.a, 7), significant(q.b, 7)],
    }


def _iterations(curves: dict[str, Curve], floor: float) -> dict[str, Any]:
    rows = {
        name: {**curve.at(ITERATIONS, unit="iterations"), "diverged": curve.diverged}
        for name, curve in curves.items()
    }
    return {"floor": significant(floor), **rows}


PARTS = {"3": third, "4": fourth, "5": fifth}


def run(
    place: harness.Place = PLACE, *, figures: tuple[str, ...] = tuple(PARTS), quick: bool = False
) -> dict[str, Any]:
    path, effort = place.results / "expected.json", QUICK if quick else FULL
    found = json.loads(path.read_text()) if path.exists() else {}
    found |= {
        "paper": "printed as curves only; settings and seeds are not stated (see README.md)",
        "earlier prototype": PROTOTYPE,
        "spread": "standard errors of means over repetitions (figure 3: over data sets)",
        "seeds": "data: 0, and 0, 1, 2, ... over data sets; walks: in the code",
    }
    for figure in figures:
        start = time.perf_counter()
        found[f"figure {figure}"] = {"effort": vars(effort), **PARTS[figure](effort, place.results)}
        place.write("expected", found)
        print(f"figure {figure}: {time.perf_counter() - start:.0f} s", flush=True)
        for goal in found[f"figure {figure}"]["goals"]:
            print(goal)
    return found


if __name__ == "__main__":
    harness.command(run, figures=PARTS)
