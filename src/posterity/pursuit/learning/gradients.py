"""Oriented gradients of images: how much each direction is there, by place, hardly by contrast.

They are an untrained convolution: differences of neighbours, their direction, and a local mean.
Source: dalal2005, with soft bins and overlapping windows.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

Array = np.ndarray

ROWS = 2000
"""Images that are looked at together."""
FAINT = 0.3
"""Squared strength, of intensities from 0 to 1, below which a neighbourhood counts as flat."""
UNIT = 0.08
"""The root mean square of strengths of images of digits and clothes, which they are divided by."""


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
