"""Growth exponents: slopes of log against log, with their standard errors."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def exponent(x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    """Least-squares slope over the upper half of a series; None with fewer than three points."""
    pairs = [(a, b) for a, b in sorted(zip(x, y, strict=True)) if a > 0 and b > 0]
    upper = pairs[len(pairs) // 2 :] if len(pairs) >= 6 else pairs[-3:]
    if len(upper) < 3:
        return {"exponent": None, "standard_error": None, "points": len(upper)}
    slope, error = _slope(*np.log(np.array(upper)).T)
    return {"exponent": slope, "standard_error": error, "points": len(upper)}


def at_most(fit: dict[str, Any], limit: float) -> bool | None:
    """Whether an exponent is within a standard error of a limit; None where there is none."""
    if fit["exponent"] is None:
        return None
    return bool(fit["exponent"] - fit["standard_error"] <= limit)


def fits(factor: str, points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Exponents of time and memory of one series, over the points that finished."""
    done = [point for point in points if point["status"] == "finished"]
    column = lambda name: [point[name] for point in done]
    return {
        "cpu_time": exponent(column(factor), column("cpu_s")),
        "wall_time": exponent(column(factor), column("wall_s")),
        "memory": exponent(column(factor), column("peak_bytes")),
        "memory_by_input": exponent(column("input_bytes"), column("peak_bytes")),
    }


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    residual = y - slope * x
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))
