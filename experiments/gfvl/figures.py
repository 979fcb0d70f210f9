"""The pictures: mean divergence over repetitions, and the band that holds nine of ten."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments import harness
from experiments.gfvl.curves import Curve

COLORS = ("#c1121f", "#1d70b8", "#2a9d4b", "#e08e0b", "#8a5fbf", "#555555")
SMALLEST = 1e-9
"""Divergences below this are drawn here: exact posteriors have none."""
LARGEST = 1e4
"""And those above this here."""
Curves = Mapping[str, Curve]


def figure3(curves: Curves, folder: Path) -> None:
    """Conjugate learning on three graphs."""
    options = {"figsize": (3.7 * len(curves), 3.7), "sharey": True}
    with harness.figure(folder / "figure3.png", 1, len(curves), **options) as axes:
        for axis, (name, curve), color in zip(axes[0], curves.items(), COLORS, strict=False):
            line(axis, name, curve, color, "visits")
            decorate(axis, "slot", f"{name}, K = 10", bottom=1e-6)
            axis.legend(frameon=False)
        axes[0, 0].set_ylabel("KL(posterior ‖ true posterior), nats")


def figure4(results: Mapping[str, tuple[Curves, float]], folder: Path) -> None:
    """Local iterations, as the paper has them, under both losses and on both axes."""
    units, size = {"iterations": "local iterations", "visits": "visits"}, (5 * len(results), 7.6)
    with harness.figure(folder / "figure4.png", 2, len(results), figsize=size) as axes:
        for column, (loss, (curves, floor)) in zip(axes.T, results.items(), strict=True):
            for axis, (unit, label) in zip(column, units.items(), strict=True):
                lines(axis, curves, unit, floor)
                decorate(axis, label, f"{loss}", bottom=floor / 3)
                axis.set_xscale("log")
            column[0].legend(frameon=False, fontsize=8)
        for axis in axes[:, 0]:
            axis.set_ylabel("KL(posterior ‖ true posterior), nats")


def figure4_ours(
    estimators: tuple[Curves, float], defaults: tuple[Curves, Any, float], folder: Path
) -> None:
    """The estimator alone changed; and the default with its variants."""
    (curves, floor), (ours, _, least) = estimators, defaults
    with harness.figure(folder / "figure4-estimators.png", 1, 2, figsize=(12, 4.6)) as axes:
        left, right = axes[0]
        lines(left, curves, "iterations", floor)
        decorate(left, "local iterations", "sum loss, L = 1, rate 0.005", bottom=floor / 3)
        lines(right, ours, "visits", least)
        decorate(right, "visits", "sum loss, default and variants", bottom=least / 3)
        left.set_ylabel("KL(posterior ‖ true posterior), nats")
        for axis in axes[0]:
            axis.set_xscale("log")
            axis.legend(frameon=False, fontsize=8, loc="lower left")


def figure5(
    conjugate: Mapping[str, Curves], waiting: Mapping[str, tuple[Curves, Any, float]], folder: Path
) -> None:
    """After a request to be forgotten: above conjugate, below not."""
    size = max(len(conjugate), len(waiting))
    with harness.figure(folder / "figure5.png", 2, size, figsize=(4.4 * size, 7.6)) as axes:
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
    axis.grid(alpha=0.25)
