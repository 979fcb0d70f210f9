"""The goals, and whether a run met them; None where what they need did not finish."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.growth import at_most

FASTER, SECONDS, LINEAR = 1000.0, 10.0, 1.0
COMPARED = {"sites": 10, "components": 10}


def summary(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over seeds of the comparison, one row a shape."""
    sizes = list(dict.fromkeys((p["sites"], p["components"]) for p in points))
    rows = []
    for size in sizes:
        own = [p for p in points if (p["sites"], p["components"]) == size]
        done = [p for p in own if p["status"] == "finished"]
        row = {"sites": size[0], "components": size[1], "seeds": len(own), "finished": len(done)}
        rows.append(
            row | ({f"ratio_{c}": _ratio(done, c) for c in ("wall", "cpu")} if done else {})
        )
        for who in ("posterity", "reference"):
            for clock in ("wall_s", "cpu_s") if done else ():
                rows[-1][f"{who}_{clock}"] = median(p[who][clock] for p in done)
    return rows


def judge(
    series: list[dict[str, Any]], compared: list[dict[str, Any]], large: dict[str, Any]
) -> list[dict[str, Any]]:
    """Every goal with what was measured; times and ratios are judged by either clock."""
    return [
        _comparison(summary(compared)),
        _large(large),
        *(_growth(s, "cpu_time", "CPU time in the number of") for s in series if _sites(s)),
        *(
            _growth(s, "memory_by_input", "peak memory in input bytes, over")
            for s in series
            if _sites(s)
        ),
    ]


def _comparison(rows: list[dict[str, Any]]) -> dict[str, Any]:
    name = f"at least {FASTER:.0f} times faster than the reference at 10 sites x 10 components"
    row = next((r for r in rows if r.items() >= COMPARED.items()), {})
    measured = {clock: row.get(f"ratio_{clock}") for clock in ("wall", "cpu")}
    return {"goal": name, **measured, **_met(measured, lambda ratio: ratio >= FASTER)}


def _large(point: dict[str, Any]) -> dict[str, Any]:
    shape = "{sites} sites x {components} {family} components of dimension {dimension}"
    measured = {clock: point.get(f"{clock}_s") for clock in ("wall", "cpu")}
    goal = f"{shape.format(**point)} in under {SECONDS:.0f} s"
    if point["status"] == "did not finish":
        return {"goal": goal, **measured, "met": False, "met_in_cpu_time": False}
    return {"goal": goal, **measured, **_met(measured, lambda seconds: seconds < SECONDS)}


def _growth(series: dict[str, Any], kind: str, what: str) -> dict[str, Any]:
    fit = series["exponents"][kind]
    name = f"exponent of {what} {series['name']}, at most {LINEAR:.0f} within a standard error"
    return {"goal": name, **fit, "met": at_most(fit, LINEAR)}


def _met(measured: dict[str, float | None], holds: Any) -> dict[str, bool | None]:
    judged = {clock: None if v is None else bool(holds(v)) for clock, v in measured.items()}
    return {"met": judged["wall"], "met_in_cpu_time": judged["cpu"]}


def _ratio(points: list[dict[str, Any]], clock: str) -> float:
    key = f"{clock}_s"
    return median(p["reference"][key] / p["posterity"][key] for p in points)


def _sites(series: dict[str, Any]) -> bool:
    return series["factor"] == "sites"
