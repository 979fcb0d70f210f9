"""Estimators of scikit-learn over the verbs: regressions that federate, mixtures that fuse.

``fit`` takes the site of each record as ``sites=``, which scikit-learn's metadata routing passes on
through pipelines and searches (``set_fit_request(sites=True)``); without it all records are of one
site. In one process nothing is kept apart: what these estimators give is what sites would get that
exchange posteriors, with the ledger from which one of them can leave. This module is imported only
where it is asked for, with scikit-learn. Tested with scikit-learn 1.7 and 1.9.
"""

import copy
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, DensityMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import check_random_state, validation
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

import posterity
from posterity.adapters.shared import at_site, columns_of
from posterity.adapters.sklearn import to_estimator
from posterity.arguments import COUNT, POSITIVE
from posterity.artifact.recipe import Recipe, check_recipe
from posterity.artifact.reconcile import prior_digest
from posterity.artifact.sites import as_provenance
from posterity.errors import FitWarning, ParameterError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation import Schedule
from posterity.fitting.design import Design
from posterity.fitting.fit import prior_of
from posterity.fitting.mixtures import fit_mixture
from posterity.fitting.predict import predict
from posterity.fitting.regressions import Residuals, data_of, model_of, residuals_of
from posterity.fusion.result import LEFT
from posterity.ledger import Ledger
from posterity.models import PoissonRegression
from posterity.models.data import INPUTS, Column, check_data
from posterity.status import Status
from posterity.summary import LEVEL

__all__ = [
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "FederatedPoissonRegression",
    "FederatedRegression",
    "FusedGaussianMixture",
]
validate_data: Any = validation.validate_data  # whose annotations are too narrow
SITE = "site"
"""The name of the only site, where ``fit`` is given no ``sites``."""
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


class _OfSites(BaseEstimator):
    """The base of estimators whose posterior is a ledger of sites."""

    ledger_: Ledger
    status_: Status
    n_features_in_: int

    @property
    def posterior_(self) -> Any:
        """The posterior of all sites that have not left."""
        check_is_fitted(self)
        return self.ledger_.posterior

    @property
    def sites_(self) -> tuple[str, ...]:
        """The names of the sites that contribute to the posterior, sorted."""
        check_is_fitted(self)
        return self.ledger_.sites

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ledger to a file, which :func:`posterity.load` and every command read.

        Raises:
            ArtifactError: if it cannot be written.
        """
        check_is_fitted(self)
        posterity.save(self.ledger_, path, provenance=self._provenance())

    def _validated(self, *data: Any, sites: Any, **options: Any) -> Any:
        """Data as scikit-learn checks them; a ValueError names the first site with a bad number."""
        try:
            return validate_data(self, *data, dtype=np.float64, **options)
        except ValueError as error:
            if sites is None:
                raise
            try:
                x = np.asarray(data[0], np.float64)
                bad = [
                    s for s, own in _rows(sites, len(x)).items() if not np.isfinite(x[own]).all()
                ]
            except (TypeError, ValueError):
                raise error from None
            if not bad:
                raise
            raise ValueError(f"Records of site {bad[0]!r}: {error}") from error

    def _provenance(self) -> dict[str, str]:
        return {}

    def _without(self, sites: tuple[str, ...], run: Any = None) -> tuple[Self, Any]:
        """A copy of this estimator without these sites, and the result of :func:`forget`."""
        check_is_fitted(self)
        if set(self.sites_) <= set(sites):
            raise UsageError(
                found=f"{sorted(sites)}, which are all sites",
                expected="one that stays",
                fix="Drop the estimator instead.",
            )
        done = posterity.forget(self.ledger_ if run is None else run, *sites)
        other = copy.copy(self)
        other.ledger_, other.status_ = done.ledger, done.status
        return other, done


class FederatedRegression(_OfSites):
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
        apart, used = _rows(sites, len(x)), weights > 0
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


class FusedGaussianMixture(DensityMixin, _OfSites):
    """A Gaussian mixture that each site fits by itself, fused: components are matched and counted.

    Args:
        n_components: of each site's own mixture at most; what holds no data is left out.
        fused_components: of the fused mixture; found if None.
        prior_sd: the standard deviation of components' means about zero, in the columns' units.
        component_sd: about how wide a component is in every column; see
            :func:`posterity.fitting.mixtures.fit_mixture`. Scale columns that differ in size.
        random_state: of the starts of each site's search.

    Attributes:
        ledger_: the prior, and a factor of each site, its components matched to the fused ones.
        posterior_: the :class:`~posterity.families.Plate` of components.
        mixture_: the posterior as a fitted ``BayesianGaussianMixture``, with ``weights_``,
            ``means_`` and ``covariances_``.
        matching_: by site the fused component of each of its own; -1 where that held no data.
        status_: of the matching, as ``Fusion.status``; of one site nothing is matched.
        sites_: the names of the sites.
        n_features_in_: the number of columns; ``feature_names_in_`` are their names, if any.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal([[0.0], [8.0], [8.0], [16.0]] * 50)
    >>> model = FusedGaussianMixture(3, random_state=0).fit(x, sites=["a", "a", "b", "b"] * 50)
    >>> len(np.unique(model.predict(x)))
    3
    """

    def __init__(
        self,
        n_components: int = 5,
        *,
        fused_components: int | None = None,
        prior_sd: float = 10.0,
        component_sd: float = 1.0,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.fused_components = fused_components
        self.prior_sd = prior_sd
        self.component_sd = component_sd
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: Any = None, sites: ArrayLike | None = None) -> Self:
        """Fit a mixture to each site's records, and fuse them.

        Args:
            X: records (n, d).
            y: not looked at.
            sites: for each record (n,) the name of its site; all are of one by default.

        Warns and raises as :func:`posterity.fuse`, with a ValueError for data that scikit-learn
        refuses, a StructureError for a site of one record, and a UsageError for options that are
        not positive. A site of fewer records than ``n_components`` leaves the rest unused.
        """
        COUNT.check(n_components=self.n_components)
        COUNT.or_none().check(fused_components=self.fused_components)
        POSITIVE.check(prior_sd=self.prior_sd, component_sd=self.component_sd)
        x = self._validated(X, sites=sites, ensure_min_samples=2)
        seed = int(check_random_state(self.random_state).randint(2**31))
        names, ledgers = tuple(columns_of(self, x.shape[1])), {}
        widths = {"prior_sd": self.prior_sd, "component_sd": self.component_sd, "seed": seed}
        for site, rows in _rows(sites, len(x)).items():
            with at_site(site if sites is not None else None):
                own = fit_mixture(x[rows], names, self.n_components, **widths)
            for note in own.notes:
                warnings.warn(f"Site {site!r}: {note}.", FitWarning, stacklevel=2)
            ledgers[site] = Ledger.of_site(site, prior=own.prior, posterior=own.posterior)
        if len(ledgers) == 1:
            ((site, ledger),) = ledgers.items()
            self.status_ = Status.of(0.0, LEFT)
            self.matching_ = {site: np.arange(ledger.posterior.size)}
        else:
            fused = posterity.fuse(ledgers, components=self.fused_components, rule="product")
            self.status_, self.matching_ = fused.status, dict(fused.matching)
            ledger = fused.ledger
        return self._holding(ledger)

    def forget(self, *sites: str) -> Self:
        """A new estimator without what these sites contributed, to the last bit; matches stay.

        Raises:
            LedgerError: for a site that did not contribute.
            UsageError: if no site would be left.
        """
        other, _ = self._without(sites)
        other.status_ = self.status_
        other.matching_ = {s: own for s, own in self.matching_.items() if s not in sites}
        return other._holding(other.ledger_)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The likeliest component of each record, (n,)."""
        return self._asked("predict", X)

    def fit_predict(self, X: ArrayLike, y: Any = None, sites: ArrayLike | None = None) -> Any:
        """Fit, and the likeliest component of each record, (n,)."""
        return self.fit(X, sites=sites).predict(X)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Chances (n, k) of each component."""
        return self._asked("predict_proba", X)

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """The log density of each record, (n,), in nats."""
        return self._asked("score_samples", X)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """The mean of the records' log densities, in nats."""
        return float(self.score_samples(X).mean())

    def _asked(self, method: str, X: ArrayLike) -> np.ndarray:
        """Predictions of the fused mixture, after checks of the records."""
        check_is_fitted(self)
        return getattr(self.mixture_, method)(validate_data(self, X, dtype=np.float64, reset=False))

    def _holding(self, ledger: Ledger | None) -> Self:
        assert ledger is not None, "a product has one"
        self.ledger_, self.mixture_ = ledger, to_estimator(ledger)
        vars(self.mixture_).pop("feature_names_in_", None)  # it is asked with arrays
        return self


def _rows(sites: ArrayLike | None, count: int) -> dict[str, np.ndarray]:
    """The numbers of each site's records, by sorted names of the sites.

    Raises:
        ValueError: if there is not one name, or whole number, for each of ``count`` records.
    """
    if sites is None:
        return {SITE: np.arange(count)}
    names = np.asarray(sites)
    if names.shape != (count,):
        raise ValueError(f"sites have shape {names.shape}: one is needed for each of {count}.")
    if names.dtype.kind not in "iuU" and not all(isinstance(name, str) for name in names):
        raise ValueError("sites are to be texts or whole numbers, none of them missing.")
    texts = np.array([str(name) for name in names])
    order = np.argsort(texts, kind="stable")
    each, starts = np.unique(texts[order], return_index=True)
    return dict(zip(map(str, each), np.split(order, starts[1:]), strict=True))
