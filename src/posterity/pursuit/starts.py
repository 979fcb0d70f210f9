"""Starting points of components: the peaks of what the mixture still misses, as wide as they are.

The ratio ``log L/q_t`` is climbed from draws of the base and from the most promising of many
points, all climbs in step; the curvature at the top gives the width.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int, PyTree

from posterity.arrays import keys
from posterity.arrays.search import lbfgs
from posterity.families import Distribution
from posterity.families.free_forms import FreeForm, SmoothForm
from posterity.pursuit import objectives
from posterity.pursuit.objectives import Ratio, batched
from posterity.pursuit.search import Search, State, fixed_noise

SCOUTS = 256  # Points of each kind at which the ratio is looked at, at the least
WIDER = 3.0  # How much further than the base's and the mixture's draws the search looks
CLIMB = 100  # Steps of a climb, at the most
DENSE = 300  # Coordinates up to which the whole curvature is computed
STEP = 1e-5
"""In standard deviations of the base: the step of the differences that a curvature is made of."""
WIDEST, NARROW = 10.0, 0.1
"""In standard deviations of the base: the most, and the width where no curvature is known."""
ENOUGH = 16  # Points that count, at the least, where moments are taken of them
APART = 0.5  # In their standard deviations: tops that lie nearer are one
OUTSIDE = 1e-3
"""The share of a component's draws that are as far from its mean as what is called outside."""
RAYS, INNER, OUT = 64, 0.03, 100.0
"""Rays along which tails are looked at, and where they begin and end, in lengths of a draw."""
FINE, COARSE = 0.03, 8
"""The logarithm of a step along a ray, and steps from one look at the target to the next."""
ROOM = 1_000_000  # Numbers of points along rays at a time, at the most, but at least a ray
WITHIN = 8  # Tops within known components that are looked at, at the most


class Scouted(NamedTuple):
    """Events (n, ...), draws of the base first, and the ratio there."""

    z: Any
    log_ratios: Float[np.ndarray, " n"]


class Top(NamedTuple):
    """A peak of the ratio that climbs ended at. ``parameters`` are those of a component about it,
    as wide as it is, ``score`` is about the logarithm of the mass of ``L/q_t`` there, and ``known``
    is true within a component.
    """

    parameters: Any
    place: Float[np.ndarray, " d"]
    deviation: Float[np.ndarray, " d"]
    score: float
    known: bool


def scouted(search: Search, state: State, ratio: Ratio, key: jax.Array) -> Scouted:
    """Events of the base; where there is noise to widen, of wider ones, and about the mixture's."""
    form, count = search.form, max(SCOUTS, search.attempts)
    base, noise = form.parameters(search.base), fixed_noise(form, key, count)
    events = [objectives.drawn(form, base, noise)]
    if form.smooth:
        rng = keys.of_numpy(key)
        wider = WIDER * rng.standard_normal(noise.shape)
        events.append(objectives.drawn(form, base, wider))
        if state.used:
            slots = rng.choice(state.used, count, p=state.weights[state.used])
            rows = rng.integers(search.samples, size=count)
            drawn = jax.tree.map(lambda leaf: leaf[slots, rows], state.cache.z)
            far = lambda middle, z: middle[slots] + WIDER * (z - middle[slots])
            events.append(jax.tree.map(far, state.middles(form), drawn))
    z = jax.tree.map(lambda *leaves: np.concatenate(leaves), *events)
    mixed, _ = batched(objectives.mixed, (form, ratio), z)
    log_l = batched(objectives.values, (search.target,), z)
    return Scouted(z, np.asarray(log_l - mixed, np.float64))


def places(
    points: Scouted, number: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " number"], Bool[np.ndarray, " number"]]:
    """Places of points to climb from, and which of them are draws of the base as it is. Half are,
    whatever the ratio there, a quarter are of the wider base, and the others are the best point,
    and points at random where the ratio, tempered, is high.
    """
    half, wide, block = number - number // 2, number // 4, max(SCOUTS, number)
    logs = np.where(np.isfinite(points.log_ratios), points.log_ratios, -np.inf)
    spread = np.ptp(logs[np.isfinite(logs)]) if np.isfinite(logs).any() else 0.0
    chances = scipy.special.softmax(logs / max(1.0, spread / 10))
    others = rng.choice(len(logs), number - half - wide, p=chances)
    others[:1] = np.argmax(logs)
    chosen = np.concatenate([np.arange(half), block + np.arange(wide), others])
    return chosen, np.arange(number) < half


def tops(
    search: Search, state: State, ratio: Ratio, points: Scouted, chosen: Int[np.ndarray, " g"]
) -> tuple[list[Top], Bool[np.ndarray, " g"], int]:
    """The peaks that climbs from points end at, the largest first: all outside of the components,
    and some of the others. Also which climbs ended anywhere, and the gradients that it took.
    """
    form, z = search.form, jax.tree.map(lambda leaf: leaf[chosen], points.z)
    assert isinstance(form, SmoothForm)
    unit, begin = _flat(form.deviation(form.parameters(search.base))), _rows(z)

    def slopes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        events = _events(rows, z)
        log_l, slope = batched(objectives.values_and_slopes, (search.target,), events)
        return log_l, _rows(slope) * unit, events

    def least(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_l, slope, events = slopes(begin + unit * v)
        mixed, down = batched(objectives.mixed, (form, ratio), events)
        return mixed - log_l, _rows(down) * unit - slope

    def curvature(row: np.ndarray) -> np.ndarray:
        steps = STEP * np.concatenate([np.eye(len(row)), -np.eye(len(row))])
        _, slope, _ = slopes(row + unit * steps)
        up, down = np.split(slope, 2)
        return (down - up + (down - up).T) / (4 * STEP)

    moves, values, looks = lbfgs(least, np.zeros_like(begin), most=CLIMB)
    ends, finite, evaluations = begin + unit * moves, np.isfinite(values), looks * len(begin)
    known = _known(search, state, _events(ends, z))
    found: list[Top] = []
    # Those outside first, and of these the highest.
    for place in np.lexsort((values, known)):
        row = ends[place]
        apart = lambda top, row=row: (np.abs(row - top.place) >= APART * top.deviation).any()
        if not finite[place] or not all(map(apart, found)):
            continue
        if known[place] and sum(top.known for top in found) >= WITHIN:
            break
        hessian = None
        if len(row) <= DENSE:
            hessian, evaluations = curvature(row), evaluations + 2 * len(row)
        parameters, deviation = _placed(form, row, unit, z, hessian)
        score = float(np.log(deviation / unit).sum() - values[place])
        found.append(Top(parameters, row, deviation, score, bool(known[place])))
    return sorted(found, key=lambda top: -top.score), finite, evaluations


def _known(search: Search, state: State, z: PyTree) -> Bool[np.ndarray, " n"]:
    """Which events (n, ...) lie within a component, as its own draws do."""
    form, used, parameters = search.form, state.used, state.parameters
    if not used:
        return np.zeros(len(jax.tree.leaves(z)[0]), bool)
    logs = batched(objectives.densities, (form, parameters), z)[:, used]
    peaks = batched(objectives.densities, (form, parameters), state.middles(form))
    fall = scipy.special.gammainccinv(form.noise_size / 2, OUTSIDE)
    return (logs >= np.diagonal(peaks)[used] - fall).any(1)


def beyond(search: Search, state: State) -> float:
    """The variance of the target where its density is more than ten times the mixture's, over the
    mixture's, of the coordinate where that is most. It is integrated along rays from the middles of
    components through some of their draws, up to :data:`OUT` times as far; zero for families that
    have no middles. Infinite or NaN where it is too large to be counted.
    """
    form, cache, weights = search.form, state.cache, state.weights
    if not form.smooth:
        return 0.0
    every = _rows(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), cache.z))
    chances = np.repeat(weights / search.samples, search.samples)
    mean = chances @ every
    variance = chances @ (every - mean) ** 2
    slots = np.resize(state.used, RAYS)
    each = weights[slots] / np.bincount(slots)[slots]
    like = state.middles(form)
    middles = _rows(like)[slots]
    steps = every[slots * search.samples + np.arange(RAYS) % search.samples] - middles
    scales = np.arange(np.log(INNER), np.log(OUT), FINE)[:, None]
    far = np.flatnonzero(scales[:, 0] > 0)[::COARSE]
    points = middles + np.exp(scales[far])[..., None] * steps
    log_q, mass = np.empty((2, len(far), RAYS))
    parts = -(-RAYS * len(scales) * len(mean) // ROOM)
    for rays in np.array_split(np.arange(RAYS), min(parts, RAYS)):
        along = middles[rays] + np.exp(scales)[..., None] * steps[rays]
        events = _events(along.reshape(-1, len(mean)), like)
        logs = batched(objectives.densities, (form, state.parameters), events)
        logs = logs.reshape(-1, len(rays), len(weights))
        log_q[:, rays] = scipy.special.logsumexp(logs[far][..., state.used], 2, weights[state.used])
        radial = logs[:, np.arange(len(rays)), slots[rays]] + len(mean) * scales
        mass[:, rays] = radial[far] - scipy.special.logsumexp(radial, 0)
    events = _events(points.reshape(-1, len(mean)), like)
    log_l = batched(objectives.values, (search.target,), events)
    log_z = cache.elbo(weights).value + cache.importance(weights)[0].value
    excess = log_l.reshape(log_q.shape) - log_z - log_q
    excess = np.nan_to_num(excess, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    excess = np.where(excess > np.log(10), excess, -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        mass = COARSE * np.exp(mass + excess) * each
        squares = (points - mean) ** 2 / variance
        return float(np.einsum("sr,srd->d", mass, squares).max())


def _flat(event: PyTree) -> Float[np.ndarray, " d"]:
    """The numbers of an event."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(event)])


def _rows(z: PyTree) -> Float[np.ndarray, "n d"]:
    """The numbers of events (n, ...), a row an event."""
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(z)], 1)


def _events(rows: Float[np.ndarray, "n d"], like: PyTree) -> Any:
    """Events (n, ...) of these numbers, shaped as others (m, ...) are."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf[0].size for leaf in leaves])[:-1]
    parts = zip(np.split(rows, ends, 1), leaves, strict=True)
    return jax.tree.unflatten(
        structure, [part.reshape(len(rows), *leaf.shape[1:]) for part, leaf in parts]
    )


def _placed(
    form: SmoothForm,
    top: Float[np.ndarray, " d"],
    unit: Float[np.ndarray, " d"],
    like: PyTree,
    hessian: np.ndarray | None,
) -> tuple[Any, Float[np.ndarray, " d"]]:
    """Parameters about a top, and the deviations there; ``hessian`` is minus that in units."""
    event = lambda row: objectives.slot_of(_events(row[None], like), 0)
    if hessian is None or not np.isfinite(hessian).all():
        return form.place(event(top), event(NARROW * unit)), NARROW * unit
    least = WIDEST**-2
    deviation = unit / np.sqrt(np.maximum(np.diagonal(hessian), least))
    values, vectors = np.linalg.eigh(hessian)
    root = vectors / np.sqrt(np.maximum(values, least)) * unit[:, None]
    return form.place(event(top), event(deviation), root), deviation


def matched(
    form: FreeForm, base: Distribution, points: Scouted, number: int, rng: np.random.Generator
) -> list[PyTree]:
    """Members with the moments of half of the points, weighted by the tempered ratio there, for
    families whose members cannot be placed about a point.
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
