"""scikit-learn's Bayesian Gaussian mixture and its plate.

``covariances_`` is the inverse scale divided by ``degrees_of_freedom_``, so that ``precisions_``
is the expected precision, and ``covariance_prior`` is an inverse scale, undivided. The diagonal
type shares ``mean_precision_`` and ``degrees_of_freedom_`` among the features; feature by
feature it is ``Gamma(ν/2, rate s/2)`` with that same ``ν``. So read, its expected precision is
``precisions_``, it is proper for every ``ν > 0``, and posterior minus prior is exactly the
component's expected count ``n`` (in ``κ`` and ``ν``), sum and sum of squares.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.mixture import BayesianGaussianMixture
from sklearn.utils.validation import check_is_fitted

from posterity.adapters.exchangeable import shared_member, shared_value
from posterity.arrays.linear_algebra import outer, symmetric
from posterity.arrays.typing import Float
from posterity.errors import StructureError, UsageError
from posterity.families import Beta, Dirichlet, ExponentialFamily, NormalGamma, NormalWishart, Plate

Array = np.ndarray
PROCESS, DISTRIBUTION = "dirichlet_process", "dirichlet_distribution"
DETERMINED = frozenset(
    {
        "n_components",
        "covariance_type",
        "weight_concentration_prior_type",
        "weight_concentration_prior",
        "mean_prior",
        "mean_precision_prior",
        "degrees_of_freedom_prior",
        "covariance_prior",
    }
)
"""Constructor arguments that a posterior and its prior settle."""


class Gaussians(NamedTuple):
    """scikit-learn's parameters of ``K`` components: ``κ`` and ``ν`` (K,), ``m`` (K, d) and
    ``S⁻¹`` (K, d, d), or its diagonal (K, d).
    """

    mean: Float[Array, "*k d"]
    mean_precision: Float[Array, "*k"]
    degrees_of_freedom: Float[Array, "*k"]
    inverse_scale: Float[Array, "*k d d"] | Float[Array, "*k d"]


# --- from the estimator --------------------------------------------------------------------------


def to_plates(model: BayesianGaussianMixture) -> tuple[Plate, Plate]:
    """Prior and posterior of a fitted mixture."""
    _check_model(model)
    nu = _double(model.degrees_of_freedom_)
    covariances = _double(model.covariances_)
    posterior = Gaussians(
        mean=_double(model.means_),
        mean_precision=_double(model.mean_precision_),
        degrees_of_freedom=nu,
        inverse_scale=covariances * nu.reshape(-1, *[1] * (covariances.ndim - 1)),
    )
    one = Gaussians(
        mean=_double(model.mean_prior_),
        mean_precision=_double(model.mean_precision_prior_),
        degrees_of_freedom=_double(model.degrees_of_freedom_prior_),
        inverse_scale=_double(model.covariance_prior_),
    )
    prior = Gaussians(*(np.stack([value] * len(nu)) for value in one))
    family = _to_family[model.covariance_type]
    return Plate(family(prior), _prior_weights(model)), Plate(family(posterior), _weights(model))


def _check_model(model: BayesianGaussianMixture) -> None:
    if not hasattr(model, "means_"):
        raise UsageError(
            found="a BayesianGaussianMixture that is not fitted",
            expected="a fitted one",
            fix="Call fit first.",
        )
    if model.covariance_type not in _to_family:
        raise StructureError(
            found=f"a BayesianGaussianMixture with covariance_type={model.covariance_type!r}",
            expected=f"one of {sorted(_to_family)}: a conjugate posterior for each component",
            fix="Fit again with covariance_type='full', or 'diag' if data is scarce.",
        )


def _wishart(gaussians: Gaussians) -> NormalWishart:
    mean, kappa, nu, inverse = gaussians
    return NormalWishart.from_inverse_scale(mean, kappa, symmetric(inverse), nu)


def _gamma(gaussians: Gaussians) -> NormalGamma:
    mean, kappa, nu, inverse = gaussians
    wide = np.ones_like(mean)
    return NormalGamma.from_standard(mean, kappa[:, None] * wide, inverse, nu[:, None] * wide)


_to_family: dict[str, Callable[[Gaussians], NormalWishart | NormalGamma]] = {
    "diag": _gamma,
    "full": _wishart,
}


def _weights(model: BayesianGaussianMixture) -> Dirichlet | Beta:
    if model.weight_concentration_prior_type == PROCESS:
        return Beta.from_standard(*map(_double, model.weight_concentration_))
    return Dirichlet.from_standard(_double(model.weight_concentration_))


def _prior_weights(model: BayesianGaussianMixture) -> Dirichlet | Beta:
    concentration = np.full(len(model.means_), model.weight_concentration_prior_, dtype=float)
    if model.weight_concentration_prior_type == PROCESS:
        return Beta.from_standard(np.ones_like(concentration), concentration)
    return Dirichlet.from_standard(concentration)


# --- to the estimator ----------------------------------------------------------------------------


def to_estimator(
    plate: Plate, prior: Plate | None, parameters: dict[str, Any]
) -> BayesianGaussianMixture:
    """A fitted mixture that holds the posterior."""
    gaussians, weights = _gaussians(plate.members), _checked_weights(plate)
    _check_degrees(gaussians)
    known = {} if prior is None else _known_prior(prior)
    model = BayesianGaussianMixture(
        n_components=plate.size,
        covariance_type="full" if gaussians.inverse_scale.ndim == 3 else "diag",
        weight_concentration_prior_type=PROCESS if isinstance(weights, Beta) else DISTRIBUTION,
        **known,
        **parameters,
    )
    fitted = _parameters(gaussians)
    fitted["weight_concentration_"] = (
        (weights.a, weights.b) if isinstance(weights, Beta) else weights.concentration
    )
    fitted["weights_"] = np.asarray(plate.mean_weights())
    for name, value in (known or _default_prior(fitted)).items():
        fitted[f"{name}_"] = value
    for name, value in fitted.items():
        setattr(model, name, value)
    check_is_fitted(model)
    return model


def _gaussians(members: ExponentialFamily) -> Gaussians:
    """The parameters that scikit-learn keeps, for any batch."""
    if isinstance(members, NormalWishart):
        kappa, nu = members.mean_precision, members.degrees_of_freedom
        values = members.mean, kappa, nu, symmetric(members.inverse_scale)
    else:
        assert isinstance(members, NormalGamma)  # the caller knows the families
        kappa = _shared_by_features(members.mean_precision, "mean_precision")
        nu = _shared_by_features(members.degrees_of_freedom, "degrees_of_freedom")
        values = members.mean, kappa, nu, members.inverse_scale
    return Gaussians(*map(_double, values))


def _shared_by_features(values: Any, name: str) -> Array:
    shared = shared_value(np.moveaxis(values, -1, 0))
    if shared is None:
        raise StructureError(
            found=f"a NormalGamma whose {name} differs between features",
            expected="one value a component: scikit-learn's diagonal mixture has no more",
            fix="Use the Plate itself (predictive_log_prob), or fuse with rule='product' or "
            "divergence='reverse', which keep it shared.",
        )
    return np.asarray(shared)


def _check_degrees(gaussians: Gaussians) -> None:
    least, size = gaussians.degrees_of_freedom.min(), gaussians.mean.shape[-1]
    if least <= size - 1:
        raise StructureError(
            found=f"a component with {least:g} degrees of freedom in {size} dimensions",
            expected=f"more than {size - 1}, as scikit-learn demands of the diagonal type too",
            fix="Fit with a larger degrees_of_freedom_prior, or use the Plate itself.",
        )


def _checked_weights(plate: Plate) -> Dirichlet | Beta:
    if not isinstance(plate.weights, Dirichlet | Beta):
        raise StructureError(
            found=f"a Plate of {type(plate.members).__name__} without mixing weights",
            expected="mixing weights: BayesianGaussianMixture has a posterior over them",
            fix="Add them: Plate(plate.members, Dirichlet.from_standard(np.ones(plate.size))).",
        )
    return plate.weights


def _known_prior(prior: Plate) -> dict[str, Any]:
    """The constructor's arguments for the prior of a ledger."""
    one = _gaussians(shared_member(prior))
    return {
        "weight_concentration_prior": _concentration(_checked_weights(prior)),
        "mean_prior": one.mean,
        "mean_precision_prior": float(one.mean_precision),
        "degrees_of_freedom_prior": float(one.degrees_of_freedom),
        "covariance_prior": one.inverse_scale,
    }


def _concentration(weights: Dirichlet | Beta) -> float:
    process = isinstance(weights, Beta)
    shared = shared_value(np.asarray(weights.b if process else weights.concentration))
    if shared is None or (process and not np.allclose(weights.a, 1.0)):
        raise StructureError(
            found="a prior over mixing weights that prefers some components",
            expected="equal concentrations, or sticks Beta(1, c) with one c",
            fix="Pass the posterior without its ledger; the estimator then has default priors.",
        )
    return float(shared)


def _default_prior(fitted: dict[str, Any]) -> dict[str, Any]:
    """scikit-learn's defaults, with the mixture's moments in place of the data's."""
    weights, means, covariances = fitted["weights_"], fitted["means_"], fitted["covariances_"]
    mean = weights @ means
    gap = means - mean
    spread = covariances + (outer(gap) if covariances.ndim == 3 else gap**2)
    return {
        "weight_concentration_prior": 1.0 / len(means),
        "mean_prior": mean,
        "mean_precision_prior": 1.0,
        "degrees_of_freedom_prior": means.shape[-1],
        "covariance_prior": np.tensordot(weights, spread, axes=1),
    }


def _parameters(gaussians: Gaussians) -> dict[str, Any]:
    """Fitted attributes, but for weights and priors."""
    mean, kappa, nu, inverse = gaussians
    covariances = inverse / nu.reshape(-1, *[1] * (inverse.ndim - 1))
    factors = _precision_factors(covariances)
    full = covariances.ndim == 3
    return {
        "means_": mean,
        "mean_precision_": kappa,
        "degrees_of_freedom_": nu,
        "covariances_": covariances,
        "precisions_cholesky_": factors,
        "precisions_": factors @ np.swapaxes(factors, -1, -2) if full else factors**2,
        "n_features_in_": mean.shape[-1],
        "converged_": True,
        "n_iter_": 0,
        "lower_bound_": float("nan"),
        "lower_bounds_": [],
    }


def _precision_factors(covariances: Array) -> Array:
    """``U`` with ``U Uᵀ`` the precision, upper triangular; its square root for the diagonal."""
    if covariances.ndim == 2:
        return 1 / np.sqrt(covariances)
    identity = np.eye(covariances.shape[-1])
    lower = np.linalg.cholesky(covariances)
    return np.stack([solve_triangular(factor, identity, lower=True).T for factor in lower])


def _double(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)
