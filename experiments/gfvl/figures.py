"""The pictures: mean divergence over repetitions, and the band that holds nine of ten."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from experiments.gfvl.curves import Curve

COLORS = ("#c1121f", "#1d70b8", "#2a9d4b", "#e08e0b", "#8a5fbf", "#555555")
SMALLEST = 1e-9
"""Divergences below this are drawn here: exact posteriors have none."""
LARGEST = 1e4
"""And those above this here."""
Curves = Mapping[str, Curve]


def figure3(curves: Curves, folder: Path) -> None:
    """Conjugate learning on three graphs."""
    size = (3.7 * len(curves), 3.7)
    canvas, axes = plt.subplots(
        1, len(curves), figsize=size, sharey=True, layout="constrained", squeeze=False
    )
    for axis, (name, curve), color in zip(axes[0], curves.items(), COLORS, strict=False):
        line(axis, name, curve, color, "visits")
        decorate(axis, "slot", f"{name}, K = 10", bottom=1e-6)
        axis.legend(frameon=False)
    axes[0, 0].set_ylabel("KL(posterior ‖ true posterior), nats")
    save(canvas, folder / "figure3.png")


def figure4(results: Mapping[str, tuple[Curves, float]], folder: Path) -> None:
    """Local iterations, as the paper has them, under both losses and on both axes."""
    canvas, axes = plt.subplots(
        2, len(results), figsize=(5 * len(results), 7.6), layout="constrained", squeeze=False
    )
    for column, (loss, (curves, floor)) in zip(axes.T, results.items(), strict=True):
        for axis, unit, label in zip(
            column, ("iterations", "visits"), ("local iterations", "visits"), strict=True
        ):
            lines(axis, curves, unit, floor)
            decorate(axis, label, f"{loss}", bottom=floor / 3)
            axis.set_xscale("log")
        column[0].legend(frameon=False, fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("KL(posterior ‖ true posterior), nats")
    save(canvas, folder / "figure4.png")


def figure4_ours(
    estimators: tuple[Curves, float], defaults: tuple[Curves, Any, float], folder: Path
) -> None:
    """The estimator alone changed; and the default with its variants."""
    canvas, axes = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    lines(axes[0], estimators[0], "iterations", estimators[1])
    decorate(axes[0], "local iterations", "sum loss, L = 1, rate 0.005", bottom=estimators[1] / 3)
    lines(axes[1], defaults[0], "visits", defaults[2])
    decorate(axes[1], "visits", "sum loss, default and variants", bottom=defaults[2] / 3)
    axes[0].set_ylabel("KL(posterior ‖ true posterior), nats")
    for axis in axes:
        axis.set_xscale("log")
        axis.legend(frameon=False, fontsize=8, loc="lower left")
    save(canvas, folder / "figure4-estimators.png")


def figure5(
    conjugate: Mapping[str, Curves], waiting: Mapping[str, tuple[Curves, Any, float]], folder: Path
) -> None:
    """After a request to be forgotten: above conjugate, below not."""
    size = max(len(conjugate), len(waiting))
    canvas, axes = plt.subplots(2, size, figsize=(4.4 * size, 7.6), layout="constrained")
    for axis, (graph, curves) in zip(axes[0], conjugate.items(), strict=False):
        lines(axis, curves, "visits", None)
        decorate(axis, "visits since the request", f"Beta-Bernoulli, {graph}", bottom=1e-6)
    for axis, (case, (curves, _, floor)) in zip(axes[1], waiting.items(), strict=False):
        lines(axis, curves, "visits", floor)
        title = f"Beta-exponential, complete, {case}"
        decorate(axis, "visits since the request", title, bottom=floor / 3)
    for axis in axes.flat:
        if axis.lines:
            axis.legend(frameon=False, fontsize=8)
        else:
            axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("KL(posterior ‖ that of those who stay), nats")
    save(canvas, folder / "figure5.png")


def lines(axis: Axes, curves: Curves, unit: str, floor: float | None) -> None:
    """All curves of a panel, and the floor."""
    for (name, curve), color in zip(curves.items(), COLORS, strict=False):
        line(axis, name, curve, color, unit)
    if floor is not None:
        axis.axhline(floor, color="black", linestyle=":", linewidth=1.2, label="floor: best Beta")


def line(axis: Axes, name: str, curve: Curve, color: str, unit: str) -> None:
    """Mean and band."""
    x = getattr(curve, unit)
    low, high = (np.clip(side, SMALLEST, LARGEST) for side in curve.interval)
    axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axis.plot(x, np.clip(curve.mean, SMALLEST, LARGEST), color=color, label=name, linewidth=1.6)


def decorate(axis: Axes, label: str, title: str, *, bottom: float) -> None:
    """Scales, names and a light grid."""
    axis.set(yscale="log", xlabel=label, title=title)
    axis.set_ylim(bottom=bottom)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def save(canvas: Any, path: Path) -> None:
    """Write and close."""
    canvas.savefig(path, dpi=130)
    plt.close(canvas)
