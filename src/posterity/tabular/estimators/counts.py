"""Regression of counts, federated over the sites of their records."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from posterity.models import PoissonRegression
from posterity.models.data import INPUTS, Column, check_data
from posterity.tabular.estimators.regressions import FederatedRegression
from posterity.tabular.rows import Design

RATES = Column(
    "y of shape (n, 2), of counts and exposures",
    (2,),
    "values that are not negative, and exposures that are positive",
    lambda y: np.stack([y[:, 0] >= 0, y[:, 1] > 0], 1),
)


class _Rates(PoissonRegression):
    """Poisson regression by quasi-likelihood, which also accepts fractional targets."""

    def check(self, data: Any) -> None:
        check_data(data, (INPUTS, RATES))


class FederatedPoissonRegression(RegressorMixin, FederatedRegression):
    """Regression of counts with a linear log rate, federated over sites.

    As in scikit-learn's ``PoissonRegressor``, ``y`` may be rates whose ``sample_weight`` is the
    exposure. Values that are not whole numbers use the quasi-likelihood (mccullagh1989). Options
    and attributes are those of :class:`FederatedRegression`.

    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedPoissonRegression().fit(x, [1, 2, 4, 8], sites=["a", "b", "a", "b"])
    >>> bool(abs(model.coef_[0] - np.log(2)) < 0.1)
    True
    """

    _kind = "poisson"

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return expected counts (n,) for one unit of exposure."""
        return self._predictions(X)["mean"]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the fraction of Poisson deviance explained, as ``PoissonRegressor`` does."""
        made = self.predict(X)
        return float(d2_tweedie_score(y, made, sample_weight=sample_weight, power=1))

    def _problem(self, designs: Mapping[str, Design]) -> tuple[Any, dict[str, Any]]:
        data = {}
        for site, own in designs.items():
            values = np.asarray(own.y)
            exposure = np.asarray(own.weights)
            data[site] = own.x, np.column_stack([values * exposure, exposure])
        return _Rates(exposure=True), data

    def __sklearn_tags__(self) -> Any:
        """Return tags that require targets that are not negative."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
