"""Laws of single numbers whose distribution functions are averages, and what draws say."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from posterity.arrays.typing import Float
from posterity.summary.marginals import Marginal

Array = np.ndarray
HALVINGS = 60
"""Of an interval in which a quantile lies, until rounding."""
NODES = 48
"""Of a quadrature."""


@dataclasses.dataclass(frozen=True)
class Product2(Marginal):
    """``s/2 ((1 + ρ) A - (1 - ρ) B)``, ``A`` and ``B`` chi-squared of ``ν``: a Wishart's entry.

    So is the entry off the diagonal of scales ``Sii``, ``Sjj``, ``Sij = ρ s``,
    ``s = √(Sii Sjj)``. Its distribution is averaged over ``B``.
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
        """By halving; Chebyshev's inequality says where to begin."""
        reach = self.sd / np.sqrt(min(p, 1 - p))
        others = self._others()
        cdf = lambda x: self._averaged(x, others)
        return halved(cdf, p, self.mean - reach, self.mean + reach)

    def cdf(self, x: Any) -> Array:
        """By quadrature over the quantiles of ``B``."""
        return self._averaged(x, self._others())

    def _others(self) -> list[tuple[Array, float]]:
        """Quantiles of ``B / 2`` and their weights; few degrees of freedom serve many entries."""
        degrees, which = np.unique(self.nu, return_inverse=True)
        nodes, weights = special.roots_legendre(NODES)
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
class Mixed(Marginal):
    """A mixture of laws, which lie along the first axis of ``parts``."""

    weights: Float[Array, " k"]
    parts: Marginal

    @property
    def shape(self) -> tuple[int, ...]:
        """The parts', without their first axis."""
        return self.parts.shape[1:]

    def mapped(self, function: Callable[[Array], Array]) -> "Mixed":
        """Of each part."""
        one = lambda array: np.stack([function(part) for part in array])
        return Mixed(self.weights, self.parts.mapped(one))

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
        return halved(self.cdf, p, ends.min(0), ends.max(0))

    def cdf(self, x: Any) -> Array:
        """The average."""
        return self._average(self.parts.cdf(x))


@dataclasses.dataclass(frozen=True)
class Drawn(Marginal):
    """What draws say, which lie along the first axis."""

    draws: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one draw."""
        return self.draws.shape[1:]

    def mapped(self, function: Callable[[Array], Array]) -> "Drawn":
        """Of each draw."""
        return Drawn(np.stack([function(draw) for draw in self.draws]))

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


def halved(cdf: Callable[[Any], Array], p: float, low: Array, high: Array) -> Array:
    """Where a distribution function reaches ``p``, between two ends."""
    unknown = np.isnan(low) | np.isnan(high)
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        below = cdf(middle) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(unknown, np.nan, low + (high - low) / 2)
