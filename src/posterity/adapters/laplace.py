"""Conversion of an estimate and its curvature to a Gaussian, shared by adapters of fitted models.

Columns of data have arbitrary units, so a covariance is checked and inverted as a correlation
matrix with separate standard deviations. A singular one is refused, and the error names the
columns. A pseudo-inverse, which several libraries use, would hide linear dependence.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from posterity.adapters.shared import at
from posterity.errors import ConvergenceWarning, ParameterError
from posterity.families import Gaussian
from posterity.families.names import some
from posterity.models.separation import separating

Array = np.ndarray


def of_covariance(
    mean: ArrayLike,
    matrix: ArrayLike,
    names: Sequence[str],
    place: str,
    *,
    inverse: bool = False,
    most_inflation: float = 1e12,
) -> Gaussian:
    """Return the Gaussian of an estimate (d,) and its covariance (d, d), under these names.

    With ``inverse`` the matrix is the precision: minus the Hessian of the log density. NaN,
    infinity, variances that are not positive, and a variance inflation factor above
    ``most_inflation``, which leaves four significant digits, are a ParameterError, which names the
    coordinates.

    >>> of_covariance([1.0, 2.0], [[1.0, 0.0], [0.0, 1e-20]], ["age", "bp"], "a fit").names
    ('age', 'bp')
    """
    mean = np.asarray(mean, np.float64)
    matrix = np.asarray(matrix, np.float64)
    if (wrong := ~np.isfinite(mean)).any():
        raise ParameterError(
            found=f"NaN or infinity as the estimate of {some(at(names, wrong))} in {place}",
            expected="finite estimates, of records without missing values",
        )
    diagonal = np.diagonal(matrix)
    inverted = None
    why = f"no positive {'curvature' if inverse else 'variance'}"
    unfit = ~np.isfinite(diagonal) | ~(diagonal > 0)
    wrong = unfit if unfit.any() else ~np.isfinite(matrix).all(0)
    scale = np.sqrt(np.where(unfit, 1.0, diagonal))
    if not wrong.any():
        why = "coordinates that depend on each other"
        correlation = matrix / scale / scale[:, None]
        values, vectors = np.linalg.eigh((correlation + correlation.T) / 2)
        wrong = np.abs(vectors[:, 0]) > 0.01 * np.abs(vectors[:, 0]).max()
        inverted = (vectors / values) @ vectors.T if values[0] > 0 else None
    if inverted is None or np.diagonal(inverted).max() > most_inflation:
        raise ParameterError(
            found=f"{why} at {some(at(names, wrong))} in {place}",
            expected="a positive definite covariance: fewer columns, or more clusters, or a prior",
        )
    precision = matrix if inverse else inverted / scale / scale[:, None]
    precision = (precision + precision.T) / 2
    return Gaussian(precision @ mean, precision).named(names)


def check_mode(
    squared: float | np.floating | Array,
    what: str,
    place: str,
    fix: str,
    size: int = 1,
    *,
    far: float = 1.0,
    near: float = 0.1,
) -> None:
    """Raise or warn if ``what``, such as weights, is not a mode of the density of ``place``.

    ``squared`` is the sum over ``size`` coordinates of squared distances, in posterior deviations.
    Beyond a root mean square of ``far``, the distance of a posterior draw, this is a
    ParameterError; beyond ``near`` a ConvergenceWarning.
    """
    off = math.sqrt(max(float(squared), 0.0) / size)
    mean = " (root mean square)" if size > 1 else ""
    message = f"{what} {off:.2g} posterior standard deviations{mean} from the mode of {place}"
    if not off <= far:
        raise ParameterError(found=message, expected="a fit that has reached its mode", fix=fix)
    if off > near:
        warnings.warn(f"{message}. {fix}", ConvergenceWarning, stacklevel=4)


def check_separation(x: ArrayLike, classes: ArrayLike, names: Sequence[str], place: str) -> None:
    """Raise a ParameterError that names the columns, if classes are separated."""
    columns = separating(x, classes)
    if columns.any():
        raise ParameterError(
            found=f"classes that {some(at(names, columns))} separate perfectly in {place}",
            expected="classes that overlap, or a prior or penalty, as the estimate is infinite",
        )
