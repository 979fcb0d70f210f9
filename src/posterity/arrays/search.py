"""Search by shortened steps: the one line search, and Newton's method and L-BFGS on top of it.

A search looks at one point a turn. A point that keeps enough of the decrease which the slope
promises is taken, and the next step is twice as long, a whole one at most; otherwise the step is
shortened (nocedal2006, section 3.1). The same rule serves NumPy's arrays and JAX's, and batches of
searches beside each other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Bool, Float, Int, Number, PyTree, Real

ARMIJO = 1e-4
"""The share of the decrease promised by the slope which a step must keep."""
FLATTER = 0.8
"""The most of the squared slope that a step may leave, if rounding hides the decrease."""
CLOSE = 1e-14
"""Half the squared length of the slope, in nats, below which there is no more to gain."""
SHORTEST = 1e-13
"""The share of a whole step below which a search gives up."""
MEMORY = 10
"""Steps that L-BFGS remembers."""
FLAT = 1e-15
"""The least curvature, of coordinates scaled to one, that Newton's method reckons with."""
ROUNDED = 5e-9
"""Nats that rounding may hide from Newton's method: a step of a ten-thousandth of a deviation."""


class Point(NamedTuple):
    """A point of a search, and what one look found there.

    A search over NumPy's arrays may be one of a batch: ``at`` and ``direction`` are (G, d) then,
    all else (G,).
    """

    at: Any
    """An array, or over JAX a tree of arrays."""
    direction: Any
    """The direction of a whole step, in whatever form the ``move`` of the search takes it."""
    value: Float[Real, "*g"]
    """The objective, to be minimised; infinite where it is not finite."""
    rounding: Float[Real, "*g"]
    """A change of the value that is no more than its rounding error."""
    squared: Float[Real, "*g"]
    """The squared length of the slope: by how much a unit of the step lowers the value at first."""
    finite: Bool[Real, "*g"]
    """True if the point can be taken at all."""


class Verdict(NamedTuple):
    """True if a point is taken, the share of a whole step to try next, and whether that is all."""

    taken: Bool[Real, "*g"]
    rate: Float[Real, "*g"]
    ended: Bool[Real, "*g"]


class Search(NamedTuple):
    """The state of a search: the best point so far, what to try next, and points looked at."""

    best: Point
    rate: Float[Real, "*g"]
    looks: Int[Real, ""]
    done: Bool[Real, "*g"]


def judged(
    best: Point,
    result: Point,
    rate: Number,
    *,
    scale: Float[Real, ""] | float = 1.0,
    close: float = CLOSE,
) -> Verdict:
    """True if ``found``, by ``rate`` of a whole step from ``best``, is better; and what is next.

    ``scale`` is what squared lengths are multiplied by to be in units of the value. A point is
    better by Armijo's rule; or, where rounding hides the decrease, by a slope that is flatter.
    """
    np_ = namespace(result.value).np
    promised = rate * scale * best.squared
    falls = result.value <= best.value - ARMIJO * promised
    level = result.value <= best.value + best.rounding
    taken = result.finite & (falls | (level & (result.squared < FLATTER * best.squared)))
    shorter = np_.where(result.finite, 0.5, 0.1)
    following = np_.where(taken, np_.minimum(1.0, 2 * rate), shorter * rate)
    hidden = ~taken & (promised <= best.rounding)
    settled = taken & (scale * result.squared <= 2 * close)
    return Verdict(taken, following, hidden | settled | (following < SHORTEST))


def search(
    look: Callable[[Any], Point],
    start: PyTree,
    *,
    most: int,
    move: Callable[[Any, Any, Any], Any] | None = None,
    close: float = CLOSE,
) -> Search:
    """Search from ``start`` downhill, looking at no more than ``most`` further points.

    ``look`` finds the value, the direction and the slope at a point, an array or over JAX a tree;
    ``move`` is the point by a share ``rate`` along a ``direction``, by default along a straight
    line; ``close`` is half the squared length of the slope at which the search ends.
    """
    xp = namespace(*leaves(start))
    step = (lambda at, way, rate: at + rate[..., None] * way) if move is None else move

    def turn(state: Search) -> Search:
        best = state.best
        result = look(step(best.at, best.direction, state.rate))
        verdict = judged(best, result, state.rate, close=close)
        return Search(
            Point(*xp.choose(verdict.taken & ~state.done, tuple(result), tuple(best))),
            verdict.rate,
            state.looks + 1,
            state.done | verdict.ended | (verdict.taken & settled(result)),
        )

    def settled(point: Point) -> Any:
        """True if what is left to gain is too little to tell from rounding, or is not known."""
        return ~(point.squared > 2 * xp.np.maximum(close, point.rounding))

    first = look(start)
    done = ~first.finite | settled(first)
    begin = Search(first, xp.np.ones_like(first.value), xp.np.asarray(0), done)
    return xp.repeat(lambda state: (state.looks < most) & ~state.done.all(), turn, begin)


class Mode(NamedTuple):
    """The end of Newton's method, ``distance`` standard deviations of its curvature away."""

    at: Float[np.ndarray, " d"]
    distance: float
    steps: int


def newton(
    value: Callable[[np.ndarray], float],
    step: Callable[[np.ndarray], tuple[np.ndarray, float]],
    start: Float[np.ndarray, " d"],
    *,
    most: int,
) -> Mode:
    """The mode of a log density by Newton's method with shortened steps, from ``start`` (d,).

    ``value`` is the log density in nats, up to a constant, and ``step`` the step to the top of the
    parabola at a point, beside its squared length in units of the curvature (twice what it gains
    there); at most ``most`` points are looked at.

    Source: nocedal2006, section 3.3.
    """

    def look(at: np.ndarray) -> Point:
        energy = -float(value(at))
        direction, squared = step(at) if np.isfinite(energy) else (np.zeros_like(at), np.inf)
        finite = np.isfinite(energy) & np.isfinite(squared) & np.isfinite(direction).all()
        energy = energy if finite else np.inf
        rounding = min(1e-14 * (1 + abs(energy)), ROUNDED)
        return Point(at, direction, *map(np.asarray, (energy, rounding, squared, finite)))

    end = search(look, np.asarray(start, np.float64), most=most)
    best = end.best
    distance = float(np.sqrt(best.squared)) if best.finite else np.inf
    at = best.at + best.direction if distance < 1 else best.at
    return Mode(np.asarray(at), distance, int(end.looks) + 1)


def step_by_curvature(
    slope: Float[np.ndarray, " d"], curvature: Float[np.ndarray, "d d"]
) -> tuple[Float[np.ndarray, " d"], float]:
    """The step of :func:`newton` for a log density with this slope and minus this Hessian.

    The second value is the squared length of the step (see :func:`newton`). Coordinates are scaled
    to a curvature of one each first. Where the density bends upwards, away from a mode, the size of
    its curvature still says how far to go.
    """
    if not (np.isfinite(slope).all() and np.isfinite(curvature).all()):
        return np.zeros_like(slope), np.inf
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(curvature)), 1e-300))
    sizes, axes = np.linalg.eigh(scale[:, None] * (curvature + curvature.T) / 2 * scale)
    step = scale * (axes @ ((axes.T @ (scale * slope)) / np.maximum(abs(sizes), FLAT)))
    return step, float(slope @ step)


class _Pair(NamedTuple):
    """A step, how the slope changed along it, and one over their product: 0 if it is left out."""

    step: Float[np.ndarray, "*g d"]
    change: Float[np.ndarray, "*g d"]
    inverse: Float[np.ndarray, "*g"]


def lbfgs(
    value_and_slope: Callable[[np.ndarray], tuple[Any, np.ndarray]],
    start: Float[np.ndarray, "*g d"],
    *,
    most: int,
    gain: float = 1e-10,
) -> tuple[Float[np.ndarray, "*g d"], Any, int]:
    """The least value, by L-BFGS: where it is, the value, and how many points were looked at.

    ``value_and_slope`` gives a number and its gradient (d,); points at which they are not finite
    are avoided. A batch of searches (G, d) goes on in step, each with values (G,) and a memory of
    its own. A search ends where what a step promises is less than ``gain`` of the value, or at
    ``most`` points. It is not SciPy's, whose tiny factorisations wait for threads.

    Source: nocedal2006, chapter 7.
    """
    pairs: list[_Pair] = []

    def move(at: PyTree, direction: PyTree, rate: Any) -> Any:
        return at[0] + rate[..., None] * direction[0], (at[0], *direction[1:])

    def look(at: PyTree) -> Point:
        z, before = at
        value, slope = value_and_slope(z)
        finite = np.isfinite(value) & np.isfinite(slope).all(-1)
        value, slope = np.where(finite, value, np.inf), np.where(finite[..., None], slope, 0.0)
        if before:
            better = finite & (value <= before[2])
            _remember(pairs, z - before[0], slope - before[1], better)
        direction = _downhill(pairs, slope)
        squared = np.where(finite, -(slope * direction).sum(-1), np.inf)
        rounding = gain * (1 + np.abs(value))
        return Point((z, ()), (direction, slope, value), value, rounding, squared, finite)

    begin = (np.asarray(start, np.float64), ())
    with np.errstate(over="ignore", invalid="ignore"):  # far out, where no point is taken
        end = search(look, begin, most=most - 1, move=move, close=0.0)
    return end.best.at[0], end.best.value, int(end.looks) + 1


def _remember(pairs: list[_Pair], step: np.ndarray, change: np.ndarray, better: Any) -> None:
    """Keep a pair instead of the oldest, if the curvature along it is positive."""
    curved = (step * change).sum(-1)
    kept = better & (curved > 1e-12 * (change**2).sum(-1))
    if kept.any():
        step, change = (np.where(kept[..., None], array, 0.0) for array in (step, change))
        pairs.append(_Pair(step, change, np.where(kept, 1 / np.where(kept, curved, 1.0), 0.0)))
        del pairs[:-MEMORY]


def _downhill(pairs: list[_Pair], slope: np.ndarray) -> np.ndarray:
    """Minus the slope times the inverse curvature that the pairs tell: the two-loop recursion."""
    left, shares = slope, []
    scale = 1 / np.maximum(1.0, np.linalg.norm(slope, axis=-1))
    for pair in reversed(pairs):
        shares.append((pair.step * left).sum(-1) * pair.inverse)
        left = left - shares[-1][..., None] * pair.change
    for pair in pairs:
        square = pair.inverse * (pair.change**2).sum(-1)
        scale = np.where(square > 0, 1 / np.where(square > 0, square, 1.0), scale)
    left = left * scale[..., None]
    for pair, share in zip(pairs, reversed(shares), strict=True):
        more = share - (pair.change * left).sum(-1) * pair.inverse
        left = left + pair.step * more[..., None]
    return -left


def root_of_inverse(
    curvature: Float[np.ndarray, "d d"], scale: Float[np.ndarray, " d"]
) -> Float[np.ndarray, "d d"]:
    """``L`` with ``L Lᵀ`` the inverse of a curvature that is made positive where it is not.

    So Laplace's approximation is as wide along directions in which a density does not fall as the
    size of its curvature would have it. ``scale`` (d,) are the units in which that is judged.
    """
    unit = curvature * scale * scale[:, None]
    unit = np.nan_to_num((unit + unit.T) / 2)
    values, vectors = scipy.linalg.eigh(unit)
    values = np.maximum(np.abs(values), max(1e-10 * np.abs(values).max(), 1e-12))
    covariance = (vectors / values) @ vectors.T * scale * scale[:, None]
    return np.linalg.cholesky((covariance + covariance.T) / 2)
