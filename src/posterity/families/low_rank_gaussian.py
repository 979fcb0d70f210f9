"""Gaussians whose covariance is a diagonal plus a matrix of low rank."""

from typing import Any, Self

import numpy as np

from posterity.arrays.functions import Namespace
from posterity.arrays.leaves import as_leaves
from posterity.arrays.namespace import is_traced, namespace
from posterity.arrays.tree import map_leaves
from posterity.arrays.typing import (
    ArrayLike,
    Bool,
    Float,
    Floats,
    Index,
    Int,
    KeyArray,
    Real,
    Shape,
)
from posterity.errors import ParameterError, StructureError
from posterity.families.distribution import Distribution
from posterity.families.formulas import NORMAL
from posterity.families.gaussian import LOG_2PI
from posterity.families.marginals import Closed, Marginal, same_shape
from posterity.families.supports import RealNumbers
from posterity.families.vector_space import batch_index
from posterity.runtime.lazy import jax
from posterity.runtime.programs import sampler


class LowRankGaussian(Distribution):
    """The Gaussian ``N(z | m, F Fᵀ + diag(v))`` with ``F`` (d, r); memory grows as ``d r``.

    It is not an exponential family, as sums of such precisions have a higher rank. It can be a
    component of a :class:`Mixture`, be sampled, saved and distilled, but not a ledger's prior.

    >>> q = LowRankGaussian.from_standard([0.0, 0.0], factor=[[2.0], [2.0]], variance=[1.0, 1.0])
    >>> q.covariance
    array([[5., 4.],
           [4., 5.]])
    """

    mean: Float[Real, "*batch d"]
    factor: Float[Real, "*batch d r"]
    variance: Float[Real, "*batch d"]

    addend = "Take Gaussian.from_standard(q.mean, q.covariance), or DiagonalGaussian."

    def __post_init__(self) -> None:
        made = as_leaves({n: self.__dict__[n] for n in ("mean", "factor", "variance")})
        shapes = {name: np.shape(leaf) for name, leaf in made.items()}
        shape = shapes["mean"]
        alike = len(shape) > 0 and shape[-1] > 0 and shapes["variance"] == shape
        if not alike or len(shapes["factor"]) != len(shape) + 1 or shapes["factor"][:-1] != shape:
            raise StructureError(
                found=f"a LowRankGaussian of parameters of shapes {shapes}",
                expected="mean and variance of shape (..., d), and a factor of shape (..., d, r)",
            )
        for name, leaf in made.items():
            object.__setattr__(self, name, leaf)

    @classmethod
    def from_standard(cls, mean: ArrayLike, factor: ArrayLike, variance: ArrayLike) -> Self:
        """Make a law from the mean and the variances (..., d) and the factor (..., d, r).

        Raises:
            StructureError: if shapes do not fit together.
            ParameterError: for NaN, infinity, and variances that are not positive.
        """
        law = cls(mean, factor, variance)
        if not is_traced(law.mean) and not np.all(law.is_proper()):
            raise ParameterError(
                found="a LowRankGaussian of parameters that are not finite, or variances that are "
                "not positive",
                expected="finite numbers, and positive variances",
            )
        return law

    @property
    def xp(self) -> Namespace:
        """The array functions that fit the leaves."""
        return namespace(self.mean, self.factor, self.variance)

    @property
    def rank(self) -> int:
        """The number of columns ``r`` of the factor."""
        return self.factor.shape[-1]

    @property
    def batch_shape(self) -> Shape:
        return np.shape(self.mean)[:-1]

    @property
    def support(self) -> RealNumbers:
        return RealNumbers(np.shape(self.mean)[-1:])

    @property
    def covariance(self) -> Float[Real, "*batch d d"]:
        """The covariance ``F Fᵀ + diag(v)``."""
        np_ = self.xp.np
        diagonal = self.variance[..., None] * np.eye(self.event_shape[0])
        return self.factor @ np_.swapaxes(self.factor, -1, -2) + diagonal

    @property
    def named_size(self) -> int:
        return self.event_shape[0]

    def reordered(self, places: Int[np.ndarray, " d"]) -> Self:
        """Return the law with permuted coordinates, including the factor's rows."""
        at = (..., places)
        return type(self)(self.mean[at], self.factor[(*at, slice(None))], self.variance[at])

    def __getitem__(self, index: Index) -> Self:
        """Return members of the batch, by NumPy's indexing rules."""
        index = batch_index(index, self.batch_shape)
        return map_leaves(lambda leaf: leaf[index], self)

    def outline(self) -> Any:
        """Return the properties that two members must share to be stacked."""
        return (type(self), *self.event_shape, self.rank)

    def is_proper(self) -> Bool[Real, "*batch"]:
        np_ = self.xp.np
        finite = np_.isfinite(self.mean).all(-1) & np_.isfinite(self.factor).all((-2, -1))
        return finite & (np_.isfinite(self.variance) & (self.variance > 0)).all(-1)

    def moment_matched(self, weights: Float[Real, " k"]) -> Self:
        """Return the law with the mixture's mean and covariance, of rank ``K (r + 1)``; exact."""
        np_ = self.xp.np
        mean = weights @ self.mean
        root = np_.sqrt(weights)[:, None]
        between = (root * (self.mean - mean)).T
        within = np_.moveaxis(root[..., None] * self.factor, 0, 1).reshape(len(mean), -1)
        factor = np_.concatenate([within, between], axis=1)
        return type(self)(mean, factor, weights @ self.variance)

    def entropy(self) -> Float[Real, "*batch"]:
        """Return the differential entropy in nats."""
        size = self.event_shape[0]
        return (size * (1 + LOG_2PI) + self._log_determinant(self._capacitance())) / 2

    def marginals(self) -> list[Marginal]:
        variance = np.asarray(self.variance) + (np.asarray(self.factor) ** 2).sum(-1)
        loc, scale = same_shape(self.mean, np.sqrt(variance))
        return [Closed(NORMAL, (loc, scale))]

    def expected_moments(self) -> tuple[Real, Real] | None:
        return np.asarray(self.mean, float), np.asarray(self.covariance, float)

    def numpy_draws(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "..."]:
        """Draw ``m + F ε + sqrt(v) ε'``."""
        shape = (count, *self.batch_shape, *self.event_shape)
        few = rng.standard_normal((*shape[:-1], self.rank, 1))
        many = np.sqrt(np.asarray(self.variance)) * rng.standard_normal(shape)
        return np.asarray(self.mean) + (np.asarray(self.factor) @ few)[..., 0] + many

    def sample(self, key: KeyArray, shape: Shape = ()) -> Float[Real, "*shape d"]:
        return _draw(key, shape, self.mean, self.factor, self.xp.np.sqrt(self.variance))

    def _log_prob(self, z: Float[Real, "*shape d"]) -> Floats:
        """Return the log density by the Woodbury identity, which factorises ``r x r`` matrices."""
        np_ = self.xp.np
        factors = self._capacitance()
        scales = self._scaled_factor()
        scaled = (z - self.mean) / np_.sqrt(self.variance)
        along = (np_.swapaxes(scales, -1, -2) @ scaled[..., None])[..., 0]
        # Factors of the capacitance broadcast over the leading axes of z.
        whole = factors @ np_.swapaxes(factors, -1, -2)
        whole = np_.broadcast_to(whole, (*along.shape[:-1], *whole.shape[-2:]))
        inner = self.xp.solve_positive(whole, along)
        # Sums of squares, as the difference of Woodbury's identity is inaccurate for long columns.
        rest = scaled - (scales @ inner[..., None])[..., 0]
        distance = (rest**2).sum(-1) + (inner**2).sum(-1)
        size = self.event_shape[0]
        return -(size * LOG_2PI + self._log_determinant(factors) + distance) / 2

    def _scaled_factor(self) -> Float[Real, "*batch d r"]:
        """Return ``diag(v)^(-1/2) F``."""
        return self.factor / self.xp.np.sqrt(self.variance)[..., None]

    def _capacitance(self) -> Float[Real, "*batch r r"]:
        """Return the Cholesky factor of ``I + Fᵀ diag(v)⁻¹ F``."""
        scaled = self._scaled_factor()
        identity = np.eye(self.rank, dtype=self.mean.dtype)
        return self.xp.cholesky(self.xp.np.swapaxes(scaled, -1, -2) @ scaled + identity)

    def _log_determinant(self, factors: Float[Real, "*batch r r"]) -> Float[Real, "*batch"]:
        return self.xp.logdet(factors) + self.xp.np.log(self.variance).sum(-1)


@sampler
def _draw(
    key: KeyArray, shape: Shape, mean: Real, factor: Real, deviation: Real
) -> Float[Real, "*shape d"]:
    """Draw ``m + F ε + s ε'``."""
    first, second = jax.random.split(key)
    few = jax.random.normal(first, (*shape, *mean.shape[:-1], factor.shape[-1]), mean.dtype)
    many = jax.random.normal(second, shape + mean.shape, mean.dtype)
    return mean + (factor @ few[..., None])[..., 0] + deviation * many
