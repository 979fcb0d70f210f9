"""Pictures of results; matplotlib is imported only when one is drawn."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.arrays.typing import Float
from posterity.errors import UsageError
from posterity.fusion import Fusion
from posterity.fusion.blocks import blocks
from posterity.fusion.confidence import AMBIGUOUS
from posterity.plots import cells, prevalence
from posterity.plots.canvas import Canvas, check_format, finish, longest, new_axes
from posterity.plots.matches import Matches, read
from posterity.plots.traces import plot_distillation, plot_pursuit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_format", "plot_distillation", "plot_matching", "plot_pursuit"]

Array = np.ndarray
MOST_ROWS = 20
"""Sites that have a row with a cell for each component; more are counted in bars."""
PICTURE, NUMBER, WIDEST = 0.62, 0.45, 13.0
"""Inches of a column of pictures and of numbers, and of all columns together."""
LONGEST = 12
"""Letters of a name on one line, for which a column is made wider."""


def plot_matching(
    fusion: Fusion,
    path: str | os.PathLike[str] | None = None,
    *,
    images: Mapping[str, Float[Array, "_ h w"]] | None = None,
    fused_images: Float[Array, "g h w"] | None = None,
    names: Sequence[str] | None = None,
    plate: str | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """The components of sites that are one, and how sure that is.

    A row is a site, a column a fused component, under its name and the number of sites that have
    it. A cell has the colour of the match's strength: what the next best match would cost in
    nats, where the matching knows it (``fusion.plates[path].margins``). In it is the image of
    the site's component, or its number at the site. Fused components of a single site lie
    apart, and so does the number of components that held no data. Of more than 20 sites there
    are bars instead, of how many sites have each component and how strongly, above a line a site.

    Args:
        fusion: what :func:`posterity.fuse` returned.
        path: where to save the picture, if anywhere; its ending names the format.
        images: for each site one image a local component, in the site's own order; they share
            one grey scale, dark for large values. More than 20 sites' are not drawn.
        fused_images: one image a fused component; without them its mixing weight is shown, where
            it has one.
        names: of the fused components, which are drawn in their order; by default numbers.
        plate: the block of the plate, where a posterior has several.
        title: what is written above, instead of how much was fused; further lines are small.
        ax: axes to draw in; without them a new figure of a fitting size.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: images or names that do not fit the matching, several plates and none named,
            or a path that cannot be written.

    >>> from posterity import DiagonalGaussian, Plate, fuse
    >>> def site(*means):
    ...     means = np.array(means)[:, None]
    ...     return Plate(DiagonalGaussian.from_standard(means, np.full(means.shape, 0.1)))
    >>> fusion = fuse({"a": site(0.0, 9.0), "b": site(9.1, 0.1), "c": site(0.2, 9.2)})
    >>> figure = plot_matching(fusion, names=["low", "high"])
    >>> figure.axes[0].get_title(loc="left")
    '3 sites, 2 fused components'
    """
    path_of_plate = _path(fusion, plate)
    matches = read(fusion.plates[path_of_plate])
    _check_images(matches, images, fused_images)
    labels = _names(matches, names)
    column = max(NUMBER if images is None else PICTURE, 0.08 * longest(labels))
    column = min(column, WIDEST / (len(labels) + 2))
    canvas = Canvas(new_axes() if ax is None else ax, matches, 1 / column, labels)
    bottom = _fused(canvas, fused_images, _weights(fusion, path_of_plate))
    if len(matches.sites) <= MOST_ROWS:
        rows, end = cells.draw(canvas, bottom, images)
    else:
        rows, end = prevalence.draw(canvas, bottom)
    if bottom:
        rows |= {0.5: "fused" if fused_images is not None else "share"}
    top, counts = canvas.heading()
    usual = f"{len(matches.sites):,} sites, {len(matches.holders)} fused components"
    title, _, note = (title or usual).partition("\n")
    what = _explanation(len(matches.sites), images is not None)
    top = canvas.explain(top, " ".join(filter(None, [what, note, _evidence(matches)])))
    canvas.finish(top, end + 0.1, counts | rows, title)
    if ax is None:
        canvas.fit(rows)
    return finish(canvas.ax.figure, path)


def _path(fusion: Fusion, plate: str | None) -> str:
    names = sorted(fusion.plates)
    if plate is None and len(names) == 1:
        return names[0]
    if plate is None or plate not in names:
        expected, fix = f"one of {names}", "Name a plate of the fused posterior."
        if len(names) == 1:
            fix = "Leave the plate out: there is but one."
        elif not names:
            expected, fix = "a plate, whose components were matched", "Draw no picture."
        raise UsageError(found=f"plate={plate!r}", expected=expected, fix=fix)
    return plate


def _names(matches: Matches, names: Any) -> Sequence[str]:
    size = len(matches.holders)
    names = [str(g) for g in range(size)] if names is None else list(names)
    if len(names) != size or not all(isinstance(name, str) for name in names):
        found = f"{len(names)} names, {names}"
        fix = "Give every fused component one name, a text."
        raise UsageError(found=found, expected=f"{size} texts", fix=fix)
    wrapped = [[textwrap.fill(line, LONGEST) for line in name.split("\n")] for name in names]
    return ["\n".join(lines) for lines in wrapped]


def _check_images(matches: Matches, images: Any, fused_images: Any) -> None:
    expected = {site: len(label) for site, label in matches.alignment.matching.items()}
    size, images = len(matches.holders), images or {}
    counts = {site: len(own) for site, own in images.items()} or expected
    fused = size if fused_images is None else len(fused_images)
    some = [*images.values(), *([] if fused_images is None else [fused_images])]
    shapes = [getattr(own, "shape", type(own).__name__) for own in some]
    if counts != expected or fused != size or any(len(s) != 3 or type(s) is str for s in shapes):
        raise UsageError(
            found=f"{fused} fused images and, by site, {counts}, of shapes {shapes}",
            expected=f"{size} fused images and, by site, {expected}, each an array (components, h, "
            "w)",
            fix="Give every component of every site one image, in the site's own order, and stack "
            "images of one size with numpy.stack.",
        )


def _fused(canvas: Canvas, images: Array | None, weights: Array | None) -> float:
    """Draw the row of fused components, if there is anything to show; where it ends."""
    if images is not None:
        cells.fused(canvas, 0.5, images)
    elif weights is not None:
        cells.shares(canvas, 0.5, weights)
    else:
        return 0.0
    return 1.0 + 0.15 * canvas.inch


def _weights(fusion: Fusion, path: str) -> Array | None:
    """Mean mixing weights of a fused plate, if it has any."""
    plate: Any = blocks(fusion.posterior)[path]
    if not plate.is_plate or plate.weights is None:
        return None
    return np.asarray(plate.weights.mean_weights())


def _explanation(sites: int, pictures: bool) -> str:
    what = "picture" if pictures else "number"
    rows = f"A row is a site, a cell its own component that became this one, by its {what}."
    if sites > MOST_ROWS:
        rows = "A row is a site, coloured where it has the component."
    if sites > prevalence.NAMED:
        rows = "A row is a group of sites that are alike, a cell filled as far as they have it."
    return f"A column is a fused component. {rows}"


def _evidence(matches: Matches) -> str:
    """The other number of components that comes closest, where that is known."""
    others = dict(matches.alignment.components_evidence)
    others.pop(len(matches.holders), None)
    if not others:
        return ""
    number, nats = min(others.items(), key=lambda other: other[1])
    doubtful = ": doubtful" if nats < AMBIGUOUS else ""
    return f"The next best number of components, {number}, is {nats:.3g} nats worse{doubtful}."
