"""Axes in which a column is one unit wide, with a heading, a legend and room for both."""

import dataclasses
import functools
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.arrays.typing import Float
from posterity.errors import MissingExtraError, UsageError
from posterity.plots.matches import MEANING, Kind, Matches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
FORMATS = (".png", ".pdf", ".svg")
INK, PALE = "#222222", "#6b6b6b"
"""Colours of names and of notes."""
BLUE, ORANGE = "#1b4f8f", "#ee7d11"
"""Colours that differ without red and green, and in print by their lightness."""
DASHED = (0, (4, 3))
COLOURS = {
    Kind.ABSENT: "#f1f1ee",
    Kind.ALONE: "#b9b9b2",
    Kind.UNKNOWN: "#5f7f9f",
    Kind.FIRM: BLUE,
    Kind.LIKELY: "#86b3de",
    Kind.AMBIGUOUS: ORANGE,
}


@dataclasses.dataclass(frozen=True)
class Canvas:
    """The axes of a matching: ``inch`` of their units are an inch; y grows downwards."""

    ax: "Axes"
    matches: Matches
    inch: float
    names: Sequence[str]

    @functools.cached_property
    def x(self) -> Float[Array, " g"]:
        """The place of each fused component: those of several sites first, the others apart."""
        shared, place = self.matches.shared, np.empty(len(self.names))
        order = sorted(range(len(place)), key=lambda g: (not shared[g], _natural(self.names[g]), g))
        place[order] = np.arange(len(place))
        return place + np.where(shared, 0.0, self.gap * shared.any())

    @property
    def gap(self) -> float:
        """Between groups of columns, 0.3 inches at least: their headings need 0.65 each."""
        return max(0.3 * self.inch, 0.65 * self.inch - 1.0)

    @property
    def idle(self) -> float | None:
        """The place of the column of what held no data, if anything did not."""
        return float(self.x.max()) + 1 + self.gap if self.matches.idle.any() else None

    @property
    def right(self) -> float:
        """The end of the last column."""
        return (self.x.max() if self.idle is None else self.idle) + 0.5

    @property
    def font(self) -> float:
        """A size, in points, at which three letters fit a column."""
        return float(np.clip(36 / self.inch, 5.0, 11.0))

    @property
    def roomy(self) -> bool:
        """True if a few digits fit a column."""
        return self.inch < 3.5

    def write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Centred text."""
        style = {"ha": "center", "va": "center", "color": INK, "fontsize": self.font} | style
        self.ax.text(x, y, text, **style)

    def fill(self, x: float, y: float, wide: float, tall: float, colour: str) -> None:
        """A rectangle below and to the right of a point."""
        from matplotlib.patches import Rectangle

        self.ax.add_patch(Rectangle((x, y), wide, tall, facecolor=colour, linewidth=0))

    def heading(self) -> tuple[float, dict[float, str]]:
        """Name and number of holders above each column, from 0 up: where it begins, and a row."""
        line, foot = 0.19 * self.inch, -0.05 * self.inch
        row = self._holders(foot - 0.09 * self.inch) if self.roomy else {}
        foot -= line * bool(row)
        lines = 1 + max(name.count("\n") for name in self.names)
        every = int(np.ceil(0.16 * self.inch))  # of narrow columns, some are named
        size = max(4.5, min(self.font, 95.0 / self.inch / longest(self.names)))
        for x, name in zip(self.x, self.names, strict=True):
            for below, text in enumerate(name.split("\n") if round(x) % every == 0 else ()):
                style = {"fontsize": size - 2.0} if below else {"fontsize": size, "weight": "bold"}
                self.write(x, foot + (below + 0.5 - lines) * line, text, **style)
        return self._groups(foot - (lines + 0.3) * line), row

    def _holders(self, y: float) -> dict[float, str]:
        sites = len(self.matches.sites)
        for x, number in zip(self.x, self.matches.holders, strict=True):
            text = f"{number}/{sites}" if sites < 100 else str(number)
            text = text if number < 10_000 else f"{number / 1000:.0f}k"
            self.write(x, y, text, color=PALE, fontsize=0.75 * self.font)
        return {y: "found at"} if sites < 100 else {y: "sites"}

    def _groups(self, y: float) -> float:
        """The headings of the columns that lie apart."""
        lone = self.x[~self.matches.shared]
        style = {"fontsize": 7.5, "va": "bottom", "linespacing": 1.0}
        if len(lone):
            self.ax.plot([lone.min() - 0.4, lone.max() + 0.4], [y, y], color=PALE, linewidth=0.8)
            self.write(float(lone.mean()), y - 0.04 * self.inch, "at one\nsite only", **style)
        if self.idle is not None:
            self.write(self.idle, y - 0.04 * self.inch, "held\nno data", **style)
        return y - 0.34 * self.inch * bool(len(lone) or self.idle is not None)

    def explain(self, top: float, text: str) -> float:
        """Small lines between title and heading."""
        lines = textwrap.wrap(text, max(60, int(16 * self.right / self.inch)))
        style = {"ha": "left", "va": "top", "fontsize": 8, "color": PALE, "linespacing": 1.3}
        top -= (0.16 * len(lines) + 0.12) * self.inch
        self.write(-0.5, top, "\n".join(lines), **style)
        return top

    def finish(self, top: float, bottom: float, rows: dict[float, str], title: str) -> None:
        """Limits, names of rows, title and legend."""
        self.ax.set_xlim(-0.6, self.right + 0.1)
        self.ax.set_ylim(bottom, top)
        self.ax.set_xticks([])
        self.ax.set_yticks(list(rows), list(rows.values()))
        self.ax.tick_params(length=0, labelsize=8.5, labelcolor=INK)
        self.ax.spines[:].set_visible(False)
        self.ax.set_title(title, fontsize=11, weight="bold", color=INK, pad=9, loc="left")
        self._legend()

    def fit(self, rows: dict[float, str]) -> None:
        """Give the figure the size that all this takes."""
        (left, right), (bottom, top) = self.ax.get_xlim(), self.ax.get_ylim()
        wide = max((right - left) / self.inch + 0.2, 4.3) + 0.075 * longest(rows.values())
        self.ax.figure.set_size_inches(wide, (bottom - top) / self.inch + 1.1)  # type: ignore

    def _legend(self) -> None:
        from matplotlib.patches import Patch

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


def _natural(name: str) -> list[str | int]:
    """A key for which 2 comes before 10."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", name))]


def longest(names: Iterable[str]) -> int:
    """Letters in the longest line of any name."""
    return max(len(line) for name in names for line in (name or " ").split("\n"))


def new_axes(*, equal: bool = True, inches: tuple[float, float] | None = None) -> "Axes":
    """Axes of a new figure of this size; if ``equal``, a unit is as long across as down."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError.of("matplotlib", "plots") from error
    axes = matplotlib.figure.Figure(figsize=inches, layout="constrained").add_subplot()
    if equal:
        axes.set_aspect("equal", anchor="NW")
    return axes


def new_panels(down: int, across: int, inches: tuple[float, float], **options: Any) -> Any:
    """A new figure, and its axes as an array of shape ``(down, across)``."""
    blank = new_axes(equal=False, inches=inches)
    figure: Any = blank.figure
    blank.remove()
    return figure, figure.subplots(down, across, squeeze=False, **options)


def check_format(path: str | os.PathLike[str]) -> None:
    """Raise a UsageError for a picture whose ending names no format, or that is a folder."""
    if os.path.splitext(path)[1].lower() not in FORMATS:
        raise _unwritable(path, "its ending names no format")
    if os.path.isdir(path):
        raise _unwritable(path, "it is a folder")


def plain_axes(ax: "Axes", x: str = "", y: str = "") -> None:
    """Label axes of numbers and style them: no frame above and at the right, pale lines at y."""
    for label, write in ((x, ax.set_xlabel), (y, ax.set_ylabel)):
        if label:
            write(label, fontsize=9, color=INK)
    ax.tick_params(labelsize=8.5, labelcolor=INK, color=PALE, which="both")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(PALE)
    ax.grid(axis="y", color="#ececea", linewidth=0.8)
    ax.set_axisbelow(True)


def note(
    ax: "Axes",
    text: str,
    at: tuple[float | int, float | int],
    off: tuple[float | int, float | int],
    **style: Any,
) -> None:
    """Write a small text beside a point, so many points of the paper off it."""
    shape: dict[str, Any] = {"color": PALE, "fontsize": 8, "va": "bottom" if off[1] > 0 else "top"}
    ax.annotate(text, at, off, textcoords="offset points", **(shape | style))


def finish(figure: Any, path: str | os.PathLike[str] | None, title: str = "") -> Any:
    """Write a title above the figure, save it if there is a path, and return it."""
    if title:
        figure.suptitle(title, fontsize=11, weight="bold", color=INK, x=0.01, ha="left")
    if path is not None:
        save(figure, path)
    return figure


def save(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure; a UsageError if its ending names no format, or it cannot be written."""
    check_format(path)
    try:
        figure.savefig(path, dpi=150, facecolor="white", bbox_inches="tight")
    except OSError as error:
        raise _unwritable(path, str(error)) from error


def _unwritable(path: str | os.PathLike[str], why: str) -> UsageError:
    return UsageError(
        found=f"a picture {os.fspath(path)!r} that cannot be written ({why})",
        expected="a writable path that ends in .png, .pdf or .svg",
        fix="Choose another path.",
    )
