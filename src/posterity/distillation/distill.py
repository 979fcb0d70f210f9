"""The verb ``distill``: train one small network to predict as a posterior does."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import PyTree

from posterity.arguments import COUNT, NATURAL, POSITIVE, Constraint, check_shape
from posterity.arrays import keys
from posterity.arrays.tree import taken
from posterity.artifact import loaded
from posterity.artifact.checkpoint import Checkpoint, opened
from posterity.distillation import online
from posterity.distillation import student as students
from posterity.distillation.inputs import Inputs, as_inputs, checked, usual
from posterity.distillation.online import Constants, Plan, State
from posterity.distillation.sampling.noise import KEY
from posterity.distillation.scaling import Domain, Scaling
from posterity.distillation.student import Student
from posterity.distillation.teachers import WATCHED, Teacher, as_teacher
from posterity.errors import ConvergenceWarning, ParameterError, UsageError
from posterity.families import Distribution
from posterity.families.layers import Layers
from posterity.models import Model
from posterity.models.data import real_numbers
from posterity.networks.predictive import Prediction, divergence
from posterity.runtime.fingerprint import digest
from posterity.runtime.interrupts import deferred
from posterity.runtime.programs import jitted
from posterity.runtime.tracing import as_found, traced
from posterity.status import Progress, ProgressCallback, Status

STEPS = 10_000
BATCH_SIZE = 64
LEARNING_RATE = 3e-3
RESERVOIR = 64  # Earlier draws that are kept
HEARD = 8  # Draws that are averaged at each step
TOLERANCE = 0.01  # Default bound, in nats, on the divergence of the student from its teacher
# Inputs of the probe, strange ones beside them, and evaluations of the teacher there per chunk
PROBE = 256
LOOKS = 10
CHUNKS, LEAST = 200, 50
"""Number of chunks of a run (it can be interrupted between two), and least steps of a chunk."""
OPTIMISER = Constraint(
    "one of optax's, with its rate, as optax.sgd(0.01); None for Adam",
    lambda own: own is None or (hasattr(own, "init") and hasattr(own, "update")),
)


class Row(NamedTuple):
    """Progress after a chunk of steps: the gap, and the mean loss per input, both in nats."""

    step: int
    gap: float
    loss: float


@dataclasses.dataclass(frozen=True)
class Distillation:
    """The result of :func:`posterity.distill`.

    ``status.left`` is the gap: ``KL(teacher's predictive ‖ student's)`` in nats, averaged over the
    inputs of ``probe``. ``teacher`` is the teacher's predictive there, averaged over the run, and
    ``halves`` are its averages over each half of the run (None if one is empty). ``drift`` is the
    divergence between the halves in nats; a quarter of it estimates the error of ``teacher``.
    ``beyond`` is the gap at strange inputs that no law shows a student: each column is that of
    another input. A student far from its teacher there may be sure where its teacher is not.
    ``shares`` is the mean of :meth:`Head.share_divergence`, for a student with a split.
    ``temperature``, ``rhat`` and ``effective`` are those of :class:`Health`. ``trace`` has one row
    per chunk of steps.
    """

    student: Student
    status: Status
    trace: tuple[Row, ...]
    probe: np.ndarray
    teacher: Prediction
    steps: int
    drift: float
    temperature: float | None
    posterior: Distribution | None
    rhat: float | None = None
    effective: float | None = None
    shares: float | None = None
    halves: tuple[Prediction, Prediction] | None = None
    beyond: float | None = None

    def __repr__(self) -> str:
        return f"Distillation({self.student!r}, {self.status})"


@as_found()
def distill(
    teacher: Teacher | Distribution | str | os.PathLike[str] | Any,
    student: Any = None,
    *,
    key: jax.Array | None = None,
    inputs: Inputs | Callable[[jax.Array, int], Any] | ArrayLike | None = None,
    model: Model | None = None,
    split: bool = False,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    learning_rate: float | int = LEARNING_RATE,
    optimiser: optax.GradientTransformation | None = None,
    reservoir: int = RESERVOIR,
    heard: int = HEARD,
    probe: ArrayLike | None = None,
    tolerance: float | int = TOLERANCE,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Distillation:
    """Train one small network to predict as a posterior does, while the posterior is sampled.

    Args:
        teacher: :class:`~posterity.distillation.Langevin` chains on data, stored
            :class:`~posterity.distillation.Draws`, any posterior, or the path of a file with one;
            a posterior needs the ``model`` of its parameters.
        student: :class:`~posterity.networks.Layers`, an equinox module, a pair ``(apply,
            parameters)`` as in flax, or an :class:`~posterity.artifact.Architecture`, with
            ``Head.size`` outputs. By default a perceptron with the hidden units of up to four of
            the teacher's networks side by side and at most 200,000 weights; with ``split`` another
            hidden layer judges how far they differ. Layers with room for one or more of them start
            from their average, if random weights are further from their predictive.
        key: random key; ``jax.random.key(0)`` by default.
        inputs: law of the inputs that the student is trained on, see
            :mod:`posterity.distillation.inputs`. By default half of them are the teacher's inputs,
            a quarter are perturbed, a quarter mixed in pairs and perturbed; images, and columns
            that are pixels of square images, use ``Images``.
            Columns of a data frame are put in the order of the teacher's names, if it has some; the
            student keeps the names, and reads data frames by them.
        model: model whose parameters the posterior is a law of; not needed for networks.
        split: whether the student separates the uncertainty due to noise from that due to the
            parameters (mutual information of classes; variance of the function for values).
        steps: number of steps of the student; the teacher makes new draws at each.
        batch_size: number of inputs per step.
        learning_rate: rate of Adam for the first 30 % of the steps; then it falls to zero.
        optimiser: optax optimiser to use instead of Adam.
        reservoir: least number of earlier draws that are kept, a uniform sample of all so far.
        heard: least number of draws that are averaged at each step: the newest, and if these are
            fewer some of the reservoir, others at each step.
        probe: inputs at which student and teacher are compared; by default drawn from ``inputs``.
        tolerance: largest accepted gap at the probe, in nats.
        checkpoint: path of a file from which the same call resumes, with the same result.
        progress: called after each chunk of steps; ``objective`` is the loss, ``left`` the gap.

    Warns:
        ConvergenceWarning: if ``status`` is not converged.

    Raises:
        UsageError: if an argument is invalid.
        StructureError: if the shapes of student, inputs and teacher do not match.
        ParameterError: if data are not finite, or if a chain or the student diverges.
        ArtifactError: if the checkpoint is of another run, or a file cannot be read or written.

    Source: korattikara2015, algorithm 1; vadera2020 for ``split``.

    >>> from posterity.distillation import Langevin
    >>> from posterity.models import NeuralNetwork
    >>> from posterity.networks import Layers
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 2))
    >>> net = NeuralNetwork.of_layers(Layers.dense(2, 5, 2))
    >>> teacher = Langevin(net, net.prior(variance=1.0), (x, (x[:, 0] > 0).astype(int)))
    >>> distill(teacher, steps=4000).student
    Student(2-20 relu-2, categorical)
    """
    settings = {**locals()}
    del settings["checkpoint"], settings["progress"]
    result = _driven(set_up(**settings), checkpoint, progress)
    if not result.status.converged:
        fix = "Raise `steps`, widen the student, or see to the teacher, as `status.reasons` say."
        warnings.warn(f"The student has {result.status}. {fix}", ConvergenceWarning, stacklevel=3)
    return result


@dataclasses.dataclass(frozen=True)
class Run:
    """The checked settings of a distillation."""

    plan: Plan
    constants: Constants
    teacher: Teacher
    network: Any
    parameters: Any
    scaling: Scaling
    columns: tuple[str, ...]
    domain: Domain
    steps: int
    tolerance: float
    key: jax.Array

    def start(self, teacher: PyTree) -> State:
        """Return the state before the first step, for a teacher in this state.

        The student starts from the average of the teacher's networks if that is closer to their
        predictive, at the probe, than random weights are. Networks of a wide prior have large
        weights and contradict each other: from their average no descent leads away in time. One
        network alone is no start, for no other judges it.
        """
        state = online.start(self.plan, self.constants, self.parameters, self.scaling, teacher)
        count = students.copies(self.network, self.teacher.layers, self.constants.head)
        plain = count and self.scaling.x_shift is None
        networks = _networks(self.constants.teacher, teacher) if plain else None
        if networks is None or len(networks[-1]["kernel"]) < max(count, 2):
            return state
        own = state.parameters, networks, self.constants.head, state.scaling
        average = students.taught(count, *own)
        now = online.now(self.constants, teacher)

        def gap(parameters):
            return online.gap(self.plan, self.constants, parameters, state.scaling, now)[0]

        closer = gap(average) < gap(state.parameters)
        taken = functools.partial(jnp.where, closer)
        return state._replace(parameters=jax.tree.map(taken, average, state.parameters))

    def sizes(self, step: int) -> np.ndarray:
        """Return steps per block of the next chunk (b,); a long probe has fewer, longer blocks."""
        alike = -(-len(self.constants.probe) // self.plan.batch_size)  # steps as long as a look
        whole = max(round(self.steps / CHUNKS), LEAST, min(alike, self.steps // LOOKS))
        looks = min(LOOKS, max(whole // alike, 1))
        ends = np.minimum(np.arange(looks + 1) * round(whole / looks), self.steps - step)
        return np.diff(ends).astype(np.int32)


_networks = jitted(lambda teacher, state: teacher.networks(state))


def set_up(
    teacher: Any,
    student: Any = None,
    *,
    key: jax.Array | None = None,
    inputs: Any = None,
    model: Model | None = None,
    split: bool = False,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    learning_rate: float | int = LEARNING_RATE,
    optimiser: Any = None,
    reservoir: int = RESERVOIR,
    heard: int = HEARD,
    probe: Any = None,
    tolerance: float | int = TOLERANCE,
    # Share of the steps at Adam's full rate; then it falls to zero by half a cosine
    steady: float = 0.3,
    # Hidden units of a student whose teacher is no network, or has none
    hidden: tuple[int, ...] = (64, 64),
    rows: int = 2048,  # Most inputs from which a student's scaling is computed
    # Strange inputs at which the gap beyond is measured.
    strangers: int = 64,
) -> Run:
    """Check the arguments of :func:`distill` and return its run; same arguments and errors."""
    key = jax.random.key(0) if key is None else key
    KEY.check(key=key)
    COUNT.check(steps=steps, batch_size=batch_size, heard=heard)
    NATURAL.check(reservoir=reservoir)
    POSITIVE.check(learning_rate=learning_rate, tolerance=tolerance)
    OPTIMISER.check(optimiser=optimiser)
    teacher = as_teacher(loaded(teacher), model)
    image = getattr(teacher.layers, "image", ())
    own = teacher.inputs()
    columns = teacher.columns
    inputs = usual(own, image) if inputs is None else as_inputs(inputs, columns)
    columns = columns or inputs.columns
    if probe is not None:
        probe = real_numbers(probe, "the probe", columns or None)
    first, second, third, last = jax.random.split(key, 4)
    with jax.enable_x64(False):
        some = checked(inputs, rows, first)
        shape = some.shape[1:]
        probe = some[:: rows // PROBE] if probe is None else probe
        check_shape("a probe", probe, None, *shape)
        columns = columns if shape == (len(columns),) else ()  # else names of other things
        strange = keys.of_numpy(last).permuted(some.reshape(rows, -1), axis=0)
        strange = strange[:strangers].reshape(-1, *shape)
        head = dataclasses.replace(teacher.head(some[:2]), split=split)
        if student is None and (teacher.layers is None or len(teacher.layers) == 1):
            student = Layers.dense(some[0].size, *hidden, head.size)
        elif student is None:
            networks = jax.eval_shape(teacher.networks, teacher.blank())
            at_hand = 1 if networks is None else len(networks[-1]["kernel"])
            student = students.default(teacher.layers, head, at_hand)
        network, parameters = students.start(student, head, some, key=second)

        def drawn(teacher, state, x):
            return teacher.outputs(teacher.draws(state), x)

        operations, held = traced(drawn, teacher.traced(), teacher.blank(), some[:2])
        each = jax.tree.leaves(operations.outputs)[0].shape[0]
    kept = -(-reservoir // each)
    picked = min(-(-heard // each) - 1, kept)
    kept = kept if picked else 0
    heard = each * (1 + picked)
    if split and heard < 2 and teacher.population > 1:
        raise UsageError(
            found="one draw of the teacher at a time for a split",
            expected="two at least: leave `reservoir` and `heard` out, or run more chains",
        )
    known = operations, digest(held)
    asked = len(probe)
    probe = np.concatenate([probe, strange]).astype(np.float32)
    plan = Plan(students.applied(network), optimiser, batch_size, kept, picked, heard, known, asked)
    numbers = np.float32(learning_rate), np.int32(round(steady * steps)), np.int32(steps)
    constants = Constants(head, teacher.traced(), inputs, probe, last, *numbers)
    clean = next((x for x in (inputs.data(), teacher.inputs()) if np.shape(x)[1:] == shape), some)
    scaling = Scaling.of_inputs(np.asarray(clean)[:: -(-len(clean) // rows)])
    made = plan, constants, teacher, network, parameters, scaling, columns
    return Run(*made, Domain.of_inputs(scaling.inputs(some)), steps, tolerance, third)


def _driven(
    run: Run, path: str | os.PathLike[str] | None, progress: ProgressCallback | None
) -> Distillation:
    """Run to the end, saving the state after chunks; interrupts take effect between chunks."""
    plan = run.plan
    constants = run.constants
    parts = {
        "teacher": constants.teacher,
        "inputs": constants.inputs,
        "probe": constants.probe,
        "student": (run.network, run.parameters),
        "units": run.scaling,
        "optimiser": (plan.optimiser, constants.learning_rate),
        "settings": (constants.head, plan.batch_size, plan.reservoir, plan.heard, run.steps),
        "key": (run.key, constants.key),
    }
    with (
        opened(path, "distill", parts) as kept,
        jax.enable_x64(False),
        deferred() as interrupts,
    ):
        state, trace, series = _resumed(run, kept)

        def save() -> None:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
            some = {"series": series} if series.size else {}  # files hold no empty arrays
            rows = [[float(number) for number in row] for row in trace]
            kept.save({"leaves": leaves, "trace": rows, **some}, {"step": int(state.step)})

        with interrupts.rescued_by(save):
            while int(state.step) < run.steps:
                interrupts.check()
                sizes = run.sizes(int(state.step))
                moved, seen = online.chunk(plan, constants, state, sizes)
                seen = np.concatenate([series, np.asarray(seen)[sizes > 0]])
                # One assignment: an interrupt saves the state before; a diverged state is not kept.
                trace = (*trace, _row(run, moved, seen))  # an error leaves the state as it was
                state = moved
                series = seen
                if kept.due:
                    save()
                if progress is not None:
                    partial = functools.partial(_result, run, state, trace, series)
                    step, gap, loss = trace[-1]
                    progress(Progress(step, run.steps, loss, gap, partial))
        interrupts.check()
        return _result(run, state, trace, series)


def _resumed(run: Run, kept: Checkpoint) -> tuple[State, tuple[Row, ...], np.ndarray]:
    """Return the state, trace and series saved last, or those before the first step."""
    teacher = run.teacher
    saved = kept.load()
    probe = run.constants.probe

    def watch(state):
        return teacher.watch(state, probe[:WATCHED])

    none = np.zeros((0, *jax.eval_shape(watch, teacher.blank()).shape), np.float32)
    if saved is None:
        return run.start(teacher.begin(key=run.key)), (), none
    shapes = jax.eval_shape(run.start, teacher.blank())
    kinds, tree = jax.tree.flatten(shapes)
    value, _ = saved
    try:
        trace = tuple(Row(int(step), gap, loss) for step, gap, loss in value["trace"])
        pairs = zip(value["leaves"], kinds, strict=True)
        state = jax.tree.unflatten(tree, [jnp.asarray(leaf, kind.dtype) for leaf, kind in pairs])
        return state, trace, value.get("series", none)
    except (KeyError, TypeError, ValueError) as error:
        raise kept.foreign() from error


def _row(run: Run, state: State, series: np.ndarray) -> Row:
    row = Row(int(state.step), _gaps(run, state)[0], float(state.loss))
    if not np.isfinite(row.loss):
        run.teacher.health(state.teacher, series)  # raises if it was the teacher
        raise ParameterError(
            found=f"a loss of the student of {row.loss} after {row.step} steps",
            expected="a finite one: lower the learning rate, or see to inputs and teacher",
        )
    return row


def _gaps(run: Run, state: State) -> tuple[float, float, float | None]:
    """Return :func:`online.gap` between the student and its teacher's average at the probe."""
    single = jax.tree.map(np.float32, online.averages(state)[0])
    gaps = online.gap(run.plan, run.constants, state.parameters, state.scaling, single)
    return jax.tree.map(float, gaps)


def _of_variances(
    run: Run,
    student: Student,
    teacher: Prediction,
    *,
    often: float = 0.9,  # Quantile at the probe of a variance's factor
    told: float = 2.0,  # Least factor that is told
    negligible: float = 1e-2,  # Of the mean variance at the probe: what is smaller is not compared
) -> tuple[str, ...]:
    """Return a reason if the student's variance of the function is often far from its teacher's.

    If the noise is much larger, that variance hardly matters to predictions, and so not to the gap.
    """
    asked = run.constants.probe[: run.plan.asked]

    def flat(variance):
        return np.asarray(variance).reshape(len(asked), -1)

    own = flat(student.predict(asked).variance)
    right = flat(teacher.variance)
    if not right.max() > 0:
        return ()
    least = negligible * right.mean()  # what is smaller, as at an input of zeros, hardly matters
    apart = np.abs(np.log(np.maximum(own, least) / np.maximum(right, least)))
    factor = float(np.exp(np.quantile(apart, often)))
    if factor <= told:
        return ()
    return (
        f"at {1 - often:.0%} of the probe `variance` is off by a factor of {factor:.2g} or more: "
        "the student had too few steps, or is too small",
    )


def _result(run: Run, state: State, trace: tuple[Row, ...], series: np.ndarray) -> Distillation:
    gap, beyond, shares = _gaps(run, state)
    asked = run.plan.asked
    whole, halves = taken(online.averages(state), slice(asked))
    health = run.teacher.health(state.teacher, series)
    head = dataclasses.replace(run.constants.head, degrees=health.degrees)

    def predicted(own):
        return Prediction.of(own, head.likelihood, head.degrees)

    drift = np.inf if halves is None else float(divergence(*halves).mean())
    reasons = list(health.reasons)
    if not gap <= run.tolerance:
        known = "the student is too small for its teacher, or had too few steps"
        unknown = "the teacher's own average is not known better"
        reasons.append(known if drift / 4 <= run.tolerance else unknown)
    if shares is not None and not shares <= run.tolerance:
        reasons.append(
            f"what the student says more data would remove is {shares:.2g} nats from what its "
            "teacher says"
        )
    if drift == np.inf:
        reasons.append("the teacher was not asked in both halves of the run: it had too few steps")
    elif not drift <= 4 * run.tolerance:
        reasons.append(
            f"the halves of the run say different things of the teacher ({drift:.2g} nats): its "
            "chains have not explored the posterior"
        )
    own = state.scaling.y_shift, state.scaling.y_scale
    y_shift, y_scale = jax.tree.map(functools.partial(np.asarray, dtype=np.float64), own)
    scaling = dataclasses.replace(run.scaling, y_shift=y_shift, y_scale=y_scale)
    made = run.network, state.parameters, head, scaling, run.domain, run.columns
    student = students.finish(*made)
    if head.has_variance:
        reasons += _of_variances(run, student, predicted(whole))
    status = Status.of(gap, run.tolerance, tuple(reasons))
    if status.converged and health.searched:
        status = status.limited("where it was searched", health.searched)
    if status.converged and not beyond <= run.tolerance:
        status = status.limited(
            "on inputs like those it learned on",
            f"where each column is another input's it is {beyond:.2g} nats from its teacher: it "
            "may be sure of strange inputs of which its teacher is not; give `inputs` like these",
        )
    return Distillation(
        student=student,
        status=status,
        trace=trace,
        probe=run.constants.probe[:asked],
        beyond=beyond,
        teacher=predicted(whole),
        halves=None if halves is None else (predicted(halves[0]), predicted(halves[1])),
        steps=int(state.step),
        drift=drift,
        shares=shares,
        **{name: getattr(health, name) for name in ("temperature", "rhat", "effective")},
        posterior=getattr(run.teacher, "posterior", None),
    )
