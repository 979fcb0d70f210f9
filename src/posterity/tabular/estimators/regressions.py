"""Regressions that are federated over the sites of their records."""

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

import posterity
from posterity.adapters.shared import columns_of
from posterity.arguments import COUNT, POSITIVE
from posterity.entries import dependent
from posterity.errors import FitWarning, ParameterError
from posterity.families import ExponentialFamily
from posterity.federation import Schedule
from posterity.ledger import Ledger
from posterity.models.tables import check_labels
from posterity.tabular.estimators.sites import OfSites, rows_of, validate_data
from posterity.tabular.fitting import prior_of
from posterity.tabular.predict import predict
from posterity.tabular.recipe import Recipe, check_recipe
from posterity.tabular.reconcile import prior_digest
from posterity.tabular.regressions import Triangle, data_of, model_of, residuals_of, triangle_of
from posterity.tabular.rows import Design
from posterity.tabular.sites import as_provenance


class FederatedRegression(OfSites):
    """Base class of regressions that are federated over sites; not itself an estimator.

    Args:
        prior_sd: standard deviation of the coefficients' prior about zero, in the columns' units:
            one number, or a mapping from names of columns, ``"intercept"``, or ``""`` for all
            others. The default is 10, and 1,000 for the intercept; for a linear model it is 1,000
            times the noise's standard deviation.
        prior: named :class:`~posterity.families.Gaussian` in place of ``prior_sd``.
        fit_intercept: whether to fit an intercept.
        schedule: schedule of the sites' updates, as in :func:`posterity.federate`.
        max_iter: maximum number of steps of the schedule; by default it runs until it converges.
        tol: tolerance of convergence, in nats that the posterior may still change by.

    Attributes:
        ledger_: the prior, and the factor of each site.
        posterior_: the :class:`~posterity.families.Gaussian` over ``intercept`` and the columns.
        coef_: posterior mean of the columns' coefficients; ``intercept_`` is the intercept's.
        status_: whether the fit has converged, and how many nats remain.
        sites_: the names of the sites.
        records_: number of records of each site.
        run_: the federation, including the sites' records; it is not pickled.
        n_iter_: number of steps made.
        n_features_in_: number of columns; ``feature_names_in_`` are their names, if any.
    """

    _kind: ClassVar[str]
    """Name of the model in a recipe."""
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
        """Compute the posterior given all sites' records, by local updates at the sites.

        Args:
            X: inputs (n, d).
            y: targets (n,).
            sample_weight: number of equal records that each one stands for, (n,); by default 1.
            sites: name of each record's site (n,); by default all records belong to one site.

        Warns if the fit has not converged. Raises a ValueError for data that scikit-learn refuses,
        a StructureError for rows with other labels, a UsageError for invalid options, and otherwise
        the errors of :func:`posterity.federate`.
        """
        COUNT.or_none().check(max_iter=self.max_iter)
        name = getattr(y, "name", None)
        checked = dict(y_numeric=self._kind != "logistic", ensure_min_samples=2)
        check_labels(X, y, sample_weight, sites)
        x, y = validate_data(self, X, y, dtype=np.float64, **checked)
        y = self._targets(y)
        weights = np.ones(len(x))
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, x)
            if not (weights >= 0).all() or not weights.any():
                raise ValueError("sample_weight is to be positive or zero, not zero throughout.")
        apart = rows_of(sites, len(x))
        used = weights > 0
        columns = columns_of(self, self.n_features_in_)
        spread = self.prior_sd
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
        self.ledger_ = self.run_.ledger
        self.status_ = self.run_.status
        if len(getattr(self, "triangles_", None) or ()) > 1:  # every factor hangs on their noise
            self.ledger_ = self.ledger_.holding(dependent(self.ledger_.entries))
        self.n_iter_ = self.run_.state.step
        return self

    def forget(self, *sites: str) -> Self:
        """Return a new estimator without these sites' contributions; this one does not change.

        If the remaining factors were fitted together with those removed, they are refined on their
        sites' records, which ``run_`` holds until the estimator is pickled. After unpickling, the
        factors are removed without refinement, and ``status_`` reports that.

        Raises:
            LedgerError: for a site that did not contribute.
            UsageError: if no site would be left.
            ConvergenceError: if the refinement does not converge.
        """
        other, done = self._without(sites, getattr(self, "run_", None))
        other.records_ = {s: count for s, count in self.records_.items() if s not in sites}
        if done.run is not None:
            other.run_ = done.run
        return other

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> np.ndarray:
        """Return the ends (n, 2) of an equal-tailed interval of each record's expected target.

        It covers the uncertainty of the coefficients, not the noise of a single record.
        """
        made = self._predictions(X, level)
        return np.column_stack([made["low"], made["high"]])

    @property
    def coef_(self) -> np.ndarray:
        """Posterior means of the columns' coefficients, (d,)."""
        return self.posterior_.mean[int(self.fit_intercept) :]

    @property
    def intercept_(self) -> Any:
        """Posterior mean of the intercept; zero without one."""
        return float(self.posterior_.mean[0]) if self.fit_intercept else 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without ``run_``, which holds the sites' records."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "run_"}

    def _targets(self, y: Any) -> np.ndarray:
        return np.asarray(y, np.float64)

    def _design(self, x: np.ndarray, y: Any = None, weights: Any = None) -> Design:
        names = self._recipe.coefficients()
        rows = np.arange(len(x))
        if self.fit_intercept:
            x = np.column_stack([np.ones(len(x)), x])
        return Design(x, y, None, None, weights, names, rows, rows, len(x), 0, ())

    def _problem(self, designs: Mapping[str, Design]) -> tuple[Any, dict[str, Any]]:
        """Return the model, and each site's data in the form that it takes."""
        data = {site: data_of(self._recipe, design) for site, design in designs.items()}
        return model_of(self._recipe), data

    def _prior(self) -> Any:
        return prior_of(self._recipe.coefficients(), self._recipe, self.prior)

    def _predictions(self, X: ArrayLike, level: float = 0.9) -> dict[str, np.ndarray]:
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        known = {"noise_variance": getattr(self, "noise_variance_", None), "level": level}
        return predict(self.posterior_, self._recipe, self._design(x), **known)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ledger to a file that :func:`posterity.load` and all commands can read.

        Raises:
            ArtifactError: if the file cannot be written.
        """
        check_is_fitted(self)
        variance = getattr(self, "noise_variance_", None)
        known = {} if variance is None else {"noise_variance": variance}
        sites = {site: {"records": count, **known} for site, count in self.records_.items()}
        about = as_provenance(self._recipe, sites)
        posterity.save(self.ledger_, path, provenance=about)


class FederatedLinearRegression(RegressorMixin, FederatedRegression):
    """Exact linear regression: the posterior given the pooled records of all sites.

    Args:
        noise_variance: variance of a target about its mean. If None it is estimated from the
            residuals of least squares on all records, and re-estimated when a site leaves.
        prior_sd: this and all other options are those of :class:`FederatedRegression`.

    Attributes:
        noise_variance_: the noise variance that was used.
        triangles_: by site, the triangular factor of its records, from which it was estimated; None
            if it was given.

    >>> x = np.linspace(-1.0, 1.0, 8)[:, None]
    >>> model = FederatedLinearRegression(noise_variance=1.0)
    >>> model = model.fit(x, x[:, 0], sites=["north", "south"] * 4)
    >>> model.sites_, model.forget("south").sites_
    (('north', 'south'), ('north',))
    """

    _kind = "linear"
    wide: ClassVar[float] = 1e3
    """Default prior standard deviation of the coefficients, per noise deviation."""
    noise_variance_: Any
    triangles_: Any

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
        """Return expected targets (n,); with ``return_std`` also deviations (n,) of new targets."""
        made = self._predictions(X)
        if not return_std:
            return made["mean"]
        return made["mean"], np.sqrt(made["variance"] + made["noise_variance"])

    def forget(self, *sites: str) -> Self:
        """Return a new estimator without these sites' factors, exactly; this one is unchanged.

        An estimated noise variance is estimated again from the remaining sites.

        Raises:
            LedgerError: for a site that did not contribute.
            UsageError: if no site would be left.
        """
        if self.triangles_ is None:
            return super().forget(*sites)
        other, _ = self._without(sites)
        other.triangles_ = {s: own for s, own in self.triangles_.items() if s not in sites}
        other.records_ = {site: own.records for site, own in other.triangles_.items()}
        other.noise_variance_ = self._estimated(other.triangles_.values())
        ratio = self.noise_variance_ / other.noise_variance_  # factors scale with its inverse
        left = {site: other.ledger_.factor(site) * ratio for site in other.ledger_.sites}
        other.ledger_ = Ledger(other._prior()).extend(left, independent=len(left) == 1)
        other.status_ = self.status_
        return other

    def _problem(self, designs: Mapping[str, Design]) -> tuple[Any, dict[str, Any]]:
        _, data = super()._problem(designs)
        self.noise_variance_ = self.noise_variance
        self.triangles_ = None
        if self.noise_variance is None:
            self.triangles_ = {s: triangle_of(self._recipe, own) for s, own in designs.items()}
            self.noise_variance_ = self._estimated(self.triangles_.values())
        return model_of(self._recipe, self.noise_variance_), data

    def _prior(self) -> Any:
        if self.prior is None and self.prior_sd is None:
            wide = self.wide * self.noise_variance_**0.5
            self._recipe = self._recipe.replaced(prior_sd={"": wide})
        return super()._prior()

    def _estimated(self, sites: Iterable[Triangle]) -> float:
        """Return the noise variance; its upper bound, with a warning, if no residual is left."""
        known = residuals_of(sites)
        try:
            return known.variance
        except ParameterError as error:
            lines = f"Found {error.found}: the square of the largest target is taken for the noise "
            warnings.warn(f"{lines}variance. Pass noise_variance=.", FitWarning, stacklevel=4)
            return known.top**2 or 1.0


class FederatedLogisticRegression(ClassifierMixin, FederatedRegression):
    """Logistic regression of two classes, federated over sites.

    The log odds of the second of ``classes_`` are linear in the columns. For more classes fit one
    model per class: ``OneVsRestClassifier(FederatedLogisticRegression())``. Options and attributes
    are those of :class:`FederatedRegression`.

    Attributes:
        classes_: the two labels.
        coef_: of shape (1, d), and ``intercept_`` of shape (1,), as in ``LogisticRegression``.

    >>> x = np.array([[-2.0], [-1.0], [0.0], [0.5], [1.0], [2.0]])
    >>> model = FederatedLogisticRegression().fit(x, ["no", "no", "yes", "no", "yes", "yes"])
    >>> model.predict([[-3.0], [3.0]])
    array(['no', 'yes'], dtype='<U3')
    """

    _kind = "logistic"

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return class probabilities (n, 2), averaged over the posterior of the coefficients."""
        p = self._predictions(X)["p"]
        return np.column_stack([1 - p, p])

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the more probable class of each record, (n,)."""
        likely = self.predict_proba(X)[:, 1] > 0.5
        return self.classes_[likely.astype(int)]

    @property
    def coef_(self) -> np.ndarray:
        """Posterior means of the columns' coefficients, (1, d)."""
        return super().coef_[None]

    @property
    def intercept_(self) -> np.ndarray:
        """Posterior mean of the intercept, (1,); zero without one."""
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
        """Return tags that allow two classes only."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
