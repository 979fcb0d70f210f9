"""Gaussians of independent coordinates in information form."""

from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import ArrayLike, Flat, Float, Floats, KeyArray, Real, Shape
from posterity.families.coordinates import POSITIVE, Coordinates, vector
from posterity.families.gaussian import AnyGaussian
from posterity.runtime.lazy import jax
from posterity.runtime.programs import sampler
from posterity.runtime.text import SHOWN


class DiagonalGaussian(AnyGaussian):
    """The Gaussian ``N(z | m, diag(v))``; statistics ``(z, -z²/2)``.

    Natural parameters: ``precision_mean`` ``m/v`` and ``precision`` ``1/v``.

    >>> DiagonalGaussian.from_standard(mean=[3.0], variance=[4.0]).variance
    array([4.])
    """

    precision_mean: Float[Real, "*batch d"]
    precision: Float[Real, "*batch d"]

    coordinates: ClassVar[Coordinates] = {"precision_mean": vector(), "precision": vector(POSITIVE)}
    standard: ClassVar[Coordinates] = {"mean": vector(), "variance": vector(POSITIVE)}
    diagonal = True

    @classmethod
    def from_standard(cls, mean: ArrayLike, variance: ArrayLike) -> Self:
        """Make a law from the mean and the variance, both (..., d)."""
        return cls._of(**cls._naturals(**cls._checked(mean=mean, variance=variance)))._held()

    @classmethod
    def _naturals(cls, mean: Real, variance: Real) -> dict[str, Real]:
        return {"precision_mean": mean / variance, "precision": 1 / variance}

    @property
    def mean(self) -> Float[Real, "*batch d"]:
        return self.precision_mean / self.precision

    @property
    def variance(self) -> Float[Real, "*batch d"]:
        """The variances."""
        return 1 / self.precision

    @property
    def _spread(self) -> Real:
        return self.variance

    @property
    def _factor(self) -> Real:
        return self.xp.np.sqrt(self.precision)

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return ``Σ (m²/v + log v) / 2``."""
        log = self.xp.np.log
        return (self.precision_mean * self.mean - log(self.precision)).sum(-1) / 2

    def inverse_fisher_product(self, vector: Flat) -> Flat:
        """Return the derivative of ``η`` along ``μ``, in closed form."""
        parts = self.unflatten(vector)
        mean = self.mean
        step = parts["precision_mean"]
        precision = 2 * self.precision**2 * (parts["precision"] + step * mean)
        moved = precision * mean + self.precision * step
        return self.flatten(precision_mean=moved, precision=precision)

    def _log_prob(self, z: Float[Real, "*shape d"]) -> Floats:
        """Return the log density, centred."""
        standardized = self.precision * (z - self.mean) ** 2
        logdet = self.xp.np.log(self.precision)
        return self.log_base_measure() + (logdet - standardized).sum(-1) / 2

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """Return ``Σ (log 1/v - 1) / 2``, which does not depend on the mean."""
        return (self.xp.np.log(self.precision) - 1).sum(-1) / 2

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        xp = namespace(self.precision, other.precision).np
        # log1p for small differences, so that the result is accurate for nearly equal variances.
        excess = (other.precision - self.precision) / self.precision
        near = xp.where(abs(excess) < 0.5, excess, 0.0)
        log = xp.where(near == excess, xp.log1p(near), xp.log(other.precision / self.precision))
        distance = other.precision * (self.mean - other.mean) ** 2
        return (excess - log + distance).sum(-1) / 2

    def sample(self, key: KeyArray, shape: Shape = ()) -> Float[Real, "*shape d"]:
        """Draw ``m + sqrt(v) ε``."""
        return _draw(key, shape, self.mean, self.xp.np.sqrt(self.variance))

    def _first_moments(self) -> tuple[Any, Any, int]:
        some = slice(0, SHOWN)
        precision = np.asarray(self.precision[some], float)
        mean = np.asarray(self.precision_mean[some], float) / precision
        return mean, precision**-0.5, self.own_size

    def resampled(self, rng: np.random.Generator, factors: Self, pooled: Self, draws: int) -> Self:
        """Draw ``h ~ N(A θ, A)`` for each factor ``(h, A)``."""
        count, size = factors.precision.shape
        own = np.sqrt(np.maximum(factors.precision, 0.0))
        truth = pooled.mean + rng.standard_normal((draws, 1, size)) * np.sqrt(pooled.variance)
        slope = factors.precision * truth + own * rng.standard_normal((draws, count, size))
        precision = np.broadcast_to(self.precision + factors.precision, slope.shape)
        return type(self)(self.precision_mean + slope, precision, *self.kept())

    def squared_length(self, step: Self) -> Float[Real, ""]:
        """Return the squared length in closed form, about the mean."""
        slope = step.precision_mean - step.precision * self.mean
        return (slope**2 / self.precision + (step.precision / self.precision) ** 2 / 2).sum()

    def at_noise(self, noise: Float[Real, "*shape d"]) -> Float[Real, "*shape d"]:
        return self.mean + noise / self._factor

    def whitened(self, x: Float[Real, "*n d"]) -> Float[Real, "*n d"]:
        return x / self._factor

    def from_slopes(self, noise: Float[Real, "n d"], slopes: Float[Real, "n d"]) -> Self:
        slope = slopes.mean(0) * self._factor
        return self.at_mean(slope, -(slopes * noise).mean(0) * self.precision)


@sampler
def _draw(key: KeyArray, shape: Shape, mean: Real, deviation: Real) -> Float[Real, "*shape d"]:
    return mean + deviation * jax.random.normal(key, shape + mean.shape, mean.dtype)
