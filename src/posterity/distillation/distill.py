"""The verb: from a posterior to one small network that predicts as it does."""

import dataclasses
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from posterity.arguments import COUNT, NATURAL, POSITIVE
from posterity.distillation import checkpoint as checkpoints
from posterity.distillation import online, said
from posterity.distillation.heads import Head
from posterity.distillation.inputs import Inputs, Perturbed, as_inputs
from posterity.distillation.online import Adam, Constants, Plan, State
from posterity.distillation.sampling.noise import check_key
from posterity.distillation.scaling import Scaling
from posterity.distillation.status import TOLERANCE, Status, judged
from posterity.distillation.student import Student, applied, begun, finished
from posterity.distillation.teachers import Teacher, as_teacher
from posterity.errors import ConvergenceWarning, ParameterError, StructureError, UsageError
from posterity.families.layers import Layers
from posterity.interrupts import deferred
from posterity.networks.predictive import Prediction
from posterity.notebook import html

STEPS = 20_000
BATCH = 64
RATE = 3e-3
STEADY = 0.3
HIDDEN = (64, 64)
"""Units of a student whose teacher is no network."""
PROBE = 256
"""Inputs at which it is seen how close a student is."""
LOOKS = 10
"""Times in a chunk that the teacher is asked about the probe."""
CHUNKS = 200
"""Chunks of a run, after each of which it can be interrupted."""
LEAST = 50
"""Steps of a chunk, however short the run: looking takes time, too."""
UNITS = 2048
"""Inputs from which the units of a student are found."""


class Progress(NamedTuple):
    """How far a distillation has come."""

    step: int
    gap: float
    """``KL(teacher's predictive ‖ student's)`` so far, in nats."""
    loss: float
    """In nats an input."""


@dataclasses.dataclass(frozen=True)
class Distillation:
    """What :func:`posterity.distill` gives back.

    ``trace`` has a row a chunk of steps; ``probe`` are the inputs at which student and teacher were
    compared, and ``teacher`` what the teacher says there, averaged over all its draws.
    """

    student: Student
    status: Status
    trace: tuple[Progress, ...]
    probe: np.ndarray
    teacher: Prediction
    steps: int

    def __repr__(self) -> str:
        return f"Distillation({self.student!r}, {self.status})"

    def _repr_html_(self) -> str:
        return html(self, "line")


def distill(
    teacher: Any,
    student: Any = None,
    *,
    key: jax.Array,
    inputs: Any = None,
    model: Any = None,
    split: bool = False,
    steps: int = STEPS,
    batch: int = BATCH,
    learning_rate: float | int = RATE,
    optimiser: Any = None,
    reservoir: int = 0,
    probe: Any = None,
    tolerance: float | int = TOLERANCE,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[Progress], Any] | None = None,
    watch: Callable[[Distillation], Any] | None = None,
) -> Distillation:
    """Train one small network to predict as a posterior does, while the posterior is sampled.

    Args:
        teacher: :class:`~posterity.distillation.Langevin` chains on data, stored
            :class:`~posterity.distillation.Draws`, or any posterior: a network's, a ledger, a
            fusion, a mixture, with the ``model`` of its parameters.
        student: :class:`~posterity.networks.Layers`, an equinox module, ``(apply, parameters)`` as
            flax has them, or an :class:`~posterity.artifact.Architecture`; by default a perceptron
            with the hidden units of the teacher's network. What its outputs are, and how many,
            says :class:`~posterity.distillation.Head`.
        key: of the chains, the inputs and the student's start.
        inputs: where the student listens to its teacher: see :mod:`posterity.distillation.inputs`;
            by default the teacher's own, perturbed.
        model: what a posterior is a law of, and what predicts; not needed for networks.
        split: whether the student keeps apart what is uncertain because of the noise and what is
            because of the parameters (mutual information; variance of the function).
        steps: of the student; the teacher goes on to its next draws at each.
        batch: inputs of a step.
        learning_rate: of Adam, for the first steps; then it falls to zero.
        optimiser: one of optax's instead.
        reservoir: draws of earlier steps that the student hears beside the newest, each step.
        probe: inputs at which student and teacher are compared; by default some of ``inputs``.
        tolerance: nats by which the two may diverge there.
        checkpoint: a file that the run is kept in: if it is killed, the same call goes on from
            there, to the same result.
        progress: called after each chunk of steps; what it raises ends the run.
        watch: called then with all that there is so far, student and teacher at the probe, for
            measures of the user's own; it costs a prediction of the probe each time.

    Warns:
        ConvergenceWarning: if the student is not as close to its teacher as the tolerance, or the
            teacher's chains are too warm or have not settled; ``status`` says so too.

    Raises:
        UsageError: for arguments that make no sense.
        StructureError: if student, inputs and teacher do not fit together.
        ParameterError: for data that are not finite, and if chain or student diverged.
        ArtifactError: if the checkpoint is of another run, or cannot be written.

    Source: korattikara2015, algorithm 1; vadera2020 for ``split``.

    >>> from posterity.distillation import Langevin
    >>> from posterity.models import NeuralNetwork
    >>> from posterity.networks import Layers
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 2))
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 5, 2))
    >>> teacher = Langevin(net, net.prior(variance=1.0), (x, (x[:, 0] > 0).astype(int)))
    >>> found = distill(teacher, key=jax.random.key(0), steps=4000)
    >>> found.student
    Student(2-5 relu-2, categorical)
    """
    run = set_up(
        teacher, student, key=key, inputs=inputs, model=model, split=split, steps=steps,
        batch=batch, learning_rate=learning_rate, optimiser=optimiser, reservoir=reservoir,
        probe=probe, tolerance=tolerance,
    )  # fmt: skip
    with checkpoints.keep(run, checkpoint) as kept:
        found = _driven(run, kept, progress, watch)
    if not found.status.converged:
        warnings.warn(
            f"The student has {found.status}. Raise `steps`, widen the student, or see to the "
            "teacher, as `status.reasons` say.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return found


@dataclasses.dataclass(frozen=True)
class Run:
    """What a distillation was set up from."""

    plan: Plan
    constants: Constants
    network: Any
    parameters: Any
    scaling: Scaling
    tolerance: float
    key: jax.Array

    def begun(self, teacher: Any) -> State:
        """The state before the first step."""
        shifts = self.scaling.x_shift, self.scaling.x_scale
        return online.begun(self.plan, self.constants, self.parameters, shifts, teacher)

    def sizes(self, step: int) -> np.ndarray:
        """Steps of the blocks of the next chunk (b,).

        A long probe is looked at no oftener than the student has seen as many inputs.
        """
        whole, looks = max(round(self.plan.steps / CHUNKS), LEAST), LOOKS
        if len(self.constants.probe) > PROBE:
            alike = -(-len(self.constants.probe) // self.plan.batch)
            whole = max(whole, min(alike, self.plan.steps // LOOKS))
            looks = min(LOOKS, max(whole // alike, 1))
        each = round(whole / looks)
        ends = np.minimum(np.arange(looks + 1) * each, self.plan.steps - step)
        return np.diff(ends).astype(np.int32)


def set_up(
    teacher: Any,
    student: Any,
    *,
    key: jax.Array,
    inputs: Any,
    model: Any,
    split: bool,
    steps: int,
    batch: int,
    learning_rate: float | int,
    optimiser: Any,
    reservoir: int,
    probe: Any,
    tolerance: float | int,
) -> Run:
    """All that a run is made of, checked; arguments and errors as of :func:`distill`."""
    check_key(key)
    COUNT.check(steps=steps, batch=batch)
    NATURAL.check(reservoir=reservoir)
    POSITIVE.check(learning_rate=learning_rate, tolerance=tolerance)
    if optimiser is not None and not (hasattr(optimiser, "init") and hasattr(optimiser, "update")):
        raise UsageError(
            found=f"optimiser={optimiser!r}",
            expected="one of optax's, with its rate",
            fix="Pass optax.sgd(0.01), or leave it out for Adam.",
        )
    teacher = as_teacher(teacher, model)
    inputs = _inputs(inputs, teacher)
    first, second, third, last = jax.random.split(key, 4)
    with jax.enable_x64(False):
        some = np.asarray(jax.jit(lambda own, key: own.sample(UNITS, key=key))(inputs, first))
        if not np.isfinite(some).all() or some.ndim < 2:
            raise ParameterError(
                found=f"generated inputs of shape {some.shape}, not all finite",
                expected="finite numbers of shape (n, ...)",
                fix="Mend the function or the noise that makes them.",
            )
        probe = some[:PROBE] if probe is None else _probe(probe, some)
        predictive = teacher.predictive(some[:2])
        head = Head(predictive.likelihood, predictive.targets, split, predictive.noise_variance)
        scaling = Scaling.of_inputs(some)
        layers = teacher.layers
        if student is None:
            student = Layers.dense(some[0].size, *HIDDEN, head.size)
            student = student if layers is None else _like(layers, head)
        network, parameters = begun(student, head, some, key=second)
    adam = Adam(float(learning_rate), int(steps), STEADY)
    plan = Plan(
        applied(network), head, predictive, adam if optimiser is None else optimiser, int(batch),
        int(reservoir), int(steps),
    )  # fmt: skip
    constants = Constants(teacher, inputs, probe, last)
    return Run(plan, constants, network, parameters, scaling, float(tolerance), third)


def _like(layers: Layers, head: Head) -> Layers:
    """The teacher's layers, with the outputs of a student."""
    *hidden, last = layers.layers
    last = dataclasses.replace(last, outputs=head.size, activation="identity")
    return Layers((*hidden, last), layers.image)


def _inputs(given: Any, teacher: Teacher) -> Inputs:
    if given is not None:
        return as_inputs(given)
    known = teacher.inputs()
    if known is None:
        raise UsageError(
            found="a teacher that does not know any inputs",
            expected="where the student is to listen to it",
            fix="Pass inputs=Perturbed(x), Pool(x), Box(low, high), or a function of a key and a "
            "number.",
        )
    return Perturbed(known)


def _probe(given: Any, some: np.ndarray) -> np.ndarray:
    found = np.asarray(given)
    if found.dtype.kind not in "biuf" or found.shape[1:] != some.shape[1:] or not len(found):
        raise StructureError(
            found=f"a probe of shape {found.shape}",
            expected=f"inputs of shape (n, {', '.join(map(str, some.shape[1:]))})",
            fix="Pass inputs like those that the student learns on.",
        )
    if not np.isfinite(found).all():
        raise ParameterError(
            found="NaN or infinity in the probe", expected="finite numbers", fix="Mend it."
        )
    return found.astype(np.float32)


# --- the run -------------------------------------------------------------------------------------


def _driven(
    run: Run,
    kept: Any,
    progress: Callable[[Progress], Any] | None,
    watch: Callable[[Distillation], Any] | None,
) -> Distillation:
    """The run taken to its end, saved on the way; interrupted between two chunks only."""
    with jax.enable_x64(False), deferred() as interrupts:
        state, trace = kept.loaded()
        if state is None:
            teacher = run.constants.teacher.begin(key=run.key)
            state = run.begun(teacher)
        save = lambda: kept.save(state, trace)
        with interrupts.rescued_by(save):
            while int(state.step) < run.plan.steps:
                interrupts.check()
                sizes = run.sizes(int(state.step))
                moved = online.chunk(run.plan, run.constants, state, sizes)
                # Together: who is in a hurry saves what was before. What diverged is not kept:
                # who calls again is told so again.
                state, trace = moved, (*trace, _progress(run, moved))
                kept.save_now_and_then(state, trace)
                if progress is not None:
                    progress(trace[-1])
                if watch is not None:
                    watch(_found(run, state, trace))
        interrupts.check()
        return _found(run, state, trace)


def _progress(run: Run, state: State) -> Progress:
    loss = float(state.loss)
    if not np.isfinite(loss):
        health = run.constants.teacher.health(state.teacher)  # raises if it was the teacher
        del health
        raise ParameterError(
            found=f"a loss of the student of {loss} after {int(state.step)} steps",
            expected="a finite one",
            fix="Lower the learning rate, or see to inputs and teacher.",
        )
    return Progress(int(state.step), float(_gap(run, state)[0]), loss)


def _gap(run: Run, state: State) -> tuple[float, float]:
    """Of the student from its teacher, and between the halves of the teacher's run: nats."""
    whole, halves = online.overall(state)
    single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), whole)
    gap = online.gap(run.plan, state.parameters, state.scaling, run.constants.probe, single)
    drift = np.inf if halves is None else said.divergence(*halves).mean()
    return float(gap), float(drift)


def _student(run: Run, state: State) -> Student:
    parts = [part if part is None else np.asarray(part, np.float64) for part in state.scaling]
    exact = dataclasses.replace(run.scaling, y_shift=parts[2], y_scale=parts[3])
    return finished(run.network, state.parameters, run.plan.head, exact)


def _found(run: Run, state: State, trace: tuple[Progress, ...]) -> Distillation:
    gap, drift = _gap(run, state)
    health = run.constants.teacher.health(state.teacher)
    status = judged(gap, drift, run.tolerance, health.temperature, health.reasons)
    teacher = said.prediction(run.plan.predictive, online.overall(state)[0])
    return Distillation(
        _student(run, state), status, trace, run.constants.probe, teacher, int(state.step)
    )
