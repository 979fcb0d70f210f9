"""Scaling of a student's inputs and outputs to order one, and the domain of its inputs.

A network with weights of order one and steps of a fixed size cannot learn from a column of years,
nor from nanometres given in metres. A student therefore rescales such columns.
"""

import dataclasses
from typing import Any, Self

import numpy as np

from posterity.arrays.typing import Bool, Float, Real
from posterity.distillation.pytrees import leaves
from posterity.models.data import real_numbers
from posterity.runtime.jax_loaded import is_jax

FAR = 3.0  # A column whose mean is more standard deviations from zero is rescaled
LARGE = 10.0
"""A column of a larger standard deviation is rescaled; also the largest reach of one, in scales."""
SMALL = 0.1
"""A column that deviates less from its mean is rescaled, unless most of its values are equal."""

MOST = 16  # Number of principal directions
MARGIN = 0.1  # Share of a column's range by which an input may be beyond it
LEVEL = 0.99  # Share of the sample of inputs within the limit of the distance


@leaves("x_shift", "x_scale", "y_shift", "y_scale")
@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """Units of a network: its inputs are ``(x - x_shift) / x_scale``, predictions ``y_shift +
    y_scale out``.

    Arrays have shapes (d,), for flattened inputs, and (k,); None means no scaling. NumPy inputs are
    scaled in float64, as float32 cannot resolve seconds since 1970.

    >>> Scaling(x_shift=np.array([2000.0]), x_scale=np.array([10.0])).inputs(np.array([[2020.0]]))
    array([[2.]], dtype=float32)
    """

    x_shift: np.ndarray | None = None
    x_scale: np.ndarray | None = None
    y_shift: np.ndarray | None = None
    y_scale: np.ndarray | None = None

    @classmethod
    def of_inputs(cls, x: Any) -> Self:
        """Return the scaling to order one of those columns of ``x`` (n, ...) that need it.

        A column is rescaled if its mean is more than three standard deviations from zero, if its
        standard deviation is above ten or a value is more than 100 from the mean, or if all values
        are within 0.1 of the mean. The mean is then subtracted, and the column divided by the
        larger of its standard deviation and a tenth of its largest deviation. Other columns stay
        unchanged. A constant column becomes zero, with a scale of at least one.

        A column with the same value in more than half of the rows is never enlarged, because a
        pixel that is dim in most images may be bright in others. For inputs with more axes, such as
        images, all pixels of a channel are one column.

        >>> years = np.linspace(1990, 2020, 50)
        >>> scaling = Scaling.of_inputs(np.stack([years, years * 0 + 1, years / 2000 - 1], 1))
        >>> scaling.x_shift.round().tolist(), scaling.x_scale.round(3).tolist()
        ([2005.0, 1.0, 0.0], [8.835, 1.0, 0.004])
        """
        x = np.asarray(real_numbers(x, "the inputs"), np.float64)
        shift, scale = _columns(x.reshape(-1, x.shape[-1] if x.ndim > 2 else x[0].size))
        if not shift.any() and (scale == 1).all():
            return cls()
        image = x.shape[1:]
        shift, scale = (np.broadcast_to(part, image).reshape(-1) for part in (shift, scale))
        return cls(shift, scale)

    @staticmethod
    def precision(shift: np.ndarray | None, scale: np.ndarray | None) -> type[np.floating]:
        """Return float32 if it resolves such columns to 2e-5 of their scale, else float64."""
        if shift is None or scale is None:
            return np.float32
        away = np.abs(shift) <= scale * 2.0**8
        return np.float32 if (away & (np.abs(np.log10(scale)) < 12)).all() else np.float64

    def inputs(self, x: Float[Real, "n ..."] | Any) -> Float[Real, "n ..."]:
        """Return scaled inputs (n, ...): float32 for NumPy arrays; JAX's keep their type."""
        ours = not is_jax(x)
        if ours:
            x = np.asarray(x, None if self.x_shift is None else np.float64)
        if self.x_shift is not None and self.x_scale is not None:
            shift, scale = (part.reshape(x.shape[1:]) for part in (self.x_shift, self.x_scale))
            x = (x - shift.astype(x.dtype)) / scale.astype(x.dtype)
        return x.astype(np.float32) if ours else x


def _columns(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shift and the scale of each column of a table."""
    # Relative to the first row, so that the mean of large, close numbers keeps its digits.
    away = x - x[0]
    mean = x[0] + away.mean(0)
    centred = away - away.mean(0)
    reach = np.abs(centred).max(0)
    safe = np.where(reach == 0, 1, reach)  # so that squares neither overflow nor underflow
    spread = reach * (centred / safe).std(0)
    rare = (x == np.median(x, 0)).mean(0) > 0.5
    far = np.abs(mean) > FAR * np.maximum(spread, np.finfo(np.float64).tiny)
    large = (spread > LARGE) | (reach > LARGE * LARGE)
    small = (reach < SMALL) & ~rare
    off = far | large | small
    scale = np.maximum(spread, reach / LARGE)
    scale = np.where(rare, np.maximum(scale, 1), scale)
    scale = np.where(reach == 0, np.maximum(1, np.abs(mean) / LARGE), scale)
    return np.where(off, mean, 0), np.where(off, scale, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Domain:
    """The domain of inputs (n, d): a box, and a Gaussian of a few principal directions. ``low`` and
    ``high`` (d,) are the bounds of columns, ``directions`` (k, d) the principal directions, each
    divided by its standard deviation, and ``rest`` is the variance of every other direction. An
    input is outside if a column is beyond its bounds by more than a tenth of their distance, or if
    its squared Mahalanobis distance from ``mean`` is above ``limit``.

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
        """Return the domain of a sample of inputs, in the units of the network."""
        x = np.asarray(x, np.float64).reshape(len(x), -1)
        mean = x.mean(0)
        _, sizes, rows = np.linalg.svd(x - mean, full_matrices=False)
        kept = np.flatnonzero(sizes > 1e-6 * max(sizes.max(initial=0), 1e-30))[:MOST]
        sizes = sizes[kept]
        rows = rows[kept]
        left = max(float(((x - mean) ** 2).sum() - (sizes**2).sum()), 0.0)
        rest = left / (len(x) * max(x.shape[1] - len(rows), 1))
        deviations = sizes[:, None] / len(x) ** 0.5

        def single(part):
            return np.asarray(part, np.float32)

        rows = rows / deviations if len(rows) else np.zeros_like(mean[None])  # of equal inputs
        arrays = map(single, (x.min(0), x.max(0), mean, rows))
        whole = cls(*arrays, rest=rest, limit=np.inf)
        return dataclasses.replace(whole, limit=float(np.quantile(whole._distances(x), LEVEL)))

    def outside(self, x: Float[np.ndarray, "n ..."]) -> Bool[np.ndarray, " n"]:
        """Return True for each input, in the units of the network, outside of the domain."""
        x = np.asarray(x, np.float64).reshape(len(x), self.mean.size)
        margin = MARGIN * (self.high - self.low) + 1e-5 * np.abs(self.mean)
        beyond = (x < self.low - margin) | (x > self.high + margin)
        return beyond.any(1) | (self._distances(x) > self.limit)

    def _distances(self, x: np.ndarray) -> np.ndarray:
        """Return squared Mahalanobis distances (n,) from the mean."""
        away = x - self.mean
        directions = self.directions.astype(np.float64)
        along = (away @ directions.T) ** 2
        if self.rest == 0:
            return along.sum(1)
        left = (away**2).sum(1) - (along / (directions**2).sum(1)).sum(1)
        return along.sum(1) + np.maximum(left, 0) / self.rest
