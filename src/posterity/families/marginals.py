"""Marginal distributions of single numbers, as arrays: means, deviations and quantiles.

The method ``marginals()`` of a law returns its own, and ``tables()`` those of all its parts.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import scipy

from posterity.arrays.leaves import frozen
from posterity.arrays.typing import ArrayLike, Bool, Float, Shape
from posterity.families.formulas import MOMENTS, NORMAL, Array, Formulas, bisected
from posterity.families.names import Names as Names

WEIGHT = "weight"
"""The name of the quantity in rows of mixing weights."""


@dataclasses.dataclass(frozen=True)
class Marginal(abc.ABC):
    """Distributions of single numbers, as arrays of one shape; NaN stands for what is unknown."""

    @property
    @abc.abstractmethod
    def mean(self) -> Float[Array, "..."]:
        """Means; NaN where they do not exist."""

    @property
    @abc.abstractmethod
    def sd(self) -> Float[Array, "..."]:
        """Standard deviations; infinite or NaN where they do not exist."""

    @abc.abstractmethod
    def quantile(self, p: float) -> Float[Array, "..."]:
        """Return the quantile of probability ``p``."""

    @abc.abstractmethod
    def cdf(self, x: ArrayLike) -> Float[Array, "..."]:
        """Return the probability of a value of at most ``x``."""

    @abc.abstractmethod
    def mapped(self, function: Callable[[Array], Array]) -> Self:
        """Apply a function that moves or selects entries to all parameter arrays."""

    @property
    def shape(self) -> Shape:
        """The shape of the arrays of parameters."""
        return self.mean.shape

    def picked(self, index: Any) -> Self:
        """Return some of the distributions, selected by NumPy's indexing rules."""
        return self.mapped(lambda array: array[index])

    def reshaped(self, shape: Shape) -> Self:
        """Return the marginals in other axes."""
        return self.mapped(lambda array: array.reshape(shape))

    def mapped_normal(self, image: "Formulas") -> "Marginal":
        """Return the law of an increasing map of a normal number; NaN for other laws."""
        del image
        return unknown(self.shape)

    def interval(self, level: float) -> tuple[Array, Array]:
        """Return the central interval of this probability, with equal tails."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def width(self) -> Float[Array, "..."]:
        """Return the standard deviation, or that of a normal law with the same quartiles."""
        sd = self.sd
        if np.isfinite(sd).all():
            return sd
        with np.errstate(invalid="ignore"):
            apart = (self.quantile(0.75) - self.quantile(0.25)) / (2 * scipy.special.ndtri(0.75))
        return np.where(np.isfinite(sd), sd, apart)


def same_shape(*parameters: ArrayLike) -> tuple[Array, ...]:
    """Return the parameters as float64 arrays, broadcast to one shape."""
    arrays = np.broadcast_arrays(*(np.asarray(p, float) for p in parameters))
    return tuple(np.array(array) for array in arrays)


@dataclasses.dataclass(frozen=True)
class Closed(Marginal):
    """Distributions whose moments and quantiles are closed formulas of their parameters."""

    formulas: Formulas
    parameters: tuple[Array, ...]

    @functools.cached_property
    def mean(self) -> Array:
        return frozen(self._at(self.formulas.mean))

    @functools.cached_property
    def sd(self) -> Array:
        return frozen(self._at(self.formulas.sd))

    def quantile(self, p: float) -> Array:
        return self._at(self.formulas.quantile, p)

    def cdf(self, x: ArrayLike) -> Array:
        return self._at(self.formulas.cdf, x)

    def _at(self, formula: Callable[..., Array], *of: Any) -> Array:
        with np.errstate(over="ignore", divide="ignore"):
            return formula(*of, *self.parameters)

    @property
    def shape(self) -> Shape:
        return np.shape(self.parameters[0])

    def mapped(self, function: Callable[[Array], Array]) -> "Closed":
        return Closed(self.formulas, tuple(map(function, self.parameters)))

    def mapped_normal(self, image: Formulas) -> Marginal:
        """Return the law of the number whose normal ``u`` this is."""
        normal = self.formulas is NORMAL
        return Closed(image, self.parameters) if normal else super().mapped_normal(image)


@dataclasses.dataclass(frozen=True)
class MixedMarginal(Marginal):
    """Mixtures of the distributions along the first axis of ``parts``, with these weights."""

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
    def shape(self) -> Shape:
        return self.parts.shape[1:]

    def mapped(self, function: Callable[[Array], Array]) -> "MixedMarginal":
        return MixedMarginal(self.weights, self.parts.mapped(along_first(function)))

    def mapped_normal(self, image: Formulas) -> "MixedMarginal":
        return MixedMarginal(self.weights, self.parts.mapped_normal(image))


def along_first(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Apply a function of arrays to each entry along the first axis of an array."""
    return lambda array: np.stack([function(row) for row in array])


@dataclasses.dataclass(frozen=True)
class Sampled(Marginal):
    """The empirical distributions of draws, which lie along the first axis."""

    draws: Array

    @property
    def mean(self) -> Array:
        return self.draws.mean(0)

    @property
    def sd(self) -> Array:
        return self.draws.std(0)

    def quantile(self, p: float) -> Array:
        return np.quantile(self.draws, p, axis=0)

    def cdf(self, x: ArrayLike) -> Array:
        return (self.draws <= x).mean(0)

    def mapped(self, function: Callable[[Array], Array]) -> "Sampled":
        return Sampled(along_first(function)(self.draws))


def known_moments(mean: Array, sd: Array) -> Closed:
    """Return marginals of which only the mean and the standard deviation are known."""
    return Closed(MOMENTS, (mean, sd))


def unknown(shape: Shape) -> Closed:
    """Return marginals with NaN throughout, as for improper laws."""
    return known_moments(np.full(shape, np.nan), np.full(shape, np.nan))


def scattered(law: Marginal, mask: Bool[Array, "..."]) -> Marginal:
    """Return marginals for all members: those of some at their places, NaN for the others."""

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
        """The number of marginal distributions in the table."""
        return math.prod(map(len, self.axes)) * len(self.names)

    def labels(self, index: int) -> tuple[str, str]:
        """Return the labels of the member and the coordinate with this flat index."""
        *members, name = np.unravel_index(index, (*map(len, self.axes), len(self.names)))
        labels = (axis[i] for axis, i in zip(self.axes, members, strict=True))
        return ", ".join(labels), self.names[int(name)]


@functools.lru_cache(maxsize=64)
def numbered(size: int) -> tuple[str, ...]:
    """Return the labels ``"0", "1", ...`` for coordinates without names."""
    return tuple(map(str, range(size)))
