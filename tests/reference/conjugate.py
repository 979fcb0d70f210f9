"""Conjugate pairs: textbook posteriors, from data and the standard parameters of the prior.

None of these formulas adds natural parameters: they are what the sums are checked against.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    ExponentialFamily,
    Gamma,
    Gaussian,
    NormalGamma,
    NormalWishart,
    Wishart,
)
from posterity.ledger import Ledger

Rng = np.random.Generator
COVARIANCE = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])
VARIANCE = np.array([2.0, 1.0, 0.5])
KNOWN_MEAN = np.array([1.0, -2.0, 0.5])


class Conjugate(NamedTuple):
    """A prior, a generator of data (number, offset) and the textbook's posterior."""

    prior: ExponentialFamily
    data: Callable[[Rng, int, float], np.ndarray]
    posterior: Callable[[Any, np.ndarray], ExponentialFamily]


def pooled_posterior(case: Conjugate, sites: dict[str, np.ndarray]) -> ExponentialFamily:
    """The textbook posterior of all sites' data at once."""
    return case.posterior(case.prior, np.concatenate(list(sites.values())))


def site_posteriors(case: Conjugate, sites: dict[str, np.ndarray]) -> dict[str, ExponentialFamily]:
    """Each site's textbook posterior of its own data alone."""
    return {site: case.posterior(case.prior, data) for site, data in sites.items()}


def site_ledgers(case: Conjugate, sites: dict[str, np.ndarray]) -> list[Ledger]:
    """Each site's posterior as a ledger of its own."""
    fits = site_posteriors(case, sites).items()
    return [Ledger.of_site(site, prior=case.prior, posterior=fit) for site, fit in fits]


def split_data(
    case: Conjugate, *, sites: int = 5, offset: float = 0.0, seed: int = 0
) -> dict[str, np.ndarray]:
    """Data of a few sites, of unequal sizes (one has a single observation)."""
    rng = np.random.default_rng(seed)
    sizes = [1, *rng.integers(2, 60, sites - 1)]
    return {f"site-{i}": case.data(rng, int(n), offset) for i, n in enumerate(sizes)}


def beta_bernoulli(prior: Beta, x: np.ndarray) -> Beta:
    return Beta.from_standard(prior.a + x.sum(), prior.b + (1 - x).sum())


def dirichlet_categorical(prior: Dirichlet, x: np.ndarray) -> Dirichlet:
    return Dirichlet.from_standard(prior.concentration + np.bincount(x, minlength=4))


def gamma_poisson(prior: Gamma, x: np.ndarray) -> Gamma:
    return Gamma.from_standard(prior.shape + x.sum(), prior.rate + len(x))


def gaussian_mean(prior: Gaussian, x: np.ndarray) -> Gaussian:
    """Known covariance: the precisions add; the mean is the precision-weighted mean."""
    noise = np.linalg.inv(COVARIANCE)
    before = np.linalg.inv(prior.covariance)
    covariance = np.linalg.inv(before + len(x) * noise)
    mean = covariance @ (before @ prior.mean + len(x) * noise @ x.mean(0))
    return Gaussian.from_standard(mean, covariance)


def diagonal_mean(prior: DiagonalGaussian, x: np.ndarray) -> DiagonalGaussian:
    variance = 1 / (1 / prior.variance + len(x) / VARIANCE)
    mean = variance * (prior.mean / prior.variance + len(x) * x.mean(0) / VARIANCE)
    return DiagonalGaussian.from_standard(mean, variance)


def wishart_precision(prior: Wishart, x: np.ndarray) -> Wishart:
    scatter = (x - KNOWN_MEAN).T @ (x - KNOWN_MEAN)
    scale = np.linalg.inv(np.linalg.inv(prior.scale) + scatter)
    return Wishart.from_standard(scale, prior.degrees_of_freedom + len(x))


def normal_wishart(prior: NormalWishart, x: np.ndarray) -> NormalWishart:
    """Bishop's (10.60) to (10.63), with counts for responsibilities."""
    before, count, centre = prior.standard_parameters(), len(x), x.mean(0)
    kappa = before["mean_precision"]
    gap = centre - before["mean"]
    inverse = np.linalg.inv(before["scale"]) + (x - centre).T @ (x - centre)
    inverse = inverse + kappa * count / (kappa + count) * np.outer(gap, gap)
    return NormalWishart.from_inverse_scale(  # inverting it would square its condition number
        mean=(kappa * before["mean"] + count * centre) / (kappa + count),
        mean_precision=kappa + count,
        inverse_scale=inverse,
        degrees_of_freedom=before["degrees_of_freedom"] + count,
    )


def normal_gamma(prior: NormalGamma, x: np.ndarray) -> NormalGamma:
    before, count, centre = prior.standard_parameters(), len(x), x.mean(0)
    kappa = before["mean_precision"]
    spread = ((x - centre) ** 2).sum(0)
    shift = kappa * count / (kappa + count) * (centre - before["mean"]) ** 2
    return NormalGamma.from_standard(
        mean=(kappa * before["mean"] + count * centre) / (kappa + count),
        mean_precision=kappa + count,
        inverse_scale=before["inverse_scale"] + spread + shift,
        degrees_of_freedom=before["degrees_of_freedom"] + count,
    )


def gaussian_data(rng: Rng, count: int, offset: float) -> np.ndarray:
    return rng.multivariate_normal(KNOWN_MEAN, COVARIANCE, count) + offset


ONES = np.ones(3)
CONJUGATE: dict[str, Conjugate] = {
    "Beta-Bernoulli": Conjugate(
        Beta.from_standard(2.0, 1.5), lambda rng, n, _: rng.integers(0, 2, n), beta_bernoulli
    ),
    "Dirichlet-categorical": Conjugate(
        Dirichlet.from_standard([0.5, 1.0, 2.0, 0.1]),
        lambda rng, n, _: rng.integers(0, 4, n),
        dirichlet_categorical,
    ),
    "Gamma-Poisson": Conjugate(
        Gamma.from_standard(0.5, 0.1),
        lambda rng, n, offset: rng.poisson(4 + offset, n),
        gamma_poisson,
    ),
    "Gaussian mean": Conjugate(
        Gaussian.from_standard(ONES, 4 * np.eye(3) + 0.5), gaussian_data, gaussian_mean
    ),
    "diagonal Gaussian mean": Conjugate(
        DiagonalGaussian.from_standard(ONES, 4 * ONES), gaussian_data, diagonal_mean
    ),
    "Wishart precision": Conjugate(
        Wishart.from_standard(np.eye(3) / 5, 5.0),
        lambda rng, n, _: gaussian_data(rng, n, 0.0),
        wishart_precision,
    ),
    "Normal-Wishart": Conjugate(
        NormalWishart.from_standard(0 * ONES, 0.1, np.eye(3) / 5, 5.0),
        gaussian_data,
        normal_wishart,
    ),
    "Normal-Gamma": Conjugate(
        NormalGamma.from_standard(0 * ONES, 0.1 * ONES, 2 * ONES, 5 * ONES),
        gaussian_data,
        normal_gamma,
    ),
}
"""Every conjugate pair, by name. Families with a location take data far from the origin."""
