"""Starting points of components: peaks of the ratio to the mixture, and their widths.

The ratio ``log L/q_t`` is climbed in parallel from draws of the base and from the most promising
of many points; the curvature at a peak determines the width.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import scipy.spatial
import scipy.special
from jaxtyping import Bool, Float, Int

from posterity.arrays import keys
from posterity.arrays.search import lbfgs
from posterity.arrays.typing import KeyArray
from posterity.families.free_forms import FreeForm, SmoothForm
from posterity.pursuit import objectives
from posterity.pursuit.objectives import Components, Ratio, batched
from posterity.pursuit.search import Search, State

SCOUTS, FEW, MANY = 256, 320, (4096, 16384)
"""Least number of points of each kind at which the ratio is evaluated: always, in a last search,
and, where memory allows, bounds of the number in a last search."""
WHOLE = 4_000_000  # Most numbers in these points
LEAST = -1e300  # Stands for the logarithm of zero density
WIDER = 3.0  # Factor by which the noise of the wider draws is larger
FOLLOWED = 3000  # Most unexplained draws of the base that are climbed from
CLIMB = 100  # Most steps of a climb
DENSE = 300  # Most coordinates whose full curvature is computed
STEP = 1e-5
"""Step of the finite differences of a curvature, in standard deviations of the base."""
WIDEST, NARROW = 10.0, 0.1
"""Largest width, and width if no curvature is known, in standard deviations of the base."""
APART = 0.5  # Peaks closer than this, in their standard deviations, are one
NEGLIGIBLE = -20.0
"""Logarithm of the share of the mass below which no component is sought at a peak, even if the peak
were as wide as can be."""
OUTSIDE = 1e-3
"""Share of a component's draws that are further from its mean than events outside of it."""
RAYS, INNER, OUT = 64, 0.03, 100.0
"""Number of rays into the tails, and their ends relative to the length of a draw."""
FINE, COARSE = 0.03, 8
"""Logarithmic step along a ray, and number of steps between evaluations of the target."""
ROOM = 1_000_000  # Most numbers in the points along rays at a time (at least one ray)
PLACES, HALVED = 256, 11
"""Number of places, drawn from the base, of imagined modes, and number of their widths, each half
of the last."""
SHOWN, SURE = 0.95, 0.95
"""Share of all places at which modes must be seen, and the probability of that bound."""
WITHIN = 8  # Most peaks within known components that are considered


class Scouted(NamedTuple):
    """Events, and the ratio there with and without its floor: ``block`` draws of the base, then as
    many of each other kind. ``log_q`` is the density of the mixture, and ``blank``
    marks draws of the base without a log density.
    """

    z: Float[np.ndarray, "n d"]
    log_ratios: Float[np.ndarray, " n"]
    excess: Float[np.ndarray, " n"]
    log_q: Float[np.ndarray, " n"]
    block: int
    blank: Bool[np.ndarray, " block"]


class Top(NamedTuple):
    """A peak of the ratio at which climbs ended. ``parameters`` are those of a component with its
    place and width, ``score`` approximates the logarithm of the mass of ``L/q_t`` there, and
    ``known`` is True within a component of the mixture.
    """

    parameters: Any
    place: Float[np.ndarray, " d"]
    deviation: Float[np.ndarray, " d"]
    score: float
    known: bool


def scouted(search: Search, state: State, ratio: Ratio, key: KeyArray) -> Scouted:
    """Draw events of the base and, for smooth forms, of the wider base and the widened mixture."""
    form = search.form
    count = max(SCOUTS, search.attempts, min(search.fresh, FEW))
    if search.fresh:  # in proportion to the gradients so far, as far as there is room
        many = max(np.clip(2 * state.evaluations, *MANY), search.fresh)
        count = max(count, min(int(many), WHOLE // form.size))
    base = form.parameters(search.base)
    noise = objectives.noise(form, key, count)
    events = [objectives.drawn(form, base, noise)]
    if form.smooth:
        rng = keys.of_numpy(keys.fold_in(key, count))
        events.append(objectives.drawn(form, base, WIDER * rng.standard_normal(noise.shape)))
        for slot, number in enumerate(rng.multinomial(count, state.weights) if state.used else ()):
            if number:  # in a last search half of them are not widened
                own = rng.standard_normal((number, form.noise_size))
                own[:: 2 if search.fresh else 1] *= WIDER
                parameters = objectives.slot_of(state.parameters, slot)
                events.append(objectives.drawn(form, parameters, own))
    z = np.concatenate(events)
    log_l = np.asarray(batched(objectives.values, (search.target,), z), np.float64)
    blank = np.isnan(log_l[:count]) | np.isposinf(log_l[:count])
    if ratio.q is None:
        return Scouted(z, log_l, log_l, np.zeros(len(z)), count, blank)
    log_q = _log_q(form, ratio.q, z)
    excess = np.where(np.isfinite(log_l), log_l - log_q, -np.inf)
    return Scouted(z, log_l - np.logaddexp(log_q, ratio.floor), excess, log_q, count, blank)


def _log_q(form: FreeForm, q: Components, z: Float[np.ndarray, "n d"]) -> Any:
    """Return the log density of the mixture at events (n,)."""
    logs = objectives.densities(form, q.parameters, z) + q.log_weights
    return np.maximum(np.logaddexp.reduce(logs, axis=1), LEAST)


def places(
    search: Search, state: State, points: Scouted, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " number"], int, float]:
    """Return the indices of the points to climb from, the number of the first draws of the base
    that are climbed from, explained (the target is at most ten times the mixture) or blank, and the
    least width of modes that these draws, and the other kinds of points if all of these are
    explained or climbed from, would have shown.

    Half of the attempts are draws of the base and a quarter of the wider base, whatever the ratio;
    the others are the best point and points drawn by the tempered ratio. In a last search
    unexplained draws of the base are added, up to ``search.fresh``, and the least explained points
    of each kind.
    """
    number = search.attempts
    half = number - number // 2
    wide = number // 4
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
    whole = (~explained).sum(1) <= most.shape[1]
    seen = np.arange(points.block) < np.where(whole, points.block, 0)[:, None]
    seen[0] = (np.arange(points.block) < searched) & ~points.blank
    most = np.arange(len(kinds))[:, None] * points.block + most
    most = most[~explained.ravel()[most]]
    parts = base, points.block + np.arange(wide), others, most
    narrowest = _narrowest(search, state, points, seen.ravel())
    return np.unique(np.concatenate(parts)), int(searched), narrowest


def _narrowest(
    search: Search,
    state: State,
    points: Scouted,
    seen: Bool[np.ndarray, " n"],
) -> float:
    """Return the least deviation, in those of the base, of round modes as heavy as the mixture that
    are seen at 95 % of the base's draws as their centres, and so are all wider ones of the grid.

    A mode is seen if its density is over nine times the mixture's at one of the points, or does not
    exceed that at its centre: it is then part of the divergence. The share is Clopper and Pearson's
    lower confidence bound from fresh draws. Infinite without a mixture, or if none is seen.
    """
    form = search.form
    base = search.form.parameters(search.base)
    width = math.inf
    if not state.used or not seen.any():
        return width
    assert isinstance(form, SmoothForm)
    # From a key of their own: places that repeat the points' noise would lie at the points.
    noise = objectives.noise(form, keys.fold_in(search.key, 3), PLACES)
    places = objectives.drawn(form, base, noise)
    unit = form.deviation(base)
    noticed = np.log(9 * np.sqrt(2 * np.pi) ** form.size) + np.log(unit).sum()
    least = points.log_q[seen, None] + noticed
    top = _log_q(form, state.q, places) + noticed
    narrower = np.arange(HALVED)[:, None] * form.size * np.log(2)
    shown = narrower <= top
    parts = min(PLACES, -(-PLACES * len(least) // ROOM))
    for some in np.array_split(np.arange(PLACES), parts):
        pairs = points.z[seen] / unit, places[some] / unit
        squares = scipy.spatial.distance.cdist(*pairs, "sqeuclidean")
        for halved in range(HALVED):
            there = narrower[halved] - squares * (0.5 * 4.0**halved) > least
            shown[halved, some] |= there.any(0)
    hits = shown.sum(1)
    enough = scipy.special.betaincinv(hits, PLACES - hits + 1, 1 - SURE) >= SHOWN
    last = int(np.argmin(np.append(enough, False)))
    return 0.5 ** (last - 1) if last else width


def tops(
    search: Search, state: State, ratio: Ratio, points: Scouted, chosen: Int[np.ndarray, " g"]
) -> tuple[list[Top], Bool[np.ndarray, " g"], int]:
    """Climb from points and return the peaks by decreasing score: all outside of the components
    that may have mass, and some within. Also return which climbs ended at a finite value, without
    large rounding errors, and the number of gradients.
    """
    form = search.form
    begin = points.z[chosen]
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
    ends = begin + unit * moves
    evaluations = looks * len(begin)
    finite = np.isfinite(values) & objectives.resolved(search.target, ends)
    known = _known(search, state, ends)
    light = np.zeros(len(ends), bool)
    if state.used:
        heights = batched(objectives.values, (search.target,), ends) - state.log_z
        light = heights + np.log(np.sqrt(2 * np.pi) * WIDEST * unit).sum() < NEGLIGIBLE
    found: list[Top] = []
    # Peaks outside of components come first, each group by decreasing height.
    for place in np.lexsort((values, known)):
        row = ends[place]

        def apart(top, row=row):
            return (np.abs(row - top.place) >= APART * top.deviation).any()

        if not finite[place] or light[place] or not all(map(apart, found)):
            continue
        if known[place] and sum(top.known for top in found) >= WITHIN:
            break
        hessian = None
        if len(row) <= DENSE:
            hessian = curvature(row)
            evaluations = evaluations + 2 * len(row)
        parameters, deviation = _placed(form, row, unit, hessian)
        score = float(np.log(deviation / unit).sum() - values[place])
        found.append(Top(parameters, row, deviation, score, bool(known[place])))
    return sorted(found, key=lambda top: -top.score), finite, evaluations


def _known(search: Search, state: State, z: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
    """Tell which events lie within a component, where its own draws lie."""
    form = search.form
    used = state.used
    parameters = state.parameters
    if not used:
        return np.zeros(len(z), bool)
    logs = objectives.densities(form, parameters, z)[:, used]
    peaks = objectives.densities(form, parameters, state.middles(form))
    fall = scipy.special.gammainccinv(form.noise_size / 2, OUTSIDE)
    return (logs >= np.diagonal(peaks)[used] - fall).any(1)


def beyond(search: Search, state: State) -> float:
    """Return the target's variance from where its density is over ten times the mixture's, relative
    to the mixture's, in the coordinate where it is largest. It is integrated along rays from the
    middles of components through some of their draws, to :data:`OUT` times their distance. Zero for
    families without middles; infinite or NaN on overflow.
    """
    form = search.form
    cache = state.cache
    weights = state.weights
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
        logs = objectives.densities(form, state.parameters, along)
        logs = logs.reshape(-1, len(rays), len(weights))
        log_q[:, rays] = scipy.special.logsumexp(logs[far][..., state.used], 2, weights[state.used])
        radial = logs[:, np.arange(len(rays)), slots[rays]] + len(mean) * scales
        normaliser: Any = scipy.special.logsumexp(radial, 0)
        mass[:, rays] = radial[far] - normaliser
    log_l = batched(objectives.values, (search.target,), points.reshape(-1, len(mean)))
    excess = log_l.reshape(log_q.shape) - state.log_z - log_q
    excess = np.nan_to_num(excess, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    excess = np.where(excess > np.log(10), excess, -np.inf)
    if (high := np.isfinite(excess)).any():
        at = points[high]
        excess[high] = np.where(objectives.resolved(search.target, at), excess[high], -np.inf)
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
    """Return parameters and deviations at a peak; ``hessian`` is minus the ratio's, in ``unit``."""
    if hessian is None or not np.isfinite(hessian).all():
        return form.place(top, NARROW * unit), NARROW * unit
    least = WIDEST**-2
    deviation = unit / np.sqrt(np.maximum(np.diagonal(hessian), least))
    values, vectors = np.linalg.eigh(hessian)
    root = vectors / np.sqrt(np.maximum(values, least)) * unit[:, None]
    return form.place(top, deviation, root), deviation
