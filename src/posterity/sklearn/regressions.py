"""Regressions that are federated over their sites."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

import posterity
from posterity.adapters.shared import columns_of
from posterity.arguments import COUNT, POSITIVE
from posterity.artifact.recipe import Recipe, check_recipe
from posterity.artifact.reconcile import prior_digest
from posterity.artifact.sites import as_provenance
from posterity.errors import FitWarning, ParameterError
from posterity.families import ExponentialFamily
from posterity.federation import Schedule
from posterity.fitting.design import Design
from posterity.fitting.fit import prior_of
from posterity.fitting.predict import predict
from posterity.fitting.regressions import Residuals, data_of, model_of, residuals_of
from posterity.ledger import Ledger
from posterity.models import PoissonRegression
from posterity.models.data import INPUTS, Column, check_data
from posterity.sklearn.sites import OfSites, rows_of, validate_data
from posterity.summary import LEVEL

WIDE = 1e3
"""Standard deviations of a linear model's noise that its coefficients' usual prior is wide."""
RATES = Column(
    "y of shape (n, 2), of counts and exposures",
    (2,),
    "values that are not negative, and exposures that are positive",
    lambda y: np.stack([y[:, 0] >= 0, y[:, 1] > 0], 1),
)


class _Rates(PoissonRegression):
    """Poisson regression that takes values that are not whole too, by their quasi-likelihood."""

    def check(self, data: Any) -> None:
        check_data(data, (INPUTS, RATES))


class FederatedRegression(OfSites):
    """A regression that is federated over its sites: the base of all of them, no estimator itself.

    Args:
        prior_sd: standard deviations of the coefficients' prior about zero, in the columns' units:
            a number, or by name of a column or ``"intercept"``, under ``""`` that of all others.
            By default 10, and 1,000 of the intercept; of a linear model a thousand times the
            noise's.
        prior: in its place a :class:`~posterity.families.Gaussian` whose coordinates are named.
        fit_intercept: whether there is an intercept.
        schedule: who has a turn when, as of :func:`posterity.federate`.
        max_iter: steps of the schedule at most; as many as it takes to converge by default.
        tol: nats that may be left to change in a posterior that has converged.

    Attributes:
        ledger_: the prior, and a factor of each site.
        posterior_: the :class:`~posterity.families.Gaussian` over ``intercept`` and the columns.
        coef_: its mean of the columns' coefficients; ``intercept_`` is that of the intercept.
        status_: whether it has converged, and how many nats are left.
        sites_: the names of the sites.
        records_: the number of records of each site.
        run_: the federation, with the sites' records; it is not pickled.
        n_iter_: the number of steps that were made.
        n_features_in_: the number of columns; ``feature_names_in_`` are their names, if any.
    """

    _kind: ClassVar[str]
    """The name of the model in a recipe."""
    _recipe: Recipe

    def __init__(
        self,
        *,
        prior_sd: float | Mapping[str, float] | None = None,
        prior: ExponentialFamily | None = None,
        fit_intercept: bool = True,
        schedule: Schedule | None = None,
        max_iter: int | None = None,
        tol: float = 1e-3,
    ) -> None:
        self.prior_sd = prior_sd
        self.prior = prior
        self.fit_intercept = fit_intercept
        self.schedule = schedule
        self.max_iter = max_iter
        self.tol = tol

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        sites: ArrayLike | None = None,
    ) -> Self:
        """Find the posterior of all sites' records, by local steps of the sites.

        Args:
            X: inputs (n, d).
            y: targets (n,).
            sample_weight: for each record (n,) how many like it there are; one by default.
            sites: for each record (n,) the name of its site; all are of one by default.

        Warns of what has not converged; raises a ValueError for data that scikit-learn refuses, a
        UsageError for options that make no sense, and else as :func:`posterity.federate`.
        """
        COUNT.or_none().check(max_iter=self.max_iter)
        name = getattr(y, "name", None)
        checked = dict(y_numeric=self._kind != "logistic", ensure_min_samples=2)
        x, y = self._validated(X, y, sites=sites, **checked)
        y = self._targets(y)
        weights = np.ones(len(x))
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, x)
            if not (weights >= 0).all() or not weights.any():
                raise ValueError(
                    "sample_weight is to be positive or zero, and not zero throughout."
                )
        apart, used = rows_of(sites, len(x)), weights > 0
        columns, spread = columns_of(self, self.n_features_in_), self.prior_sd
        if spread is not None and not isinstance(spread, Mapping):
            POSITIVE.check(prior_sd=spread)
            spread = {"": spread}
        recipe = Recipe(
            self._kind,
            target=name if isinstance(name, str) else "y",
            intercept=self.fit_intercept,
            weights=None if sample_weight is None else "sample_weight",
            prior_sd=spread or {},
            prior=None if self.prior is None else prior_digest(self.prior),
        )
        check_recipe(recipe)
        self._recipe = recipe.filled(columns)
        designs = {
            site: self._design(x[own], y[own], weights[own])
            for site, rows in apart.items()
            if len(own := rows[used[rows]])
        }
        model, data = self._problem(designs)
        prior = self._prior()
        options: Any = {"schedule": self.schedule, "steps": self.max_iter, "tolerance": self.tol}
        self.run_ = posterity.federate(data, model, prior, **options)
        self.records_ = {site: design.total for site, design in designs.items()}
        self.ledger_, self.status_ = self.run_.ledger, self.run_.status
        self.n_iter_ = self.run_.state.step
        return self

    def forget(self, *sites: str) -> Self:
        """A new estimator without what these sites contributed; this one stays as it is.

        Where the other factors were fitted together with those that leave, they are refined by
        their sites' records, which are in ``run_`` until the estimator is pickled. Of one that was
        unpickled the factors are taken out, and ``status_`` says that nothing was refined.

        Raises:
            LedgerError: for a site that did not contribute.
            UsageError: if no site would be left.
            ConvergenceError: if what is left has not converged.
        """
        other, done = self._without(sites, getattr(self, "run_", None))
        other.records_ = {s: count for s, count in self.records_.items() if s not in sites}
        if done.run is not None:
            other.run_ = done.run
        return other

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> np.ndarray:
        """Ends (n, 2) of the equal-tailed interval of each record's expected target.

        It covers the uncertainty of the coefficients, not the noise of a single record.
        """
        LEVEL.check(level=level)
        made = self._predictions(X, level)
        return np.column_stack([made["low"], made["high"]])

    @property
    def coef_(self) -> np.ndarray:
        """The posterior means of the columns' coefficients, (d,)."""
        return np.asarray(self.posterior_.mean)[int(self.fit_intercept) :]

    @property
    def intercept_(self) -> Any:
        """The posterior mean of the intercept; zero where there is none."""
        return float(self.posterior_.mean[0]) if self.fit_intercept else 0.0

    def __getstate__(self) -> dict[str, Any]:
        """All but ``run_``, which has the sites' records."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "run_"}

    def _targets(self, y: Any) -> np.ndarray:
        return np.asarray(y, np.float64)

    def _design(self, x: np.ndarray, y: Any = None, weights: Any = None) -> Design:
        names, rows = self._recipe.coefficients(), np.arange(len(x))
        if self.fit_intercept:
            x = np.column_stack([np.ones(len(x)), x])
        return Design(x, y, None, None, weights, names, rows, rows, len(x), 0, ())

    def _problem(self, designs: Mapping[str, Design]) -> tuple[Any, dict[str, Any]]:
        """The model, and each site's data as it takes them."""
        data = {site: data_of(self._recipe, design) for site, design in designs.items()}
        return model_of(self._recipe), data

    def _prior(self) -> Any:
        return prior_of(self._recipe.coefficients(), self._recipe, self.prior)

    def _predictions(self, X: ArrayLike, level: float = 0.9) -> dict[str, np.ndarray]:
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        known = {"noise_variance": getattr(self, "noise_variance_", None), "level": level}
        return predict(self.posterior_, self._recipe, self._design(x), **known)

    def _provenance(self) -> dict[str, str]:
        variance = getattr(self, "noise_variance_", None)
        known = {} if variance is None else {"noise_variance": variance}
        sites = {site: {"records": count, **known} for site, count in self.records_.items()}
        return as_provenance(self._recipe, sites)


class FederatedLinearRegression(RegressorMixin, FederatedRegression):
    """Linear regression of all sites, exactly: the posterior of their pooled records.

    Args:
        noise_variance: of a record about its mean. If None it is estimated from what least squares
            leaves at each site, all together, and once more where a site leaves.
        prior_sd: as all other options those of :class:`FederatedRegression`.

    Attributes:
        noise_variance_: the variance that was taken.
        residuals_: what it was estimated from, by site; None where it is known.

    >>> x = np.linspace(-1.0, 1.0, 8)[:, None]
    >>> model = FederatedLinearRegression(noise_variance=1.0)
    >>> model = model.fit(x, x[:, 0], sites=["north", "south"] * 4)
    >>> model.sites_, model.forget("south").sites_
    (('north', 'south'), ('north',))
    """

    _kind = "linear"
    noise_variance_: Any
    residuals_: Any

    def __init__(
        self,
        *,
        noise_variance: float | None = None,
        prior_sd: float | Mapping[str, float] | None = None,
        prior: ExponentialFamily | None = None,
        fit_intercept: bool = True,
        schedule: Schedule | None = None,
        max_iter: int | None = None,
        tol: float = 1e-3,
    ) -> None:
        options: Any = {"prior_sd": prior_sd, "prior": prior, "fit_intercept": fit_intercept}
        super().__init__(**options, schedule=schedule, max_iter=max_iter, tol=tol)
        self.noise_variance = noise_variance

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Expected targets (n,), and with ``return_std`` the deviations (n,) of new records."""
        made = self._predictions(X)
        if not return_std:
            return made["mean"]
        return made["mean"], np.sqrt(made["variance"] + made["noise_variance"])

    def forget(self, *sites: str) -> Self:
        """A new estimator without what these sites contributed, exactly; this one stays as it is.

        Where the noise variance was estimated, that is done anew without those who leave.

        Raises:
            LedgerError: for a site that did not contribute.
            UsageError: if no site would be left.
        """
        if self.residuals_ is None:
            return super().forget(*sites)
        other, _ = self._without(sites)
        other.residuals_ = {s: own for s, own in self.residuals_.items() if s not in sites}
        other.records_ = {site: own.records for site, own in other.residuals_.items()}
        other.noise_variance_ = self._estimated(other.residuals_.values())
        ratio = self.noise_variance_ / other.noise_variance_  # factors are in its inverse
        left = {site: other.ledger_.factor(site) * ratio for site in other.ledger_.sites}
        other.ledger_ = Ledger(other._prior()).extend(left, independent=True)
        return other

    def _problem(self, designs: Mapping[str, Design]) -> tuple[Any, dict[str, Any]]:
        _, data = super()._problem(designs)
        self.noise_variance_, self.residuals_ = self.noise_variance, None
        if self.noise_variance is None:
            self.residuals_ = {s: residuals_of(self._recipe, own) for s, own in designs.items()}
            self.noise_variance_ = self._estimated(self.residuals_.values())
        return model_of(self._recipe, self.noise_variance_), data

    def _prior(self) -> Any:
        if self.prior is None and self.prior_sd is None:
            wide = WIDE * self.noise_variance_**0.5
            self._recipe = self._recipe.replaced(prior_sd={"": wide})
        return super()._prior()

    def _estimated(self, sites: Iterable[Residuals]) -> float:
        """The noise variance; of records that leave nothing to estimate it, more than it can be."""
        known = Residuals.together(sites)
        try:
            return known.variance
        except ParameterError as error:
            lines = f"Found {error.found}: the square of the largest target is taken for the noise "
            warnings.warn(f"{lines}variance. Pass noise_variance=.", FitWarning, stacklevel=4)
            return known.top**2 or 1.0


class FederatedLogisticRegression(ClassifierMixin, FederatedRegression):
    """Logistic regression of two classes, over the sites' records where they are.

    The log odds of the second of ``classes_`` are linear. Of more classes fit one each against the
    rest: ``OneVsRestClassifier(FederatedLogisticRegression())``. Options and attributes are those
    of :class:`FederatedRegression`.

    Attributes:
        classes_: the two labels.
        coef_: of shape (1, d), and ``intercept_`` of shape (1,), as ``LogisticRegression``'s are.

    >>> x = np.array([[-2.0], [-1.0], [0.0], [0.5], [1.0], [2.0]])
    >>> model = FederatedLogisticRegression().fit(x, ["no", "no", "yes", "no", "yes", "yes"])
    >>> model.predict([[-3.0], [3.0]])
    array(['no', 'yes'], dtype='<U3')
    """

    _kind = "logistic"

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Chances (n, 2) of the classes, averaged over the posterior of the coefficients."""
        p = self._predictions(X)["p"]
        return np.column_stack([1 - p, p])

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The likelier class of each record, (n,)."""
        likely = self.predict_proba(X)[:, 1] > 0.5
        return self.classes_[likely.astype(int)]

    @property
    def coef_(self) -> np.ndarray:
        """The posterior means of the columns' coefficients, (1, d)."""
        return super().coef_[None]

    @property
    def intercept_(self) -> np.ndarray:
        """The posterior mean of the intercept, (1,); zero where there is none."""
        return np.atleast_1d(super().intercept_)

    def _targets(self, y: Any) -> np.ndarray:
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            kind = type_of_target(y)
            raise ValueError(f"Only binary classification is supported. The target is {kind}.")
        if len(self.classes_) < 2:
            (one,) = self.classes_.tolist()
            raise ValueError(f"Found one class only, {one!r}: two are needed.")
        return (y == self.classes_[1]).astype(np.float64)

    def __sklearn_tags__(self) -> Any:
        """Two classes only."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class FederatedPoissonRegression(RegressorMixin, FederatedRegression):
    """Regression of counts, whose log rate is linear, over the sites' records where they are.

    As of scikit-learn's ``PoissonRegressor``, ``y`` may be rates whose ``sample_weight`` is the
    exposure. Values that are not whole are taken by their quasi-likelihood (mccullagh1989). Options
    and attributes are those of :class:`FederatedRegression`.

    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedPoissonRegression().fit(x, [1, 2, 4, 8], sites=["a", "b", "a", "b"])
    >>> bool(abs(model.coef_[0] - np.log(2)) < 0.1)
    True
    """

    _kind = "poisson"

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Expected counts (n,) of one unit of exposure."""
        return self._predictions(X)["mean"]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The share of the Poisson deviance that is explained, as of ``PoissonRegressor``."""
        made = self.predict(X)
        return float(d2_tweedie_score(y, made, sample_weight=sample_weight, power=1))

    def _problem(self, designs: Mapping[str, Design]) -> tuple[Any, dict[str, Any]]:
        data = {}
        for site, own in designs.items():
            values, exposure = np.asarray(own.y), np.asarray(own.weights)
            data[site] = own.x, np.column_stack([values * exposure, exposure])
        return _Rates(exposure=True), data

    def __sklearn_tags__(self) -> Any:
        """Targets that are not negative."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
