"""A distillation described in a TOML file: data, model, prior, sampler, inputs and student."""

import functools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import posterity.cli.config.schema as schema
from posterity import models
from posterity.cli.config.columns import in_one_order, read_tables
from posterity.cli.config.schema import Count, Natural, Numbers, Positive, Seed, Weight, msgspec
from posterity.cli.config.site_files import clean
from posterity.cli.config.toml import made, one_of, read
from posterity.cli.input_files import in_order, read_inputs
from posterity.cli.jobs import Job, apart, check_width, perceptron
from posterity.distillation import (
    SGHMC,
    SGLD,
    Box,
    Cyclical,
    Halving,
    Langevin,
    Mixup,
    Perturbed,
    Polynomial,
    Pool,
    PreconditionedSGLD,
)
from posterity.errors import PosterityError, StructureError, UsageError
from posterity.families import Gaussian
from posterity.networks import GaussianPrior, Layers

PAGE = "docs/distill.md"
KERNELS = {"sgld": SGLD, "preconditioned-sgld": PreconditionedSGLD, "sghmc": SGHMC}
SCHEDULES = {"polynomial": Polynomial, "halving": Halving, "cyclical": Cyclical}
HIDDEN = (50,)
"""Units of a network of which nothing is said."""


class Table(schema.Table):
    """A table of a distillation."""

    page: ClassVar[str] = PAGE


class Data(Table):
    """A ``.csv`` with a header, or an ``.npz`` with ``x`` and ``y``."""

    file: str


class Model(Table):
    """A ``network`` or one of the regressions; ``target`` is the column that it predicts."""

    kind: str = "network"
    target: str | None = None
    intercept: bool = False
    likelihood: str | None = None
    noise_variance: Positive | None = None
    hidden: list[Count] | None = None
    activation: str | None = None
    classes: Count | None = None


class Prior(Table):
    """Independent Gaussians of mean zero: of a network one variance, or one a layer."""

    variance: Positive | list[Positive] | None = None


class Sampler(Table):
    """As :class:`~posterity.distillation.Langevin`, beside the options of its kernel."""

    kernel: str = "sgld"
    step_size: Positive | dict[str, Any] | None = None
    noise: str | None = None
    friction: Positive | None = None
    decay: Weight | None = None
    floor: Positive | None = None
    chains: Count | None = None
    batch_size: Count | None = None
    thin: Count | None = None
    climb: Natural | None = None
    burn_in: Natural | None = None


class Inputs(Table):
    """Where the student listens; ``file`` in place of the data."""

    kind: str = "perturbed"
    file: str | None = None
    noise: Weight | None = None
    low: Numbers | None = None
    high: Numbers | None = None
    concentration: Positive | None = None


class Student(Table):
    """As :func:`posterity.distill`; ``hidden`` are its units."""

    hidden: list[Count] | None = None
    split: bool = False
    steps: Count | None = None
    batch_size: Count | None = None
    learning_rate: Positive | None = None
    reservoir: Natural | None = None
    tolerance: Positive | None = None


class Output(Table):
    """Paths of what is written."""

    student: str
    checkpoint: str | None = None
    plot: str | None = None


class Distillation(Table):
    """The whole file."""

    data: Data
    output: Output
    model: Model = msgspec.field(default_factory=Model)
    prior: Prior = msgspec.field(default_factory=Prior)
    sampler: Sampler = msgspec.field(default_factory=Sampler)
    inputs: Inputs = msgspec.field(default_factory=Inputs)
    student: Student = msgspec.field(default_factory=Student)
    seed: Seed = 0


_made = functools.partial(made, page=PAGE)


def load_job(path: Path) -> Job:
    """Read a TOML file; paths in it are relative to its folder. See ``docs/distill.md``.

    Raises:
        UsageError: if it is no TOML, or says something that makes no sense.
        ArtifactError: if it, or a file that it names, cannot be read.
        StructureError, ParameterError: for data that the model cannot take.
    """
    try:
        return _job(read(path, Distillation), path)
    except PosterityError as error:
        raise error.at(f"configuration {str(path)!r}") from error


def _job(about: Distillation, path: Path) -> Job:
    folder, output, kind, student = path.parent, about.output, about.model, about.student
    data = folder / about.data.file
    x, y, names, notes = records(kind, data)
    make = one_of(MODELS, kind.kind, "model.kind")
    model, prior = make(kind, about.prior, x, y)
    teacher = _sampler(about.sampler, model, prior, (x, y))
    inputs, pools = _inputs(about.inputs, x, names, folder)
    return Job(
        teacher=teacher,
        inputs=inputs,
        student=perceptron(student.hidden, student.split),
        options=student.given("hidden"),
        seed=about.seed,
        reads=(path, data, *pools),
        output=folder / output.student,
        checkpoint=folder / (output.checkpoint or f"{output.student}.checkpoint"),
        plot=None if output.plot is None else folder / output.plot,
        columns=names,
        notes=notes,
        about={"teacher": f"{teacher.chains} chains of {kind.kind} by {about.sampler.kernel}"},
    )


def records(
    kind: Model, path: Path
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Inputs, labels, the names of the columns of inputs, and what is odd about them."""
    regression = kind.kind != "network"
    if kind.intercept and not regression:
        raise UsageError(
            found="model.intercept = true beside a network",
            expected="linear-regression or logistic-regression, which see a column of ones",
            fix="Leave model.intercept out: layers have biases.",
        )
    target = kind.target and clean(kind.target)
    tables = read_tables({path.stem: path}, target, kind.intercept)
    columns = in_one_order(tables, (), target, regression)
    (found,) = columns.data.values()
    if not isinstance(found, tuple):
        raise StructureError(
            found=f"data {str(path)!r} without labels",
            expected="x and y, or a column that model.target names",
            fix="Name the column that is predicted in model.target.",
        )
    return *found, columns.names, columns.notes


# --- model and prior ------------------------------------------------------------------------------


def _network(kind: Model, prior: Prior, x: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    likelihood = kind.likelihood or "categorical"
    if kind.classes is not None and likelihood != "categorical":
        raise UsageError(
            found=f"model.classes = {kind.classes} beside the likelihood {likelihood!r}",
            expected="a categorical likelihood, or no number of classes",
            fix="Leave model.classes out.",
        )
    if (kind.noise_variance is None) != (likelihood != "gaussian"):
        raise UsageError(
            found=f"model.noise_variance = {kind.noise_variance} and the likelihood {likelihood!r}",
            expected="the variance of what is observed about a mean, and of that alone",
            fix="Give it for values, and leave it out for labels.",
        )
    activation = {} if kind.activation is None else {"activation": kind.activation}
    hidden = HIDDEN if kind.hidden is None else kind.hidden
    sizes = (int(np.prod(x.shape[1:])), *hidden, _outputs(kind, likelihood, y))
    layers = _made(lambda **given: Layers.dense(*sizes, **given), activation, "model")
    options = {"likelihood": likelihood, **kind.given(*OF_LAYERS)}
    model = _made(lambda **given: models.NeuralNetwork.of_layers(layers, **given), options, "model")
    variance = prior.variance
    variances = tuple(variance) if isinstance(variance, list) else variance
    law = _made(lambda **given: GaussianPrior(**given).network(layers), {"variance": variances},
                "prior")  # fmt: skip
    return model, law


OF_LAYERS = ("kind", "target", "intercept", "hidden", "activation", "classes", "likelihood")
OF_NETWORKS = ("hidden", "activation", "classes", "likelihood")


def _outputs(kind: Model, likelihood: str, y: np.ndarray) -> int:
    if likelihood == "categorical":
        known = y.dtype.kind in "biuf" and y.size and np.isfinite(y).all()
        return kind.classes or (max(int(y.max()) + 1, 2) if known else 2)
    return y.shape[1] if likelihood == "gaussian" and y.ndim == 2 else 1


def _regression(
    make: Any, kind: Model, prior: Prior, x: np.ndarray, y: np.ndarray
) -> tuple[Any, Any]:
    if strange := kind.given("kind", "target", "intercept", "noise_variance"):
        raise UsageError(
            found=f"{', '.join(strange)} in table [model] beside kind = {kind.kind!r}",
            expected="keys of a regression: target, intercept, noise_variance",
            fix="Leave them out.",
        )
    if not isinstance(prior.variance, float):
        raise UsageError(
            found=f"prior.variance = {prior.variance}",
            expected="the variance of a coefficient before any data",
            fix="Give it: variance = 1.0 suits columns of a scale near one.",
        )
    model = _made(make, kind.given("kind", "target", "intercept"), "model")
    size = int(np.prod(x.shape[1:]))
    return model, Gaussian.from_standard(np.zeros(size), prior.variance * np.eye(size))


MODELS = {
    "network": _network,
    "linear-regression": functools.partial(_regression, models.LinearRegression),
    "logistic-regression": functools.partial(_regression, models.LogisticRegression),
}


# --- sampler and inputs ---------------------------------------------------------------------------

OF_KERNELS = ("step_size", "noise", "friction", "decay", "floor")


def _sampler(about: Sampler, model: Any, prior: Any, data: Any) -> Langevin:
    make = one_of(KERNELS, about.kernel, "sampler.kernel")
    options = {key: value for key, value in about.given("kernel").items() if key in OF_KERNELS}
    if isinstance(about.step_size, dict):
        given = dict(about.step_size)
        schedule = one_of(SCHEDULES, given.pop("kind", None), "sampler.step_size.kind")
        options["step_size"] = _made(schedule, given, "sampler.step_size")
    kernel = _made(make, options, "sampler")
    run = functools.partial(Langevin, model, prior, data, kernel=kernel)
    return _made(run, about.given("kernel", *OF_KERNELS), "sampler")


def _inputs(
    about: Inputs, x: np.ndarray, names: tuple[str, ...], folder: Path
) -> tuple[Any, tuple[Path, ...]]:
    """The law of inputs, and the files that it was read from."""
    make = one_of(INPUTS, about.kind, "inputs.kind")
    pools, options = (), about.given("kind", "file")
    if about.file is not None:
        pools = (folder / about.file,)
        found = in_order(read_inputs(pools[0]), names, str(pools[0]), "the data")
        check_width(found, int(np.prod(x.shape[1:])), pools[0])
        x = found
    return _made(functools.partial(make, x), options, "inputs"), pools


def _perturbed(x: np.ndarray, *, noise: float | None = None) -> Perturbed:
    return Perturbed(x) if noise is None else Perturbed(x, apart(x, noise))


def _box(x: np.ndarray, *, low: Any, high: Any) -> Box:
    low, high = (np.asarray(bound, float) for bound in (low, high))
    return Box(*(np.broadcast_to(bound, x.shape[1:]) for bound in (low, high)))


INPUTS = {"perturbed": _perturbed, "box": _box, "mixup": Mixup, "pool": Pool}
