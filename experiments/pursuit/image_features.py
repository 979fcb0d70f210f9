"""Features of images: how much of each direction there is, by place, hardly by contrast.

They are an untrained convolution: differences of neighbours, their direction, and a local mean.
Source: dalal2005, with soft bins and overlapping windows.
"""

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float

from posterity.arguments import COUNT, NATURAL
from posterity.errors import ScaleWarning, UsageError
from posterity.models.data import LARGE, SMALL
from posterity.pursuit.learning.features import Features, digest_of, rectified

Array = np.ndarray

CELLS = 7
DIRECTIONS = 12
WIDTH = 1500
"""Random units of images: with 12,000 of MNIST 700 leave 2.1 % of errors, 1,500 leave 1.3 %."""
ROWS = 2000
"""Images that are looked at together."""
FAINT = 0.3
"""Squared strength, of intensities from 0 to 1, below which a neighbourhood counts as flat."""
UNIT = 0.08
"""The root mean square of strengths of images of digits and clothes, which they are divided by."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImageFeatures(Features):
    """Random rectified units of oriented gradients.

    Args:
        shape: of an image, ``(height, width)`` or ``(height, width, channels)``; intensities from
            0 to 1. Contrast and brightness hardly matter.
        cells: places along each side where gradients are counted.
        directions: how many are told apart.
        width: random units; 0 for the gradients alone.
        seed: of the random units.

    Source: dalal2005, rahimi2008.

    >>> ImageFeatures((28, 28))(np.zeros((2, 28, 28))).shape
    (2, 1500)
    """

    shape: tuple[int, ...]
    cells: int = CELLS
    directions: int = DIRECTIONS
    width: int = WIDTH
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        COUNT.check(cells=self.cells, directions=self.directions)
        NATURAL.check(width=self.width, seed=self.seed)
        if len(self.shape) not in (2, 3) or min(self.shape[:2]) < self.cells:
            raise UsageError(
                found=f"images of shape {self.shape} in {self.cells} cells a side",
                expected="(height, width) or (height, width, channels), a pixel a cell at least",
                fix="Ask for fewer cells, or for VectorFeatures.",
            )

    @property
    def gradients(self) -> int:
        """Oriented gradients of an image."""
        return self.cells**2 * self.directions * math.prod(self.shape[2:])

    @property
    def size(self) -> int:
        """Of random units, or of gradients where there are none."""
        return self.width or self.gradients

    @property
    def digest(self) -> str:
        """Of the arguments."""
        return digest_of("images", dataclasses.astuple(self))

    def of(self, x: Array) -> Float[Array, "n size"]:
        """Gradients channel by channel, then random units of them."""
        planes = x.reshape(*x.shape[:3], -1)
        found = np.concatenate(
            [
                oriented_gradients(planes[..., channel], self.cells, self.directions)
                for channel in range(planes.shape[-1])
            ],
            1,
        )
        return rectified(found, self.width, self.seed, slope=2.0, offset=0.5)

    def warn_of_scale(self, x: Array) -> None:
        """Warn of intensities that are not from 0 to 1."""
        largest = float(np.abs(x).max(initial=0))
        if largest > LARGE or 0 < largest < SMALL:
            warnings.warn(
                f"found images with intensities up to {largest:.3g}; expected them from 0 to 1, "
                "for which it is told what is flat. Divide bytes by 255, at all sites.",
                ScaleWarning,
                stacklevel=4,
            )


def oriented_gradients(
    images: Float[Array, "n h w"], cells: int, directions: int
) -> Float[Array, "n f"]:
    """Strengths by direction and cell, ``directions * cells**2`` of each image, in float32.

    They are about one where there is something to see; intensities are from 0 to 1.

    >>> oriented_gradients(np.eye(28)[None], cells=7, directions=8).shape
    (1, 392)
    """
    windows = _windows(images.shape[1], cells), _windows(images.shape[2], cells)
    parts = [
        _of_few(images[at : at + ROWS], windows, directions)
        for at in range(0, max(len(images), 1), ROWS)
    ]
    return np.concatenate(parts)


def _of_few(images: Any, windows: Any, directions: int) -> Array:
    down, across = _differences(np.asarray(images, np.float32))
    strength = np.sqrt(down**2 + across**2)
    inverse = 1 / np.maximum(strength, np.float32(1e-6))
    down, across = down * inverse, across * inverse
    rows, columns = windows
    cells = len(rows)
    found = np.empty((len(images), directions, cells, cells), np.float32)
    for index in range(directions):
        angle = 2 * np.pi * index / directions
        cosine = across * np.float32(np.cos(angle)) + down * np.float32(np.sin(angle))
        cosine = np.maximum(cosine, 0)
        squared = cosine * cosine
        found[:, index] = rows @ (squared * squared * strength) @ columns.T
    neighbours = (np.abs(np.subtract.outer(range(cells), range(cells))) <= 1).astype(np.float32)
    around = neighbours @ (found**2).sum(1) @ neighbours
    found /= np.sqrt(around + np.float32(FAINT))[:, None]
    return found.reshape(len(images), -1) / np.float32(UNIT)


def _differences(images: Array) -> tuple[Array, Array]:
    """Of the two neighbours of each pixel, down and across; beyond the border nothing changes."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    return down, across


def _windows(pixels: int, cells: int) -> Float[Array, "cells pixels"]:
    """Triangles about evenly spaced places, as wide as two cells."""
    width = pixels / cells
    middles = (np.arange(cells) + 0.5) * width - 0.5
    away = np.abs(np.arange(pixels) - middles[:, None]) / width
    return np.maximum(0, 1 - away).astype(np.float32)
