"""Conversion of an estimate and its curvature to a Gaussian, shared by adapters of fitted models.

Columns of data have arbitrary units, so a covariance is checked and inverted as a correlation
matrix with separate standard deviations. A singular one is refused, and the error names the
columns. A pseudo-inverse, which several libraries use, would hide linear dependence.

If classes are separated, the maximum likelihood estimate is at infinity. Separation is found by a
linear program: a direction of the coefficients along which no record's likelihood decreases and
some increase (albert1984, konis2007).
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from posterity.adapters.shared import at
from posterity.errors import ConvergenceWarning, ParameterError, StructureError
from posterity.families import Gaussian
from posterity.families.names import some

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
    size = len(names)
    if mean.shape != (size,) or matrix.shape != (size, size):
        shapes = f"estimates of shape {mean.shape} and a matrix of shape {matrix.shape}"
        raise StructureError(
            found=f"{shapes} for {size} coordinates of {place}",
            expected=f"one value for each of {some(names)}",
            fix="Fit again, and pass the results unchanged.",
        )
    if (wrong := ~np.isfinite(mean)).any():
        raise ParameterError(
            found=f"NaN or infinity as the estimate of {some(at(names, wrong))} in {place}",
            expected="finite estimates",
            fix="Leave records with missing values out, and fit again.",
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
            expected="a positive definite covariance",
            fix="Leave out columns that are constant or sums of others, or fit with a prior "
            "or penalty. A covariance by clusters needs more clusters than coefficients.",
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


def separating(
    x: ArrayLike, classes: ArrayLike, most_cells: int = 2_000_000, rounding: float = 1e-6
) -> np.ndarray:
    """Return a mask of columns of ``x`` (n, d) in a direction that separates classes (n,) 0..K-1.

    The mask is empty if the linear program would have more than ``most_cells`` entries, which takes
    seconds; ``rounding`` is its tolerance, relative to columns of size one.

    >>> x = np.column_stack([np.ones(6), [1, 2, 3, 4, 5, 6], [1, 0, 1, 0, 1, 1]])
    >>> separating(x, np.array([0, 0, 0, 1, 1, 1]))
    array([False,  True, False])
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    x = np.asarray(x, np.float64)
    classes = np.asarray(classes, int)
    columns = np.zeros(x.shape[1], bool)
    constant = np.ptp(x, axis=0) == 0
    if constant.any():  # an intercept absorbs the centres of the other columns
        x = np.where(constant, x, x - x.mean(0))
    size = np.abs(x).max(0)
    x = x / np.where(size > 0, size, 1.0)
    count = int(classes.max()) + 1
    if x.size * (count - 1) ** 2 > most_cells:
        return columns
    # A record of class c requires x (d_c - d_k) >= 0 for every other class k.
    rows = []
    for other in range(count):
        chosen = classes != other
        at = np.zeros((int(chosen.sum()), count, x.shape[1]))
        at[np.arange(len(at)), classes[chosen]] += x[chosen]
        at[:, other] -= x[chosen]
        rows.append(at[:, 1:].reshape(len(at), -1))  # the first class is the reference
    rises = np.concatenate(rows)
    total = rises.sum(0)
    nowhere = np.zeros(len(rises))
    done = linprog(-total, csr_matrix(-rises), nowhere, bounds=(-1, 1))
    if done.status != 0 or -done.fun <= rounding * len(rises):
        return columns
    # Separated: of all directions, the shortest one names the fewest columns.
    cost = np.tile(~constant, 2 * (count - 1)).astype(float)
    asked = np.concatenate([rises, total[None]])
    least = np.concatenate([nowhere, [1.0]])
    both = csr_matrix(np.concatenate([-asked, asked], axis=1))
    short = linprog(cost, both, -least, bounds=(0, None))
    direction = short.x[: len(total)] - short.x[len(total) :] if short.status == 0 else done.x
    moved = np.abs(direction.reshape(count - 1, -1)).max(0)
    moved = moved > rounding * moved.max()
    return moved & ~constant if (moved & ~constant).any() else moved


def check_separation(x: ArrayLike, classes: ArrayLike, names: Sequence[str], place: str) -> None:
    """Raise a ParameterError that names the columns, if classes are separated."""
    columns = separating(x, classes)
    if columns.any():
        raise ParameterError(
            found=f"classes that {some(at(names, columns))} separate perfectly in {place}",
            expected="classes that overlap, since otherwise the estimate is infinite",
            fix="Fit with a prior, as posterity.federate and scikit-learn's penalty do.",
        )
