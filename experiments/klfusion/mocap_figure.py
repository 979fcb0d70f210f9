"""Bars of the six sequences: what a human saw, and what was found."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from experiments import harness
from experiments.data import MotionCapture

Labels = NDArray[np.int64]


def draw(data: MotionCapture, found: dict[str, Labels], folder: Path) -> None:
    """Write `mocap.png`: a column a sequence, a bar a labelling, matched to the human's colours."""
    rows = {"human": data.labels}
    rows |= {name: _coloured(labels, data.labels) for name, labels in found.items()}
    widths = np.diff(data.bounds)
    colours = np.vstack([matplotlib.colormaps[name].colors for name in ("tab20", "tab20b")])  # pyright: ignore
    options = {"figsize": (11, 4.2), "width_ratios": widths, "sharex": "col"}
    with harness.figure(folder / "mocap.png", len(rows), len(widths), **options) as axes:
        for axis_row, (name, labels) in zip(axes, rows.items(), strict=True):
            for axis, start, end in zip(axis_row, data.bounds[:-1], data.bounds[1:], strict=True):
                axis.imshow(colours[labels[start:end] % len(colours)][None], aspect="auto")
                axis.set_yticks([])
                axis.set_xticks([0, 100 * ((end - start) // 100)])
            axis_row[0].set_ylabel(name.replace(", ", "\n"), rotation=0, ha="right", va="center")
        for axis, name in zip(axes[0], data.names, strict=True):
            axis.set_title(name, fontsize=9)
        axes[0, 0].figure.supxlabel("frame (ten a second)", fontsize=9)


def _coloured(labels: Labels, human: Labels) -> Labels:
    """Renamed so that as many frames as possible have the human's number; others above those."""
    own, index = np.unique(labels, return_inverse=True)
    overlap = np.zeros((len(own), human.max() + 1))
    np.add.at(overlap, (index, human), 1)
    names = human.max() + 1 + np.arange(len(own))
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    names[rows] = columns
    return names[index]
