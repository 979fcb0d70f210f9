"""The component step: what to add to a mixture, and how much it would help; and the joint polish.

Where the component step ends is where the mixture's ELBO is asked; of several starts and several λ
the one that adds most stays. Then all components are moved together, by the ELBO itself.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special
from jaxtyping import Float, PyTree

from posterity.pursuit import objectives, starts
from posterity.pursuit import weights as rules
from posterity.pursuit.objectives import Optimum, Ratio, maximised, maximised_by_adam
from posterity.pursuit.search import Search, State, nodes_of
from posterity.pursuit.weights import Estimate, SampleCache, with_row

ROUNDS = 3
"""Times that a search begins anew in the units of where it got to."""
FAR = 1e4
"""In deviations of the base: a component that lies further off, or is wider, has run away."""
COLLAPSED = 1e-8
"""In the same units: a component narrower than this has collapsed."""
POLISHING = 500
"""Steps of a joint polish, at the most."""
FINER = 4
"""Times as many nodes, where what the nodes promise is not there at other draws."""
NOTHING = Estimate(0.0, 0.0)


class Refusal(NamedTuple):
    """Why a component is not added."""

    reason: str
    gain: Estimate | None = None
    """The nats that it would have added, if it was found; None if the search came to nothing."""


class _Candidate(NamedTuple):
    """A component, the cache and the weights with it, and what it adds."""

    parameters: Any
    cache: SampleCache
    weights: Float[np.ndarray, " k"]
    gain: Estimate
    lam: float


def with_component(search: Search, state: State) -> State | Refusal:
    """The state with one more component, or why there is none."""
    number, slot = state.number + 1, int(np.flatnonzero(state.weights == 0)[0])
    key, ratio, first = search.key_of(number), state.ratio(), len(state.used) == 0
    base = search.form.parameters(search.base)
    points = starts.scouted(search.form, search.target, base, ratio, key=key)
    if not np.isfinite(points.log_ratios).any():
        return Refusal("the log density is finite at none of the points that were looked at")
    candidates, evaluations = _starts(search, base, ratio, points, key)
    values = (1.0,) if first else search.schedule.values(number, points.log_ratios)
    best, refusals = None, list[tuple[int, Refusal]]()
    pairs = [(place, lam) for place in range(len(candidates)) for lam in values]
    for number_of_pair, (place, lam) in enumerate(pairs):
        pair_key = jax.random.fold_in(key, number_of_pair)
        own, used = _searched(search, candidates[place], ratio, lam, pair_key)
        evaluations += used
        result = _candidate(search, state, slot, own, lam)
        if isinstance(result, Refusal):
            refusals.append((place, result))
        elif best is None or result.gain.value > best.gain.value:
            best = result
    if best is None:
        reasons = "; ".join(dict.fromkeys(one.reason for _, one in refusals))
        # Nothing is to be gained only if the search came to something from every start.
        judged = {place for place, one in refusals if one.gain is not None}
        known = bool(judged) and len(judged) == len(candidates)
        return Refusal(reasons or "no peak of the ratio was found", NOTHING if known else None)
    if not first and not search.noisy and search.polish != "each":
        best, used = _refined(search, state, slot, best)
        evaluations += used
    greedy = not first and search.rule != "harmonic"  # whose step looks at nothing
    if greedy and best.gain.value <= best.gain.standard_error:
        return Refusal(
            f"it would add {best.gain.value:.2g} nats, which cannot be told from noise "
            f"(± {best.gain.standard_error:.2g})",
            best.gain,
        )
    weights = best.weights
    if search.rule == "corrective":
        weights = rules.pruned(rules.corrective(best.cache, rules.pruned(weights)))
        if weights[slot] == 0:
            return Refusal(f"its weight would be below {rules.DEAD}", NOTHING)
    gain = best.gain if first else state.gain(best.cache, weights)
    after = dataclasses.replace(
        state,
        parameters=best.parameters,
        weights=weights,
        cache=best.cache,
        number=number,
        evaluations=state.evaluations + evaluations,
    )
    return after.with_row(gain, float(weights[slot]), best.lam)


def polished(search: Search, state: State) -> State:
    """The state with a better ELBO at draws that the search did not see; or as it was."""
    used = state.used
    if len(used) < 2:
        return state
    shape = (len(state.weights), search.form.moves + 1)
    for finer in (1,) if search.noisy else (1, FINER):
        if search.noisy:
            steps, key, arguments = search.iterations, search.key_of(0), (search.target, state.q)
            end = maximised_by_adam(
                objectives.joint, search.form, np.zeros(shape), arguments, iterations=steps, key=key
            )
        else:
            nodes = search.nodes if finer == 1 else nodes_of(search.form, finer * len(search.nodes))
            end = _climbed(search, state, nodes, np.zeros(shape), slice(None))
        state = dataclasses.replace(state, evaluations=state.evaluations + end.evaluations)
        parameters = state.parameters
        for slot in used:
            own = jax.tree.map(lambda leaf, slot=slot: leaf[slot], parameters)
            own = objectives.moved(search.form, own, end.v[slot, :-1])
            parameters = _with_slot(parameters, slot, own)
        if not _finite(jax.tree.map(lambda leaf: leaf[used], parameters)):
            continue
        with np.errstate(divide="ignore"):
            weights = rules.pruned(scipy.special.softmax(np.log(state.weights) + end.v[:, -1]))
        cache = search.sampled(parameters, weights)
        gain = state.gain(cache, weights)
        if not np.isfinite(gain.value):
            continue
        if gain.value > 0:
            after = dataclasses.replace(state, parameters=parameters, weights=weights, cache=cache)
            return after.with_row(gain, float("nan"), float("nan"))
        if not gain.value < -gain.standard_error:  # there was nothing to gain
            return state
    return state


def _climbed(
    search: Search, state: State, nodes: Float[np.ndarray, "n noise"], moves: Any, only: Any
) -> Optimum:
    """Moves of components and log weights (K, p + 1), of rows ``only``, to the best ELBO."""
    arguments = (nodes, None, search.target, state.q)
    end = maximised(objectives.joint, search.form, moves, arguments, most=POLISHING, only=only)
    return end._replace(evaluations=end.evaluations * len(nodes) * len(state.used))


def _starts(
    search: Search, base: PyTree, ratio: Ratio, points: starts.Scouted, key: jax.Array
) -> tuple[list[PyTree], int]:
    """Starting points of components, and the gradients that it took to find them."""
    rng, form = starts.generator(key), search.form
    if not form.smooth:
        return starts.matched(form, search.base, points, search.finalists, rng), 0
    places = starts.promising(points, search.attempts, rng)
    if search.noisy:
        return starts.scattered(form, base, points, places[: search.finalists]), 0
    tops, used = starts.tops(form, search.target, base, ratio, points, places)
    if not ratio.started:
        # The base itself, too; but where there is room for one alone, a peak.
        tops = [*tops[: max(search.finalists - 1, 1)], base]
    return tops[: search.finalists], used


def _searched(
    search: Search, own: PyTree, ratio: Ratio, lam: float, key: jax.Array
) -> tuple[Any, int]:
    """The parameters where the component step ends, and the gradients that it took."""
    form, zero, count = search.form, np.zeros(search.form.moves), 0
    if search.noisy:
        arguments = (search.target, own, ratio, lam)
        end = maximised_by_adam(
            objectives.component, form, zero, arguments, iterations=search.iterations, key=key
        )
        return objectives.moved(form, own, end.v), end.evaluations
    for _ in range(ROUNDS):
        arguments = (search.nodes, None, search.target, own, ratio, lam)
        end = maximised(objectives.component, form, zero, arguments)
        own = jax.tree.map(np.asarray, objectives.moved(form, own, end.v))
        count += end.evaluations * len(search.nodes)
        if np.abs(end.v).max() < 1:
            break
    return own, count


def _candidate(
    search: Search, state: State, slot: int, own: PyTree, lam: float
) -> _Candidate | Refusal:
    """A component and what it does to the ELBO, or why it is none."""
    if reason := _degenerate(search, own):
        return Refusal(reason)
    parameters, used = _with_slot(state.parameters, slot, own), [*state.used, slot]
    cache = state.cache.with_slot(
        search.form, search.target, parameters, slot, used, search.noise(slot)
    )
    if not np.isfinite(cache.log_l[slot]).all():
        share = 1 - np.isfinite(cache.log_l[slot]).mean()
        return Refusal(
            f"the log density is not finite at {100 * share:.2g} % of its draws: events have "
            "bounds, which Transformed respects, or the target overflows there"
        )
    if not len(state.used):
        alone = np.eye(len(state.weights))[slot]
        return _Candidate(parameters, cache, alone, cache.elbo(alone), 1.0)
    if search.rule == "harmonic":
        weights = rules.harmonic(state.weights, slot, state.number)
    else:
        weights = rules.line(cache, state.weights, slot)
    if weights[slot] == 0:
        return Refusal(f"at λ = {lam:.2g} it lowers the ELBO at any weight", NOTHING)
    return _Candidate(parameters, cache, weights, state.gain(cache, weights), lam)


def _degenerate(search: Search, own: PyTree) -> str:
    """Why parameters are no component; nothing where they are one."""
    form = search.form
    if not _finite(own):
        return "its parameters are not finite"
    if not form.smooth:
        return ""
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    base = form.parameters(search.base)
    unit, wide = flat(form.deviation(base)), flat(form.deviation(own))
    narrowest = form.narrowest(own, unit)
    if narrowest < COLLAPSED:
        return (
            f"it collapsed: its narrowest deviation is {narrowest:.1e} of the base's. "
            "The density has a pole, or λ is too large"
        )
    away = flat(objectives.middle(form, own)) - flat(objectives.middle(form, base))
    if max((wide / unit).max(), (np.abs(away) / unit).max()) > FAR:
        return (
            "it ran away from the base: the log density does not fall far out, as an improper "
            "posterior's does not, or λ is too small"
        )
    return ""


def _refined(search: Search, state: State, slot: int, best: _Candidate) -> tuple[_Candidate, int]:
    """The component and its weight by the ELBO itself, if that is better; all else stays."""
    added = dataclasses.replace(state, parameters=best.parameters, weights=best.weights)
    moves = np.zeros((len(state.weights), search.form.moves + 1))
    end = _climbed(search, added, search.nodes, moves, slot)
    own = jax.tree.map(lambda leaf: leaf[slot], best.parameters)
    own = jax.tree.map(np.asarray, objectives.moved(search.form, own, end.v[slot, :-1]))
    refined = _candidate(search, state, slot, own, best.lam)
    better = isinstance(refined, _Candidate) and refined.gain.value > best.gain.value
    return (refined if better else best), end.evaluations  # type: ignore[return-value]


def _with_slot(parameters: PyTree, slot: int, own: PyTree) -> Any:
    return jax.tree.map(lambda rows, new: with_row(rows, slot, np.asarray(new)), parameters, own)


def _finite(parameters: PyTree) -> bool:
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(parameters))
