"""Online distillation in compiled chunks of steps.

At every step the teacher makes new draws, inputs D' are generated, and the student takes one step
of its optimiser towards what the draws predict at D'. Draws are not stored: the student learns
their average, which is compared with the teacher's at a few fixed inputs (the probe).

Source: korattikara2015, algorithm 1; vitter1985 for the reservoir.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from posterity.arrays.tree import taken
from posterity.distillation.heads import Head
from posterity.distillation.inputs import Inputs
from posterity.distillation.pytrees import Array
from posterity.distillation.sampling.schedules import adam
from posterity.distillation.scaling import Scaling
from posterity.distillation.teachers import WATCHED, Teacher
from posterity.networks.predictive import Expectations, expectations_of, merge
from posterity.runtime.programs import jitted


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static parts of a distillation, compiled into its program."""

    apply: Callable[[Any, Any], jax.Array]
    optimiser: optax.GradientTransformation | None  # None for Adam
    batch_size: int
    reservoir: int  # Earlier states of the teacher that are kept
    picked: int  # Of these, states whose draws are averaged with the newest at each step
    heard: int  # Draws averaged at each step
    teacher: Any  # Operations of its outputs, and the digest of their arrays
    asked: int  # Inputs of the probe; those after are strange to the student


class Constants(NamedTuple):
    """Arguments of the compiled programs that do not change during a run."""

    head: Head
    teacher: Teacher
    inputs: Inputs
    probe: Any  # Inputs at which student and teacher are compared, and strange ones after them
    key: jax.Array
    learning_rate: Any  # Adam's rate for the first ``steady`` of ``steps``; then it falls to zero
    steady: Any
    steps: Any


class State(NamedTuple):
    """The state of a distillation between two steps."""

    step: jax.Array
    teacher: Any
    scaling: Scaling
    parameters: Any
    moments: Any  # State of the optimiser
    reservoir: Any  # Uniform sample of the draws of earlier steps, or None
    expectations: Expectations
    """The teacher's at the probe, averaged over each half of the steps (leading axis 2)."""
    counts: jax.Array  # Number of averaged evaluations in each half (2,)
    loss: jax.Array  # The student's loss per input in nats, averaged over the last block


def _optimiser(plan: Plan, constants: Constants) -> optax.GradientTransformation:
    """Return the student's optimiser; by default Adam, whose rate is an argument of programs."""
    return plan.optimiser or adam(constants.learning_rate, constants.steady, constants.steps)


@functools.partial(jitted, static_argnums=0)
def start(
    plan: Plan, constants: Constants, parameters: PyTree, scaling: Scaling, teacher: PyTree
) -> State:
    """Return the state before the first step, for the teacher's first state and a scaling."""
    draws = constants.teacher.draws(teacher)

    def stack(leaf):
        return jnp.broadcast_to(leaf, (plan.reservoir, *leaf.shape))

    expectations = now(constants, teacher)
    if constants.head.likelihood == "gaussian":
        # Centre and spread of the teacher's values, including their uncertainty.
        mean = expectations["mean"].mean(0)
        away = expectations["mean"] - mean
        spread = jnp.sqrt((away**2 + expectations["variance"]).mean(0))
        scale = jnp.where(spread > 0, spread, 1.0)
        scaling = dataclasses.replace(scaling, y_shift=mean, y_scale=scale)

    def single(leaf):
        return jnp.asarray(leaf, jnp.float32)

    def zeros(leaf):
        return jnp.zeros((2, *leaf.shape), leaf.dtype)

    return State(
        step=jnp.int32(0),
        teacher=teacher,
        scaling=jax.tree.map(single, scaling),
        parameters=parameters,
        moments=_optimiser(plan, constants).init(parameters),
        reservoir=jax.tree.map(stack, draws) if plan.reservoir else None,
        expectations=jax.tree.map(zeros, expectations),
        counts=jnp.zeros(2, jnp.int32),
        loss=jnp.float32(0),
    )


@functools.partial(jitted, static_argnums=0)
def chunk(plan: Plan, constants: Constants, state: State, sizes: Array) -> tuple[State, jax.Array]:
    """Run blocks of ``sizes`` (b,) steps; return the state, and :meth:`Teacher.watch` after each.
    After each block the teacher's expectations at the probe are added to the average.
    """

    def step(_: Any, carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        state, loss = _step(plan, constants, carry[0])
        return state, carry[1] + loss

    def block(state: State, size: Array) -> tuple[State, jax.Array]:
        state, total = jax.lax.fori_loop(0, size, step, (state, jnp.float32(0)))
        # Blocks beyond the last step are empty: the loss keeps its value.
        loss = jnp.where(size > 0, total / jnp.maximum(size, 1), state.loss)
        state = _looked(constants, state._replace(loss=loss), size)
        return state, constants.teacher.watch(state.teacher, constants.probe[:WATCHED])

    return jax.lax.scan(block, state, sizes)


def _step(plan: Plan, constants: Constants, state: State) -> tuple[State, jax.Array]:
    key = jax.random.fold_in(constants.key, state.step)
    ahead, where, kept, picked = jax.random.split(key, 4)
    teacher = constants.teacher.advance(state.teacher, key=ahead)
    draws = constants.teacher.draws(teacher)
    reservoir = _offered(plan.reservoir, state.reservoir, draws, state.step, kept)
    earlier = _picked(plan, reservoir, picked)
    x = constants.inputs.sample(plan.batch_size, key=where)
    head = constants.head
    targets = _expectations(constants, draws, x, earlier)
    correction = constants.teacher.correction(plan.heard) if head.split else 1.0

    def loss(own):
        outputs = plan.apply(own, state.scaling.inputs(x))
        return head.loss(outputs, targets, state.scaling, correction).mean()

    value, gradient = jax.value_and_grad(loss)(state.parameters)
    moves, moments = _optimiser(plan, constants).update(gradient, state.moments, state.parameters)
    parameters = optax.apply_updates(state.parameters, moves)
    changed = {"teacher": teacher, "parameters": parameters, "moments": moments}
    return state._replace(step=state.step + 1, reservoir=reservoir, **changed), value


def _expectations(
    constants: Constants, draws: PyTree, x: Any, earlier: PyTree = None
) -> Expectations:
    """Return expectations at ``x`` over the current draws and those of ``earlier`` states."""
    head = constants.head
    teacher = constants.teacher
    outputs = teacher.outputs(draws, x)
    if earlier is not None:
        others = jax.vmap(lambda draws: teacher.outputs(draws, x))(earlier)

        def join(now, then):
            return jnp.concatenate([now, then.reshape(-1, *then.shape[2:])])

        outputs = jax.tree.map(join, outputs, others)
    return expectations_of(head.likelihood, outputs, head.noise_variance)


def _offered(size: int, reservoir: PyTree, draws: PyTree, step: jax.Array, key: jax.Array) -> Any:
    """Add a draw to the reservoir, which stays a uniform sample of all draws so far."""
    if not size:
        return None
    place = jax.random.randint(key, (), 0, step + 1)
    place = jnp.where(step < size, step, place)

    def put(stack, new):
        return stack.at[place].set(new, mode="drop")  # beyond the last place

    return jax.tree.map(put, reservoir, draws)


def _picked(plan: Plan, reservoir: PyTree, key: jax.Array) -> Any:
    """Return some states of the reservoir, others at each step: of the few that a step can hear,
    were they always the same, the student would learn the average in place of that of all.
    """
    if not plan.picked:
        return None
    places = jax.random.choice(key, plan.reservoir, (plan.picked,), replace=False)
    return taken(reservoir, places)


@jitted
def now(constants: Constants, teacher: PyTree) -> Expectations:
    """Return the expectations at the probe over a teacher's current draws."""
    return _expectations(constants, constants.teacher.draws(teacher), constants.probe)


def _looked(constants: Constants, state: State, size: Array) -> State:
    """Average the teacher's expectations at the probe into those of the current half."""
    found = now(constants, state.teacher)
    half = (2 * state.step > constants.steps).astype(jnp.int32)
    count = state.counts[half]
    counted = jnp.asarray(size > 0, jnp.int32)
    old = taken(state.expectations, half)
    new = merge(old, found, (count, counted))
    kept = jax.tree.map(lambda leaf, own: leaf.at[half].set(own), state.expectations, new)
    return state._replace(expectations=kept, counts=state.counts.at[half].add(counted))


@functools.partial(jitted, static_argnums=0)
def gap(
    plan: Plan, constants: Constants, parameters: PyTree, scaling: Scaling, own: Expectations
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Return the mean over the probe of ``KL(teacher's predictive ‖ student's)`` in nats, that over
    strange inputs, and the mean of the share divergence over the probe (None without a split), for
    the teacher's expectations ``own``.
    """
    head = constants.head
    outputs = plan.apply(parameters, scaling.inputs(constants.probe))
    gaps = head.divergence(outputs, own, scaling)
    shares = None
    if head.split:
        shares = head.share_divergence(outputs, own, scaling)[: plan.asked].mean()
    return gaps[: plan.asked].mean(), gaps[plan.asked :].mean(), shares


def averages(state: State) -> tuple[Expectations, list[Expectations] | None]:
    """Return the teacher's expectations at the probe in float64, over the whole run and over each
    half. The latter are None while one of the halves is empty.
    """
    counts = np.asarray(state.counts)
    pairs = {name: np.asarray(leaf, np.float64) for name, leaf in state.expectations.items()}
    halves = [taken(pairs, half) for half in (0, 1)]
    if not counts.all():
        return halves[int(counts[0] == 0)], None
    return merge(halves[0], halves[1], tuple(counts.astype(float))), halves
