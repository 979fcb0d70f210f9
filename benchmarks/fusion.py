"""Time and peak memory of `posterity.fuse`, alone and beside its peers.

Run `python -m benchmarks.fusion --help`; what is measured, and how, is in benchmarks/README.md.
Times and ratios are judged by either clock: `met` by the wall's, `met_in_cpu_time` by the CPU's;
None where what they need did not finish.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import session
from benchmarks.growth import at_most, fits
from benchmarks.launch import Effort, launch
from benchmarks.problems import Shape


@dataclasses.dataclass(frozen=True)
class Series:
    """One factor (a field of `Shape`) varied around a base point."""

    factor: str
    base: Shape
    values: tuple[int, ...]

    @property
    def name(self) -> str:
        """For example `sites, NormalWishart`."""
        return f"{self.factor}, {self.base.family}"

    @property
    def shapes(self) -> list[Shape]:
        return [dataclasses.replace(self.base, **{self.factor: value}) for value in self.values]


@dataclasses.dataclass(frozen=True)
class Compared:
    """A peer, a kind of `benchmarks.point`, on one shape; with a goal for the ratio or none."""

    peer: str
    shape: Shape
    seeds: int
    goal: float | None = None


@dataclasses.dataclass(frozen=True)
class Target:
    """A problem to be fused in so many seconds, in so many times the memory of its input."""

    shape: Shape
    seconds: float
    memory: float | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The peers, the problems with a goal, the command's files, and all series.

    `ladder` ends where `top` says how long it may take; `steepest` is its exponent's goal.
    """

    compared: tuple[Compared, ...]
    targets: tuple[Target, ...]
    ladder: Series
    top: Target
    command: Target
    series: tuple[Series, ...]
    effort: Effort
    steepest: float = 1.5


FULL, DIAGONAL = Shape("NormalWishart", 20, 10, 5), Shape("DiagonalGaussian", 20, 10, 20)
SITES = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
COMPONENTS = (3, 5, 10, 20, 50, 100, 200)
FILES = Target(Shape("NormalWishart", 6, 5, 2), 0.6)


def small(sites: int, components: int) -> Shape:
    """A problem of the size that the peers were published with."""
    return Shape("NormalWishart", sites, components, 2)


def full(limit: int, threads: int) -> Plan:
    return Plan(
        compared=(
            Compared("klfusion-40", small(10, 10), 1, goal=2000.0),
            Compared("klfusion", small(10, 10), 3, goal=700.0),
            Compared("spahm", small(10, 10), 3, goal=4.0),
            Compared("klfusion", small(10, 3), 3),
            Compared("klfusion", small(20, 10), 1),
            Compared("spahm", small(100, 20), 1),
        ),
        targets=(
            Target(Shape("NormalWishart", 1000, 50, 10), 0.8),
            Target(Shape("NormalWishart", 10_000, 20, 5), 0.7),
        ),
        ladder=Series("components", FULL, (50, 100, 200, 400)),
        top=Target(dataclasses.replace(FULL, components=400), 1.0, memory=15.0),
        command=FILES,
        series=(
            Series("sites", FULL, SITES),
            Series("sites", DIAGONAL, SITES),
            Series("components", FULL, COMPONENTS),
            Series("components", DIAGONAL, COMPONENTS),
            Series("dimension", FULL, (2, 3, 5, 10, 20, 30, 50)),
            Series("dimension", DIAGONAL, (2, 5, 10, 20, 50, 100, 200, 500, 1000)),
        ),
        effort=Effort(runs=5, budget=6.0, limit=limit, threads=threads),
    )


def quick(limit: int, threads: int) -> Plan:
    """A few small points: that everything runs, not how fast."""
    base = dataclasses.replace(FULL, sites=3, dimension=2)
    return Plan(
        compared=(
            Compared("klfusion", small(2, 2), 1, goal=600.0),
            Compared("spahm", small(2, 2), 1, goal=3.0),
        ),
        targets=(Target(Shape("NormalWishart", 20, 5, 3), 1.0),),
        ladder=Series("components", base, (2, 4)),
        top=Target(dataclasses.replace(base, components=4), 1.5, memory=30.0),
        command=dataclasses.replace(FILES, shape=small(2, 2)),
        series=(Series("sites", dataclasses.replace(FULL, dimension=2), (3, 6)),),
        effort=Effort(runs=2, budget=0.5, limit=limit, threads=threads),
    )


LINEAR = 1.0
CLOCKS = ("wall", "cpu")


def summary(compared: Compared, points: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the seeds of one comparison, and which code it was that ran."""
    done = [p for p in points if p["status"] == "finished"]
    row: dict[str, Any] = {
        "peer": compared.peer,
        "sites": compared.shape.sites,
        "components": compared.shape.components,
        "seeds": len(points),
        "finished": len(done),
    }
    if not done:
        return row
    row["code"] = " / ".join(dict.fromkeys(p["peer"]["code"] for p in done))
    for clock in CLOCKS:
        row[f"ratio_{clock}"] = _ratio(done, f"{clock}_s")
        for who in ("posterity", "peer"):
            row[f"{who}_{clock}_s"] = median(p[who][f"{clock}_s"] for p in done)
    return row


def faster(compared: Compared, row: dict[str, Any]) -> dict[str, Any]:
    """Of a comparison: how many times faster than the peer."""
    goal = compared.goal or 0.0
    size = f"{row['sites']} sites x {row['components']} components"
    measured = {clock: row.get(f"ratio_{clock}") for clock in CLOCKS}
    return {
        "goal": f"at least {goal:g} times faster than {compared.peer} at {size}",
        "code": row.get("code"),
        **measured,
        **_met(measured, lambda ratio: ratio >= goal),
    }


def seconds(target: Target, point: dict[str, Any], what: str = "") -> dict[str, Any]:
    """Of a problem: that it takes at most so long."""
    measured = {clock: point.get(f"{clock}_s") for clock in CLOCKS}
    name = f"{what or _problem(target)} in at most {target.seconds:g} s"
    if point["status"] == "did not finish":
        return {"goal": name, **measured, "met": False, "met_in_cpu_time": False}
    return {"goal": name, **measured, **_met(measured, lambda value: value <= target.seconds)}


def memory(target: Target, point: dict[str, Any]) -> dict[str, Any]:
    """Of a problem: that it takes at most so many times the memory of its input."""
    name = f"{_problem(target)} in at most {target.memory:g} times the memory of the input"
    if point["status"] != "finished":
        return {"goal": name, "measured": None, "met": None}
    measured = point["peak_bytes"] / point["input_bytes"]
    return {"goal": name, "measured": measured, "met": bool(measured <= (target.memory or 0.0))}


def ladder(plan: Plan, series: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the components a site: the exponent, and what its last point takes."""
    fit, last = series["exponents"]["cpu_time"], series["points"][-1]
    name = f"exponent of CPU time in the number of {series['name']}, at most {plan.steepest:g}"
    met = None if fit["exponent"] is None else bool(fit["exponent"] <= plan.steepest)
    return [seconds(plan.top, last), {"goal": name, **fit, "met": met}, memory(plan.top, last)]


def growth(series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the numbers of sites: linear time, and linear memory."""
    kinds = {
        "cpu_time": "CPU time in the number of",
        "memory_by_input": "peak memory in input bytes, over",
    }
    own = [s for s in series if s["factor"] == "sites"]
    return [_linear(s, kind, what) for kind, what in kinds.items() for s in own]


def _linear(series: dict[str, Any], kind: str, what: str) -> dict[str, Any]:
    fit = series["exponents"][kind]
    name = f"exponent of {what} {series['name']}, at most {LINEAR:.0f} within a standard error"
    return {"goal": name, **fit, "met": at_most(fit, LINEAR)}


def _problem(target: Target) -> str:
    shape = target.shape
    size = f"{shape.sites} sites x {shape.components} {shape.family} components"
    return f"{size} of dimension {shape.dimension}"


def _met(measured: dict[str, Any], holds: Callable[[float], bool]) -> dict[str, bool | None]:
    judged = {clock: None if v is None else bool(holds(v)) for clock, v in measured.items()}
    return {"met": judged["wall"], "met_in_cpu_time": judged["cpu"]}


def _ratio(points: list[dict[str, Any]], key: str) -> float:
    return median(p["peer"][key] / p["posterity"][key] for p in points)


OUTPUT = Path(__file__).parent / "results" / "fusion.json"
WARM_UP = (
    "two fusions of 3 sites x 3 components of the same family and dimension; memory is that of "
    "the first call on the inputs, times are medians of the calls after it, or its own where it "
    "takes more than 20 s of CPU"
)


def run(plan: Plan, output: Path, only: Sequence[str]) -> dict[str, Any]:
    """Measure the parts asked for; each is written when it is done, the others stay as they are."""
    parts, effort = {part: functools.partial(PARTS[part], plan) for part in only}, plan.effort
    about = {"cpu_limit_s": effort.limit, "runs_at_most": effort.runs, "warm_up": WARM_UP}
    return session.run(output, parts, effort, **about)


def peers(plan: Plan) -> dict[str, Any]:
    """`fuse` beside the peers, on the same inputs."""
    rows, every, judged = [], [], []
    for compared in plan.compared:
        points = [
            show(launch(compared.peer, compared.shape, plan.effort, seed))
            for seed in range(compared.seeds)
        ]
        rows.append(summary(compared, points))
        every += points
        if compared.goal is not None:
            judged.append(faster(compared, rows[-1]))
    return {"summary": rows, "points": every, "goals": judged}


def targets(plan: Plan) -> dict[str, Any]:
    """Problems with a goal in seconds, the ladder of components, and the command from cold."""
    points = [show(launch("growth", target.shape, plan.effort)) for target in plan.targets]
    climbed = measure(plan.ladder, plan.effort)
    command = launch("command", plan.command.shape, plan.effort)
    judged = [*map(seconds, plan.targets, points), *ladder(plan, climbed)]
    files = f"posterity fuse of {plan.command.shape.sites} files, cold,"
    judged.append(seconds(plan.command, show(command), files))
    return {"points": points, "ladder": climbed, "command": command, "goals": judged}


def series(plan: Plan) -> dict[str, Any]:
    measured = [measure(own, plan.effort) for own in plan.series]
    return {"series": measured, "goals": growth(measured)}


PARTS = {"peers": peers, "targets": targets, "series": series}


def measure(series: Series, effort: Effort) -> dict[str, Any]:
    points = [show(launch("growth", shape, effort)) for shape in series.shapes]
    return {
        "name": series.name,
        "factor": series.factor,
        "base": dataclasses.asdict(series.base),
        "exponents": fits(series.factor, points),
        "points": points,
    }


def show(point: dict[str, Any]) -> dict[str, Any]:
    ours = point.get("posterity", point)
    seconds = f"{ours['cpu_s']:9.3f} s CPU" if "cpu_s" in ours else point["status"]
    if "peer" in point:
        seconds += f", peer {point['peer']['cpu_s']:.3f} s ({point['peer']['code']})"
    size = f"{point['sites']} x {point['components']}, d = {point['dimension']}"
    print(f"{point['family']:16} {size:24} {seconds}", flush=True)
    return point


def main(arguments: list[str] | None = None) -> None:
    parser = session.command_line(__doc__, OUTPUT, "a few small points", limit=120, parts=PARTS)
    parser.add_argument("--threads", type=int, default=1, help="threads of the linear algebra")
    chosen = parser.parse_args(arguments)
    make = quick if chosen.quick else full
    result = run(make(chosen.limit, chosen.threads), chosen.output, chosen.only)
    if "series" in chosen.only:
        from benchmarks.figures import draw

        draw(result["series"], chosen.output.with_suffix(".png"))
    session.tell(goal for part in chosen.only for goal in result[part]["goals"])


if __name__ == "__main__":
    main()
