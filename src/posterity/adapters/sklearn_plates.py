"""scikit-learn's Bayesian Gaussian mixture and latent Dirichlet allocation, and their plates.

A mixture's ``covariances_`` are the inverse scale divided by ``degrees_of_freedom_``, so
``precisions_`` is the expected precision. ``covariance_prior`` is an undivided inverse scale. For
the diagonal type see :class:`posterity.adapters.plates.Gaussians`.

A topic model's ``components_`` are concentrations and ``topic_word_prior_`` those of their prior.
After a batch fit the difference is a topic's expected word counts. After online learning it is a
weighted average over steps, and with ``partial_fit`` it counts ``total_samples`` documents.
"""

from typing import Any

import numpy as np
from sklearn.decomposition import LatentDirichletAllocation

# Its digamma is off by a few 1e-9; with another one topics would differ in their last digits.
from sklearn.decomposition._online_lda_fast import _dirichlet_expectation_2d
from sklearn.mixture import BayesianGaussianMixture
from sklearn.mixture._gaussian_mixture import _compute_precision_cholesky
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from posterity.adapters.plates import (
    MEMBERS,
    Gaussians,
    conjugate,
    shared_member,
    shared_value,
    unequal,
)
from posterity.adapters.shared import Data, Laws, at_site, check_fitted, check_undetermined
from posterity.errors import StructureError
from posterity.families import Beta, Dirichlet, Plate

KNOWN = (BayesianGaussianMixture, LatentDirichletAllocation)
PROCESS = "dirichlet_process"
DISTRIBUTION = "dirichlet_distribution"
LIBRARY = "scikit-learn"
PRIORS = (
    "weight_concentration_prior",
    "mean_prior",
    "mean_precision_prior",
    "degrees_of_freedom_prior",
    "covariance_prior",
)
"""Constructor arguments of a mixture that a prior determines."""
OF_MIXTURES = (*PRIORS, "n_components", "covariance_type", "weight_concentration_prior_type")
OF_MEMBERS = ("means", "mean_precision", "degrees_of_freedom", "covariances")
OF_TOPICS = ("n_components", "topic_word_prior")
Fitted = tuple[Any, dict[str, Any]]
"""An estimator that is not fitted yet, and the attributes that fitting sets."""


def to_plates(model: BayesianGaussianMixture | LatentDirichletAllocation) -> tuple[Plate, Plate]:
    """Return prior and posterior of a fitted estimator."""
    if isinstance(model, LatentDirichletAllocation):
        check_fitted(model, "components_")
        components = np.asarray(model.components_, np.float64)
        prior = np.full_like(components, model.topic_word_prior_)
        return Plate(Dirichlet.from_standard(prior)), Plate(Dirichlet.from_standard(components))
    check_fitted(model, "means_", "mean_prior_")
    conjugate("diag", "full").check(covariance_type=model.covariance_type)

    def read(*names):
        return [np.asarray(getattr(model, f"{name}_"), np.float64) for name in names]

    mean, kappa, nu, covariance = read(*OF_MEMBERS)
    inverse = covariance * nu.reshape(-1, *[1] * (covariance.ndim - 1))
    posterior = Gaussians(mean, kappa, nu, inverse)
    prior = Gaussians(*(np.stack([value] * len(nu)) for value in read(*PRIORS[1:])))
    before = np.full(len(nu), float(model.weight_concentration_prior_))
    (after,) = read("weight_concentration")
    if model.weight_concentration_prior_type == PROCESS:
        weights = Beta.from_standard(np.ones_like(before), before), Beta.from_standard(*after)
    else:
        weights = Dirichlet.from_standard(before), Dirichlet.from_standard(after)
    return Plate(prior.law, weights[0]), Plate(posterior.law, weights[1])


def laws(estimator: Any, data: Data) -> Laws:
    """Return prior and posterior of a fitted estimator, with the names of its columns."""
    with at_site(data.site):
        both = to_plates(estimator)
    names = getattr(estimator, "feature_names_in_", None) if data.names is None else data.names
    if names is not None:
        both = tuple(plate.named({MEMBERS: [str(name) for name in names]}) for plate in both)
    return Laws(both[1], both[0])


def to_estimator(plate: Plate, prior: Plate | None, parameters: dict[str, Any]) -> Any:
    """Return a fitted estimator that holds the posterior."""
    topics = plate.members.emits_symbols
    check_undetermined(parameters, OF_TOPICS if topics else OF_MIXTURES)
    model, fitted = (_topics if topics else _mixture)(plate, prior, parameters)
    for name, value in fitted.items():
        setattr(model, name, value)
    check_is_fitted(model)
    return model


def _topics(plate: Plate, prior: Plate | None, parameters: dict[str, Any]) -> Fitted:
    if plate.weights is not None:
        raise StructureError(
            found=f"a Plate of Dirichlet with {type(plate.weights).__name__} weights",
            expected="topics without weights",
        )
    known = {}
    if prior is not None:
        shared = shared_value(shared_member(prior).concentration)  # pyright: ignore
        if shared is None:
            raise unequal("over words that prefers some of them", "one number: topic_word_prior")
        known["topic_word_prior"] = float(shared)
    model: Any = LatentDirichletAllocation(n_components=plate.size, **known, **parameters)
    components = np.ascontiguousarray(plate.members.concentration)  # pyright: ignore

    def or_default(value):
        return 1.0 / plate.size if value is None else value

    return model, {
        "components_": components,
        "exp_dirichlet_component_": np.exp(_dirichlet_expectation_2d(components)),
        "doc_topic_prior_": or_default(model.doc_topic_prior),
        "topic_word_prior_": or_default(model.topic_word_prior),
        "n_features_in_": components.shape[1],
        "n_batch_iter_": 1,
        "n_iter_": 0,
        "bound_": float("nan"),
        "random_state_": check_random_state(model.random_state),
    }


def _mixture(plate: Plate, prior: Plate | None, parameters: dict[str, Any]) -> Fitted:
    members: Any = plate.members
    gaussians = Gaussians.of(members, LIBRARY)
    weights = _concentrations(plate)
    mean, kappa, nu, inverse = gaussians
    size = mean.shape[-1]
    if nu.min() <= size - 1:
        raise StructureError(
            found=f"a component with {nu.min():g} degrees of freedom in {size} dimensions",
            expected=f"more than {size - 1}: a larger degrees_of_freedom_prior",
        )
    known: dict[str, Any] = {}
    if prior is not None:
        alike: Any = shared_member(prior)
        one, (*first, last) = Gaussians.of(alike, LIBRARY), _concentrations(prior)
        shared = shared_value(last)
        if shared is None or not np.allclose(first, 1.0):
            raise unequal(
                "over mixing weights that prefers some components",
                "equal concentrations, or sticks Beta(1, c) with one c",
            )
        centre, *others = one
        own = (float(shared), centre, *map(float, others[:2]), others[2])
        known = dict(zip(PRIORS, own, strict=True))
    model: Any = BayesianGaussianMixture(
        n_components=plate.size,
        covariance_type="full" if inverse.ndim == 3 else "diag",
        weight_concentration_prior_type=PROCESS if len(weights) > 1 else DISTRIBUTION,
        **known,
        **parameters,
    )
    kind = model.covariance_type
    covariances = gaussians.covariance
    concentration = weights[0] if len(weights) == 1 else weights
    roots = _compute_precision_cholesky(covariances, kind)
    model._set_parameters((concentration, kappa, mean, nu, covariances, roots))
    return model, {
        "n_features_in_": size,
        "converged_": True,
        "n_iter_": 0,
        "lower_bound_": float("nan"),
        "lower_bounds_": [],
        **{f"{name}_": value for name, value in known.items()},
    }


def _concentrations(plate: Plate) -> tuple[Any, ...]:
    """Return the concentrations of the mixing weights; for sticks, their two parameters."""
    if plate.weights is None:
        raise StructureError(
            found=f"a Plate of {type(plate.members).__name__} without mixing weights",
            expected="mixing weights: Plate(members, Dirichlet.from_standard(ones))",
        )
    return tuple(plate.weights.standard_parameters().values())
