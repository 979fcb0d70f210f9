"""The Gamma family."""

from typing import Any, ClassVar, Self

from posterity.arrays.namespace import compiled, namespace
from posterity.arrays.typing import ArrayLike, Flat, Float, KeyArray, Real, Shape
from posterity.families.base import ExponentialFamily, Line
from posterity.families.coordinates import ABOVE_MINUS_ONE, POSITIVE, Coordinates, scalar
from posterity.families.formulas import GAMMA
from posterity.families.marginals import Closed, Marginal, same_shape
from posterity.families.supports import PositiveNumbers
from posterity.runtime.lazy import jax
from posterity.runtime.programs import sampler


class Gamma(ExponentialFamily):
    """The Gamma law ``Gamma(z | a, b)`` of shape ``a`` and rate ``b``; statistics ``(log z, -z)``.

    Natural parameters: ``shape_minus_one`` ``a - 1`` and ``rate`` ``b``.

    >>> float(Gamma.from_standard(shape=3.0, rate=2.0).mean)
    1.5
    """

    shape_minus_one: Float[Real, "*batch"]
    rate: Float[Real, "*batch"]

    coordinates: ClassVar[Coordinates] = {
        "shape_minus_one": scalar(ABOVE_MINUS_ONE),
        "rate": scalar(POSITIVE),
    }
    base_measure = 0.0
    standard: ClassVar[Coordinates] = {"shape": scalar(POSITIVE), "rate": scalar(POSITIVE)}

    @classmethod
    def from_standard(cls, shape: ArrayLike, rate: ArrayLike) -> Self:
        """Make it from the shape and the rate, both positive."""
        known = cls._checked(shape=shape, rate=rate)
        return cls._of(shape_minus_one=known["shape"] - 1, rate=known["rate"])._held()

    @property
    def shape(self) -> Float[Real, "*batch"]:
        """The shape ``a``."""
        return self.shape_minus_one + 1

    @property
    def mean(self) -> Float[Real, "*batch"]:
        """The mean ``a / b``."""
        return self.shape / self.rate

    @property
    def support(self) -> PositiveNumbers:
        return PositiveNumbers()

    def _line(self, drop: float) -> Line:
        """Return the line ``y = log(z b / a)``, with log density ``a (y - exp y)``."""
        np_ = self.xp.np
        a = self.shape
        b = self.rate
        depth = drop / a

        def at(y: Real) -> tuple[Any, Any, Any]:
            x = y + np_.log(a) - np_.log(b)
            z = np_.maximum(np_.exp(x), np_.finfo(x.dtype).tiny)
            return z, np_.stack([x, -z], axis=-1), a * (y - np_.expm1(y))

        return Line(1 / np_.sqrt(1 + a), -1 - depth, np_.log1p(depth + np_.sqrt(2 * depth)), at)

    def marginals(self) -> list[Marginal]:
        return [Closed(GAMMA, same_shape(self.shape, self.rate)).picked((..., None))]

    def log_normalizer(self) -> Float[Real, "*batch"]:
        """Return ``log Γ(a) - a log b``."""
        return self.xp.special.gammaln(self.shape) - self.shape * self.xp.np.log(self.rate)

    @property
    def mean_parameters(self) -> Flat:
        """``E[log z] = ψ(a) - log b`` and ``-E[z]``."""
        log_mean = self.xp.digamma(self.shape) - self.xp.np.log(self.rate)
        return self.flatten(shape_minus_one=log_mean, rate=-self.mean)

    def with_mean_parameters(self, vector: Flat) -> Self:
        """Solve ``log a - ψ(a) = log E[z] - E[log z]``, then ``b = a / E[z]``."""
        self._check_length(vector)
        mean = -vector[..., 1]
        gap = namespace(vector).np.log(mean) - vector[..., 0]
        shape = solve_log_minus_digamma(gap)
        return self._of(shape_minus_one=shape - 1, rate=shape / mean)

    def sufficient_statistics(self, z: Float[Real, "*shape"]) -> Float[Real, "*shape dim"]:
        return self.flatten(shape_minus_one=namespace(z).np.log(z), rate=-z)

    def sample(self, key: KeyArray, shape: Shape = ()) -> Float[Real, "*shape"]:
        return _draw(key, shape, self.shape, self.rate)


@sampler
def _draw(key: KeyArray, shape: Shape, a: Real, rate: Real) -> Float[Real, "*shape"]:
    return jax.random.gamma(key, a, shape + a.shape, a.dtype) / rate


@compiled()
def solve_log_minus_digamma(gap: Float[Real, "*batch"]) -> Float[Real, "*batch"]:
    """Return the ``a`` with ``log a - ψ(a) = gap > 0``, by Newton on ``1/a`` (minka2002)."""
    xp = namespace(gap)
    a = (3 - gap + xp.np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)

    def newton(a: Real) -> Real:
        error = xp.np.log(a) - xp.digamma(a) - gap
        slope = 1 - a * xp.trigamma(a)  # a d/da of the error; negative
        return 1 / (1 / a + error / (a * slope))

    return xp.iterate(newton, a, 8)
