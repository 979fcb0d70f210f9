"""The component step, which adds a component to a mixture, and the joint polish of all components.

The step fits components from several starts with several λ and keeps the one that adds most to the
ELBO. The polish then maximises the ELBO over all components and weights together.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float, PyTree

from posterity.arrays import keys
from posterity.arrays.tree import taken
from posterity.arrays.typing import KeyArray
from posterity.pursuit import objectives, starts
from posterity.pursuit import weights as rules
from posterity.pursuit.objectives import Optimum, Ratio, maximised
from posterity.pursuit.result import Covered
from posterity.pursuit.search import Search, State, nodes_of
from posterity.pursuit.weights import Estimate, SampleCache, with_row

NOTHING = Estimate(0.0, 0.0)


class Refusal(NamedTuple):
    """The reason why a component is not added. ``gain`` is what it would have added to the ELBO, in
    nats, or None if the search failed.
    """

    reason: str
    gain: Estimate | None = None
    covered: Covered = Covered()


class _Candidate(NamedTuple):
    """A component, the cache and the weights with it, and its gain."""

    parameters: Any
    cache: SampleCache
    weights: Float[np.ndarray, " k"]
    gain: Estimate
    lam: float


def with_component(
    search: Search,
    state: State,
    *,
    last: bool = False,
    # Further starts that are tried if none gave a component; a last search tries all
    vain: int = 8,
) -> State | Refusal:
    """Return the state with the best component added, or a refusal; ``last`` tries all starts."""
    number = state.number + 1
    slot = int(np.flatnonzero(state.weights == 0)[0])
    key = search.key_of(number)
    ratio = state.ratio()
    first = len(state.used) == 0
    points = starts.scouted(search, state, ratio, key)
    if not np.isfinite(points.log_ratios).any():
        return Refusal("the log density is finite at none of the points that were looked at")
    candidates, covered, evaluations = _starts(search, state, ratio, points, key)
    values = (1.0,) if first else search.schedule.values(number, points.log_ratios)
    best = None
    refusals = list[str]()
    judged = True
    within = 0
    for place, (start, known) in enumerate(candidates):
        worthy = best is not None and best.gain.value > best.gain.standard_error
        # All starts outside of the mixture, and then some within, are tried before a refusal.
        # Within a mixture that is near the target no component adds more than its gap.
        tried = 0 if first or worthy else vain
        enough = place >= search.finalists + tried and not last
        if enough or (known and (search.fresh or within == search.finalists)):
            continue
        within += known
        gains = list[Estimate | None]()
        for lam in values:
            own, used = _searched(search, start, ratio, lam)
            evaluations += used
            result = _candidate(search, state, slot, own, lam)
            gains.append(result.gain)
            if isinstance(result, Refusal):
                refusals.append(result.reason)
            elif best is None or result.gain.value > best.gain.value:
                best = result
        judged &= any(gain is not None for gain in gains)
    if best is None or (not first and best.gain.value <= best.gain.standard_error):
        reason = "; ".join(dict.fromkeys(refusals))
        gain = NOTHING if best is None else best.gain
        if best is not None and judged:
            reason = (
                f"it would add {gain.value:.2g} nats, which cannot be told from noise "
                f"(± {gain.standard_error:.2g})"
            )
        # The gain is known only if the search succeeded from every start.
        known = judged and len(candidates) > 0
        return Refusal(reason or "no peak of the ratio was found", gain if known else None, covered)
    weights = rules.pruned(rules.corrective(best.cache, rules.pruned(best.weights)))
    if weights[slot] == 0:
        return Refusal(f"its weight would be below {rules.DEAD}", NOTHING, covered)
    gain = best.gain if first else state.gain(best.cache, weights)
    after = State(best.parameters, weights, best.cache, state.trace, state.refused, number)
    total = state.evaluations + evaluations
    after = dataclasses.replace(after, evaluations=total, covered=covered)
    return after.with_row(gain, float(weights[slot]), best.lam)


def polished(
    search: Search,
    state: State,
    *,
    finer: int = 4,  # Factor by which nodes, or the penalty of moves, are increased
    # Least share of the divergence that a polish must remove to be worth another
    worth: float = 0.25,
    nearer: float = 0.2,  # First penalty on moves that went too far, in nats per squared deviation
    little: float = 1e-7,  # Divergence from the target, in nats, at which a polish ends
    # Most rounds, each from where the last one ended.
    most: int = 8,
) -> State:
    """Maximise the ELBO over all components; keep a result only if it is better at other draws."""
    if len(state.used) < 2:
        return state
    after = state
    nodes = search.nodes
    left = state.gap.value
    near = 0.0
    for _ in range(most):
        end = _climbed(search, after, nodes, near)
        after = dataclasses.replace(after, evaluations=after.evaluations + end.evaluations)
        moved = _moved(search, after, end.v)
        gained = -math.inf if moved is None else _gained(after, moved)
        slow = not gained > worth * left
        if moved is not None and gained > 0:
            after = moved
        elif np.abs(end.v).max() > 1:  # so far from the start, nodes do not represent the draws
            near = max(finer * near, nearer)
            slow = False
        left = after.gap.value
        if left < little or (slow and len(nodes) > len(search.nodes)):
            break
        if slow:
            nodes = nodes_of(search.form, finer * len(nodes))
    if after.cache is state.cache:
        return after
    return after.with_row(state.gain(after.cache, after.weights), float("nan"), float("nan"))


def _gained(
    state: State,
    moved: State,
    *,
    sure: float = 3.0,  # Standard errors beyond which a mixture is worse than another
) -> float:
    """Return the nats by which another mixture is better, by its ELBO or by its divergence."""
    gain = state.gain(moved.cache, moved.weights)
    if not gain.value >= -sure * gain.standard_error:
        return gain.value
    return max(gain.value, state.gap.value - moved.gap.value)


def _climbed(
    search: Search,
    state: State,
    nodes: Float[np.ndarray, "n noise"],
    near: float,
    *,
    # Most steps of a joint polish.
    most: int = 500,
) -> Optimum:
    """Return moves of all components and log weights (K, p + 1) that maximise the ELBO less half
    ``near`` times their weighted squares, which is about the divergence from the start.
    """
    form = search.form
    zero = np.zeros((len(state.weights), search.form.moves + 1))
    look = objectives.joint(form, nodes, search.target, state.q)
    pull = near * state.weights[:, None]

    def nearby(v: np.ndarray) -> tuple[Any, np.ndarray]:
        value, slope = look(v)
        return value - (pull * v**2).sum() / 2, slope - pull * v

    end = maximised(nearby, zero, most=most)
    return end._replace(evaluations=end.evaluations * len(nodes) * len(state.used))


def _moved(search: Search, state: State, v: Float[np.ndarray, "k p1"]) -> State | None:
    """Return the state with components and log weights moved; None if one is degenerate, or lies
    where rounding errors are large.
    """
    parameters = state.parameters
    for slot in state.used:
        own = search.form.move(taken(parameters, slot), v[slot, :-1])
        if _degenerate(search, own):
            return None
        parameters = _with_slot(parameters, slot, own)
    weights = rules.pruned(scipy.special.softmax(np.log(state.weights) + v[:, -1]))
    cache = search.sampled(parameters, weights)
    if any(_unresolved(search, cache, slot) for slot in np.flatnonzero(weights).tolist()):
        return None
    return dataclasses.replace(state, parameters=parameters, weights=weights, cache=cache)


def _starts(
    search: Search, state: State, ratio: Ratio, points: starts.Scouted, key: KeyArray
) -> tuple[list[tuple[PyTree, bool]], Covered, int]:
    """Return the starts of components, each with whether it lies within the mixture; what the
    search covers; and the number of gradients.
    """
    rng = keys.of_numpy(key)
    form = search.form
    blank = float(points.blank.mean())
    chosen, count = starts.places(search, state, points, rng)
    tops, ended, used = starts.tops(search, state, ratio, points, chosen)
    within = [bool(starts.known(search, state, mode.at)) for mode in tops]
    begin = [(starts.placed(search, top), own) for top, own in zip(tops, within, strict=True)]
    if ratio.q is None:
        # The base itself is a start, too, but after a peak.
        begin.insert(max(search.finalists - 1, 1), (form.parameters(search.base), True))
    lost = np.union1d(np.flatnonzero(points.blank[:count]), chosen[~ended & (chosen < count)])
    return begin, Covered(count - len(lost), blank), used


def _searched(
    search: Search,
    own: PyTree,
    ratio: Ratio,
    lam: float,
    *,
    rounds: int = 3,  # Most rounds of a search, each in the units of where the last one ended
) -> tuple[Any, int]:
    """Return the parameters at the end of the component step, and the number of gradients."""
    form = search.form
    zero = np.zeros(search.form.moves)
    count = 0

    def along(own):
        return objectives.component(form, search.nodes, search.target, own, ratio, lam)

    own = _narrowed(form, own, lambda own: along(own)(zero))
    for _ in range(rounds):
        end = maximised(along(own), zero)
        own = form.move(own, end.v)
        count += end.evaluations * len(search.nodes)
        if np.abs(end.v).max() < 1:
            break
    return own, count


def _narrowed(
    form: Any,
    own: PyTree,
    look: Callable[[PyTree], tuple[Any, Any]],
    *,
    # Most times that a component is halved before its search.
    most: int = 16,
    # Gain, in nats per coordinate, from which it is halved again.
    much: float = 10.0,
) -> Any:
    """Parameters with deviations halved as long as there is no slope, or halves are much better."""

    def value(own: PyTree) -> float:
        found, slope = look(own)
        return float(found) if np.isfinite(found) and np.isfinite(slope).all() else -math.inf

    least = value(own)
    for _ in range(most):
        half = form.narrowed(own)
        before = least
        least = value(half)
        if least - before < much * form.size:
            break
        own = half
    return own


def _candidate(
    search: Search, state: State, slot: int, own: PyTree, lam: float
) -> _Candidate | Refusal:
    """Return a component with its gain in the ELBO, or the reason why it is refused."""
    reason = _degenerate(search, own)
    if reason:
        return Refusal(reason)
    parameters = _with_slot(state.parameters, slot, own)
    cache = search.with_slot(state.cache, parameters, slot)
    if not np.isfinite(cache.log_l[slot]).all():
        share = 1 - np.isfinite(cache.log_l[slot]).mean()
        return Refusal(
            f"the log density is not finite at {100 * share:.2g} % of its draws: events have "
            "bounds, which Transformed respects, or the target overflows there"
        )
    first = not state.used
    weights = np.eye(len(state.weights))[slot]
    if not first:
        weights = rules.best_share(cache, state.weights, slot)
    if weights[slot] < rules.DEAD:
        return Refusal(f"at λ = {lam:.2g} it raises the ELBO at no weight that counts", NOTHING)
    if _unresolved(search, cache, slot):
        return Refusal(
            "the log density has large rounding errors at its draws: it differs where events agree "
            "in all but their last digits"
        )
    gain = cache.elbo(weights) if first else state.gain(cache, weights)
    return _Candidate(parameters, cache, weights, gain, 1.0 if first else lam)


def _unresolved(
    search: Search,
    cache: SampleCache,
    slot: int,
    *,
    checked: int = 32,  # Number of a component's draws at which rounding errors are looked for
) -> bool:
    """Return whether the log density has large rounding errors at those of a component's draws
    where the ratio to the component is highest, which its gain hangs on most.
    """
    ratios = cache.log_l[slot] - cache.densities[slot, slot]
    highest = np.argsort(-ratios, kind="stable")[:checked]
    return not objectives.resolved(search.target, cache.z[slot, highest]).all()


def _degenerate(
    search: Search,
    own: PyTree,
    *,
    # In deviations of the base: a component that is further away or wider has diverged.
    distant: float = 1e4,
    # One that is narrower has collapsed.
    collapsed: float = 1e-8,
) -> str:
    """Return the reason why parameters are degenerate, or an empty text."""
    form = search.form
    if not all(np.isfinite(leaf).all() for leaf in own):
        return "its parameters are not finite"
    base = form.parameters(search.base)
    unit = form.deviation(base)
    wide = form.deviation(own)
    narrowest = form.narrowest(own, unit)
    if narrowest < collapsed:
        return (
            f"it collapsed: its narrowest deviation is {narrowest:.1e} of the base's. "
            "The density has a pole, the base is in other units, or λ is too large"
        )
    away = own[0] - base[0]
    far = max((wide / unit).max(), (np.abs(away) / unit).max())
    if far > distant:
        return (
            f"it ran away from the base, to {far:.1e} of its deviations: data are in other units "
            "than the base, the log density does not fall far out, as an improper posterior's does "
            "not, or λ is too small"
        )
    return ""


def _with_slot(parameters: PyTree, slot: int, own: PyTree) -> Any:
    return tuple(with_row(rows, slot, new) for rows, new in zip(parameters, own, strict=True))
