"""Densities that one Gaussian does not fit, and KL both ways to mixtures, by quadrature.

Each target knows a map from a square (or a line) under which its density is smooth and dies out
before the edges, so that equal spacing integrates it to many digits: funnels and bananas are
straightened.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = np.ndarray
LOG_2PI = math.log(2 * math.pi)
Grid = Callable[[int], tuple[Array, Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    name: str  # of it
    size: int  # its dimension, 1 or 2; points are (size,)
    log_density: Callable[[Any], Any]  # of a point, in nats, normalised or not, traceable by JAX
    grid: Grid  # ``n -> (points (N, size), logarithms of their volumes (N,))``, ``n`` a side
    # the standard deviation of the base law, the same along all axes: how far one has to look. The
    # mean is zero
    reach: float
    box: float  # half the width of pictures

    def log_densities(self, points: Array) -> Array:
        """(N,) of (N, size), in double precision."""
        with jax.enable_x64(True):
            return np.asarray(_of_many(self.log_density)(jnp.asarray(points, jnp.float64)))

    def log_normaliser(self, side: int) -> float:
        points, volumes = self.grid(side)
        return float(np.logaddexp.reduce(self.log_densities(points) + volumes))


@functools.cache
def _of_many(log_density: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.jit(jax.vmap(log_density))


def square(size: int, low: float, high: float, side: int) -> Array:
    """(side^size, size) equally spaced points on a line or a square."""
    axes = np.meshgrid(*[np.linspace(low, high, side)] * size, indexing="ij")
    return np.stack([axis.ravel() for axis in axes], 1)


def straight(size: int, low: float, high: float) -> Grid:
    step = lambda side: np.linspace(low, high, side)[1] - low
    volumes = lambda side: np.full(side**size, size * math.log(step(side)))
    return lambda side: (square(size, low, high, side), volumes(side))


def bent(
    inner: Grid, forward: Callable[[Array], Array], log_volume: Callable[[Array], Any]
) -> Grid:
    """A grid whose points are moved, and how the logarithm of their volumes changes."""

    def grid(side: int) -> tuple[Array, Array]:
        points, volumes = inner(side)
        return forward(points), volumes + log_volume(points)

    return grid


def mixture(weights: Any, means: Any, deviations: Any) -> Callable[[Any], Any]:
    """Normalised, of Gaussians with axes of their own: (K,), (K, d), (K, d)."""
    weights, means, deviations = (np.asarray(own, float) for own in (weights, means, deviations))
    constants = np.log(weights / weights.sum()) - np.log(deviations).sum(1)

    def log_density(z: Any) -> Any:
        # in the precision of the point: compiled constants of one precision do not serve the other
        own = lambda numbers: jnp.asarray(numbers, jnp.result_type(z))
        away = (z - own(means)) / own(deviations)
        return jax.nn.logsumexp(-(away**2 + LOG_2PI).sum(1) / 2 + own(constants))

    return log_density


FOUR_1D = ([0.2, 0.3, 0.3, 0.2], [[-7.0], [-2.5], [2.0], [7.0]], [[0.6], [0.5], [0.8], [0.7]])
"""Weights, means and standard deviations."""
FOUR_2D = (
    [0.3, 0.2, 0.2, 0.3],
    [[-3.0, -3.0], [-3.0, 3.5], [3.0, -2.5], [3.5, 3.0]],
    [[0.5, 0.9], [0.8, 0.6], [0.6, 0.6], [0.9, 0.5]],
)
WIDTH, BEND, THICKNESS, MOUTH = 2.0, 0.25, 0.7, 1.5


def four_modes_1d() -> Target:
    return Target("four modes, 1-d", 1, mixture(*FOUR_1D), straight(1, -16, 16), 5.0, 10.0)


def four_modes_2d() -> Target:
    """The same in the plane, at the corners of a square that is not quite one."""
    return Target("four modes, 2-d", 2, mixture(*FOUR_2D), straight(2, -12, 12), 4.0, 7.0)


def two_far_modes() -> Target:
    density = mixture([0.4, 0.6], [[-20.0], [20.0]], [[1.0], [1.0]])
    return Target("two far modes", 1, density, straight(1, -35, 35), 15.0, 27.0)


def ring_of_six() -> Target:
    """Six round modes on a circle of radius 4."""
    angles = np.arange(6) * math.pi / 3
    means = 4 * np.stack([np.cos(angles), np.sin(angles)], 1)
    density = mixture(np.ones(6), means, np.full((6, 2), 0.5))
    return Target("ring of six", 2, density, straight(2, -10, 10), 4.0, 6.5)


def banana() -> Target:
    """z₁ ~ N(0, 4), z₂ - (z₁² - 4)/4 ~ N(0, .49)."""
    volume = math.log(WIDTH * THICKNESS)

    def log_density(z: Any) -> Any:
        lifted = z[1] - BEND * (z[0] ** 2 - WIDTH**2)
        both = (z[0] / WIDTH) ** 2 + (lifted / THICKNESS) ** 2
        return -both / 2 - LOG_2PI - volume

    def forward(u: Array) -> Array:
        first = WIDTH * u[:, 0]
        return np.stack([first, THICKNESS * u[:, 1] + BEND * (first**2 - WIDTH**2)], 1)

    grid = bent(straight(2, -10, 10), forward, lambda u: volume)
    return Target("banana", 2, log_density, grid, 4.0, 7.0)


def funnel() -> Target:
    """v ~ N(0, 2.25), x given v ~ N(0, exp v), points (v, x): Neal's, with half its spread of v."""

    def log_density(z: Any) -> Any:
        v, x = z
        return -((v / MOUTH) ** 2 + v + x**2 * jnp.exp(-v)) / 2 - LOG_2PI - math.log(MOUTH)

    def forward(u: Array) -> Array:
        v = MOUTH * u[:, 0]
        return np.stack([v, np.exp(v / 2) * u[:, 1]], 1)

    grid = bent(straight(2, -10, 10), forward, lambda u: math.log(MOUTH) + MOUTH * u[:, 0] / 2)
    return Target("funnel", 2, log_density, grid, 4.0, 6.0)


def skew_normal() -> Target:
    """Of shape 8: almost half a normal."""

    def log_density(z: Any) -> Any:
        normal = -(z[0] ** 2 + LOG_2PI) / 2
        return math.log(2) + normal + jax.scipy.special.log_ndtr(8 * z[0])

    return Target("skew normal", 1, log_density, straight(1, -4, 11), 2.0, 4.0)


def log_gamma() -> Target:
    """The logarithm of a gamma variable of shape one half: a slope and a cliff."""
    log_density = lambda z: z[0] / 2 - jnp.exp(z[0]) - math.log(math.pi) / 2
    return Target("log gamma", 1, log_density, straight(1, -90, 6), 4.0, 12.0)


TARGETS: dict[str, Callable[[], Target]] = {
    make().name: functools.cache(make)
    for make in (
        *(four_modes_1d, four_modes_2d, two_far_modes, ring_of_six, banana, funnel),
        *(skew_normal, log_gamma),
    )
}
"""By name; each is made once, for what is compiled for it serves again."""

NEAR = ("four modes, 1-d", "four modes, 2-d", "two far modes")
"""Those that are mixtures of few Gaussians of the family, where 0.01 nats are to be reached."""


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
    """In nats: KL(q ‖ p), which variational inference lowers; KL(p ‖ q); and how much either
    changes, at most, with half as many points a side.
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
