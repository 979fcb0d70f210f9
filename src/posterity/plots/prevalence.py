"""Many sites: how many of them have each component and how sure that is, and who is alike."""

from typing import Any

import numpy as np

from posterity.arrays.typing import Bool, Int
from posterity.plots.canvas import COLOURS, PALE, Canvas
from posterity.plots.matches import Kind

Array = np.ndarray
BARS, LINE, BAND = 1.5, 0.13, 0.3
"""Inches of the tallest bar, of a line for a site, and of one for a group of sites."""
NAMED, GROUPS = 60, 10
"""The most sites that have a line each; the groups into which more of them are put."""
STACK = (Kind.FIRM, Kind.UNKNOWN, Kind.ALONE, Kind.LIKELY, Kind.AMBIGUOUS)
"""From the foot of a bar to its head."""


def draw(canvas: Canvas, top: float) -> tuple[dict[float, str], float]:
    """The rows' heights and names, and where the last one ends.

    Few sites have a line each, in an order that has those with the same components beside one
    another; of more a line is a group that has much the same components, the largest first.
    """
    top += 0.12 * canvas.inch
    foot, matches = top + BARS * canvas.inch, canvas.matches
    labels, y = _bars(canvas, top, foot), foot + 0.2 * canvas.inch
    if len(matches.sites) <= NAMED:
        order = np.lexsort(matches.kinds.T[::-1] == Kind.ABSENT)
        names = [matches.sites[row] for row in order]
        lines, end = _lines(canvas, y, LINE, [[row] for row in order], names)
    else:
        groups = alike(matches.kinds > Kind.ABSENT, GROUPS)
        lines, end = _lines(canvas, y, BAND, groups, [f"{len(own):,} sites" for own in groups])
    return labels | lines, end


def alike(held: Bool[Array, "sites g"], most: int) -> list[Int[Array, " _"]]:
    """Group the sites by the components that they have, into so many groups at most.

    Again and again the group is split, into sites with and without one component, where that
    leaves least variance: monothetic division, which the order of sites has no say in.
    """
    groups = [np.arange(len(held))]
    while len(groups) < most:
        gains = [_best_split(held[group]) for group in groups]
        worst = int(np.argmax([gain for gain, _ in gains]))
        gain, column = gains[worst]
        if gain <= 0:
            break
        group = groups.pop(worst)
        groups += [group[held[group, column]], group[~held[group, column]]]
    return sorted(groups, key=len, reverse=True)


def _best_split(held: Bool[Array, "n g"]) -> tuple[float, int]:
    """The sum of squares that a split by the best column explains, and that column."""
    apart = held - held.mean(0)
    covariance = apart.T @ apart
    variance = np.diag(covariance)
    gain = (covariance**2).sum(0) / np.where(variance > 0, variance, np.inf)
    column = int(gain.argmax())
    return float(gain[column]), column


def _bars(canvas: Canvas, top: float, foot: float) -> dict[float, str]:
    """A bar a component, on a scale that ends at all sites; names of three heights."""
    sites, matches = len(canvas.matches.sites), canvas.matches
    for g, x in enumerate(canvas.x):
        numbers = {COLOURS[kind]: (matches.kinds[:, g] == kind).sum() for kind in STACK}
        _stack(canvas, x, foot, numbers, (foot - top) / sites)
    if canvas.idle is not None:
        _stack(canvas, canvas.idle, foot, {PALE: (matches.idle > 0).sum()}, (foot - top) / sites)
    half = sites // 2
    heights = {
        foot: "0 sites",
        foot - half * (foot - top) / sites: f"{half:,}",
        top: f"all {sites:,}",
    }
    for y in heights:
        canvas.ax.plot([-0.5, canvas.right], [y, y], color="#d5d5d0", linewidth=0.6, zorder=0)
    return heights


def _stack(
    canvas: Canvas, x: float, foot: float, numbers: dict[str, np.integer], unit: float
) -> None:
    for colour, number in numbers.items():
        tall = unit * int(number)
        foot -= tall
        canvas.fill(x - 0.4, foot, 0.8, tall, colour)


def _lines(
    canvas: Canvas, y: float, inches: float, groups: Any, names: list[str]
) -> tuple[dict[float, str], float]:
    """In each cell, as much of a colour as there are sites of that strength."""
    high, kinds, idle = inches * canvas.inch, canvas.matches.kinds, canvas.matches.idle > 0
    for row, group in enumerate(groups):
        top = y + row * high
        for g, x in enumerate(canvas.x):
            shares = [(COLOURS[kind], (kinds[group, g] == kind).mean()) for kind in STACK]
            _cell(canvas, x, top, high, shares)
        if canvas.idle is not None:
            _cell(canvas, canvas.idle, top, high, [(PALE, idle[group].mean())])
    rows = {y + (row + 0.5) * high: name for row, name in enumerate(names)}
    return rows, y + len(names) * high


def _cell(
    canvas: Canvas, x: float, top: float, high: float, shares: list[tuple[str, float]]
) -> None:
    left, wide, tall = x - 0.45, 0.9, high - 0.02 * canvas.inch
    canvas.fill(left, top, wide, tall, COLOURS[Kind.ABSENT])
    for colour, share in shares:
        if share > 0:
            canvas.fill(left, top, wide * share, tall, colour)
            left += wide * share
