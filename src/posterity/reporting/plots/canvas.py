"""Elements that all plots share: colours, new figures, plain axes, and saving."""

import io
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.errors import MissingExtraError, UsageError
from posterity.runtime.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".pdf", ".svg")
INK, PALE = "#222222", "#6b6b6b"
"""Colours of names and of notes."""
BLUE, ORANGE = "#1b4f8f", "#ee7d11"
"""Colours that differ without red and green, and by lightness in print."""
DASHED = (0, (4, 3))


def new_axes(*, equal: bool = True, inches: tuple[float, float] | None = None) -> "Axes":
    """Return the axes of a new figure of this size; if ``equal``, with equal units on both axes."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError.of("matplotlib", "plots") from error
    axes = matplotlib.figure.Figure(figsize=inches, layout="constrained").add_subplot()
    if equal:
        axes.set_aspect("equal", anchor="NW")
    return axes


def new_panels(down: int, across: int, inches: tuple[float, float], **options: Any) -> Any:
    """Return a new figure, and its axes as an array of shape ``(down, across)``."""
    blank = new_axes(equal=False, inches=inches)
    figure: Any = blank.figure
    blank.remove()
    return figure, figure.subplots(down, across, squeeze=False, **options)


def check_format(path: str | os.PathLike[str]) -> None:
    """Raise a UsageError for a path that is a folder, or whose ending names no image format."""
    known = os.path.splitext(path)[1].lower() in FORMATS
    if not known or os.path.isdir(path):
        why = "it is a folder" if known else "its extension is not a picture's"
        raise UsageError(
            found=f"a picture {os.fspath(path)!r} that cannot be written ({why})",
            expected="a path that ends in .png, .pdf or .svg",
            fix="Choose another path.",
        )


def plain_axes(ax: "Axes", x: str = "", y: str = "") -> None:
    """Label and style numeric axes: no top or right frame, pale lines at y ticks."""
    for label, write in ((x, ax.set_xlabel), (y, ax.set_ylabel)):
        if label:
            write(label, fontsize=9, color=INK)
    ax.tick_params(labelsize=8.5, labelcolor=INK, color=PALE, which="both")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(PALE)
    ax.grid(axis="y", color="#ececea", linewidth=0.8)
    ax.set_axisbelow(True)


def write_title(ax: "Axes", title: str) -> None:
    """Write a left-aligned title above axes."""
    ax.set_title(title, fontsize=11, weight="bold", color=INK, pad=9, loc="left")


def note(
    ax: "Axes",
    text: str,
    at: tuple[float | int, float | int],
    off: tuple[float | int, float | int],
    **style: Any,
) -> None:
    """Write small text next to a point, with an offset in points."""
    shape: dict[str, Any] = {"color": PALE, "fontsize": 8, "va": "bottom" if off[1] > 0 else "top"}
    ax.annotate(text, at, off, textcoords="offset points", **(shape | style))


def finish(figure: Any, path: str | os.PathLike[str] | None, title: str = "") -> Any:
    """Write a title above the figure, save it if there is a path, and return it.

    A file that cannot be written is unchanged; another format is a UsageError.
    """
    if title:
        figure.suptitle(title, fontsize=11, weight="bold", color=INK, x=0.01, ha="left")
    if path is not None:
        check_format(path)
        image, style = io.BytesIO(), {"format": Path(path).suffix[1:], "facecolor": "white"}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # names with emoji, which few fonts have
            figure.savefig(image, dpi=150, bbox_inches="tight", **style)
        write_file(Path(path), image.getvalue())
    return figure
