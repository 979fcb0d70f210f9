"""Time and peak memory of `posterity.fuse`, alone and beside its peers.

Run `python -m benchmarks.fusion --help`; what is measured, and how, is in benchmarks/README.md.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import goals, session
from benchmarks import plan as plans
from benchmarks.growth import fits
from benchmarks.launch import Effort, launch

OUTPUT = Path(__file__).parent / "results" / "fusion.json"
WARM_UP = (
    "two fusions of 3 sites x 3 components of the same family and dimension; memory is that of "
    "the first call on the inputs, times are medians of the calls after it, or its own where it "
    "takes more than 20 s of CPU"
)


def run(plan: plans.Plan, output: Path, only: Sequence[str]) -> dict[str, Any]:
    """Measure the parts asked for; each is written when it is done, the others stay as they are."""
    parts, effort = {part: functools.partial(PARTS[part], plan) for part in only}, plan.effort
    about = {"cpu_limit_s": effort.limit, "runs_at_most": effort.runs, "warm_up": WARM_UP}
    return session.run(output, parts, effort, **about)


def peers(plan: plans.Plan) -> dict[str, Any]:
    """`fuse` beside the peers, on the same inputs."""
    rows, every, judged = [], [], []
    for compared in plan.compared:
        points = [
            show(launch(compared.peer, compared.shape, plan.effort, seed))
            for seed in range(compared.seeds)
        ]
        rows.append(goals.summary(compared, points))
        every += points
        if compared.goal is not None:
            judged.append(goals.faster(compared, rows[-1]))
    return {"summary": rows, "points": every, "goals": judged}


def targets(plan: plans.Plan) -> dict[str, Any]:
    """Problems with a goal in seconds, the ladder of components, and the command from cold."""
    points = [show(launch("growth", target.shape, plan.effort)) for target in plan.targets]
    climbed = measure(plan.ladder, plan.effort)
    command = launch("command", plan.command.shape, plan.effort, module="benchmarks.command")
    judged = [*map(goals.seconds, plan.targets, points), *goals.ladder(plan, climbed)]
    files = f"posterity fuse of {plan.command.shape.sites} files, cold,"
    judged.append(goals.seconds(plan.command, show(command), files))
    return {"points": points, "ladder": climbed, "command": command, "goals": judged}


def series(plan: plans.Plan) -> dict[str, Any]:
    measured = [measure(own, plan.effort) for own in plan.series]
    return {"series": measured, "goals": goals.growth(measured)}


PARTS = {"peers": peers, "targets": targets, "series": series}


def measure(series: plans.Series, effort: Effort) -> dict[str, Any]:
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
    make = plans.quick if chosen.quick else plans.full
    result = run(make(chosen.limit, chosen.threads), chosen.output, chosen.only)
    if "series" in chosen.only:
        from benchmarks.figures import draw

        draw(result["series"], chosen.output.with_suffix(".png"))
    session.tell(goal for part in chosen.only for goal in result[part]["goals"])


if __name__ == "__main__":
    main()
