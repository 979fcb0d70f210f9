"""The component step: what to add to a mixture, and how much it would help.

Where the component step ends is where the mixture's ELBO is asked; of several starts and several λ
the one that adds most stays, and is then improved by the ELBO itself.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from posterity.pursuit import bank as banks
from posterity.pursuit import climb, objectives, starts
from posterity.pursuit import weights as rules
from posterity.pursuit.bank import Bank
from posterity.pursuit.objectives import Ratio
from posterity.pursuit.search import Search, State
from posterity.pursuit.shapes import Shape
from posterity.pursuit.target import Target

DRAWS = 8
"""Of fresh noise, at each step of Adam."""
ROUNDS = 3
"""Times that a search begins anew in the units of where it got to."""
FAR = 1e4
"""In deviations of the base: a component that lies further off, or is wider, has run away."""
COLLAPSED = 1e-8
"""In the same units: a component narrower than this has collapsed."""


class Refusal(NamedTuple):
    """Why a component is not added."""

    reason: str
    empty: bool = False
    """Whether there was nothing to gain; else the search itself came to nothing."""


def grown(search: Search, state: State) -> State | Refusal:
    """The state with one more component, or why there is none."""
    number, place = state.number + 1, int(np.flatnonzero(state.weights == 0)[0])
    key, ratio, first = search.key_of(number), state.ratio(), state.size == 0
    found = starts.scouted(search.shape, search.target, search.base, ratio, key=key)
    if not np.isfinite(found.log_ratios).any():
        return Refusal("the log density is finite at none of the points that were looked at")
    begun, evaluations = _begun(search, ratio, found, key)
    tempers = (1.0,) if first else search.temper.options(number, found.log_ratios)
    pairs = [(start.parameters, temper) for start in begun for temper in tempers]
    ends, used = _searched(search, pairs, ratio, key)
    evaluations += used
    best, reasons = None, list[Refusal]()
    for parameters, (_, temper) in zip(ends, pairs, strict=True):
        now = _candidate(search, state, place, parameters, temper)
        if isinstance(now, Refusal):
            reasons.append(now)
        elif best is None or now.gain.value > best.gain.value:
            best = now
    if best is None:
        told = "; ".join(dict.fromkeys(one.reason for one in reasons))
        return Refusal(told or "no peak of the ratio was found", any(one.empty for one in reasons))
    if not first and not search.noisy and search.polish != "each":
        refined, used = _refined(search, state, place, best)
        evaluations += used
        if not isinstance(refined, Refusal) and refined.gain.value > best.gain.value:
            best = refined
    greedy = not first and search.rule != "harmonic"  # whose step looks at nothing
    if greedy and best.gain.value <= best.gain.standard_error:
        return Refusal(
            f"it would add {best.gain.value:.2g} nats, which cannot be told from noise "
            f"(± {best.gain.standard_error:.2g})",
            empty=True,
        )
    weights = best.weights
    if search.rule == "corrective":
        weights = rules.pruned(rules.corrective(best.bank, rules.pruned(weights)))
        if weights[place] == 0:
            return Refusal(f"its weight would be below {rules.DEAD}", empty=True)
    after = dataclasses.replace(
        state,
        parameters=jax.tree.map(
            lambda leaf, own: leaf.at[place].set(own), state.parameters, best.parameters
        ),
        weights=weights,
        bank=best.bank,
        number=number,
        evaluations=state.evaluations + evaluations,
    )
    gain = best.gain if first else state.gain(best.bank, weights)
    return after.with_row(gain, float(weights[place]), best.temper)


class _Candidate(NamedTuple):
    """A component, the bank and the weights with it, and what it adds."""

    parameters: Any
    bank: Bank
    weights: np.ndarray
    gain: banks.Estimate
    temper: float


def _begun(
    search: Search, ratio: Ratio, found: starts.Scouted, key: jax.Array
) -> tuple[list[starts.Start], int]:
    """Where components begin, and the gradients that it took to find out."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
    if not search.shape.nodal:
        return starts.matched(search.shape, search.origin, found, search.finalists, rng), 0
    places = starts.promising(found, search.attempts, rng)
    if search.noisy:
        return starts.scattered(search.shape, search.base, found, places[: search.finalists]), 0
    tops, used = starts.tops(search.shape, search.target, search.base, ratio, found, places)
    if not ratio.begun:
        # The base itself, too; but where there is room for one alone, a peak.
        tops = [*tops[: max(search.finalists - 1, 1)], starts.Start(search.base, -np.inf)]
    return tops[: search.finalists], used


def _searched(
    search: Search, pairs: list[tuple[Any, float]], ratio: Ratio, key: jax.Array
) -> tuple[list[Any], int]:
    """Where the component step ends from each start, with its λ; and the gradients it took."""
    shape, target = search.shape, search.target
    if not pairs:
        return [], 0
    if search.noisy:
        ends, count = [], 0
        for number, (start, temper) in enumerate(pairs):
            found = climb.adam(
                _noisy, shape, np.zeros(shape.moves),
                (target, start, ratio, jnp.asarray(temper)),
                draws=DRAWS, steps=search.steps, key=jax.random.fold_in(key, number),
            )  # fmt: skip
            ends.append(objectives.moved(shape, start, found.v))
            count += found.evaluations
        return ends, count
    # As many at a time whatever the number of starts and λ, so that one program serves.
    many = max(len(pairs), search.finalists * search.temper.count)
    filled = [*pairs, *pairs[:1] * (many - len(pairs))]
    at = jax.tree.map(lambda *rows: jnp.stack(rows), *(start for start, _ in filled))
    tempers = jnp.asarray([temper for _, temper in filled])
    nodes, count = jnp.asarray(shape.nodes(search.nodes)), 0
    for _ in range(ROUNDS):
        found = _searches(shape, at, (target, nodes, ratio), tempers)
        at = objectives.moved_all(shape, at, found.v)
        count += int(np.asarray(found.evaluations)[: len(pairs)].sum()) * len(nodes)
        if np.abs(np.asarray(found.v)[: len(pairs)]).max() < 1:
            break
    return [jax.tree.map(lambda leaf, n=n: leaf[n], at) for n in range(len(pairs))], count


def _still(
    shape: Shape, v: Any, target: Target, start: Any, nodes: Any, ratio: Ratio, temper: Any
) -> Any:
    return objectives.component(shape, v, target, start, nodes, ratio, temper)


@objectives.compiled
def _searches(shape: Shape, at: Any, shared: Any, tempers: Any) -> climb.Climbed:
    """The component step from several starts at a time."""
    target, nodes, ratio = shared

    def one(start: Any, temper: Any) -> climb.Climbed:
        zero = jnp.zeros(shape.moves)
        return climb.lbfgs(_still, shape, zero, (target, start, nodes, ratio, temper))

    return jax.vmap(one)(at, tempers)


def _noisy(
    shape: Shape, v: Any, noise: Any, key: Any, target: Target, start: Any, ratio: Ratio,
    temper: Any,
) -> Any:  # fmt: skip
    return objectives.component(shape, v, target, start, noise, ratio, temper, key)


def _candidate(
    search: Search, state: State, place: int, parameters: Any, temper: float
) -> _Candidate | Refusal:
    """What a component would do to the ELBO, or why it is none."""
    if reason := _degenerate(search, parameters):
        return Refusal(reason)
    own = banks.place_of(
        search.shape, search.target, state.q, state.bank, place, parameters, search.noise(place)
    )
    if not np.isfinite(own.log_l).all():
        share = 1 - np.isfinite(own.log_l).mean()
        return Refusal(
            f"the log density is not finite at {100 * share:.2g} % of its draws: events have "
            "bounds, which Transformed respects, or the target overflows there"
        )
    bank = state.bank.with_place(place, own)
    if not state.size:
        alone = np.eye(len(state.weights))[place]
        return _Candidate(parameters, bank, alone, bank.elbo(alone), 1.0)
    if search.rule == "harmonic":
        weights = rules.harmonic(state.weights, place, state.number)
    else:
        weights = rules.line(bank, state.weights, place)
    if weights[place] == 0:
        return Refusal(f"at λ = {temper:.2g} it lowers the ELBO at any weight", empty=True)
    return _Candidate(parameters, bank, weights, state.gain(bank, weights), temper)


def _degenerate(search: Search, parameters: Any) -> str:
    """Why parameters are no component; nothing where they are one."""
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(parameters)):
        return "its parameters are not finite"
    if not search.shape.nodal:
        return ""
    unit, centre = _outline(search.shape, search.base)
    wide, middle = _outline(search.shape, parameters)
    narrowest = search.shape.narrowest(parameters, unit)
    if narrowest < COLLAPSED:
        return (
            f"it collapsed: its narrowest deviation is {narrowest:.1e} of the base's. "
            "The density has a pole, or λ is too large"
        )
    if max((wide / unit).max(), (np.abs(middle - centre) / unit).max()) > FAR:
        return (
            "it ran away from the base: the log density does not fall far out, as an improper "
            "posterior's does not, or λ is too small"
        )
    return ""


def _outline(shape: Shape, parameters: Any) -> tuple[np.ndarray, np.ndarray]:
    """Deviations and the middle of a component, flat."""
    found = objectives.outline(shape, parameters)
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    return flat(found[0]), flat(found[1])


def _refined(
    search: Search, state: State, place: int, best: _Candidate
) -> tuple[_Candidate | Refusal, int]:
    """The component and its weight by the ELBO itself; all else stays as it is."""
    shape, nodes = search.shape, jnp.asarray(search.shape.nodes(search.nodes))
    few = slice(None, len(nodes))
    log_q = jnp.asarray(state.bank.log_q(state.weights)[:, few])
    z = jax.tree.map(lambda leaf: jnp.asarray(leaf[:, few]), state.bank.z)
    before = (z, jnp.asarray(state.bank.log_l[:, few]), log_q, state.q)
    odds = np.clip(scipy.special.logit(np.clip(best.weights[place], 1e-6, 1 - 1e-6)), -8, 8)
    move = jnp.asarray(np.append(np.zeros(shape.moves), odds))
    arguments = (search.target, best.parameters, nodes, before)
    found = climb.lbfgs(objectives.addition, shape, move, arguments)
    count = int(found.evaluations) * len(nodes)
    if not np.isfinite(float(found.value)):
        return Refusal("the search for it met no finite ELBO"), count
    parameters = objectives.moved(shape, best.parameters, found.v[:-1])
    return _candidate(search, state, place, parameters, best.temper), count
