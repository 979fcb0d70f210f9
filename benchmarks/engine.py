"""The engine between organisations: hops, a server's updates, starting, recovery, and scale.

Run `python -m benchmarks.engine --help`; what is measured is in benchmarks/README.md, and what it
says of scale in docs/scale.md. Disk is that of `ENGINE_FOLDER`, or of temporary files.
"""

import functools
import itertools
import math
from pathlib import Path
from typing import Any

from benchmarks import session
from benchmarks.engine_point import Size
from benchmarks.launch import Effort, launch

OUTPUT = Path(__file__).parent / "results" / "engine.json"
MODULE = "benchmarks.engine_point"
SMALL, LARGE = 5, 10_000
STEPS = 1_000_000
HOP, BACK = 5e-3, 10.0
"""Seconds: of the processor for a hop, or of the clock beside its forced write between agents; and
until a killed agent answers again."""
SITES = (10, 100, 1000)
KINDS = (("star", "synchronous"), ("star", "sequential"), ("walk", "sequential"))


def hops(effort: Effort, share: int) -> list[dict[str, Any]]:
    """A token between two sites: in one process, and between agents over Unix sockets."""
    del share
    size = Size(2, LARGE, steps=STEPS)
    return [point(kind, size, effort) for kind in ("hop", "socket")]


def server(effort: Effort, share: int) -> list[dict[str, Any]]:
    """Answers that all wait at a server, taken in 1, 10 and 50 a write."""
    kinds = [(SMALL, 500 // share), (LARGE, 200 // share)]
    sizes = [Size(n, p, batch, "star", "synchronous") for p, n in kinds for batch in (1, 10, 50)]
    return [point("server", size, effort) for size in sizes]


def process(effort: Effort, share: int) -> list[dict[str, Any]]:
    """An agent's start, and its return after SIGKILL in mid-walk."""
    del share
    return [point("process", Size(2, LARGE), effort)]


def scale(effort: Effort, share: int) -> list[dict[str, Any]]:
    """Federations of more and more sites, until they rest; and how what they need grows."""
    rows = []
    for protocol, schedule in KINDS:
        points = [
            point("scale", Size(sites // share, SMALL, 50, protocol, schedule), effort)
            for sites in SITES
            if sites // share > 1
        ]
        rows += points
        done = [each for each in points if each["status"] == "finished"]
        for before, after in itertools.pairwise(done):
            growth = math.log(after["sites"] / before["sites"])
            for name in ("cpu_s", "sent_bytes", "writes"):
                after[f"{name}_exponent"] = math.log(after[name] / before[name]) / growth
    return [*rows, point("tree", Size(max(100 // share, 2), SMALL, 50, *KINDS[0]), effort)]


def point(kind: str, size: Size, effort: Effort) -> dict[str, Any]:
    """One process, and a line on the terminal."""
    found = {"kind": kind, **launch(kind, size, effort, module=MODULE)}
    told = {k: v for k, v in found.items() if k.endswith(("_s", "ratio", "writes")) or k == "error"}
    plain = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in told.items()}
    print(f"{kind} {size}: {found['status']} {plain}", flush=True)
    return found


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    rows: list[tuple[str, float | None, float]] = []
    points = (each for part in PARTS for each in result.get(part, {}).get("points", ()))
    named = {each["kind"]: each for each in points}
    bare = named.get("hop", {}).get("bare_commit_p50_s", 0.0)
    if "cpu_s" in named.get("hop", {}):
        rows.append(("hop, time of the processor", named["hop"]["cpu_s"], HOP))
    if "p50_s" in named.get("socket", {}):
        rows.append(("socket, beside one forced write", named["socket"]["p50_s"] - bare, HOP))
    if "process" in named:
        rows.append(("a killed agent answers again", named["process"].get("back_s"), BACK))
    return session.at_most(rows)


PARTS = {"hops": hops, "server": server, "process": process, "scale": scale}


def main(arguments: list[str] | None = None) -> None:
    parser = session.command_line(__doc__, OUTPUT, "a tenth of the sizes", parts=PARTS)
    chosen = parser.parse_args(arguments)
    effort = Effort(runs=5 if chosen.quick else 50, budget=60.0, limit=chosen.limit)
    share = 10 if chosen.quick else 1
    measured = lambda part: {"points": PARTS[part](effort, share)}
    every = {part: functools.partial(measured, part) for part in chosen.only}
    session.tell(session.run(chosen.output, every, effort, goals)["goals"])


if __name__ == "__main__":
    main()
