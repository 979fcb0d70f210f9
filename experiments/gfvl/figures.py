"""The pictures: mean divergence over repetitions, and the band that holds nine of ten."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import harness
from experiments.gfvl.curves import Curve

COLORS = ("#c1121f", "#1d70b8", "#2a9d4b", "#e08e0b", "#8a5fbf", "#555555")
SMALLEST, LARGEST = 1e-9, 1e4
"""Divergences beyond these are drawn there: exact posteriors have none."""
TRUE, STAY = "KL(posterior ‖ true posterior), nats", "KL(posterior ‖ that of those who stay), nats"
Curves = Mapping[str, Curve]


def panel(
    axis: Any,
    title: str,
    curves: Curves,
    floor: float | None = None,
    *,
    unit: str = "visits",
    label: str = "",
    colors: Any = COLORS,
    log: bool = False,
    **legend: Any,
) -> None:
    """Means and bands of all curves, and the least divergence of any Beta."""
    for (name, curve), color in zip(curves.items(), colors, strict=False):
        x, (low, high) = getattr(curve, unit), np.clip(curve.interval, SMALLEST, LARGEST)
        axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        axis.plot(x, np.clip(curve.mean, SMALLEST, LARGEST), color=color, label=name, linewidth=1.6)
    if floor is not None:
        axis.axhline(floor, color="black", linestyle=":", linewidth=1.2, label="floor: best Beta")
    axis.set(yscale="log", xlabel=label or unit, title=title)
    axis.set_ylim(bottom=1e-6 if floor is None else floor / 3)
    axis.grid(alpha=0.25)
    if log:
        axis.set_xscale("log")
    axis.legend(frameon=False, fontsize=8, **legend)


def figure3(curves: Curves, folder: Path) -> None:
    options = {"figsize": (3.7 * len(curves), 3.7), "sharey": True}
    with harness.figure(folder / "figure3.png", 1, len(curves), **options) as axes:
        for axis, (name, curve), color in zip(axes[0], curves.items(), COLORS, strict=False):
            panel(axis, f"{name}, K = 10", {name: curve}, label="slot", colors=[color])
        axes[0, 0].set_ylabel(TRUE)


def figure4(results: Mapping[str, tuple[Curves, float]], folder: Path) -> None:
    """Local iterations, as the paper has them, under both losses and on both axes."""
    size = (5 * len(results), 7.6)
    with harness.figure(folder / "figure4.png", 2, len(results), figsize=size) as axes:
        for (above, below), (loss, own) in zip(axes.T, results.items(), strict=True):
            panel(above, loss, *own, unit="iterations", label="local iterations", log=True)
            panel(below, loss, *own, log=True)
        for axis in axes[:, 0]:
            axis.set_ylabel(TRUE)


def figure4_ours(
    estimators: tuple[Curves, float], defaults: tuple[Curves, Any, float], folder: Path
) -> None:
    """The estimator alone changed; and the default with its variants."""
    with harness.figure(folder / "figure4-estimators.png", 1, 2, figsize=(12, 4.6)) as axes:
        (left, right), usual = axes[0], {"log": True, "loc": "lower left"}
        iterations = {"unit": "iterations", "label": "local iterations"}
        panel(left, "sum loss, L = 1, rate 0.005", *estimators, **iterations, **usual)
        panel(right, "sum loss, default and variants", *defaults[::2], **usual)
        left.set_ylabel(TRUE)


def figure5(
    conjugate: Mapping[str, Curves], waiting: Mapping[str, tuple[Curves, Any, float]], folder: Path
) -> None:
    """After a request to be forgotten: above conjugate, below not."""
    size = max(len(conjugate), len(waiting))
    panels = (
        [(f"Beta-Bernoulli, {graph}", own) for graph, own in conjugate.items()],
        [(f"Beta-exponential, complete, {case}", *own[::2]) for case, own in waiting.items()],
    )
    with harness.figure(folder / "figure5.png", 2, size, figsize=(4.4 * size, 7.6)) as axes:
        for row, shown in zip(axes, panels, strict=True):
            for axis, own in zip(row, shown, strict=False):
                panel(axis, *own, label="visits since the request")
            for axis in row[len(shown) :]:
                axis.set_axis_off()
            row[0].set_ylabel(STAY)
