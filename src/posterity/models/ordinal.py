"""Regression of ordered levels by proportional odds."""

import functools
import math
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from posterity.arguments import POSITIVE, at_least
from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.families import DiagonalGaussian, Gaussian
from posterity.models.base import Each, Moments, PredictorModel
from posterity.models.data import INPUTS, labels
from posterity.models.nodes import in_parts
from posterity.models.records import Records
from posterity.models.regression import LogisticRegression, least_squares

GAP = 2
"""The target of rows of gaps; that of others is 1 if the level is above the threshold, else 0."""


class ProportionalOdds(PredictorModel):
    """Proportional odds of ordered levels (mccullagh1980); data ``(x, y)`` of :func:`rows_of`;
    posterior Gaussian.

    The log odds of a level above ``k`` are ``a_k + x · b``. The probability of a level between two
    thresholds is ``σ(f) σ(-g) (1 - exp(g - f))``, for the log odds ``f > g`` of being above the
    lower and the upper one. So a record is a row for each factor, which depends on one predictor:
    ``f`` of a label 1, ``g`` of a label 0, and ``f - g``, which is a difference of coefficients.

    Args:
        least: least gap between thresholds, in log odds, to which the likelihood is exact; below it
            is continued by its second-order expansion, finite and concave, so that it has
            expectations under Gaussians, which do not know the order of thresholds.
        nodes: number of nodes of a gap's expectations; with 96 these are good to 1e-9.

    >>> x, y, _ = rows_of(np.zeros((1, 1)), np.array([1]), levels=3)
    >>> model, z = ProportionalOdds(), np.array([1.0, -1.0, 0.5])
    >>> float(np.exp(model.log_likelihood(z, (x, y)).sum()).round(3))
    0.462
    """

    least: float = static(default=1e-3)
    nodes: int = static(default=96)

    numpy: ClassVar[bool] = True
    families = (Gaussian, DiagonalGaussian)
    columns = (INPUTS, labels(3, "y of shape (n,)"))
    optima = "one"

    def __post_init__(self) -> None:
        POSITIVE.check(least=self.least)
        at_least(2).check(nodes=self.nodes)

    def predictor_log_likelihood(self, f: Each, y: Any) -> Each:
        return self.predictor_value_and_slope(f, y)[0]

    def predictor_value_and_slope(self, f: Each, y: Any) -> tuple[Each, Each]:
        """Return the values and slopes, which for gaps are ``log(1 - exp(-f))`` and its slope."""
        np_ = namespace(f, y).np
        y = np_.asarray(y)
        value, slope = LogisticRegression().predictor_value_and_slope(f, y)
        gap, rate, bend = _gap(np_, np_.maximum(f, self.least))
        below = np_.minimum(f - self.least, 0.0)
        gap = gap + below * (rate + bend * below / 2)
        return np_.where(y == GAP, gap, value), np_.where(y == GAP, rate + bend * below, slope)

    def predictor_expectation(self, mean: Each, variance: Each, y: Any) -> Moments | None:
        """Return the expectations by NumPy; None for JAX arrays."""
        known = LogisticRegression().predictor_expectation(mean, variance, y)
        if known is None:
            return None
        value, slope, bend = np.array(known)
        rows = np.flatnonzero(np.asarray(y) == GAP)
        each = np.asarray(mean)[rows], np.sqrt(variance)[rows]
        along = functools.partial(_expected, least=self.least, nodes=self.nodes)
        value[rows], slope[rows], bend[rows] = in_parts(along, each, self.nodes)
        return value, slope, bend

    def rough_factor(self, q: Any, records: Records) -> Any:
        """Return the first step of iteratively reweighted least squares, from log odds of zero and
        gaps of one.
        """
        x, y = records.data
        np_ = namespace(y).np
        rate = 1 / math.expm1(1.0)
        bend = rate * (1 + rate)
        target = np_.where(y == GAP, 1 + rate / bend, np_.where(y > 0, 2.0, -2.0))
        weights = records.weights * np_.where(y == GAP, bend, 0.25)
        return least_squares(q, x, target, weights)


def _gap(np_: Any, f: Any) -> tuple[Any, Any, Any]:
    """Return ``log(1 - exp(-f))`` and its first and second derivative."""
    other = -np_.expm1(-f)
    rate = np_.exp(-f) / other
    return np_.log(other), rate, -rate / other


def _expected(
    mean: np.ndarray, deviation: np.ndarray, *, least: float, nodes: int, far: float = 9.0
) -> list[np.ndarray]:
    """Return expectations (3, n) of :func:`_gap` of normal gaps: in closed form below ``least``, by
    Gauss-Legendre nodes in the logarithm of the gap above it, up to ``far`` deviations.
    """
    spread = np.maximum(deviation, np.finfo(float).tiny)
    points, weights = np.polynomial.legendre.leggauss(nodes)
    low = np.log(np.maximum(mean - far * spread, least))
    high = np.log(np.maximum(mean + far * spread, least))
    half = (high - low) / 2
    f = np.exp(low + half * (1 + points[:, None]))
    density = np.exp(-(((f - mean) / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))
    above = weights @ (half * f * density * np.stack(_gap(np, f)))
    value, rate, bend = _gap(np, np.float64(least))
    away = mean - least
    share = ndtr(-away / spread)
    height = spread * np.exp(-((away / spread) ** 2) / 2) / math.sqrt(2 * math.pi)
    first = away * share - height
    second = (away**2 + spread**2) * share - away * height
    below = value * share + rate * first + bend * second / 2
    return [above[0] + below, above[1] + rate * share + bend * first, above[2] + bend * share]


def rows_of(x: np.ndarray, y: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows (m, levels - 1 + d) and targets (m,) of records, and each row's record (m,).

    Args:
        x: covariates (n, d), without a column of ones.
        y: levels (n,), from 0.
        levels: number of levels.

    Returns:
        The first columns of rows are those of thresholds, in ascending order.
    """
    y = np.asarray(y, dtype=int)
    top = levels - 1
    above = np.flatnonzero(y > 0)
    below = np.flatnonzero(y < top)
    between = np.flatnonzero((y > 0) & (y < top))
    thresholds = np.eye(top)
    gaps = thresholds[y[between] - 1] - thresholds[y[between]]
    first = np.concatenate([thresholds[y[above] - 1], thresholds[y[below]], gaps])
    record = np.concatenate([above, below, between])
    target = np.repeat([1.0, 0.0, GAP], [len(above), len(below), len(between)])
    own = np.where(target[:, None] == GAP, 0.0, x[record])
    return np.column_stack([first, own]), target, record
