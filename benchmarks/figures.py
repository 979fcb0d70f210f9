"""Log-log plots of a run: time above, memory below, one column a factor."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

STYLES = {"NormalWishart": ("#c1121f", "o"), "DiagonalGaussian": ("#1d70b8", "s")}
LABELS = {"sites": "sites", "components": "components a site", "dimension": "dimension"}


def draw(result: dict[str, Any], path: Path) -> None:
    factors = list(dict.fromkeys(series["factor"] for series in result["series"]))
    canvas, axes = plt.subplots(
        2, len(factors), figsize=(4.4 * len(factors), 8.0), layout="constrained", squeeze=False
    )
    for column, factor in enumerate(factors):
        for series in (s for s in result["series"] if s["factor"] == factor):
            time_panel(axes[0, column], series)
            memory_panel(axes[1, column], series)
        for axis in axes[:, column]:
            axis.set(xscale="log", yscale="log", xlabel=LABELS[factor])
            axis.grid(True, which="major", alpha=0.3)
            axis.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1))
    axes[0, 0].set_ylabel("CPU time of fuse, s")
    axes[1, 0].set_ylabel("peak memory above the inputs, MB")
    canvas.savefig(path, dpi=130)
    plt.close(canvas)


def time_panel(axis: Axes, series: dict[str, Any]) -> None:
    """CPU time; points that did not finish stand at their limit, hollow."""
    curve(axis, series, "cpu_s", 1.0, "cpu_time")
    late = [p for p in series["points"] if p["status"] == "did not finish"]
    if late:
        color, marker = STYLES[series["base"]["family"]]
        x = [p[series["factor"]] for p in late]
        axis.plot(x, [p["limit_s"] for p in late], marker, mfc="none", color=color)


def memory_panel(axis: Axes, series: dict[str, Any]) -> None:
    """Peak memory, and the inputs' own bytes for comparison."""
    curve(axis, series, "peak_bytes", 1e-6, "memory")
    done = finished(series)
    color, _ = STYLES[series["base"]["family"]]
    x, y = [p[series["factor"]] for p in done], [p["input_bytes"] / 1e6 for p in done]
    axis.plot(x, y, ":", color=color, linewidth=1, label="its inputs")


def curve(axis: Axes, series: dict[str, Any], key: str, unit: float, kind: str) -> None:
    """One measured curve, labelled with the family, the base point and the exponent."""
    done, (color, marker) = finished(series), STYLES[series["base"]["family"]]
    x, y = [p[series["factor"]] for p in done], [unit * p[key] for p in done]
    axis.plot(x, y, marker=marker, color=color, label=label(series, kind))


def label(series: dict[str, Any], kind: str) -> str:
    """For example `NormalWishart (10 components, d = 5)`, and the exponent."""
    base, fit, own = series["base"], series["exponents"][kind], series["factor"]
    fixed = ", ".join(f"{base[name]} {name}" for name in ("sites", "components") if name != own)
    fixed += "" if own == "dimension" else f", d = {base['dimension']}"
    slope = "" if fit["exponent"] is None else f", slope {fit['exponent']:.2f}"
    error = f" ± {fit['standard_error']:.2f}" if slope else ""
    return f"{base['family']} ({fixed}){slope}{error}"


def finished(series: dict[str, Any]) -> list[dict[str, Any]]:
    return [p for p in series["points"] if p["status"] == "finished"]
