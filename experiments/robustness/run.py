"""Defaults judged by an independent optimiser: `python -m experiments.robustness.run`.

Goes on where an earlier run ended (`results/problems.jsonl`), and writes `results/expected.json`,
or `results/users.json` and the like for one group alone.
"""

import collections
import math
import time
import warnings
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.robustness.problems import Problem, logistic, naive, users
from experiments.robustness.reference import gap_of
from posterity import federate
from posterity.errors import PosterityError
from posterity.federation import Asynchronous, Gossip, Schedule, Sequential, Synchronous
from posterity.graphs import complete

RESULTS = Path(__file__).parent / "results"
WRONG = 0.01
"""Nats of free energy above the least at which a posterior is wrong: ten times the tolerance."""
MAKE = {"logistic": logistic, "naive": naive, "users": users}


def judged(problem: Problem) -> dict[str, Any]:
    """What the defaults say, and how far off they are."""
    told: dict[str, Any] = {"kind": problem.kind, "about": problem.about}
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is warned of is in the status
            kinds = {"synchronous": Synchronous, "asynchronous": Asynchronous}
            name = problem.about.get("schedule", "sequential")
            schedule: Schedule = kinds.get(name, Sequential)()
            if name == "gossip" and len(problem.sites) > 2:
                schedule = Gossip(complete(list(problem.sites)))
            run = federate(problem.sites, problem.model, problem.prior, schedule=schedule)
    except PosterityError as error:
        return told | {"status": type(error).__name__, "why": str(error)[:400], "gap": None}
    status = {"status": run.status.state, "why": str(run.status), "steps": run.state.step}
    status["CPU seconds"] = round(time.process_time() - began, 2)
    gap = gap_of(problem)(run.posterior)
    return told | status | {"gap": gap}


def verdict(gap: float | None) -> str:
    if gap is None:
        return "no posterior"
    return "wrong" if gap > WRONG else "right" if gap > -WRONG else "reference failed"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        for kind in (row["kind"], "all"):
            table[kind]["problems"] += 1
            table[kind][f"{row['status']}, {verdict(row['gap'])}"] += 1
    gaps = [r["gap"] for r in rows if r["status"] == "converged"]
    return {
        "wrong": f"free energy more than {WRONG} nats above the least that BFGS finds",
        "goal": "0 converged and wrong (silent); at most 1 % not converged but right (false)",
        "silent": sum(r["status"] == "converged" and verdict(r["gap"]) == "wrong" for r in rows),
        "false": sum(r["status"] == "not converged" and verdict(r["gap"]) == "right" for r in rows),
        "seeds": "0, 1, 2, ... in each group",
        "counts": {kind: dict(sorted(counts.items())) for kind, counts in sorted(table.items())},
        "converged: gaps above 1e-3 nats": sum(gap > 1e-3 for gap in gaps),
        "converged: largest gap, nats": max(gaps, default=None),
    }


def run(
    *, count: int = 1000, group: str = "", minutes: float = math.inf, results: Path = RESULTS
) -> dict[str, Any]:
    """``count`` problems of each group, or of one alone; see :func:`experiments.harness.rows`."""
    keys = [(name, seed) for name in ([group] if group else MAKE) for seed in range(count)]
    measure = lambda name, seed: judged(MAKE[name](seed))
    path = results / "problems.jsonl"
    found = summary(harness.rows(path, ("group", "seed"), keys, measure, minutes))
    harness.write(results, group or "expected", found)
    return found


if __name__ == "__main__":
    harness.command(run, group=MAKE)
