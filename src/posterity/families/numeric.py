"""Marginals of families without closed formulas, by quadrature or from draws."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.typing import ArrayLike, Float, PyTree
from posterity.families.marginals import Array, Marginal, along_first, bisected
from posterity.families.supports import Continuous
from posterity.runtime.lazy import jax

DRAWS = 4096
"""Number of draws from which marginals without closed formulas are estimated."""
NODES, CELLS = 201, 2048
"""Nodes of the search for the peak, and cells of the quadrature around it."""
DROP = 45.0
"""Nats below its peak at which a density is taken to be zero."""
ROUNDS = 60
"""The largest number of times that the interval around the peak is narrowed."""
WIDEST = 700.0
"""Half the width of the first interval in ``t``; its ``sinh`` spans the range of float64."""


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


def by_quadrature(law: PyTree) -> Quadrature:
    """Return the marginals (*batch) of proper laws of one number, by quadrature of ``log_prob``.

    The density, as a function of the unbounded number, must have one peak.
    """
    support: Continuous = law.support

    def log_density(t: Array) -> Array:
        with np.errstate(all="ignore"):
            u = np.sinh(t)
            xp = namespace(u)
            values = np.asarray(law.log_prob(support.forward(xp, u))) + support.log_slope(xp, u)
            values = values + np.logaddexp(t, -t)  # the slope of sinh, but for a factor
        return np.where(np.isfinite(values), values, -np.inf)

    low, high = (np.full(law.batch_shape, end) for end in (-WIDEST, WIDEST))
    for _ in range(ROUNDS):
        t = np.linspace(low, high, NODES)
        values = log_density(t)
        near = values > values.max(0) - DROP
        first = np.maximum(near.argmax(0) - 1, 0)
        last = np.minimum(NODES - near[::-1].argmax(0), NODES - 1)
        if np.all(last - first > NODES // 2):
            break
        low, high = (np.take_along_axis(t, at[None], 0)[0] for at in (first, last))
    t = np.linspace(low, high, 2 * CELLS + 1)
    values = log_density(t)
    density = np.exp(values - values.max(0))
    weights = np.ones(2 * CELLS + 1)
    weights[1::2], weights[2:-1:2] = 4.0, 2.0
    total = np.tensordot(weights, density, 1)
    z = support.forward(namespace(t), np.sinh(t))
    mean = np.tensordot(weights, z * density, 1) / total
    sd = np.sqrt(np.tensordot(weights, (z - mean) ** 2 * density, 1) / total)
    cells = np.cumsum(density[:-1:2] + 4 * density[1::2] + density[2::2], axis=0) / total
    cumulative = np.concatenate([np.zeros((1, *cells.shape[1:])), cells])
    slope = density[::2] / total * 6 / ((high - low) / CELLS)
    return Quadrature(low, high, mean, sd, cumulative, slope, support)


def from_draws(law: PyTree) -> Sampled:
    """Return the marginals (*batch, n) of all numbers of an event, from draws of proper members."""
    draws = jax.tree.leaves(law.sample(jax.random.key(0), (DRAWS,)))
    lead = 1 + len(law.batch_shape)
    flat = [np.asarray(leaf, float).reshape(*np.shape(leaf)[:lead], -1) for leaf in draws]
    return Sampled(np.concatenate(flat, axis=-1))
