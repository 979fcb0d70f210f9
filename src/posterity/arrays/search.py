"""Backtracking line search, and Newton's method and L-BFGS, which are built on it.

A search evaluates one point per iteration. A point that keeps enough of the decrease predicted by
the slope is accepted, and the next step is twice as long, at most a whole one; otherwise the step
is shortened (nocedal2006, section 3.1). The same rule is used for arrays of NumPy and of JAX, and
for batches of independent searches.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.linear_algebra import symmetric
from posterity.arrays.namespace import namespace
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Bool, Float, Int, PyTree, Real


@dataclasses.dataclass(frozen=True)
class Rule:
    """When a point is accepted, and when a search ends."""

    armijo: float = 1e-4
    """The share of the decrease predicted by the slope that a step must achieve."""
    flatter: float = 0.8
    """If rounding hides the decrease, a step must reduce the squared slope by this factor."""
    close: float = 1e-14
    """Half the squared length of the slope, in nats, at which a search ends."""
    shortest: float = 1e-13
    """The share of a whole step below which a search ends: then steps are rounding errors."""


RULE = Rule()
NEVER_CLOSE = Rule(close=0.0)


class Point(NamedTuple):
    """A point of a search, and the results of evaluating the objective there.

    In a batch of searches over NumPy's arrays ``at`` and ``direction`` are (G, d), all else (G,).
    """

    at: Any
    """An array, or over JAX a tree of arrays."""
    direction: Any
    """The direction of a whole step, in the form that the ``move`` of the search accepts."""
    value: Float[Real, "*g"]
    """The objective, to be minimised; infinite where it is not finite."""
    rounding: Float[Real, "*g"]
    """The rounding error of the value."""
    squared: Float[Real, "*g"]
    """The squared length of the slope: the rate at which the value falls along the step."""
    finite: Bool[Real, "*g"]
    """True if the value and the slope are finite, so that the point can be accepted."""


class Search(NamedTuple):
    """The state of a search between two evaluations: what every loop of this library goes on from.

    Whoever evaluates the objective, here or at sites far away, asks for the point at ``rate`` of a
    whole step from the best one, and tells the search the result.
    """

    best: Point
    rate: Float[Real, "*g"]
    """The share of a whole step to try next. If it is zero, points are compared by values only."""
    looks: Int[Real, ""]
    """The number of results so far, without the first point."""
    done: Bool[Real, "*g"]
    taken: Bool[Real, "*g"]
    """True if the last result was accepted."""

    @classmethod
    def of(cls, first: Point) -> "Search":
        """Return the search from a point, before a whole step."""
        np_ = namespace(first.value).np
        no = np_.zeros_like(first.finite)
        return cls(first, np_.ones_like(first.value), np_.asarray(0), no, no)

    def tell(
        self, result: Point, *, scale: Float[Real, ""] | float = 1.0, rule: Rule = RULE
    ) -> "Search":
        """Return the search after the evaluation of the point that it asked for.

        ``scale`` converts squared lengths to units of the value. A point is accepted by Armijo's
        rule or, where rounding hides the decrease, if its slope is flatter. A search that is done
        stays as it is.
        """
        best = self.best
        xp = namespace(result.value)
        promised = self.rate * scale * best.squared
        falls = result.value <= best.value - rule.armijo * promised
        level = result.value <= best.value + best.rounding
        better = result.finite & (falls | (level & (result.squared < rule.flatter * best.squared)))
        shorter = xp.np.where(result.finite, 0.5, 0.1) * self.rate
        rate = xp.np.where(better, xp.np.minimum(1.0, 2 * self.rate), shorter)
        hidden = ~better & (promised <= best.rounding)
        settled = better & (scale * result.squared <= 2 * rule.close)
        taken = better & ~self.done
        return Search(
            Point(*xp.choose(taken, tuple(result), tuple(best))),
            xp.np.where(self.done, self.rate, rate),
            self.looks + 1,
            self.done | hidden | settled | (rate < rule.shortest),
            taken,
        )


def search(
    look: Callable[[Any], Point],
    start: PyTree,
    *,
    most: int,
    move: Callable[[Any, Any, Any], Any] | None = None,
    rule: Rule = RULE,
) -> Search:
    """Minimise from ``start``, evaluating at most ``most`` further points.

    ``look`` returns the :class:`Point` at a place, which is an array or, over JAX, a tree. ``move``
    maps a place, a direction and a share of the step to the next place, by default along a straight
    line. ``rule`` says when the search ends.
    """
    xp = namespace(*leaves(start))
    step = (lambda at, way, rate: at + rate[..., None] * way) if move is None else move

    def turn(state: Search) -> Search:
        best = state.best
        after = state.tell(look(step(best.at, best.direction, state.rate)), rule=rule)
        return after._replace(done=after.done | (after.taken & settled(after.best)))

    def settled(point: Point) -> Any:
        """True if the decrease left is below rounding, or is unknown."""
        return ~(point.squared > 2 * xp.np.maximum(rule.close, point.rounding))

    first = look(start)
    begin = Search.of(first)._replace(done=~first.finite | settled(first))
    return xp.repeat(lambda state: (state.looks < most) & ~state.done.all(), turn, begin)


class Mode(NamedTuple):
    """The result of Newton's method; ``distance`` is that to the mode, in standard deviations."""

    at: Float[np.ndarray, " d"]
    distance: float
    steps: int


def newton(
    value: Callable[[np.ndarray], float],
    step: Callable[[np.ndarray], tuple[np.ndarray, float]],
    start: Float[np.ndarray, " d"],
    *,
    most: int,
    rounded: float = 5e-9,
) -> Mode:
    """Find the mode of a log density by Newton's method with backtracking, from ``start`` (d,).

    ``value`` returns the log density in nats, up to a constant. ``step`` returns the Newton step at
    a point and its squared length in units of the curvature, which is twice the gain predicted in
    nats. At most ``most`` points are evaluated. Values that differ by less than ``rounded`` nats,
    the gain of a step of 1e-4 standard deviations, may differ by rounding.

    Source: nocedal2006, section 3.3.
    """

    def look(at: np.ndarray) -> Point:
        energy = -float(value(at))
        direction, squared = step(at) if np.isfinite(energy) else (np.zeros_like(at), np.inf)
        finite = np.isfinite(energy) & np.isfinite(squared) & np.isfinite(direction).all()
        energy = energy if finite else np.inf
        rounding = min(1e-14 * (1 + abs(energy)), rounded)
        return Point(at, direction, *map(np.asarray, (energy, rounding, squared, finite)))

    end = search(look, np.asarray(start, np.float64), most=most)
    best = end.best
    distance = float(np.sqrt(best.squared)) if best.finite else np.inf
    at = best.at + best.direction if distance < 1 else best.at
    return Mode(np.asarray(at), distance, int(end.looks) + 1)


def step_by_curvature(
    slope: Float[np.ndarray, " d"], curvature: Float[np.ndarray, "d d"], *, least: float = 1e-15
) -> tuple[Float[np.ndarray, " d"], float]:
    """Return the Newton step for a log density with this slope and minus this Hessian.

    The second value is the squared length of the step (see :func:`newton`). Coordinates are first
    scaled to a curvature of one. Negative curvature is replaced by its absolute value, and none is
    taken to be below ``least``.
    """
    if not (np.isfinite(slope).all() and np.isfinite(curvature).all()):
        return np.zeros_like(slope), np.inf
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(curvature)), 1e-300))
    sizes, axes = np.linalg.eigh(scale[:, None] * symmetric(curvature) * scale)
    step = scale * (axes @ ((axes.T @ (scale * slope)) / np.maximum(abs(sizes), least)))
    return step, float(slope @ step)


class _Pair(NamedTuple):
    """A step, the change of the slope along it, and their inverse product; 0 if it is unused."""

    step: Float[np.ndarray, "*g d"]
    change: Float[np.ndarray, "*g d"]
    inverse: Float[np.ndarray, "*g"]


def lbfgs(
    value_and_slope: Callable[[np.ndarray], tuple[Any, np.ndarray]],
    start: Float[np.ndarray, "*g d"],
    *,
    most: int,
    gain: float = 1e-10,
    memory: int = 10,
) -> tuple[Float[np.ndarray, "*g d"], Any, int]:
    """Minimise by L-BFGS; return the place, the value, and the number of evaluations.

    ``value_and_slope`` returns a number and its gradient (d,); points at which they are not finite
    are rejected. A batch of searches (G, d) advances together, each with a value and a memory of
    its own of ``memory`` steps. A search ends when the decrease predicted is below ``gain`` times
    the value, or after ``most`` points. SciPy's implementation is not used: its small
    factorisations wait for threads.

    Source: nocedal2006, chapter 7.
    """
    pairs: list[_Pair] = []

    def move(at: PyTree, direction: PyTree, rate: Any) -> Any:
        return at[0] + rate[..., None] * direction[0], (at[0], *direction[1:])

    def look(at: PyTree) -> Point:
        z, before = at
        value, slope = value_and_slope(z)
        finite = np.isfinite(value) & np.isfinite(slope).all(-1)
        value = np.where(finite, value, np.inf)
        slope = np.where(finite[..., None], slope, 0.0)
        if before:
            better = finite & (value <= before[2])
            _remember(pairs, z - before[0], slope - before[1], better)
            del pairs[:-memory]
        direction = _downhill(pairs, slope)
        squared = np.where(finite, -(slope * direction).sum(-1), np.inf)
        rounding = gain * (1 + np.abs(value))
        return Point((z, ()), (direction, slope, value), value, rounding, squared, finite)

    begin = (np.asarray(start, np.float64), ())
    with np.errstate(over="ignore", invalid="ignore"):  # far out, where no point is taken
        end = search(look, begin, most=most - 1, move=move, rule=NEVER_CLOSE)
    return end.best.at[0], end.best.value, int(end.looks) + 1


def _remember(pairs: list[_Pair], step: np.ndarray, change: np.ndarray, better: Any) -> None:
    """Store a pair if the curvature along it is positive."""
    curved = (step * change).sum(-1)
    kept = better & (curved > 1e-12 * (change**2).sum(-1))
    if kept.any():
        step, change = (np.where(kept[..., None], array, 0.0) for array in (step, change))
        pairs.append(_Pair(step, change, np.where(kept, 1 / np.where(kept, curved, 1.0), 0.0)))


def _downhill(pairs: list[_Pair], slope: np.ndarray) -> np.ndarray:
    """Return the descent direction by the two-loop recursion over the stored pairs."""
    left = slope
    shares = []
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
    curvature: Float[np.ndarray, "d d"], scale: Float[np.ndarray, " d"], least: float = 1e-12
) -> Float[np.ndarray, "d d"]:
    """Return ``L`` with ``L Lᵀ`` the inverse of a curvature whose eigenvalues are made positive.

    Eigenvalues, in the units ``scale`` (d,), are replaced by their absolute values, at least
    ``least``, so that Laplace's approximation has a finite width also where the density does not
    fall.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        unit = curvature * scale * scale[:, None]
    unit = np.nan_to_num(symmetric(unit))
    values, vectors = scipy.linalg.eigh(unit)
    values = np.maximum(np.abs(values), max(1e-10 * np.abs(values).max(), least))
    # Not by Cholesky: at a pole the squares of widths may be zero in double precision.
    root: Any = np.linalg.qr((scale[:, None] * vectors / np.sqrt(values)).T, mode="r")
    return root.T * np.where(np.diagonal(root) < 0, -1.0, 1.0)
