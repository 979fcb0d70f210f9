"""Gaussian mixtures by variational Bayes, with a prior that looks at no site's data."""

import warnings
from typing import Any, NamedTuple

import numpy as np

from posterity.adapters.shared import library
from posterity.errors import ConvergenceError, ParameterError, StructureError
from posterity.families import Plate

STEPS = 2000
STARTS = 5
_TOLERANCE = 1e-7
"""Nats a record that the bound may still rise by."""
_KEPT = 1e-6
"""Of a component's scatter: what the stored sums of squares may lose."""


class Mixture(NamedTuple):
    """Prior and posterior of the components, and what the search says of itself."""

    prior: Plate
    posterior: Plate
    steps: int


def fit_mixture(
    x: np.ndarray,
    names: tuple[str, ...],
    components: int,
    *,
    prior_sd: float,
    component_sd: float,
    seed: int,
) -> Mixture:
    """Components with means, covariances and weights of ``x`` (n, d), by variational Bayes.

    Means come from ``N(0, (prior_sd / component_sd)² Σ)``, covariances ``Σ`` from an inverse
    Wishart of mean ``component_sd²`` and ``d + 2`` degrees, weights from a flat Dirichlet. The
    search, by scikit-learn from several starts, goes by columns of the site's own mean and
    deviation, where it does not hang on units; the prior goes there with it, and all comes back
    exactly. Source: bishop2006, section 10.2.
    """
    sklearn = library("sklearn.mixture", extra="sklearn", package="scikit-learn")
    count, size = x.shape
    if count < max(components, 2):
        raise StructureError(
            found=f"{count} records for {components} components",
            expected=f"{max(components, 2)} at least",
            fix="Ask for fewer components, or add records.",
        )
    center, scale = x.mean(0), x.std(0)
    scale[scale <= 1e-12 * abs(center)] = 1.0
    scale[scale == 0] = 1.0
    model: Any = sklearn.mixture.BayesianGaussianMixture(
        n_components=components,
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=1.0,
        mean_prior=-center / scale,
        mean_precision_prior=(component_sd / prior_sd) ** 2,
        degrees_of_freedom_prior=size + 2.0,
        covariance_prior=np.diag((component_sd / scale) ** 2),
        reg_covar=0.0,  # the prior keeps covariances regular, and is exact
        tol=_TOLERANCE,
        max_iter=STEPS,
        n_init=STARTS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", sklearn.exceptions.ConvergenceWarning
        )  # fewer distinct records; else below
        model.fit((x - center) / scale)
    if not model.converged_:
        raise ConvergenceError(
            found=f"a mixture whose bound still rises after {STEPS} steps",
            expected=f"one that rises by less than {_TOLERANCE:g} nats a record",
            fix="Ask for fewer components; nothing was written.",
        )
    box = np.outer(scale, scale)
    model.means_ = center + model.means_ * scale
    model.covariances_ = model.covariances_ * box
    model.mean_prior_ = np.zeros(size)
    model.covariance_prior_ = component_sd**2 * np.eye(size)
    from posterity.adapters.sklearn_plates import to_plates

    prior, posterior = to_plates(model)
    _check_kept(model, posterior, names)
    label = {"members": names}
    return Mixture(prior.named(label), posterior.named(label), int(model.n_iter_))


def _check_kept(model: Any, plate: Plate, names: tuple[str, ...]) -> None:
    """Natural parameters hold sums of squares, in which what is far from 0 drowns the scatter."""
    members: Any = plate.members
    kappa = np.asarray(model.mean_precision_)[:, None]
    raw = kappa * model.means_**2
    own = np.diagonal(model.covariances_, axis1=1, axis2=2) * model.degrees_of_freedom_[:, None]
    lost = np.finfo(float).eps * raw / own
    if not (lost.max() <= _KEPT and bool(np.all(members.is_proper()))):
        worst = names[int(np.argmax(lost.max(0)))]
        raise ParameterError(
            found=f"column {worst!r}, so far from 0 that its scatter is lost in its squares",
            expected="columns about as far from 0 as they vary",
            fix=f"Take a number off that is the same at every site: --center {worst}=VALUE.",
        )
