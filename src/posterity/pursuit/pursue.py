"""Mixtures grown component by component, under a maximum-entropy objective.

Each component maximises ``H[h] + λ E_h[log L/q_t]``, then weights are found anew, and both as long
as the ELBO grows by more than its standard error.

Source: egorov2019; guo2016 and locatello2018 for the boosting of variational inference.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from posterity.arguments import COUNT, at_least, one_of
from posterity.errors import ConvergenceWarning, ParameterError, UsageError
from posterity.families import (
    DiagonalGaussian,
    Distribution,
    Gaussian,
    LowRankGaussian,
    Mixture,
    Transformed,
)
from posterity.families.about import Moments
from posterity.families.unconstrained import unconstrained
from posterity.pursuit import bank as banks
from posterity.pursuit import climb, objectives, starts
from posterity.pursuit import weights as rules
from posterity.pursuit.bank import Bank
from posterity.pursuit.objectives import Components, Ratio
from posterity.pursuit.result import FEW, SHORT, Pursuit, Refused, Row, Status
from posterity.pursuit.shapes import Shape, shape_of
from posterity.pursuit.target import Target, as_target, check_at, free_of
from posterity.pursuit.tempers import Best, Temper

NODES = 128
"""Of the sums that objectives are, at the least; four for each number of noise."""
SAMPLES = 2048
"""Draws of each component that the ELBO is estimated from; a tenth where there are minibatches."""
DRAWS = 8
"""Of fresh noise, at each step of Adam."""
TAIL = 1e-3
"""The share of the mixture's own draws at which ``log q_t`` is below the floor of the ratio."""
FAR = 1e4
"""In standard deviations of the base: a component that begins to lie there has run away."""
COLLAPSED = 1e-8
"""In the same units: a component narrower than this has collapsed."""
POLISH = one_of("each", "end")
KINDS = one_of("diagonal", "full", "low-rank")
RANK = 4


class Progress(NamedTuple):
    """How far a pursuit has come: the last row of its trace, and the mixture so far."""

    row: Row
    posterior: Mixture


def pursue(
    target: Callable[[Any], Any] | Target,
    base: Distribution | Literal["diagonal", "full", "low-rank"],
    *,
    components: int = 8,
    key: jax.Array,
    temper: Temper | None = None,
    weights: rules.Rule = "corrective",
    polish: Literal["each", "end"] | None = "each",
    attempts: int = 8,
    finalists: int = 3,
    samples: int | None = None,
    nodes: int | None = None,
    steps: int = 2000,
    progress: Callable[[Progress], Any] | None = None,
    go_on: Pursuit | None = None,
) -> Pursuit:
    """A mixture that is close to a posterior, grown until another component adds nothing.

    Args:
        target: ``log L(z)`` of one event, in nats, up to a constant, in JAX; or
            :class:`~posterity.pursuit.Joint` of a model, a prior and records.
        base: a law of the kind that components are of. Its draws are where the search begins, and
            its deviations the units that it begins with: make it as wide as the posterior may be.
            :class:`~posterity.families.Transformed` for events with bounds. With a ``Joint``,
            a kind of Gaussian over the unconstrained numbers of its prior.
        components: how many there are at most.
        temper: the rule for λ; several are tried by default.
        weights: ``"corrective"`` finds all weights anew after each component, ``"line"`` the new
            one's alone, and ``"harmonic"`` takes 2/(t + 2), whatever it does.
        polish: improve all components together by the ELBO itself, after ``"each"`` component or at
            the ``"end"`` alone; None for what the greedy steps found.
        attempts: points from which peaks are sought, for each component.
        finalists: peaks about which components are found, of which the best stays.
        samples: draws of each component that the ELBO is estimated from.
        nodes: draws that do not change, in the sums that are maximised.
        steps: of Adam, for families other than Gaussians, and with minibatches.
        progress: called after each component; what it raises ends the pursuit.
        go_on: an earlier pursuit of the same target and base, to add to.

    Warns:
        ConvergenceWarning: if components ran out while they still helped, or if draws that are
            weighted to the target say that the mixture misses a part of it.

    Raises:
        UsageError: for arguments that make no sense, and a base whose draws have no density.
        StructureError: unless the log density is one number for one event.
        ParameterError: if no component with a finite ELBO was found.

    Source: egorov2019.

    >>> import jax, jax.numpy as jnp
    >>> from posterity.families import DiagonalGaussian
    >>> two = lambda z: jnp.logaddexp(-(z[0] - 4) ** 2 / 2, -(z[0] + 4) ** 2 / 2)
    >>> base = DiagonalGaussian.from_standard([0.0], [25.0])
    >>> found = pursue(two, base, key=jax.random.key(0))
    >>> found.posterior.size, found.status.converged
    (2, True)
    """
    target, base = as_target(target), _base(base, target)
    POLISH.or_none().check(polish=polish)
    rules.RULE.check(weights=weights)
    COUNT.check(components=components, attempts=attempts, finalists=finalists, steps=steps)
    at_least(2).or_none().check(samples=samples)
    at_least(8).or_none().check(nodes=nodes)
    temper = Best() if temper is None else temper
    if not isinstance(temper, Temper):
        raise UsageError(
            found=f"temper={temper!r}",
            expected="a rule for λ: Best(), Fixed(1.0), Schedule(function) or Flatness()",
            fix="Take one from posterity.pursuit.",
        )
    with jax.enable_x64(True):
        free, own = free_of(target, base)
        shape = shape_of(own)
        check_at(free, jax.eval_shape(lambda: jax.tree.map(jnp.asarray, own).sample(key)), base)
        noisy = not shape.nodal or free.records is not None
        search = _Search(
            shape=shape, target=free, origin=base, base=shape.of(own), key=key, temper=temper,
            rule=weights, polish=polish, attempts=attempts,
            finalists=min(finalists, attempts), noisy=noisy,
            samples=samples or (SAMPLES if free.records is None else SAMPLES // 10),
            nodes=nodes or max(NODES, 4 * shape.noise_size), steps=steps,
        )  # fmt: skip
        state = _resumed(search, go_on, components)
        return _driven(search, state, components, progress)


@dataclasses.dataclass(frozen=True)
class _Search:
    """What does not change in a pursuit."""

    shape: Shape
    target: Target
    origin: Distribution
    base: Any
    key: jax.Array
    temper: Temper
    rule: rules.Rule
    polish: str | None
    attempts: int
    finalists: int
    noisy: bool
    samples: int
    nodes: int
    steps: int

    def noise(self, place: int) -> Any:
        """That the draws of a place in the bank are made of."""
        return self.shape.noise(
            jax.random.fold_in(jax.random.fold_in(self.key, 1), place), self.samples
        )

    def key_of(self, number: int) -> jax.Array:
        """Of one component's search."""
        return jax.random.fold_in(jax.random.fold_in(self.key, 2), number)

    def posterior(self, parameters: Any, weights: np.ndarray) -> Mixture:
        """The mixture of places that have weight."""
        used = np.flatnonzero(weights > 0)
        law = self.shape.law(jax.tree.map(lambda leaf: np.asarray(leaf)[used], parameters))
        own = self.origin.law if isinstance(self.origin, Transformed) else self.origin
        if isinstance(own, DiagonalGaussian):  # a network's knows its layers
            law = own.with_moments(Moments(law.mean, law.variance))
        if isinstance(self.origin, Transformed):
            law = Transformed(law, self.origin.supports)
        return Mixture.from_standard(weights[used], law)


@dataclasses.dataclass(frozen=True)
class _State:
    """What a pursuit has found so far."""

    parameters: Any
    """Of all places (K,)."""
    weights: np.ndarray
    bank: Bank
    trace: tuple[Row, ...] = ()
    refused: tuple[Refused, ...] = ()
    number: int = 0
    """Components that were sought."""
    evaluations: int = 0

    @property
    def q(self) -> Components:
        """For objectives."""
        with np.errstate(divide="ignore"):
            return Components(self.parameters, jnp.asarray(np.log(self.weights)))


def _base(given: Any, target: Target) -> Distribution:
    """A law as it is; by its kind, one over the unconstrained numbers of the target's prior."""
    if isinstance(given, Distribution):
        if given.batch_shape or not np.all(given.is_proper()):
            raise UsageError(
                found=f"a base {given!r}",
                expected="one proper law",
                fix="It says where to look: DiagonalGaussian.from_standard(mean, variance), say.",
            )
        return given
    KINDS.check(base=given)
    prior = getattr(target, "prior", None)
    if prior is None:
        raise UsageError(
            found=f"base={given!r} for a target without a prior",
            expected="a law, which says where to look",
            fix="Pass DiagonalGaussian.from_standard(mean, variance), say.",
        )
    bijection = unconstrained(prior)
    with jax.enable_x64(True):
        drawn = jax.tree.map(jnp.asarray, prior).sample(jax.random.key(0), (1024,))
        u = np.asarray(bijection.ravel(bijection.inverse(jax.tree.map(np.asarray, drawn))))
    mean, variance = np.median(u, 0), u.var(0)
    if given == "full":
        law = Gaussian.from_standard(mean, np.diag(variance))
    elif given == "diagonal":
        law = DiagonalGaussian.from_standard(mean, variance)
    else:
        rank = min(RANK, len(mean))
        law = LowRankGaussian.from_standard(mean, np.zeros((len(mean), rank)), variance)
    return Transformed.onto(prior, law)


def _resumed(search: _Search, before: Pursuit | None, components: int) -> _State:
    shape, count = search.shape, components
    if before is None:
        parameters = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), search.base
        )
        return _State(parameters, np.zeros(count), _empty(search, count))
    known = before.places
    if known is None or known[0] != shape:
        raise UsageError(
            found=f"go_on={before!r}, of other components than {search.origin!r}",
            expected="a pursuit of this target and base, from this process",
            fix="Pass the same base; to go on from a file, begin anew.",
        )
    used = np.flatnonzero(known[2] > 0)
    if len(used) > count:
        raise UsageError(
            found=f"components={components} to go on from {len(used)}",
            expected="as many as there are, at least",
            fix="Raise components.",
        )
    fill = np.concatenate([used, np.full(count - len(used), used[0])])
    parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf)[fill], known[1])
    weights = np.concatenate([known[2][used], np.zeros(count - len(used))])
    state = _State(parameters, weights, _empty(search, count))
    bank = banks.whole(shape, search.target, state.q, _noises(search, count))
    return dataclasses.replace(
        state, bank=bank, trace=before.trace, number=known[3], evaluations=known[4]
    )


def _empty(search: _Search, count: int) -> Bank:
    z = jax.eval_shape(
        lambda base, noise: objectives.draws(search.shape, base, noise),
        search.base,
        search.noise(0),
    )
    z = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape)), z)
    return Bank(z, np.zeros((count, search.samples)), np.zeros((count, count, search.samples)))


def _noises(search: _Search, count: int) -> Any:
    return jax.tree.map(lambda *rows: jnp.stack(rows), *(search.noise(n) for n in range(count)))


# --- the loop ------------------------------------------------------------------------------------


def _driven(
    search: _Search, state: _State, components: int, progress: Callable[[Progress], Any] | None
) -> Pursuit:
    ended = ""
    while (state.weights > 0).sum() < components:
        grown = _grown(search, state)
        if isinstance(grown, str):
            state = dataclasses.replace(
                state, refused=(*state.refused, Refused(state.number + 1, grown))
            )
            ended = grown
            break
        state = grown
        if search.polish == "each":
            state = _polished(search, state)
        if progress is not None:
            posterior = search.posterior(state.parameters, state.weights)
            progress(Progress(state.trace[-1], posterior))
    if search.polish == "end" and (state.weights > 0).sum() > 1:
        state = _polished(search, state)
        if progress is not None:
            posterior = search.posterior(state.parameters, state.weights)
            progress(Progress(state.trace[-1], posterior))
    if not state.trace:
        raise ParameterError(
            found=f"no component with a finite ELBO ({ended})",
            expected="a log density that is finite where the base is",
            fix="Check the log density at draws of the base, and the base's place and width; for "
            "events with bounds take posterity.families.Transformed.",
        )
    status = _status(state, ended)
    if not status.converged:
        warnings.warn(f"The posterior has not converged: {status}", ConvergenceWarning, 3)
    places = (search.shape, state.parameters, state.weights, state.number, state.evaluations)
    return Pursuit(
        search.posterior(state.parameters, state.weights),
        status,
        state.trace,
        state.refused,
        places,
    )


class _Candidate(NamedTuple):
    parameters: Any
    place: banks.Place
    bank: Bank
    weights: np.ndarray
    gain: banks.Estimate
    temper: float


def _grown(search: _Search, state: _State) -> _State | str:
    """The state with one more component, or why there is none."""
    number, place = state.number + 1, int(np.flatnonzero(state.weights == 0)[0])
    key, counted = search.key_of(number), state.evaluations
    ratio = _ratio(state)
    found = starts.scouted(
        search.shape, search.target, search.base, ratio, key=jax.random.fold_in(key, 0)
    )
    if not np.isfinite(found.log_ratios).any():
        return "the log density is finite at none of the points that were looked at"
    begun, used = _begun(search, ratio, found, key)
    counted += used
    tempers = search.temper.options(number, found.log_ratios) if ratio.begun else (1.0,)
    middle = min(tempers, key=lambda temper: abs(np.log(temper)))
    reasons: list[str] = []
    best: _Candidate | None = None
    origin: Any = None
    for turn, (start, temper) in enumerate(
        [(start, middle) for start in begun]
        + [(None, temper) for temper in tempers if temper != middle]
    ):
        if start is None and best is None:
            break
        begin = origin if start is None else start.parameters
        parameters, used = _component(
            search, begin, ratio, temper, jax.random.fold_in(key, turn + 1)
        )
        counted += used
        now = _candidate(search, state, place, parameters, temper)
        if isinstance(now, str):
            reasons.append(now)
        elif best is None or now.gain.value > best.gain.value:
            best = now
            origin = parameters if start is not None else origin
    if best is None:
        return "; ".join(dict.fromkeys(reasons)) or "no peak of the ratio was found"
    if ratio.begun and not search.noisy:
        refined, used = _refined(search, state, place, best)
        counted += used
        if not isinstance(refined, str) and refined.gain.value > best.gain.value:
            best = refined
    if ratio.begun and best.gain.value <= best.gain.standard_error:
        return (
            f"it would add {best.gain.value:.2g} nats, which cannot be told from noise "
            f"(± {best.gain.standard_error:.2g})"
        )
    parameters = _put_place(state.parameters, place, best.parameters)
    made, bank = best.weights, best.bank
    if search.rule == "corrective":
        made = rules.pruned(rules.corrective(bank, rules.pruned(made)))
    gain = _gain(state, bank, made) if ratio.begun else best.gain
    after = dataclasses.replace(
        state, parameters=parameters, weights=made, bank=bank, number=number, evaluations=counted
    )
    return _with_row(after, gain, float(made[place]), best.temper)


def _ratio(state: _State) -> Ratio:
    """``log L/q_t``, with its floor where all but a few of the mixture's own draws lie above."""
    if not (state.weights > 0).any():
        weights = np.zeros_like(state.weights)
        weights[0] = 1.0
        q = Components(state.parameters, jnp.asarray(np.log(np.maximum(weights, 1e-300))))
        return Ratio(q, jnp.asarray(0.0), jnp.asarray(0.0))
    return Ratio(state.q, jnp.asarray(state.bank.tail(state.weights, TAIL)), jnp.asarray(1.0))


def _begun(
    search: _Search, ratio: Ratio, found: starts.Scouted, key: jax.Array
) -> tuple[list[starts.Start], int]:
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
    if not search.shape.nodal:
        return starts.matched(search.shape, search.origin, found, search.finalists, rng), 0
    places = starts.promising(found, search.attempts, rng)
    if search.target.records is not None:
        return starts.scattered(search.shape, search.base, found, places[: search.finalists]), 0
    tops, used = starts.tops(search.shape, search.target, search.base, ratio, found, places)
    if not ratio.begun:
        tops.append(starts.Start(search.base, -np.inf))
    return tops[: search.finalists], used


def _component(
    search: _Search, start: Any, ratio: Ratio, temper: float, key: jax.Array
) -> tuple[Any, int]:
    """The component step, from a start: parameters, and the gradients that it took."""
    shape, target, zero = search.shape, search.target, np.zeros(search.shape.moves)
    if search.noisy:
        arguments = (target, start, ratio, jnp.asarray(temper))
        found = climb.adam(
            _noisy_component, shape, zero, arguments, draws=DRAWS, steps=search.steps, key=key
        )
        return shape.move(start, jnp.asarray(found.v)), found.evaluations
    noise, evaluations, value = jnp.asarray(shape.nodes(search.nodes)), 0, -np.inf
    for _ in range(climb.ROUNDS):
        slope = lambda v, start=start: objectives.component_slope(
            shape, target, start, v, noise, ratio, temper
        )
        found = climb.lbfgs(slope, zero)
        evaluations += found.evaluations * len(noise)
        if not np.isfinite(found.value):
            break
        start = shape.move(start, jnp.asarray(found.v))
        if found.value - value < 1e-4:
            break
        value = found.value
    return start, evaluations


def _noisy_component(
    shape: Shape,
    v: Any,
    noise: Any,
    key: Any,
    target: Target,
    start: Any,
    ratio: Ratio,
    temper: Any,
) -> Any:
    return -objectives.component(shape, target, start, v, noise, ratio, temper, key)


def _candidate(
    search: _Search,
    state: _State,
    place: int,
    parameters: Any,
    temper: float,
    alpha: float | None = None,
) -> _Candidate | str:
    """What a component would do to the ELBO, or why it is none."""
    reason = _degenerate(search, parameters)
    if reason:
        return reason
    own = banks.place_of(
        search.shape, search.target, state.q, state.bank, place, parameters, search.noise(place)
    )
    if not (np.isfinite(own.log_l).all() and np.isfinite(own.at_others[state.weights > 0]).all()):
        share = 1 - np.isfinite(own.log_l).mean()
        return (
            f"the log density is not finite at {100 * share:.2g} % of its draws: events have "
            "bounds, which Transformed respects, or the target overflows there"
        )
    bank = state.bank.with_place(place, own)
    first = not (state.weights > 0).any()
    if first:
        made = np.zeros_like(state.weights)
        made[place] = 1.0
        return _Candidate(parameters, own, bank, made, bank.elbo(made), 1.0)
    if search.rule == "harmonic":
        made = rules.harmonic(state.weights, place, state.number)
    else:
        made = rules.line(bank, state.weights, place)
    if made[place] == 0:
        return f"at λ = {temper:.2g} it lowers the ELBO at any weight"
    return _Candidate(parameters, own, bank, made, _gain(state, bank, made), temper)


def _degenerate(search: _Search, parameters: Any) -> str:
    """Why parameters are no component; nothing where they are one."""
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(parameters)):
        return "its parameters are not finite"
    if not search.shape.nodal:
        return ""
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    unit = flat(search.shape.deviation(search.base))
    wide = flat(search.shape.deviation(parameters)) / unit
    if wide.min() < COLLAPSED:
        return (
            f"it collapsed: its narrowest deviation is {wide.min():.1e} of the base's. The density "
            "has a pole, or λ is too large"
        )
    size = search.shape.noise_size
    zero = jnp.zeros(size)
    middle, centre = (flat(search.shape.draw(own, zero)) for own in (parameters, search.base))
    if max(wide.max(), (np.abs(middle - centre) / unit).max()) > FAR:
        return (
            "it ran away from the base: the log density does not fall far out, as an improper "
            "posterior's does not, or λ is too small"
        )
    return ""


def _gain(state: _State, bank: Bank, made: np.ndarray) -> banks.Estimate:
    """How much the ELBO grows, by the same draws."""
    return banks.estimate(bank.terms(made) - state.bank.terms(state.weights))


def _refined(
    search: _Search, state: _State, place: int, best: _Candidate
) -> tuple[_Candidate | str, int]:
    """The component and its weight by the ELBO itself; all else stays as it is."""
    shape, count = search.shape, 0
    nodes = jnp.asarray(shape.nodes(search.nodes))
    few = slice(None, len(nodes))
    log_q = jnp.asarray(state.bank.log_q(state.weights)[:, few])
    z = jax.tree.map(lambda leaf: jnp.asarray(leaf[:, few]), state.bank.z)
    before = (z, jnp.asarray(state.bank.log_l[:, few]), log_q, state.q)
    start = best.parameters
    odds = float(np.clip(scipy.special.logit(np.clip(best.weights[place], 1e-6, 1 - 1e-6)), -8, 8))
    slope = lambda move: objectives.addition_slope(shape, search.target, start, move, nodes, before)
    found = climb.lbfgs(slope, np.append(np.zeros(shape.moves), odds))
    count += found.evaluations * len(nodes)
    if not np.isfinite(found.value):
        return "the search for it met no finite ELBO", count
    parameters = shape.move(start, jnp.asarray(found.v[:-1]))
    return _candidate(search, state, place, parameters, best.temper), count


def _polished(search: _Search, state: _State) -> _State:
    """All components and weights moved together, where that raises the ELBO at other draws."""
    if (state.weights > 0).sum() < 2:
        return state
    shape, q = search.shape, state.q
    moves, evaluations = np.zeros((len(state.weights), shape.moves + 1)), state.evaluations
    for more in (1, 4):
        if search.noisy:
            found = climb.adam(
                _noisy_joint, shape, moves, (search.target, q), draws=DRAWS, steps=search.steps,
                key=search.key_of(0),
            )  # fmt: skip
            evaluations += found.evaluations
        else:
            nodes = jnp.asarray(shape.nodes(more * search.nodes))
            slope = lambda v, nodes=nodes: objectives.joint_slope(shape, search.target, q, v, nodes)
            found = climb.lbfgs(slope, moves, steps=500)
            used = int((state.weights > 0).sum())
            evaluations += found.evaluations * len(nodes) * used
        v = jnp.asarray(found.v)
        parameters = objectives.move_all(shape, q.parameters, v[:, :-1])
        with np.errstate(divide="ignore"):
            weights = scipy.special.softmax(np.log(state.weights) + found.v[:, -1])
        weights = rules.pruned(weights)
        moved = Components(parameters, jnp.asarray(np.log(np.maximum(weights, 1e-300))))
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(parameters)):
            continue
        bank = banks.whole(shape, search.target, moved, _noises(search, len(weights)))
        gain = _gain(state, bank, weights)
        if gain.value > 0:
            after = dataclasses.replace(
                state, parameters=parameters, weights=weights, bank=bank, evaluations=evaluations
            )
            return _with_row(after, gain, float("nan"), 1.0)
        if search.noisy:
            break
    return dataclasses.replace(state, evaluations=evaluations)


def _noisy_joint(shape: Shape, v: Any, noise: Any, key: Any, target: Target, q: Components) -> Any:
    return -objectives.joint(shape, target, q, v, noise, key)


def _with_row(state: _State, gain: banks.Estimate, alpha: float, temper: float) -> _State:
    elbo, weights = state.bank.elbo(state.weights), state.weights
    log_q = state.bank.log_q(weights).mean(1)
    entropy = -float(np.sum(np.where(weights > 0, weights * log_q, 0.0)))
    row = Row(
        int((weights > 0).sum()), elbo.value, elbo.standard_error, gain.value, gain.standard_error,
        alpha, temper, entropy, float(np.exp(scipy.special.entr(weights).sum())), state.evaluations,
    )  # fmt: skip
    return dataclasses.replace(state, trace=(*state.trace, row))


def _status(state: _State, ended: str) -> Status:
    evidence, effective = state.bank.importance(state.weights)
    gap = evidence - state.trace[-1].elbo
    grown = [row for row in state.trace if not np.isnan(row.alpha)][-1]
    gain, error = (grown.gain, grown.gain_error) if grown.components > 1 else (0.0, 0.0)
    reasons = []
    if not ended and grown.components > 1 and gain > max(SHORT, 2 * error):
        reasons.append("components ran out while they still helped: raise components")
    if effective < FEW:
        reasons.append(
            f"only {100 * effective:.2g} % of its draws count when weighted to the target: it is "
            "narrower than the target somewhere"
        )
    state_of = (
        "converged"
        if not reasons
        else "cut short"
        if len(reasons) == 1 and not ended and gain > max(SHORT, 2 * error)
        else "not converged"
    )
    return Status(state_of, gain, error, gap, effective, tuple(reasons))


def _put_place(parameters: Any, place: int, own: Any) -> Any:
    return jax.tree.map(lambda leaf, new: leaf.at[place].set(new), parameters, own)
