"""The picture of a distillation: nats between student and teacher over steps."""

from typing import TYPE_CHECKING

import numpy as np

from posterity.plots.canvas import INK, note, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP, ERROR = "#1b4f8f", "#ee7d11"
"""Colours that differ without red and green, and in print by their lightness."""
DECADES = 6
"""Decades of the axis of nats, at most: what is nearer is as good as equal."""


def draw(
    ax: "Axes", steps: np.ndarray, gap: np.ndarray, tolerance: float | None, error: float | None
) -> None:
    """The gap in nats over steps on log axes; ``error`` is the teacher's own."""
    lines = [value for value in (tolerance, error) if value is not None and value > 0]
    top = max(gap.max(), *lines) if lines else gap.max()
    floor = max(min([gap[gap > 0].min(initial=np.inf), *lines]), top * 10.0**-DECADES)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.plot(steps, np.maximum(gap, floor), color=GAP, linewidth=2, solid_capstyle="round")
    ax.plot(steps[-1:], np.maximum(gap[-1:], floor), "o", color=GAP, markersize=6)
    left, beyond = steps[0], error is not None and tolerance is not None and error > tolerance
    if tolerance is not None:
        ax.axhline(tolerance, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        text = f"tolerance, {tolerance:.2g} nats"
        note(ax, text, (left, tolerance), (0, -3 if beyond else 3), color=INK)
    if error is not None and error > 0:
        ax.axhline(max(error, floor), color=ERROR, linewidth=1)
        text = f"error of the teacher's own average, {error:.2g} nats"
        note(ax, text, (left, max(error, floor)), (0, 3 if beyond else -3), color="#a14d00")
    ax.set_ylim(floor / 2.2, top * 2)
    plain_axes(ax, "steps of the student", "KL(teacher ‖ student), nats")
