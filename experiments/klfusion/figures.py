"""The two figures: error of the means and of their number, with standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from experiments import harness
from experiments.klfusion.generate import Array
from experiments.klfusion.local_fits import Point

STYLES = {
    "posterity": ("#c1121f", "o", 2.4),
    "oracle VI on pooled data": ("#222222", "", 1.4),
    "SPAHM": ("#1d70b8", "s", 1.4),
    "DP clustering": ("#2a9d4b", "^", 1.4),
    "KL-fusion as released": ("#e08e0b", "D", 1.4),
    "KL-fusion, paper's setting": ("#8a5fbf", "v", 1.4),
}
LABELS = {2: "separation of components", 3: "heterogeneity of sites"}


def draw(measured: Mapping[Point, Mapping[str, Array]], folder: Path) -> None:
    """Write `figure2.png` and `figure3.png` for the points there are."""
    for figure in sorted({point.figure for point in measured}):
        points = [point for point in measured if point.figure == figure]
        x = [p.separation if figure == 2 else p.heterogeneity for p in points]
        titles = ("Hausdorff distance of means", "error in the number of components")
        path = folder / f"figure{figure}.png"
        with harness.figure(path, 1, 2, legend=3, figsize=(9.5, 3.8)) as axes:
            for measure, (axis, title) in enumerate(zip(axes[0], titles, strict=True)):
                _curves(axis, x, [measured[point] for point in points], measure)
                axis.set(xlabel=LABELS[figure], title=title)
                axis.set_ylim(bottom=0)


def _curves(axis: Axes, x: list[float], errors: list[Mapping[str, Array]], measure: int) -> None:
    for name in errors[0]:
        rows = np.array([point[name][:, measure] for point in errors])
        if name.startswith("oracle") and measure == 1:
            rows = np.nan * rows  # it is told the number
        color, marker, width = STYLES[name]
        axis.errorbar(
            x,
            rows.mean(1),
            rows.std(1, ddof=1) / np.sqrt(rows.shape[1]),
            label=name,
            color=color,
            marker=marker,
            linewidth=width,
            linestyle="--" if name.startswith("oracle") else "-",
            markersize=4.5,
            capsize=2,
            zorder=3 if name == "posterity" else 2,
        )
    axis.grid(alpha=0.25)
