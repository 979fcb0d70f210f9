"""The goals, and whether a run met them; None where what they need did not finish.

Times and ratios are judged by either clock: `met` by the wall's, `met_in_cpu_time` by the CPU's.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.growth import at_most
from benchmarks.plan import Compared, Plan, Target

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
