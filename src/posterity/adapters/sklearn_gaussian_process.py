"""scikit-learn's Gaussian process regression: the law of the function's values at chosen points.

Values at points that two sites share, such as inducing points, have one meaning at both; a process
as a whole has no finite set of parameters. The law is that of the function, without noise: that of
a ``WhiteKernel``, which ``predict`` adds to its covariance, is left out.
"""

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from posterity.adapters.checks import (
    Data,
    check_fitted,
    check_no_prior,
    columns_of,
    in_columns,
    table,
)
from posterity.adapters.laplace import of_covariance
from posterity.errors import StructureError, UsageError
from posterity.families import Gaussian
from posterity.ledger import Ledger

PLACE = "the Gaussian process"


def to_law(model: Any, data: Data) -> Gaussian:
    """The posterior of the values at points (m, d), in the units of the response."""
    x, names = _points(model, data)
    across = model.kernel_(x, model.X_train_)
    mean = across @ model.alpha_
    half = solve_triangular(model.L_, across.T, lower=True)
    scale, level = (float(np.ravel(v)[0]) for v in (model._y_train_std, model._y_train_mean))
    covariance = scale**2 * (model.kernel_(x, x) - half.T @ half)
    return of_covariance(scale * mean + level, covariance, names, PLACE)


def to_ledger(model: Any, site: str, data: Data, prior: Any) -> Ledger:
    """Prior and posterior of the values; the prior is the process's own.

    Raises:
        UsageError: for another prior.
        StructureError: with ``normalize_y=True``, by which the prior is taken from the data.
    """
    check_no_prior(model, prior)
    if model.normalize_y:
        raise StructureError(
            found="a Gaussian process with normalize_y=True",
            expected="a prior that looks at nobody's data, the same at all sites",
            fix="Fit with normalize_y=False and optimizer=None, one kernel for all, after moving "
            "the response by a number that sites agree on.",
        )
    x, names = _points(model, data)
    own = of_covariance(np.zeros(len(x)), model.kernel_(x, x), names, f"the prior of {PLACE}")
    return Ledger.of_site(site, prior=own, posterior=to_law(model, data))


def _points(model: Any, data: Data) -> tuple[np.ndarray, list[str]]:
    check_fitted(model, "X_train_")
    if np.ndim(model.alpha_) != 1:
        raise StructureError(
            found=f"a Gaussian process of {np.shape(model.alpha_)[1]} responses",
            expected="one response",
            fix="Fit one process a response.",
        )
    if data.x is None:
        raise UsageError(
            found="a Gaussian process without points",
            expected="x: the points (m, d) whose values the law is of",
            fix="Choose points that all sites share, such as inducing points.",
        )
    points = in_columns(data.x, getattr(model, "feature_names_in_", None), PLACE)
    x = table(points, columns_of(model, np.shape(model.X_train_)[1]), PLACE)
    if data.names is not None:
        return x, list(data.names)
    names = [f"f({', '.join(f'{value:.6g}' for value in row)})" for row in x]
    return x, names if len(set(names)) == len(names) else [f"f{k}" for k in range(len(x))]
