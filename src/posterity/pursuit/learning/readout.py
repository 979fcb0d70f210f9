"""From sums to scores: the linear regression of classes on features, with its ridge chosen.

All of it is a function of the sums that a ledger holds. The ridge is chosen by generalised
cross-validation, which estimates the error on a record that was left out from sums alone
(golub1979): no record needs to be kept for it.
"""

import dataclasses
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int

from posterity.arrays.linear_algebra import symmetric

Array = np.ndarray

RIDGES = np.geomspace(1e-5, 1e3, 33)
"""Tried ridges, of the mean of the features' variances."""
MOST_FITTED = 0.8
"""Degrees of freedom a record beyond which cross-validation from sums cannot be trusted."""
CONSTANT = 1e-9
"""Share of a feature's square that varies, below which it is taken for a constant."""

ROUNDING = 1e-10
"""Share of the greatest variance of a coordinate, below which one is taken for rounding."""


@dataclasses.dataclass(frozen=True, eq=False)
class Readout:
    """Scores of classes, one number each near one for its own records and near zero for others'.

    ``shift`` (d,) and ``axes`` (d, r) turn features into independent coordinates, ``slopes``
    (r, k) and ``level`` (k,) these into scores; ``narrow`` (r,) says how well each coordinate is
    known, ``noise`` (k,) is the variance of a record about its score, ``records`` how many there
    were.
    """

    shift: Float[Array, " d"]
    axes: Float[Array, "d r"]
    slopes: Float[Array, "r k"]
    level: Float[Array, " k"]
    narrow: Float[Array, " r"]
    noise: Float[Array, " k"]
    records: float
    ridge: float

    @classmethod
    def of_records(
        cls, features: Float[Array, "n d"], y: Int[Array, " n"], classes: int, own_units: int = 0
    ) -> Self:
        """As :meth:`of_sums`, from records themselves, each class with one at least."""
        counts = np.bincount(y, minlength=classes).astype(np.float64)
        sums = np.stack([features[y == label].sum(0) for label in range(classes)])
        return cls.of_sums(counts, sums, features.T @ features, own_units)

    @classmethod
    def of_sums(
        cls,
        counts: Float[Array, " k"],
        sums: Float[Array, "k d"],
        squares: Float[Array, "d d"],
        own_units: int = 0,
    ) -> Self:
        """From counts of classes, all positive, sums of their features, and sums of squares.

        The first ``own_units`` features have units of their own, and are brought to the spread of
        the others. These stay as they are: one that is hardly ever on would become large.
        """
        n = counts.sum()
        level, mean = counts / n, sums.sum(0) / n
        about = symmetric(squares - n * np.outer(mean, mean))
        together = sums - np.outer(counts, mean)
        spread = np.diagonal(about)
        known = spread > CONSTANT * np.maximum(np.diagonal(squares), 0)
        scale = _scale(spread, known, own_units)
        values, vectors = np.linalg.eigh(about * scale[:, None] * scale)
        values = np.maximum(values, 0)
        target = vectors.T @ (together * scale).T
        ridge, freedom = _chosen(values, target, n * level * (1 - level), n)
        slopes = target / (values + ridge)[:, None]
        left = n * level * (1 - level) - _explained(values, target, ridge)
        noise = np.maximum(left, 0) / max(n - freedom, 1.0)
        return cls(
            mean, scale[:, None] * vectors, slopes, level, 1 / (values + ridge), noise,
            float(n), float(ridge),
        )  # fmt: skip

    def coordinates(self, features: Float[Array, "n d"]) -> Float[Array, "n r"]:
        """Independent ones."""
        return (features - self.shift) @ self.axes

    def scores(self, features: Float[Array, "n d"]) -> Float[Array, "n k"]:
        """Of each class; they sum to one."""
        return self.coordinates(features) @ self.slopes + self.level

    def leverage(self, coordinates: Float[Array, "n r"]) -> Float[Array, " n"]:
        """Variance of a score over that of a record (n,): large far from all records."""
        return coordinates**2 @ self.narrow + 1 / self.records


def _scale(spread: Any, known: Any, own_units: int) -> Any:
    """What each feature is multiplied by; zero for a constant."""
    scale = known.astype(np.float64)
    own = known & (np.arange(len(spread)) < own_units)
    others = known & ~own
    scale[own] = np.sqrt((spread[others].mean() if others.any() else 1.0) / spread[own])
    return scale


def _chosen(values: Any, target: Any, total: Any, n: Any) -> tuple[float, float]:
    """The ridge, and its degrees of freedom with that of the level."""
    rank = (values > ROUNDING * values.max()).sum()
    unit = max(values.sum() / max(rank, 1), np.finfo(float).tiny)
    best = (np.inf, unit * RIDGES[-1], 1.0)
    for ridge in unit * RIDGES:
        freedom = 1 + (values / (values + ridge)).sum()
        if freedom > max(MOST_FITTED * n, 2.0) and ridge < unit * RIDGES[-1]:
            continue
        left = max((total - _explained(values, target, ridge)).sum(), 0.0)
        error = left / max(1 - freedom / n, 1e-3) ** 2
        if error < best[0]:
            best = (error, ridge, freedom)
    return best[1], best[2]


def _explained(values: Any, target: Any, ridge: float) -> Any:
    """Sum of squares that the regression takes away, by class."""
    slopes = target / (values + ridge)[:, None]
    return 2 * (target * slopes).sum(0) - (values[:, None] * slopes**2).sum(0)
