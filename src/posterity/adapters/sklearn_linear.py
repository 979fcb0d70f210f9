"""scikit-learn's linear models: posteriors over coefficients in the units of the raw columns.

Coefficients are named by ``feature_names_in_`` (or ``x0``, ``x1``, …), after ``intercept`` if there
is one. Log odds of two classes are of the second of ``classes_`` against the first; with more,
coefficients are ``class:feature`` relative to the first class, which has none.

A scaler before the model that shifts and scales each column alone is a linear map of the
coefficients and is inverted exactly. Steps that mix, transform or impute columns are refused.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    LogisticRegression,
    LogisticRegressionCV,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

from posterity.adapters import shared
from posterity.adapters.laplace import of_covariance
from posterity.adapters.sklearn_logistic import laplace, to_logistic
from posterity.arguments import POSITIVE, Constraint
from posterity.errors import StructureError, UsageError
from posterity.families import Gaussian, at_rest
from posterity.families.checks import check_proper
from posterity.families.names import some

Array = np.ndarray
INTERCEPT = "intercept"
KNOWN = (BayesianRidge, ARDRegression, LogisticRegression)
SCALERS = (StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler)
SCALING = Constraint(
    f"{', '.join(one.__name__ for one in SCALERS)} that clips nothing before the linear model, or "
    "pipeline[-1] alone",
    lambda step: isinstance(step, SCALERS) and not getattr(step, "clip", False),
    StructureError,
)
UNNAMED = Constraint(
    "None for a linear model, whose coefficients go by the columns it was fitted with",
    lambda names: names is None,
)
AS_FITTED = "Pass x and y as they were given to fit, and sample_weight if there was one."


class Fitted(NamedTuple):
    """A fitted model, with the scaling ``u = (x - shift) / scale`` of columns that precedes it."""

    model: Any
    shift: Array
    scale: Array
    columns: list[str]
    by_name: bool

    @property
    def names(self) -> list[str]:
        """Names of one row of coefficients."""
        return [INTERCEPT] * bool(self.model.fit_intercept) + self.columns

    @property
    def place(self) -> str:
        """Description of the model in errors."""
        return f"a fitted {type(self.model).__name__}"

    def in_raw_units(self, law: Gaussian, rows: int = 1) -> Gaussian:
        """Return the law of coefficients of raw columns, given that of scaled columns."""
        if not np.any(self.shift != 0) and np.all(self.scale == 1):
            return law
        to_scaled = np.diag(self.scale)
        if self.model.fit_intercept:
            to_scaled = np.diag(np.r_[1.0, self.scale])
            to_scaled[0, 1:] = self.shift
        back = np.kron(np.eye(rows), to_scaled)
        precision = back.T @ law.precision @ back
        slope = back.T @ law.precision_mean
        return Gaussian(slope, (precision + precision.T) / 2).named(law.names)


def laws(estimator: Any, data: shared.Data) -> shared.Laws:
    """Return the posterior over the coefficients and, given data, the likelihood as a factor."""
    known = _fitted(estimator, data)
    logistic = isinstance(known.model, LogisticRegression)
    model = known.model
    likelihood = logistic or data.site is not None
    counted = likelihood or model.fit_intercept
    if (counted and data.x is None) or (likelihood and data.y is None):
        raise UsageError(
            found=f"{known.place} without its data",
            expected="x, and y for a likelihood, as given to fit: it keeps neither these, nor how "
            "many records there were",
        )
    if data.x is None:
        return shared.Laws(known.in_raw_units(_coefficients(known)))
    x, weights, y = _records(known, data)
    if not logistic:
        return _ridge(known, x, weights, y)
    made = laplace(model, x, y, weights, data.weight, known.names, known.place)
    rows = max(len(model.classes_) - 1, 1)
    posterior, factor = (known.in_raw_units(law, rows) for law in made)
    return shared.Laws(posterior, factor=factor)


def _kept(model: Any) -> tuple[Array, Array]:
    """Return the prior's precisions (d,), and a mask of columns that ARD has not pruned."""
    prior = np.broadcast_to(np.asarray(model.lambda_, np.float64), len(model.coef_))
    return prior, ~(prior >= getattr(model, "threshold_lambda", np.inf))


def _coefficients(known: Fitted, level: Any = (), variance: Any = ()) -> Gaussian:
    """Return the law of scaled columns' coefficients from the estimator's covariance, after an
    independent intercept if it has a ``level`` and ``variance``.

    Columns that ARD pruned have their prior's variance.
    """
    model = known.model
    prior, kept = _kept(model)
    covariance: Any = np.diag(np.divide(1.0, prior, out=np.zeros(len(prior)), where=~kept))
    covariance[np.ix_(kept, kept)] = model.sigma_
    if len(level):
        covariance = scipy.linalg.block_diag(variance, covariance)
    mean = np.r_[level, np.asarray(model.coef_, np.float64)]
    return of_covariance(mean, covariance, known.names, known.place)


def _ridge(
    known: Fitted, x: Array, weights: Array, y: Any, off: float = 1e-3, most_away: float = 0.1
) -> shared.Laws:
    """Return the posterior of linear regression, given the noise and the prior's precisions.

    With responses, check that the coefficients solve ``(α XᵀX + Λ) coef = α Xᵀy`` for these data:
    column means agree to ``off`` standard deviations, and the mode to ``most_away`` posterior ones.
    """
    model, z, (prior, kept) = known.model, x, _kept(known.model)
    if model.fit_intercept:  # with centred columns it is independent of the coefficients
        centre = np.average(x, axis=0, weights=weights)
        scale = np.sqrt(np.average((x - centre) ** 2, axis=0, weights=weights))
        far = np.abs(centre - model.X_offset_) > off * np.where(scale > 0, scale, 1.0)
        if far.any():
            names = some(shared.at(known.columns, far))
            raise UsageError(
                found=f"columns {names} have another mean than those that {known.place} saw",
                expected="the data that it was fitted with, in the same units",
            )
        known = known._replace(shift=known.shift + known.scale * centre)
        z = np.column_stack([np.ones(len(x)), x - centre])
        kept = np.r_[True, kept]
        prior = np.r_[0.0, prior]
        level = float(model.intercept_) + centre @ model.coef_
        posterior = _coefficients(known, [level], 1 / (float(model.alpha_) * weights.sum()))
    else:
        posterior = _coefficients(known)
    if y is None:
        return shared.Laws(known.in_raw_units(posterior))
    weighted = float(model.alpha_) * weights[:, None] * z
    curvature = weighted.T @ z
    mean = posterior.mean
    precision = curvature * np.outer(kept, kept) + np.diag(prior)
    left = (weighted.T @ (y - z @ mean)) * kept - prior * mean
    away = np.sqrt(left @ np.linalg.solve(precision, left))
    if not away <= most_away:
        where = f"{away:.2g} posterior standard deviations elsewhere"
        raise UsageError(
            found=f"data under which the coefficients of {known.place} would be {where}",
            expected="the data that it was fitted with",
            fix=f"{AS_FITTED} Fit in float64, with columns that are not far from zero.",
        )
    factor = Gaussian(weighted.T @ y, curvature).named(known.names)
    return shared.Laws(known.in_raw_units(posterior), factor=known.in_raw_units(factor))


def to_linear(
    law: object, like: Any, classes: Sequence[Any] | Array | None, noise_precision: Any
) -> Any:
    """Return a fitted model like ``like``: see ``posterity.adapters.sklearn.to_estimator``."""
    if not isinstance(law, Gaussian) or law.batch_shape or not law.names:
        raise StructureError(
            found=f"{law!r}" + ("" if getattr(law, "names", ()) else " without names"),
            expected="one Gaussian of named coefficients, law.named(['intercept', ...])",
        )
    check_proper(law, "the posterior for scikit-learn")
    law = at_rest(law)
    ridge = isinstance(like, BayesianRidge) and POSITIVE.allows(noise_precision)
    if not ridge and not isinstance(like, LogisticRegression):
        raise UsageError(
            found=f"like={like!r}, noise_precision={noise_precision!r}",
            expected="like=LogisticRegression(), or like=BayesianRidge() with noise_precision",
        )
    model: Any = type(like)(**like.get_params(deep=False))
    if ridge:
        _to_ridge(law, model, float(noise_precision))
    else:
        to_logistic(law, model, classes, INTERCEPT)
    return model


def _to_ridge(law: Gaussian, model: Any, noise_precision: float) -> None:
    names = list(law.names)
    places = [k for k, name in enumerate(names) if name != INTERCEPT]
    mean = law.mean
    covariance = law.covariance
    model.set_params(fit_intercept=INTERCEPT in names)
    model.coef_, model.sigma_ = mean[places], covariance[np.ix_(places, places)]
    model.intercept_, model.X_offset_ = 0.0, np.zeros(len(places))
    if model.fit_intercept:
        first = names.index(INTERCEPT)
        model.intercept_ = float(mean[first])
        # The offset makes the intercept independent, as predict(return_std) assumes.
        model.X_offset_ = -np.linalg.solve(model.sigma_, covariance[first, places])
    model.X_scale_ = np.ones(len(places))
    model.alpha_, model.lambda_ = noise_precision, float("nan")
    model.scores_, model.n_iter_, model.n_features_in_ = [], 0, len(places)
    model.feature_names_in_ = np.array([names[k] for k in places], dtype=object)


def _fitted(estimator: Any, data: shared.Data) -> Fitted:
    """Return the last model of a pipeline, or the estimator itself, and the scaling before it."""
    steps = _steps(estimator)
    model: Any = steps[-1] if steps else None
    UNNAMED.check(names=data.names)
    if not isinstance(model, KNOWN) or isinstance(model, LogisticRegressionCV):
        fix = "Point estimates have no posterior: fit BayesianRidge, or OLS of statsmodels; of a "
        fix += "LogisticRegressionCV fit a LogisticRegression with the C that it chose."
        kinds = "a fitted BayesianRidge, ARDRegression or LogisticRegression"
        raise shared.unsupported(model, kinds, fix)
    shared.check_fitted(model, "coef_")
    size = np.shape(model.coef_)[-1]
    columns = shared.columns_of(estimator, size)
    shift = np.zeros(size)
    scale = np.ones(size)
    for step in steps[:-1]:
        own_shift, own_scale = _scaling(step)
        shift = shift + scale * own_shift
        scale = scale * own_scale
    twice = model.fit_intercept and INTERCEPT in columns
    if twice or (not model.fit_intercept and np.any(shift != 0)):
        two = f"a column {INTERCEPT!r} beside the intercept of a {type(model).__name__}"
        raise StructureError(
            found=two if twice else "a scaling that centres, before a model without an intercept",
            expected="one intercept, or fit_intercept=False and scaling of with_mean=False",
        )
    return Fitted(model, shift, scale, columns, hasattr(estimator, "feature_names_in_"))


def _steps(estimator: Any) -> list[Any]:
    if not isinstance(estimator, Pipeline):
        return [] if estimator is None or estimator == "passthrough" else [estimator]
    return [inner for _, step in estimator.steps for inner in _steps(step)]


def _scaling(step: Any) -> tuple[Any, Any]:
    SCALING.check(step=step)
    shared.check_fitted(step, "n_features_in_", "scale_")
    own: Any = step
    shift = own.inverse_transform(np.zeros((1, own.n_features_in_)))[0]
    scale = 1.0 if own.scale_ is None else own.scale_
    return shift, 1 / scale if isinstance(step, MinMaxScaler) else scale  # u = x scale + min


def _records(known: Fitted, data: shared.Data) -> tuple[Array, Array, Any]:
    """Return scaled columns (n, d), weights (n,), and responses (n,) or None."""
    x = shared.table(data.x, known.columns, known.place, by_name=known.by_name)
    y: Any = data.y
    weights = (
        np.ones(len(x)) if data.weight is None else shared.numbers(data.weight, "sample_weight")
    )
    if y is not None:
        logistic = isinstance(known.model, LogisticRegression)
        y = np.asarray(y) if logistic else shared.numbers(y, f"values y of {known.place}")
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    wrong = weights.shape != (len(x),) or not np.all(weights >= 0) or not weights.sum() > 0
    if wrong or (y is not None and y.shape != (len(x),)):
        raise StructureError(
            found=f"sample_weight of shape {weights.shape} and y {getattr(y, 'shape', y)} beside "
            f"{len(x)} records for {known.place}",
            expected="a response, and a weight that is not negative, for each record",
        )
    return (x - known.shift) / known.scale, weights, y
