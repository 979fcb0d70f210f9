"""statsmodels: fitted results as Gaussians over their coefficients, by name.

A maximum likelihood estimate with its covariance describes the likelihood alone. It is the
posterior under a flat prior, and so the factor of a site. Coefficients keep the names that
statsmodels gives them (``const`` by ``add_constant``, ``Intercept`` by a formula). Those of a
multinomial logit are ``class:column``, relative to the first class, which has none.

This module does not import statsmodels. Tested with 0.15.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.adapters.laplace import check_separation, of_covariance
from posterity.adapters.shared import Laws, at, at_site, unsupported
from posterity.errors import ConvergenceWarning, ParameterError, UsageError
from posterity.families import Gamma, Gaussian, Product
from posterity.families.names import some
from posterity.ledger import Ledger

COEFFICIENTS, NOISE = "coefficients", "noise"
"""Blocks of a law that includes the noise."""
CLASSES = ("Logit", "Probit", "MNLogit", "Binomial")
RATES = ("Poisson", "NegativeBinomial", "NegativeBinomialP", "GeneralizedPoisson")


def from_results(
    results: Any, *, noise: bool = False, names: Mapping[str, str] | None = None
) -> Any:
    """Return the estimate and its covariance as a Gaussian, named after the coefficients.

    Args:
        results: result of ``fit`` of OLS, WLS, GLS, a GLM, Logit, Probit, MNLogit, a count model,
            GEE, or any other model that has ``params`` and ``cov_params``; of a mixed model the
            fixed effects are used. The covariance is the reported one, such as a robust one.
        noise: whether to include the noise precision of a linear regression. The result is then a
            :class:`Product` of independent ``coefficients`` and ``noise``, a :class:`Gamma` of
            shape ``(n-d)/2`` and rate ``RSS/2``: the marginals under the prior ``1/σ²``.
        names: other names for some coefficients, such as ``{"const": "intercept"}``.

    Raises:
        UsageError: for a model that is not fitted, a penalised fit, and objects of other types.
        ParameterError: for NaN, a singular covariance (the columns are named), separated classes,
            and residuals that are only rounding error. An optimiser that did not converge gives a
            ``ConvergenceWarning``.

    >>> import statsmodels.api as sm
    >>> x = sm.add_constant(np.array([[1.0], [2.0], [3.0], [4.0]]))
    >>> q = from_results(sm.OLS([1.1, 1.9, 3.2, 3.8], x).fit())
    >>> q.names, q.mean.round(2)
    (('const', 'x1'), array([0.15, 0.94]))
    """
    gaussian = _coefficients(results, names)
    if not noise:
        return gaussian
    shape, rate = _noise(results)
    return Product({COEFFICIENTS: gaussian, NOISE: Gamma.from_standard(shape, rate)})


def to_ledger(
    results: Any, site: str, *, prior: Any, names: Mapping[str, str] | None = None
) -> Ledger:
    """Convert fitted results, as in :func:`from_results`, to the ledger of one site.

    The site's factor is the Gaussian approximation of the likelihood, which is exact for linear
    regression with its noise taken as known. ``prior`` is a :class:`Gaussian` over the
    coefficients, the same at all sites, in its own order of names, if it has any. To include the
    noise, pass a :class:`Product` of a Gaussian ``coefficients`` and a :class:`Gamma` ``noise``.
    Another family, size or other names are a StructureError.

    >>> import statsmodels.api as sm
    >>> x = sm.add_constant(np.array([[1.0], [2.0], [3.0], [4.0]]))
    >>> results = sm.OLS([1.1, 1.9, 3.2, 3.8], x).fit()
    >>> prior = Gaussian.from_standard([0.0, 0.0], [[100.0, 0.0], [0.0, 100.0]])
    >>> to_ledger(results, "north", prior=prior).posterior.names
    ('const', 'x1')
    """
    with at_site(site):
        factor: Any = _coefficients(results, names)
        if isinstance(prior, Product):
            # The likelihood of λ, coefficients integrated out: λ^((n - d)/2) exp(-λ RSS/2).
            factor = Product({COEFFICIENTS: factor, NOISE: Gamma(*_noise(results))})
        return Laws(factor, factor=factor).ledger(site, prior, model=results)


def _coefficients(
    results: Any, other: Mapping[str, str] | None, perfect: float = 1e-24
) -> Gaussian:
    """Return the law of the coefficients; squared residuals of less than ``perfect`` of the squared
    responses are rounding errors.
    """
    model = getattr(results, "model", None)
    # Penalised fits report the covariance of the likelihood alone, or none.
    kind = type(getattr(results, "_results", results)).__name__
    known = hasattr(results, "params") and callable(getattr(results, "cov_params", None))
    penalised = kind.startswith(("L1", "Regularized"))
    if not known or penalised or not type(model).__module__.startswith("statsmodels."):
        fix = "Call its fit(), and pass what that returns; an l2 penalty of weight w is a prior, "
        fix += "a Gaussian of mean zero and precision w."
        expected = "results of a statsmodels model by maximum likelihood, not penalised"
        raise unsupported(results, expected, fix)
    place = f"{type(model).__name__} results of statsmodels"
    left = getattr(results, "df_resid", None)
    if left is not None and hasattr(results, "ssr"):
        response = getattr(model, "wendog", None)
        total = 0.0 if response is None else float(np.square(np.asarray(response, float)).sum())
        if left < 1 or results.ssr <= perfect * total:
            sizes = f"{int(results.nobs)} records and {len(results.params)} coefficients"
            raise ParameterError(
                found=f"{sizes} with squared residuals of {results.ssr:.3g}, in {place}",
                expected="more records than coefficients, the response not among columns",
            )
    names, mean, covariance = _numbers(results, model)
    other = other or {}
    unknown = [name for name in other if name not in names]
    if unknown:
        raise UsageError(
            found=f"other names for {some(unknown)}", expected=f"for some of {some(names)}"
        )
    converged = getattr(results, "converged", None)
    if converged is None:
        converged = (getattr(results, "mle_retvals", None) or {}).get("converged")
    _check_classes(results, model, names, covariance, converged, place)
    law = of_covariance(mean, covariance, [other.get(name, name) for name in names], place)
    if converged is not None and not np.all(converged):
        text = f"{place} has not converged, so its estimate is no mode. Fit with a larger maxiter."
        warnings.warn(text, ConvergenceWarning, stacklevel=3)
    return law


def _numbers(results: Any, model: Any) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return names, estimates and covariance, in one order."""
    mean = np.asarray(results.params, float)
    covariance = np.asarray(results.cov_params(), float)
    columns = [str(name) for name in model.exog_names]
    if mean.ndim == 2:  # one column per class, and a covariance with classes outermost
        labels = getattr(model, "_ynames_map", {})
        classes = [str(labels.get(k + 1, k + 1)) for k in range(mean.shape[1])]
        return [f"{c}:{x}" for c in classes for x in columns], mean.T.reshape(-1), covariance
    if hasattr(results, "fe_params"):  # a mixed model; its variances follow the fixed effects
        fixed = len(results.fe_params)
        return columns[:fixed], mean[:fixed], covariance[:fixed, :fixed]
    index = getattr(results.params, "index", None)
    if index is not None:
        columns = [str(name) for name in index]
    elif len(columns) != len(mean):  # a count model's dispersion, or thresholds
        columns = [str(name) for name in getattr(results.model, "param_names", columns)]
        columns += [f"parameter {k}" for k in range(len(columns), len(mean))]
    return columns, mean, covariance


def _check_classes(
    results: Any,
    model: Any,
    names: list[str],
    covariance: np.ndarray,
    converged: Any,
    place: str,
    far: float = 10.0,
) -> None:
    """Raise or warn if the estimate is at infinity; checked only if the fit suggests it: if it has
    not converged, or a standardised column's standard error, in log odds or log rates, is ``far``.
    """
    y = getattr(model, "endog", None)
    x = getattr(model, "exog", None)
    kinds = {type(model).__name__, type(getattr(model, "family", None)).__name__}
    if x is None or y is None or not kinds & {*CLASSES, *RATES}:
        return
    y = np.asarray(y)
    x = np.asarray(x, float)
    columns = [str(name) for name in model.exog_names][: x.shape[1]]
    copies = max(len(names) // x.shape[1], 1)
    deviations = np.sqrt(np.maximum(np.diagonal(covariance), 0))[: copies * x.shape[1]]
    unknown = ~(deviations.reshape(copies, -1) * x.std(0) < far).all(0)  # NaN is far, too
    if converged is not None and np.all(converged) and not unknown.any():
        return
    if kinds & {*CLASSES} and y.ndim == 1 and np.array_equal(y, np.floor(y)):
        check_separation(x, y.astype(int), columns, place)
    elif unknown.any():
        text = f"{place} know next to nothing of {some(at(columns, unknown))}: records of one kind "
        text += "had no events, or all, so that the estimate is at infinity, or columns depend on "
        text += "each other."
        warnings.warn(text, ConvergenceWarning, stacklevel=4)


def _noise(results: Any) -> tuple[float, float]:
    """Return half the residual degrees of freedom, and half the sum of squared residuals."""
    if not all(hasattr(results, name) for name in ("ssr", "df_resid", "mse_resid")):
        raise UsageError(
            found=f"noise of {type(results.model).__name__} results",
            expected="a linear regression, OLS, WLS or GLS, as others have their dispersion within",
        )
    return float(results.df_resid) / 2, float(results.ssr) / 2
