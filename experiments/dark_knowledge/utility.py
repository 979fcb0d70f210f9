"""Is a student's uncertainty of use? `python -m experiments.dark_knowledge.utility`.

Active learning (`utility_labels`) and a bandit (`utility_bandit`). Goes on where an earlier run
ended; `--part` runs one of the two only, so that both may run at a time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.dark_knowledge import CACHE, RESULTS
from experiments.dark_knowledge import utility_bandit as bandit
from experiments.dark_knowledge import utility_labels as labels
from experiments.dark_knowledge import utility_report as report
from experiments.dark_knowledge.utility_bandit import Decisions
from experiments.dark_knowledge.utility_labels import Labels
from experiments.dark_knowledge.utility_networks import Effort

PARTS = {"labels": labels, "bandit": bandit}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    labels: Labels = dataclasses.field(default_factory=Labels)
    bandit: Decisions = dataclasses.field(default_factory=Decisions)


BRIEF = Effort(chains=4, climb=100, burn_in=150, draws=10, apart=5, steps=200, mode_steps=100)
QUICK = Plan(
    seeds=(0,),
    labels=Labels(pool=200, rounds=2, evaluated=2, sizes=(64,), effort=BRIEF),
    bandit=Decisions(count=60, fits=(10, 30), sizes=(64,), effort=BRIEF),
)


def rows(
    part: str, plan: Plan, cache: Path, methods: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Runs of all methods, seed by seed; those that are kept are not run again."""
    own = getattr(plan, part)
    parts = repr((own, PARTS[part].VARIANCE, PARTS[part].NET))
    digest = hashlib.sha256(parts.encode()).hexdigest()[:12]
    path = cache / f"utility-{part}-{digest}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = list(map(json.loads, path.read_text().splitlines())) if path.exists() else []
    done = {(row["method"], row["seed"]) for row in found}
    for seed in plan.seeds:
        for method in methods or PARTS[part].METHODS:
            if (method, seed) in done:
                continue
            row = PARTS[part].run(method, seed, own)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            found.append(row)
            print(f"{part}, seed {seed}, {method}: {row['CPU s']:.1f} CPU s", flush=True)
    return found


def run(plan: Plan, results: Path = RESULTS, cache: Path = CACHE) -> dict[str, Any]:
    """Measure, judge, draw and write; returns what `utility.json` holds."""
    measured = {part: rows(part, plan, cache) for part in PARTS}
    asks, decides = labels.timed(plan.labels), bandit.timed(plan.bandit)
    one, two = report.of_labels(measured["labels"]), report.of_bandit(measured["bandit"])
    ratio = {
        "goal": "scoring the pool takes the student at most a tenth of the teacher's CPU time",
        "ratio": report.rounded(asks["ratio"], 3),
        "met": bool(asks["ratio"] >= 10),
    }
    found = {
        "how": "spread: standard error of the mean over seeds; advantages are paired by seed",
        "plan": dataclasses.asdict(plan),
        "goals": [*one.pop("goals"), *two.pop("goals"), ratio],
        "active learning": one | {"time": report.rounded_all(asks)},
        "bandit": two | {"time": report.rounded_all(decides)},
    }
    harness.write(results, "utility", found)
    report.picture(found, results / "utility.png")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = harness.command_line(__doc__, RESULTS, CACHE)
    parser.add_argument("--longer", action="store_true", help="only run students of more steps")
    parser.add_argument("--part", choices=sorted(PARTS), help="only run it; nothing is written")
    parser.add_argument("--seeds", type=int, nargs="+", help="0 to 4 by default")
    chosen = parser.parse_args(arguments)
    plan = QUICK if chosen.quick else Plan()
    if chosen.seeds is not None:
        plan = dataclasses.replace(plan, seeds=tuple(chosen.seeds))
    if chosen.longer:
        rows("labels", plan, chosen.cache, (labels.LONGER,))
        return
    if chosen.part is not None:
        rows(chosen.part, plan, chosen.cache)
        return
    for goal in run(plan, chosen.results, chosen.cache)["goals"]:
        print("met " if goal["met"] else "not met ", goal["goal"])


if __name__ == "__main__":
    main()
