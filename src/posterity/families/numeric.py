"""Marginals of families without closed formulas, by quadrature or from draws."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import ArrayLike, Float, PyTree
from posterity.families.formulas import bisected
from posterity.families.marginals import Array, Marginal, along_first
from posterity.families.supports import Continuous
from posterity.runtime.lazy import jax


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


@dataclasses.dataclass(frozen=True)
class Quadrature(Marginal):
    """A law over one number, by Simpson's rule over ``t``, where the number is ``f(sinh(t))``.

    ``f`` maps the real numbers onto the support. The distribution function lies at the ends of
    equal cells between ``low`` and ``high``, along the first axis of ``cumulative``, and its
    derivative in ``t`` along that of ``density``; between them it is a cubic.
    """

    low: Float[Array, "..."]
    high: Float[Array, "..."]
    expected: Float[Array, "..."]
    deviation: Float[Array, "..."]
    cumulative: Float[Array, "nodes ..."]
    density: Float[Array, "nodes ..."]
    support: Continuous

    @property
    def mean(self) -> Array:
        return self.expected

    @property
    def sd(self) -> Array:
        return self.deviation

    def quantile(self, p: float) -> Array:
        t = bisected(self._at, p, self.low, self.high)
        return self.support.forward(namespace(t), np.sinh(t))

    def cdf(self, x: ArrayLike) -> Array:
        x = np.asarray(x, float)
        with np.errstate(all="ignore"):
            t = np.arcsinh(self.support.inverse(namespace(x), x))
        outside = np.where(x < self.expected, self.low, self.high)
        return self._at(np.where(np.isnan(t), outside, t))

    def mapped(self, function: Callable[[Array], Array]) -> "Quadrature":
        ends = [function(a) for a in (self.low, self.high, self.expected, self.deviation)]
        nodes = [along_first(function)(a) for a in (self.cumulative, self.density)]
        fields: list[Any] = [*ends, *nodes, self.support]
        return Quadrature(*fields)

    def _at(self, t: Array) -> Array:
        """Evaluate Hermite's cubic interpolant of the distribution function at ``t``."""
        cells = len(self.cumulative) - 1
        width = (self.high - self.low) / cells
        place = np.clip((t - self.low) / width, 0.0, cells)
        index = np.minimum(np.nan_to_num(place).astype(int), cells - 1)
        s = place - index

        def pick(array, at):
            return np.take_along_axis(array, at[None], 0)[0]

        f0, f1 = (pick(self.cumulative, index + n) for n in (0, 1))
        d0, d1 = (width * pick(self.density, index + n) for n in (0, 1))
        at_nodes = (1 + 2 * s) * (1 - s) ** 2 * f0 + s * (1 - s) ** 2 * d0
        return at_nodes + s**2 * (3 - 2 * s) * f1 + s**2 * (s - 1) * d1


def by_quadrature(
    law: PyTree,
    *,
    cells: int = 2048,
    nodes: int = 201,
    drop: float = 45.0,
    widest: float = 700.0,
) -> Quadrature:
    """Return the marginals (*batch) of proper laws of one number, by quadrature of ``log_prob``.

    The density, as a function of the unbounded number, must have one peak. It is searched for on
    ``nodes``, of an interval in ``t`` of half the width ``widest``, whose ``sinh`` spans the range
    of float64, and narrowed to where the density is within ``drop`` nats of the peak. Simpson's
    rule then has this number of ``cells``.
    """
    support: Continuous = law.support

    def log_density(t: Array) -> Array:
        with np.errstate(all="ignore"):
            u = np.sinh(t)
            xp = namespace(u)
            values = np.asarray(law.log_prob(support.forward(xp, u))) + support.log_slope(xp, u)
            values = values + np.logaddexp(t, -t)  # the slope of sinh, but for a factor
        return np.where(np.isfinite(values), values, -np.inf)

    low, high = (np.full(law.batch_shape, end) for end in (-widest, widest))
    while True:
        t = np.linspace(low, high, nodes)
        values = log_density(t)
        near = values > values.max(0) - drop
        first = np.maximum(near.argmax(0) - 1, 0)
        last = np.minimum(nodes - near[::-1].argmax(0), nodes - 1)
        if np.all(last - first > nodes // 2):
            break
        low, high = (np.take_along_axis(t, at[None], 0)[0] for at in (first, last))
    t = np.linspace(low, high, 2 * cells + 1)
    values = log_density(t)
    density = np.exp(values - values.max(0))
    z = support.forward(namespace(t), np.sinh(t))
    areas = _areas(density)
    total = areas.sum(0)
    mean = _areas(z * density).sum(0) / total
    sd = np.sqrt(_areas((z - mean) ** 2 * density).sum(0) / total)
    cumulative = np.concatenate([np.zeros_like(areas[:1]), areas.cumsum(0) / total])
    slope = density[::2] / total * 6 / ((high - low) / cells)
    return Quadrature(low, high, mean, sd, cumulative, slope, support)


def _areas(values: Array) -> Array:
    """Return six times the area of each cell, of width one, by Simpson's rule."""
    return values[:-1:2] + 4 * values[1::2] + values[2::2]


def from_draws(law: PyTree) -> Sampled:
    """Return the marginals (*batch, n) of all numbers of an event, from draws of proper members."""
    draws = jax.tree.leaves(law.sample(jax.random.key(0), (law.marginal_draws,)))
    lead = 1 + len(law.batch_shape)
    flat = [np.asarray(leaf, float).reshape(*np.shape(leaf)[:lead], -1) for leaf in draws]
    return Sampled(np.concatenate(flat, axis=-1))
