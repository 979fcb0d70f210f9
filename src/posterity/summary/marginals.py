"""Laws of single numbers, many at a time: means, standard deviations, and exact quantiles."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from scipy import special

from posterity.arrays.typing import Float

Array = np.ndarray
NODES = 400
"""Places at which an expectation is taken that has no closed form."""
REACH = 9.0
"""Standard deviations on either side that these cover."""


@dataclasses.dataclass(frozen=True)
class Marginal(abc.ABC):
    """Laws of single numbers, whose parameters are arrays of one shape; NaN is not known."""

    @property
    @abc.abstractmethod
    def mean(self) -> Float[Array, "..."]:
        """Expected values; NaN where there is none."""

    @property
    @abc.abstractmethod
    def sd(self) -> Float[Array, "..."]:
        """Standard deviations; infinite, or NaN, where there are none."""

    @abc.abstractmethod
    def quantile(self, p: float) -> Float[Array, "..."]:
        """What the number is below with probability ``p``."""

    @abc.abstractmethod
    def cdf(self, x: Any) -> Float[Array, "..."]:
        """The probability to be at most ``x``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all parameters."""
        return np.shape(next(iter(self.__dict__.values())))

    def mapped(self, function: Callable[[Array], Array]) -> Self:
        """With a function of arrays that moves or picks entries."""
        return type(self)(*(function(value) for value in self.__dict__.values()))

    def picked(self, index: Any) -> Self:
        """Some entries, by NumPy's rules."""
        return self.mapped(lambda array: array[index])

    def reshaped(self, shape: tuple[int, ...]) -> Self:
        """In other axes."""
        return self.mapped(lambda array: array.reshape(shape))

    def interval(self, level: float) -> tuple[Array, Array]:
        """The interval that leaves as much below as above."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def width(self) -> Float[Array, "..."]:
        """The standard deviation, or what it would be of a normal law with the same quartiles."""
        sd = self.sd
        if np.isfinite(sd).all():
            return sd
        with np.errstate(invalid="ignore"):
            apart = (self.quantile(0.75) - self.quantile(0.25)) / (2 * special.ndtri(0.75))
        return np.where(np.isfinite(sd), sd, apart)


def same_shape(*parameters: Any) -> list[Array]:
    """As float64, each at its full shape."""
    return [np.array(a) for a in np.broadcast_arrays(*(np.asarray(p, float) for p in parameters))]


@dataclasses.dataclass(frozen=True)
class Normal(Marginal):
    """``N(loc, scale²)``, and of a number whose increasing map is that."""

    loc: Array
    scale: Array

    @staticmethod
    def outward(u: Array) -> Array:
        """The number of a normal ``u``."""
        return u

    @staticmethod
    def inward(x: Array) -> Array:
        """The normal ``u`` of a number."""
        return x

    @property
    def mean(self) -> Array:
        """``loc``."""
        return self.loc

    @property
    def sd(self) -> Array:
        """``scale``."""
        return self.scale

    def quantile(self, p: float) -> Array:
        """Exact."""
        with np.errstate(over="ignore"):
            return self.outward(self.loc + self.scale * special.ndtri(p))

    def cdf(self, x: Any) -> Array:
        """Exact."""
        with np.errstate(divide="ignore"):
            return special.ndtr((self.inward(np.asarray(x)) - self.loc) / self.scale)


@dataclasses.dataclass(frozen=True)
class StudentT(Marginal):
    """Student's t with location, scale and ``df`` degrees of freedom."""

    loc: Array
    scale: Array
    df: Array

    @property
    def mean(self) -> Array:
        """``loc``, where there is a mean."""
        return np.where(self.df > 1, self.loc, np.nan)

    @property
    def sd(self) -> Array:
        """Infinite at two degrees of freedom and below."""
        ratio = self.df / np.where(self.df > 2, self.df - 2, 1)
        return np.where(self.df > 2, self.scale * np.sqrt(ratio), np.inf)

    def quantile(self, p: float) -> Array:
        """Exact."""
        return self.loc + self.scale * special.stdtrit(self.df, p)

    def cdf(self, x: Any) -> Array:
        """Exact."""
        return special.stdtr(self.df, (x - self.loc) / self.scale)


@dataclasses.dataclass(frozen=True)
class GammaLaw(Marginal):
    """``Gamma(a, rate)``."""

    a: Array
    rate: Array

    @property
    def mean(self) -> Array:
        """``a / rate``."""
        return self.a / self.rate

    @property
    def sd(self) -> Array:
        """``√a / rate``."""
        return np.sqrt(self.a) / self.rate

    def quantile(self, p: float) -> Array:
        """Exact."""
        return special.gammaincinv(self.a, p) / self.rate

    def cdf(self, x: Any) -> Array:
        """Exact."""
        return special.gammainc(self.a, np.maximum(x, 0.0) * self.rate)


@dataclasses.dataclass(frozen=True)
class InverseGamma(Marginal):
    """``1 / Gamma(a, rate b)``: a variance whose precision is Gamma."""

    a: Array
    b: Array

    @property
    def mean(self) -> Array:
        """``b / (a - 1)``; infinite at ``a`` of one and below."""
        return np.where(self.a > 1, self.b / np.where(self.a > 1, self.a - 1, 1), np.inf)

    @property
    def sd(self) -> Array:
        """Infinite at ``a`` of two and below."""
        return np.where(
            self.a > 2, self.mean / np.sqrt(np.where(self.a > 2, self.a - 2, 1)), np.inf
        )

    def quantile(self, p: float) -> Array:
        """Exact."""
        return self.b / special.gammainccinv(self.a, p)

    def cdf(self, x: Any) -> Array:
        """Exact."""
        with np.errstate(divide="ignore"):
            return special.gammaincc(self.a, self.b / np.maximum(x, 0.0))


@dataclasses.dataclass(frozen=True)
class BetaLaw(Marginal):
    """``Beta(a, b)``; with ``b`` of zero, one for certain."""

    a: Array
    b: Array

    @property
    def mean(self) -> Array:
        """``a / (a + b)``."""
        return self.a / (self.a + self.b)

    @property
    def sd(self) -> Array:
        """``√(a b / (a + b + 1)) / (a + b)``."""
        total = self.a + self.b
        return np.sqrt(self.a * self.b / (total + 1)) / total

    def quantile(self, p: float) -> Array:
        """Exact."""
        found = special.betaincinv(self.a, np.where(self.b > 0, self.b, 1.0), p)
        return np.where(self.b > 0, found, np.where(np.isnan(self.b), np.nan, 1.0))

    def cdf(self, x: Any) -> Array:
        """Exact."""
        x = np.clip(x, 0.0, 1.0)
        found = special.betainc(self.a, np.where(self.b > 0, self.b, 1.0), x)
        return np.where(self.b > 0, found, x >= 1)


@dataclasses.dataclass(frozen=True)
class Known(Marginal):
    """Only mean and standard deviation are known, or make sense, as of a label's indicator."""

    loc: Array
    scale: Array

    @property
    def mean(self) -> Array:
        """``loc``."""
        return self.loc

    @property
    def sd(self) -> Array:
        """``scale``."""
        return self.scale

    def quantile(self, p: float) -> Array:
        """NaN."""
        return np.full(self.shape, np.nan)

    def cdf(self, x: Any) -> Array:
        """NaN."""
        return np.full(np.broadcast_shapes(self.shape, np.shape(x)), np.nan)


class Exponential(Normal):
    """``exp(u)`` of a normal ``u``: a log-normal law."""

    @staticmethod
    def outward(u: Array) -> Array:
        """``exp(u)``."""
        return np.exp(u)

    @staticmethod
    def inward(x: Array) -> Array:
        """``log(x)``."""
        return np.log(np.maximum(x, 0.0))

    @property
    def mean(self) -> Array:
        """``exp(loc + scale²/2)``."""
        with np.errstate(over="ignore"):
            return np.exp(self.loc + self.scale**2 / 2)

    @property
    def sd(self) -> Array:
        """``mean √(exp(scale²) - 1)``."""
        with np.errstate(over="ignore"):
            return self.mean * np.sqrt(np.expm1(self.scale**2))


class Logistic(Normal):
    """``1 / (1 + exp(-u))`` of a normal ``u``; moments by the trapezoid rule."""

    @staticmethod
    def outward(u: Array) -> Array:
        """``1 / (1 + exp(-u))``."""
        return special.expit(u)

    @staticmethod
    def inward(x: Array) -> Array:
        """``log(x / (1 - x))``."""
        return special.logit(np.clip(x, 0.0, 1.0))

    @property
    def mean(self) -> Array:
        """To some ten digits, of scales below ten."""
        return self._expected(lambda z: z)

    @property
    def sd(self) -> Array:
        """About the mean."""
        mean = self.mean
        return np.sqrt(self._expected(lambda z: (z - mean) ** 2))

    def _expected(self, function: Callable[[Array], Array]) -> Array:
        at = np.linspace(-REACH, REACH, NODES)
        weight = np.exp(-(at**2) / 2)
        total = np.zeros(self.shape)
        for x, w in zip(at, weight / weight.sum(), strict=True):
            total = total + w * function(self.outward(self.loc + self.scale * x))
        return total


def unknown(shape: tuple[int, ...]) -> Known:
    """Laws of which nothing is known: those of what is improper."""
    return Known(np.full(shape, np.nan), np.full(shape, np.nan))
