"""How far a run is from its optimum: its sites are asked where that is.

A posterior's natural gradient, the sum over sites of ``∇_μ E_q[log likelihood_k]/α - η_k``, leads
by one undamped step to where all sites would go at once. What is left beyond that step can be
most of it, where means move together only, so steps are extrapolated from those before them
(walker2011) until they are short beside the way. No rate, damping or order of turns matters to it.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from posterity.families import ExponentialFamily
from posterity.federation.site import canonical
from posterity.federation.visit import distance
from posterity.inference.step import HALVINGS, TRUST

Gradient = Callable[[Any], Any]
"""From a member to the natural gradient there; None where a site fails or it is not finite."""
STEPS, MEMORY = 40, 12
"""Members at which the sites are asked, at most, and steps that one is extrapolated from."""
SHORT = 1e-2
"""The share of the way's squared length that two steps in a row may have when it ends."""
GROWTH = 2.0
"""Times the shortest gradient that a longer one may be, before a step is halved."""


def optimum_from(
    q: ExponentialFamily, gradient: Gradient, admits: Callable[[Any], bool], enough: float
) -> ExponentialFamily | None:
    """The optimum that natural gradients lead to from a member; None if it is not found.

    It is found once two steps in a row are short beside the way to there, or ``enough`` nats, as
    they are seen from either end: what is short for a wide member may be far for a narrow one.
    """
    start: Any = q
    at, slope = start, gradient(start)
    moves: list[tuple[Any, Any]] = []
    short, least = 0, math.inf
    reach = 2 * (TRUST + start.event_size)
    for _ in range(STEPS):
        if slope is None:
            return None
        squared = float(at.squared_length(slope))
        if not squared <= reach:  # far off, where neither it nor its changes hold for long
            step, moves, least = slope * math.sqrt(reach / squared), [], math.inf
        else:
            step, least = _extrapolated(at, slope, moves), min(least, squared)
        moved, after, share = _shortened(at, step, gradient, admits, GROWTH**2 * least)
        if moved is None:
            if not moves:
                return None
            moves = []  # what it was extrapolated from misleads
            continue
        last = _length(start, moved, moved - at)
        moves = [*moves[1 - MEMORY :], (moved - at, after - slope)]
        at, slope = moved, after
        near = 2 * max(SHORT * distance(start, at), enough)
        short = short + 1 if share == 1 and moves[1:] and last <= near else 0
        if short < 2:
            continue
        # Where means creep, what is left of the gradient hardly changes over short steps.
        probed = _probe(start, at, slope, near, gradient, admits)
        if probed is None:
            return None
        moves = [*moves[1 - MEMORY :], probed]
        if _length(start, at, _extrapolated(at, slope, moves)) <= near:
            return at
        short = 0
    return None


def _length(one: Any, other: Any, step: Any) -> float:
    """The squared length of a step, in nats, in the metric of two members in which it is longer."""
    return max(float(one.squared_length(step)), float(other.squared_length(step)))


def _probe(
    start: Any,
    at: Any,
    slope: Any,
    squared: float,
    gradient: Gradient,
    admits: Callable[[Any], bool],
) -> tuple[Any, Any] | None:
    """A move along the gradient of this squared length, and how that changes; None if not known."""
    length = _length(start, at, slope)
    move = slope * (math.sqrt(squared / length) if length > 0 else 0.0)
    moved = canonical(at + move)
    after = gradient(moved) if admits(moved) else None
    return None if after is None else (moved - at, after - slope)


def _shortened(
    at: Any, step: Any, gradient: Gradient, admits: Callable[[Any], bool], most: float
) -> tuple[Any, Any, float]:
    """The first of ever shorter steps to a gradient of this squared length, and how short it is."""
    for halving in range(HALVINGS // 4):
        share = 0.5**halving
        moved = canonical(at + step * share)
        if not (np.isfinite(moved.natural_parameters).all() and admits(moved)):
            continue
        after = gradient(moved)
        if after is not None and float(moved.squared_length(after)) <= most:
            return moved, after, share
    return None, None, 0.0


def _extrapolated(at: Any, slope: Any, moves: list[tuple[Any, Any]]) -> Any:
    """The step to where the gradient would vanish, if it changed as it did over the moves.

    Of all combinations of moves the one that leaves least of the gradient, in the Fisher metric.
    """
    if not moves:
        return slope
    changes = [change for _, change in moves]
    lengths = np.array([math.sqrt(float(at.squared_length(change))) for change in changes])
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        return slope
    units = [change / length for change, length in zip(changes, lengths, strict=True)]
    own = math.sqrt(float(at.squared_length(slope))) or 1.0
    gram = np.array([[_inner(at, one, other) for other in units] for one in units])
    along = own * np.array([_inner(at, one, slope / own) for one in units])
    weights = np.linalg.lstsq(gram, along, rcond=1e-12)[0] / lengths
    step = slope
    for (move, change), weight in zip(moves, weights, strict=True):
        step = step - (move + change) * float(weight)
    return step


def _inner(at: Any, one: Any, other: Any) -> float:
    return (float(at.squared_length(one + other)) - float(at.squared_length(one - other))) / 4


def distances(q: ExponentialFamily, optima: Sequence[ExponentialFamily]) -> tuple[float, float]:
    """The KL divergence of the optimum from a member, in nats, and the most between two optima.

    Of several that noise keeps apart, what that adds on average is taken off.
    """
    each = [distance(q, optimum) for optimum in optima]
    pairs = [distance(one, other) for one, other in itertools.combinations(optima, 2)]
    apart = math.fsum(pairs) / max(len(pairs), 1)
    return max(math.fsum(each) / len(each) - apart / 2, 0.0), max(pairs, default=0.0)
