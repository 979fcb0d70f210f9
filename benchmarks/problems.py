"""Synthetic problems: sites that share components, drawn as posteriors without any fitting.

Each site has L of the G = 1.5 L global components. Global means are well separated; a site's
mean is off by a little noise, its covariance by that of a Wishart with about a hundred degrees
of freedom.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from posterity import DiagonalGaussian, NormalWishart, Plate
from posterity.families import ExponentialFamily

Array = NDArray[np.float64]
GLOBALS_PER_COMPONENT = 1.5
SEPARATION, SITE_NOISE = 4.0, 0.1


@dataclass(frozen=True)
class Shape:
    """What is varied: family, number of sites, components a site, dimension."""

    family: str
    sites: int
    components: int
    dimension: int

    @property
    def globals_(self) -> int:
        """G, at least one more than a site has."""
        return max(round(GLOBALS_PER_COMPONENT * self.components), self.components + 1)


def draw(shape: Shape, seed: int) -> list[Plate]:
    rng = default_rng(seed)
    # Separation stays that of neighbours, however many components share the space.
    spread = SEPARATION * shape.globals_ ** (1 / shape.dimension)
    means = spread * rng.normal(size=(shape.globals_, shape.dimension))
    site = {"NormalWishart": normal_wishart, "DiagonalGaussian": diagonal}[shape.family]
    shared = {"NormalWishart": factors, "DiagonalGaussian": variances}[shape.family](rng, shape)
    picks = (
        rng.choice(shape.globals_, shape.components, replace=False) for _ in range(shape.sites)
    )
    return [Plate(site(rng, means[pick], shared[pick])) for pick in picks]


def factors(rng: Generator, shape: Shape) -> Array:
    """Cholesky factors (G, d, d) of the global covariances."""
    return bartlett(rng, np.full(shape.globals_, 2.0 * shape.dimension + 10), shape.dimension)


def variances(rng: Generator, shape: Shape) -> Array:
    """Variances (G, d) of the global posteriors."""
    return SITE_NOISE**2 * rng.gamma(5, 1 / 5, size=(shape.globals_, shape.dimension))


def normal_wishart(rng: Generator, means: Array, factors_: Array) -> ExponentialFamily:
    """One site's components, as if fitted to 50 to 150 observations each."""
    number, dimension = means.shape
    count = rng.integers(50, 150, number).astype(float)
    degrees = count + 2 * dimension
    root = factors_ @ bartlett(rng, degrees, dimension)
    inverse_scale = degrees[:, None, None] * root @ root.swapaxes(-1, -2)
    noisy = means + SITE_NOISE * rng.normal(size=means.shape)
    return NormalWishart.from_inverse_scale(noisy, count, inverse_scale, degrees)


def diagonal(rng: Generator, means: Array, variances_: Array) -> ExponentialFamily:
    """One site's components: noise of the size that the variances say, and in them a little."""
    noisy = means + np.sqrt(variances_) * rng.normal(size=means.shape)
    return DiagonalGaussian.from_standard(
        noisy, variances_ * rng.gamma(50, 1 / 50, size=means.shape)
    )


def bartlett(rng: Generator, degrees: Array, dimension: int) -> Array:
    """Factors (N, d, d) of Wishart draws around the identity."""
    root = np.tril(rng.normal(size=(len(degrees), dimension, dimension)), -1)
    diagonal_ = np.arange(dimension)
    root[:, diagonal_, diagonal_] = np.sqrt(rng.chisquare(degrees[:, None] - diagonal_))
    return root / np.sqrt(degrees)[:, None, None]
