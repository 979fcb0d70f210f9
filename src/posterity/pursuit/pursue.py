"""Mixtures grown component by component, under a maximum-entropy objective.

Each component maximises ``H[h] + λ E_h[log L/q_t]``, then weights are found anew, and both as long
as the ELBO grows by more than its standard error.

Source: egorov2019; guo2016 and locatello2018 for the boosting of variational inference.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
from posterity.families.names import names_of, with_names
from posterity.families.unconstrained import unconstrained
from posterity.pursuit import bank as banks
from posterity.pursuit import objectives
from posterity.pursuit import weights as rules
from posterity.pursuit.bank import Bank
from posterity.pursuit.component import Refusal, grown
from posterity.pursuit.polish import polished
from posterity.pursuit.result import FEW, SHORT, Pursuit, Refused, Row, Status
from posterity.pursuit.search import Places, Search, State
from posterity.pursuit.shapes import shape_of
from posterity.pursuit.target import Target, as_target, check_at, free_of
from posterity.pursuit.tempers import Best, Temper

NODES = 128
"""Of the sums that objectives are, at the least; four for each number of noise."""
ROOM = 4_000_000
"""Numbers that nodes are made of, at the most, unless asked for."""
TURNS = 4
"""Components that are sought for each place, at the most."""
SAMPLES = 2048
"""Draws of each component that the ELBO is estimated from; a tenth where there are minibatches."""
POLISH = one_of("each", "end")
KINDS = one_of("diagonal", "full", "low-rank")
RANK = 4


class Progress(NamedTuple):
    """How far a pursuit has come: the last row of its trace, and the mixture so far."""

    row: Row
    posterior: Mixture


def pursue(
    target: Any,
    base: Any,
    *,
    components: int = 8,
    key: jax.Array,
    temper: Any = None,
    weights: str = "corrective",
    polish: str | None = "each",
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
        key: random key; the same gives the same mixture.
        temper: the rule for λ; several are tried by default.
        weights: ``"corrective"`` finds all weights anew after each component, ``"line"`` the new
            one's alone, and ``"harmonic"`` takes 2/(t + 2), whatever it does to the ELBO.
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
    target = as_target(target)
    base = _base(base, target)
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
        search = Search(
            shape=shape, target=free, origin=base, base=shape.of(own), key=key, temper=temper,
            rule=weights, polish=polish, attempts=attempts,
            finalists=min(finalists, attempts), noisy=noisy,
            samples=samples or (SAMPLES if free.records is None else SAMPLES // 10),
            nodes=nodes or _enough(shape.noise_size), steps=steps,
        )  # fmt: skip
        # One place more, to see at the end whether another component would help.
        state = _resumed(search, go_on, components + 1)
        return _driven(search, state, components, progress)


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


def _resumed(search: Search, before: Pursuit | None, count: int) -> State:
    shape = search.shape
    if before is None:
        parameters = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), search.base
        )
        return State(parameters, np.zeros(count), _empty(search, count))
    known = before.places
    if not isinstance(known, Places) or not known.fits(search):
        raise UsageError(
            found=f"go_on={before!r}, of another target or base",
            expected="a pursuit of this target and base, from this process",
            fix="Pass the same target and base; to go on from a file, begin anew.",
        )
    used = np.flatnonzero(known.weights > 0)
    if len(used) > count - 1:
        raise UsageError(
            found=f"components={count - 1} to go on from {len(used)}",
            expected="as many as there are, at least",
            fix="Raise components.",
        )
    fill = np.concatenate([used, np.full(count - len(used), used[0])])
    parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf)[fill], known.parameters)
    weights = np.concatenate([known.weights[used], np.zeros(count - len(used))])
    state = State(parameters, weights, _empty(search, count))
    bank = banks.whole(shape, search.target, state.q, search.noises(count))
    return dataclasses.replace(
        state,
        bank=bank,
        trace=before.trace,
        refused=before.refused,
        number=known.number,
        evaluations=before.trace[-1].evaluations,
    )


def _enough(size: int) -> int:
    """Nodes for so many numbers of noise: without four each, covariances would fit the nodes.

    Of thousands of numbers as many as memory has room for.
    """
    return max(NODES, min(4 * size, ROOM // size))


def _empty(search: Search, count: int) -> Bank:
    """A bank without components; its places hold draws of the base, which do not count."""
    z = objectives.draws(search.shape, search.base, search.noise(0))
    z = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * count), z)
    nothing = np.zeros((count, count, search.samples))
    return Bank(z, nothing[0], nothing)


# --- the loop ------------------------------------------------------------------------------------


def _driven(
    search: Search, state: State, components: int, progress: Callable[[Progress], Any] | None
) -> Pursuit:
    ended: Refusal | None = None
    # New components may take the place of others, so there may be more of them than places.
    most = state.number + TURNS * components
    while state.size < components and ended is None and state.number < most:
        found = grown(search, state)
        if isinstance(found, Refusal):
            ended = found
            refused = (*state.refused, Refused(state.number + 1, found.reason))
            state = dataclasses.replace(state, refused=refused)
        else:
            state = polished(search, found) if search.polish == "each" else found
            _told(search, state, progress)
    if search.polish == "end" and state.size > 1:
        state = polished(search, state)
        _told(search, state, progress)
    if not state.trace:
        raise ParameterError(
            found=f"no component with a finite ELBO ({ended and ended.reason})",
            expected="a log density that is finite where the base is",
            fix="Check the log density at draws of the base, and the base's place and width; for "
            "events with bounds take posterity.families.Transformed.",
        )
    # A mixture that misses a mode cannot tell by its own draws: so one more is looked for.
    status = judged(state, grown(search, state) if ended is None else ended)
    if not status.converged:
        warnings.warn(f"The posterior has not converged: {status}", ConvergenceWarning, 3)
    places = Places(search, state.parameters, state.weights, state.number)
    posterior = search.posterior(state.parameters, state.weights)
    posterior = with_names(posterior, names_of(search.origin, "components"))
    return Pursuit(posterior, status, state.trace, state.refused, places)


def _told(search: Search, state: State, progress: Callable[[Progress], Any] | None) -> None:
    if progress is not None:
        posterior = search.posterior(state.parameters, state.weights)
        progress(Progress(state.trace[-1], posterior))


def judged(state: State, more: State | Refusal) -> Status:
    """Whether there was more to gain; ``more`` is what became of one component more."""
    evidence, effective = state.bank.importance(state.weights)
    gap = evidence - state.bank.elbo(state.weights).value
    gain, reasons = 0.0, []
    if isinstance(more, Refusal):
        if not more.empty:
            reasons.append(f"another component was sought in vain: {more.reason}")
    elif more.trace[-1].gain > max(SHORT, 2 * more.trace[-1].gain_error):
        gain = more.trace[-1].gain
        reasons.append(
            f"another component would add {gain:.2g} ± {more.trace[-1].gain_error:.2g} nats: raise "
            "components"
        )
    if effective < FEW:
        reasons.append(
            f"only {100 * effective:.2g} % of its draws count when weighted to the target: it has "
            "another shape"
        )
    kind = "cut short" if gain else "not converged" if reasons else "converged"
    return Status(kind, gain, gap, effective, tuple(reasons))
