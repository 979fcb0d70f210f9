"""Where a student was asked: the inputs that it learned on, as far as a few numbers tell."""

import dataclasses
from typing import Any, Self

import numpy as np
import scipy.sparse.linalg

from posterity.arrays.typing import Bool, Float

MOST = 16
"""Principal directions that are kept."""
MARGIN = 0.1
"""The share of a column's range by which an input may be beyond it."""
LEVEL = 0.99
"""The share of the inputs that are within the limit."""


@dataclasses.dataclass(frozen=True, eq=False)
class Domain:
    """The law of inputs (n, d) as a box and a Gaussian of a few principal directions.

    ``low`` and ``high`` (d,) are the least and the largest of each column. ``directions`` (k, d)
    are the first principal directions, each over the standard deviation along it, and ``rest`` is
    the variance of each of the others. An input is outside if a column is beyond its ends by more
    than a tenth of their distance, or if its squared Mahalanobis distance from ``mean`` is above
    ``limit``, as that of one in a hundred inputs is.

    Source: tipping1999 for the Gaussian, probabilistic principal components.

    >>> rng = np.random.default_rng(0)
    >>> Domain.of_inputs(rng.normal(size=(500, 3))).outside(np.array([[0.0, 1, 2], [0, 0, 9]]))
    array([False,  True])
    """

    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    directions: np.ndarray
    rest: float
    limit: float

    @classmethod
    def of_inputs(cls, x: Float[np.ndarray, "n ..."]) -> Self:
        """The domain of a sample of inputs, in the units of the network."""
        x = np.asarray(x, np.float64).reshape(len(x), -1)
        mean, most = x.mean(0), min(x.shape)
        parts: Any
        if most <= MOST or not (x != mean).any():  # nothing to iterate on
            parts = np.linalg.svd(x - mean, full_matrices=False)
        else:
            parts = scipy.sparse.linalg.svds(x - mean, MOST, v0=np.ones(most))
        _, sizes, rows = parts
        kept = sizes > 1e-6 * max(sizes.max(initial=0), 1e-30)
        sizes, rows = sizes[kept], rows[kept]
        left = max(float(((x - mean) ** 2).sum() - (sizes**2).sum()), 0.0)
        rest = left / (len(x) * max(x.shape[1] - len(rows), 1))
        deviations = sizes[:, None] / len(x) ** 0.5
        single = lambda part: np.asarray(part, np.float32)
        arrays = map(single, (x.min(0), x.max(0), mean, rows / deviations))
        open_ended = cls(*arrays, rest=rest, limit=np.inf)
        distances = open_ended._distances(x)
        return dataclasses.replace(open_ended, limit=float(np.quantile(distances, LEVEL)))

    def outside(self, x: Float[np.ndarray, "n ..."]) -> Bool[np.ndarray, " n"]:
        """True for each input, in the units of the network, that is where no training input was."""
        x = np.asarray(x, np.float64).reshape(len(x), -1)
        margin = MARGIN * (self.high - self.low) + 1e-5 * np.abs(self.mean)
        beyond = (x < self.low - margin) | (x > self.high + margin)
        return beyond.any(1) | (self._distances(x) > self.limit)

    def _distances(self, x: np.ndarray) -> np.ndarray:
        """Squared Mahalanobis distances (n,) from the mean."""
        away = x - self.mean
        along = away @ self.directions.T.astype(np.float64)
        if self.rest == 0:
            return (along**2).sum(1)
        lengths = (self.directions.astype(np.float64) ** 2).sum(1)  # of 1 over the variances
        left = (away**2).sum(1) - (along**2 / lengths).sum(1)
        return (along**2).sum(1) + np.maximum(left, 0) / self.rest
