"""Safeguarded steps along natural gradients, and line searches on the free energy.

Not every vector of natural parameters is a distribution with finite expectations of the model, and
a noisy gradient is valid only near the point of its evaluation. Steps that are too long are halved.

If the free energy ``F(q) = α KL(q ‖ cavity) - E_q[log likelihood]`` can be computed, it is
minimised by line searches. The normaliser of the cavity, which may be improper, is left out.
Natural parameters move along the natural gradient by a backtracking line search (nocedal2006,
section 3.1). Newton's method and conjugate updates are special cases of such steps (khan2023).

If log likelihoods are concave functions of linear predictors, the free energy of a Gaussian is
convex in its mean and in a triangular root of its covariance (challis2013). With separable classes,
or if all counts are zero, L-BFGS converges where natural gradients do not.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.search import RULE, Point, Search, lbfgs
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Bool, Float, Int, Number, Real
from posterity.errors import ParameterError
from posterity.families import ExponentialFamily
from posterity.inference.joint import aside, is_gaussian, slope_in_mean
from posterity.models.nodes import normal_pairs
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax, jnp
from posterity.status import Progress, ProgressCallback

Q = TypeVar("Q", bound=ExponentialFamily)

HALVINGS = 40
"""Number of halvings after which a step that is still outside the domain is not taken."""
TRUST = 4.0
"""Trust region: the sum of both KL divergences of a noisy step is at most this plus one per
coordinate, in nats. A mean can move by two standard deviations, a variance change tenfold."""
ROUNDING = 2.0**-46
"""Relative rounding error of the sums in a free energy: some dozens of units in the last place."""
FAR = 1e4
"""Squared length of a natural gradient, in nats, above which narrower starts are also tried: if
likelihoods grow without bound, the expectations of a wide posterior may depend on tails only."""
NARROWER, LEVELS, PLACES = 16.0, 8, 16
"""Starts: precisions multiplied by 16, up to 8 times, at the mean; also at 32 or more others."""


_watcher: ContextVar[ProgressCallback | None] = ContextVar("_watcher", default=None)


@contextlib.contextmanager
def watched(progress: ProgressCallback | None) -> Iterator[None]:
    """Report each evaluation by NumPy of the descents in a block, with half the squared slope as
    the nats that are left; compiled descents are not seen. An exception of ``progress`` leaves the
    block, and is not taken for a failure of the site.
    """
    token = _watcher.set(progress)
    try:
        yield
    except _Ended as ended:
        raise ended.error from None
    finally:
        _watcher.reset(token)


class _Ended(BaseException):
    """An exception of a callback, on its way through a site."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Step(NamedTuple):
    """The result of a step, and the number of halvings."""

    q: Any
    halvings: Int[Real, ""]
    taken: Bool[Real, ""]
    """False if no halved step stays in the domain; ``q`` is then unchanged."""


def safe_step(
    q: Q,
    direction: Q,
    rate: Number,
    *,
    admits: Callable[[Q], Any],
    reach: Float[Any, ""] | float | None = None,
) -> Step:
    """Step from ``q`` by ``rate`` along ``direction``, halved until the result is admissible.

    The result must be proper and admitted, and the sum of both KL divergences from ``q`` at most
    ``reach`` nats (None: no limit). This bounds the change of mean and precision of a Gaussian, and
    has a similar effect in every family. Pure, traceable.
    """

    def outside(state: tuple[Real, Real]) -> Real:
        halvings, rate = state
        moved = q + direction * rate
        near = reach is None or ~(q.kl(moved) + moved.kl(q) > reach)
        return ~(moved.is_proper() & admits(moved) & near) & (halvings <= HALVINGS)

    xp = q.xp

    def halve(state):
        return (state[0] + 1, state[1] / 2)

    start = (xp.np.zeros((), np.int32), xp.np.asarray(rate, dtype_of(q)))
    halvings, rate = xp.repeat(outside, halve, start)
    taken = halvings <= HALVINGS
    return Step(either(taken, lambda: q + direction * rate, lambda: q), halvings, taken)


def either(condition: Bool[Real, ""] | bool, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Return the tree that ``yes`` or ``no`` makes; both are called if the condition is traced."""
    if not is_jax(condition):
        return yes() if condition else no()
    return jax.tree.map(lambda one, other: jnp.where(condition, one, other), yes(), no())


def not_finite() -> ParameterError:
    """Return the error for a log likelihood or a gradient that is not finite or has jumps."""
    return ParameterError(
        found="NaN or infinity in the log likelihood or its gradient (or jumps, which have none)",
        expected="a log likelihood that is finite near the posterior, and differentiable there",
        fix="Check the model's function and the site's data, and smooth its jumps. The factor was "
        "not changed.",
    )


def fisher_length(q: ExponentialFamily, direction: ExponentialFamily) -> Float[Real, ""]:
    """Return ``sqrt(dᵀ F d)``, the length in the Fisher metric at ``q``, in sqrt(nats)."""
    squared = q.squared_length(direction)
    np_ = namespace(squared).np
    return np_.sqrt(np_.maximum(squared, 0.0))


def dtype_of(q: ExponentialFamily) -> Any:
    """Return the dtype of the natural parameters."""
    return np.result_type(*(leaf.dtype for leaf in leaves(q)))


def secant_rate(
    before: Point,
    after: Point,
    rate: Number,
    otherwise: Number,
    *,
    shortest: float = 1e-2,
    longest: float = 4.0,
) -> Any:
    """Return the share of a whole step to try next, at which the direction would vanish if it went
    on to change as with the last step (in the Fisher metric at ``after``), between ``shortest`` and
    ``longest``; ``otherwise`` if the energy is not convex along that step. Source: barzilai1988.
    """
    np_ = namespace(after.value).np
    squared_length = after.at.squared_length
    changed = squared_length(before.direction - after.direction)
    along = (squared_length(before.direction) + changed - after.squared) / 2
    secant = np_.clip(rate * along / np_.where(changed > 0, changed, 1.0), shortest, longest)
    return np_.where((along > 0) & (changed > 0), secant, otherwise)


def beside(q: Any, moved: Bool[Real, ""]) -> Any:
    """Return Gaussians moved along a fixed direction by as little as is more than rounding, where
    ``moved`` is true; other families, and batches, unchanged. At a saddle, as where a likelihood is
    symmetric about the prior's mean, rounding would choose the side, and with it the optimum.
    """
    if not is_gaussian(q):
        return q
    least = np.sqrt(np.finfo(dtype_of(q)).eps)
    way = np.random.default_rng(0).normal(size=q.event_size)
    return aside(q, q.xp.np.where(moved, least, 0.0) * way)


class Descent(NamedTuple):
    """The state of a descent, and at its end the result."""

    search: Search
    """The search from the best point so far; while starts are compared, its rate is zero."""
    started: Bool[Real, ""]
    checked: Bool[Real, ""]
    """True if the descent is over: at its end, other nodes are evaluated once."""
    check: Point
    """The best place by other nodes, with the difference of the slopes as its direction."""
    tail: Float[Real, ""]
    """An estimate of the part of the expectation at the end in tails beyond the nodes, in nats."""
    halvings: Int[Real, ""]
    ahead: Bool[Real, ""]
    """True if the descent ended with a step without an evaluation at its end."""
    evaluations: Int[Real, ""]
    """Number of evaluations, with those of starts and by other nodes."""

    @property
    def best(self) -> Point:
        """The last point that was accepted."""
        return self.search.best

    @property
    def q(self) -> Any:
        """The distribution at the end."""
        best = self.best
        rate = self.search.rate
        return either(self.ahead, lambda: best.at + best.direction * rate, lambda: best.at)

    @property
    def finite(self) -> Bool[Real, ""]:
        """True if the free energy and its slope are finite at one of the starts."""
        return self.best.finite

    @property
    def residual(self) -> Float[Real, ""]:
        """Length of the natural gradient at the last evaluation, in sqrt(nats)."""
        return self.best.squared**0.5

    @property
    def uncertainty(self) -> Float[Real, ""]:
        """Estimated displacement of the result, in nats, by the error of sums over nodes: half of
        the difference of two sums is the error of each if both err equally.
        """
        np_ = namespace(self.check.squared).np
        return np_.where(self.check.finite, self.check.squared / 4, np_.inf)

    @property
    def off(self) -> Float[Real, ""]:
        """Difference of the free energy from that by other nodes; NaN if it has none."""
        return abs(self.check.value - self.best.value)


def descend(
    evaluate: Callable[[Any, Any], Any],
    q: ExponentialFamily,
    cavity: ExponentialFamily,
    *,
    temperature: Float[Real, ""] | float,
    most: Int[Real, ""] | int,
    admits: Callable[[Any], Any],
    rough: Callable[[], Any] | None = None,
    by_nodes: bool = True,
    quick: bool = False,
    slowly: float = 0.25,
    quickly: float = 0.05,
    little: float = 1e-10,
    small: float = 1e-6,
) -> Descent:
    """Minimise the free energy from ``q`` with at most ``most`` evaluations.

    ``evaluate(q, otherwise)`` returns ``E_q[log likelihood]`` as ``value``, and ``∇_μ`` of it as
    ``gradient``; if ``otherwise`` is true, with other nodes if it has any.
    If ``q`` is so wide that these are not finite or not useful, the descent begins at a narrower
    member: the result of ``rough``, which is near the data's optimum, or else members around the
    mean of ``q`` or other places. A ``quick`` descent ends with a full step that is not evaluated,
    once the step before has left little. ``residual`` is that of the last evaluation, since fast
    coordinates may hide a slow one. If ``most`` is zero, only ``q`` itself is evaluated. Pure and
    traceable.

    Where a whole step leaves more than the share ``slowly`` of the squared slope in a quick
    descent, the next step is a secant's: smaller shares are as small after as many whole steps. The
    last step is taken without an evaluation at its end under three conditions: the step before left
    at most the share ``quickly`` of the squared slope; the same reduction leaves at most ``little``
    nats; and the reported squared slope is at most ``small``.
    """
    starts = _starts(q, rough)
    np_ = q.xp.np

    def further(search: Search) -> Any:
        at = search.best
        rate = np_.where(search.done, 0.0, search.rate)
        return at.at + at.direction * rate

    def body(state: Descent) -> Descent:
        # One evaluation per iteration for all purposes, since it takes long to compile.
        before = state.search
        best = before.best
        started = state.started
        ended = before.done
        there = either(started, lambda: further(before), lambda: starts(before.looks))
        result, tail = _look(evaluate, there, cavity, temperature, admits, best.direction, ended)
        if np_ is np and (progress := _watcher.get()) is not None:
            token = _watcher.set(None)  # descents that the callback begins are its own
            try:
                progress(Progress(int(before.looks) + 1, int(most), left=float(result.squared) / 2))
            except Exception as error:
                raise _Ended(error) from error
            finally:
                _watcher.reset(token)
        search = before.tell(result, scale=temperature)
        near = (search.taken & (before.looks == 0) & (result.squared <= FAR)) | (most < 1)
        most_tried = LEVELS if rough is None else 1
        tried = (before.looks >= most_tried) & search.best.finite
        begins = ~started & (near | tried)
        looks = np_.where(begins, 1, search.looks)
        flat = temperature * search.best.squared <= 2 * RULE.close
        share = result.squared / best.squared
        nearly = (share <= quickly) & (result.squared * share <= little) & (result.squared <= small)
        ahead = search.taken & started & nearly & quick
        over = (started | begins) & ((looks >= most) | flat)
        # Whole steps that leave little are nearly Newton's.
        turned = started & search.taken & (share > (slowly if quick else 0.0))

        def secant():
            return secant_rate(best, result, before.rate, search.rate)

        rate = either(turned, secant, lambda: search.rate)
        done = (started & search.done) | over | ahead
        return Descent(
            search._replace(rate=np_.where(begins, 1.0, rate), looks=looks, done=done),
            started | begins,
            ended if by_nodes else done,
            either(ended, lambda: result, lambda: state.check),
            np_.where(ended, tail, state.tail),
            state.halvings + (started & ~search.taken & ~ended),
            state.ahead | ahead,
            state.evaluations + 1,
        )

    def goes_on(state: Descent) -> Any:
        hopeless = ~state.started & (state.search.looks > LEVELS + 4 * PLACES)
        return ~state.checked & ~hopeless

    def number(value):
        return np_.asarray(value, dtype_of(q))

    zero = np_.zeros((), np.int32)
    no = np_.asarray(False)
    none = number(0)
    nothing = Point(q, q.zero(), number(np_.inf), none, none, no)
    begin = Search(nothing, none, zero, no, no)
    # Where nothing depends on nodes there is no displacement, and no difference is known.
    checked = nothing._replace(value=number(np_.nan), finite=~no)
    start = Descent(begin, no, no, checked, none, zero, no, zero)
    with np.errstate(all="ignore"):  # points have a flag of whether they are finite
        return q.xp.repeat(goes_on, body, start)


def _look(
    evaluate: Callable[..., Any],
    q: ExponentialFamily,
    cavity: ExponentialFamily,
    temperature: Number,
    admits: Callable[..., Any],
    before: ExponentialFamily,
    ended: Bool[Real, ""],
) -> tuple[Point, Any]:
    """Return energy and slope at ``q``; after the search ``ended``, the slope minus ``before``.
    Return the tail of the expectation, too.
    """
    inside = q.is_proper() & admits(q)
    np_ = namespace(inside).np
    if np_ is np and not inside:  # no evaluation is possible
        return Point(q, before, *map(np.asarray, (np.inf, 0.0, np.inf, False))), np.asarray(0.0)
    result = evaluate(q, ended)
    slope = result.gradient / temperature + (cavity - q)
    direction = either(ended, lambda: slope - before, lambda: slope)
    squared = q.squared_length(direction)
    # KL is negative entropy minus E_q[log cavity]; the cavity's normaliser is left out.
    terms = cavity.natural_parameters * q.mean_parameters
    entropy = q.negative_entropy()
    energy = temperature * (entropy - terms.sum()) - result.value
    sizes = temperature * (np_.abs(terms).sum() + np_.abs(entropy))
    finite = np_.isfinite(energy) & np_.isfinite(squared) & inside
    rounding = ROUNDING * (sizes + np_.abs(result.value) + 1e-3)
    point = Point(q, direction, np_.where(finite, energy, np_.inf), rounding, squared, finite)
    return point, np_.asarray(result.tail, dtype_of(q))


def _starts(q: ExponentialFamily, rough: Any) -> Callable[[Any], Any]:
    """Return starts by number: ``q``, then narrower members, or those that ``rough`` makes."""
    if rough is not None:
        return lambda number: either(
            number < 1, lambda: q, lambda: rough() * NARROWER ** (number - 1)
        )
    np_ = q.xp.np
    if not is_gaussian(q):
        return lambda number: q * NARROWER ** np_.minimum(number, LEVELS)
    size = q.event_size
    places = normal_pairs(size, max(PLACES, 2 * size))  # fewer would lie in a plane

    def start(number: Int[Real, ""]) -> Any:
        about = number - LEVELS - 1
        level = np_.where(about < 0, number, LEVELS // 2 * (1 + about % 2))
        moved = either(about < 0, lambda: q, lambda: aside(q, np_.asarray(places)[about // 2]))
        return moved * NARROWER**level

    return start


def convex_end(
    evaluate: Callable[..., Any],
    q: Any,
    cavity: Any,
    temperature: float,
    admits: Callable[[Any], Any],
    *,
    most: int = 600,
    gain: float = 1e-13,
) -> ExponentialFamily:
    """Return the Gaussian of least free energy, full or diagonal as ``q``, by L-BFGS from there.

    ``evaluate`` and ``admits`` are those of :func:`descend`. There are at most ``most``
    evaluations, and a further step must predict a relative decrease of ``gain``.
    """
    size = q.event_size
    scale = q.whitened(np.eye(size))
    kept = np.diag_indices(size) if q.diagonal else np.tril_indices(size)

    def member(free: np.ndarray) -> tuple[Any, np.ndarray]:
        root = np.zeros((size, size))
        root[kept] = free[size:]
        root = scale @ root
        inverse = np.linalg.inv(root)
        own = inverse.T @ inverse
        mean = q.mean + scale @ free[:size]
        precision = np.diagonal(own) if q.diagonal else own
        return type(q)._of(precision_mean=own @ mean, precision=precision), root

    def energy(free: np.ndarray) -> tuple[float, np.ndarray]:
        there, root = member(free)
        point, _ = _look(evaluate, there, cavity, temperature, admits, q, np.asarray(False))
        slope = -temperature * point.direction
        by_mean = scale.T @ slope_in_mean(there, slope)
        by_root = -scale.T @ slope.times_precision(root.T).T
        return float(point.value), np.concatenate([by_mean, by_root[kept]])

    start = np.concatenate([np.zeros(size), np.eye(size)[kept]])
    with np.errstate(all="ignore"):
        return member(lbfgs(energy, start, most=most, gain=gain)[0])[0]
