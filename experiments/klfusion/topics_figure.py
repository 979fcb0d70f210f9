"""Figure 4: predictive log likelihood and time of fusion, a point a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

OURS_COLOUR, PLAIN = "#c1121f", "#3b4b5c"


def draw(scores: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture; methods from the best to the worst."""
    order = sorted(scores[0], key=lambda name: np.mean([t[name].mean for t in scores]))
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.5 * len(order) + 1.2), sharey=True)
    for row, name in enumerate(order):
        colour = OURS_COLOUR if name.startswith("non-parametric, product") else PLAIN
        found = [np.array([t[name].mean for t in scores])]
        found.append(np.array([t[name].cpu_seconds for t in scores]))
        for axis, values in zip(axes, found, strict=True):
            if axis is axes[1] and not values.any():
                continue  # nothing was fused
            axis.plot(values, np.full(len(values), row), "o", color=colour, alpha=0.35, ms=5)
            axis.plot(values.mean(), row, "|", color=colour, ms=22, mew=2.5)
    axes[0].set_yticks(range(len(order)), order)
    axes[0].set_xlabel("predictive log likelihood, nats a word")
    axes[1].set_xlabel("CPU seconds of fusion")
    axes[1].set_xscale("log")
    axes[1].axvline(1.0, color="#999999", lw=1, ls="--")
    for axis in axes:
        axis.grid(axis="x", color="#dddddd", lw=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
