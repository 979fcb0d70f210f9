"""Gaussian mixtures that are fitted to each site's records and fused."""

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

import posterity
from posterity.adapters.shared import at_site, columns_of
from posterity.adapters.sklearn import to_estimator, to_ledger
from posterity.arguments import COUNT, POSITIVE
from posterity.errors import ConvergenceError, StructureError
from posterity.fusion.result import LEFT
from posterity.ledger import Ledger
from posterity.status import Status
from posterity.tabular.estimators.sites import OfSites, rows_of, validate_data


class FusedGaussianMixture(DensityMixin, OfSites):
    """A Gaussian mixture that is fitted at each site alone and fused by matching components.

    Args:
        n_components: largest number of components at each site; those without data are left out.
        fused_components: number of components of the fused mixture; inferred if None.
        prior_sd: standard deviation of the components' means about zero, in the columns' units.
        component_sd: typical standard deviation within a component, the same in every column: scale
            columns that differ in size.
        max_iter: largest number of steps of each site's search.
        n_init: number of its random starts, of which the best is kept.
        tol: its convergence tolerance of the bound, in nats per record.
        random_state: seed of the random starts of each site's search.

    Attributes:
        ledger_: the prior and the factor of each site, its components matched to the fused ones.
        posterior_: the :class:`~posterity.families.Plate` of components.
        mixture_: the posterior as a fitted ``BayesianGaussianMixture``, with ``weights_``,
            ``means_`` and ``covariances_``.
        matching_: for each site, the fused component of each local one; -1 if it is left out.
        status_: status of the matching, as ``Fusion.status``; a single site needs no matching.
        sites_: the names of the sites.
        n_features_in_: number of columns; ``feature_names_in_`` are their names, if any.

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
        max_iter: int = 2000,
        n_init: int = 5,
        tol: float = 1e-7,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.fused_components = fused_components
        self.prior_sd = prior_sd
        self.component_sd = component_sd
        self.max_iter = max_iter
        self.n_init = n_init
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: Any = None, sites: ArrayLike | None = None) -> Self:
        """Fit a mixture to each site's records, and fuse the mixtures.

        Args:
            X: records (n, d).
            y: ignored.
            sites: name of each record's site (n,); by default all records belong to one site.

        Warnings and errors are those of :func:`posterity.fuse`, with a ValueError for data that
        scikit-learn refuses, a StructureError for a site with one record, and a UsageError for
        options that are not positive. A site with fewer records than ``n_components`` uses fewer
        components.
        """
        COUNT.check(n_components=self.n_components, max_iter=self.max_iter, n_init=self.n_init)
        COUNT.or_none().check(fused_components=self.fused_components)
        POSITIVE.check(prior_sd=self.prior_sd, component_sd=self.component_sd, tol=self.tol)
        x = self._validated(X, sites=sites, ensure_min_samples=2)
        seed = int(check_random_state(self.random_state).randint(2**31))
        names = columns_of(self, x.shape[1])
        ledgers = {}
        for site, rows in rows_of(sites, len(x)).items():
            with at_site(site if sites is not None else None):
                ledgers[site] = to_ledger(self._fitted(x[rows], seed), site, names=names)
        if len(ledgers) == 1:
            ((site, ledger),) = ledgers.items()
            self.status_ = Status.of(0.0, LEFT)
            self.matching_ = {site: np.arange(ledger.posterior.size)}
        else:
            fused = posterity.fuse(ledgers, components=self.fused_components, rule="product")
            self.status_, self.matching_ = fused.status, dict(fused.matching)
            ledger = fused.ledger
        return self._holding(ledger)

    def _fitted(self, x: np.ndarray, seed: int) -> BayesianGaussianMixture:
        """Fit one site's records, with a prior that does not depend on them: means ``N(0,
        (prior_sd / component_sd)² Σ)``, covariances ``Σ`` of mean ``component_sd²`` (bishop2006,
        section 10.2).
        """
        count, size = x.shape
        if count < 2:
            raise StructureError(found=f"{count} record for a mixture", expected="at least two")
        number = min(self.n_components, count)
        model = BayesianGaussianMixture(
            n_components=number,
            weight_concentration_prior_type="dirichlet_distribution",
            weight_concentration_prior=self.n_components / number,  # one total at all sites
            mean_prior=np.zeros(size),
            mean_precision_prior=(self.component_sd / self.prior_sd) ** 2,
            degrees_of_freedom_prior=size + 2.0,
            covariance_prior=self.component_sd**2 * np.eye(size),
            reg_covar=0.0,  # the prior alone keeps covariances regular
            tol=self.tol,
            max_iter=self.max_iter,
            n_init=self.n_init,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct records; see below
            model.fit(x)
        if not model.converged_:
            raise ConvergenceError(
                found=f"a mixture that has not converged after {self.max_iter} steps",
                expected=f"a bound that rises by less than {self.tol:g} nats a record",
                fix="Use fewer components, scale columns to be near component_sd, or more steps.",
            )
        return model

    def forget(self, *sites: str) -> Self:
        """Return a new estimator without these sites' factors, exactly; matches do not change.

        Raises:
            LedgerError: for a site that did not contribute.
            UsageError: if no site would be left.
        """
        other, _ = self._without(sites)
        other.status_ = self.status_
        other.matching_ = {s: own for s, own in self.matching_.items() if s not in sites}
        return other._holding(other.ledger_)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most probable component of each record, (n,)."""
        return self._asked("predict", X)

    def fit_predict(self, X: ArrayLike, y: Any = None, sites: ArrayLike | None = None) -> Any:
        """Fit the mixture, and return the most probable component of each record, (n,)."""
        return self.fit(X, sites=sites).predict(X)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probability of each component for each record, (n, k)."""
        return self._asked("predict_proba", X)

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Return the log density of each record, (n,), in nats."""
        return self._asked("score_samples", X)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean log density of the records, in nats; higher is better."""
        return float(self.score_samples(X).mean())

    def _asked(self, method: str, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        return getattr(self.mixture_, method)(validate_data(self, X, dtype=np.float64, reset=False))

    def _holding(self, ledger: Ledger | None) -> Self:
        assert ledger is not None, "a product has one"
        self.ledger_, self.mixture_ = ledger, to_estimator(ledger)
        vars(self.mixture_).pop("feature_names_in_", None)  # it is called with arrays
        return self
