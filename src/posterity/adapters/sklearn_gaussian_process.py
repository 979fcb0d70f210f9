"""scikit-learn's Gaussian process regression: the law of the function's values at chosen points.

Values at points that two sites share, such as inducing points, have one meaning at both; a process
as a whole has no finite set of parameters. The law is that of the function, without noise: that of
a ``WhiteKernel``, which ``predict`` adds to its covariance, is left out.
"""

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from posterity.adapters.laplace import by_name, check_finite_data, of_covariance
from posterity.errors import StructureError, UsageError
from posterity.families import Gaussian


def to_gaussian(model: Any, points: Any, names: Any) -> Gaussian:
    """The posterior of the values at points (m, d), in the units of the response."""
    x, names = _points(model, points, names)
    across = model.kernel_(x, model.X_train_)
    mean = across @ model.alpha_
    half = solve_triangular(model.L_, across.T, lower=True)
    scale, level = (float(np.ravel(v)[0]) for v in (model._y_train_std, model._y_train_mean))
    covariance = scale**2 * (model.kernel_(x, x) - half.T @ half)
    return of_covariance(scale * mean + level, covariance, names, "the Gaussian process")


def to_laws(model: Any, points: Any, names: Any) -> tuple[Gaussian, Gaussian]:
    """Prior and posterior of the values; the prior is the process's own.

    Raises:
        StructureError: with ``normalize_y=True``, by which the prior is taken from the data.
    """
    if model.normalize_y:
        raise StructureError(
            found="a Gaussian process with normalize_y=True",
            expected="a prior that looks at nobody's data, the same at all sites",
            fix="Fit with normalize_y=False and optimizer=None, one kernel for all, after moving "
            "the response by a number that sites agree on.",
        )
    x, names = _points(model, points, names)
    prior = of_covariance(
        np.zeros(len(x)), model.kernel_(x, x), names, "the prior of the Gaussian process"
    )
    return prior, to_gaussian(model, points, names)


def _points(model: Any, points: Any, names: Any) -> tuple[np.ndarray, list[str]]:
    if not hasattr(model, "X_train_"):
        raise UsageError(
            found="a GaussianProcessRegressor that is not fitted",
            expected="a fitted one",
            fix="Call fit first.",
        )
    if np.ndim(model.alpha_) != 1:
        raise StructureError(
            found=f"a Gaussian process of {np.shape(model.alpha_)[1]} responses",
            expected="one response",
            fix="Fit one process a response.",
        )
    if points is None:
        raise UsageError(
            found="a Gaussian process without points",
            expected="x: the points (m, d) whose values the law is of",
            fix="Choose points that all sites share, such as inducing points.",
        )
    size = np.shape(model.X_train_)[1]
    own = getattr(model, "feature_names_in_", None)
    columns = [f"x{k}" for k in range(size)] if own is None else [str(name) for name in own]
    points = by_name(points, own, "the Gaussian process")
    x = check_finite_data(points, columns, "the Gaussian process")
    if names is None:
        names = [f"f({', '.join(f'{value:.6g}' for value in row)})" for row in x]
        if len(set(names)) < len(names):
            names = [f"f{k}" for k in range(len(x))]
    return x, list(names)
