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
from posterity.plots import cells, convergence, prevalence
from posterity.plots import pursuit as pursuit_trace
from posterity.plots.canvas import INK, Canvas, check_format, finish, longest, new_axes, new_panels
from posterity.plots.matches import Matches, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from posterity.distillation import Distillation
    from posterity.distillation import Row as DistillationRow
    from posterity.pursuit import Pursuit
    from posterity.pursuit.result import Row

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
        names: of the fused components, which are drawn in the order of their names; without
            any, their numbers.
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


def plot_distillation(
    distillation: "Distillation | Sequence[DistillationRow]",
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """The picture of a distillation: nats between student and teacher over steps, on log axes.

    Beside it are, of a whole distillation, the tolerance and a quarter of the drift: about the
    error of the teacher's own average, below which the gap cannot be told from zero.

    Args:
        distillation: what :func:`posterity.distill` returned, or its ``trace`` alone.
        path: where to save the picture, if anywhere; its ending names the format.
        title: what is written above, instead of whether it has converged.
        ax: axes to draw in; without them a new figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: a trace without a step, or a path that cannot be written.

    >>> from posterity.distillation import Row
    >>> trace = [Row(n, 1 / n, 1.0) for n in (10, 100, 1000)]
    >>> figure = plot_distillation(trace)
    >>> figure.axes[0].get_title(loc="left")
    '0.001 nats from its teacher after 1,000 steps'
    """
    status, trace = _trace(distillation, "gap", "distill")
    steps = np.array([row.step for row in trace], float)
    gap = np.array([row.gap for row in trace], float)
    if title is None:
        title = f"{gap[-1]:.2g} nats from its teacher after {steps[-1]:,.0f} steps"
        title = title if status is None else f"{status.state.capitalize()}: {title}"
    axes = new_axes(equal=False, inches=(6.4, 3.8)) if ax is None else ax
    drift = getattr(distillation, "drift", np.inf)
    error = drift / 4 if np.isfinite(drift) else None
    convergence.draw(axes, steps, gap, None if status is None else status.tolerance, error)
    axes.set_title(title, fontsize=11, weight="bold", color=INK, pad=9, loc="left")
    return finish(axes.figure, path)


def plot_pursuit(
    pursuit: "Pursuit | Sequence[Row]",
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
) -> "Figure":
    """Four pictures of a pursuit over its number of components.

    They are the ELBO and what each step added to it, in nats, with standard errors; the weight α
    that each component was given when it came, beside its λ; and how many components count, the
    exponential of the entropy of the weights. Where all components were polished together, that
    is a point of its own above the same number.

    Args:
        pursuit: what :func:`posterity.pursue` returned, or its ``trace`` alone.
        path: where to save the picture, if anywhere; its ending names the format.
        title: what is written above, instead of whether it has converged.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: a trace without a component, or a path that cannot be written.

    >>> from posterity.pursuit import Row
    >>> first = Row(1, -2.0, 0.1, -2.0, 0.1, 1.0, 1.0, 1.4, 1.0, 100)
    >>> second = Row(2, -1.5, 0.05, 0.5, 0.05, 0.4, 1.7, 1.9, 1.96, 300)
    >>> figure = plot_pursuit([first, second])
    >>> figure.get_suptitle()
    'ELBO -1.5 ± 0.05 nats with 2 components'
    """
    status, trace = _trace(pursuit, "elbo", "pursue")
    if title is None:
        last = trace[-1]
        many = "component" + ("s" if last.components > 1 else "")
        elbo = f"ELBO {last.elbo:.4g} ± {last.standard_error:.2g} nats"
        title = f"{elbo} with {last.components} {many}"
        title = title if status is None else f"{status.state.capitalize()}: {title}"
    figure, axes = new_panels(2, 2, (8.4, 5.4), sharex=True)
    pursuit_trace.draw(axes, trace)
    return finish(figure, path, title)


def _trace(result: Any, number: str, verb: str) -> tuple[Any, Any]:
    """The status of a result, None of a trace alone, and its trace, whose numbers are finite."""
    trace = getattr(result, "trace", result)
    if not len(trace) or not all(np.isfinite(getattr(row, number)) for row in trace):
        raise UsageError(
            found=f"a trace of {len(trace)} rows" + (", not all finite" if len(trace) else ""),
            expected=f"a row at least, each with a finite {number}",
            fix=f"Pass what posterity.{verb} returned.",
        )
    return getattr(result, "status", None), trace


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
    if names is None:
        return [str(g) for g in range(size)]
    if len(names) != size:
        raise UsageError(
            found=f"{len(names)} names",
            expected=f"{size} names",
            fix="Give every fused component one name.",
        )
    if not all(isinstance(name, str) for name in names):
        raise UsageError(
            found=f"names {list(names)}", expected="strings", fix="Make strings of them."
        )
    wrapped = [[textwrap.fill(line, LONGEST) for line in name.split("\n")] for name in names]
    return ["\n".join(lines) for lines in wrapped]


def _check_images(
    matches: Matches,
    images: Any,
    fused_images: Any,
) -> None:
    expected = {site: len(label) for site, label in matches.alignment.matching.items()}
    counts = {site: len(own) for site, own in images.items()} if images is not None else expected
    size = len(matches.holders)
    fused = size if fused_images is None else len(fused_images)
    if counts != expected or fused != size:
        raise UsageError(
            found=f"{fused} fused images and, by site, {counts}",
            expected=f"{size} fused images and, by site, {expected}",
            fix="Give every component of every site one image, in the site's own order.",
        )
    some = [*(images or {}).values(), *([] if fused_images is None else [fused_images])]
    for own in some:
        if getattr(own, "ndim", None) != 3:
            raise UsageError(
                found=f"images as a {type(own).__name__} of shape {getattr(own, 'shape', None)}",
                expected="arrays of images, rows and columns: of shape (components, h, w)",
                fix="Stack images of one size with numpy.stack.",
            )


def _fused(canvas: Canvas, images: Array | None, weights: Array | None) -> float:
    """Draw the row of fused components, if there is anything to show; where it ends."""
    if images is not None:
        cells.fused(canvas, 0.5, images)
    elif weights is not None:
        cells.shares(canvas, 0.5, weights)
    else:
        return 0.0
    return 1.0 + cells.gap(canvas)


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
