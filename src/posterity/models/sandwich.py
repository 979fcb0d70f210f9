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
    precision ``Λ_k`` the symmetric part of ``M Λ_k``. Directions of which no record says anything,
    as those of columns that are constant, are left out: ``M`` maps into the others.

    Args:
        factors: Gaussian factor of each site.
        slopes: slopes (g, d) of the groups of records of all sites.
        least: smallest eigenvalue of ``Λ``, scaled to a diagonal of ones, and of the covariance of
            slopes relative to it, in directions that are left in.

    Raises a ParameterError if the groups are too few for a covariance.
    """
    total = sum(factor.precision for factor in factors.values())
    size = np.sqrt(np.diagonal(total))
    inverse = np.divide(1.0, size, out=np.zeros(len(size)), where=size > 0)
    values, vectors = np.linalg.eigh(total * np.outer(inverse, inverse))
    told = values > least
    roots = np.sqrt(values[told])
    half = size[:, None] * vectors[:, told] * roots  # times its transpose it is the total
    whiten = inverse[:, None] * vectors[:, told] / roots
    turned = spread_of(slopes @ whiten)
    if not np.linalg.eigvalsh(turned).min(initial=1.0) > least:
        raise ParameterError(
            found=f"{len(slopes)} clusters for {len(roots)} coefficients at {some([*factors])}",
            expected="more clusters than coefficients, between which columns and targets vary",
        )
    turn = half @ np.linalg.solve(turned, whiten.T)
    made = {}
    for site, factor in factors.items():
        left = turn @ factor.precision
        linear = turn @ factor.precision_mean
        made[site] = type(factor)._of(precision_mean=linear, precision=(left + left.T) / 2)
    return made
