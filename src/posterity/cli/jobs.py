"""Distillations that are ready to start: of a posterior in a file, or of a configuration."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.artifact.aligned import listed, names_in
from posterity.artifact.columns import unnamed
from posterity.cli import files
from posterity.cli.input_files import in_order, read_inputs
from posterity.errors import StructureError, UsageError
from posterity.families import Gaussian, Network
from posterity.ledger import Ledger

if TYPE_CHECKING:
    from posterity.distillation import Inputs, Teacher

MODELS = ("linear", "logistic")
"""Of posteriors that do not say what they are a law of."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A teacher, where and how a student listens to it, and the files about both.

    ``student`` is given a teacher and some of the inputs; ``options`` are those of
    :func:`posterity.distill`; ``about`` is what is to be told of the teacher, by key.
    """

    teacher: "Teacher"
    inputs: "Inputs"
    student: Callable[["Teacher", Any], Any]
    options: dict[str, Any]
    seed: int
    reads: tuple[Path, ...]
    output: Path
    checkpoint: Path
    plot: Path | None
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    about: dict[str, str]

    @property
    def outputs(self) -> list[Path]:
        """All files that it writes."""
        return [file for file in (self.output, self.checkpoint, self.plot) if file]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says of the distillation of a posterior."""

    output: Path
    pool: Path | None = None
    array: str | None = None
    noise: float | None = None
    box: tuple[float, float] | None = None
    mixup: bool = False
    model: str | None = None
    likelihood: str | None = None
    noise_variance: float | None = None
    hidden: tuple[int, ...] | None = None
    split: bool = False
    steps: int | None = None
    seed: int = 0
    plot: Path | None = None
    checkpoint: Path | None = None


def of_posterior(path: Path, options: Options) -> Job:
    """The distillation of what is in a file.

    Raises:
        UsageError: for a posterior whose model is not known, and options that do not go together.
        StructureError: for inputs that the model cannot take.
        ArtifactError: if a file cannot be read.
    """
    from posterity.distillation import Independent

    found, inspection = files.read(path)
    posterior: Any = found.posterior if isinstance(found, Ledger) else found
    model = _model(posterior, path, options)
    network = isinstance(posterior, Network)
    size = posterior.layers.inputs if network else posterior.own_size
    names = () if network else listed(names_in(posterior))
    x, names, notes = _pool(options, names, size, path)
    given = {"split": options.split, "steps": options.steps}
    return Job(
        teacher=Independent(posterior, model, x=x),
        inputs=inputs_of(options, x, size),
        student=perceptron(options.hidden, options.split),
        options={key: value for key, value in given.items() if value is not None},
        seed=options.seed,
        reads=(path, *([options.pool] if options.pool else [])),
        output=options.output,
        checkpoint=options.checkpoint or Path(f"{options.output}.checkpoint"),
        plot=options.plot,
        columns=names,
        notes=notes,
        about={"teacher": repr(posterior), "teacher digest": inspection.digest},
    )


def perceptron(hidden: Sequence[int] | None, split: bool) -> Callable[["Teacher", Any], Any]:
    """Makes a student of these hidden units, given its teacher; the library's own for None."""
    from posterity.distillation import Head
    from posterity.networks import Layers

    def student(teacher: "Teacher", x: Any) -> Any:
        if hidden is None:
            return None
        told = teacher.head(x[:2])
        head = Head(told.likelihood, told.targets, split, told.noise_variance)
        return Layers.dense(x[0].size, *hidden, head.size)

    return student


# --- of what the posterior is ---------------------------------------------------------------------


def _model(posterior: Any, path: Path, options: Options) -> Any:
    from posterity.models import LinearRegression, LogisticRegression, NeuralNetwork
    from posterity.models.likelihoods import check_outputs

    kind, noise = options.likelihood, options.noise_variance
    if isinstance(posterior, Network):
        if options.model is not None:
            raise _unfit(f"--model {options.model} for the network", path, "Leave --model out.")
        if kind is None and posterior.layers.outputs == 1:
            raise UsageError(
                found=f"a network of one output in {str(path)!r}, and no --likelihood",
                expected="bernoulli for labels in {0, 1}, or gaussian with a --noise-variance",
                fix="Pass the likelihood that it was trained with.",
            )
        kind = kind or "categorical"
        _check_noise(kind == "gaussian", noise)
        given = {} if noise is None else {"noise_variance": noise}
        model = NeuralNetwork.of_layers(posterior.layers, likelihood=kind, **given)
        check_outputs(posterior.layers, kind)
        return model
    if kind is not None:
        raise _unfit(f"--likelihood {kind} for {posterior!r}", path, "Pass --model instead.")
    if options.model is None or not isinstance(posterior, Gaussian):
        what = "" if options.model is None else f"--model {options.model} for "
        raise UsageError(
            found=f"{what}{posterior!r} in {str(path)!r}",
            expected="a network, or a Gaussian over coefficients and --model "
            + " or ".join(MODELS),
            fix="Name the regression that it was fitted with; of other models call "
            "posterity.distill in Python.",
        )
    if options.model not in MODELS:
        raise UsageError(
            found=f"--model {options.model}", expected=" or ".join(MODELS), fix="Name one of them."
        )
    _check_noise(options.model == "linear", noise)
    return LogisticRegression() if noise is None else LinearRegression(noise_variance=noise)


def _check_noise(gaussian: bool, noise: float | None) -> None:
    if gaussian != (noise is not None):
        raise UsageError(
            found="no --noise-variance" if gaussian else f"--noise-variance {noise} of labels",
            expected="the variance of what is observed about a mean, and of that alone",
            fix="Pass it as in training." if gaussian else "Leave it out.",
        )


def _unfit(what: str, path: Path, fix: str) -> UsageError:
    return UsageError(
        found=f"{what} in {str(path)!r}",
        expected="--likelihood of networks, --model of regressions",
        fix=fix,
    )


# --- where the student listens --------------------------------------------------------------------


def _pool(
    options: Options, names: tuple[str, ...], size: int, path: Path
) -> tuple[np.ndarray | None, tuple[str, ...], tuple[str, ...]]:
    """Inputs, the names of their columns, and what is to be said of them."""
    if options.pool is None:
        return None, names, ()
    found = read_inputs(options.pool, options.array)
    x = in_order(found, names, str(options.pool), str(path))
    check_width(x, size, options.pool)
    missing = {str(options.pool): found.names, str(path): names}
    return x, names or found.names, tuple(unnamed(missing, names) if names else ())


def check_width(x: np.ndarray, size: int, place: Path) -> None:
    """Raise a StructureError unless there are so many numbers an input."""
    if (wide := x[0].size) != size:
        raise StructureError(
            found=f"inputs of {wide} numbers in {str(place)!r}",
            expected=f"{size}, as the network or regression takes",
            fix="Give the columns that it was trained on, without labels.",
        )


def inputs_of(options: Any, x: np.ndarray | None, size: int) -> "Inputs":
    """The law of inputs: the pool's, perturbed, mixed, or those of a box.

    Raises:
        UsageError: unless they are said once.
    """
    from posterity.distillation import Box, Mixup, Perturbed, Pool

    named = {"--noise": options.noise is not None, "--box": options.box is not None,
             "--mixup": options.mixup}  # fmt: skip
    if sum(named.values()) > 1:
        raise UsageError(
            found=" and ".join(name for name, said in named.items() if said),
            expected="one way to make inputs",
            fix="Leave the others out.",
        )
    if (x is None) != (options.box is not None):
        raise UsageError(
            found="neither --inputs nor --box" if x is None else "--box beside --inputs",
            expected="a file of inputs like those that will come, or --box LOW HIGH",
            fix="Unlabelled records will do: the teacher says what they are.",
        )
    if x is None:
        low, high = options.box
        return Box(np.full(size, low), np.full(size, high))
    if options.mixup:
        return Mixup(x)
    return Pool(x) if options.noise is None else Perturbed(x, apart(x, options.noise))


def apart(x: np.ndarray, noise: float) -> np.ndarray:
    """Noise of this size on each column that is not constant, as an intercept is."""
    return np.where(x.std(0) > 0, noise, 0.0)
