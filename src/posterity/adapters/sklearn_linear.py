"""scikit-learn's linear models: posteriors over coefficients in the units of the raw columns.

Coefficients go by ``feature_names_in_`` (or ``x0``, ``x1``, …), after ``intercept`` where there is
one. Log odds of two classes are of the second of ``classes_`` against the first; with more,
coefficients are ``class:feature`` against the first class, which has none.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    LogisticRegression,
    LogisticRegressionCV,
)

from posterity.adapters.laplace import by_name, check_finite_data, numbers, of_covariance, usable
from posterity.adapters.sklearn_logistic import Curved, back, logistic
from posterity.adapters.sklearn_scaling import Affine, steps_of
from posterity.arguments import POSITIVE
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import Gaussian
from posterity.families.names import order, some

INTERCEPT = "intercept"
LINEAR = (BayesianRidge, ARDRegression)
KNOWN = (*LINEAR, LogisticRegression)
OFF = 1e-3
"""Relative difference at which statistics of data are those of other data."""
AWAY = 0.1
"""Posterior standard deviations from the coefficients at which the mode is of other data."""


class Fitted(NamedTuple):
    """A fitted model, apart from the scaling before it."""

    model: Any
    scaling: Affine
    columns: list[str]
    own: Any
    """Names that the fit had, or None."""

    @property
    def names(self) -> list[str]:
        """Of one row of coefficients."""
        return [INTERCEPT] * bool(self.model.fit_intercept) + self.columns

    @property
    def place(self) -> str:
        """For errors."""
        return f"a fitted {type(self.model).__name__}"


def to_gaussian(estimator: Any, x: Any, y: Any, weight: Any) -> Gaussian:
    """The posterior over the coefficients: see ``posterity.adapters.sklearn.from_estimator``."""
    known = fitted(estimator)
    if isinstance(known.model, LogisticRegression):
        return _curved(known, x, y, weight).posterior
    if x is not None and y is not None:
        _check_coefficients(known, *_data(known, x, weight), _target(known, y))
    names = known.names
    mean, covariance = _kept(known.model)
    if known.model.fit_intercept:
        if x is None:
            raise UsageError(
                found=f"{known.place} without its data",
                expected="x: how many records there were says how well the intercept is known",
                fix="Pass x, as it was given to fit, and sample_weight if there was one.",
            )
        data, weights = _data(known, x, weight)
        centre = np.average(data, axis=0, weights=weights)
        scale = np.sqrt(np.average((data - centre) ** 2, axis=0, weights=weights))
        far = np.abs(centre - known.model.X_offset_) > OFF * np.where(scale > 0, scale, 1.0)
        if far.any():
            raise _changed(known, [c for c, f in zip(known.columns, far, strict=True) if f])
        # The centred intercept is known to 1/(α n), apart from the coefficients.
        level = 1 / (float(known.model.alpha_) * weights.sum())
        across = -covariance @ centre
        covariance = np.block(
            [
                [np.atleast_2d(level - across @ centre), across[None]],
                [across[:, None], covariance],
            ]
        )
        mean = np.r_[float(known.model.intercept_), mean]
    found = of_covariance(mean, covariance, names, known.place)
    return _raw(known, found, 1)


def to_factor(estimator: Any, x: Any, y: Any, weight: Any) -> Gaussian:
    """What the data said, without the estimator's prior; may be improper."""
    known = fitted(estimator)
    if x is None or y is None:
        raise UsageError(
            found=f"{known.place} without its data",
            expected="x and y: a factor is the likelihood, and the estimator's prior is its own",
            fix="Pass x and y as they were given to fit, and sample_weight if there was one.",
        )
    if isinstance(known.model, LogisticRegression):
        return _curved(known, x, y, weight).likelihood
    to_gaussian(estimator, x, y, weight)  # refuses other data
    data, weights = _data(known, x, weight)
    target = _target(known, y)
    if known.model.fit_intercept:
        data = np.column_stack([np.ones(len(data)), data])
    alpha = float(known.model.alpha_)
    weighted = alpha * weights[:, None] * data
    found = Gaussian(weighted.T @ target, weighted.T @ data).named(known.names)
    return _raw(known, found, 1)


def fitted(estimator: Any) -> Fitted:
    """The model at the end, and the scaling of the steps before it.

    Raises:
        UsageError: for what is not fitted, or another estimator.
        StructureError: for steps that are no scaling of columns.
    """
    model, before = steps_of(estimator)
    if not isinstance(model, KNOWN) or isinstance(model, LogisticRegressionCV):
        raise usable(
            model,
            "a fitted BayesianRidge, ARDRegression or LogisticRegression",
            "Point estimates have no posterior: fit BayesianRidge in place of Ridge or "
            "LinearRegression, or OLS of statsmodels; of a LogisticRegressionCV fit a "
            "LogisticRegression with the C that it chose.",
        )
    if not hasattr(model, "coef_"):
        raise UsageError(
            found=f"a {type(model).__name__} that is not fitted",
            expected="a fitted one",
            fix="Call fit first.",
        )
    size = np.shape(model.coef_)[-1]
    own = getattr(estimator, "feature_names_in_", None)
    columns = [f"x{k}" for k in range(size)] if own is None else [str(name) for name in own]
    if model.fit_intercept and INTERCEPT in columns:
        raise StructureError(
            found=f"a column {INTERCEPT!r} beside the intercept of a {type(model).__name__}",
            expected="one of that name",
            fix="Fit with fit_intercept=False if it is the column of ones, or rename it.",
        )
    scaling = Affine.of(before, size)
    if scaling.shifts and not model.fit_intercept:
        raise StructureError(
            found="a scaling that centres, before a model without an intercept",
            expected="an intercept: in raw units there is one",
            fix="Fit with fit_intercept=True, or StandardScaler(with_mean=False).",
        )
    return Fitted(model, scaling, columns, own)


def to_linear(law: Any, like: Any, classes: Any, noise_precision: Any, columns: Any) -> Any:
    """A fitted model of the kind of ``like``: see ``posterity.adapters.sklearn.to_estimator``."""
    if not isinstance(law, Gaussian) or law.batch_shape or not law.names:
        raise StructureError(
            found=f"{law!r}" + ("" if getattr(law, "names", ()) else " without names"),
            expected="one Gaussian whose coefficients have names",
            fix="Name them: law.named(['intercept', 'age', ...]).",
        )
    if isinstance(like, LogisticRegression):
        return _in_order(back(law, _copy(like), classes, INTERCEPT), columns)
    if not isinstance(like, BayesianRidge) or not POSITIVE.allows(noise_precision):
        raise UsageError(
            found=f"like={like!r}, noise_precision={noise_precision!r}",
            expected="like=LogisticRegression(), or like=BayesianRidge() with noise_precision",
            fix="Say what the law is to become. The noise of a BayesianRidge, alpha_, is no part "
            "of a law of its coefficients.",
        )
    names = list(law.names)
    at = [k for k, name in enumerate(names) if name != INTERCEPT]
    mean, covariance = np.asarray(law.mean), np.asarray(law.covariance)
    model = _copy(like).set_params(fit_intercept=INTERCEPT in names)
    model.coef_, model.sigma_ = mean[at], covariance[np.ix_(at, at)]
    model.intercept_ = float(mean[names.index(INTERCEPT)]) if model.fit_intercept else 0.0
    # Where the intercept is known apart from the coefficients, as predict(return_std) asks.
    centre = np.zeros(len(at))
    if model.fit_intercept:
        across = covariance[names.index(INTERCEPT), at]
        centre = -np.linalg.solve(model.sigma_, across)
    model.X_offset_, model.X_scale_ = centre, np.ones(len(at))
    model.alpha_, model.lambda_ = float(noise_precision), float("nan")
    model.scores_, model.n_iter_ = [], 0
    model.n_features_in_ = len(at)
    model.feature_names_in_ = np.array([names[k] for k in at], dtype=object)
    return _in_order(model, columns)


def _copy(like: Any) -> Any:
    """Unfitted, with the same parameters."""
    return type(like)(**like.get_params(deep=False))


def _in_order(model: Any, columns: Any) -> Any:
    """With columns in the order in which data come, without names to compare."""
    if columns is None:
        return model
    found = list(model.feature_names_in_)
    at = order(found, list(map(str, columns)), "the posterior", "names")
    del model.feature_names_in_
    model.coef_ = np.ascontiguousarray(model.coef_[..., at])
    if hasattr(model, "sigma_"):
        model.sigma_, model.X_offset_ = model.sigma_[np.ix_(at, at)], model.X_offset_[at]
    return model


def _kept(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and their covariance; of what ARD pruned, what its prior says."""
    mean = np.asarray(model.coef_, np.float64)
    own = np.asarray(model.sigma_, np.float64)
    if mean.ndim != 1:
        raise StructureError(
            found=f"coefficients of shape {mean.shape}",
            expected="one response",
            fix="Fit one model a response.",
        )
    if not isinstance(model, ARDRegression):
        return mean, own
    kept = np.asarray(model.lambda_) < model.threshold_lambda
    covariance = np.diag(1 / np.asarray(model.lambda_, np.float64))
    covariance[np.ix_(kept, kept)] = own
    return mean, covariance


def _curved(known: Fitted, x: Any, y: Any, weight: Any) -> Curved:
    """Laplace's approximation and its likelihood alone, in raw units."""
    if x is None or y is None:
        raise UsageError(
            found=f"{known.place} without its data",
            expected="x and y, of which the curvature is made: scikit-learn keeps neither",
            fix="Pass x and y as they were given to fit, and sample_weight if there was one.",
        )
    data, weights = _data(known, x, weight)
    labels = _column(y)
    if labels.shape != (len(data),):
        raise _records(known, labels.shape, len(data))
    found = logistic(known.model, data, labels, weights, weight, known.names, known.place)
    rows = max(len(known.model.classes_) - 1, 1)
    return Curved(*(_raw(known, part, rows) for part in found))


def _data(known: Fitted, x: Any, weight: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scaled columns (n, d) and weights (n,)."""
    x = by_name(x, known.own, known.place)
    data = known.scaling.applied(check_finite_data(x, known.columns, known.place))
    if weight is None:
        return data, np.ones(len(data))
    weights = numbers(weight, "sample_weight")
    if weights.shape != (len(data),) or not np.all(weights >= 0) or not weights.sum() > 0:
        raise StructureError(
            found=f"sample_weight of shape {weights.shape}",
            expected=f"a weight that is not negative for each of {len(data)} records",
            fix="Pass those that were given to fit.",
        )
    return data, weights


def _target(known: Fitted, y: Any) -> np.ndarray:
    """The response (n,)."""
    target = _column(numbers(y, f"values y of {known.place}"))
    if not np.isfinite(target).all():
        raise ParameterError(
            found=f"NaN or infinity in y of {known.place}",
            expected="finite numbers",
            fix="Pass the data that the model was fitted with.",
        )
    return target


def _check_coefficients(
    known: Fitted, data: np.ndarray, weights: np.ndarray, target: np.ndarray
) -> None:
    """Raise unless ``(α XᵀX + Λ) coef = α Xᵀy`` of these data, and the intercept is theirs."""
    model = known.model
    if target.shape != (len(data),):
        raise _records(known, target.shape, len(data))
    alpha, coef = float(model.alpha_), np.asarray(model.coef_, np.float64)
    kept, away = np.ones(len(coef), bool), 0.0
    if isinstance(model, ARDRegression):
        kept = np.asarray(model.lambda_) < model.threshold_lambda
    if model.fit_intercept:
        centre, level = (np.average(v, axis=0, weights=weights) for v in (data, target))
        off = level - centre @ coef - float(model.intercept_)
        away = alpha * weights.sum() * off**2
        data, target = data - centre, target - level
    weighted = alpha * weights[:, None] * data[:, kept]
    penalty = np.broadcast_to(np.asarray(model.lambda_, np.float64), len(coef))[kept]
    left = weighted.T @ (target - data @ coef) - penalty * coef[kept]
    away += left @ np.linalg.solve(weighted.T @ data[:, kept] + np.diag(penalty), left)
    if not away <= AWAY**2:
        raise UsageError(
            found=f"data under which the coefficients of {known.place} would be "
            f"{np.sqrt(away):.2g} posterior standard deviations elsewhere",
            expected="the data that it was fitted with",
            fix="Pass x, y and sample_weight as they were given to fit, in the same order; if they "
            "are, fit in float64, and move columns that are far from zero.",
        )


def _column(y: Any) -> np.ndarray:
    """One number or label a record, also where they come as a table of one column."""
    made = np.asarray(y)
    return made[:, 0] if made.ndim == 2 and made.shape[1] == 1 else made


def _raw(known: Fitted, law: Gaussian, rows: int) -> Gaussian:
    """In raw units: ``z = A u`` of scaled coefficients, whose inverse is simple."""
    if known.scaling.trivial:
        return law
    back = np.kron(np.eye(rows), known.scaling.to_scaled(bool(known.model.fit_intercept)))
    slope, precision = np.asarray(law.precision_mean), np.asarray(law.precision)
    moved = back.T @ precision @ back
    return Gaussian(back.T @ slope, (moved + moved.T) / 2).named(law.names)


def _records(known: Fitted, shape: tuple[int, ...], count: int) -> StructureError:
    return StructureError(
        found=f"y of shape {shape} beside {count} records for {known.place}",
        expected=f"one for each record: shape ({count},)",
        fix="Pass x and y as they were given to fit.",
    )


def _changed(known: Fitted, columns: Sequence[str]) -> UsageError:
    return UsageError(
        found=f"data whose columns {some(list(columns))} have another mean than those that "
        f"{known.place} saw",
        expected="the data that it was fitted with",
        fix="Pass x and sample_weight as they were given to fit, in the same units.",
    )
