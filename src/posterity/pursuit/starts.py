"""Starting points of components: peaks of the ratio to the mixture, and their widths.

The ratio ``log L/q_t`` is climbed in parallel from draws of the base and from the most promising
of many points; the curvature at a peak determines the width.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int

from posterity.arrays import keys
from posterity.arrays.search import root_of_inverse
from posterity.arrays.tree import taken
from posterity.arrays.typing import KeyArray
from posterity.families.gaussian_forms import GaussianForm
from posterity.inference.modes import RULE, Mode, climbs, found
from posterity.pursuit import objectives
from posterity.pursuit.objectives import Components, Ratio, batched
from posterity.pursuit.search import Search, State


class Scouted(NamedTuple):
    """Events, and the ratio there with and without its floor: ``block`` draws of the base, then as
    many of each other kind. ``log_q`` is the density of the mixture, and ``blank``
    marks draws of the base without a log density.
    """

    z: Float[np.ndarray, "n d"]
    log_ratios: Float[np.ndarray, " n"]
    excess: Float[np.ndarray, " n"]
    block: int
    blank: Bool[np.ndarray, " block"]


def scouted(
    search: Search,
    state: State,
    ratio: Ratio,
    key: KeyArray,
    *,
    whole: int = 4_000_000,  # Most numbers in these points
    # Least number of points of each kind at which the ratio is evaluated.
    always: int = 256,
    # The same in a last search.
    few: int = 320,
    # Bounds of the number in a last search, where memory allows.
    many: tuple[int, int] = (4096, 16384),
) -> Scouted:
    """Draw events of the base, of the wider base, and of the widened mixture."""
    form = search.form
    count = max(always, search.attempts, min(search.fresh, few))
    if search.fresh:  # in proportion to the gradients so far, as far as there is room
        enough = max(int(np.clip(2 * state.evaluations, *many)), search.fresh)
        count = max(count, min(enough, whole // form.size))
    base = form.parameters(search.base)
    noise = objectives.noise(form, key, count)
    events = [objectives.drawn(form, base, noise)]
    rng = keys.of_numpy(keys.fold_in(key, count))
    events.append(objectives.drawn(form, base, RULE.wider * rng.standard_normal(noise.shape)))
    for slot, number in enumerate(rng.multinomial(count, state.weights) if state.used else ()):
        if number:  # in a last search half of them are not widened
            own = rng.standard_normal((number, form.size))
            own[:: 2 if search.fresh else 1] *= RULE.wider
            parameters = taken(state.parameters, slot)
            events.append(objectives.drawn(form, parameters, own))
    z = np.concatenate(events)
    log_l = batched(objectives.values, (search.target,), z)
    blank = np.isnan(log_l[:count]) | np.isposinf(log_l[:count])
    if ratio.q is None:
        return Scouted(z, log_l, log_l, count, blank)
    log_q = _log_q(form, ratio.q, z)
    excess = np.where(np.isfinite(log_l), log_l - log_q, -np.inf)
    return Scouted(z, log_l - np.logaddexp(log_q, ratio.floor), excess, count, blank)


def _log_q(
    form: GaussianForm,
    q: Components,
    z: Float[np.ndarray, "n d"],
    *,
    least: float = -1e300,  # Stands for the logarithm of zero density
) -> Any:
    """Return the log density of the mixture at events (n,)."""
    logs = objectives.densities(form, q.parameters, z) + q.log_weights
    return np.maximum(np.logaddexp.reduce(logs, axis=1), least)


def places(
    search: Search,
    state: State,
    points: Scouted,
    rng: np.random.Generator,
    *,
    followed: int = 3000,  # Most unexplained draws of the base that are climbed from
) -> tuple[Int[np.ndarray, " number"], int]:
    """Return the indices of the points to climb from, and the number of the first draws of the base
    that are climbed from, explained (the target is at most ten times the mixture) or blank.

    Half of the attempts are draws of the base and a quarter of the wider base, whatever the ratio;
    the others are the best point and points drawn by the tempered ratio. In a last search
    unexplained draws of the base are added, up to ``search.fresh``, and the least explained points
    of each kind.
    """
    number = search.attempts
    half = number - number // 2
    wide = number // 4
    logs = np.where(np.isfinite(points.log_ratios), points.log_ratios, -np.inf)
    spread = np.ptp(logs[np.isfinite(logs)])
    chances = scipy.special.softmax(logs / max(1.0, spread / 10))
    others = rng.choice(len(logs), number // 2 - wide, p=chances)
    others[:1] = np.argmax(logs)
    kinds = points.excess.reshape(-1, points.block)
    level = np.asarray(state.log_z if state.used else -np.inf)
    explained = RULE.explains(level, kinds)
    unexplained = half + np.flatnonzero(~explained[0, half:])
    climbed = min(search.fresh, followed, len(unexplained))
    searched = np.append(unexplained, points.block)[climbed]
    base = np.append(np.arange(half), unexplained[:climbed])
    most = np.argsort(-kinds, 1)[:, : search.fresh and 4 + climbed // 4]
    most = np.arange(len(kinds))[:, None] * points.block + most
    most = most[~explained.ravel()[most]]
    parts = base, points.block + np.arange(wide), others, most
    return np.unique(np.concatenate(parts)), int(searched)


def tops(
    search: Search,
    state: State,
    ratio: Ratio,
    points: Scouted,
    chosen: Int[np.ndarray, " g"],
    *,
    climb: int = 100,  # Most steps of a climb
    # Step of the finite differences of a curvature, in standard deviations of the base.
    step: float = 1e-5,
    # Logarithm of the share of the mass below which no component is sought at a peak, even if the
    # peak were as wide as can be.
    negligible: float = -20.0,
    within: int = 8,  # Most peaks within known components that are considered
    # Largest width, in standard deviations of the base.
    widest: float = 10.0,
    # Width if no curvature is known, in standard deviations of the base.
    narrow: float = 0.1,
) -> tuple[list[Mode], Bool[np.ndarray, " g"], int]:
    """Climb from points and return the peaks that may have mass, by decreasing mass: all
    outside of components, and some within. Also return which climbs ended at a finite value,
    without large rounding errors, and the number of gradients.
    """
    form = search.form
    unit = form.deviation(form.parameters(search.base))
    slopes = functools.partial(batched, objectives.values_and_slopes, (search.target,))

    def least(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (log_l, slope), (mixed, down) = slopes(z), objectives.mixed(form, ratio, z)
        return mixed - log_l, down - slope

    def factor(row: np.ndarray) -> np.ndarray:
        if len(row) > RULE.dense:
            return narrow * unit
        steps = step * np.concatenate([np.eye(len(row)), -np.eye(len(row))])
        up, down = np.split(slopes(row + unit * steps)[1] * unit, 2)
        hessian = (down - up) / (2 * step)
        if not np.isfinite(hessian).all():
            return narrow * unit
        return root_of_inverse(hessian / np.outer(unit, unit), unit, widest**-2)

    ends = climbs(least, points.z[chosen], unit, most=climb)
    finite = np.isfinite(ends.energies) & objectives.resolved(search.target, ends.at)
    usable = finite
    if state.used:
        heights = batched(objectives.values, (search.target,), ends.at) - state.log_z
        usable = usable & (heights + np.log(np.sqrt(2 * np.pi) * widest * unit).sum() > negligible)
    inside = known(search, state, ends.at)
    modes = found(ends.among(usable & ~inside), factor)
    modes += found(ends.among(usable & inside), factor, most=within)
    modes.sort(key=lambda mode: -mode.mass)
    gradients = 2 * form.size * len(modes) if form.size <= RULE.dense else 0
    return modes, finite, ends.evaluations + gradients


def placed(search: Search, mode: Mode) -> Any:
    """Return parameters of a component with a mode's place and width."""
    root = mode.factor if mode.factor.ndim == 2 else None
    return search.form.place(mode.at, mode.deviations, root)


def known(
    search: Search,
    state: State,
    z: Float[np.ndarray, "*n d"],
    *,
    # Share of a component's draws that are further from its mean than events outside of it.
    outside: float = 1e-3,
) -> Bool[np.ndarray, "*n"]:
    """Tell which events lie within a component, where its own draws lie."""
    form = search.form
    reach = 2 * scipy.special.gammainccinv(form.size / 2, outside)
    result = np.zeros(z.shape[:-1], bool)
    for slot in state.used:
        own = taken(state.parameters, slot)
        result |= (form.standardised(own, z - own[0]) ** 2).sum(-1) <= reach
    return result
