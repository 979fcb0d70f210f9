"""A few records of each class of a task, and deformed copies of images, to learn from again."""

from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

Array = np.ndarray


def kept_records(x: Array, y: Array, each: int) -> tuple[Array, Array]:
    """At most ``each`` records of each class; of a task alone, so that no order matters."""
    places = [_spread(np.flatnonzero(y == label), each) for label in np.unique(y)]
    chosen = np.sort(np.concatenate(places))
    return x[chosen], y[chosen]


def _spread(places: Array, each: int) -> Array:
    if len(places) <= each:
        return places
    return places[np.linspace(0, len(places) - 1, each).astype(int)]


TURN = 12.0
"""Degrees, at most."""
STRETCH, SHEAR, SHIFT = 0.12, 0.15, 1.5
"""Logarithm of a stretch, shear, and pixels, at most."""
BEND, SMOOTH = 20.0, 4.0
"""Pixels times the root of smoothing, and pixels over which a bend is smoothed."""


def deformed(images: Array, copies: int, seed: int) -> Array:
    """The images (n, h, w) or (n, h, w, c), and after them ``copies`` of each, in float32.

    Source: simard2003.

    >>> deformed(np.eye(28)[None], copies=3, seed=0).shape
    (4, 28, 28)
    """
    rng = np.random.RandomState(seed)
    images = np.asarray(images, np.float32)
    found = [images]
    for _ in range(copies):
        found.append(np.stack([_one(image, rng) for image in images]))
    return np.concatenate(found)


def _one(image: Array, rng: Any) -> Array:
    height, width = image.shape[:2]
    middle = np.array([[(height - 1) / 2], [(width - 1) / 2]])
    angle = np.deg2rad(rng.uniform(-TURN, TURN))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    slant = np.array([[1.0, rng.uniform(-SHEAR, SHEAR)], [0.0, 1.0]])
    stretch = np.diag(np.exp(rng.uniform(-STRETCH, STRETCH, 2)))
    bend = gaussian_filter(rng.uniform(-1, 1, (2, height, width)), (0, SMOOTH, SMOOTH)) * BEND
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
    at = turn @ slant @ stretch @ (places.reshape(2, -1) - middle) + middle
    at = at + bend.reshape(2, -1) + rng.uniform(-SHIFT, SHIFT, (2, 1))
    planes = image.reshape(height, width, -1)
    moved = [map_coordinates(planes[..., c], at, order=1) for c in range(planes.shape[-1])]
    return np.stack(moved, -1).reshape(image.shape)
