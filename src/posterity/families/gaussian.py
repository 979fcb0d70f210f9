"""Gaussians in information form: their base class, and Gaussians of full covariance."""

import abc
from typing import Any, ClassVar, Self

import numpy as np

from posterity.arrays.leaves import as_leaf, known_at_rest
from posterity.arrays.linear_algebra import gram, outer, quadratic, sum_of_squares, symmetric
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import (
    ArrayLike,
    Bool,
    Flat,
    Float,
    Floats,
    Int,
    KeyArray,
    PyTree,
    Real,
    Shape,
)
from posterity.families.base import ExponentialFamily, Line
from posterity.families.coordinates import POSITIVE_DEFINITE, Coordinates, matrix, vector
from posterity.families.formulas import NORMAL
from posterity.families.marginals import Closed, Marginal, same_shape
from posterity.families.supports import RealNumbers
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax, jnp
from posterity.runtime.programs import sampler

LOG_2PI = float(np.log(2 * np.pi))


class AnyGaussian(ExponentialFamily):
    """Base class of Gaussians; statistics are ``(z, -z zᵀ/2)``, or ``(z, -z²/2)`` if diagonal.

    For Gaussians the expected gradients and curvatures of a log likelihood are natural gradients
    (opper2009); the methods from ``at_mean`` on serve estimators and safeguarded steps, for one
    member. ``S`` is a root of the covariance ``S Sᵀ``.
    """

    precision_mean: Floats
    precision: Floats

    base_measure = -LOG_2PI / 2
    gaussian = True
    diagonal: ClassVar[bool]
    """True if coordinates are independent; precisions and covariances are then (..., d)."""

    @classmethod
    @abc.abstractmethod
    def _naturals(cls, mean: Real, spread: Real) -> dict[str, Real]:
        """Return the natural parameters, given the mean and the covariance or variances."""

    @property
    @abc.abstractmethod
    def mean(self) -> Float[Real, "*batch d"]:
        """The mean."""

    @property
    @abc.abstractmethod
    def _spread(self) -> Real:
        """The covariance, or the variances of independent coordinates."""

    @property
    def marginal_variance(self) -> Float[Real, "*batch d"]:
        """The variance of each coordinate."""
        spread = self._spread
        return spread if self.diagonal else self.xp.np.diagonal(spread, axis1=-2, axis2=-1)

    @property
    @abc.abstractmethod
    def _factor(self) -> Real:
        """``S⁻ᵀ``: the lower Cholesky factor of the precision, or its diagonal."""

    def _square(self, x: Real) -> Real:
        return x**2 if self.diagonal else outer(x)

    @property
    def support(self) -> RealNumbers:
        return RealNumbers((self.own_size,))

    def location(self) -> Float[Real, "*batch d"]:
        return self.mean

    def _translate(self, offset: PyTree) -> Self:
        moved = self.precision_mean + self.times_precision(self._own_offset(offset))
        return type(self)(moved, self.precision, *self.kept())

    def _line(self, drop: float) -> Line | None:
        if self.own_size != 1:
            return None
        np_ = namespace(self.precision).np
        deviation = 1 / np_.sqrt(self.precision.reshape(()))
        mean = self.mean[0]
        end = np.sqrt(2 * drop) * deviation

        def at(offset: PyTree) -> tuple[Any, Any, Any]:
            z = (mean + offset)[:, None]
            return z, self.sufficient_statistics(z), -((offset / deviation) ** 2) / 2

        return Line(deviation, -end, end, at)

    def marginals(self) -> list[Marginal]:
        loc, scale = same_shape(self.mean, np.sqrt(np.asarray(self.marginal_variance)))
        return [Closed(NORMAL, (loc, scale))]

    def expected_moments(self) -> tuple[Real, Real] | None:
        return np.asarray(self.mean, float), np.asarray(self._spread, float)

    def with_moments(self, mean: Real, spread: Real) -> Self:
        """Return a law like this one with other means (..., d) and covariances (..., d, d), or
        variances (..., d) if it is diagonal.
        """
        return self._with(**self._naturals(mean, spread))

    @property
    def mean_parameters(self) -> Flat:
        """``E[z]`` and ``-E[z zᵀ]/2``."""
        mean = self.mean
        return self.flatten(precision_mean=mean, precision=-(self._spread + self._square(mean)) / 2)

    def with_mean_parameters(self, vector: Flat) -> Self:
        self._check_length(vector)
        parts = self.unflatten(vector)
        mean = parts["precision_mean"]
        return self.with_moments(mean, -2 * parts["precision"] - self._square(mean))

    def sufficient_statistics(self, z: Float[Real, "*shape d"]) -> Float[Real, "*shape dim"]:
        return self.flatten(precision_mean=z, precision=-self._square(z) / 2)

    def numpy_draws(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "..."]:
        """Draw ``m + C^{1/2} ε``, by the Cholesky factor of the covariance."""
        noise = rng.standard_normal((count, *self.batch_shape, self.own_size))
        if self.diagonal:
            return np.asarray(self.mean) + np.sqrt(self._spread) * noise
        factor = np.linalg.cholesky(np.asarray(self._spread, float))
        return np.asarray(self.mean) + (factor @ noise[..., None])[..., 0]

    # --- for estimators and steps, of one member ---------------------------------------------

    def at_mean(self, slope: Float[Real, " d"], precision: Floats) -> Self:
        """Return the factor with this slope at the mean and precision: ``(slope + Λ' m, Λ')``."""
        precision = as_leaf(precision)
        moved = self._with(precision_mean=self.precision_mean, precision=precision)
        return self._with(
            precision_mean=slope + moved.times_precision(self.mean), precision=precision
        )

    def times_precision(self, vector: Floats) -> Floats:
        """Return ``Λ v``."""
        full = not self.diagonal
        return (self.precision @ vector[..., None])[..., 0] if full else self.precision * vector

    def curvature(self, hessian: Float[Real, "d d"]) -> Floats:
        """Return minus a Hessian, in the shape of the precision."""
        return -namespace(hessian).np.diagonal(hessian) if self.diagonal else -hessian

    def predictor(self, x: Float[Real, "n d"]) -> tuple[Float[Real, " n"], Float[Real, " n"]]:
        """Return the mean and variance of ``x · z`` for each row; variances are sums of squares."""
        variance = x**2 @ self._spread if self.diagonal else sum_of_squares(self.whitened(x))
        return x @ self.mean, variance

    def gram(self, x: Float[Real, "n d"], weights: Float[Real, " n"]) -> Floats:
        """Return ``Xᵀ W X``, in the shape of the precision."""
        return weights @ x**2 if self.diagonal else gram(x, weights)

    @abc.abstractmethod
    def at_noise(self, noise: Float[Real, "*shape d"]) -> Float[Real, "*shape d"]:
        """Return the events ``m + S ε``."""

    @abc.abstractmethod
    def whitened(self, x: Float[Real, "*n d"]) -> Float[Real, "*n d"]:
        """Return ``Sᵀ x`` for each row, so that ``x · z = x · m + (Sᵀ x) · ε``."""

    def unwhitened(self, slopes: Float[Real, "*shape d"]) -> Float[Real, "*shape d"]:
        """Return ``S⁻ᵀ v``, which maps gradients in ``ε`` to gradients in ``m + S ε``."""
        return slopes * self._factor if self.diagonal else slopes @ self._factor.T

    @abc.abstractmethod
    def from_slopes(self, noise: Float[Real, "n d"], slopes: Float[Real, "n d"]) -> Self:
        """Return the natural gradient of the mean over ``n`` of ``f(m + S ε)``, from ``∇_ε f``.

        It is the exact gradient of this mean as a function of ``m`` and ``S Sᵀ``. For noise of
        mean zero and unit covariance, by Stein's lemma, it estimates ``E[∇f]`` and ``E[∇²f]``
        (opper2009).
        """


def log_normal(gap: Float[Real, "*shape d"], precision: Float[Real, "*shape d d"]) -> Floats:
    """Return the log density, in nats, of normal vectors at these differences from their means."""
    xp = namespace(gap, precision)
    logdet = xp.logdet(xp.cholesky(precision))
    return (logdet - quadratic(precision, gap) - gap.shape[-1] * LOG_2PI) / 2


class Gaussian(AnyGaussian):
    """The Gaussian ``N(z | m, C)`` with full covariance; statistics ``(z, -z zᵀ/2)``.

    Natural parameters: ``precision_mean`` ``C⁻¹ m`` and ``precision`` ``C⁻¹``.

    >>> q = Gaussian.from_standard(mean=[0.0, 1.0], covariance=[[2.0, 0.0], [0.0, 1.0]])
    >>> q.mean
    array([0., 1.])
    """

    precision_mean: Float[Real, "*batch d"]
    precision: Float[Real, "*batch d d"]

    coordinates: ClassVar[Coordinates] = {
        "precision_mean": vector(),
        "precision": matrix(POSITIVE_DEFINITE),
    }
    standard: ClassVar[Coordinates] = {"mean": vector(), "covariance": matrix(POSITIVE_DEFINITE)}
    diagonal = False

    @classmethod
    def from_standard(cls, mean: ArrayLike, covariance: ArrayLike) -> Self:
        """Make a law from the mean (..., d) and the covariance (..., d, d)."""
        known = cls._checked(mean=mean, covariance=covariance)
        return cls._of(**cls._naturals(**known))._held()

    @classmethod
    def _naturals(cls, mean: Real, covariance: Real) -> dict[str, Real]:
        precision = namespace(covariance).inverse_positive(covariance)
        return {"precision_mean": (precision @ mean[..., None])[..., 0], "precision": precision}

    @property
    def mean(self) -> Float[Real, "*batch d"]:
        return self._mean if is_jax(self._mean) else self._mean.copy()

    @known_at_rest
    def _mean(self) -> Float[Real, "*batch d"]:
        return self.xp.solve_positive(self.precision, self.precision_mean)

    @known_at_rest
    def _factor(self) -> Float[Real, "*batch d d"]:
        return self.xp.cholesky(self.precision)

    @known_at_rest
    def _inverse_factor(self) -> Float[Real, "*batch d d"]:
        """``L⁻¹``."""
        return self.xp.inverse_lower(self._factor)

    def is_proper(self) -> Bool[Real, "*batch"]:
        isfinite = self.xp.np.isfinite
        return isfinite(self._factor).all((-2, -1)) & isfinite(self.precision_mean).all(-1)

    @property
    def covariance(self) -> Float[Real, "*batch d d"]:
        """The covariance."""
        if self.batch_shape:
            return self.xp.inverse_positive(self.precision)
        return self._inverse_factor.T @ self._inverse_factor

    @property
    def _spread(self) -> Real:
        return self.covariance

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return ``(mᵀ C⁻¹ m + log|C|) / 2``."""
        logdet = self.xp.logdet(self._factor)
        return ((self.precision_mean * self.mean).sum(-1) - logdet) / 2

    def inverse_fisher_product(self, vector: Flat) -> Flat:
        """Return the derivative of ``η`` along ``μ``, in closed form."""
        parts = self.unflatten(vector)
        mean = self.mean
        step = parts["precision_mean"]
        cross = step[..., :, None] * mean[..., None, :]
        shrinkage = 2 * (parts["precision"] + symmetric(cross))
        precision = symmetric(self.precision @ shrinkage @ self.precision)
        moved = precision @ mean[..., None] + self.precision @ step[..., None]
        return self.flatten(precision_mean=moved[..., 0], precision=precision)

    def _log_prob(self, z: Float[Real, "*shape d"]) -> Floats:
        """Return the log density, centred so that it is accurate for means far from the origin."""
        logdet = self.xp.logdet(self._factor)
        return self.log_base_measure() + (logdet - quadratic(self.precision, z - self.mean)) / 2

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """Return ``(log|C⁻¹| - d) / 2``, which does not depend on the mean."""
        logdet = self.xp.logdet(self._factor)
        return (logdet - self.precision.shape[-1]) / 2

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        """Return the divergence, centred and by Cholesky factors (bishop2006, exercise 2.13)."""
        logdet = namespace(self.precision, other.precision).logdet
        theirs = other._factor
        ratio = self._inverse_factor @ theirs  # tr(Λ' Λ⁻¹) = ||L⁻¹ L'||²
        eigenvalue_excess = (ratio**2).sum((-2, -1)) - ratio.shape[-1]
        distance = quadratic(other.precision, self.mean - other.mean)
        return (eigenvalue_excess - logdet(theirs) + logdet(self._factor) + distance) / 2

    def sample(self, key: KeyArray, shape: Shape = ()) -> Float[Real, "*shape d"]:
        """Draw ``m + L⁻ᵀ ε`` with ``L`` the Cholesky factor of the precision."""
        return _draw(key, shape, self.mean, self._inverse_factor)

    def sample_members(self, key: KeyArray, labels: Int[Real, "*shape"]) -> Any:
        """Draw from the labelled members; each member's precision is factorised once."""
        return _draw(key, (), self.mean, self._inverse_factor, labels)

    def resampled(self, rng: np.random.Generator, factors: Self, pooled: Self, draws: int) -> Self:
        """Draw ``h ~ N(A θ, A)`` for each factor ``(h, A)``, relative to the prior's mean."""
        count = len(factors.precision)
        size = self.own_size
        noise = rng.standard_normal((draws, count, size))
        root = np.linalg.cholesky(np.asarray(pooled.covariance))
        truth = pooled.mean + rng.standard_normal((draws, 1, size)) @ root.T
        values, vectors = np.linalg.eigh(factors.precision)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        slope = factors.precision @ (truth - self.mean)[..., None] + root @ noise[..., None]
        precision = self.precision + factors.precision
        precision = np.broadcast_to(precision, (draws, count, size, size))
        return type(self)(slope[..., 0], precision)

    def squared_length(self, step: Self) -> Float[Real, ""]:
        """Return the squared length in closed form, about the mean."""
        half = self._inverse_factor
        slope = step.precision_mean - step.times_precision(self._mean)
        turned = half @ step.precision @ half.mT
        return ((half @ slope[..., None]) ** 2).sum() + (turned**2).sum() / 2

    def at_noise(self, noise: Float[Real, "*shape d"]) -> Float[Real, "*shape d"]:
        """Return ``m + S ε`` with ``S = L⁻ᵀ``, where ``L`` is the precision's Cholesky factor."""
        return self.mean + noise @ self._inverse_factor

    def whitened(self, x: Float[Real, "*n d"]) -> Float[Real, "*n d"]:
        """Return ``Sᵀ x``, multiplied by ``L⁻¹``: solves of many columns would wait on threads."""
        return x @ self._inverse_factor.T

    def from_slopes(self, noise: Float[Real, "n d"], slopes: Float[Real, "n d"]) -> Self:
        """Return the natural gradient; as ``S`` is triangular, half of ``E[∇_ε f εᵀ]`` is used."""
        np_ = self.xp.np
        factor = self._factor
        moments = np_.triu(slopes.T @ noise) / len(noise)
        curvature = moments + np_.triu(moments, 1).T
        return self.at_mean(factor @ slopes.mean(0), -symmetric(factor @ curvature @ factor.T))


@sampler
def _draw(
    key: KeyArray,
    shape: Shape,
    mean: Real,
    half: Real,
    labels: Int[Real, "*shape"] | None = None,
) -> Float[Real, "*shape d"]:
    """Draw ``m + L⁻ᵀ ε``, given ``L⁻¹``; with labels, of the member at each of them."""
    if labels is not None:
        mean = mean[labels]
        half = half[labels]
    noise = jax.random.normal(key, shape + mean.shape, half.dtype)
    return mean + jnp.einsum("...ij,...i->...j", half, noise)
