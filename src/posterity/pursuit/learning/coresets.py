"""A few records of a task that may be kept: as many of each class, evenly spread over it."""

import numpy as np
from jaxtyping import Int

Array = np.ndarray


def kept(x: Array, y: Int[Array, " n"], each: int) -> tuple[Array, Array]:
    """At most ``each`` records of each class; of a task alone, so that no order matters."""
    places = [_spread(np.flatnonzero(y == label), each) for label in np.unique(y)]
    chosen = np.sort(np.concatenate(places))
    return x[chosen], y[chosen]


def _spread(places: Array, each: int) -> Array:
    if len(places) <= each:
        return places
    return places[np.linspace(0, len(places) - 1, each).astype(int)]
