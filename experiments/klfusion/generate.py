"""The synthetic Gaussian mixtures behind figures 2 and 3 of KL-fusion.

Reference: Claici, Yurochkin, Ghosh, Solomon, "Model Fusion with Kullback-Leibler Divergence",
ICML 2020, section 5, completed by the generator that the authors released.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

Array = np.ndarray
PROPORTION_CONCENTRATION = 10.0
WISHART_DEGREES_PER_DIMENSION = 100


@dataclass(frozen=True)
class Problem:
    """One draw of the generating process: the truth and what each site saw."""

    means: Array  # (G, d), means of the global components that at least one site uses
    covariances: Array  # (G, d, d), their covariances
    presence: Array  # (J, G) booleans, which site has which component
    # J arrays (L_j, d), a site's own, perturbed means, in the order of `presence`
    local_means: tuple[Array, ...]
    data: tuple[Array, ...]  # J arrays (points, d), the observations of each site

    @property
    def pooled(self) -> Array:
        """All observations stacked, (J * points, d): what an oracle without silos would see."""
        return np.concatenate(self.data)


def generate(
    rng: Generator, separation: float, heterogeneity: float, sites: int = 10, points: int = 300
) -> Problem:
    """Three global components of two dimensions, of which each site has some, perturbed; and data.

    Where the paper is silent the released generator decides:

    * `3 separation` is the *variance* of the global means (at separation 0 they coincide and
      components differ in covariance only);
    * `heterogeneity` is the *standard deviation* of a site's shift of each mean;
    * component l is present at a site with probability p_l ~ Beta(1, 1); a site redraws until it
      has at least two components; components that no site drew are not part of the truth;
    * local covariances are Wishart(100 d, Sigma_l) / (100 d), whose mean is Sigma_l;
    * the proportions of a site are Dirichlet(10) over its components.
    """
    components, dim = 3, 2
    means = rng.normal(0.0, np.sqrt(separation * components), (components, dim))
    covariances = np.stack([elongated_covariance(rng, dim, index) for index in range(components)])
    presence = draw_presence(rng, sites, components)
    local_means, data = [], []
    for present in presence:
        centres = rng.normal(means[present], heterogeneity)
        shapes = perturb_covariances(rng, covariances[present])
        local_means.append(centres)
        data.append(sample_mixture(rng, centres, shapes, points))
    used = presence.any(axis=0)
    seen = presence[:, used], tuple(local_means), tuple(data)
    return Problem(means[used], covariances[used], *seen)


def elongated_covariance(rng: Generator, dim: int, index: int) -> Array:
    """U (sqrt(1 + index) 11' + diag(min(s, 1))) U' with U, s from the SVD of a random A'A.

    The released code adds the scalar to every entry, not only to the diagonal; that makes the
    components elongated, and more so the higher their index.
    """
    factor = rng.normal(size=(dim, dim))
    left, singular, right = np.linalg.svd(factor.T @ factor)
    covariance = left @ (np.sqrt(1.0 + index) + np.diag(np.minimum(singular, 1.0))) @ right
    return 0.5 * (covariance + covariance.T)


def draw_presence(rng: Generator, sites: int, components: int) -> Array:
    """(J, L) booleans; every site has at least two components."""
    probabilities, rows = rng.beta(1.0, 1.0, components), []
    while len(rows) < sites:
        row = rng.random(components) < probabilities
        if row.sum() >= 2:
            rows.append(row)
    return np.stack(rows)


def perturb_covariances(rng: Generator, covariances: Array) -> Array:
    """Wishart draws (K, d, d) with mean `covariances` and 100 d degrees of freedom."""
    dim = covariances.shape[-1]
    degrees = WISHART_DEGREES_PER_DIMENSION * dim
    normals = rng.normal(size=(len(covariances), degrees, dim))
    rows = normals @ np.linalg.cholesky(covariances).swapaxes(-1, -2)
    return rows.swapaxes(-1, -2) @ rows / degrees


def sample_mixture(rng: Generator, means: Array, covariances: Array, points: int) -> Array:
    """`points` draws (points, d) from the mixture with Dirichlet(10) proportions."""
    proportions = rng.dirichlet(np.full(len(means), PROPORTION_CONCENTRATION))
    labels = rng.choice(len(means), size=points, p=proportions)
    factors = np.linalg.cholesky(covariances)
    noise = rng.normal(size=(points, means.shape[1]))
    return means[labels] + np.einsum("nij,nj->ni", factors[labels], noise)
