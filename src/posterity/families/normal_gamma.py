"""The Normal-Gamma family: the Normal-Wishart of a Gaussian with diagonal covariance."""

from typing import ClassVar, Self

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import ArrayLike, Bool, Flat, Float, Floats, KeyArray, Real, Shape
from posterity.families.coordinates import ABOVE_MINUS_ONE, POSITIVE, Coordinates, vector
from posterity.families.gaussian import LOG_2PI
from posterity.families.normal_precision import NormalPrecision
from posterity.families.normal_wishart import NormalWishart
from posterity.families.supports import PositiveNumbers, RealNumbers

Pair = tuple[Float[Real, "*shape d"], Float[Real, "*shape d"]]


class NormalGamma(NormalPrecision):
    """The law of ``d`` independent means and precisions; an event is the pair ``(μ, λ)``.

    For each coordinate ``N(μ | m, 1/(κ λ)) Gamma(λ | ν/2, rate s/2)``, ``s`` the inverse
    scale. Natural parameters, all (..., d): ``mean_precision`` ``κ``, ``degrees`` ``ν - 1``,
    ``precision_mean`` ``κ m``, ``scatter`` ``s + κ m²``.

    >>> q = NormalGamma.from_standard(
    ...     mean=[1.0], mean_precision=[2.0], inverse_scale=[3.0], degrees_of_freedom=[4.0])
    >>> q.mean
    array([1.])
    """

    mean_precision: Float[Real, "*batch d"]
    degrees: Float[Real, "*batch d"]
    precision_mean: Float[Real, "*batch d"]
    scatter: Float[Real, "*batch d"]

    coordinates: ClassVar[Coordinates] = {
        "mean_precision": vector(POSITIVE),
        "degrees": vector(ABOVE_MINUS_ONE),
        "precision_mean": vector(),
        "scatter": vector(POSITIVE),
    }
    standard: ClassVar[Coordinates] = {
        "mean": vector(),
        "mean_precision": vector(POSITIVE),
        "inverse_scale": vector(POSITIVE),
        "degrees_of_freedom": vector(POSITIVE),
    }
    whole = False

    @classmethod
    def from_standard(
        cls,
        mean: ArrayLike,
        mean_precision: ArrayLike,
        inverse_scale: ArrayLike,
        degrees_of_freedom: ArrayLike,
    ) -> Self:
        """Make a law from ``m``, ``κ``, ``s`` and ``ν``, each (..., d)."""
        known = cls._checked(
            mean=mean,
            mean_precision=mean_precision,
            inverse_scale=inverse_scale,
            degrees_of_freedom=degrees_of_freedom,
        )
        return cls._about_mean(**known)._held()

    @property
    def coordinatewise(self) -> NormalWishart:
        """The law as a batch (..., d) of one-dimensional Normal-Wisharts."""
        return NormalWishart._of(
            mean_precision=self.mean_precision,
            degrees=self.degrees,
            precision_mean=self.precision_mean[..., None],
            scatter=self.scatter[..., None, None],
        )

    @property
    def support(self) -> tuple[RealNumbers, PositiveNumbers]:
        return (RealNumbers((self.own_size,)), PositiveNumbers((self.own_size,)))

    def observations(self) -> Float[Real, "*batch"]:
        """Return ``κ``, averaged over coordinates."""
        return self.mean_precision.mean(-1)

    def log_normalizer(self) -> Float[Real, "*batch"]:
        return self.coordinatewise.log_normalizer().sum(-1)

    @property
    def mean_parameters(self) -> Flat:
        """``E[-λμ²/2], E[log λ]/2, E[λμ], -E[λ]/2``, each for all coordinates."""
        return _coordinates_last(self.coordinatewise.mean_parameters)

    def with_mean_parameters(self, vector: Flat) -> Self:
        self._check_length(vector)
        grid = vector.reshape(*vector.shape[:-1], 4, vector.shape[-1] // 4)
        grid = namespace(vector).np.swapaxes(grid, -1, -2)
        one = self.coordinatewise.with_mean_parameters(grid)
        return type(self)._of(
            mean_precision=one.mean_precision,
            degrees=one.degrees,
            precision_mean=one.precision_mean[..., 0],
            scatter=one.scatter[..., 0, 0],
        )

    def sufficient_statistics(self, z: Pair) -> Float[Real, "*shape dim"]:
        """``(-λμ²/2, log λ/2, λμ, -λ/2)``."""
        return _coordinates_last(self.coordinatewise.sufficient_statistics(_as_matrices(z)))

    def is_proper(self) -> Bool[Real, "*batch"]:
        return self.coordinatewise.is_proper().all(-1)

    def _log_prob(self, z: Pair) -> Floats:
        return self.coordinatewise.log_prob(_as_matrices(z)).sum(-1)

    def negative_entropy(self) -> Float[Real, "*batch"]:
        return self.coordinatewise.negative_entropy().sum(-1)

    def _kl(self, other: Self) -> Float[Real, "*batch"]:
        return self.coordinatewise.kl(other.coordinatewise).sum(-1)

    def sample(self, key: KeyArray, shape: Shape = ()) -> Pair:
        mean, precision = self.coordinatewise.sample(key, shape)
        return mean[..., 0], precision[..., 0, 0]

    def resampled(self, rng: np.random.Generator, factors: Self, pooled: Self, draws: int) -> Self:
        records = np.maximum(factors.mean_precision, 0.0)
        shape = (draws, *records.shape)
        own = (draws, 1, self.own_size)
        rate = np.asarray(pooled.inverse_scale) / 2
        precision = rng.gamma(pooled.degrees_of_freedom / 2, size=own) / rate
        truth = pooled.mean + rng.standard_normal(own) / np.sqrt(pooled.mean_precision * precision)
        tiny = np.finfo(float).tiny
        mean = truth + rng.standard_normal(shape) / np.sqrt(np.maximum(records * precision, tiny))
        free = np.maximum(records - 1, 0.0) / 2
        square = np.where(free > 0, rng.gamma(np.maximum(free, tiny), size=shape), 0.0)
        square = square * 2 / precision
        apart = mean - self.mean
        return type(self)(
            np.broadcast_to(self.mean_precision + records, shape),
            np.broadcast_to(self.degrees + factors.degrees, shape),
            records * apart,
            self.inverse_scale + square + records * apart**2,
        )

    def expected_log_likelihood(self, x: Float[Real, "*shape d"]) -> Float[Real, "*shape k"]:
        every = self.coordinatewise
        gap = x[..., None, :] - self.mean
        log = every.wishart.expected_log_determinant()
        precision = every.wishart.mean[..., 0, 0]
        return (log - 1 / self.mean_precision - precision * gap**2 - LOG_2PI).sum(-1) / 2

    def observed(self, x: Float[Real, "n d"], weights: Float[Real, "n k"]) -> Self:
        total = weights.T @ x
        count = weights.sum(0)[:, None] * namespace(weights, x).np.ones_like(total)
        return type(self)(count, count, total, weights.T @ x**2)


def _as_matrices(z: tuple[Real, Real]) -> tuple[Real, Real]:
    mean, precision = z
    return mean[..., None], precision[..., None, None]


def _coordinates_last(statistics: Real) -> Real:
    """Reshape (..., d, 4) to (..., 4 d), with coordinates as the fastest axis."""
    swapped = namespace(statistics).np.swapaxes(statistics, -1, -2)
    return swapped.reshape(*swapped.shape[:-2], 4 * swapped.shape[-1])
