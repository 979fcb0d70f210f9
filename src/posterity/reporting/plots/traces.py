"""Plots of a distillation, a pursuit and a calibration."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.errors import UsageError
from posterity.reporting.plots.canvas import (
    BLUE,
    DASHED,
    INK,
    ORANGE,
    PALE,
    finish,
    new_axes,
    new_panels,
    note,
    plain_axes,
    write_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from posterity.distillation import Distillation
    from posterity.distillation import Row as DistillationRow
    from posterity.pursuit import Pursuit
    from posterity.pursuit.result import Row

MOST_TICKS = 10
DECADES = 6
"""Largest number of decades on an axis of nats; smaller values are drawn at its end."""


def plot_distillation(
    distillation: "Distillation | Sequence[DistillationRow]",
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """Plot the nats between student and teacher over steps, on log axes.

    For a whole distillation it also shows the tolerance and a quarter of the drift. The latter is
    about the error of the teacher's own average, below which the gap is not distinguishable from 0.

    Args:
        distillation: result of :func:`posterity.distill`, or its ``trace`` alone.
        path: path at which to save the plot, if given; its ending sets the format.
        title: title, by default whether the distillation has converged.
        ax: axes to draw in; by default those of a new figure.

    Raises:
        MissingExtraError: if matplotlib is not installed.
        UsageError: for a trace without a step, or a path that cannot be written.

    >>> from posterity.distillation import Row
    >>> trace = [Row(n, 1 / n, 1.0) for n in (10, 100, 1000)]
    >>> figure = plot_distillation(trace)
    >>> figure.axes[0].get_title(loc="left")
    '0.001 nats from its teacher after 1,000 steps'
    """
    status, trace = _trace(distillation, "gap", "distill")
    steps, gap = (np.array([getattr(row, n) for row in trace], float) for n in ("step", "gap"))
    usual = f"{gap[-1]:.2g} nats from its teacher after {steps[-1]:,.0f} steps"
    axes = new_axes(equal=False, inches=(6.4, 3.8)) if ax is None else ax
    drift = getattr(distillation, "drift", np.inf)
    error = drift / 4 if np.isfinite(drift) else None
    _gap(axes, steps, gap, None if status is None else status.tolerance, error)
    title = _title(title, usual, status)
    write_title(axes, title)
    return finish(axes.figure, path)


def plot_pursuit(
    pursuit: "Pursuit | Sequence[Row]",
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
) -> "Figure":
    """Plot four panels of a pursuit over its number of components.

    They show the ELBO and the gain of each step, in nats, with standard errors; the weight α of
    each new component, with its λ; and the effective number of components. The latter is the
    exponential of the weights' entropy. A joint polish is a separate point at the same number.

    Args:
        pursuit: result of :func:`posterity.pursue`, or its ``trace`` alone.
        path: path at which to save the plot, if given; its ending sets the format.
        title: title, by default whether the pursuit has converged.

    Raises:
        MissingExtraError: if matplotlib is not installed.
        UsageError: for a trace without a component, or a path that cannot be written.

    >>> from posterity.pursuit import Row
    >>> first = Row(1, -2.0, 0.1, -2.0, 0.1, 1.0, 1.0, 1.4, 1.0, 100)
    >>> second = Row(2, -1.5, 0.05, 0.5, 0.05, 0.4, 1.7, 1.9, 1.96, 300)
    >>> figure = plot_pursuit([first, second])
    >>> figure.get_suptitle()
    'ELBO -1.5 ± 0.05 nats with 2 components'
    """
    status, trace = _trace(pursuit, "elbo", "pursue")
    last = trace[-1]
    usual = f"ELBO {last.elbo:.4g} ± {last.standard_error:.2g} nats with {last.components} "
    usual += "component" + ("s" if last.components > 1 else "")
    figure, axes = new_panels(2, 2, (8.4, 5.4), sharex=True)
    rows = {name: np.array([getattr(row, name) for row in trace], float) for name in last._fields}
    count, polished = rows["components"], np.isnan(rows["alpha"])
    axes[0, 0].plot(count, rows["elbo"], color=BLUE, linewidth=1, alpha=0.5)
    _points(axes[0, 0], count, rows["elbo"], polished, rows["standard_error"])
    _gain(axes[0, 1], rows, polished)
    _weights(axes[1, 0], rows, polished)
    most = count.max()
    if most > 1:
        line, (x, y) = {"color": PALE, "linewidth": 1, "linestyle": DASHED}, [(1 + most) / 2] * 2
        axes[1, 1].plot([1, most], [1, most], **line)
        note(axes[1, 1], "if all weighed the same", (x, y), (-6, 2), ha="right")
    axes[1, 1].set_ylim(0, most + 0.4)
    _points(axes[1, 1], count, rows["effective"], polished, None)
    for ax in axes[1]:
        ax.set_xlim(0.5, count.max() + 0.5)
        ax.set_xticks(np.arange(1, count.max() + 1, max(1, np.ceil(count.max() / MOST_TICKS))))
    up = ("ELBO, nats", "gain in ELBO, nats", "weight α when it came", "components that count")
    for ax, across, what in zip(axes.flat, ("", "", *["components"] * 2), up, strict=True):
        plain_axes(ax, across, what)
    if polished.any():
        style = {"fontsize": 8, "frameon": False, "labelcolor": INK}
        axes[0, 0].legend(loc="lower right", **style)
    return finish(figure, path, _title(title, usual, status))


def plot_calibration(groups: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Save a plot of observed against predicted frequencies, with two standard errors.

    ``groups`` are dictionaries with ``predicted``, ``observed`` and ``records``, as
    :func:`~posterity.tabular.scores.calibration` returns them; the path's ending sets the format.
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
    finish(ax.figure, path)


def _trace(result: Any, number: str, verb: str) -> tuple[Any, Any]:
    """Return a result's status, None for a trace alone, and its trace, whose numbers are finite."""
    trace = getattr(result, "trace", result)
    if not len(trace) or not all(np.isfinite(getattr(row, number)) for row in trace):
        raise UsageError(
            found=f"a trace of {len(trace)} rows" + (", not all finite" if len(trace) else ""),
            expected=f"a row at least, each with a finite {number}",
            fix=f"Pass what posterity.{verb} returned.",
        )
    return getattr(result, "status", None), trace


def _title(title: str | None, usual: str, status: Any) -> str:
    state = "" if status is None else f"{status.state.capitalize()}: "
    return state + usual if title is None else title


def _gap(
    ax: "Axes", steps: np.ndarray, gap: np.ndarray, tolerance: float | None, error: float | None
) -> None:
    """Draw the gap in nats over steps on log axes; ``error`` is the teacher's own."""
    lines = [value for value in (tolerance, error) if value is not None and value > 0]
    top = max([gap.max(), *lines])
    floor = max(min([gap[gap > 0].min(initial=np.inf), *lines]), top * 10.0**-DECADES)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.plot(steps, np.maximum(gap, floor), color=BLUE, linewidth=2, solid_capstyle="round")
    ax.plot(steps[-1:], np.maximum(gap[-1:], floor), "o", color=BLUE, markersize=6)
    left, beyond = steps[0], error is not None and tolerance is not None and error > tolerance
    if tolerance is not None:
        ax.axhline(tolerance, color=INK, linewidth=1, linestyle=DASHED)
        text = f"tolerance, {tolerance:.2g} nats"
        note(ax, text, (left, tolerance), (0, -3 if beyond else 3), color=INK)
    if error is not None and error > 0:
        ax.axhline(max(error, floor), color=ORANGE, linewidth=1)
        text = f"error of the teacher's own average, {error:.2g} nats"
        note(ax, text, (left, max(error, floor)), (0, 3 if beyond else -3), color="#a14d00")
    ax.set_ylim(floor / 2.2, top * 2)
    plain_axes(ax, "steps of the student", "KL(teacher ‖ student), nats")


def _gain(ax: Any, rows: dict[str, np.ndarray], polished: np.ndarray) -> None:
    """Draw gains on a log axis; the first component is left out, as it has no predecessor."""
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
    count, alpha, lam = (rows[name][~polished] for name in ("components", "alpha", "lam"))
    ax.vlines(count, 0, alpha, color=BLUE, linewidth=2)
    _points(ax, count, alpha, np.zeros(len(count), bool), None)
    for x, y, value in zip(count, alpha, lam, strict=True):
        note(ax, f"λ {value:.2g}", (x, y), (0, 5), fontsize=7.5, ha="center")
    ax.set_ylim(0, 1.15 * max(alpha.max(), 1e-3))


def _points(ax: Any, x: np.ndarray, y: np.ndarray, polished: np.ndarray, error: Any) -> None:
    styles = (~polished, BLUE, "o", 5, "one more"), (polished, ORANGE, "D", 4, "all polished")
    for chosen, colour, mark, size, label in styles:
        if chosen.any():
            own = None if error is None else error[..., chosen]
            style = {"markersize": size, "elinewidth": 1.2, "capsize": 2, "label": label}
            ax.errorbar(x[chosen], y[chosen], own, fmt=mark, color=colour, **style)
