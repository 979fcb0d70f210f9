"""Pictures of a pursuit: gains of each component and each polish, and how many of them count."""

from typing import Any

import numpy as np

from posterity.plots.canvas import INK, PALE, note, plain_axes

GROWN, POLISHED = "#1b4f8f", "#ee7d11"
"""Colours that differ without red and green, and in print by their shape."""
MOST_TICKS = 10
DECADES = 6
"""Decades of the axis of gains, at most: what is less is as good as nothing."""


def draw(axes: np.ndarray, trace: Any) -> None:
    """Four pictures of rows of a trace, over the number of components, in two by two axes."""
    rows = {
        name: np.array([getattr(row, name) for row in trace], float) for name in trace[0]._fields
    }
    count, polished = rows["components"], np.isnan(rows["alpha"])
    axes[0, 0].plot(rows["components"], rows["elbo"], color=GROWN, linewidth=1, alpha=0.5)
    _points(axes[0, 0], rows["components"], rows["elbo"], polished, rows["standard_error"])
    _gain(axes[0, 1], rows, polished)
    _weights(axes[1, 0], rows, polished)
    _effective(axes[1, 1], rows, polished)
    for ax in axes[1]:
        ax.set_xlim(0.5, count.max() + 0.5)
        ax.set_xticks(np.arange(1, count.max() + 1, max(1, np.ceil(count.max() / MOST_TICKS))))
    up = ("ELBO, nats", "gain in ELBO, nats", "weight α when it came", "components that count")
    for ax, across, what in zip(axes.flat, ("", "", *["components"] * 2), up, strict=True):
        plain_axes(ax, across, what)
    if polished.any():
        _legend(axes[0, 0])


def _gain(ax: Any, rows: dict[str, np.ndarray], polished: np.ndarray) -> None:
    """On a log axis; the first component's is left out, since there was nothing before it."""
    later = (rows["components"] > 1) | polished
    count, gain, error = (rows[name][later] for name in ("components", "gain", "gain_error"))
    if not (gain > 0).any():
        ax.set_yticks([])
        note(ax, "nothing but the first", (0.5, 0.5), (0, 0), xycoords="axes fraction", ha="center")
        return
    top = (gain + error).max()
    floor = max(gain[gain > 0].min() / 3, top * 10.0**-DECADES)
    ax.set_yscale("log")
    below = gain - np.maximum(gain - error, floor)
    errors = np.stack([np.maximum(below, 0.0), error])
    _points(ax, count, np.maximum(gain, floor), polished[later], errors)
    ax.set_ylim(floor / 1.5, top * 2)


def _weights(ax: Any, rows: dict[str, np.ndarray], polished: np.ndarray) -> None:
    """α of each component when it came, with its λ in writing."""
    count, alpha, lam = (rows[name][~polished] for name in ("components", "alpha", "lam"))
    ax.vlines(count, 0, alpha, color=GROWN, linewidth=2)
    _points(ax, count, alpha, np.zeros(len(count), bool), None)
    for x, y, value in zip(count, alpha, lam, strict=True):
        note(ax, f"λ {value:.2g}", (x, y), (0, 5), fontsize=7.5, ha="center")
    ax.set_ylim(0, 1.15 * max(alpha.max(), 1e-3))


def _effective(ax: Any, rows: dict[str, np.ndarray], polished: np.ndarray) -> None:
    most = rows["components"].max()
    if most > 1:
        ax.plot([1, most], [1, most], color=PALE, linewidth=1, linestyle=(0, (4, 3)))
        note(ax, "if all weighed the same", ((1 + most) / 2, (1 + most) / 2), (-6, 2), ha="right")
    ax.set_ylim(0, most + 0.4)
    _points(ax, rows["components"], rows["effective"], polished, None)


def _points(ax: Any, x: np.ndarray, y: np.ndarray, polished: np.ndarray, error: Any) -> None:
    for chosen, colour, mark in ((~polished, GROWN, "o"), (polished, POLISHED, "D")):
        if chosen.any():
            ax.errorbar(
                x[chosen],
                y[chosen],
                None if error is None else error[..., chosen],
                fmt=mark,
                color=colour,
                markersize=5 if mark == "o" else 4,
                elinewidth=1.2,
                capsize=2,
            )


def _legend(ax: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=mark, linestyle="", markersize=5, label=label)
        for colour, mark, label in ((GROWN, "o", "one more"), (POLISHED, "D", "all polished"))
    ]
    ax.legend(handles=handles, loc="lower right", fontsize=8, frameon=False, labelcolor=INK)
