"""Where components begin: about the peaks of what the mixture still misses, as wide as these are.

Points are drawn from the base and, wider, from the mixture; from the most promising ones the ratio
``log L/q_t`` is climbed, and the curvature at the top gives the width.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float, Int

from posterity.pursuit import climb, objectives
from posterity.pursuit.objectives import Ratio
from posterity.pursuit.shapes import Shape
from posterity.pursuit.target import Target

SCOUTS = 256
"""Points of each kind at which the ratio is looked at."""
WIDER = 3.0
"""How much further than the mixture's draws the search looks."""
CLIMB = 60
"""Looks of a climb."""
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
    """Points that were looked at, and the ratio there."""

    z: Any
    log_ratios: Float[np.ndarray, " n"]


def scouted(shape: Shape, target: Target, base: Any, ratio: Ratio, *, key: jax.Array) -> Scouted:
    """Points over the base and, where components can be placed, about those of the mixture."""
    if not shape.nodal:
        z = objectives.draws(shape, base, shape.noise(key, 2 * SCOUTS))
    else:
        noise = shape.fixed_noise(key, 2 * SCOUTS)
        z = objectives.draws(shape, base, noise)
        if ratio.begun:
            rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
            weights = np.exp(np.asarray(ratio.q.log_weights))
            labels = rng.choice(len(weights), 2 * SCOUTS, p=weights / weights.sum())
            about = objectives.picked(shape, ratio.q.parameters, jnp.asarray(labels), WIDER * noise)
            z = jax.tree.map(lambda a, b: jnp.concatenate([a[:SCOUTS], b[SCOUTS:]]), z, about)
    return Scouted(z, np.asarray(objectives.ratios(shape, target, z, ratio), np.float64))


def promising(found: Scouted, number: int, rng: np.random.Generator) -> Int[np.ndarray, " number"]:
    """Places of points: the best, and others at random where the ratio is high.

    Tempered, so that a few nats do not decide between places that were only looked at once.
    """
    logs = np.where(np.isfinite(found.log_ratios), found.log_ratios, -np.inf)
    best = int(np.argmax(logs))
    spread = np.ptp(logs[np.isfinite(logs)]) if np.isfinite(logs).any() else 0.0
    chances = scipy.special.softmax(logs / max(1.0, spread / 10))
    chances[best] = 0.0
    more = min(number - 1, int((chances > 0).sum()))
    others = rng.choice(len(logs), more, replace=False, p=chances / chances.sum()) if more else []
    # As many whatever is known, so that one program serves.
    return np.array([best, *others, *[best] * (number - 1 - more)], int)


class Start(NamedTuple):
    """Parameters to begin with."""

    parameters: Any
    score: float
    """Nats: about the logarithm of the mass of ``L/q_t`` there."""


def tops(
    shape: Shape, target: Target, base: Any, ratio: Ratio, found: Scouted, places: Any
) -> tuple[list[Start], int]:
    """From points to peaks, the best first and each once; and the gradients that it took."""
    wide = objectives.outline(shape, base)[0]
    leaves, structure = jax.tree.flatten(wide)
    rebuild = _rebuilder(structure, tuple(leaf.shape for leaf in leaves))
    unit, begin = _flat(wide), _flat(jax.tree.map(lambda leaf: leaf[places], found.z), 1)
    risen, curvatures = _climbed(shape, rebuild, target, begin, unit, ratio)
    values = np.asarray(risen.value)
    starts: list[Start] = []
    middles: list[tuple[np.ndarray, np.ndarray]] = []
    for number in np.argsort(-values, kind="stable"):
        if not np.isfinite(values[number]):
            continue
        top = begin[number] + unit * np.asarray(risen.v)[number]
        curvature = None if curvatures is None else np.asarray(curvatures)[number]
        parameters, deviation = _placed(shape, rebuild, top, unit, curvature)
        if any(
            (np.abs(top - other) < APART * np.minimum(deviation, own)).all()
            for other, own in middles
        ):
            continue
        middles.append((top, deviation))
        score = float(values[number] + np.log(deviation / unit).sum())
        starts.append(Start(parameters, score))
    ordered = sorted(starts, key=lambda start: -start.score)
    return ordered, int(np.asarray(risen.evaluations).sum())


def scattered(shape: Shape, base: Any, found: Scouted, places: Any) -> list[Start]:
    """Narrow components about points, where a climb would take too long."""
    deviation = jax.tree.map(lambda leaf: NARROW * leaf, shape.deviation(base))
    pick = lambda place: jax.tree.map(lambda leaf: leaf[place], found.z)
    return [
        Start(shape.place(pick(place), deviation), float(found.log_ratios[place]))
        for place in places
    ]


def _flat(event: Any, leading: int = 0) -> np.ndarray:
    """The numbers of an event, after some leading axes."""
    rows = [np.asarray(leaf) for leaf in jax.tree.leaves(event)]
    return np.concatenate([row.reshape(*row.shape[:leading], -1) for row in rows], axis=-1)


@functools.lru_cache(maxsize=64)
def _rebuilder(structure: Any, shapes: tuple[tuple[int, ...], ...]) -> Any:
    """From flat vectors to events; the same function each time, so that nothing compiles anew."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1].tolist()

    def rebuild(flat: Any) -> Any:
        parts = jnp.split(flat, ends)
        return jax.tree.unflatten(
            structure, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        )

    return rebuild


def _height(
    kinds: Any, v: Any, target: Target, at: Any, unit: Any, ratio: Ratio
) -> Float[jax.Array, ""]:
    shape, rebuild = kinds
    z = rebuild(at + unit * v)
    return ratio(shape, target.log_density(z), z)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _climbed(
    shape: Shape, rebuild: Any, target: Target, begin: Any, unit: Any, ratio: Ratio
) -> tuple[climb.Climbed, Any]:
    """Peaks of the ratio from points (n, d), in units from there; and minus the Hessians of
    ``log L`` there in these units, unless there are many coordinates.
    """

    def one(at: Any) -> tuple[climb.Climbed, Any]:
        arguments = (target, at, unit, ratio)
        found = climb.lbfgs(_height, (shape, rebuild), jnp.zeros_like(at), arguments, CLIMB)
        if len(unit) > DENSE:
            return found, None
        of = lambda v: -target.log_density(rebuild(at + unit * v))
        return found, jax.hessian(of)(found.v)

    return jax.vmap(one)(begin)


def _placed(
    shape: Shape, rebuild: Any, top: np.ndarray, unit: np.ndarray, hessian: np.ndarray | None
) -> tuple[Any, np.ndarray]:
    """Parameters about a top, and the deviations there."""
    if hessian is None or not np.isfinite(hessian).all():
        deviation = NARROW * unit
        return shape.place(rebuild(jnp.asarray(top)), rebuild(jnp.asarray(deviation))), deviation
    least = WIDEST**-2
    deviation = unit / np.sqrt(np.maximum(np.diagonal(hessian), least))
    event = rebuild(jnp.asarray(top))
    values, vectors = np.linalg.eigh(hessian)
    root = vectors / np.sqrt(np.maximum(values, least)) * unit[:, None]
    return shape.fit(event, rebuild(jnp.asarray(deviation)), root), deviation


def matched(
    shape: Shape, base: Any, found: Scouted, number: int, rng: np.random.Generator
) -> list[Start]:
    """Members whose moments are those of points, weighted by the tempered ratio there.

    For families whose members cannot be placed about a point. Each start sees half of the points.
    """
    found_starts = []
    for _ in range(number):
        seen = rng.random(len(found.log_ratios)) < 0.5
        logs = np.where(seen & np.isfinite(found.log_ratios), found.log_ratios, -np.inf)
        if not np.isfinite(logs).any():
            continue
        weights = _tempered(logs)
        statistics = np.asarray(base.sufficient_statistics(jax.tree.map(np.asarray, found.z)))
        # A little of the base keeps the member proper where few points count.
        moments = (1 - NARROW) * (weights @ statistics) + NARROW * base.mean_parameters
        law = base.with_mean_parameters(moments)
        if np.all(law.is_proper()):
            score = float(np.max(logs))
            found_starts.append(Start(shape.of(law), score))
    return found_starts or [Start(shape.of(base), 0.0)]


def _tempered(logs: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Weights ``exp(β log)``, of the largest β up to 1 that leaves enough points that count."""
    weights = scipy.special.softmax(logs)
    for beta in 0.5 ** np.arange(40):
        weights = scipy.special.softmax(beta * logs)
        if 1 / (weights**2).sum() >= ENOUGH:
            break
    return weights
