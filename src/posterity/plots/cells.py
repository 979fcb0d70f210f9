"""A row a site: a cell for each component, with its picture or its number at the site."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.arrays.typing import Float
from posterity.plots.canvas import COLOURS, PALE, Canvas
from posterity.plots.matches import Kind

Array = np.ndarray
HALF = 0.45
"""Half a cell, in columns."""
Images = Mapping[str, Float[Array, "_ h w"]]


def draw(canvas: Canvas, top: float, images: Images | None) -> tuple[dict[float, str], float]:
    """The rows' heights and names, and where the last one ends."""
    matches = canvas.matches
    rows = {top + 0.5 + row: site for row, site in enumerate(matches.sites)}
    scale = grey(images.values()) if images else {}
    for row, (y, site) in enumerate(rows.items()):
        members = matches.members(row)
        for g, x in enumerate(canvas.x):
            kind = Kind(matches.kinds[row, g])
            _cell(canvas, x, y, kind, filled=images is None or g not in members)
            if g in members and images is not None:
                _tile(canvas, x, y, images[site][members[g]], scale)
            elif g in members:
                colour = "white" if kind in (Kind.FIRM, Kind.UNKNOWN) else "black"
                canvas.write(x, y, ",".join(map(str, members[g])), color=colour)
        if matches.idle[row]:
            canvas.write(canvas.idle or 0.0, y, str(matches.idle[row]), color=PALE)
    return rows, top + len(rows)


def fused(canvas: Canvas, y: float, images: Float[Array, "g h w"]) -> None:
    """The row of fused components' pictures."""
    scale = grey([images])
    for x, picture in zip(canvas.x, images, strict=True):
        _tile(canvas, x, y, picture[None], scale)
        _frame(canvas, x, y, fill=False, edgecolor=PALE, linewidth=0.6)


def shares(canvas: Canvas, y: float, weights: Float[Array, " g"]) -> None:
    """The row of fused components' mixing weights: bars beside one another."""
    room, foot = 2 * HALF - 0.3, y + HALF
    for x, weight in zip(canvas.x, weights, strict=True):
        high = room * float(weight / weights.max())
        canvas.fill(x - 0.3, foot - high, 0.6, high, PALE)
        if canvas.roomy:
            canvas.write(x, foot - high - 0.14, f"{weight:.0%}", fontsize=0.75 * canvas.font)


def grey(pictures: Any) -> dict[str, float]:
    """One scale for all of them, dark for large values."""
    pictures = [p for p in pictures if p.size]
    return {"vmin": min(p.min() for p in pictures), "vmax": max(p.max() for p in pictures)}


def _cell(canvas: Canvas, x: float, y: float, kind: Kind, *, filled: bool) -> None:
    if filled:
        return _frame(canvas, x, y, fill=True, facecolor=COLOURS[kind], linewidth=0)
    weight = {Kind.AMBIGUOUS: 2.6, Kind.FIRM: 1.8}.get(kind, 1.4)
    style = (0, (2, 1)) if kind is Kind.AMBIGUOUS else "solid"
    edge = {"edgecolor": COLOURS[kind], "linewidth": weight, "linestyle": style, "zorder": 3}
    return _frame(canvas, x, y, fill=False, **edge)


def _frame(canvas: Canvas, x: float, y: float, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    canvas.ax.add_patch(Rectangle((x - HALF, y - HALF), 2 * HALF, 2 * HALF, **style))


def _tile(
    canvas: Canvas, x: float, y: float, pictures: Float[Array, "n h w"], scale: dict[str, float]
) -> None:
    """All pictures of one site's components in a cell, beside one another."""
    side = int(np.ceil(np.sqrt(len(pictures))))
    step = 2 * HALF / side
    for index, picture in enumerate(pictures):
        left, top = x - HALF + step * (index % side), y - HALF + step * (index // side)
        here = (left, left + step, top + step, top)
        style: dict[str, Any] = {"cmap": "gray_r", "interpolation": "bicubic", **scale}
        canvas.ax.imshow(picture, extent=here, **style)
