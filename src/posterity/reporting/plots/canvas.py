"""Elements of a plot: colours, a new figure, and saving."""

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


def new_axes() -> "Axes":
    """Return the axes of a new figure."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError.of("matplotlib", "plots") from error
    return matplotlib.figure.Figure(layout="constrained").add_subplot()


def check_format(path: str | os.PathLike[str]) -> None:
    """Raise a UsageError for a path that is a folder, or whose ending names no image format."""
    known = os.path.splitext(path)[1].lower() in FORMATS
    if not known or os.path.isdir(path):
        why = "it is a folder" if known else "its extension is not a picture's"
        raise UsageError(
            found=f"a picture {os.fspath(path)!r} that cannot be written ({why})",
            expected="a path that ends in .png, .pdf or .svg",
        )


def finish(figure: Any, path: str | os.PathLike[str] | None) -> Any:
    """Save the figure if there is a path, and return it.

    A file that cannot be written is unchanged; another format is a UsageError.
    """
    if path is not None:
        check_format(path)
        image = io.BytesIO()
        style = {"format": Path(path).suffix[1:], "facecolor": "white"}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # names with emoji, which few fonts have
            figure.savefig(image, dpi=150, bbox_inches="tight", **style)
        write_file(Path(path), image.getvalue())
    return figure
