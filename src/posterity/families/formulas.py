"""Closed formulas of the moments, quantiles and distribution functions of laws of one number."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from posterity.arrays.namespace import NUMPY
from posterity.arrays.typing import ArrayLike

Array = np.ndarray


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
    """Return the law of an increasing map of ``N(loc, scale²)``, from its inverse and moments."""
    return Formulas(
        name,
        mean,
        sd,
        lambda p, loc, scale: outward(loc + scale * scipy.special.ndtri(p)),
        lambda x, loc, scale: scipy.special.ndtr((inward(np.asarray(x)) - loc) / scale),
    )


def _logistic_mean(loc: Array, scale: Array) -> Array:
    """Return the mean of a logistic normal law, to some ten digits for scales below ten."""
    return _expected(scipy.special.expit, loc, scale)


def _logistic_sd(loc: Array, scale: Array) -> Array:
    mean = _logistic_mean(loc, scale)
    return np.sqrt(_expected(lambda u: (scipy.special.expit(u) - mean) ** 2, loc, scale))


def _expected(
    function: Callable[[Array], Array],
    loc: Array,
    scale: Array,
    nodes: int = 400,
    reach: float = 9.0,
) -> Array:
    """Return the mean of a function of ``N(loc, scale²)`` by the trapezoid rule, whose ``nodes``
    reach to ``reach`` standard deviations.
    """
    at = np.linspace(-reach, reach, nodes)
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
    """Return quantiles, exact on the diagonal, else by bisection between Chebyshev's bounds."""
    exact = s * 2 * scipy.special.gammaincinv(nu / 2, p)
    if (rho >= 1).all():
        return exact
    reach = _entry_sd(s, rho, nu) / np.sqrt(min(p, 1 - p))
    others = _halved_chi_squared(nu)

    def cdf(x):
        return _averaged(x, s, rho, nu, others)

    mean = nu * rho * s
    return np.where(rho >= 1, exact, bisected(cdf, p, mean - reach, mean + reach))


def _halved_chi_squared(nu: Array, count: int = 48) -> list[tuple[Array, float]]:
    """Return Gauss-Legendre nodes and weights of half a chi-squared law of ``nu`` degrees."""
    degrees, which = np.unique(nu, return_inverse=True)
    nodes, weights = scipy.special.roots_legendre(count)
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


def bisected(
    cdf: Callable[[Any], Array], p: float, low: Array, high: Array, halvings: int = 60
) -> Array:
    """Return the ``x`` in ``[low, high]`` at which a distribution function equals ``p``; the
    halvings of the interval reach rounding.
    """
    return NUMPY.bisected(lambda x: cdf(x) < p, low, high, halvings)
