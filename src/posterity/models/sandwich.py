"""Sandwich covariances: of likelihoods whose records are alike, or stand for unequal numbers.

A log likelihood that is a sum over groups has the slopes ``s_g`` at its maximum. If records within
a group are dependent, or weighted as a survey samples them, its curvature ``Λ`` overstates what is
known: the covariance of the estimate is ``Λ⁻¹ B Λ⁻¹``, where ``B`` is the sum of ``s_g s_gᵀ``
(huber1967, liang1986). A Gaussian factor with this covariance and the same mean has the precision
``Λ B⁻¹ Λ``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.errors import ParameterError
from posterity.families.names import some
from posterity.models.base import PredictorModel


def slopes_of_groups(model: Any, z: np.ndarray, data: Any, groups: Any) -> np.ndarray:
    """Return the slope (g, d) of each group's log likelihood at the coefficients ``z`` (d,).

    Args:
        model: a :class:`PredictorModel`, or a :class:`MultinomialRegression`.
        z: coefficients.
        data: inputs (n, d) and targets of the records, as the model takes them.
        groups: number of each record's group (n,), from 0.
    """
    x, y = data
    x = np.asarray(x, float)
    if isinstance(model, PredictorModel):
        rows = np.asarray(model.predictor_value_and_slope(x @ z, y)[1])[:, None] * x
    else:
        blocks = x.reshape(len(x), model.classes - 1, -1)
        odds = np.einsum("nai,ai->na", blocks, z.reshape(model.classes - 1, -1))
        none = np.zeros((*odds.shape, odds.shape[1]))
        slope = model.expectations(odds, none, y)[1]
        rows = (slope[:, :, None] * blocks).reshape(x.shape)
    return summed(rows, groups)


def summed(rows: np.ndarray, groups: Any) -> np.ndarray:
    """Return the sums (g, d) of the rows (n, d) of each group, whose numbers are ``groups``."""
    sums = np.zeros((int(groups.max(initial=-1)) + 1, rows.shape[1]))
    np.add.at(sums, groups, rows)
    return sums


def spread_of(slopes: np.ndarray) -> np.ndarray:
    """Return the covariance (d, d) of the sum of groups' slopes (g, d), about their mean."""
    away = slopes - slopes.mean(0)
    count = len(slopes)
    return away.T @ away * (count / max(count - 1, 1))


def sandwiched(
    factors: Mapping[str, Any], slopes: np.ndarray, *, least: float = 1e-10
) -> dict[str, Any]:
    """Return sites' Gaussian factors, whose product has its mean and the sandwich covariance.

    With ``M = Λ B⁻¹`` of all sites, a factor's precision times mean ``h`` becomes ``M h``, and its
    precision ``Λ_k`` the symmetric part of ``M Λ_k``.

    Args:
        factors: Gaussian factor of each site.
        slopes: slopes (g, d) of the groups of records of all sites.
        least: smallest eigenvalue of the covariance of slopes, in their deviations.

    Raises a ParameterError if the groups are too few for a covariance.
    """
    spread = spread_of(slopes)
    size = np.sqrt(np.maximum(np.diagonal(spread), np.finfo(float).tiny))
    scaled = spread / np.outer(size, size)
    if not np.linalg.eigvalsh(scaled)[0] > least:
        raise ParameterError(
            found=f"{len(slopes)} clusters for {len(size)} coefficients at {some([*factors])}",
            expected="more clusters than coefficients, or columns that vary between clusters",
        )
    total = sum(factor.precision for factor in factors.values())
    turn = np.linalg.solve(scaled, total / size[:, None]).T / size
    made = {}
    for site, factor in factors.items():
        half = turn @ factor.precision
        linear = turn @ factor.precision_mean
        made[site] = type(factor)._of(precision_mean=linear, precision=(half + half.T) / 2)
    return made
