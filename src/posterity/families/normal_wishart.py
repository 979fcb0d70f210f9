"""The Normal-Wishart family."""

from typing import ClassVar, Self

import numpy as np

from posterity.arrays.leaves import known_at_rest
from posterity.arrays.linear_algebra import (
    quadratic,
    symmetric,
)
from posterity.arrays.namespace import namespace
from posterity.arrays.typing import ArrayLike, Bool, Flat, Float, Floats, KeyArray, Real, Shape
from posterity.families.coordinates import (
    ABOVE_MINUS_ONE,
    POSITIVE,
    POSITIVE_DEFINITE,
    Coordinates,
    checked,
    matrix,
    scalar,
    vector,
)
from posterity.families.gaussian import LOG_2PI, log_normal
from posterity.families.normal_precision import NormalPrecision
from posterity.families.supports import PositiveDefiniteMatrices, RealNumbers
from posterity.families.wishart import (
    MORE_THAN_SIZE,
    Wishart,
    bartlett_root,
    drawn_root,
    unit_scatter,
)
from posterity.runtime.lazy import jax, jnp
from posterity.runtime.programs import sampler

Pair = tuple[Float[Real, "*shape d"], Float[Real, "*shape d d"]]


class NormalWishart(NormalPrecision):
    """The law ``N(μ | m, (κ Λ)⁻¹) W(Λ | S, ν)``; an event is the pair ``(μ, Λ)``.

    Natural parameters: ``mean_precision`` ``κ``, ``degrees`` ``ν - d``, ``precision_mean``
    ``κ m``, ``scatter`` ``S⁻¹ + κ m mᵀ``; statistics ``(-μᵀΛμ/2, log|Λ|/2, Λμ, -Λ/2)``.
    ``scatter`` includes the squared mean: in float32 means should be within some hundred standard
    deviations of the origin (float64: millions); translate otherwise.

    Source: bishop2006, section 10.2.

    >>> q = NormalWishart.from_standard(
    ...     mean=[1.0, 2.0], mean_precision=4.0, scale=np.eye(2), degrees_of_freedom=5.0)
    >>> q.mean
    array([1., 2.])
    """

    mean_precision: Float[Real, "*batch"]
    degrees: Float[Real, "*batch"]
    precision_mean: Float[Real, "*batch d"]
    scatter: Float[Real, "*batch d d"]

    coordinates: ClassVar[Coordinates] = {
        "mean_precision": scalar(POSITIVE),
        "degrees": scalar(ABOVE_MINUS_ONE),
        "precision_mean": vector(),
        "scatter": matrix(POSITIVE_DEFINITE),
    }
    standard: ClassVar[Coordinates] = {
        "mean": vector(),
        "mean_precision": scalar(POSITIVE),
        "scale": matrix(POSITIVE_DEFINITE),
        "degrees_of_freedom": scalar(MORE_THAN_SIZE),
    }
    whole = True

    @classmethod
    def from_standard(
        cls,
        mean: ArrayLike,
        mean_precision: ArrayLike,
        scale: ArrayLike,
        degrees_of_freedom: ArrayLike,
    ) -> Self:
        """Make a law from ``m`` (..., d), ``κ`` (...), ``S`` (..., d, d) and ``ν`` (...)."""
        known = cls._checked(
            mean=mean,
            mean_precision=mean_precision,
            scale=scale,
            degrees_of_freedom=degrees_of_freedom,
        )
        inverse = namespace(known["scale"]).inverse_positive(known.pop("scale"))
        return cls._about_mean(inverse_scale=inverse, **known)._held()

    @classmethod
    def from_inverse_scale(
        cls,
        mean: ArrayLike,
        mean_precision: ArrayLike,
        inverse_scale: ArrayLike,
        degrees_of_freedom: ArrayLike,
    ) -> Self:
        """Make a law from ``S⁻¹`` instead of ``S``, without an inversion."""
        kinds = {n.replace("scale", "inverse_scale"): kind for n, kind in cls.standard.items()}
        values = (mean, mean_precision, inverse_scale, degrees_of_freedom)
        known = checked(kinds, dict(zip(kinds, values, strict=True)), cls.__name__)
        return cls._about_mean(**known)._held()

    @known_at_rest
    def wishart(self) -> Wishart:
        """The marginal of the precision ``Λ``."""
        return Wishart._of(degrees=self.degrees - 1, inverse_scale=self.inverse_scale)

    @property
    def scale(self) -> Float[Real, "*batch d d"]:
        """The scale ``S``."""
        return self.wishart.scale

    @property
    def support(self) -> tuple[RealNumbers, PositiveDefiniteMatrices]:
        size = self.own_size
        return RealNumbers((size,)), PositiveDefiniteMatrices((size, size))

    def observations(self) -> Float[Real, "*batch"]:
        return self.mean_precision

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return the Wishart's log normalizer less ``d/2 log κ``, for the mean given ``Λ``."""
        log = self.xp.np.log
        return self.wishart.log_normalizer() - self.own_size / 2 * log(self.mean_precision)

    @property
    def mean_parameters(self) -> Flat:
        """``E[-μᵀΛμ/2], E[log|Λ|]/2, E[Λμ], -E[Λ]/2``."""
        wishart = self.wishart
        mean = self._mean
        precision = wishart.mean
        located = (precision @ mean[..., None])[..., 0]
        square = (located * mean).sum(-1)
        return self.flatten(
            mean_precision=-(self.own_size / self.mean_precision + square) / 2,
            degrees=wishart.expected_log_determinant() / 2,
            precision_mean=located,
            scatter=-precision / 2,
        )

    def with_mean_parameters(self, vector: Flat) -> Self:
        """Solve for the precision as in the Wishart, then for ``m`` and ``κ``."""
        self._check_length(vector)
        parts = self.unflatten(vector)
        xp = namespace(vector)
        precision = -2 * parts["scatter"]
        mean = xp.solve_positive(precision, parts["precision_mean"])
        kappa = self.own_size / (-2 * parts["mean_precision"] - quadratic(precision, mean))
        marginal = self.wishart
        wishart = marginal.with_mean_parameters(
            marginal.flatten(degrees=parts["degrees"], inverse_scale=parts["scatter"])
        )
        return self._about_mean(mean, kappa, wishart.inverse_scale, wishart.degrees_of_freedom)

    def sufficient_statistics(self, z: Pair) -> Float[Real, "*shape dim"]:
        mean, precision = z
        xp = namespace(mean, precision)
        return self.flatten(
            mean_precision=-quadratic(precision, mean) / 2,
            degrees=xp.logdet(xp.cholesky(precision)) / 2,
            precision_mean=(precision @ mean[..., None])[..., 0],
            scatter=-precision / 2,
        )

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Tell whether ``κ > 0``, ``ν > d - 1`` and ``S`` is positive definite."""
        kappa = self.mean_precision
        isfinite = self.xp.np.isfinite
        with np.errstate(all="ignore"):  # of a mean without precision
            spread = self.wishart.is_proper()
        return spread & isfinite(kappa) & (kappa > 0) & isfinite(self.precision_mean).all(-1)

    def negative_entropy(self) -> Float[Real, "*batch"]:
        """Return the negative entropy of the precision plus that of the mean given it."""
        wishart = self.wishart
        log = self.xp.np.log
        conditional = self.own_size * (log(self.mean_precision) - 1)
        return wishart.negative_entropy() + (conditional + wishart.expected_log_determinant()) / 2

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        ratio = other.mean_precision / self.mean_precision
        log = namespace(ratio).np.log
        distance = quadratic(self.wishart.mean, self._mean - other._mean)
        means = self.own_size * (ratio - 1 - log(ratio)) + other.mean_precision * distance
        return self.wishart.kl(other.wishart) + means / 2

    def _log_prob(self, z: Pair) -> Floats:
        mean, precision = z
        conditional = log_normal(mean - self.mean, self.mean_precision[..., None, None] * precision)
        return self.wishart.log_prob(precision) + conditional

    def sample(self, key: KeyArray, shape: Shape = ()) -> Pair:
        """Draw ``Λ`` from its marginal, then ``μ`` given ``Λ``."""
        root = self.xp.np.sqrt(self.mean_precision)
        return _draw(key, shape, self.mean, root, *self.wishart.bartlett())

    # --- as about a Gaussian, and as what is observed ---------------------------------------------

    def resampled(self, rng: np.random.Generator, factors: Self, pooled: Self, draws: int) -> Self:
        """Draw means and scatter matrices of each site's records, about the prior's mean."""
        records = np.maximum(factors.mean_precision, 0.0)
        size = self.own_size
        count = len(records)
        root = np.linalg.cholesky(np.linalg.inv(np.asarray(pooled.inverse_scale)))
        turned = root @ bartlett_root(rng, float(pooled.degrees_of_freedom), size, draws)
        inner = np.swapaxes(np.linalg.inv(turned), -1, -2)[:, None]  # a root of the covariance

        def normal(*shape):
            return rng.standard_normal((*shape, size, 1))

        truth = pooled.mean + (inner @ normal(draws, 1))[..., 0] / np.sqrt(pooled.mean_precision)
        wide = np.sqrt(np.maximum(records, np.finfo(float).tiny))[:, None]
        mean = truth + (inner @ normal(draws, count))[..., 0] / wide
        scatters = [unit_scatter(rng, float(n) - 1, size, draws) for n in records]
        scatter = inner @ np.stack(scatters, axis=1) @ np.swapaxes(inner, -1, -2)
        apart = mean - self.mean
        shape = (draws, count)
        spread = apart[..., :, None] * apart[..., None, :]
        return type(self)(
            np.broadcast_to(self.mean_precision + records, shape),
            np.broadcast_to(self.degrees + factors.degrees, shape),
            records[:, None] * apart,
            self.inverse_scale + scatter + records[:, None, None] * spread,
        )

    def expected_log_likelihood(self, x: Float[Real, "*shape d"]) -> Float[Real, "*shape k"]:
        """Return the expectation, by distances from the mean, which is accurate for any origin."""
        gap = x[..., None, :] - self._mean
        wishart = self.wishart
        size = self.own_size
        spread = size / self.mean_precision + quadratic(wishart.mean, gap)
        return (wishart.expected_log_determinant() - spread - size * LOG_2PI) / 2

    def observed(self, x: Float[Real, "n d"], weights: Float[Real, "n k"]) -> Self:
        count = weights.sum(0)
        np_ = namespace(weights, x).np
        # A member at a time: all products of records would be d times the data.
        scatter = np_.stack([(x.T * weights[:, k]) @ x for k in range(weights.shape[1])])
        return type(self)(count, count, weights.T @ x, symmetric(scatter))


@sampler
def _draw(key: KeyArray, shape: Shape, mean: Real, root: Real, halves: Real, factor: Real) -> Pair:
    """Draw from the mean, the root of its precision, and what Bartlett's decomposition takes."""
    first, second = jax.random.split(key)
    lower = drawn_root(first, shape, halves, factor)
    noise = jax.random.normal(second, (*lower.shape[:-2], 1, lower.shape[-1]), lower.dtype)
    scaled = (noise @ namespace(lower).inverse_lower(lower))[..., 0, :] / root[..., None]
    return mean + scaled, lower @ jnp.swapaxes(lower, -1, -2)
