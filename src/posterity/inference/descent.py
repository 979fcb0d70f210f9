"""Steps along natural gradients: as far as they can be trusted, or as the free energy falls.

Not every vector of natural parameters is a distribution under which the model has expectations, and
a noisy gradient holds about where it was taken alone. A step that goes too far is halved.

A free energy that can be computed is searched along: ``F(q) = α KL(q ‖ cavity) - E_q[log
likelihood]``, but for a constant that a cavity has only where it is proper. Natural parameters step
along the natural gradient, in which Newton's method and conjugate updates are special cases
(khan2023), as far as a backtracking line search allows (nocedal2006, section 3.1).

Where a posterior is wide, natural gradients go to and fro. How they changed along the last few
steps tells of a better one: that of Anderson's method (anderson1965), in the Fisher metric.

Where log likelihoods are concave functions of linear predictors, the free energy of a Gaussian is
convex in its mean and in a triangular root of its covariance (challis2013). Where classes are told
apart, or all counts are zero, L-BFGS ends where natural gradients do not.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from posterity.arrays.namespace import is_jax, namespace
from posterity.arrays.search import CLOSE, Point, judged, lbfgs, search, step_by_curvature
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Bool, Float, Int, Number, Real
from posterity.errors import ParameterError
from posterity.families import ExponentialFamily
from posterity.inference.joint import slope_in_mean
from posterity.lazy import jax, jnp
from posterity.models.nodes import normal_pairs

Q = TypeVar("Q", bound=ExponentialFamily)

HALVINGS = 40
"""A step that is still outside the domain after so many halvings is not taken."""
TRUST = 4.0
"""Nats, and one more a coordinate, that a noisy step may put between two members, both ways: it
lets a mean move by two standard deviations, and a variance grow or shrink tenfold."""
ROUNDING = 2.0**-46
"""Of the sums that make up a free energy: some dozens of units in the last place."""
FAR = 1e4
"""Squared length of a natural gradient, in nats, from which on narrower starts are tried too: where
likelihoods grow without bound, a wide posterior may see nothing but their tails."""
NARROWER, LEVELS, PLACES = 16.0, 8, 16
"""How starts are sought: precisions times 16, up to 8 times, about the mean and up to 32 others."""
MOST = 48
"""Coordinates up to which a whole triangle is searched."""
LOOKS = 600
"""Points that are looked at, at most."""
GAIN = 1e-13
"""Of the free energy: what a further step must promise."""
DEPENDENT = 1e-8
"""The share of a remembered step below which it is a sum of others."""
QUICK, LITTLE, SMALL = 0.05, 1e-10, 1e-6
"""A step may be taken at whose end nobody looks where the step before it left at most this share of
a squared slope, where it leaves this little, in nats, if it is no worse than that one, and where
the squared slope that it starts from, which the descent then reports, is this small."""


class Step(NamedTuple):
    """The result of a step, and what it took to stay inside."""

    q: Any
    halvings: Int[Real, ""]
    taken: Bool[Real, ""]
    """False where no shorter step stays inside either: ``q`` is then what it was."""


def safe_step(
    q: Q,
    direction: Q,
    rate: Number,
    *,
    admits: Callable[[Q], Any],
    retract: bool = False,
    reach: Float[Any, ""] | float | None = None,
) -> Step:
    """Step from ``q`` by ``rate`` along ``direction``, halved until it is proper, admitted and
    near.

    Near is what the divergence both ways says, ``reach`` nats at most (None: anything goes): it
    bounds mean and precision of a Gaussian, and does the like in every family. With ``retract``
    (Gaussians) the step follows the manifold, on which precisions stay positive (lin2020), and
    bounds both itself. Pure and traceable.
    """

    def move(rate: Number) -> Any:
        return q.retract(direction, rate) if retract else q + direction * rate  # pyright: ignore[reportAttributeAccessIssue]

    def outside(state: tuple[Real, Real]) -> Real:
        halvings, rate = state
        moved = move(rate)
        near = reach is None or ~(q.kl(moved) + moved.kl(q) > reach)
        return ~(moved.is_proper() & admits(moved) & near) & (halvings <= HALVINGS)

    xp = q.xp
    halve = lambda state: (state[0] + 1, state[1] / 2)
    start = (xp.np.zeros((), np.int32), xp.np.asarray(rate, dtype_of(q)))
    halvings, rate = xp.repeat(outside, halve, start)
    taken = halvings <= HALVINGS
    return Step(either(taken, lambda: move(rate), lambda: q), halvings, taken)


def either(condition: Bool[Real, ""] | bool, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One tree or the other, each a function that makes it: called where it is what is needed."""
    if not is_jax(condition):
        return yes() if condition else no()
    return jax.tree.map(lambda one, other: jnp.where(condition, one, other), yes(), no())


def not_finite() -> ParameterError:
    """The error of a log likelihood or a gradient that is not finite, or of no use."""
    return ParameterError(
        found="NaN or infinity in the log likelihood or its gradient (or jumps, which have none)",
        expected="a log likelihood that is finite near the posterior, and differentiable there",
        fix="Check the model's function and the site's data; where it jumps, pass "
        "LocalUpdate('reinforce'). The factor was not changed.",
    )


def fisher_length(q: ExponentialFamily, direction: ExponentialFamily) -> Float[Real, ""]:
    """``sqrt(dᵀ F d)`` in sqrt(nats)."""
    squared = q.squared_length(direction)
    np_ = namespace(squared).np
    return np_.sqrt(np_.maximum(squared, 0.0))


def dtype_of(q: ExponentialFamily) -> Any:
    """The dtype of the natural parameters."""
    return np.result_type(*(leaf.dtype for leaf in leaves(q)))


class Descent(NamedTuple):
    """The end of a descent."""

    q: Any
    finite: Bool[Real, ""]
    """Whether there was a start at which the free energy and its slope are finite."""
    halvings: Int[Real, ""]
    residual: Float[Real, ""]
    """Length of the natural gradient where it looked last, in sqrt(nats)."""
    uncertainty: Float[Real, ""]
    """How far it may be off for want of nodes, in nats."""
    ahead: Bool[Real, ""]
    """True if the descent ended with a step at whose end it did not look."""


class _Search(NamedTuple):
    """The best point so far, and what to try next."""

    best: Point
    rate: Any
    looks: Any
    """Points looked at since the descent began; before, starts that were tried."""
    halvings: Any
    started: Any
    done: Any
    jump: Any
    """The step that the last ones suggest, as natural parameters, and whether it is to be tried."""
    memory: Any
    """Of the last steps: how natural parameters, mean parameters and minus the slope changed."""
    uncertainty: Any
    checked: Any
    """Whether all is done: a search that is done looks at its end once more, by other nodes."""
    ahead: Any
    """Whether all that is missing is a whole step, at whose end nobody needs to look."""


def descend(
    evaluate: Callable[[Any, Any], Any],
    q: ExponentialFamily,
    cavity: ExponentialFamily,
    *,
    temperature: Float[Real, ""] | float,
    most: Int[Real, ""] | int,
    admits: Callable[[Any], Any],
    retract: bool = False,
    rough: Callable[[], Any] | None = None,
    by_nodes: bool = True,
    quick: bool = False,
    remembered: int = 0,
) -> Descent:
    """Descend from ``q`` to where the free energy is least, looking at ``most`` points.

    ``evaluate(q, otherwise)`` gives ``E_q[log likelihood]`` as ``value``, and ``∇_μ`` of it as
    ``gradient``; by other nodes, if it has any, where ``otherwise`` is true.
    Where ``q`` is too wide for either to be finite or of use, the descent begins at a narrower
    member: what ``rough`` makes, which is near what data say, if it is there; else about the mean,
    or another place. A ``quick`` descent ends with a whole step at whose end it does not look, once
    the step before has left little; ``residual`` is of where it looked last, since a slow
    coordinate may be hidden by quick ones. Where steps are ``remembered``, a step that the last so
    many suggest is tried before a natural gradient is (anderson1965). Pure and traceable.
    """
    starts, np_ = _starts(q, rough), q.xp.np

    def further(search: _Search) -> Any:
        at, rate = search.best, np_.where(search.done, 0.0, search.rate)
        if not remembered:
            return at.at.retract(at.direction, rate) if retract else at.at + at.direction * rate
        step, tried = search.jump
        plain = rate * at.direction.natural_parameters
        return at.at + q.with_natural_parameters(np_.where(tried & ~search.done, step, plain))

    def suggested(best: Point, result: Point, memory: Any, taken: Any) -> tuple[Any, Any]:
        """The step from a point that was taken, and what is remembered there."""
        of = lambda name: getattr(result.at, name) - getattr(best.at, name)
        slopes = [point.direction.natural_parameters for point in (best, result)]
        new = of("natural_parameters"), of("mean_parameters"), slopes[0] - slopes[1]
        kept = taken & ((new[1] * new[2]).sum() > 0)
        memory = tuple(
            np_.where(kept, np_.concatenate([old[1:], own[None]]), old)
            for old, own in zip(memory, new, strict=True)
        )
        steps, means, changes = memory
        shares = _solved(means @ changes.T, means @ slopes[1])
        return slopes[1] + shares @ (steps - changes), memory

    def body(search: _Search) -> _Search:
        # One look a turn, whatever it is for: it is what takes long to compile.
        best, started, ended = search.best, search.started, search.done
        there = either(started, lambda: further(search), lambda: starts(search.looks))
        result = _look(evaluate, there, cavity, temperature, admits, best.direction, ended)
        jumped = started & search.jump[1]
        rate = np_.where(jumped, 1.0, search.rate)
        verdict = judged(best, result, rate, scale=temperature)
        better = np_.where(started, verdict.taken, result.finite & (result.value < best.value))
        taken = better & ~ended
        near = taken & (search.looks == 0) & (result.squared <= FAR)
        most_tried = LEVELS if rough is None else 1
        tried = (search.looks >= most_tried) & (best.finite | result.finite)
        begins = ~started & (near | tried)
        looks = np_.where(begins, 0, search.looks) + 1
        settled = taken & begins & (temperature * result.squared <= 2 * CLOSE)
        share = result.squared / best.squared
        little = (share <= QUICK) & (result.squared * share <= LITTLE) & (result.squared <= SMALL)
        ahead = taken & started & little & quick
        over = verdict.ended & (~jumped | verdict.taken)
        jump, memory = search.jump, search.memory
        if remembered and (is_jax(taken) or taken & started):
            step, memory = suggested(best, result, memory, taken & started)
            jump = np_.where(taken, step, jump[0]), taken & started
        elif remembered:
            jump = jump[0], no
        done = (started & over) | ((started | begins) & (looks >= most)) | settled | ahead
        return _Search(
            best=either(taken, lambda: result, lambda: best),
            rate=np_.where(started, np_.where(jumped, search.rate, verdict.rate), 1.0),
            looks=looks,
            halvings=search.halvings + (~taken & started & ~ended),
            started=started | begins,
            done=done,
            jump=jump,
            memory=memory,
            # Half of what two sums differ by is the share of each, where they err alike.
            uncertainty=np_.where(
                ended, np_.where(result.finite, result.squared / 4, np.inf), search.uncertainty
            ),
            checked=ended if by_nodes else done,
            ahead=search.ahead | ahead,
        )

    def goes_on(search: _Search) -> Any:
        hopeless = ~search.started & (search.looks > LEVELS + 4 * PLACES)
        return ~search.checked & ~hopeless

    number, zero = lambda value: np_.asarray(value, dtype_of(q)), np_.zeros((), np.int32)
    no = np_.asarray(False)
    nothing = Point(q, q.zero(), number(np_.inf), number(0), number(np_.inf), no)
    memory = (np_.zeros((remembered, q.dimension), dtype_of(q)),) * 3 if remembered else ()
    begin = np_.zeros(q.dimension * bool(remembered), dtype_of(q)), no
    start = _Search(nothing, number(1.0), zero, zero, no, no, begin, memory, number(0), no, no)
    with np.errstate(all="ignore"):  # what is not finite is told by the point
        end = q.xp.repeat(goes_on, body, start)
    best = end.best
    there = either(end.ahead, lambda: best.at + best.direction, lambda: best.at)
    return Descent(
        there, best.finite, end.halvings, np_.sqrt(best.squared), end.uncertainty, end.ahead
    )


def _solved(matrix: Float[Real, "m m"], right: Float[Real, " m"]) -> Float[Real, " m"]:
    """The solution of a small system by elimination; zero where a row depends on those before."""
    np_, rows = namespace(right).np, len(right)
    every = np_.concatenate([matrix, right[:, None]], 1)
    for row in range(rows):
        pivot = every[row, row]
        kept = pivot > DEPENDENT * matrix[row, row]
        scaled = np_.where(kept, every[row] / np_.where(kept, pivot, 1.0), 0.0)
        own = (np.arange(rows) == row)[:, None]
        every = np_.where(own, scaled, every - every[:, row : row + 1] * scaled)
    return every[:, rows]


def _look(
    evaluate: Callable[..., Any],
    q: ExponentialFamily,
    cavity: ExponentialFamily,
    temperature: Number,
    admits: Callable[..., Any],
    before: ExponentialFamily,
    ended: Bool[Real, ""],
) -> Point:
    """Energy and slope; where a search ``ended``, the change of a slope that was known before."""
    inside = q.is_proper() & admits(q)
    np_ = namespace(inside).np
    if np_ is np and not inside:  # of which nobody can ask more
        return Point(q, before, *map(np.asarray, (np.inf, 0.0, np.inf, False)))
    result = evaluate(q, ended)
    slope = result.gradient / temperature + (cavity - q)
    direction = either(ended, lambda: slope - before, lambda: slope)
    squared = q.squared_length(direction)
    # E_q[log cavity] but for its normaliser; KL's other half is the negative entropy.
    terms, entropy = cavity.natural_parameters * q.mean_parameters, q.negative_entropy()
    energy = temperature * (entropy - terms.sum()) - result.value
    sizes = temperature * (np_.abs(terms).sum() + np_.abs(entropy))
    finite = np_.isfinite(energy) & np_.isfinite(squared) & inside
    rounding = ROUNDING * (sizes + np_.abs(result.value) + 1e-3)
    return Point(q, direction, np_.where(finite, energy, np_.inf), rounding, squared, finite)


def _starts(q: ExponentialFamily, rough: Any) -> Callable[[Any], Any]:
    """The member itself, then narrower ones, about its mean and elsewhere, or a ``rough`` one."""
    if rough is not None:
        return lambda number: either(
            number < 1, lambda: q, lambda: rough() * NARROWER ** (number - 1)
        )
    parts: list[Any] = list(q.parts())
    np_ = q.xp.np
    if not all(part.gaussian and part.batch_shape == () for part in parts):
        return lambda number: q * NARROWER ** np_.minimum(number, LEVELS)
    sizes = [part.own_size for part in parts]
    enough = max(PLACES, 2 * sum(sizes))  # fewer would lie in a plane

    def start(number: Int[Real, ""]) -> Any:
        about = number - LEVELS - 1
        level = np_.where(about < 0, number, LEVELS // 2 * (1 + about % 2))
        moved = either(about < 0, lambda: q, lambda: elsewhere(about // 2))
        return moved * NARROWER**level

    def elsewhere(place: Int[Real, ""]) -> Any:
        places = normal_pairs(sum(sizes), enough)
        scattered = np.split(places, np.cumsum(sizes)[:-1], axis=1)
        moved = [
            part.translate(part.at_noise(np_.asarray(own)[place]) - part.mean)
            for part, own in zip(parts, scattered, strict=True)
        ]
        return q.rebuild(moved)

    return start


def joint_end(
    curved: Callable[[Any], Any], q: Any, cavity: Any, temperature: float, most: int
) -> ExponentialFamily:
    """The diagonal Gaussian of least free energy, from ``q`` on, all means moving together.

    ``curved(q)`` gives ``E_q[log likelihood]`` and its derivatives in the means. Means go along
    Newton's step, which collinear columns need; precisions as far towards what the likelihood and
    the cavity give at the point where they are.
    """
    prior = np.diag(cavity.precision)

    def member(at: Any) -> Any:
        return type(q)._of(precision_mean=at[1] * at[0], precision=at[1])

    def look(at: Any) -> Point:
        here = member(at)
        expected, slope, bend = curved(here)
        divergence, pull = here.kl(cavity), slope_in_mean(here, cavity)
        wider = cavity.precision + expected.gradient.precision / temperature - at[1]
        step, squared = step_by_curvature(slope / temperature + pull, bend / temperature + prior)
        squared = temperature * (squared + ((wider / at[1]) ** 2).sum() / 2)
        value = temperature * divergence - expected.value
        rounding = ROUNDING * (1 + temperature * divergence + np.abs(expected.value))
        finite = np.isfinite(value) & np.isfinite(squared) & (at[1] > 0).all()
        known = (np.where(finite, value, np.inf), rounding, squared, finite)
        return Point(at, (step, wider), *map(np.asarray, known))

    move = lambda at, way, rate: (at[0] + rate * way[0], at[1] + rate * way[1])
    with np.errstate(all="ignore"):
        return member(search(look, (q.mean, q.precision), most=most, move=move).best.at)


def convex_end(
    evaluate: Callable[[Any], Any], q: Any, cavity: Any, temperature: float
) -> ExponentialFamily:
    """The full Gaussian of least free energy, from ``q`` on.

    ``evaluate(q)`` gives ``E_q[log likelihood]`` as ``value``, and ``∇_μ`` of it as ``gradient``.
    """
    size, center = q.event_size, q.mean
    scale = q.whitened(np.eye(size))
    precision = scale.T @ cavity.precision @ scale
    linear = scale.T @ (cavity.precision_mean - cavity.precision @ center)
    kept = np.tril_indices(size)

    def member(free: np.ndarray) -> tuple[Any, np.ndarray]:
        root = np.zeros((size, size))
        root[kept] = free[size:]
        inverse = np.linalg.inv(scale @ root)
        mean, own = center + scale @ free[:size], inverse.T @ inverse
        return type(q)._of(precision_mean=own @ mean, precision=own), root

    def energy(free: np.ndarray) -> tuple[float, np.ndarray]:
        if not (free[size:][kept[0] == kept[1]] > 0).all():
            return np.inf, free
        there, root = member(free)
        expected = evaluate(there)
        factor, along = expected.gradient, free[:size]
        bend = scale.T @ factor.precision @ scale
        slope = scale.T @ (factor.precision_mean - factor.precision @ there.mean)
        logs = np.log(np.diagonal(root)).sum()
        pull = (precision * (root @ root.T)).sum() / 2 + along @ precision @ along / 2
        value = temperature * (pull - linear @ along - logs) - expected.value
        by_mean = temperature * (precision @ along - linear) - slope
        by_root = (temperature * precision + bend) @ root
        by_root[np.diag_indices(size)] -= temperature / np.diagonal(root)
        return float(value), np.concatenate([by_mean, by_root[kept]])

    start = np.concatenate([np.zeros(size), np.eye(size)[kept]])
    with np.errstate(all="ignore"):
        return member(lbfgs(energy, start, most=LOOKS, gain=GAIN)[0])[0]
