"""The plot of a matching: sites in rows, fused components in columns."""

import dataclasses
import functools
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.arrays.typing import Float
from posterity.errors import UsageError
from posterity.fusion import Fusion
from posterity.fusion.blocks import blocks
from posterity.fusion.confidence import AMBIGUOUS
from posterity.reporting.plots.canvas import INK, PALE, finish, new_axes, write_title
from posterity.reporting.plots.matches import COLOURS, MEANING, Kind, Matches, read
from posterity.runtime.text import natural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
MOST_ROWS, NAMED, MOST_LINES = 20, 60, 2000
"""Largest numbers of sites with one row each, of named thin lines, and of thin lines."""
PICTURE, NUMBER, WIDEST = 0.62, 0.45, 13.0
"""Width in inches of a column of images, of a column of numbers, and of all columns."""
BARS, LINE, LINES = 1.5, 0.13, 4.0
"""Height in inches of the tallest bar, of a site's thin line, and of all thin lines."""
LONGEST = 12
"""Letters per line of a name, beyond which a column is made wider."""
HALF, ROOMY = 0.45, 3.5
"""Half width of a cell, in columns; and columns per inch up to which a few digits fit in one."""
STACK = (Kind.FIRM, Kind.UNKNOWN, Kind.ALONE, Kind.LIKELY, Kind.AMBIGUOUS)
"""Kinds in a bar, from bottom to top."""


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
    """Plot which components of sites are matched, and how certain each match is.

    Rows are sites and columns fused components, with their names and numbers of sites. The colour
    of a cell is the strength of the match: the cost in nats of the next best match, if it is known
    (``fusion.plates[path].margins``). The cell holds the image of the site's component, or its
    number at the site. Fused components of a single site are set apart, and so is the number of
    components without data. Above 20 sites, bars show how many have each component and how
    strongly, with one thin line per site below.

    Args:
        fusion: result of :func:`posterity.fuse`.
        path: path at which to save the plot, if given; its ending sets the format.
        images: by site, one image per local component, in the site's own order. They share one
            grey scale, dark for large values, and are not drawn for more than 20 sites.
        fused_images: one image per fused component; by default its mixing weight is drawn, if it
            has one.
        names: names of the fused components, which also set their order; by default numbers.
        plate: block of the plate, if a posterior has several.
        title: title, by default how much was fused; further lines are small.
        ax: axes to draw in; by default those of a new figure of a fitting size.

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
    labels = _labels(matches, names)
    wide = max(NUMBER if images is None else PICTURE, 0.08 * _longest(labels))
    wide = min(wide, WIDEST / (len(labels) + 2))
    picture = _Picture(new_axes() if ax is None else ax, matches, 1 / wide, labels)
    weights = getattr(blocks(fusion.posterior)[block], "weights", None)
    top, kind = 1.0 + 0.15 * picture.inch, "fused"
    if fused_images is not None:
        picture.draw_fused(fused_images)
    elif weights is not None:
        kind = "share"
        picture.draw_shares(np.asarray(weights.mean_weights()))
    else:
        top = 0.0
    few = len(matches.sites) <= MOST_ROWS
    rows, bottom = picture.draw_cells(top, images) if few else picture.draw_bars(top)
    rows |= {0.5: kind} if top else {}
    head, counts = picture.draw_heading()
    usual = f"{len(matches.sites):,} sites, {len(matches.holders)} fused components"
    title, _, more = (title or usual).partition("\n")
    what = "picture" if images is not None else "number"
    sites = f"A row is a site, a cell its own component that became this one, by its {what}."
    if not few:
        each = -(-len(matches.sites) // MOST_LINES)
        row = "a site" if each == 1 else f"one of {each} sites"
        sites = f"A row is {row}, coloured where it has the component."
    text = f"A column is a fused component. {sites} {more} {_evidence(matches)}"
    head = picture.explain(head, " ".join(text.split()))
    picture.finish(head, bottom + 0.1, counts | rows, title, resize=ax is None)
    return finish(picture.ax.figure, path)


@dataclasses.dataclass(frozen=True)
class _Picture:
    """Axes whose y points down, with columns one unit wide and ``inch`` units per inch."""

    ax: "Axes"
    matches: Matches
    inch: float
    names: Sequence[str]

    @functools.cached_property
    def x(self) -> Float[Array, " g"]:
        """Position of each fused component: first those of several sites, then the others."""
        shared, place = self.matches.shared, np.empty(len(self.names))
        order = sorted(range(len(place)), key=lambda g: (not shared[g], natural(self.names[g]), g))
        place[order] = np.arange(len(place))
        return place + np.where(shared, 0.0, self.gap * shared.any())

    @property
    def gap(self) -> float:
        """Gap between groups of columns, at least 0.3 inches; their headings need 0.65 each."""
        return max(0.3 * self.inch, 0.65 * self.inch - 1.0)

    @property
    def idle(self) -> float | None:
        """Position of the column for components without data, if there are any."""
        return float(self.x.max()) + 1 + self.gap if self.matches.idle.any() else None

    @property
    def right(self) -> float:
        """Right end of the last column."""
        return (self.x.max() if self.idle is None else self.idle) + 0.5

    @property
    def font(self) -> float:
        """Font size, in points, at which three letters fit in a column."""
        return float(np.clip(36 / self.inch, 5.0, 11.0))

    def write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write centred text."""
        style = {"ha": "center", "va": "center", "color": INK, "fontsize": self.font} | style
        self.ax.text(x, y, text, **style)

    def fill(self, x: float, y: float, wide: float, tall: float, **style: Any) -> None:
        """Draw a rectangle below and to the right of a point."""
        from matplotlib.patches import Rectangle

        style = {"linewidth": 0, **style}
        self.ax.add_patch(Rectangle((x, y), wide, tall, **style))

    def frame(self, x: float, y: float, **style: Any) -> None:
        """Draw a cell around a point: its frame, unless it is filled."""
        self.fill(x - HALF, y - HALF, 2 * HALF, 2 * HALF, **({"fill": False} | style))

    def tiles(self, x: float, y: float, images: Float[Array, "n h w"], scale: Any) -> None:
        """Draw all images of one site's components in a cell, side by side."""
        side = int(np.ceil(np.sqrt(len(images))))
        step = 2 * HALF / side
        for index, image in enumerate(images):
            left, top = x - HALF + step * (index % side), y - HALF + step * (index // side)
            style: dict[str, Any] = {"cmap": "gray_r", "interpolation": "bicubic", **scale}
            self.ax.imshow(image, extent=(left, left + step, top + step, top), **style)

    def draw_fused(self, images: Float[Array, "g h w"]) -> None:
        """Draw the row of fused components' images."""
        scale = _grey([images])
        for x, image in zip(self.x, images, strict=True):
            self.tiles(x, 0.5, image[None], scale)
            self.frame(x, 0.5, edgecolor=PALE, linewidth=0.6)

    def draw_shares(self, weights: Float[Array, " g"]) -> None:
        """Draw the row of fused components' mixing weights as bars."""
        foot = 0.5 + HALF
        for x, weight in zip(self.x, weights, strict=True):
            high = (2 * HALF - 0.3) * float(weight / weights.max())
            self.fill(x - 0.3, foot - high, 0.6, high, facecolor=PALE)
            if self.inch < ROOMY:
                self.write(x, foot - high - 0.14, f"{weight:.0%}", fontsize=0.75 * self.font)

    def draw_cells(self, top: float, images: Any) -> tuple[dict[float, str], float]:
        """Draw one row per site; return site names by height, and the end of the last row."""
        matches = self.matches
        rows = {top + 0.5 + row: site for row, site in enumerate(matches.sites)}
        scale = _grey(images.values()) if images else {}
        for row, (y, site) in enumerate(rows.items()):
            members = matches.members(row)
            for g, x in enumerate(self.x):
                kind = Kind(matches.kinds[row, g])
                if images is None or g not in members:
                    self.frame(x, y, fill=True, facecolor=COLOURS[kind])
                else:
                    weight = {Kind.AMBIGUOUS: 2.6, Kind.FIRM: 1.8}.get(kind, 1.4)
                    style = (0, (2, 1)) if kind is Kind.AMBIGUOUS else "solid"
                    edge = {"edgecolor": COLOURS[kind], "linewidth": weight, "linestyle": style}
                    self.frame(x, y, zorder=3, **edge)
                    self.tiles(x, y, images[site][members[g]], scale)
                if g in members and images is None:
                    colour = "white" if kind in (Kind.FIRM, Kind.UNKNOWN) else "black"
                    self.write(x, y, ",".join(map(str, members[g])), color=colour)
            if matches.idle[row]:
                self.write(self.idle or 0.0, y, str(matches.idle[row]), color=PALE)
        return rows, top + len(rows)

    def draw_bars(self, top: float) -> tuple[dict[float, str], float]:
        """Draw one bar per component and one thin line per site, similar sites together."""
        from matplotlib.colors import to_rgb

        top, names, kinds = top + 0.12 * self.inch, self.matches.sites, self.matches.kinds
        foot, count, half = top + BARS * self.inch, len(names), len(names) // 2
        unit, idle = (foot - top) / count, self.matches.idle > 0
        stacks = [
            (x, {COLOURS[k]: (kinds[:, g] == k) for k in STACK}) for g, x in enumerate(self.x)
        ]
        stacks += [] if self.idle is None else [(self.idle, {PALE: idle})]
        order = np.lexsort(kinds.T[::-1] == Kind.ABSENT)
        start, high = foot + 0.2 * self.inch, min(LINE, LINES / count) * self.inch
        end, lines = start + high * count, order[:: -(-count // MOST_LINES)]
        for x, parts in stacks:
            y, colours = foot, np.tile(to_rgb(COLOURS[Kind.ABSENT]), (len(lines), 1, 1))
            for colour, those in parts.items():
                tall = unit * int(those.sum())
                y -= tall
                self.fill(x - 0.4, y, 0.8, tall, facecolor=colour)
                colours[those[lines]] = to_rgb(colour)
            style: Any = {"interpolation": "nearest", "aspect": self.ax.get_aspect()}
            self.ax.imshow(colours, extent=(x - HALF, x + HALF, end, start), **style)
        heights = {foot: "0 sites", foot - half * unit: f"{half:,}", top: f"all {count:,}"}
        for y in heights:
            self.ax.plot([-0.5, self.right], [y, y], color="#d5d5d0", linewidth=0.6, zorder=0)
        shown = enumerate(order if count <= NAMED else ())
        return heights | {start + (row + 0.5) * high: names[k] for row, k in shown}, end

    def draw_heading(self) -> tuple[float, dict[float, str]]:
        """Write names and numbers of holders upwards from 0; return the top, and a row's name."""
        line, foot, row, sites = 0.19 * self.inch, -0.05 * self.inch, {}, len(self.matches.sites)
        if self.inch < ROOMY:
            row = {foot - 0.09 * self.inch: "found at" if sites < 100 else "sites"}
            for x, number in zip(self.x, self.matches.holders, strict=True):
                text = f"{number}/{sites}" if sites < 100 else str(number)
                text = text if number < 10_000 else f"{number / 1000:.0f}k"
                self.write(x, next(iter(row)), text, color=PALE, fontsize=0.75 * self.font)
            foot -= line
        lines = 1 + max(name.count("\n") for name in self.names)
        every = int(np.ceil(0.16 * self.inch))  # name only some narrow columns
        size = max(4.5, min(self.font, 95.0 / self.inch / _longest(self.names)))
        for x, name in zip(self.x, self.names, strict=True):
            for below, text in enumerate(name.split("\n") if round(x) % every == 0 else ()):
                style = {"fontsize": size - 2.0} if below else {"fontsize": size, "weight": "bold"}
                self.write(x, foot + (below + 0.5 - lines) * line, text, **style)
        y, lone = foot - (lines + 0.3) * line, self.x[~self.matches.shared]
        small = {"fontsize": 7.5, "va": "bottom", "linespacing": 1.0}
        if len(lone):
            self.ax.plot([lone.min() - 0.4, lone.max() + 0.4], [y, y], color=PALE, linewidth=0.8)
            self.write(float(lone.mean()), y - 0.04 * self.inch, "at one\nsite only", **small)
        if self.idle is not None:
            self.write(self.idle, y - 0.04 * self.inch, "held\nno data", **small)
        return y - 0.34 * self.inch * bool(len(lone) or self.idle is not None), row

    def explain(self, top: float, text: str) -> float:
        """Write small lines between title and heading; return the new top."""
        lines = textwrap.wrap(text, max(60, int(16 * self.right / self.inch)))
        style = {"ha": "left", "va": "top", "fontsize": 8, "color": PALE, "linespacing": 1.3}
        top -= (0.16 * len(lines) + 0.12) * self.inch
        self.write(-0.5, top, "\n".join(lines), **style)
        return top

    def finish(
        self, top: float, bottom: float, rows: dict[float, str], title: str, *, resize: bool
    ) -> None:
        """Set limits, row names, title, legend, and the figure's size."""
        from matplotlib.patches import Patch

        ax, left, right = self.ax, -0.6, self.right + 0.1
        ax.set(xlim=(left, right), ylim=(bottom, top), xticks=[])
        ax.set_yticks(list(rows), list(rows.values()))
        ax.tick_params(length=0, labelsize=8.5, labelcolor=INK)
        ax.spines[:].set_visible(False)
        write_title(ax, title)
        kinds = set(np.unique(self.matches.kinds))
        measured = kinds & {Kind.FIRM, Kind.LIKELY, Kind.AMBIGUOUS}
        self.ax.legend(
            handles=[Patch(color=COLOURS[k], label=MEANING[k]) for k in MEANING if k in kinds],
            title="Strength of a match: what the next best one would cost" if measured else None,
            loc="upper left",
            bbox_to_anchor=(0.0, 0.0),
            ncols=1 if self.right / self.inch < 5 else 2,
            fontsize=8,
            title_fontsize=8,
            frameon=False,
            alignment="left",
            handlelength=1.2,
        )
        if resize:
            wide = max((right - left) / self.inch + 0.2, 4.3) + 0.075 * _longest(rows.values())
            figure: Any = ax.figure
            figure.set_size_inches(wide, (bottom - top) / self.inch + 1.1)


def _grey(images: Iterable[Array]) -> dict[str, float]:
    images = [one for one in images if one.size]
    return {"vmin": min(one.min() for one in images), "vmax": max(one.max() for one in images)}


def _longest(names: Iterable[str]) -> int:
    return max(len(line) for name in names for line in (name or " ").split("\n"))


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


def _labels(matches: Matches, names: Any) -> Sequence[str]:
    size = len(matches.holders)
    names = [str(g) for g in range(size)] if names is None else list(names)
    if len(names) != size or not all(isinstance(name, str) for name in names):
        raise UsageError(
            found=f"{len(names)} names, {names}",
            expected=f"{size} texts",
            fix="Give every fused component one name, a text.",
        )
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
            expected=f"{size} fused images and, by site, {expected}, each of shape (n, h, w)",
            fix="Give every component of every site one image, in the site's own order, and stack "
            "images of one size with numpy.stack.",
        )
