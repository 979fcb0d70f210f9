"""Marginal laws of single numbers, many at a time: means, standard deviations and quantiles.

A law says its own by ``marginals()``, and all those of its parts by ``tables()``.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from scipy import special

from posterity.arrays.typing import Bool, Float

Array = np.ndarray
Names = Mapping[str, tuple[str, ...]]
"""By path of the part (``""`` is the law itself), the names of its coordinates."""
WEIGHT = "weight"
"""The quantity of rows that are mixing weights."""
NODES = 400
"""Equidistant nodes of the trapezoid rule for moments of a logistic normal law."""
REACH = 9.0
"""Standard deviations on either side of the mean that these nodes cover."""
CHI_SQUARED_NODES = 48
"""Gauss-Legendre nodes of the quadrature over a chi-squared law."""
HALVINGS = 60
"""Bisections of an interval in which a quantile lies: enough to reach rounding."""


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

    def expanded(self) -> Self:
        """With one more axis, of length one, at the end."""
        return self.reshaped((*self.shape, 1))

    def mapped_normal(self, image: "type[Normal]") -> "Marginal":
        """The law of an increasing map of a normal number; nothing is known of other laws."""
        del image
        return unknown(self.shape)

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

    def mapped_normal(self, image: "type[Normal]") -> "Normal":
        """The law of the number whose normal ``u`` this is."""
        return image(self.loc, self.scale)

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
class GammaMarginal(Marginal):
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
class InverseGammaMarginal(Marginal):
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
class BetaMarginal(Marginal):
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
class KnownMoments(Marginal):
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


class LogNormal(Normal):
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


class LogisticNormal(Normal):
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


@dataclasses.dataclass(frozen=True)
class WishartEntry(Marginal):
    """An entry of a Wishart matrix of ``ν`` degrees of freedom and of scales ``Sii, Sjj, Sij``.

    With ``s = √(Sii Sjj)`` and ``ρ = Sij / s`` it is ``s/2 ((1 + ρ) A - (1 - ρ) B)``, where ``A``
    and ``B`` are chi-squared of ``ν``: its distribution function is averaged over ``B``. An entry
    on the diagonal, of ``ρ = 1``, is a gamma variate.
    """

    s: Array
    rho: Array
    nu: Array

    @property
    def mean(self) -> Array:
        """``ν Sij``."""
        return self.nu * self.rho * self.s

    @property
    def sd(self) -> Array:
        """``√(ν (Sij² + Sii Sjj))``."""
        return self.s * np.sqrt(self.nu * (1 + self.rho**2))

    def quantile(self, p: float) -> Array:
        """Exact on the diagonal; elsewhere by bisection between Chebyshev's bounds."""
        diagonal = self.rho >= 1
        exact = self.s * 2 * special.gammaincinv(self.nu / 2, p)
        if diagonal.all():
            return exact
        reach, others = self.sd / np.sqrt(min(p, 1 - p)), self._others()
        cdf = lambda x: self._averaged(x, others)
        return np.where(diagonal, exact, bisected(cdf, p, self.mean - reach, self.mean + reach))

    def cdf(self, x: Any) -> Array:
        """By quadrature over the quantiles of ``B``."""
        return self._averaged(x, self._others())

    def _others(self) -> list[tuple[Array, float]]:
        """Quantiles of ``B / 2`` and their weights; few degrees of freedom serve many entries."""
        degrees, which = np.unique(self.nu, return_inverse=True)
        nodes, weights = special.roots_legendre(CHI_SQUARED_NODES)
        found = (special.gammaincinv(degrees / 2, (node + 1) / 2) for node in nodes)
        pairs = zip(found, weights / 2, strict=True)
        return [(own[which].reshape(self.shape), float(weight)) for own, weight in pairs]

    def _averaged(self, x: Any, others: list[tuple[Array, float]]) -> Array:
        total = np.zeros(np.broadcast_shapes(self.shape, np.shape(x)))
        with np.errstate(divide="ignore", invalid="ignore"):
            for other, weight in others:
                mine = (x / self.s + (1 - self.rho) * other) / (1 + self.rho)
                total = total + weight * special.gammainc(self.nu / 2, np.maximum(mine, 0.0))
        return total


@dataclasses.dataclass(frozen=True)
class MixedMarginal(Marginal):
    """A mixture of laws, which lie along the first axis of ``parts``, with these weights."""

    weights: Float[Array, " k"]
    parts: Marginal

    @property
    def shape(self) -> tuple[int, ...]:
        """The parts', without their first axis."""
        return self.parts.shape[1:]

    def mapped_normal(self, image: "type[Normal]") -> "MixedMarginal":
        """Part by part."""
        return MixedMarginal(self.weights, self.parts.mapped_normal(image))

    def mapped(self, function: Callable[[Array], Array]) -> "MixedMarginal":
        """Of each part."""
        one = lambda array: np.stack([function(part) for part in array])
        return MixedMarginal(self.weights, self.parts.mapped(one))

    @property
    def mean(self) -> Array:
        """The average."""
        return self._average(self.parts.mean)

    @property
    def sd(self) -> Array:
        """Within and between parts."""
        with np.errstate(invalid="ignore"):
            apart = self.parts.mean - self.mean
            return np.sqrt(self._average(self.parts.sd**2 + apart**2))

    def _average(self, values: Array) -> Array:
        return np.tensordot(self.weights, values, 1)

    def quantile(self, p: float) -> Array:
        """Between the least and the largest of the parts', to rounding."""
        ends = self.parts.quantile(p)
        return bisected(self.cdf, p, ends.min(0), ends.max(0))

    def cdf(self, x: Any) -> Array:
        """The average."""
        return self._average(self.parts.cdf(x))


@dataclasses.dataclass(frozen=True)
class Sampled(Marginal):
    """The empirical law of draws, which lie along the first axis."""

    draws: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one draw."""
        return self.draws.shape[1:]

    def mapped(self, function: Callable[[Array], Array]) -> "Sampled":
        """Of each draw."""
        return Sampled(np.stack([function(draw) for draw in self.draws]))

    @property
    def mean(self) -> Array:
        """The average."""
        return self.draws.mean(0)

    @property
    def sd(self) -> Array:
        """Of the draws."""
        return self.draws.std(0)

    def quantile(self, p: float) -> Array:
        """Of the draws."""
        return np.quantile(self.draws, p, axis=0)

    def cdf(self, x: Any) -> Array:
        """The share of draws up to there."""
        return (self.draws <= x).mean(0)


def bisected(cdf: Callable[[Any], Array], p: float, low: Array, high: Array) -> Array:
    """The ``x`` between ``low`` and ``high`` at which a distribution function reaches ``p``."""
    unknown = np.isnan(low) | np.isnan(high)
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        below = cdf(middle) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(unknown, np.nan, low + (high - low) / 2)


def unknown(shape: tuple[int, ...]) -> KnownMoments:
    """Marginals of which nothing is known, as those of improper laws: all is NaN."""
    return KnownMoments(np.full(shape, np.nan), np.full(shape, np.nan))


def scattered(law: Marginal, mask: Bool[Array, "..."]) -> Marginal:
    """Marginals of some members at their places among all, the others' NaN."""

    def placed(array: Array) -> Array:
        whole = np.full((*mask.shape, *array.shape[1:]), np.nan)
        whole[mask] = array
        return whole

    return law.mapped(placed)


@dataclasses.dataclass(frozen=True)
class Table:
    """Marginal laws of the numbers of one kind in one block of a posterior.

    Attributes:
        block: path of the block of a product, ``""`` without blocks.
        quantity: which number of each coordinate: ``mean``, ``variance``, ``precision``,
            ``probability``, ``weight``; ``""`` is the coordinate itself.
        axes: labels along each axis of batches and plates.
        names: labels of the coordinates, along the last axis.
        law: the marginal laws, with an axis for each of ``axes``, then one for ``names``.
    """

    block: str
    quantity: str
    axes: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    law: Marginal

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return math.prod(map(len, self.axes)) * len(self.names)

    def labels(self, index: int) -> tuple[str, str]:
        """Labels of member and coordinate of one number, counted along the last axis first."""
        *members, name = np.unravel_index(index, (*map(len, self.axes), len(self.names)))
        labels = (axis[i] for axis, i in zip(self.axes, members, strict=True))
        return ", ".join(labels), self.names[int(name)]


def numbered(size: int) -> tuple[str, ...]:
    """The labels ``"0", "1", ...`` of coordinates that have no names."""
    return tuple(map(str, range(size)))
