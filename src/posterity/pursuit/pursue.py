"""Mixtures grown component by component, under a maximum-entropy objective.

Each component maximises ``H[h] + λ E_h[log L/q_t]``, then weights are computed anew, as long as the
ELBO grows by more than its standard error.

Source: egorov2019; guo2016 and locatello2018 for the boosting of variational inference.
"""

import dataclasses
import math
import os
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterity.arguments import COUNT, POSITIVE, Constraint, at_least, one_of, renamed
from posterity.arrays import keys
from posterity.arrays.typing import KeyArray
from posterity.artifact import loaded
from posterity.checkpoint import Checkpoint, opened
from posterity.errors import ConvergenceWarning, ParameterError, UsageError
from posterity.families import (
    DiagonalGaussian,
    Distribution,
    Gaussian,
    LowRankGaussian,
    Transformed,
)
from posterity.families.free_forms import event_of, form_of
from posterity.families.unconstrained import unconstrained
from posterity.fingerprint import digests
from posterity.pursuit import starts
from posterity.pursuit import weights as rules
from posterity.pursuit.component import Refusal, polished, with_component
from posterity.pursuit.result import CHANCE, FEW, Pursuit, Refused, Row
from posterity.pursuit.schedules import Best, LambdaSchedule
from posterity.pursuit.search import Search, State, nodes_of
from posterity.pursuit.target import Free, Target, as_target, check_at
from posterity.status import Progress, ProgressCallback, Status

NODES = 128  # Nodes of the sums that objectives are, at the least; four for each number of noise
ROOM = 4_000_000  # Numbers that nodes are made of, at the most, unless asked for
SLOTS = 9  # Places for components, of which there are a multiple
TURNS = 4  # Components that are sought for each slot, at the most
SAMPLES = 2048
"""Draws of each component that the ELBO is estimated from; a tenth where there are minibatches."""
FRESH = 1 << 18
"""Draws of the base that are looked at in the end, at the most: enough for 1.2e-5 nats."""
MOST = 1 << 28  # Densities, of all components at all draws, that are kept at the most
POLISH = one_of("each", "end")
KINDS = one_of("diagonal", "full", "low-rank")
SCHEDULE = Constraint(
    "a schedule of λ: Best(), Fixed(1.0), Schedule(function) or Flatness() of posterity.pursuit",
    lambda own: isinstance(own, LambdaSchedule),
)
RANK = 4
LOOK = "Pass DiagonalGaussian.from_standard(mean, variance), say, as wide as the posterior may be."


@renamed(
    temper="schedule",
    steps="iterations",
    go_on="Pass start=result.posterior; or the same checkpoint= with more components.",
)
def pursue(
    target: Any,
    base: PyTree,
    *,
    components: int = 8,
    key: KeyArray | None = None,
    schedule: Any = None,
    weights: str = "corrective",
    polish: str | None = "each",
    attempts: int = 64,
    finalists: int = 3,
    samples: int | None = None,
    nodes: int | None = None,
    iterations: int = 1000,
    tolerance: float = 0.01,
    start: Any = None,
    progress: ProgressCallback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Pursuit:
    """A mixture that is close to a posterior, grown until another component adds nothing.

    Args:
        target: ``log L(z)`` of one event, in nats, up to a constant, in JAX; or
            :class:`~posterity.pursuit.Joint` of a model, a prior and records.
        base: a law of the kind that components are of, or the path of its file, as wide as the
            posterior may be: the search begins at its draws. Events with bounds need
            :class:`~posterity.families.Transformed`. With a ``Joint`` also ``"diagonal"``,
            ``"full"`` or ``"low-rank"``, Gaussians over its prior's unconstrained numbers.
        components: how many there are at most.
        key: random key, ``jax.random.key(0)`` by default.
        schedule: of λ; several values are tried by default.
        weights: ``"corrective"`` finds all weights anew after each component, ``"line"`` the new
            one's alone, and ``"harmonic"`` takes 2/(t + 2), whatever it does to the ELBO.
        polish: improve all components together by the ELBO itself, after ``"each"`` component or at
            the ``"end"`` alone; None for what the greedy steps found.
        attempts: points from which peaks are sought, for each component; half are draws of the
            base.
        finalists: peaks about which components are found, of which the best stays.
        samples: draws of each component that the ELBO is estimated from.
        nodes: draws that do not change, in the sums that are maximised.
        iterations: of Adam, for families other than Gaussians, and with minibatches.
        tolerance: nats that a converged mixture may be away from the target, by its own draws, and
            that starts of a last search may have missed: about three over their number, so that a
            hundredth asks for 300 of them.
        start: a mixture to add to, of components of the base's kind, or the path of its file.
        progress: called after each component; what it raises ends the pursuit.
        checkpoint: a file that is kept up to date after each component. The same call goes on from
            it, to the same bits; one of more ``components`` adds to it.

    Warns:
        ConvergenceWarning: unless the status is "converged".

    Raises:
        UsageError: for arguments that make no sense, and a base whose draws have no density.
        StructureError: unless the log density is one number for one event.
        ParameterError: if no component with a finite ELBO was found.
        ArtifactError: if the checkpoint is one of another pursuit, or cannot be written.

    Source: egorov2019.

    >>> import jax, jax.numpy as jnp
    >>> from posterity.families import DiagonalGaussian
    >>> two = lambda z: jnp.logaddexp(-(z[0] - 4) ** 2 / 2, -(z[0] + 4) ** 2 / 2)
    >>> base = DiagonalGaussian.from_standard([0.0], [25.0])
    >>> result = pursue(two, base)
    >>> result.posterior.size, result.status.converged
    (2, True)
    """
    target = as_target(target)
    origin = _base(base, target)
    POLISH.or_none().check(polish=polish)
    rules.RULE.check(weights=weights)
    COUNT.check(
        components=components, attempts=attempts, finalists=finalists, iterations=iterations
    )
    at_least(2).or_none().check(samples=samples)
    at_least(8).or_none().check(nodes=nodes)
    SCHEDULE.or_none().check(schedule=schedule)
    POSITIVE.check(tolerance=tolerance)
    key = keys.seeded(0) if key is None else keys.plain(key)
    with jax.enable_x64(True):
        own, supports = getattr(origin, "unmapped", (origin, None))
        form = form_of(own)
        if form is None:
            raise UsageError(
                found=f"a base {own!r}",
                expected="one law of a reparameterised family: DiagonalGaussian, Gaussian, "
                "LowRankGaussian, Gamma, Beta, Dirichlet, ..., a Product of these, or Transformed",
                fix=LOOK,
            )
        # Without four nodes for each number of noise, covariances would fit the nodes; of
        # thousands of numbers as many as memory has room for.
        enough = max(NODES, min(4 * form.noise_size, ROOM // form.noise_size))
        free = jax.tree.map(jnp.asarray, Free(target, supports, event_of(own)))
        schedule = schedule or Best()
        check_at(free, jax.ShapeDtypeStruct((form.size,), np.float64), origin)
        few = free.records is not None
        samples = samples or (SAMPLES // 10 if few else SAMPLES)
        if (components + 1) ** 2 * samples > MOST:
            raise UsageError(
                found=f"components={components} with {samples} draws of each",
                expected=f"at most {math.isqrt(MOST // samples) - 1}: the densities of all "
                "components at the draws of all are kept",
                fix="Lower components, which are added only while they help, or samples.",
            )
        settings: dict[str, Any] = {
            "rule": weights,
            "polish": polish,
            "attempts": attempts,
            "finalists": min(finalists, attempts),
            "samples": samples,
            "nodes": nodes_of(form, nodes or enough),
            "iterations": iterations,
        }
        noisy = few or not form.smooth
        search = Search(form, free, origin, own, key, schedule, noisy=noisy, **settings)
        first = None if start is None else loaded(start)
        parts = {"target": free, "base": origin, "key": key, "schedule": schedule}
        parts |= {"start": first, "settings": settings}
        with opened(checkpoint, "pursue", {} if checkpoint is None else digests(parts)) as kept:
            # One slot more, to see at the end whether another component would help. There are
            # the same number for several, so that programs are the same.
            slots = components + 1 if components == 1 else -(-(components + 1) // SLOTS) * SLOTS
            state = _initial(search, kept, first, components, slots)
            return _driven(search, state, components, tolerance, kept, progress)


def _base(base: PyTree, target: Target) -> Distribution:
    """A law as it is; by its kind, one over the unconstrained numbers of the target's prior."""
    if not KINDS.allows(base):
        law = loaded(base)
        if not isinstance(law, Distribution) or law.batch_shape or not np.all(law.is_proper()):
            raise UsageError(
                found=f"a base {law!r}",
                expected=f"one proper law, the path of its file, or {KINDS.expected}",
                fix=LOOK,
            )
        return law
    prior = getattr(target, "prior", None)
    if prior is None:
        raise UsageError(
            found=f"base={base!r} for a target without a prior",
            expected="a law, which says where to look",
            fix=LOOK,
        )
    bijection = unconstrained(prior)
    with jax.enable_x64(True):
        drawn = jax.tree.map(jnp.asarray, prior).sample(jax.random.key(0), (1024,))
        u = np.asarray(bijection.ravel(bijection.inverse(jax.tree.map(np.asarray, drawn))))
    mean, variance = np.median(u, 0), u.var(0)
    factor = np.zeros((len(mean), min(RANK, len(mean))))
    laws = {
        "full": lambda: Gaussian.from_standard(mean, np.diag(variance)),
        "diagonal": lambda: DiagonalGaussian.from_standard(mean, variance),
        "low-rank": lambda: LowRankGaussian.from_standard(mean, factor, variance),
    }
    return Transformed.onto(prior, laws[base]())


def _initial(search: Search, kept: Checkpoint, start: PyTree, components: int, count: int) -> State:
    """The state that is kept in a file; or that of a mixture to begin with, or of none."""
    base = search.form.parameters(search.base)
    empty = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (count, *np.shape(leaf))), base)
    parameters, weights, position, before = empty, np.zeros(count), None, kept.load()
    if before is not None:
        value, position = before
        parameters = jax.tree.unflatten(jax.tree.structure(base), value["parameters"])
        weights = np.asarray(value["weights"])
    elif start is not None:
        parameters, weights = _of_mixture(search, start)
    if (weights > 0).sum() > components:
        raise UsageError(
            found=f"components={components} to go on from {(weights > 0).sum()}",
            expected="as many as there are, at least",
            fix="Raise components.",
        )
    if len(weights) != count:
        used = np.flatnonzero(weights > 0)
        fill = lambda rows, spare: np.concatenate([rows[used], spare[len(used) :]])
        parameters = jax.tree.map(fill, parameters, empty)
        weights = fill(weights, np.zeros(count))
    state = State(parameters, weights, search.sampled(parameters, weights))
    if position is not None:
        rows = {"trace": Row, "refused": Refused}
        parts = {name: tuple(kind(*row) for row in position[name]) for name, kind in rows.items()}
        parts |= {name: position[name] for name in ("number", "evaluations")}
        return dataclasses.replace(state, **parts)
    if start is None:
        return state
    state = dataclasses.replace(state, number=len(state.used))
    return state.with_row(state.cache.elbo(weights), math.nan, math.nan)


def _of_mixture(search: Search, start: PyTree) -> tuple[Any, np.ndarray]:
    """Parameters and weights of a mixture of components of the base's kind."""
    law: Any = start.components if getattr(start, "is_mixture", False) else None
    if type(law) is type(search.origin):
        law = law.unmapped[0]
        members = [law[place] for place in range(start.size)]  # type: ignore[index,union-attr]
        if all(form_of(member) == search.form for member in members):
            rows = map(search.form.parameters, members)
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
            return stacked, np.asarray(start.weights, np.float64)
    raise UsageError(
        found=f"start={start!r}",
        expected=f"a mixture of laws like the base, {search.origin!r}",
        fix="Pass the posterior of an earlier pursuit, and the same base.",
    )


def _driven(
    search: Search,
    state: State,
    components: int,
    tolerance: float,
    kept: Checkpoint,
    progress: ProgressCallback | None,
) -> Pursuit:
    def report(state: State) -> None:
        if kept.path is not None:
            value = {
                "parameters": [np.asarray(leaf) for leaf in jax.tree.leaves(state.parameters)],
                "weights": state.weights,
                "posterior": search.posterior(state),
            }
            names = ("trace", "refused", "number", "evaluations")
            kept.save(value, {name: getattr(state, name) for name in names})
        if progress is not None:
            partial = lambda: _result(search, state, Status("not converged", math.inf, tolerance))
            progress(Progress(len(state.used), components, state.trace[-1].elbo, partial=partial))

    # Where nothing else is left, as many starts as the tolerance asks for must find nothing either.
    fresh = min(math.ceil(-math.log(CHANCE) / tolerance), FRESH)
    thorough = dataclasses.replace(search, fresh=fresh)
    near = lambda: bool(state.used) and state.gap.at_most <= tolerance
    more, last = None, False
    # New components may take the place of others, so there may be more of them than slots.
    while len(state.used) < components and more is None and state.number < TURNS * components:
        after = with_component(thorough if last else search, state)
        if isinstance(after, State):
            state = polished(search, after) if search.polish == "each" else after
            last = False
            report(state)
        elif after.gain is not None and not last and near():
            last = True
        else:
            more = after
            refused = (*state.refused, Refused(state.number + 1, after.reason))
            state = dataclasses.replace(state, refused=refused)
    if search.polish == "end" and len(state.used) > 1:
        state = polished(search, state)
        report(state)
    if not state.trace:
        raise ParameterError(
            found=f"no component with a finite ELBO ({more and more.reason})",
            expected="a log density that is finite where the base is",
            fix="Check the log density at draws of the base: where it overflows, mend it or take a "
            "narrower base; for events with bounds take posterity.families.Transformed.",
        )
    # A mixture that misses a mode cannot tell by its own draws: so one more is looked for, at its
    # best weight, as a step of fixed length may hide what a component would add.
    if more is None or (more.gain is not None and near() and not last):
        own = thorough if near() else search
        greedy = dataclasses.replace(own, rule="line") if own.rule == "harmonic" else own
        more = with_component(greedy, state, last=near())
    result = _result(search, state, Status.of(0.0, tolerance), more)
    status = _status(search, state, result, more, tolerance)
    if not status.converged:
        warnings.warn(f"The posterior has not converged: {status}", ConvergenceWarning, 4)
    return dataclasses.replace(result, status=status)


def _result(
    search: Search, state: State, status: Status, more: State | Refusal | None = None
) -> Pursuit:
    """The mixture as it is now; ``more`` is what became of one component more."""
    found = (0, 0.0) if more is None else (more.starts, more.blank)
    gap, effective = state.cache.importance(state.weights)
    posterior = search.posterior(state)
    return Pursuit(posterior, status, state.trace, state.refused, gap.value, effective, *found)


def _status(
    search: Search, state: State, result: Pursuit, more: State | Refusal, tolerance: float
) -> Status:
    """Judge whether there was more to gain; ``more`` is what became of one component more."""
    gain = more.gain if isinstance(more, Refusal) else more.last_gain
    gap, wider = state.gap, starts.beyond(search, state)
    # Of Gaussians of these two variances, whatever the shape: estimates by draws do not see tails.
    tails = (wider - math.log1p(wider)) / 2 if math.isfinite(wider) else math.inf
    much = f"{100 * wider:.2g} %" if math.isfinite(wider) else "more than can be counted"
    added, why = 0.0, ""
    if gain is None:
        added, why = math.inf, f"was sought in vain: {getattr(more, 'reason', '')}"
    elif gain.value > 2 * gain.standard_error:
        added = gain.value
        why = f"would add {gain.value:.2g} ± {gain.standard_error:.2g} nats: raise components"
    elif gain.standard_error > tolerance:
        added = gain.at_most
        why = (
            f"would add {gain.value:.2g} ± {gain.standard_error:.2g} nats, which is not known well "
            "enough: raise samples"
        )
    blank = -math.log1p(-result.blank) if result.blank < 1 else math.inf
    parts = {
        f"the log density is not a number at {100 * result.blank:.2g} % of the base's draws: "
        "mend it there, or take a base that does not lead there": blank,
        f"by its own draws it is {gap.value:.2g} ± {gap.standard_error:.2g} nats from the target: "
        "raise components, or take a base of another shape": gap.at_most,
        f"another component {why}": added,
        f"where its draws hardly come the target has tails that add {much} to a variance: take a "
        "base of another shape": tails,
    }
    reasons = [reason for reason, nats in parts.items() if not nats <= tolerance]
    if result.effective < FEW:
        reasons.append(
            f"only {100 * result.effective:.2g} % of its draws count when weighted to the target: "
            "it has another shape"
        )
    hidden = -math.log1p(-result.unseen) if result.starts else math.inf
    left = max(hidden, *parts.values())
    unsearched = (
        f"modes that less than {100 * result.unseen:.2g} % of the base's draws lead to are beyond "
        f"what was searched ({result.starts} draws were compared with the mixture, and followed "
        "where unexplained), and may hold any mass"
        if result.starts
        else "no start from the base was followed to a mode, so nothing is known of those that are "
        "missing: a base of Gaussian components has such starts"
    )
    status = Status.of(left, tolerance, tuple(reasons))
    return dataclasses.replace(status, reasons=(*status.reasons, unsearched))
