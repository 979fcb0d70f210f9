"""Pictures of what fusion found; matplotlib is imported only when one is drawn."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.errors import MissingExtraError, UsageError
from posterity.fusion import Fusion

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
CELL, HALF, APART = 0.6, 0.46, 0.25
"""Width of a column in inches; half an image, and the gap under the fused row, in columns."""
ABSENT, FRAME, INK = "#f3f3f1", "#c9c9c4", "#333333"
"""Colours of a cell without a component, around an image, and of the labels."""


def plot_matching(
    fusion: Fusion,
    images: Mapping[str, Float[Array, "_ h w"]],
    fused_images: Float[Array, "g h w"],
    path: str | os.PathLike[str] | None = None,
    *,
    ax: "Axes | None" = None,
    plate: str | None = None,
    title: str | None = None,
) -> "Figure":
    """Which component of which site became which fused one: a row a site, a column a component.

    The fused components are on top, each above the local ones it was made of, under its index
    and the number of sites that have it; a cell is light grey where the site lacks it. All
    images share one grey scale, dark for large values.

    Args:
        fusion: what :func:`posterity.fuse` returned.
        images: for each site one image a local component, in the site's own order.
        fused_images: one image a fused component.
        path: where to save the picture, if anywhere; its ending names the format.
        ax: axes to draw in; without them a new figure of a fitting size.
        plate: the block of the plate, where a posterior has several.
        title: a line above.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: images that do not fit the matching, several plates and none named, or a
            path that cannot be written.

    >>> from posterity import DiagonalGaussian, Plate, fuse
    >>> sites = {
    ...     site: Plate(DiagonalGaussian.from_standard(np.array(means), np.full((2, 1), 0.1)))
    ...     for site, means in {"a": [[0.0], [9.0]], "b": [[9.1], [0.1]]}.items()}
    >>> pictures = {site: plate.members.mean[:, None] for site, plate in sites.items()}
    >>> fusion = fuse(sites)
    >>> figure = plot_matching(fusion, pictures, fusion.posterior.members.mean[:, None])
    >>> len(figure.axes[0].images)
    6
    """
    figures = _figures()
    matching = _matching(fusion, plate)
    _check_images(matching, images, fused_images)
    if ax is None:
        ax = _axes(figures, len(matching), len(fused_images))
    pictures = [*images.values(), fused_images]
    scale = {"vmin": min(p.min() for p in pictures), "vmax": max(p.max() for p in pictures)}
    for x, y, picture in _cells(matching, images, fused_images):
        _draw(ax, x, y, picture, scale)
    _label(ax, matching, len(fused_images))
    if title:
        ax.set_title(title, fontsize=10, color=INK, pad=10)
    if path is not None:
        _save(ax.figure, path)
    return ax.figure  # type: ignore[return-value]


def _figures() -> Any:
    """Matplotlib's figures, without the global state of pyplot."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError.of("matplotlib", "plots") from error
    return matplotlib.figure


def _matching(fusion: Fusion, plate: str | None) -> dict[str, Array]:
    if plate is None:
        return fusion.matching
    if plate not in fusion.plates:
        raise UsageError(
            found=f"plate={plate!r}",
            expected=f"one of {sorted(fusion.plates)}",
            fix="Name a plate of the fused posterior.",
        )
    return fusion.plates[plate].matching


def _check_images(
    matching: Mapping[str, Array], images: Mapping[str, Array], fused_images: Array
) -> None:
    expected = {site: len(label) for site, label in matching.items()}
    found = {site: len(pictures) for site, pictures in images.items()}
    size = 1 + max(int(label.max()) for label in matching.values())
    if found != expected or len(fused_images) != size:
        raise UsageError(
            found=f"{len(fused_images)} fused images and, by site, {found}",
            expected=f"{size} fused images and, by site, {expected}",
            fix="Give every component of every site one image, in the site's own order.",
        )


def _axes(figures: Any, sites: int, columns: int) -> "Axes":
    # Room for the names of sites on the left, and for indices and a title on top.
    size = (CELL * columns + 0.9, CELL * (sites + 1 + APART) + 0.7)
    axes = figures.Figure(figsize=size, layout="constrained").add_subplot()
    axes.set_aspect("equal")
    return axes


def _height(row: int) -> float:
    """Where a row lies: the fused one, row 0, a little apart from what it was made of."""
    return row + (APART if row else 0.0)


def _cells(
    matching: Mapping[str, Array], images: Mapping[str, Array], fused_images: Array
) -> Iterator[tuple[int, float, Array | None]]:
    """Column, height and image of every cell; None where the site lacks the component."""
    yield from ((column, 0.0, picture) for column, picture in enumerate(fused_images))
    for row, (site, label) in enumerate(matching.items(), start=1):
        local = {int(column): k for k, column in enumerate(label) if column >= 0}
        for column in range(len(fused_images)):
            picture = images[site][local[column]] if column in local else None
            yield column, _height(row), picture


def _draw(ax: "Axes", x: int, y: float, picture: Array | None, scale: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    here = (x - HALF, x + HALF, y + HALF, y - HALF)
    absent = picture is None
    if not absent:
        ax.imshow(picture, cmap="gray_r", interpolation="bilinear", extent=here, **scale)
    ax.add_patch(
        Rectangle(
            (x - HALF, y - HALF),
            2 * HALF,
            2 * HALF,
            fill=absent,
            facecolor=ABSENT,
            edgecolor="none" if absent else FRAME,
            linewidth=0.6,
        )
    )


def _label(ax: "Axes", matching: Mapping[str, Int[Array, " _"]], columns: int) -> None:
    holders = sum(np.isin(np.arange(columns), label).astype(int) for label in matching.values())
    ax.set_xlim(-0.5, columns - 0.5)
    ax.set_ylim(_height(len(matching)) + 0.5, -0.5)
    ax.set_xticks(
        range(columns),
        [f"{index}\n{count}/{len(matching)}" for index, count in enumerate(np.asarray(holders))],
    )
    ax.set_yticks([_height(row) for row in range(len(matching) + 1)], ["fused", *matching])
    ax.get_yticklabels()[0].set_fontweight("bold")
    ax.tick_params(length=0, labelsize=8, labelcolor=INK)
    ax.tick_params(axis="x", labeltop=True, labelbottom=False, labelsize=7)
    ax.spines[:].set_visible(False)


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    try:
        figure.savefig(path, dpi=200, facecolor="white")
    except (OSError, ValueError) as error:  # ValueError: an ending that names no format
        raise UsageError(
            found=f"a picture {os.fspath(path)!r} that cannot be written ({error})",
            expected="a writable path that ends in .png, .pdf or .svg",
            fix="Choose another path.",
        ) from error
