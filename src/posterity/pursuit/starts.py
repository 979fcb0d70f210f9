"""Starting points of components: the peaks of what the mixture still misses, as wide as they are.

Points are drawn from the base and, wider, from the mixture; from the most promising ones the ratio
``log L/q_t`` is climbed, and the curvature at the top gives the width.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special
from jaxtyping import Float, Int, PyTree

from posterity.families import Distribution
from posterity.families.free_forms import FreeForm
from posterity.pursuit import objectives
from posterity.pursuit.objectives import Ratio, maximised
from posterity.pursuit.target import Target

SCOUTS = 256
"""Points of each kind at which the ratio is looked at."""
WIDER = 3.0
"""How much further than the mixture's draws the search looks."""
CLIMB = 60
"""Steps of a climb, at the most."""
DENSE = 100
"""Coordinates up to which the whole curvature is computed."""
WIDEST = 10.0
"""In standard deviations of the base: nothing begins wider."""
NARROW = 0.1
"""In standard deviations of the base: the width to begin with where no curvature is known."""
ENOUGH = 16
"""Points that count, at the least, where moments are taken of them."""
APART = 0.5
"""In their standard deviations: tops that lie nearer are one."""


class Scouted(NamedTuple):
    """Events (n, ...) that were looked at, and the ratio there."""

    z: Any
    log_ratios: Float[np.ndarray, " n"]


def generator(key: jax.Array) -> np.random.Generator:
    """NumPy's random numbers from a key of JAX."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))


def fixed_noise(form: FreeForm, key: jax.Array, number: int) -> Any:
    """Noise for so many draws outside of compiled code."""
    if not form.smooth:
        return jax.random.split(key, number)
    return generator(key).standard_normal((number, form.noise_size))


def scouted(form: FreeForm, target: Target, base: Any, ratio: Ratio, *, key: jax.Array) -> Scouted:
    """Events over the base and, where components can be placed, about those of the mixture."""
    noise, count = fixed_noise(form, key, 2 * SCOUTS), len(ratio.q.log_weights)
    labels = np.full(2 * SCOUTS, count)
    if form.smooth and ratio.started:
        weights = np.exp(ratio.q.log_weights)
        weights = weights / weights.sum()
        labels[SCOUTS:] = generator(key).choice(count, 2 * SCOUTS, p=weights)[SCOUTS:]
        noise[SCOUTS:] *= WIDER
    stack = lambda rows, own: np.concatenate([rows, np.asarray(own)[None]])
    parameters = jax.tree.map(stack, ratio.q.parameters, base)
    z, ratios = objectives.scouted(form, target, parameters, labels, noise, ratio)
    return Scouted(jax.tree.map(np.asarray, z), np.asarray(ratios, np.float64))


def promising(points: Scouted, number: int, rng: np.random.Generator) -> Int[np.ndarray, " number"]:
    """Places of points: the best, and others at random where the ratio is high.

    Tempered, so that a few nats do not decide between places that were only looked at once.
    """
    logs = np.where(np.isfinite(points.log_ratios), points.log_ratios, -np.inf)
    best = int(np.argmax(logs))
    spread = np.ptp(logs[np.isfinite(logs)]) if np.isfinite(logs).any() else 0.0
    chances = scipy.special.softmax(logs / max(1.0, spread / 10))
    chances[best] = 0.0
    more = min(number - 1, int((chances > 0).sum()))
    others = rng.choice(len(logs), more, replace=False, p=chances / chances.sum()) if more else []
    return np.array([best, *others], int)


def tops(
    form: FreeForm, target: Target, base: PyTree, ratio: Ratio, points: Scouted, places: Any
) -> tuple[list[PyTree], int]:
    """Parameters about the peaks near points, the best first; and the gradients that it took."""
    unit = form.deviation(base)
    flat_unit, ends = _flat(unit), []
    for place in places:
        at = jax.tree.map(lambda leaf, place=place: leaf[place], points.z)
        end = maximised(
            objectives.height, form, np.zeros_like(flat_unit), (target, at, unit, ratio), most=CLIMB
        )
        ends.append((at, end))
    starts: list[tuple[float, Any, np.ndarray, np.ndarray]] = []
    for at, end in sorted(ends, key=lambda pair: -pair[1].value):
        if not np.isfinite(end.value):
            continue
        top = _flat(at) + flat_unit * end.v
        hessian = None
        if len(top) <= DENSE:
            hessian = np.asarray(objectives.curvature(end.v, target, at, unit))
        parameters, deviation = _placed(form, at, unit, end.v, hessian)
        if not any(
            (np.abs(top - other) < APART * np.minimum(deviation, own)).all()
            for _, _, other, own in starts
        ):
            # About the logarithm of the mass of L/q_t there.
            score = float(end.value + np.log(deviation / flat_unit).sum())
            starts.append((score, parameters, top, deviation))
    starts.sort(key=lambda start: -start[0])
    return [start[1] for start in starts], sum(end.evaluations for _, end in ends)


def scattered(form: FreeForm, base: PyTree, points: Scouted, places: Any) -> list[PyTree]:
    """Narrow components about points, where a climb would take too long."""
    deviation = jax.tree.map(lambda leaf: NARROW * leaf, form.deviation(base))
    pick = lambda place: jax.tree.map(lambda leaf: leaf[place], points.z)
    return [form.place(pick(place), deviation) for place in places]


def _flat(event: PyTree) -> Float[np.ndarray, " d"]:
    """The numbers of an event."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(event)])


def _placed(
    form: FreeForm, at: PyTree, unit: PyTree, v: np.ndarray, hessian: np.ndarray | None
) -> tuple[Any, Float[np.ndarray, " d"]]:
    """Parameters about the event ``at + unit * v``, and the deviations there."""
    top, nothing = objectives.event_of(at, unit, v), jax.tree.map(np.zeros_like, unit)
    wide = _flat(unit)
    if hessian is None or not np.isfinite(hessian).all():
        narrow = objectives.event_of(nothing, unit, np.full_like(v, NARROW))
        return form.place(top, narrow), NARROW * wide
    least = WIDEST**-2
    scale = 1 / np.sqrt(np.maximum(np.diagonal(hessian), least))
    values, vectors = np.linalg.eigh(hessian)
    root = vectors / np.sqrt(np.maximum(values, least)) * wide[:, None]
    return form.place(top, objectives.event_of(nothing, unit, scale), root), wide * scale


def matched(
    form: FreeForm, base: Distribution, points: Scouted, number: int, rng: np.random.Generator
) -> list[PyTree]:
    """Members whose moments are those of points, weighted by the tempered ratio there.

    For families whose members cannot be placed about a point. Each start sees half of the points.
    """
    starts = []
    for _ in range(number):
        seen = rng.random(len(points.log_ratios)) < 0.5
        logs = np.where(seen & np.isfinite(points.log_ratios), points.log_ratios, -np.inf)
        if not np.isfinite(logs).any():
            continue
        statistics = np.asarray(base.sufficient_statistics(points.z))  # type: ignore[attr-defined]
        # The largest power up to 1 that leaves enough points that count.
        powers = (scipy.special.softmax(beta * logs) for beta in 0.5 ** np.arange(40))
        weights = next((w for w in powers if 1 / (w**2).sum() >= ENOUGH), None)
        weights = scipy.special.softmax(0.5**39 * logs) if weights is None else weights
        # A little of the base keeps the member proper where few points count.
        moments = (1 - NARROW) * (weights @ statistics)
        law = base.with_mean_parameters(moments + NARROW * base.mean_parameters)  # type: ignore
        if np.all(law.is_proper()):
            starts.append(form.parameters(law))
    return starts or [form.parameters(base)]
