"""Gaussians in information form: full and diagonal covariance."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Key

from posterity.arrays.namespace import (
    Real,
    as_leaf,
    namespace,
    outer,
    quadratic,
    symmetric,
)
from posterity.families.base import SYMMETRIC, VECTOR, ExponentialFamily

LOG_2PI = float(np.log(2 * np.pi))


class Gaussian(ExponentialFamily):
    """``N(z | m, C)`` with full covariance; statistics ``(z, -z zᵀ/2)``.

    Natural parameters: ``precision_mean`` ``C⁻¹ m`` and ``precision`` ``C⁻¹``.

    >>> q = Gaussian.from_standard(mean=[0.0, 1.0], covariance=[[2.0, 0.0], [0.0, 1.0]])
    >>> q.mean
    array([0., 1.])
    """

    precision_mean: Float[Real, "*batch d"] = eqx.field(converter=as_leaf)
    precision: Float[Real, "*batch d d"] = eqx.field(converter=as_leaf)

    coordinates: ClassVar[dict[str, int]] = {"precision_mean": VECTOR, "precision": SYMMETRIC}

    @classmethod
    def from_standard(cls, mean: Any, covariance: Any) -> Self:
        """From the mean (..., d) and the covariance (..., d, d)."""
        mean, covariance = as_leaf(mean), as_leaf(covariance)
        precision = symmetric(namespace(covariance).np.linalg.inv(covariance))
        return cls((precision @ mean[..., None])[..., 0], precision)

    def standard_parameters(self) -> dict[str, Real]:
        """``mean`` and ``covariance``."""
        return {"mean": self.mean, "covariance": self.covariance}

    @property
    def mean(self) -> Float[Real, "*batch d"]:
        """The mean."""
        return self.xp.solve_vectors(self.precision, self.precision_mean)

    @property
    def covariance(self) -> Float[Real, "*batch d d"]:
        """The covariance."""
        return symmetric(self.xp.np.linalg.inv(self.precision))

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """``(mᵀ C⁻¹ m + log|C|) / 2``."""
        logdet = self.xp.logdet(self.xp.cholesky(self.precision))
        return ((self.precision_mean * self.mean).sum(-1) - logdet) / 2

    @property
    def mean_parameters(self) -> Float[Real, "*batch dim"]:
        """``E[z]`` and ``-E[z zᵀ]/2``."""
        mean = self.mean
        return self.flatten(precision_mean=mean, precision=-(self.covariance + outer(mean)) / 2)

    def inverse_fisher_product(
        self, vector: Float[Real, "*batch dim"]
    ) -> Float[Real, "*batch dim"]:
        """The derivative of ``η`` along ``μ``, in closed form."""
        parts, mean = self.unflatten(vector), self.mean
        step = parts["precision_mean"]
        cross = step[..., :, None] * mean[..., None, :]
        shrinkage = 2 * (parts["precision"] + symmetric(cross))
        precision = symmetric(self.precision @ shrinkage @ self.precision)
        moved = precision @ mean[..., None] + self.precision @ step[..., None]
        return self.flatten(precision_mean=moved[..., 0], precision=precision)

    def with_mean_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """Moment matching."""
        parts = self.unflatten(vector)
        mean = parts["precision_mean"]
        return self.from_standard(mean, -2 * parts["precision"] - outer(mean))

    def sufficient_statistics(self, z: Float[Real, "*shape d"]) -> Float[Real, "*shape dim"]:
        """``(z, -z zᵀ/2)``."""
        return self.flatten(precision_mean=z, precision=-outer(z) / 2)

    def log_base_measure(self) -> float:
        """``-d/2 log 2π``."""
        return -self.precision_mean.shape[-1] / 2 * LOG_2PI

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether the precision is positive definite and all is finite."""
        xp = self.xp
        finite = xp.np.isfinite(self.precision_mean).all(-1)
        return finite & xp.np.isfinite(xp.cholesky(self.precision)).all((-2, -1))

    def log_prob(self, z: Float[Real, "*shape d"]) -> Float[Real, "..."]:
        """Log density, centred: it keeps its digits with means far from the origin."""
        logdet = self.xp.logdet(self.xp.cholesky(self.precision))
        return self.log_base_measure() + (logdet - quadratic(self.precision, z - self.mean)) / 2

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """``(log|C⁻¹| - d) / 2``, whatever the mean."""
        logdet = self.xp.logdet(self.xp.cholesky(self.precision))
        return (logdet - self.precision.shape[-1]) / 2

    def kl(self, other: Self) -> Float[Real, "*batch"]:
        """``KL(self || other)``, centred and by Cholesky (bishop2006, exercise 2.13)."""
        xp = namespace(self.precision, other.precision)
        mine, theirs = xp.cholesky(self.precision), xp.cholesky(other.precision)
        ratio = xp.np.linalg.solve(mine, theirs)  # tr(Λ' Λ⁻¹) = ||L⁻¹ L'||²
        eigenvalue_excess = (ratio**2).sum((-2, -1)) - ratio.shape[-1]
        distance = quadratic(other.precision, self.mean - other.mean)
        return (eigenvalue_excess - xp.logdet(theirs) + xp.logdet(mine) + distance) / 2

    def translate(self, offset: Float[Real, "*batch d"]) -> Self:
        """The law of ``z + offset``."""
        moved = (self.precision @ as_leaf(offset)[..., None])[..., 0]
        return type(self)(self.precision_mean + moved, self.precision)

    def location(self) -> Float[Real, "*batch d"]:
        """Where ``translate`` would move it from: the mean."""
        return self.mean

    def sample(
        self, key: Key[jax.Array, ""], shape: tuple[int, ...] = ()
    ) -> Float[jax.Array, "*shape d"]:
        """``m + L⁻ᵀ ε`` with ``L`` the Cholesky factor of the precision."""
        factor = jnp.linalg.cholesky(jnp.asarray(self.precision))
        noise = jax.random.normal(key, shape + self.precision_mean.shape, factor.dtype)
        factor = jnp.broadcast_to(factor, noise.shape[:-1] + factor.shape[-2:])
        scaled = jax.scipy.linalg.solve_triangular(
            jnp.swapaxes(factor, -1, -2), noise[..., None], lower=False
        )
        return jnp.asarray(self.mean) + scaled[..., 0]


class DiagonalGaussian(ExponentialFamily):
    """``N(z | m, diag(v))``; statistics ``(z, -z²/2)``.

    Natural parameters: ``precision_mean`` ``m/v`` and ``precision`` ``1/v``.

    >>> DiagonalGaussian.from_standard(mean=[3.0], variance=[4.0]).variance
    array([4.])
    """

    precision_mean: Float[Real, "*batch d"] = eqx.field(converter=as_leaf)
    precision: Float[Real, "*batch d"] = eqx.field(converter=as_leaf)

    coordinates: ClassVar[dict[str, int]] = {"precision_mean": VECTOR, "precision": VECTOR}

    @classmethod
    def from_standard(cls, mean: Any, variance: Any) -> Self:
        """From the mean and the variance, both (..., d)."""
        mean, variance = as_leaf(mean), as_leaf(variance)
        return cls(mean / variance, 1 / variance)

    def standard_parameters(self) -> dict[str, Real]:
        """``mean`` and ``variance``."""
        return {"mean": self.mean, "variance": self.variance}

    @property
    def mean(self) -> Float[Real, "*batch d"]:
        """The mean."""
        return self.precision_mean / self.precision

    @property
    def variance(self) -> Float[Real, "*batch d"]:
        """The variances."""
        return 1 / self.precision

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """``Σ (m²/v + log v) / 2``."""
        log = self.xp.np.log
        return (self.precision_mean * self.mean - log(self.precision)).sum(-1) / 2

    @property
    def mean_parameters(self) -> Float[Real, "*batch dim"]:
        """``E[z]`` and ``-E[z²]/2``."""
        mean = self.mean
        return self.flatten(precision_mean=mean, precision=-(self.variance + mean**2) / 2)

    def inverse_fisher_product(
        self, vector: Float[Real, "*batch dim"]
    ) -> Float[Real, "*batch dim"]:
        """The derivative of ``η`` along ``μ``, in closed form."""
        parts, mean = self.unflatten(vector), self.mean
        step = parts["precision_mean"]
        precision = 2 * self.precision**2 * (parts["precision"] + step * mean)
        moved = precision * mean + self.precision * step
        return self.flatten(precision_mean=moved, precision=precision)

    def with_mean_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """Moment matching."""
        parts = self.unflatten(vector)
        mean = parts["precision_mean"]
        return self.from_standard(mean, -2 * parts["precision"] - mean**2)

    def sufficient_statistics(self, z: Float[Real, "*shape d"]) -> Float[Real, "*shape dim"]:
        """``(z, -z²/2)``."""
        return self.flatten(precision_mean=z, precision=-(z**2) / 2)

    def log_base_measure(self) -> float:
        """``-d/2 log 2π``."""
        return -self.precision_mean.shape[-1] / 2 * LOG_2PI

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether every variance is positive and all is finite."""
        np_ = self.xp.np
        finite = np_.isfinite(self.precision_mean) & np_.isfinite(self.precision)
        return (finite & (self.precision > 0)).all(-1)

    def log_prob(self, z: Float[Real, "*shape d"]) -> Float[Real, "..."]:
        """Log density, centred."""
        standardized = self.precision * (z - self.mean) ** 2
        logdet = self.xp.np.log(self.precision)
        return self.log_base_measure() + (logdet - standardized).sum(-1) / 2

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """``Σ (log 1/v - 1) / 2``, whatever the mean."""
        return (self.xp.np.log(self.precision) - 1).sum(-1) / 2

    def kl(self, other: Self) -> Float[Real, "*batch"]:
        """``KL(self || other)``, centred."""
        xp = namespace(self.precision, other.precision).np
        # log1p of a small difference: near-equal variances keep their digits, and far ones too.
        excess = (other.precision - self.precision) / self.precision
        near = xp.where(abs(excess) < 0.5, excess, 0.0)
        log = xp.where(near == excess, xp.log1p(near), xp.log(other.precision / self.precision))
        distance = other.precision * (self.mean - other.mean) ** 2
        return (excess - log + distance).sum(-1) / 2

    def translate(self, offset: Float[Real, "*batch d"]) -> Self:
        """The law of ``z + offset``."""
        return type(self)(self.precision_mean + self.precision * offset, self.precision)

    def location(self) -> Float[Real, "*batch d"]:
        """Where ``translate`` would move it from: the mean."""
        return self.mean

    def sample(
        self, key: Key[jax.Array, ""], shape: tuple[int, ...] = ()
    ) -> Float[jax.Array, "*shape d"]:
        """``m + sqrt(v) ε``."""
        mean, variance = jnp.asarray(self.mean), jnp.asarray(self.variance)
        noise = jax.random.normal(key, shape + mean.shape, mean.dtype)
        return mean + jnp.sqrt(variance) * noise
