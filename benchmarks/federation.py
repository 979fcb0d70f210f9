"""Speed of federation: walks beside a plain loop, growth, and forgetting beside retraining.

Run `python -m benchmarks.federation --help`; what is measured, and how, is in benchmarks/README.md.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks import session
from benchmarks.federation_point import HOPS_OF_A_RUN, Size
from benchmarks.growth import exponent
from benchmarks.launch import Effort, launch

FEWER = {"REINFORCE speed": 50, "default speed": 10}
"""Where local iterations take longer, fewer visits are enough."""
OUTPUT = Path(__file__).parent / "results" / "federation.json"
FASTER = {"conjugate speed, sums kept": 10, "conjugate speed, NumPy in step": 1}
"""Walk steps a CPU second, in units of the plain loop's, where that is not 200."""
BESIDE_PLAIN = {
    "logistic round, diagonal": 1.15,
    "logistic round, full": 1.15,
    "default to 1e-3 nats": 3.0,
    "network round": 1 / 1.5,
    "REINFORCE beside its draws": 2.0,
}
"""The most CPU time, in units of that of plain JAX, or of drawing alone."""
HOP = 0.3e-3
SECONDS = {
    ("sites of unequal size",): 5.0,
    ("many conjugate sites",): 10.0,
    ("many conjugate sites", "next pass"): 3.0,
    ("many conjugate sites", "forget"): 0.01,
    ("cold example",): 1.5,
}
"""CPU seconds of first passes and of what follows them."""
MEMORY = 120e6  # bytes of the example in a new process, at most
SPEEDS = (
    *("conjugate speed", "conjugate speed, sums kept", "conjugate speed, NumPy in step"),
    *("REINFORCE speed", "default speed"),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of everything."""

    speed: Size
    series: dict[str, tuple[str, list[Size]]]  # by kind of point, what varies and the points
    waiting: Size
    targets: dict[str, Size]
    peer: Size
    effort: Effort
    plain: dict[str, Size]  # rounds beside plain JAX
    speeds: tuple[str, ...] = SPEEDS


def full(limit: int) -> Plan:
    wide = [Size(sites=n) for n in (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)]
    dimensions = (2, 5, 10, 20, 50, 100, 200, 400)
    data = (100, 1000, 10_000, 100_000, 1_000_000)
    return Plan(
        speed=Size(visits=1000),
        series={
            "sites": ("sites", wide),
            "hops": ("sites", wide[:7]),
            "dimension": ("dimension", [Size(dimension=d, records=200) for d in dimensions]),
            "conjugate forget": ("records", [Size(records=n) for n in data]),
        },
        waiting=Size(),
        targets={
            "sites of unequal size": Size(sites=1000, dimension=5),
            "many conjugate sites": Size(sites=100_000, records=10),
            "cold example": Size(),
        },
        peer=Size(records=1000, dimension=50),
        effort=Effort(runs=5, budget=30.0, limit=limit),
        plain={
            "logistic round, diagonal": Size(records=1000, dimension=50),
            "logistic round, full": Size(records=1000, dimension=50),
            "default to 1e-3 nats": Size(records=1000, dimension=50),
            "network round": Size(sites=3, records=200, steps=5),
            "REINFORCE beside its draws": Size(visits=10),
        },
    )


def quick(limit: int) -> Plan:
    """A few small points: that everything runs, not how fast."""
    return Plan(
        speed=Size(sites=5, visits=20, repetitions=10),
        series={"conjugate forget": ("records", [Size(records=10)])},
        waiting=Size(),
        targets={"many conjugate sites": Size(sites=3, records=5), "cold example": Size()},
        peer=Size(sites=2, records=20, steps=2),
        effort=Effort(runs=1, budget=0.2, limit=limit),
        plain={"logistic round, full": Size(sites=2, records=20, steps=2)},
        speeds=("conjugate speed",),
    )


def speed(plan: Plan) -> dict[str, Any]:
    """Walks, in turns with a plain loop."""
    visits = {kind: max(1, plan.speed.visits // FEWER.get(kind, 1)) for kind in plan.speeds}
    sizes = {kind: dataclasses.replace(plan.speed, visits=many) for kind, many in visits.items()}
    return {"points": {kind: show(kind, size, plan) for kind, size in sizes.items()}}


def series(plan: Plan) -> dict[str, Any]:
    found = {}
    for kind, (factor, sizes) in plan.series.items():
        points = [show(kind, size, plan) for size in sizes]
        fits = exponents(factor, points)
        found[kind] = {"factor": factor, "points": points, "exponents": fits}
    return {"series": found}


def targets(plan: Plan) -> dict[str, Any]:
    return {"points": {kind: show(kind, size, plan) for kind, size in plan.targets.items()}}


def beside(plan: Plan) -> dict[str, Any]:
    """Rounds beside plain JAX, and beside released code if it is there."""
    sizes = plan.plain | {"released PVI code": plan.peer}
    points = {k: show(k, size, plan, "benchmarks.pvi_point") for k, size in sizes.items()}
    print(points["released PVI code"].get("absent", "MattAshman/pvi was there"), flush=True)
    return {"points": points}


def forgetting(plan: Plan) -> dict[str, Any]:
    """One of ten sites that are not conjugate, beside training anew."""
    return {"points": {"waiting forget": show("waiting forget", plan.waiting, plan)}}


PARTS = {
    "speed": speed,
    "series": series,
    "targets": targets,
    "beside plain JAX": beside,
    "forgetting": forgetting,
}


def run(plan: Plan, output: Path, parts: Sequence[str] = tuple(PARTS)) -> dict[str, Any]:
    """These parts, each written when it is done; others stay as the file has them; and goals."""
    every = {part: functools.partial(PARTS[part], plan) for part in parts}
    return session.run(output, every, plan.effort, judge)


def show(
    kind: str, size: Size, plan: Plan, module: str = "benchmarks.federation_point"
) -> dict[str, Any]:
    point = launch(kind, size, plan.effort, module=module)
    print(f"{kind:34} {size}: {point['status']}", flush=True)
    return point


def exponents(factor: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    """Growth of everything that was measured in the points that finished."""
    done = [p for p in points if p["status"] == "finished"]
    found = {}
    for name, take in MEASURES.items():
        rows = [(p[factor], take(p)) for p in done if take(p) is not None]
        if rows:
            found[name] = exponent(*zip(*rows, strict=True))
    return found


MEASURES = {
    "cpu_time": lambda p: p.get("cpu_s"),
    "memory": lambda p: p.get("peak_bytes"),
    "forget_cpu_time": lambda p: p.get("forget", {}).get("cpu_s"),
    "retrain_cpu_time": lambda p: p.get("retrain", {}).get("cpu_s"),
}


def judge(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every goal with what was measured, by CPU time; None where its point did not finish."""
    goals, points = [], lambda part: result.get(part, {}).get("points", {})
    grown = result.get("series", {}).get("series", {})
    for kind, point in points("speed").items():
        ratio, least = point.get("ratio_cpu"), FASTER.get(kind, 200)
        goal = f"{kind}: at least {least} times the plain loop's steps a second"
        met = None if ratio is None else bool(ratio >= least)
        goals.append({"goal": goal, "measured": ratio, "wall": point.get("ratio_wall"), "met": met})
    for kind, point in points("beside plain JAX").items():
        if kind not in BESIDE_PLAIN:
            continue
        point = point.get("float32 beside plain in float64", point)
        ratio, most = point.get("ratio_cpu"), BESIDE_PLAIN[kind]
        goal = f"{kind}: at most {most:.2f} times the time of what it is compared with"
        met = None if ratio is None else bool(ratio <= most)
        goals.append({"goal": goal, "measured": ratio, "wall": point.get("ratio_wall"), "met": met})
        if alone := point.get("passes alone"):
            met = bool(alone["ratio_cpu"] <= most)
            goals.append(
                {"goal": f"{goal}, passes alone", "measured": alone["ratio_cpu"], "met": met}
            )
    hops = [p for p in grown.get("hops", {}).get("points", []) if p["sites"] == 100]
    for point in hops:
        seconds = point["cpu_s"] / HOPS_OF_A_RUN if "cpu_s" in point else None
        met = None if seconds is None else bool(seconds <= HOP)
        goal = f"a hop among 100 sites in at most {HOP * 1e3:.1f} ms"
        goals.append({"goal": goal, "measured": seconds, "met": met})
    rows = []
    for (kind, *then), most in SECONDS.items():
        if kind in points("targets"):
            found = points("targets")[kind]
            found = found.get(then[0], {}) if then else found
            name = ", ".join([kind, *then])
            rows.append((f"{name}: in at most {most:g} CPU s", found.get("cpu_s"), most))
    if "cold example" in points("targets"):
        peak = points("targets")["cold example"].get("peak_bytes")
        rows.append(("cold example: bytes", peak, MEMORY))
    goals += session.at_most(rows)
    if forgotten := grown.get("conjugate forget"):
        fit = forgotten["exponents"].get("forget_cpu_time", {"exponent": None})
        flat = None if fit["exponent"] is None else abs(fit["exponent"]) <= 0.1
        goal = "time of Run.forget does not depend on the records: exponent within 0.1 of zero"
        goals.append({"goal": goal, **fit, "met": flat})
    return goals


def draw(result: dict[str, Any], path: Path) -> None:
    """One panel a series, and one of ratios."""
    grown = result["series"]["series"]
    kinds = list(grown)
    canvas, axes = plt.subplots(
        1, len(kinds) + 1, figsize=(4.2 * (len(kinds) + 1), 4.0), layout="constrained"
    )
    _ratios(axes[0], result["speed"]["points"])
    for axis, kind in zip(axes[1:], kinds, strict=True):
        _growth(axis, kind, grown[kind])
    canvas.savefig(path, dpi=120)
    plt.close(canvas)


def _ratios(axis: Axes, speed: dict[str, Any]) -> None:
    done = {kind: p["ratio_cpu"] for kind, p in speed.items() if p["status"] == "finished"}
    labels = [kind.replace(" speed", "").replace(", ", ",\n") for kind in done]
    axis.barh(labels, list(done.values()), color="#1d70b8")
    axis.axvline(200, color="black", linestyle=":", label="goal: 200")
    axis.set(xscale="log", xlabel="walk steps per CPU second,\nsimulate / plain loop")
    axis.set_title("1,000 walks at once", loc="right")
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))


def _growth(axis: Axes, kind: str, series: dict[str, Any]) -> None:
    done = [p for p in series["points"] if p["status"] == "finished"]
    for (name, take), color in zip(MEASURES.items(), COLORS, strict=True):
        rows = [(p[series["factor"]], take(p)) for p in done if take(p)]
        if not rows:
            continue
        scale = 1e-6 if name == "memory" else 1.0
        fit = series["exponents"][name]
        slope = "" if fit["exponent"] is None else f", slope {fit['exponent']:.2f}"
        label = f"{'memory, MB' if name == 'memory' else name.replace('_', ' ') + ', s'}{slope}"
        x, y = zip(*rows, strict=True)
        axis.plot(x, [scale * value for value in y], marker="o", color=color, label=label)
    axis.set(xscale="log", yscale="log", xlabel=series["factor"], title=TITLES.get(kind, kind))
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)


COLORS = ("#c1121f", "#1d70b8", "#2a9d4b", "#e08e0b")
TITLES = {
    "sites": "simulate: 4 walks, 10 visits a site",
    "hops": "federate: 100 hops of gossip",
    "dimension": "federate: linear regression, 10 sites",
    "conjugate forget": "forgetting, Beta-Bernoulli, 10 sites",
}


def main(arguments: list[str] | None = None) -> None:
    parser = session.command_line(__doc__, OUTPUT, "a few small points", 120, PARTS)
    chosen = parser.parse_args(arguments)
    plan = (quick if chosen.quick else full)(chosen.limit)
    result = run(plan, chosen.output, chosen.only)
    if {"speed", "series"} <= result.keys():
        draw(result, chosen.output.with_suffix(".png"))
    session.tell(result["goals"])


if __name__ == "__main__":
    main()
