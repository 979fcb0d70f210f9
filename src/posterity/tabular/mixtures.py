"""Gaussian mixtures by variational Bayes, with a prior that does not depend on a site's data."""

import warnings
from typing import Any, NamedTuple

import numpy as np

from posterity.adapters.shared import library
from posterity.errors import ConvergenceError, ParameterError, StructureError
from posterity.families import Plate

STEPS = 2000
STARTS = 5
FAR = 3.0
"""Prior standard deviations beyond which a column is far from zero."""
_TOLERANCE = 1e-7
"""Convergence tolerance of the bound, in nats per record."""
_KEPT = 1e-6
"""Largest relative loss of a component's scatter in stored sums of squares."""


class Mixture(NamedTuple):
    """Prior and posterior of the components, steps of the search, and notes on columns' units."""

    prior: Plate
    posterior: Plate
    steps: int
    notes: tuple[str, ...]


def fit_mixture(
    x: np.ndarray,
    names: tuple[str, ...],
    components: int,
    *,
    prior_sd: float,
    component_sd: float,
    seed: int,
) -> Mixture:
    """Fit the components' means, covariances and weights to ``x`` (n, d), by variational Bayes.

    Means have the prior ``N(0, (prior_sd / component_sd)² Σ)``, covariances ``Σ`` an inverse
    Wishart with mean ``component_sd²`` and ``d + 2`` degrees, weights a flat Dirichlet.
    Scikit-learn searches from several starts in columns standardised at the site, so units do not
    matter. The prior is converted to these units, and all results are converted back exactly. With
    fewer records than components, the surplus components keep their prior. Source: bishop2006,
    section 10.2.

    Raises:
        StructureError: for fewer than two records.
        ConvergenceError: if the search does not converge.
        ParameterError: for columns too far from zero for their scatter.
    """
    sklearn = library("sklearn.mixture", extra="sklearn", package="scikit-learn")
    count, size = x.shape
    if count < 2:
        raise StructureError(
            found=f"{count} record{'s' * (count != 1)} for a mixture",
            expected="at least two",
            fix="Leave the site out, or give its records to another site.",
        )
    center, scale = x.mean(0), x.std(0)
    scale[scale <= 1e-12 * abs(center)] = 1.0
    scale[scale == 0] = 1.0
    model: Any = sklearn.mixture.BayesianGaussianMixture(
        n_components=min(components, count),
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=1.0,
        mean_prior=-center / scale,
        mean_precision_prior=(component_sd / prior_sd) ** 2,
        degrees_of_freedom_prior=size + 2.0,
        covariance_prior=np.diag((component_sd / scale) ** 2),
        reg_covar=0.0,  # the prior alone keeps covariances regular
        tol=_TOLERANCE,
        max_iter=STEPS,
        n_init=STARTS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", sklearn.exceptions.ConvergenceWarning
        )  # fewer distinct records; others below
        model.fit((x - center) / scale)
    if not model.converged_:
        raise ConvergenceError(
            found=f"a mixture that has not converged after {STEPS} steps",
            expected=f"a bound that rises by less than {_TOLERANCE:g} nats a record",
            fix="Use fewer components, and rescale columns (--scale) to be near --component-sd.",
        )
    box = np.outer(scale, scale)
    model.means_ = center + model.means_ * scale
    model.covariances_ = model.covariances_ * box
    model.mean_prior_ = np.zeros(size)
    model.covariance_prior_ = component_sd**2 * np.eye(size)
    _add_unused(model, components - count)
    from posterity.adapters.sklearn_plates import to_plates

    prior, posterior = to_plates(model)
    _check_kept(model, posterior, names)
    label = {"members": names}
    far = [
        f"{name!r} reaches {most:.3g} in its unit, beyond a prior of sd {prior_sd:g} about 0: "
        "subtract a constant and divide by another, the same at every site (--center, --scale)"
        for name, most in zip(names, abs(x).max(0), strict=True)
        if most > FAR * prior_sd
    ]
    flat = [
        f"{name!r} varies by {sd:.3g} in its unit, little beside components of sd "
        f"{component_sd:g}: leave it out, or divide by a constant, the same at every site (--scale)"
        for name, sd in zip(names, x.std(0), strict=True)
        if sd < 0.1 * component_sd
    ]
    return Mixture(prior.named(label), posterior.named(label), int(model.n_iter_), (*far, *flat))


def _add_unused(model: Any, number: int) -> None:
    degrees = model.degrees_of_freedom_prior_
    unused = {
        "weight_concentration_": model.weight_concentration_prior_,
        "mean_precision_": model.mean_precision_prior_,
        "means_": model.mean_prior_,
        "degrees_of_freedom_": degrees,
        "covariances_": model.covariance_prior_ / degrees,
    }
    for name, value in unused.items():
        own = getattr(model, name)
        rows = np.broadcast_to(value, (max(number, 0), *own.shape[1:]))
        setattr(model, name, np.concatenate([own, rows]))


def _check_kept(model: Any, plate: Plate, names: tuple[str, ...]) -> None:
    """Raise if sums of squares, which natural parameters hold, lose the scatter to rounding."""
    members: Any = plate.members
    kappa = np.asarray(model.mean_precision_)[:, None]
    raw = kappa * model.means_**2
    own = np.diagonal(model.covariances_, axis1=1, axis2=2) * model.degrees_of_freedom_[:, None]
    lost = np.finfo(float).eps * raw / own
    if not (lost.max() <= _KEPT and bool(np.all(members.is_proper()))):
        worst = names[int(np.argmax(lost.max(0)))]
        raise ParameterError(
            found=f"column {worst!r}, so far from 0 that float64 cannot represent its variance",
            expected="columns centred near 0",
            fix=f"Subtract the same number at every site: --center {worst}=VALUE.",
        )
