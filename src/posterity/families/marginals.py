"""Marginal laws of single numbers, many at a time: means, standard deviations and quantiles.

A law says its own by ``marginals()``, and all those of its parts by ``tables()``.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import scipy

from posterity.arrays.typing import ArrayLike, Bool, Float
from posterity.families.names import Names as Names

Array = np.ndarray
WEIGHT = "weight"
"""The quantity of rows that are mixing weights."""
NODES, REACH = 400, 9.0
"""Nodes of the trapezoid rule for logistic normal laws, and deviations that they reach to."""
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
        """The value that the number is below with probability ``p``."""

    @abc.abstractmethod
    def cdf(self, x: ArrayLike) -> Float[Array, "..."]:
        """The probability to be at most ``x``."""

    @abc.abstractmethod
    def mapped(self, function: Callable[[Array], Array]) -> Self:
        """Apply a function of arrays that moves or picks entries."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the laws."""
        return self.mean.shape

    def picked(self, index: Any) -> Self:
        """Some entries, by NumPy's rules."""
        return self.mapped(lambda array: array[index])

    def reshaped(self, shape: tuple[int, ...]) -> Self:
        """Return the marginals in other axes."""
        return self.mapped(lambda array: array.reshape(shape))

    def mapped_normal(self, image: "Formulas") -> "Marginal":
        """The law of a normal number under an increasing map; nothing is known of other laws."""
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
            apart = (self.quantile(0.75) - self.quantile(0.25)) / (2 * scipy.special.ndtri(0.75))
        return np.where(np.isfinite(sd), sd, apart)


def same_shape(*parameters: ArrayLike) -> tuple[Array, ...]:
    """Parameters as float64, each at its full shape."""
    arrays = np.broadcast_arrays(*(np.asarray(p, float) for p in parameters))
    return tuple(np.array(array) for array in arrays)


# --- closed formulas -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, repr=False)
class Formulas:
    """Mean, standard deviation, quantile and distribution function, given the parameters.

    The last two take probability and number first. A constant of this module, known and pickled
    by its ``name``.
    """

    name: str
    mean: Callable[..., Array]
    sd: Callable[..., Array]
    quantile: Callable[..., Array]
    cdf: Callable[..., Array]

    def __reduce__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


def _of_normal(
    name: str,
    outward: Callable[[Any], Array],
    inward: Callable[[Array], Array],
    mean: Callable[[Array, Array], Array],
    sd: Callable[[Array, Array], Array],
) -> Formulas:
    """The law of an increasing map of ``N(loc, scale²)``, by the map, its inverse and moments."""
    return Formulas(
        name,
        mean,
        sd,
        lambda p, loc, scale: outward(loc + scale * scipy.special.ndtri(p)),
        lambda x, loc, scale: scipy.special.ndtr((inward(np.asarray(x)) - loc) / scale),
    )


def _logistic_mean(loc: Array, scale: Array) -> Array:
    """To some ten digits, of scales below ten."""
    return _expected(scipy.special.expit, loc, scale)


def _logistic_sd(loc: Array, scale: Array) -> Array:
    mean = _logistic_mean(loc, scale)
    return np.sqrt(_expected(lambda u: (scipy.special.expit(u) - mean) ** 2, loc, scale))


def _expected(function: Callable[[Array], Array], loc: Array, scale: Array) -> Array:
    """The mean of a function of ``N(loc, scale²)``, by the trapezoid rule."""
    at = np.linspace(-REACH, REACH, NODES)
    weight = np.exp(-(at**2) / 2)
    total = np.zeros(np.shape(loc))
    for x, w in zip(at, weight / weight.sum(), strict=True):
        total = total + w * function(loc + scale * x)
    return total


def _inverse_gamma_mean(a: Array, b: Array) -> Array:
    return np.where(a > 1, b / np.where(a > 1, a - 1, 1), np.inf)


def _beta_quantile(p: float, a: Array, b: Array) -> Array:
    inside = scipy.special.betaincinv(a, np.where(b > 0, b, 1.0), p)
    return np.where(b > 0, inside, np.where(np.isnan(b), np.nan, 1.0))


def _beta_cdf(x: ArrayLike, a: Array, b: Array) -> Array:
    x = np.clip(x, 0.0, 1.0)
    return np.where(b > 0, scipy.special.betainc(a, np.where(b > 0, b, 1.0), x), x >= 1)


def _entry_sd(s: Array, rho: Array, nu: Array) -> Array:
    return s * np.sqrt(nu * (1 + rho**2))


def _entry_quantile(p: float, s: Array, rho: Array, nu: Array) -> Array:
    """Exact on the diagonal; elsewhere by bisection between Chebyshev's bounds."""
    exact = s * 2 * scipy.special.gammaincinv(nu / 2, p)
    if (rho >= 1).all():
        return exact
    reach, others = _entry_sd(s, rho, nu) / np.sqrt(min(p, 1 - p)), _halved_chi_squared(nu)
    cdf = lambda x: _averaged(x, s, rho, nu, others)
    mean = nu * rho * s
    return np.where(rho >= 1, exact, bisected(cdf, p, mean - reach, mean + reach))


def _halved_chi_squared(nu: Array) -> list[tuple[Array, float]]:
    """Nodes and weights of half a chi-squared law; few degrees of freedom serve many entries."""
    degrees, which = np.unique(nu, return_inverse=True)
    nodes, weights = scipy.special.roots_legendre(CHI_SQUARED_NODES)
    quantiles = (scipy.special.gammaincinv(degrees / 2, (node + 1) / 2) for node in nodes)
    pairs = zip(quantiles, weights / 2, strict=True)
    return [(own[which].reshape(np.shape(nu)), float(weight)) for own, weight in pairs]


def _averaged(x: ArrayLike, s: Array, rho: Array, nu: Array, others: Any) -> Array:
    total = np.zeros(np.broadcast_shapes(np.shape(s), np.shape(x)))
    with np.errstate(divide="ignore", invalid="ignore"):
        for other, weight in others:
            mine = (np.asarray(x) / s + (1 - rho) * other) / (1 + rho)
            total = total + weight * scipy.special.gammainc(nu / 2, np.maximum(mine, 0.0))
    return total


NORMAL = _of_normal(
    "NORMAL", lambda u: u, lambda x: x, lambda loc, scale: loc, lambda loc, scale: scale
)
LOG_NORMAL = _of_normal(
    "LOG_NORMAL",
    np.exp,
    lambda x: np.log(np.maximum(x, 0.0)),
    lambda loc, scale: np.exp(loc + scale**2 / 2),
    lambda loc, scale: np.exp(loc + scale**2 / 2) * np.sqrt(np.expm1(scale**2)),
)
LOGIT_NORMAL = _of_normal(
    "LOGIT_NORMAL",
    lambda x: scipy.special.expit(x),  # which SciPy loads when it is first asked for
    lambda x: scipy.special.logit(np.clip(x, 0.0, 1.0)),
    _logistic_mean,
    _logistic_sd,
)
"""Laws of probabilities whose logits are normal."""
GAMMA = Formulas(
    "GAMMA",
    lambda a, rate: a / rate,
    lambda a, rate: np.sqrt(a) / rate,
    lambda p, a, rate: scipy.special.gammaincinv(a, p) / rate,
    lambda x, a, rate: scipy.special.gammainc(a, np.maximum(x, 0.0) * rate),
)
"""``Gamma(a, rate)``."""
INVERSE_GAMMA = Formulas(
    "INVERSE_GAMMA",
    _inverse_gamma_mean,
    lambda a, b: np.where(
        a > 2, _inverse_gamma_mean(a, b) / np.sqrt(np.where(a > 2, a - 2, 1)), np.inf
    ),
    lambda p, a, b: b / scipy.special.gammainccinv(a, p),
    lambda x, a, b: scipy.special.gammaincc(a, b / np.maximum(x, 0.0)),
)
"""``1 / Gamma(a, rate b)``: a variance whose precision is Gamma; no mean at ``a`` of one."""
BETA = Formulas(
    "BETA",
    lambda a, b: a / (a + b),
    lambda a, b: np.sqrt(a * b / (a + b + 1)) / (a + b),
    _beta_quantile,
    _beta_cdf,
)
"""``Beta(a, b)``; with ``b`` of zero, one for certain."""
STUDENT_T = Formulas(
    "STUDENT_T",
    lambda loc, scale, df: np.where(df > 1, loc, np.nan),
    lambda loc, scale, df: np.where(
        df > 2, scale * np.sqrt(df / np.where(df > 2, df - 2, 1)), np.inf
    ),
    lambda p, loc, scale, df: loc + scale * scipy.special.stdtrit(df, p),
    lambda x, loc, scale, df: scipy.special.stdtr(df, (np.asarray(x) - loc) / scale),
)
"""Student's t with location, scale and ``df`` degrees of freedom; infinite deviation up to two."""
WISHART_ENTRY = Formulas(
    "WISHART_ENTRY",
    lambda s, rho, nu: nu * rho * s,
    _entry_sd,
    _entry_quantile,
    lambda x, s, rho, nu: _averaged(x, s, rho, nu, _halved_chi_squared(nu)),
)
"""An entry of a Wishart matrix of ``ν`` degrees of freedom and of scales ``Sii, Sjj, Sij``.

With ``s = √(Sii Sjj)`` and ``ρ = Sij / s`` it is ``s/2 ((1 + ρ) A - (1 - ρ) B)``, where ``A`` and
``B`` are chi-squared of ``ν``. An entry on the diagonal, of ``ρ = 1``, is a gamma variate.
"""
MOMENTS = Formulas(
    "MOMENTS",
    lambda mean, sd: mean,
    lambda mean, sd: sd,
    lambda p, mean, sd: np.full(mean.shape, np.nan),
    lambda x, mean, sd: np.full(np.broadcast_shapes(mean.shape, np.shape(x)), np.nan),
)
"""Only mean and standard deviation are known, or make sense, as of a label's indicator."""


@dataclasses.dataclass(frozen=True)
class Closed(Marginal):
    """Laws whose moments and quantiles are closed formulas of their parameters."""

    formulas: Formulas
    parameters: tuple[Array, ...]

    @property
    def mean(self) -> Array:
        return self._at(self.formulas.mean)

    @property
    def sd(self) -> Array:
        return self._at(self.formulas.sd)

    def quantile(self, p: float) -> Array:
        return self._at(self.formulas.quantile, p)

    def cdf(self, x: ArrayLike) -> Array:
        return self._at(self.formulas.cdf, x)

    def _at(self, formula: Callable[..., Array], *of: Any) -> Array:
        with np.errstate(over="ignore", divide="ignore"):
            return formula(*of, *self.parameters)

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.parameters[0])

    def mapped(self, function: Callable[[Array], Array]) -> "Closed":
        return Closed(self.formulas, tuple(map(function, self.parameters)))

    def mapped_normal(self, image: Formulas) -> Marginal:
        """The law of the number whose normal ``u`` this is."""
        normal = self.formulas is NORMAL
        return Closed(image, self.parameters) if normal else super().mapped_normal(image)


@dataclasses.dataclass(frozen=True)
class MixedMarginal(Marginal):
    """A mixture of laws, which lie along the first axis of ``parts``, with these weights."""

    weights: Float[Array, " k"]
    parts: Marginal

    @property
    def mean(self) -> Array:
        return self._average(self.parts.mean)

    @property
    def sd(self) -> Array:
        with np.errstate(invalid="ignore"):
            apart = self.parts.mean - self.mean
            return np.sqrt(self._average(self.parts.sd**2 + apart**2))

    def quantile(self, p: float) -> Array:
        ends = self.parts.quantile(p)
        return bisected(self.cdf, p, ends.min(0), ends.max(0))

    def cdf(self, x: ArrayLike) -> Array:
        return self._average(self.parts.cdf(x))

    def _average(self, values: Array) -> Array:
        return np.tensordot(self.weights, values, 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts.shape[1:]

    def mapped(self, function: Callable[[Array], Array]) -> "MixedMarginal":
        return MixedMarginal(self.weights, self.parts.mapped(along_first(function)))

    def mapped_normal(self, image: Formulas) -> "MixedMarginal":
        return MixedMarginal(self.weights, self.parts.mapped_normal(image))


def bisected(cdf: Callable[[Any], Array], p: float, low: Array, high: Array) -> Array:
    """The ``x`` between ``low`` and ``high`` at which a distribution function reaches ``p``."""
    unknown = np.isnan(low) | np.isnan(high)
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        below = cdf(middle) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(unknown, np.nan, low + (high - low) / 2)


def along_first(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of arrays for each entry along the first axis of an array."""
    return lambda array: np.stack([function(row) for row in array])


def known_moments(mean: Array, sd: Array) -> Closed:
    """Marginals of which nothing is known but mean and standard deviation."""
    return Closed(MOMENTS, (mean, sd))


def unknown(shape: tuple[int, ...]) -> Closed:
    """Marginals of which nothing is known, as those of improper laws: all is NaN."""
    return known_moments(np.full(shape, np.nan), np.full(shape, np.nan))


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
        """The number of entries."""
        return math.prod(map(len, self.axes)) * len(self.names)

    def labels(self, index: int) -> tuple[str, str]:
        """Labels of member and coordinate of one number, counted along the last axis first."""
        *members, name = np.unravel_index(index, (*map(len, self.axes), len(self.names)))
        labels = (axis[i] for axis, i in zip(self.axes, members, strict=True))
        return ", ".join(labels), self.names[int(name)]


@functools.lru_cache(maxsize=64)
def numbered(size: int) -> tuple[str, ...]:
    """The labels ``"0", "1", ...`` of coordinates that have no names."""
    return tuple(map(str, range(size)))
