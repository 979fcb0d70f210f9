"""An estimate and its curvature as a Gaussian: what adapters of fitted models share.

Columns of data come in any units, so a covariance is judged and inverted as a correlation matrix
between standard deviations: a singular one is refused, and the error names the columns. Checks
happen before anything is rounded away, because a pseudo-inverse, which several libraries use, turns
columns that depend on each other into plausible numbers.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.adapters.checks import at
from posterity.errors import ConvergenceWarning, ParameterError, StructureError
from posterity.families import ExponentialFamily, Gaussian
from posterity.families.names import in_order, names_of, some
from posterity.ledger import Ledger

Array = np.ndarray
MOST_INFLATION = 1e12
"""By which factor at most columns may inflate each other's variance; four digits are left then."""
FAR, NEAR = 1.0, 0.1
"""Root mean square, over weights, of posterior standard deviations from the mode at which it is
another one, or is warned of. A draw of the posterior is at 1."""


def of_covariance(mean: Any, covariance: Any, names: Sequence[str], place: str) -> Gaussian:
    """A Gaussian of an estimate (d,) and its covariance (d, d), under these names.

    Raises:
        ParameterError: for NaN, infinity, variances that are not positive, and a covariance that
            is singular to twelve digits; the coordinates are named.
        StructureError: for names that are not as many distinct texts.

    >>> of_covariance([1.0, 2.0], [[1.0, 0.0], [0.0, 1e-20]], ["age", "bp"], "a fit").names
    ('age', 'bp')
    """
    precision = _inverse(np.asarray(covariance, np.float64), names, place, "variance")
    return _named(mean, precision, names, place)


def of_precision(mean: Any, precision: Any, names: Sequence[str], place: str) -> Gaussian:
    """As :func:`of_covariance`, from minus the Hessian of the log density (d, d)."""
    precision = np.asarray(precision, np.float64)
    _inverse(precision, names, place, "curvature")  # refused where nothing could be made of it
    return _named(mean, (precision + precision.T) / 2, names, place)


def ledger_of(factor: ExponentialFamily, site: str, prior: ExponentialFamily) -> Ledger:
    """A ledger of one site whose factor is known, under a prior in whose order it is put.

    Raises:
        StructureError: for a prior of another family, size or names.
        ParameterError: for an improper prior.
    """
    if not isinstance(prior, ExponentialFamily) or prior.outline() != factor.outline():
        raise StructureError(
            found=f"prior={prior!r}",
            expected=f"one like the factor, {factor!r}, with coordinates {names_of(factor)}",
            fix="Make it so, the same at every site: Gaussian.from_standard(zeros, covariance), "
            "with a variance of each column that is wide in that column's units.",
        )
    wanted = names_of(prior) or names_of(factor)
    factor = in_order(factor, wanted, f"site {site!r}", "the prior")
    prior = in_order(prior, wanted, "the prior", f"site {site!r}")
    return Ledger(prior).update(site, factor, independent=True)


def warn_unless_converged(converged: Any, place: str, fix: str) -> None:
    """Warn of an estimate that its own optimiser calls unfinished."""
    if converged is not None and not np.all(converged):
        warnings.warn(
            f"{place} has not converged, so its estimate is no mode and its covariance that of "
            f"another place. {fix}",
            ConvergenceWarning,
            stacklevel=3,
        )


def check_mode(
    squared: float | np.floating | Array, what: str, place: str, fix: str, size: int = 1
) -> None:
    """Raise or warn where ``what``, such as weights, is no mode of the density of ``place``.

    ``squared`` is the distance in posterior standard deviations, squared, over ``size`` of them.
    """
    off = math.sqrt(max(float(squared), 0.0) / size)
    mean = " (root mean square)" if size > 1 else ""
    found = f"{what} {off:.2g} posterior standard deviations{mean} from the mode of {place}"
    if not off <= FAR:
        raise ParameterError(found=found, expected="a fit: an estimate at its mode", fix=fix)
    if off > NEAR:
        warnings.warn(f"{found}. {fix}", ConvergenceWarning, stacklevel=4)


def _inverse(matrix: Array, names: Sequence[str], place: str, what: str) -> Array:
    """Inverse by way of the correlation matrix, once it was seen to have one."""
    size = len(names)
    if matrix.shape != (size, size):
        raise _another_shape(f"a matrix of shape {matrix.shape}", names, place)
    diagonal = np.diagonal(matrix)
    wrong = ~np.isfinite(matrix).all(0) | ~(diagonal > 0)
    if wrong.any():
        bad = wrong & ~(np.isfinite(diagonal) & (diagonal > 0))
        raise _singular(place, at(names, bad if bad.any() else wrong), f"no positive {what}")
    scale = np.sqrt(diagonal)
    correlation = matrix / scale / scale[:, None]
    correlation = (correlation + correlation.T) / 2
    values, vectors = np.linalg.eigh(correlation)
    if values[0] > 0:
        inverse = (vectors / values) @ vectors.T
        inflation = np.diagonal(inverse)
        if inflation.max() <= MOST_INFLATION:
            return inverse / scale / scale[:, None]
    tied = np.abs(vectors[:, 0]) > 0.01 * np.abs(vectors[:, 0]).max()
    raise _singular(place, at(names, tied), "coordinates that depend on each other")


def _named(mean: Any, precision: Array, names: Sequence[str], place: str) -> Gaussian:
    mean = np.asarray(mean, np.float64)
    if mean.shape != (len(names),):
        raise _another_shape(f"estimates of shape {mean.shape}", names, place)
    wrong = ~np.isfinite(mean)
    if wrong.any():
        raise ParameterError(
            found=f"NaN or infinity as the estimate of {some(at(names, wrong))} in {place}",
            expected="finite estimates",
            fix="Leave records with missing values out, and fit again.",
        )
    precision = (precision + precision.T) / 2
    return Gaussian(precision @ mean, precision).named(names)


def _another_shape(found: str, names: Sequence[str], place: str) -> StructureError:
    return StructureError(
        found=f"{found} for {len(names)} coordinates of {place}",
        expected=f"one of each of {some(names)}",
        fix="Fit again, and pass the results as they are.",
    )


def _singular(place: str, names: list[str], why: str) -> ParameterError:
    return ParameterError(
        found=f"{why} at {some(names)} in {place}",
        expected="a positive definite covariance",
        fix="Leave out columns that are constant or that others add up to (one class of each "
        "factor where there is an intercept), or fit with a prior or penalty; then fit again. A "
        "covariance by clusters needs more clusters than coefficients.",
    )
