"""KL both ways between a target and a mixture of Gaussians, by quadrature in double precision."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from experiments.pursuit.targets import LOG_2PI, Array, Target, square

REACH = 9.0  # standard deviations of each component that are integrated over: e^-40 is left out
SIDES = {1: (4001, 1501), 2: (401, 121)}
"""Points a side for each dimension: on the target's own grid, and on that of each component."""


@dataclasses.dataclass(frozen=True)
class Gaussians:
    """A mixture: weights (K,) that sum to one, means (K, d), lower triangular factors (K, d, d)."""

    weights: Array
    means: Array
    factors: Array

    @classmethod
    def of(cls, weights: Any, means: Any, factors: Any) -> "Gaussians":
        """``factors`` (K, d, d), or standard deviations (K, d); components of no weight go."""
        weights, means, factors = (np.asarray(a, np.float64) for a in (weights, means, factors))
        if factors.ndim == 2:
            factors = factors[:, :, None] * np.eye(factors.shape[1])
        keep = ~(weights <= 0)  # what is no number stays, to be seen
        return cls(weights[keep] / weights[keep].sum(), means[keep], factors[keep])

    @property
    def finite(self) -> bool:
        """Whether it is a law at all: a search that ran away leaves none."""
        diagonal = np.diagonal(self.factors, axis1=1, axis2=2)
        parts = (self.weights, self.means, self.factors)
        return all(np.isfinite(own).all() for own in parts) and bool((diagonal > 0).all())

    def log_density(self, points: Array) -> Array:
        """(N,) of (N, d)."""
        each = []
        for weight, mean, factor in zip(self.weights, self.means, self.factors, strict=True):
            inverse = np.linalg.inv(factor)
            with np.errstate(over="ignore"):  # so far away that the density is nothing
                away = (((points - mean) @ inverse.T) ** 2).sum(1)
            volume = np.log(np.abs(np.diagonal(factor))).sum()
            each.append(math.log(weight) - (away + len(mean) * LOG_2PI) / 2 - volume)
        return np.logaddexp.reduce(each)

    def points(self, side: int) -> tuple[Array, Array]:
        """Points (N, d) around all components, and weights (N,): of the mixture's expectation."""
        size = self.means.shape[1]
        u = square(size, -REACH, REACH, side)
        normal = np.exp(-(u**2).sum(1) / 2)
        normal /= normal.sum()
        places = self.means[:, None] + np.einsum("kij,nj->kni", self.factors, u)
        return places.reshape(-1, size), (self.weights[:, None] * normal).ravel()


@dataclasses.dataclass(frozen=True)
class Divergence:
    """In nats: KL(q ‖ p), which variational inference lowers; KL(p ‖ q), infinite where the target
    has no variance; and how much either changes, at most, with half as many points a side.
    """

    reverse: float
    forward: float
    change: float


def divergence(
    target: Target, found: Gaussians, sides: tuple[int, int] | None = None
) -> Divergence:
    """Both ways; infinite of what is no law."""
    if not found.finite:
        return Divergence(math.inf, math.inf, 0.0)
    whole = sides or SIDES[target.size]
    fine, coarse = (_both(target, found, *own) for own in (whole, [s // 2 + 1 for s in whole]))
    pairs = zip(fine, coarse, strict=True)
    change = max(abs(a - b) for a, b in pairs if math.isfinite(a) and math.isfinite(b))
    return Divergence(*fine, change)


def _both(target: Target, found: Gaussians, own: int, each: int) -> tuple[float, float]:
    places, log_p, constant = _grid(target, own)
    points, weights = found.points(each)
    ratio = found.log_density(points) - target.log_densities(points) + constant
    reverse = float(weights @ ratio)
    if not target.moments:
        return reverse, math.inf
    values, chance = log_p
    return reverse, float(chance @ (values - found.log_density(places)))


@functools.lru_cache(maxsize=64)
def _grid(target: Target, side: int) -> tuple[Array, tuple[Array, Array], float]:
    """Where the target's expectations are taken: points; log p and chances; the log normaliser."""
    places, volumes = target.grid(side)
    values = target.log_densities(places)
    constant = float(np.logaddexp.reduce(values + volumes))
    chance = np.exp(values + volumes - constant)
    keep = chance > 1e-30
    return places[keep], (values[keep] - constant, chance[keep]), constant
