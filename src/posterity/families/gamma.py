"""Gamma."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Key

from posterity.arrays.namespace import Real, as_leaf, namespace
from posterity.families.base import SCALAR, ExponentialFamily


class Gamma(ExponentialFamily):
    """``Gamma(z | a, b)`` with shape ``a`` and rate ``b``; statistics ``(log z, -z)``.

    Natural parameters: ``shape_minus_one`` ``a - 1`` and ``rate`` ``b``.

    >>> float(Gamma.from_standard(shape=3.0, rate=2.0).mean)
    1.5
    """

    shape_minus_one: Float[Real, "*batch"] = eqx.field(converter=as_leaf)
    rate: Float[Real, "*batch"] = eqx.field(converter=as_leaf)

    coordinates: ClassVar[dict[str, int]] = {"shape_minus_one": SCALAR, "rate": SCALAR}

    @classmethod
    def from_standard(cls, shape: Any, rate: Any) -> Self:
        """From the shape and the rate (the inverse of the scale)."""
        return cls(as_leaf(shape) - 1, as_leaf(rate))

    def standard_parameters(self) -> dict[str, Real]:
        """``shape`` and ``rate``."""
        return {"shape": self.shape, "rate": self.rate}

    @property
    def shape(self) -> Float[Real, "*batch"]:
        """The shape ``a``."""
        return self.shape_minus_one + 1

    @property
    def mean(self) -> Float[Real, "*batch"]:
        """``a / b``."""
        return self.shape / self.rate

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """``log Γ(a) - a log b``."""
        return self.xp.special.gammaln(self.shape) - self.shape * self.xp.np.log(self.rate)

    @property
    def mean_parameters(self) -> Float[Real, "*batch dim"]:
        """``E[log z] = ψ(a) - log b`` and ``-E[z]``."""
        log_mean = self.xp.digamma(self.shape) - self.xp.np.log(self.rate)
        return self.flatten(shape_minus_one=log_mean, rate=-self.mean)

    def fisher_information(self) -> Float[Real, "*batch dim dim"]:
        """``[[ψ'(a), -1/b], [-1/b, a/b²]]``: the statistic of the rate is ``-z``."""
        np_, cross = self.xp.np, -1 / self.rate
        rows = [[self.xp.trigamma(self.shape), cross], [cross, self.mean / self.rate]]
        return np_.stack([np_.stack(row, axis=-1) for row in rows], axis=-2)

    def inverse_fisher_product(
        self, vector: Float[Real, "*batch dim"]
    ) -> Float[Real, "*batch dim"]:
        """By the inverse of a 2 x 2 matrix, of determinant ``(a ψ'(a) - 1)/b²``."""
        trigamma, (first, second) = self.xp.trigamma(self.shape), (vector[..., 0], vector[..., 1])
        excess = self.shape * trigamma - 1
        return self.flatten(
            shape_minus_one=(self.shape * first + self.rate * second) / excess,
            rate=self.rate * (first + self.rate * trigamma * second) / excess,
        )

    def with_mean_parameters(self, vector: Float[Real, "*batch dim"]) -> Self:
        """Solve ``log a - ψ(a) = log E[z] - E[log z]``, then ``b = a / E[z]``."""
        mean = -vector[..., 1]
        gap = namespace(vector).np.log(mean) - vector[..., 0]
        shape = solve_log_minus_digamma(gap)
        return self.from_standard(shape, shape / mean)

    def sufficient_statistics(self, z: Float[Real, "*shape"]) -> Float[Real, "*shape dim"]:
        """``(log z, -z)``."""
        return self.flatten(shape_minus_one=namespace(z).np.log(z), rate=-z)

    def log_base_measure(self) -> float:
        """Zero."""
        return 0.0

    def is_proper(self) -> Bool[Real, "*batch"]:
        """Whether shape and rate are positive and finite."""
        isfinite = self.xp.np.isfinite
        return (self.shape > 0) & (self.rate > 0) & isfinite(self.shape) & isfinite(self.rate)

    def sample(
        self, key: Key[jax.Array, ""], shape: tuple[int, ...] = ()
    ) -> Float[jax.Array, "*shape"]:
        """Draws by JAX's rejection sampler."""
        a, rate = jnp.asarray(self.shape), jnp.asarray(self.rate)
        return jax.random.gamma(key, a, shape + a.shape, a.dtype) / rate


def solve_log_minus_digamma(gap: Float[Real, "*batch"]) -> Float[Real, "*batch"]:
    """The ``a`` with ``log a - ψ(a) = gap > 0``, by Newton on ``1/a`` (minka2002)."""
    xp = namespace(gap)
    a = (3 - gap + xp.np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)

    def newton(a: Real) -> Real:
        error = xp.np.log(a) - xp.digamma(a) - gap
        slope = 1 - a * xp.trigamma(a)  # a d/da of the error; negative
        return 1 / (1 / a + error / (a * slope))

    return xp.iterate(newton, a, 8)
