"""The base class of estimators whose posterior is a ledger of sites."""

import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import validation
from sklearn.utils.validation import check_is_fitted

import posterity
from posterity.errors import UsageError
from posterity.ledger import Ledger
from posterity.models.tables import array, odd_kinds
from posterity.status import Status

SITE = "site"
"""Name of the only site, if ``fit`` receives no ``sites``."""


class OfSites(BaseEstimator):
    """Base class of estimators whose posterior is a ledger of sites."""

    ledger_: Ledger
    status_: Status
    n_features_in_: int

    @property
    def posterior_(self) -> Any:
        """The posterior given all sites in the ledger."""
        check_is_fitted(self)
        return self.ledger_.posterior

    @property
    def sites_(self) -> tuple[str, ...]:
        """The sorted names of the sites that contribute to the posterior."""
        check_is_fitted(self)
        return self.ledger_.sites

    def _without(self, sites: tuple[str, ...], run: Any = None) -> tuple[Self, Any]:
        """Return a copy without these sites, and the result of :func:`posterity.forget`."""
        check_is_fitted(self)
        if set(self.sites_) <= set(sites):
            raise UsageError(
                found=f"{sorted(sites)}, which are all sites", expected="one that stays"
            )
        done = posterity.forget(self.ledger_ if run is None else run, *sites)
        other = copy.copy(self)
        other.ledger_ = done.ledger
        other.status_ = done.status
        return other, done


def validate_data(estimator: BaseEstimator, *data: Any, **options: Any) -> Any:
    """Return data that scikit-learn validates. It drops masks, and reads dates as whole numbers:
    masked values are a ParameterError, and dates a StructureError.
    """
    for table in data:
        names = getattr(table, "columns", None)
        for column in [table] if names is None else [table[name] for name in names]:
            dates = {"M", "m"} & {*odd_kinds(column, np.asarray(column))}
            if dates or isinstance(column, np.ma.MaskedArray):
                array(column)
    validate: Any = validation.validate_data  # its annotations are too narrow
    return validate(estimator, *data, **options)


def rows_of(sites: ArrayLike | None, count: int) -> dict[str, np.ndarray]:
    """Return the row numbers of each site's records, by sorted site names.

    Raise a ValueError unless ``sites`` are ``count`` texts or whole numbers.
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
