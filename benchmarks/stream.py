"""Time and peak memory of `posterity.fuse` on more sites than memory holds.

Run `python -m benchmarks.stream --help`; what is measured is in benchmarks/README.md.
"""

from pathlib import Path
from typing import Any

from benchmarks import session
from benchmarks.launch import Effort, launch
from benchmarks.problems import Shape
from benchmarks.session import load, source, write

OUTPUT = Path(__file__).parent / "results" / "stream.json"
SITES = (25_000, 50_000, 100_000, 200_000)
MILLION, FILES, BESIDE = 1_000_000, 100_000, 10_000
COMPONENTS, DIMENSION = 20, 5
SECONDS, BYTES, OFF = 60.0, 8e8, 1e-3


def run(effort: Effort, share: int, output: Path) -> dict[str, Any]:
    """Every point, with sizes divided by ``share``; what there is is written after each."""
    result: dict[str, Any] = {"settings": {"source_sha256": source(), "load_at_start": load()}}
    result["beside_memory"] = point("memory", BESIDE // share, effort)
    result["batches"] = []
    for sites in (*SITES, MILLION):
        result["batches"].append(point("batches", sites // share, effort))
        write(output, result)
    result["files"] = point("files", FILES // share, effort)
    result["settings"]["load_at_end"] = load()
    result["goals"] = goals(result)
    write(output, result)
    return result


def point(kind: str, sites: int, effort: Effort) -> dict[str, Any]:
    """One process, and a line on the terminal."""
    shape = Shape("NormalWishart", sites, COMPONENTS, DIMENSION)
    found = launch(kind, shape, effort, module="benchmarks.stream_point")
    ours = found.get("stream", found)
    seconds = f"{ours['cpu_s']:8.2f} s CPU" if "cpu_s" in ours else found["status"]
    memory = f"{ours.get('peak_bytes', 0) / 1e6:6.0f} MB"
    print(f"{kind:8} {sites:9} sites {seconds} {memory}", flush=True)
    return found


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    large = result["batches"][-1]
    rows = [
        (f"{large['sites']} sites, seconds of CPU time", large.get("cpu_s"), SECONDS),
        (f"{large['sites']} sites, bytes", large.get("peak_bytes"), BYTES),
        ("objective beside that in memory", abs(result["beside_memory"]["objective_off"]), OFF),
    ]
    return session.at_most(rows)


def main(arguments: list[str] | None = None) -> None:
    chosen = session.command_line(__doc__, OUTPUT, "a hundredth of the sizes").parse_args(arguments)
    effort = Effort(runs=1, budget=0.0, limit=chosen.limit)
    result = run(effort, 100 if chosen.quick else 1, chosen.output)
    session.tell(result["goals"])


if __name__ == "__main__":
    main()
