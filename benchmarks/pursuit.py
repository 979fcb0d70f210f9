"""Time to a given KL of pursued mixtures, beside a boosting loop on NumPyro.

Run `python -m benchmarks.pursuit --help`; what is measured is in benchmarks/README.md.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import session
from benchmarks.growth import at_most, exponent
from benchmarks.launch import Effort, launch
from benchmarks.pursuit_point import LOOPS, Problem

OUTPUT = Path(__file__).parent / "results" / "pursuit.json"
LEVELS = (1.0, 0.5, 0.2, 0.1, 0.03, 0.01)  # of KL(q ‖ p), in nats
OWN = "pursue"
PEERS = ("NumPyro",)
LINEAR = 1.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    speed: tuple[Problem, ...]
    growth: tuple[Problem, ...]
    effort: Effort


def full(limit: int) -> Plan:
    speed = tuple(Problem(name, 6) for name in ("four modes, 2-d", "four modes, 1-d"))
    # one thread: with more, linear algebra of a few numbers waits for threads to wake up
    effort = Effort(runs=3, budget=60.0, limit=limit)
    return Plan(speed, (Problem("banana", 16),), effort)


def quick(limit: int) -> Plan:
    speed = (Problem("four modes, 1-d", 2, steps=50, draws=2),)
    return Plan(speed, (Problem("two far modes", 3),), Effort(runs=1, budget=1.0, limit=limit))


def speed(plan: Plan) -> dict[str, Any]:
    """All loops on each target, one after another."""
    points, ratios = [], []
    for problem in plan.speed:
        found = {name: point(name, problem, plan.effort) for name in LOOPS}
        points.append({"target": problem.target, "loops": found})
        ratios.append({"target": problem.target, "peers": compared(found)})
    return {"points": points, "ratios": ratios, "goals": faster(ratios)}


def growth(plan: Plan) -> dict[str, Any]:
    """Seconds of a step against the number of components that are there already."""
    points, goals = [], []
    for problem in plan.growth:
        found = launch("growth", problem, plan.effort, module="benchmarks.pursuit_point")
        steps = found.get("step_s", [])
        # over a constant: the step's own work without any mixture is no part of how it grows
        fit = exponent(range(2, len(steps) + 1), steps[1:])
        points.append({**found, "exponent": fit})
        goals.append(
            {
                "goal": f"{problem.target}: seconds a component grow no worse than linearly with "
                "the components that are there",
                "exponent": fit["exponent"],
                "standard error": fit["standard_error"],
                "components": len(steps),
                "met": at_most(fit, LINEAR),
            }
        )
        print("growth", problem.target, [round(s, 3) for s in steps], fit, flush=True)
    return {"points": points, "goals": goals}


PARTS = {"speed": speed, "growth": growth}


def run(plan: Plan, output: Path, parts: Sequence[str] = tuple(PARTS)) -> dict[str, Any]:
    """These parts, each written as it is found; others stay as the file has them; and the goals."""
    cold = {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # what an earlier run compiled is not warm
    os.environ |= cold
    every = {part: functools.partial(PARTS[part], plan) for part in parts}
    goals = lambda result: [goal for own in PARTS for goal in result.get(own, {}).get("goals", [])]
    environment = {**plan.effort.environment, **cold}
    return session.run(output, every, plan.effort, goals, environment=environment)


def point(loop: str, problem: Problem, effort: Effort) -> dict[str, Any]:
    """One process, and when each level was reached."""
    found = launch(loop, problem, effort, module="benchmarks.pursuit_point")
    if found["status"] != "finished" or "absent" in found:
        print(loop, problem.target, found.get("absent") or found, flush=True)
        return found
    warm = found["warm"]
    found["seconds to"] = {
        f"{level:g} nats": {
            "cold": first(found["cold"], level, "wall_s"),
            "cold, CPU": first(found["cold"], level, "cpu_s"),
            "warm": middle([first(own, level, "wall_s") for own in warm]),
            "warm, CPU": middle([first(own, level, "cpu_s") for own in warm]),
        }
        for level in LEVELS
    }
    found["least KL"] = [min(lowest(own), default=None) for own in (found["cold"], *warm)]
    print(loop, problem.target, "least KL", found["least KL"], found["seconds to"], flush=True)
    return found


def lowest(course: dict[str, Any]) -> list[float]:
    """What KL was, where it was finite."""
    return [value for value in course["kl"] if value is not None]


def first(course: dict[str, Any], level: float, clock: str) -> float | None:
    """Seconds until KL was no more than the level; None if it never was."""
    pairs = zip(course["kl"], course[clock], strict=True)
    return next((spent for kl, spent in pairs if kl is not None and kl <= level), None)


def middle(values: Sequence[float | None]) -> float | None:
    """The median, never reached counting as for ever; None if that is what it is."""
    found = median([float("inf") if value is None else value for value in values])
    return None if found == float("inf") else found


def compared(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of each peer, its seconds over ours at the lowest level that it reached, cold and warm."""
    own = found[OWN].get("seconds to", {})
    result: dict[str, Any] = {}
    for peer in PEERS:
        theirs = found[peer].get("seconds to")
        if theirs is None:
            result[peer] = found[peer].get("absent", found[peer]["status"])
            continue
        row: dict[str, Any] = {}
        for clock in ("cold", "warm", "cold, CPU", "warm, CPU"):
            both = [
                (level, theirs[level][clock] / own[level][clock])
                for level in theirs
                if theirs[level][clock] is not None and own.get(level, {}).get(clock) is not None
            ]
            row[clock] = dict(zip(("level", "ratio"), both[-1], strict=True)) if both else None
        row["levels that ours reached and it did not"] = [
            level
            for level in theirs
            if theirs[level]["warm"] is None and own.get(level, {}).get("warm") is not None
        ]
        result[peer] = row
    return result


def faster(ratios: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours is there first, cold and warm; where a peer never was, ours is."""
    goals = []
    for row in ratios:
        for peer, own in row["peers"].items():
            goal = f"{row['target']}: time of {peer} to the lowest KL it reached / that of pursue"
            if isinstance(own, str):
                goals.append({"goal": goal, "found": own, "met": None})
                continue
            each = {name: own[name] and own[name]["ratio"] for name in ("cold", "warm")}
            known = [value for value in each.values() if value is not None]
            goals.append(
                {
                    "goal": goal,
                    **each,
                    "level": own["warm"] and own["warm"]["level"],
                    "at_least": 1.0,
                    "met": all(value >= 1.0 for value in known) if known else None,
                }
            )
    return goals


def main(arguments: list[str] | None = None) -> None:
    parser = session.command_line(__doc__, OUTPUT, "small problems, few steps", parts=PARTS)
    chosen = parser.parse_args(arguments)
    result = run((quick if chosen.quick else full)(chosen.limit), chosen.output, chosen.only)
    session.tell(result["goals"])


if __name__ == "__main__":
    main()
