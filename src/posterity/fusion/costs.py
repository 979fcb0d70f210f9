"""A table of divergences that follows centroids which change little by little."""

from typing import Any

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.errors import ParameterError
from posterity.fusion.geometry import CACHED, Centroids, Points, chunks

Array = np.ndarray
ROOM = 2**23
"""Bytes of costs that are no matter, to keep or to copy."""


class Costs:
    """Divergences of all points to the centroids that were last asked for.

    A search moves few centroids at a time: columns of those that are where they were, to the last
    bit, are not computed again. There is one array, so that what was returned is written over.
    """

    def __init__(self, points: Points):
        self._points = points
        self._costs = np.empty((len(points), 0))
        self._places = np.empty((0, points.coordinates.shape[1]))

    def at(self, centroids: Centroids) -> Float[Array, "n g"]:
        """``D(c_g || x_l)`` for all pairs, in nats, as :meth:`Points.divergences` has them."""
        stale, groups = self._stale(centroids), len(centroids.coordinates)
        if groups > len(self._places):
            self._costs = np.empty((0, 0))  # gives its memory back first
            self._costs = np.empty((len(self._points), groups))
            self._places = np.full(centroids.coordinates.shape, np.nan)
        costs = self._costs[:, :groups]
        if isinstance(stale, slice) or stale.any():
            for rows, part in self._points.divergences_by_parts(centroids.take(stale)):
                costs[rows, stale] = part
            self._places[:groups][stale] = centroids.coordinates[stale]
        return costs

    def cheapest(self, centroids: Centroids) -> Int[Array, " n"]:
        """The nearest centroid of each point; a large table that is stale stays so."""
        size = 8 * len(self._points) * len(centroids.coordinates)
        if size <= ROOM or not isinstance(self._stale(centroids), slice):
            return cheapest(self.at(centroids))
        out = np.empty(len(self._points), int)
        for rows, part in self._points.divergences_by_parts(centroids):
            out[rows] = finite(part).argmin(1)
        return out

    def of(self, rows: Int[Array, " some"], centroids: Centroids) -> Float[Array, "some g"]:
        """Costs of some points, whether or not the table has them."""
        if isinstance(self._stale(centroids), slice):
            return self._points.take(rows).divergences(centroids)
        return self.at(centroids)[rows]

    def _stale(self, centroids: Centroids) -> Any:
        """The columns that are to be computed again: a mask, or a slice if they are most."""
        groups = len(centroids.coordinates)
        if groups > len(self._places):
            return slice(None)
        stale = (self._places[:groups] != centroids.coordinates).any(1)
        return slice(None) if 2 * stale.sum() > groups else stale


def cheapest(costs: Float[Array, "n g"]) -> Int[Array, " n"]:
    """The least column of each row; of part of a table NumPy would make a copy, all at once.

    Raises:
        ParameterError: if any is NaN or infinite.
    """
    out = np.empty(len(costs), int)
    for rows in chunks(len(costs), 8 * costs.shape[1], CACHED):
        out[rows] = finite(costs[rows]).argmin(1)
    return out


def finite(costs: Float[Array, "n g"]) -> Float[Array, "n g"]:
    """The costs, or a ParameterError if any is NaN or infinite."""
    if not np.isfinite(costs.max()):
        raise ParameterError(
            found="components so sharp for their distance that their divergences overflow",
            expected="divergences that float64 can tell apart",
            fix="Use divergence='reverse', or rescale the components.",
        )
    return costs
