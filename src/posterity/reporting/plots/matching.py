"""The plot of a matching: sites in rows, fused components in columns."""

import dataclasses
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
from posterity.reporting.plots.canvas import INK, PALE, finish, new_axes
from posterity.reporting.plots.matches import COLOURS, MEANING, Kind, Matches, read
from posterity.runtime.text import natural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Layout:
    """Sizes of the plot of a matching.

    Attributes:
        column: width of a column in inches, in which a name of ``letters`` letters fits.
        row: height of a site's row in inches.
        widest: largest width of all columns in inches, that of a page on its side.
        highest: largest height of all rows in inches; more sites have thinner rows.
        named: number of sites up to which each row has its name, numbers and images.
        lines: largest number of thin rows; of more sites some are drawn.
        letters: letters per line of a name.
        image: share of a cell that its image fills; the rest has the colour of the match.
    """

    column: float = 0.62
    row: float = 0.45
    widest: float = 13.0
    highest: float = 9.0
    named: int = 20
    lines: int = 2000
    letters: int = 12
    image: float = 0.8


PLAIN = Layout()


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
    layout: Layout = PLAIN,
) -> "Figure":
    """Plot which components of sites are matched, and how certain each match is.

    Rows are sites and columns fused components: first those of several sites, by name, then those
    of one. Above a column are its name, the number of sites that have it, and its mixing weight, if
    it has one. The colour of a cell is the strength of the match: the cost in nats of the next best
    match, if it is known (``fusion.plates[path].margins``). The cell holds the image of the site's
    component, or its number at the site. Above 20 sites rows are thin lines, similar ones together.

    Args:
        fusion: result of :func:`posterity.fuse`.
        path: path at which to save the plot, if given; its ending sets the format.
        images: by site, one image per local component, in the site's own order. They share one
            grey scale, dark for large values, and are not drawn for more than 20 sites.
        fused_images: one image per fused component, in a row of their own above the sites.
        names: names of the fused components, which also set their order; by default numbers.
        plate: block of the plate, if a posterior has several.
        title: title, by default how much was fused; further lines are small.
        ax: axes to draw in; by default those of a new figure of a fitting size.
        layout: sizes of rows, columns and images.

    Raises:
        MissingExtraError: if matplotlib is not installed.
        UsageError: for images or names that do not fit the matching, several plates without
            ``plate``, or a path that cannot be written.

    >>> from posterity import DiagonalGaussian, Plate, fuse
    >>> def site(*means):
    ...     means = np.array(means)[:, None]
    ...     return Plate(DiagonalGaussian.from_standard(means, np.full(means.shape, 0.1)))
    >>> fusion = fuse({"a": site(0.0, 9.0), "b": site(9.1, 0.1), "c": site(0.2, 9.2)})
    >>> figure = plot_matching(fusion, names=["low", "high"])
    >>> figure.axes[0].get_title(loc="left")
    '3 sites, 2 fused components'
    """
    block = _block(fusion, plate)
    matches = read(fusion.plates[block])
    _check_images(matches, images, fused_images)
    labels = _labels(matches, names, layout)
    alone = ~matches.shared
    order = sorted(range(len(labels)), key=lambda g: (alone[g], natural(labels[g]), g))
    axes = new_axes() if ax is None else ax
    weights = getattr(blocks(fusion.posterior)[block], "weights", None)
    heads = [f"{labels[g]}\n{matches.holders[g]}/{len(matches.sites)}" for g in order]
    if weights is not None:
        shares = np.asarray(weights.mean_weights())
        heads = [f"{head}\n{shares[g]:.0%}" for head, g in zip(heads, order, strict=True)]
    few = len(matches.sites) <= layout.named
    rows = np.arange(len(matches.sites)) if few else _alike(matches, layout.lines)
    _paint(axes, matches.kinds[rows][:, order], gap=2.0 if few else 0.0)
    if few:
        _fill(axes, matches, order, images, layout)
    top = -0.5
    if fused_images is not None:
        top = -1.5
        scale = _grey([fused_images])
        for x, g in enumerate(order):
            _tiles(axes, x, -1.0, fused_images[[g]], scale, layout)
    usual = f"{len(matches.sites):,} sites, {len(order)} fused components"
    head, _, more = (title or usual).partition("\n")
    axes.set_title(head, fontsize=11, weight="bold", color=INK, pad=9, loc="left")
    axes.set(xlim=(-0.5, len(order) - 0.5), ylim=(len(rows) - 0.5, top))
    axes.set_aspect("equal" if images else "auto", anchor="NW")
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(order)), heads)
    axes.set_yticks(range(len(rows)) if few else [], _row_names(matches) if few else [])
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    axes.spines[:].set_visible(False)
    wide = min(layout.column * len(order), layout.widest)
    what = "picture" if images is not None else "number"
    cells = f"a cell its own component that became this one, by its {what}"
    cells = cells if few else "coloured where it has the component"
    text = f"A column is a fused component. A row is a site, {cells}. {more} {_evidence(matches)}"
    _explain(axes, matches, textwrap.fill(" ".join(text.split()), max(60, int(16 * wide))))
    if ax is None:
        tall = min(layout.row * (len(rows) - 0.5 - top), layout.highest)
        figure: Any = axes.figure
        figure.set_size_inches(max(wide, 4.0) + 1.5, tall + 2.5)
    return finish(axes.figure, path)


def _alike(matches: Matches, most: int) -> Array:
    """Return sites in an order in which those with the same components are adjacent."""
    order = np.lexsort(matches.kinds.T[::-1] == Kind.ABSENT)
    return order[:: -(-len(order) // most)]


def _row_names(matches: Matches) -> list[str]:
    pairs = zip(matches.sites, matches.idle.tolist(), strict=True)
    return [f"{site} ({idle} held no data)" if idle else site for site, idle in pairs]


def _paint(axes: "Axes", kinds: Array, gap: float) -> None:
    """Draw a cell of its kind's colour for each site and component, with white lines between."""
    from matplotlib.colors import ListedColormap

    rows, columns = kinds.shape
    axes.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        kinds,
        cmap=ListedColormap([COLOURS[kind] for kind in Kind]),
        vmin=min(Kind) - 0.5,
        vmax=max(Kind) + 0.5,
        edgecolors="white" if gap else "none",
        linewidth=gap,
    )


def _fill(
    axes: "Axes", matches: Matches, order: Sequence[int], images: Any, layout: Layout
) -> None:
    """Draw the image of each site's own component into its cell, or write its number."""
    scale = _grey(list(images.values())) if images else {}
    for y, site in enumerate(matches.sites):
        members = matches.members(y)
        for x, g in enumerate(order):
            own = members.get(g, [])
            if images and own:
                _tiles(axes, x, y, images[site][own], scale, layout)
            elif own:
                dark = matches.kinds[y, g] in (Kind.FIRM, Kind.UNKNOWN)
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}
                axes.text(x, y, ",".join(map(str, own)), color="white" if dark else INK, **style)


def _tiles(axes: "Axes", x: float, y: float, images: Array, scale: Any, layout: Layout) -> None:
    """Draw all images of one site's components in a cell, side by side."""
    side = int(np.ceil(np.sqrt(len(images))))
    step = layout.image / side
    for index, image in enumerate(images):
        left = x - layout.image / 2 + step * (index % side)
        top = y - layout.image / 2 + step * (index // side)
        place = (left, left + step, top + step, top)
        axes.imshow(image, extent=place, cmap="gray_r", aspect="auto", zorder=3, **scale)


def _grey(images: Sequence[Array]) -> dict[str, float]:
    images = [one for one in images if one.size]
    return {"vmin": min(one.min() for one in images), "vmax": max(one.max() for one in images)}


def _explain(axes: "Axes", matches: Matches, text: str) -> None:
    """Draw the legend below axes, under a text."""
    from matplotlib.patches import Patch

    kinds = set(np.unique(matches.kinds))
    if kinds & {Kind.FIRM, Kind.LIKELY, Kind.AMBIGUOUS}:
        text += "\nStrength of a match: what the next best one would cost"
    legend = axes.legend(
        handles=[Patch(color=COLOURS[k], label=MEANING[k]) for k in MEANING if k in kinds],
        title=text,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        fontsize=8,
        title_fontsize=8,
        frameon=False,
        alignment="left",
    )
    legend.get_title().set_color(PALE)


def _evidence(matches: Matches) -> str:
    """Return a sentence on the next best number of components, if its cost is known."""
    others = dict(matches.alignment.components_evidence)
    others.pop(len(matches.holders), None)
    if not others:
        return ""
    number, nats = min(others.items(), key=lambda other: other[1])
    doubtful = ": doubtful" if nats < AMBIGUOUS else ""
    return f"The next best number of components, {number}, is {nats:.3g} nats worse{doubtful}."


def _block(fusion: Fusion, plate: str | None) -> str:
    names = sorted(fusion.plates)
    if len(names) == 1 and plate in (None, names[0]):
        return names[0]
    if plate is None or plate not in names:
        raise UsageError(
            found=f"plate={plate!r}",
            expected=f"one of {names}, whose components were matched",
            fix="Name one; leave it out if there is but one, and draw no picture if there is none.",
        )
    return plate


def _labels(matches: Matches, names: Any, layout: Layout) -> Sequence[str]:
    size = len(matches.holders)
    names = [str(g) for g in range(size)] if names is None else list(names)
    if len(names) != size or not all(isinstance(name, str) for name in names):
        raise UsageError(found=f"{len(names)} names, {names}", expected=f"{size} texts")
    wrapped = [[textwrap.fill(line, layout.letters) for line in name.split("\n")] for name in names]
    return ["\n".join(lines) for lines in wrapped]


def _check_images(matches: Matches, images: Any, fused_images: Any) -> None:
    expected = {site: len(label) for site, label in matches.alignment.matching.items()}
    size = len(matches.holders)
    images = images or {}
    counts = {site: len(own) for site, own in images.items()} or expected
    fused = size if fused_images is None else len(fused_images)
    some = [*images.values(), *([] if fused_images is None else [fused_images])]
    shapes = [getattr(own, "shape", type(own).__name__) for own in some]
    if counts != expected or fused != size or any(len(s) != 3 or type(s) is str for s in shapes):
        raise UsageError(
            found=f"{fused} fused images and, by site, {counts}, of shapes {shapes}",
            expected=f"{size} fused images and, by site, {expected}, each of shape (n, h, w)",
        )
