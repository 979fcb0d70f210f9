"""Time of stochastic-gradient chains and their students, beside BlackJAX, posteriors and PyTorch.

Run `python -m benchmarks.distillation --help`; what is measured is in benchmarks/README.md.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import session
from benchmarks.distillation_point import Problem
from benchmarks.launch import Effort, launch
from benchmarks.session import load

OUTPUT = Path(__file__).parent / "results" / "distillation.json"
SMALL = Problem((2, 10, 2), records=1000, batch=20, chains=1, steps=4000)
LARGE = Problem((784, 400, 400, 10), records=10_000, batch=100, chains=1, steps=100)
CHAINS = {1: 4000, 16: 2000, 256: 400}
"""Chains of the small network, and the steps that a turn of theirs makes."""
SAMPLES = (1_000, 10_000, 100_000)  # steps of whole runs whose memory is compared

FASTER, DEARER = 2.5, 1.5
SCANNED, EAGER = 4.0, 200.0
BOTH = 2.3
FLAT = 1.1

KINDS = {"large": "speed", "small": "speed", "student": "student", "memory": "memory"}
"""Of each part, what its points measure."""
PARTS = tuple(KINDS)

ONE_BY_ONE = ("BlackJAX, Python loop, one chain", "PyTorch loop, 1 thread", "posteriors, 1 thread")
"""How the names of peers begin that come back to Python after each step of each chain."""
NO_PEERS = ("Langevin", "SGLD", "SGHMC", "gradient", "PyTorch loop without")
"""How the names of all begin that are no sampler of someone else's."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    large: tuple[Problem, ...]
    small: tuple[Problem, ...]
    student: tuple[Problem, ...]
    memory: tuple[Problem, ...]
    effort: Effort


def full(limit: int) -> Plan:
    small = [dataclasses.replace(SMALL, chains=c, steps=s) for c, s in CHAINS.items()]
    memory = [dataclasses.replace(SMALL, chains=16, steps=s) for s in SAMPLES]
    effort = Effort(runs=9, budget=15.0, limit=limit, threads=os.cpu_count() or 1)
    student = dataclasses.replace(LARGE, steps=200)
    return Plan((LARGE,), tuple(small), (student,), tuple(memory), effort)


def quick(limit: int) -> Plan:
    """The same with a network and runs that are done at once."""
    small = [dataclasses.replace(SMALL, records=50, chains=3, steps=20)]
    large = Problem((16, 32, 3), records=100, batch=10, chains=1, steps=20)
    memory = [dataclasses.replace(SMALL, records=50, chains=2, steps=s) for s in (20, 200)]
    effort = Effort(runs=2, budget=0.2, limit=limit)
    return Plan((large,), tuple(small), (large,), tuple(memory), effort)


def run(plan: Plan, output: Path, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """These parts, each written as it is found; others stay as the file has them; and the goals."""

    def measured(part: str) -> dict[str, Any]:
        problems = getattr(plan, part)
        return {"points": [point(KINDS[part], problem, plan.effort) for problem in problems]}

    every = {part: functools.partial(measured, part) for part in parts}
    return session.run(output, every, plan.effort, goals)


def point(kind: str, problem: Problem, effort: Effort) -> dict[str, Any]:
    """One process, and lines on the terminal."""
    found = launch(kind, problem, effort, module="benchmarks.distillation_point")
    print(f"{kind} {'-'.join(map(str, problem.sizes))}, chains {problem.chains}, load {load()}")
    if found["status"] != "finished":
        print(f"  {found['status']}: {found.get('error', '')}", flush=True)
    for name, seconds in found.get("wall_s_a_chain_step", {}).items():
        ratio, cpu = found["over_langevin_wall"][name], found["over_langevin_cpu"][name]
        print(f"  {name:36} {seconds * 1e6:10.2f} us {ratio:8.2f} (CPU {cpu:.2f})", flush=True)
    return found


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was: in wall time and in CPU time, both have to hold."""
    points = {part: result.get(part, {}).get("points") or [{}] for part in PARTS}
    large, many, student = points["large"][0], points["small"][-1], points["student"][0]
    name = f"{many.get('chains')} chains of a small network"
    short, long = points["memory"][0], points["memory"][-1]
    peaks = [one.get("peak_bytes") for one in points["memory"]]
    flat = max(peaks) / peaks[0] if all(peaks) else None
    return [
        judged("large network: fastest peer / Langevin", peers(large), at_least=FASTER),
        judged(
            "large network: Langevin / gradient alone", inverse(large, "gradient"), at_most=DEARER
        ),
        judged(
            f"{name}: BlackJAX vmapped in a scan / Langevin",
            peers(many, ("BlackJAX in a scan",)),
            at_least=SCANNED,
        ),
        judged(
            f"{name}: fastest eager peer / Langevin, a chain-step",
            peers(many, ONE_BY_ONE),
            at_least=EAGER,
        ),
        judged(
            "large network: teacher and student / teacher alone",
            [student.get("ratio_wall"), student.get("ratio_cpu")],
            at_most=BOTH,
        ),
        judged(
            f"memory of {long.get('steps')} steps / that of {short.get('steps')}",
            [flat],
            at_most=FLAT,
        ),
    ]


def peers(point: dict[str, Any], which: tuple[str, ...] = ()) -> list[float | None]:
    """Of the fastest of these peers, its time over ours: wall and CPU."""
    own = lambda name: name.startswith(which) if which else not name.startswith(NO_PEERS)
    ratios = [point.get(f"over_langevin_{clock}", {}) for clock in ("wall", "cpu")]
    return [min((r for name, r in found.items() if own(name)), default=None) for found in ratios]


def inverse(point: dict[str, Any], name: str) -> list[float | None]:
    """Our time over that of one: wall and CPU."""
    ratios = [point.get(f"over_langevin_{clock}", {}).get(name) for clock in ("wall", "cpu")]
    return [None if ratio is None else 1 / ratio for ratio in ratios]


def judged(
    goal: str, found: list[Any], *, at_least: float | None = None, at_most: float | None = None
) -> dict[str, Any]:
    """The goal with what was found; met is None if nothing was: a peer is absent, a point late."""
    within = lambda x: (at_least is None or x >= at_least) and (at_most is None or x <= at_most)
    met = None if None in found else all(map(within, found))
    limit = {"at_least": at_least} if at_most is None else {"at_most": at_most}
    return {"goal": goal, **dict(zip(("wall", "cpu"), found, strict=False)), **limit, "met": met}


def main(arguments: list[str] | None = None) -> None:
    parser = session.command_line(__doc__, OUTPUT, "small networks, few steps", parts=PARTS)
    chosen = parser.parse_args(arguments)
    result = run((quick if chosen.quick else full)(chosen.limit), chosen.output, chosen.only)
    session.tell(result["goals"])


if __name__ == "__main__":
    main()
