"""The verb ``pursue``: grow a mixture component by component, by a maximum-entropy objective.

Each component maximises ``H[h] + λ E_h[log L/q_t]``; then all weights are optimised. This repeats
while the ELBO grows by more than its standard error.

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

from posterity.arguments import COUNT, POSITIVE, Constraint, at_least, one_of
from posterity.arrays import keys
from posterity.arrays.typing import KeyArray
from posterity.artifact import loaded
from posterity.artifact.checkpoint import Checkpoint, opened
from posterity.errors import ConvergenceWarning, ParameterError, UsageError
from posterity.families import DiagonalGaussian, Distribution, Gaussian, Transformed
from posterity.families.checks import check_prior
from posterity.families.free_forms import form_of
from posterity.families.unconstrained import unconstrained
from posterity.inference.modes import RULE, unsearched
from posterity.pursuit.component import Refusal, polished, with_component
from posterity.pursuit.result import Covered, Pursuit, Refused, Row
from posterity.pursuit.schedules import Best, LambdaSchedule
from posterity.pursuit.search import Search, State, nodes_of
from posterity.pursuit.target import Free, Target, as_target, traced_at
from posterity.runtime.tracing import as_found
from posterity.status import Progress, ProgressCallback, Status

NODES = 128  # Least number of nodes of the objectives; by default four per dimension of the noise
ROOM = 4_000_000  # Most numbers in the nodes by default
SAMPLES = 2048  # Draws of each component for the estimate of the ELBO
MOST = 1 << 28  # Most densities in memory, of all components at all draws
POLISH = one_of("each", "end")
KINDS = one_of("diagonal", "full")
SCHEDULE = Constraint(
    "a schedule of λ: Best(), Fixed(1.0), Schedule(function) or Flatness() of posterity.pursuit",
    lambda own: isinstance(own, LambdaSchedule),
)
LOOK = "Pass DiagonalGaussian.from_standard(mean, variance), say, as wide as the posterior may be."


@as_found()
def pursue(
    target: Any,
    base: PyTree,
    *,
    components: int = 8,
    key: KeyArray | None = None,
    schedule: Any = None,
    polish: str | None = "each",
    attempts: int = 64,
    finalists: int = 3,
    samples: int | None = None,
    nodes: int | None = None,
    tolerance: float = 0.01,
    progress: ProgressCallback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Pursuit:
    """Fit a mixture to a posterior, adding components until another one adds nothing.

    Args:
        target: function ``log L(z)`` of one event in JAX, in nats and up to a constant; or
            :class:`~posterity.pursuit.Joint` of a model, a prior and records.
        base: law of the components' family, or the path of its file, as wide as the posterior may
            be: the search starts from its draws. A Gaussian or a DiagonalGaussian; bounded events
            need :class:`~posterity.families.Transformed` of one. With a ``Joint`` also ``"full"``
            or ``"diagonal"``, for Gaussians over the prior's unconstrained coordinates.
        components: largest number of components.
        key: random key, ``jax.random.key(0)`` by default.
        schedule: schedule of λ; by default several values are tried for each component.
        polish: when to optimise all components together by the ELBO: after ``"each"`` component,
            at the ``"end"``, or never (None).
        attempts: number of starts of the search for peaks, for each component; half are draws of
            the base.
        finalists: number of peaks at which components are fitted; the best one stays.
        samples: number of draws of each component for the estimate of the ELBO.
        nodes: number of fixed draws in the objectives.
        tolerance: largest distance from the target in nats, estimated by the mixture's own draws,
            of a converged mixture; also what the starts of a last search may have missed, about
            three over their number, so that 0.01 requires 300 starts.
        progress: called after each component; an exception that it raises ends the pursuit.
        checkpoint: path of a file saved after each component. The same call resumes from it, with
            bitwise the same result; a call with more ``components`` adds to it.

    Warns:
        ConvergenceWarning: if ``status`` is not converged.

    Raises:
        UsageError: if an argument is invalid, or the draws of the base have no density.
        StructureError: if the log density of one event is not one number.
        ParameterError: if no component with a finite ELBO was found.
        ArtifactError: if the checkpoint is of another pursuit, or cannot be written.

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
    COUNT.check(components=components, attempts=attempts, finalists=finalists)
    at_least(2).or_none().check(samples=samples)
    at_least(8).or_none().check(nodes=nodes)
    SCHEDULE.or_none().check(schedule=schedule)
    POSITIVE.check(tolerance=tolerance)
    key = keys.seeded(0) if key is None else keys.plain(key)
    silent = np.errstate(over="ignore", divide="ignore", invalid="ignore")  # what is not finite
    with jax.enable_x64(True), silent:
        own, supports = origin.unmapped
        form = form_of(own)
        if form is None:
            expected = "a Gaussian or diagonal one, or Transformed"
            raise UsageError(found=f"a base {own!r}", expected=expected, fix=LOOK)
        # With fewer than four nodes per dimension, covariances would overfit the nodes; in
        # thousands of dimensions memory limits their number.
        enough = max(NODES, min(4 * form.size, ROOM // form.size))
        whole = target if supports is None else Free(target, supports)
        schedule = schedule or Best()
        free = traced_at(whole, jax.ShapeDtypeStruct((form.size,), np.float64), origin)
        samples = samples or SAMPLES
        if (components + 1) ** 2 * samples > MOST:
            raise UsageError(
                found=f"components={components} with {samples} draws of each",
                expected=f"at most {math.isqrt(MOST // samples) - 1}, whose densities are kept",
            )
        settings: dict[str, Any] = {
            "polish": polish,
            "attempts": attempts,
            "finalists": min(finalists, attempts),
            "samples": samples,
            "nodes": nodes_of(form, nodes or enough),
        }
        search = Search(form, free, origin, own, key, schedule, **settings)
        parts = {"target": free, "base": origin, "key": key, "schedule": schedule}
        parts |= {"settings": settings}
        with opened(checkpoint, "pursue", parts) as kept:
            # One more slot, to test at the end whether another component would help.
            state = _initial(search, kept, components, components + 1)
            return _driven(search, state, components, tolerance, kept, progress)


def _base(base: PyTree, target: Target) -> Distribution:
    """Return the base: a law, or a Gaussian over the unconstrained coordinates of the prior."""
    if not KINDS.allows(base):
        law = loaded(base)
        check_prior(law, "a base")
        return law
    prior = getattr(target, "prior", None)
    if prior is None:
        raise UsageError(
            found=f"base={base!r} for a target without a prior", expected="a law: where to look"
        )
    bijection = unconstrained(prior)
    with jax.enable_x64(True):
        drawn = jax.tree.map(jnp.asarray, prior).sample(jax.random.key(0), (1024,))
        u = np.asarray(bijection.ravel(bijection.inverse(jax.tree.map(np.asarray, drawn))))
    mean = np.median(u, 0)
    variance = u.var(0)
    law = DiagonalGaussian.from_standard(mean, variance)
    if base == "full":
        law = Gaussian.from_standard(mean, np.diag(variance))
    return Transformed.onto(prior, law)


def _initial(search: Search, kept: Checkpoint, components: int, count: int) -> State:
    """Return the first state: from the checkpoint, or empty."""
    base = search.form.parameters(search.base)
    parameters = tuple(np.broadcast_to(leaf, (count, *leaf.shape)) for leaf in base)
    weights = np.zeros(count)
    before = kept.load()
    if before is None:
        return State(parameters, weights, search.sampled(parameters, weights))
    value, position = before
    saved = value["weights"]
    if len(saved) > count:
        raise UsageError(
            found=f"components={components} for a checkpoint of up to {len(saved) - 1}",
            expected=f"{len(saved) - 1} at least",
        )

    def fill(rows, spare):
        return np.concatenate([rows, spare[len(rows) :]])

    parameters = tuple(map(fill, value["parameters"], parameters))
    weights = fill(saved, weights)
    state = State(parameters, weights, search.sampled(parameters, weights))
    kinds = {"trace": Row, "refused": Refused}
    parts = {name: tuple(kind(*row) for row in position[name]) for name, kind in kinds.items()}
    parts |= {name: position[name] for name in ("number", "evaluations")}
    return dataclasses.replace(state, **parts)


def _driven(
    search: Search,
    state: State,
    components: int,
    tolerance: float,
    kept: Checkpoint,
    progress: ProgressCallback | None,
    *,
    # Most searches for a component per requested component.
    turns: int = 4,
    # Most draws of the base in the last search: enough for a tolerance of 1.2e-5 nats.
    bound: int = 1 << 18,
) -> Pursuit:
    def report(state: State) -> None:
        if kept.path is not None:
            value = {
                "parameters": list(state.parameters),
                "weights": state.weights,
                "posterior": search.posterior(state),
            }
            names = ("trace", "refused", "number", "evaluations")
            kept.save(value, {name: getattr(state, name) for name in names})
        if progress is not None:

            def partial():
                return _result(search, state, Status("not converged", math.inf, tolerance))

            progress(Progress(len(state.used), components, state.trace[-1].elbo, partial=partial))

    # At the end, as many starts as the tolerance requires must find nothing either.
    fresh = min(math.ceil(-math.log(RULE.chance) / tolerance), bound)
    thorough = dataclasses.replace(search, fresh=fresh)

    def near():
        return bool(state.used) and state.gap.at_most <= tolerance

    more = None
    last = False
    # New components may replace others, so more than ``components`` may be fitted.
    while len(state.used) < components and more is None and state.number < turns * components:
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
            expected="a density finite at draws of the base: narrow it, or Transformed for bounds",
        )
    # The mixture's own draws cannot reveal a missed mode: one more component is searched for.
    if more is None or (more.gain is not None and near() and not last):
        more = with_component(thorough if near() else search, state, last=near())
    result = _result(search, state, Status.of(0.0, tolerance), more)
    status = _status(search, state, result, more, tolerance)
    if not status.converged:
        warnings.warn(f"The posterior has not converged: {status}", ConvergenceWarning, 3)
    return dataclasses.replace(result, status=status)


def _result(
    search: Search, state: State, status: Status, more: State | Refusal | None = None
) -> Pursuit:
    """Return the current mixture as a result; ``more`` is the outcome of the last search."""
    gap, effective = state.cache.importance(state.weights)
    posterior = search.posterior(state)
    covered = more.covered if more else Covered()
    return Pursuit(posterior, status, state.trace, state.refused, gap.value, effective, *covered)


def _status(
    search: Search, state: State, result: Pursuit, more: State | Refusal, tolerance: float
) -> Status:
    """Return the status; ``more`` is the outcome of the search for one more component."""
    gain = more.gain if isinstance(more, Refusal) else more.last_gain
    gap = state.gap
    added = 0.0
    why = ""
    if gain is None:
        added = math.inf
        why = f"was sought in vain: {getattr(more, 'reason', '')}"
    elif gain.value > 2 * gain.standard_error:
        added = gain.value
        why = f"would add {gain.value:.2g} ± {gain.standard_error:.2g} nats: raise components"
    elif gain.standard_error > tolerance:
        added = gain.at_most
        why = (
            f"would add {gain.value:.2g} ± {gain.standard_error:.2g} nats, which is not known well "
            "enough: raise samples"
        )
    helps = "raise components, or " if isinstance(more, State) else "raise samples, or "
    advice = helps if gain is not None and gain.standard_error > 0 else ""
    blank = -math.log1p(-result.blank) if result.blank < 1 else math.inf
    parts = {
        f"the log density is not a number at {100 * result.blank:.2g} % of the base's draws: "
        "mend it there, or take a base that does not lead there": blank,
        f"by its own draws it is {gap.value:.2g} ± {gap.standard_error:.2g} nats from the target: "
        f"{advice}take a base of another shape": gap.at_most,
        f"another component {why}": added,
    }
    reasons = [reason for reason, nats in parts.items() if not nats <= tolerance]
    hidden = -math.log1p(-result.unseen) if result.unseen < 1 else math.inf
    left = max(hidden, *parts.values())
    missing = unsearched(result.unseen, result.starts, "base", "mixture")
    unknown = f"{missing}, nor of tails where no draw of the mixture comes"
    status = Status.of(left, tolerance, tuple(reasons))
    scope = " where it was searched" if status.converged else ""
    return dataclasses.replace(status, reasons=(*status.reasons, unknown), scope=scope)
