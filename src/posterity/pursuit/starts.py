"""Starting points of components: the peaks of what the mixture still misses, as wide as they are.

The ratio ``log L/q_t`` is climbed from draws of the base and from the most promising of many
points, all climbs in step; the curvature at the top gives the width.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int

from posterity.arrays import keys
from posterity.arrays.search import lbfgs
from posterity.arrays.typing import KeyArray
from posterity.families.free_forms import SmoothForm
from posterity.pursuit import objectives
from posterity.pursuit.objectives import Ratio, batched
from posterity.pursuit.search import Search, State

SCOUTS, FEW, MANY = 256, 320, (4096, 16384)
"""Points of each kind at which the ratio is looked at, at the least: always, in a last search, and
there where there is room."""
WHOLE = 4_000_000  # Numbers that these are made of, at the most
LEAST = -1e300  # Instead of the logarithm of no density at all
WIDER = 3.0  # How much further than the base's and the mixture's draws the search looks
FOLLOWED = 3000  # Unexplained draws of the base that are climbed from, at the most
CLIMB = 100  # Steps of a climb, at the most
DENSE = 300  # Coordinates up to which the whole curvature is computed
STEP = 1e-5
"""In standard deviations of the base: the step of the differences that a curvature is made of."""
WIDEST, NARROW = 10.0, 0.1
"""In standard deviations of the base: the most, and the width where no curvature is known."""
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
    """Events, and the ratio there with and without its floor: so many draws of the base come first,
    then as many of each other kind. ``blank`` are draws of the base without a log density.
    """

    z: Float[np.ndarray, "n d"]
    log_ratios: Float[np.ndarray, " n"]
    excess: Float[np.ndarray, " n"]
    block: int
    blank: Bool[np.ndarray, " block"]


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


def scouted(search: Search, state: State, ratio: Ratio, key: KeyArray) -> Scouted:
    """Events of the base; where there is noise to widen, of wider ones, and of the mixture."""
    form, count = search.form, max(SCOUTS, search.attempts, min(search.fresh, FEW))
    if search.fresh:  # as many as the gradients so far make worth while, and as there is room for
        many = max(np.clip(2 * state.evaluations, *MANY), search.fresh)
        count = max(count, min(int(many), WHOLE // form.size))
    base, noise = form.parameters(search.base), objectives.noise(form, key, count)
    events = [objectives.drawn(form, base, noise)]
    if form.smooth:
        rng = keys.of_numpy(keys.fold_in(key, count))
        events.append(objectives.drawn(form, base, WIDER * rng.standard_normal(noise.shape)))
        for slot, number in enumerate(rng.multinomial(count, state.weights) if state.used else ()):
            if number:  # in a last search half of them as they are
                own = rng.standard_normal((number, form.noise_size))
                own[:: 2 if search.fresh else 1] *= WIDER
                parameters = objectives.slot_of(state.parameters, slot)
                events.append(objectives.drawn(form, parameters, own))
    z = np.concatenate(events)
    log_l = np.asarray(batched(objectives.values, (search.target,), z), np.float64)
    blank = np.isnan(log_l[:count]) | np.isposinf(log_l[:count])
    if ratio.q is None:
        return Scouted(z, log_l, log_l, count, blank)
    logs = batched(objectives.densities, (form, ratio.q.parameters), z) + ratio.q.log_weights
    log_q = np.logaddexp.reduce(logs, axis=1)
    excess = np.where(np.isfinite(log_l), log_l - np.maximum(log_q, LEAST), -np.inf)
    return Scouted(z, log_l - np.logaddexp(log_q, ratio.floor), excess, count, blank)


def places(
    search: Search, state: State, points: Scouted, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " number"], int]:
    """Places of points to climb from, and how many draws of the base, which come first, are climbed
    from, explained (where the target is no more than ten times the mixture) or blank.

    Half of the attempts are draws of the base, whatever the ratio there, a quarter are of the wider
    base, and the others are the best point and points at random where the ratio, tempered, is high.
    Beside these come so many unexplained draws of the base as the search asks for, and where it
    does the points of each kind that are explained least.
    """
    number = search.attempts
    half, wide = number - number // 2, number // 4
    logs = np.where(np.isfinite(points.log_ratios), points.log_ratios, -np.inf)
    spread = np.ptp(logs[np.isfinite(logs)]) if np.isfinite(logs).any() else 0.0
    chances = scipy.special.softmax(logs / max(1.0, spread / 10))
    others = rng.choice(len(logs), number // 2 - wide, p=chances)
    others[:1] = np.argmax(logs)
    kinds = points.excess.reshape(-1, points.block)
    explained = kinds <= (state.log_z + np.log(10) if state.used else -np.inf)
    unexplained = half + np.flatnonzero(~explained[0, half:])
    climbed = min(search.fresh, FOLLOWED, len(unexplained))
    searched = np.append(unexplained, points.block)[climbed]
    base = np.append(np.arange(half), unexplained[:climbed])
    most = np.argsort(-kinds, 1)[:, : search.fresh and 4 + climbed // 4]
    most = np.arange(len(kinds))[:, None] * points.block + most
    most = most[~explained.ravel()[most]]
    parts = base, points.block + np.arange(wide), others, most
    return np.unique(np.concatenate(parts)), int(searched)


def tops(
    search: Search, state: State, ratio: Ratio, points: Scouted, chosen: Int[np.ndarray, " g"]
) -> tuple[list[Top], Bool[np.ndarray, " g"], int]:
    """The peaks that climbs from points end at, the largest first: all outside of the components,
    and some of the others. Also which climbs ended anywhere, and the gradients that it took.
    """
    form, begin = search.form, points.z[chosen]
    assert isinstance(form, SmoothForm)
    unit = form.deviation(form.parameters(search.base))
    slopes = functools.partial(batched, objectives.values_and_slopes, (search.target, None))

    def least(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = begin + unit * v
        (log_l, slope), (mixed, down) = slopes(z), objectives.mixed(form, ratio, z)
        return mixed - log_l, (down - slope) * unit

    def curvature(row: np.ndarray) -> np.ndarray:
        steps = STEP * np.concatenate([np.eye(len(row)), -np.eye(len(row))])
        up, down = np.split(slopes(row + unit * steps)[1] * unit, 2)
        return (down - up + (down - up).T) / (4 * STEP)

    moves, values, looks = lbfgs(least, np.zeros_like(begin), most=CLIMB)
    ends, finite, evaluations = begin + unit * moves, np.isfinite(values), looks * len(begin)
    known = _known(search, state, ends)
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
        parameters, deviation = _placed(form, row, unit, hessian)
        score = float(np.log(deviation / unit).sum() - values[place])
        found.append(Top(parameters, row, deviation, score, bool(known[place])))
    return sorted(found, key=lambda top: -top.score), finite, evaluations


def _known(search: Search, state: State, z: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
    """Which events lie within a component, as its own draws do."""
    form, used, parameters = search.form, state.used, state.parameters
    if not used:
        return np.zeros(len(z), bool)
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
    every = cache.z.reshape(-1, form.size)
    chances = np.repeat(weights / search.samples, search.samples)
    mean = chances @ every
    variance = chances @ (every - mean) ** 2
    slots = np.resize(state.used, RAYS)
    each = weights[slots] / np.bincount(slots)[slots]
    middles = state.middles(form)[slots]
    steps = every[slots * search.samples + np.arange(RAYS) % search.samples] - middles
    scales = np.arange(np.log(INNER), np.log(OUT), FINE)[:, None]
    far = np.flatnonzero(scales[:, 0] > 0)[::COARSE]
    points = middles + np.exp(scales[far])[..., None] * steps
    log_q, mass = np.empty((2, len(far), RAYS))
    parts = -(-RAYS * len(scales) * len(mean) // ROOM)
    for rays in np.array_split(np.arange(RAYS), min(parts, RAYS)):
        along = middles[rays] + np.exp(scales)[..., None] * steps[rays]
        along = along.reshape(-1, len(mean))
        logs = batched(objectives.densities, (form, state.parameters), along)
        logs = logs.reshape(-1, len(rays), len(weights))
        log_q[:, rays] = scipy.special.logsumexp(logs[far][..., state.used], 2, weights[state.used])
        radial = logs[:, np.arange(len(rays)), slots[rays]] + len(mean) * scales
        mass[:, rays] = radial[far] - scipy.special.logsumexp(radial, 0)
    log_l = batched(objectives.values, (search.target,), points.reshape(-1, len(mean)))
    excess = log_l.reshape(log_q.shape) - state.log_z - log_q
    excess = np.nan_to_num(excess, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    excess = np.where(excess > np.log(10), excess, -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        mass = COARSE * np.exp(mass + excess) * each
        squares = (points - mean) ** 2 / variance
        return float(np.einsum("sr,srd->d", mass, squares).max())


def _placed(
    form: SmoothForm,
    top: Float[np.ndarray, " d"],
    unit: Float[np.ndarray, " d"],
    hessian: np.ndarray | None,
) -> tuple[Any, Float[np.ndarray, " d"]]:
    """Parameters about a top, and the deviations there; ``hessian`` is minus that in units."""
    if hessian is None or not np.isfinite(hessian).all():
        return form.place(top, NARROW * unit), NARROW * unit
    least = WIDEST**-2
    deviation = unit / np.sqrt(np.maximum(np.diagonal(hessian), least))
    values, vectors = np.linalg.eigh(hessian)
    root = vectors / np.sqrt(np.maximum(values, least)) * unit[:, None]
    return form.place(top, deviation, root), deviation
