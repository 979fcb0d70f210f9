"""Maximum likelihood fit of a family to the draws of some variables.

All computation is in standardised units, so a mean of a million with a deviation of a thousandth
keeps its digits.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from posterity.adapters.samples.variables import Variable
from posterity.adapters.shared import at, library
from posterity.arguments import one_of
from posterity.arrays.chains import sizes
from posterity.arrays.typing import Float
from posterity.errors import ParameterError, StructureError
from posterity.families.diagonal_gaussian import DiagonalGaussian
from posterity.families.gaussian import Gaussian
from posterity.families.mixture import Mixture
from posterity.families.names import some
from posterity.families.supports import RealNumbers
from posterity.families.transformed import Transformed

Array = np.ndarray
FAMILY = one_of("gaussian", "diagonal", "mixture")


class Standard(NamedTuple):
    """Draws in standardised units: ``centre + scale * units`` are the draws."""

    centre: Float[Array, " d"]
    scale: Float[Array, " d"]
    units: Float[Array, "chains n d"]

    @property
    def rows(self) -> Float[Array, "m d"]:
        """All chains, concatenated."""
        return self.units.reshape(-1, self.units.shape[-1])


class Fit(NamedTuple):
    """A law of unconstrained coordinates, with the draws' scores under it."""

    law: Any
    scores: Float[Array, "chains n d"]
    """Normal scores of each coordinate under the law."""
    parameters: int


class Block(NamedTuple):
    """Variables under one law, with its names."""

    law: Any
    fit: Fit
    labels: tuple[str, ...]
    """Names of the scores."""


def block(
    variables: Sequence[Variable],
    family: str,
    names: Sequence[str] | None,
    components: int | None = None,
    least_draws: int = 10,
) -> Block:
    """Return the family's maximum likelihood law of these variables together, from ``least_draws``
    or more: fewer tell next to nothing.
    """
    u = np.concatenate([own.free for own in variables], axis=-1)
    free_labels = tuple(label for own in variables for label in own.free_labels)
    labels = tuple(names or (label for own in variables for label in own.labels))
    if names is not None and len(free_labels) == len(labels):
        free_labels = labels
    count = u.shape[0] * u.shape[1]
    size = u.shape[2]
    least = max(least_draws, size + 1 if family in ("gaussian", "mixture") else 0)
    if count < least:
        raise StructureError(
            found=f"{count} draws of {size} coordinates ({some(free_labels)})",
            expected=f"at least {least} for family={family!r}, or family='diagonal'",
        )
    free = standard(u, free_labels)
    fits = {
        "gaussian": lambda: full(free, free_labels),
        "diagonal": lambda: diagonal(free),
        "mixture": lambda: mixture(free, free_labels, components),
    }
    fit = fits[family]()
    law = fit.law
    named = names is not None or bool(variables[0].name)
    if not all(isinstance(own.support, RealNumbers) for own in variables):
        supports: Any = {own.name: own.support for own in variables}
        supports = supports if all(supports) else variables[0].support

        def onto(inner):
            return Transformed.from_standard(inner, supports)

        mixed = law.is_mixture
        law = Mixture(law.log_weights, onto(law.components)) if mixed else onto(law)
    law = law.named(list(free_labels)) if named else law
    return Block(law, fit, free_labels)


def standard(u: Float[Array, "chains n d"], labels: Sequence[str], huge: float = 1e150) -> Standard:
    """Standardise draws, centred twice for accuracy; a ParameterError for constant coordinates, and
    for those beyond ``huge``, whose squares overflow.
    """
    wild = abs(u).max((0, 1)) > huge
    wrong = f"draws of {some(at(labels, wild))} beyond {huge:g}" if wild.any() else ""
    first = u[:1, :1].copy()
    moved = u - first
    mean = moved.mean((0, 1))
    gap = moved - mean
    with np.errstate(over="ignore"):
        scale = np.sqrt((gap**2).mean((0, 1)))
    constant = scale <= 4 * np.finfo(float).eps * abs(u).max((0, 1))
    if wrong or constant.any():
        raise ParameterError(
            found=wrong or f"draws of {some(at(labels, constant))} that do not vary",
            expected="draws that vary, with finite squares",
        )
    return Standard(first[0, 0] + mean, scale, gap / scale)


def correlation(
    units: Float[Array, "chains n d"], labels: Sequence[str], singular: float = 1e-10
) -> Float[Array, "d d"]:
    """Return correlations of standardised draws; a ParameterError names dependent coordinates,
    along which the eigenvalue is below ``singular`` a coordinate.
    """
    rows = units.reshape(-1, units.shape[-1])
    result = rows.T @ rows / len(rows)
    values, axes = np.linalg.eigh(result)
    if values[0] < singular * len(values):
        heavy = np.argsort(-abs(axes[:, 0]))
        chosen = [i for i in heavy if abs(axes[i, 0]) > 0.3 * abs(axes[heavy[0], 0])][:5]
        raise ParameterError(
            found=f"draws of {[labels[i] for i in chosen]} that are linearly dependent",
            expected="independent coordinates, or family='diagonal'",
        )
    return result


def full(draws: Standard, labels: Sequence[str]) -> Fit:
    """Fit mean and covariance by maximum likelihood, which also minimises ``KL(p ‖ q)``."""
    within = correlation(draws.units, labels)
    law = Gaussian.from_standard(draws.centre, within * np.outer(draws.scale, draws.scale))
    size = len(within)
    return Fit(law, draws.units, size * (size + 3) // 2)


def diagonal(draws: Standard) -> Fit:
    """Fit means and variances."""
    law = DiagonalGaussian.from_standard(draws.centre, draws.scale**2)
    return Fit(law, draws.units, 2 * len(draws.scale))


def mixture(draws: Standard, labels: Sequence[str], components: int | None, most: int = 6) -> Fit:
    """Fit scikit-learn's mixture in whitened units; the number of components is the best by BIC, up
    to ``most``.

    BIC counts effective draws, computed from log densities, whose autocorrelation is that within
    modes. A chain that never leaves its mode is no evidence of a single mode.
    """
    sklearn = library("sklearn.mixture", extra="sklearn", package="scikit-learn")
    within = correlation(draws.units, labels)
    root = np.linalg.cholesky(within)
    white = np.linalg.solve(root, draws.rows.T).T
    size = white.shape[1]
    shape = draws.units.shape[:2]
    tried = []
    for count in [components] if components else range(1, most + 1):
        model = sklearn.mixture.GaussianMixture(count, n_init=2, random_state=0, reg_covar=1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
            model.fit(white)
        parameters = count * size * (size + 3) // 2 + count - 1
        tried.append((model, model.score_samples(white).reshape(shape), parameters))
    # One number of effective draws for all, so that the criteria are comparable.
    effective = float(sizes(tried[-1][1][..., None])[0])

    def cost(one):
        return -2 * effective * one[1].mean() + one[2] * np.log(effective)

    model, _, parameters = min(tried, key=cost)
    mean = model.means_ @ root.T
    covariance = root @ model.covariances_ @ root.T
    spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    weights = model.weights_
    scaled = covariance * np.outer(draws.scale, draws.scale)
    whole = Gaussian.from_standard(draws.centre + mean * draws.scale, scaled)
    gap = (draws.units[..., None, :] - mean) / spread
    shares = (np.einsum("k,cnkd->cnd", weights, f(gap)) for f in (norm.cdf, norm.sf))
    made = Mixture.from_standard(weights / weights.sum(), whole)
    return Fit(made, normal_scores(*shares), parameters)


def normal_scores(below: Float[Array, "..."], above: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return normal quantiles of probabilities below, or of those above where these are smaller."""
    least = np.finfo(float).tiny
    low = norm.ppf(np.clip(below, least, 0.5))
    return np.where(below < 0.5, low, norm.isf(np.clip(above, least, 0.5)))
