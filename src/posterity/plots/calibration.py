"""The picture of a calibration: observed frequencies over predicted probabilities."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.plots.canvas import BLUE, DASHED, INK, new_axes, plain_axes, save


def plot_calibration(groups: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Save a point a group of records, with two standard errors of the frequency that is predicted.

    The groups are ``predicted``, ``observed`` and ``records`` of each, as
    :func:`~posterity.fitting.scores.calibration` gives them; the ending of the path names the
    format.
    """
    names = ("predicted", "observed", "records")
    predicted, observed, records = (np.array([one[n] for one in groups]) for n in names)
    error = 2 * np.sqrt(predicted * (1 - predicted) / records)
    ax = new_axes(inches=(4.2, 4.2))
    ax.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=DASHED)
    ax.errorbar(predicted, observed, error, fmt="o", color=BLUE, capsize=2, linewidth=1)
    ax.set_xlim(0, 1)
    ax.set_ylim(-0.02, 1.02)
    plain_axes(ax, "predicted probability", "observed frequency")
    save(ax.figure, path)
