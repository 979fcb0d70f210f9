"""What verbs start from, as it was asked: federations, models with their records, teachers."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from posterity import distillation, models
from posterity.adapters.tables.reader import clean
from posterity.artifact.aligned import listed, names_in, ordered
from posterity.artifact.columns import unnamed
from posterity.cli import files
from posterity.cli.options import Settings
from posterity.cli.records import Table, in_one_order, read_inputs, read_sites, reordered
from posterity.distillation import Box, Independent, Inputs, Mixup, Perturbed, Pool, Teacher
from posterity.errors import StructureError, UsageError
from posterity.families import Gaussian
from posterity.families.names import Names, some
from posterity.federation import Run, specification
from posterity.federation.federate import start
from posterity.federation.tables import SPREAD, by_column, columns_of, with_columns
from posterity.ledger import Ledger
from posterity.models import NeuralNetwork
from posterity.models.likelihoods import check_outputs

WITH_INTERCEPT = ("function", "linear-regression", "logistic-regression")
"""Models that see a column of ones."""
KERNEL_OPTIONS = ("step_size", "noise", "friction", "decay", "floor")


# --- federations ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Federated:
    """A federation that is ready to start: arguments of :func:`posterity.federate`, and files."""

    arguments: dict[str, Any]
    steps: int | None
    inputs: tuple[Path, ...]
    notes: tuple[str, ...]

    def start(self) -> Run:
        """The run before its first step."""
        return start(**self.arguments)


def federation_of(settings: Settings, names: Names | None = None) -> Federated:
    """The federation that was asked for.

    The records' columns are put in the order of the ``names`` of a ledger's coordinates, of the
    prior's file, or of the first site that has names, whichever there is first.

    Raises:
        UsageError: for what makes no sense together.
        ArtifactError: if a file cannot be read.
        StructureError: if sites have columns of other names.
    """
    with settings.named():
        return _federation(settings, names or {})


def _federation(settings: Settings, wanted: Names) -> Federated:
    kind = specification.full_name(settings.need("model.kind"))
    intercept = bool(settings["model.intercept"])
    target, key = settings["model.target"], jax.random.key(settings["seed"])
    paths = {site: Path(path) for site, path in settings.need("sites").items()}
    if intercept and kind not in WITH_INTERCEPT:
        raise UsageError(
            found=f"model.intercept = true beside model.kind = {kind!r}",
            expected=f"one of {list(WITH_INTERCEPT)}, which see a column of ones",
            fix="Leave model.intercept out.",
        )
    tables = read_sites(paths, target, intercept)
    bare = [site for site, found in tables.items() if found.y is None]
    if intercept and kind == "function" and bare:
        raise StructureError(
            found=f"model.intercept = true, and no target at {some(bare)}",
            expected="x and y, of which x gets a column of ones",
            fix="Leave model.intercept out, or name the target in model.target.",
        )
    options = settings.table("model", "kind", "target", "intercept", "personal")
    data = {site: found.data for site, found in tables.items()}
    model = specification.make_model(kind, options, data, folder=settings.folder, key=key)
    prior, before = _prior(settings, model, key)
    regression = isinstance(model, models.LinearRegression | models.LogisticRegression)
    named = next((own for path, own in wanted.items() if path != SPREAD), ())
    columns = in_one_order(tables, named or columns_of(prior), target, regression)
    _check_dimension(prior, columns.names, regression)
    order = dict.fromkeys(by_column(prior, len(columns.names)), columns.names)
    prior = with_columns(ordered(prior, order, "the prior", "the records"), columns.names)
    personal = _personal(settings["model.personal"], columns.names)
    if SPREAD in names_in(prior):
        called = _called(personal, columns.names)
        prior = ordered(prior, {SPREAD: called}, "the prior", "model.personal")
    schedule = settings.table("schedule", "kind", "steps", "tolerance")
    arguments = {
        "sites": columns.data,
        "model": model,
        "prior": prior,
        "schedule": specification.make_schedule(settings["schedule.kind"], schedule, sorted(paths)),
        "update": specification.make_update(settings.table("update")),
        "weights": settings["weights"],
        "personal": personal,
        "tolerance": settings["schedule.tolerance"],
        "key": key,
    }
    reads = [settings.file, *paths.values(), before]
    inputs = tuple(path for path in reads if path is not None)
    return Federated(arguments, settings["schedule.steps"], inputs, columns.notes)


def _prior(settings: Settings, model: Any, key: Any) -> tuple[Any, Path | None]:
    """The prior, and the file that it was read from, if any."""
    path, options = settings.path("prior.file"), settings.table("prior", "file")
    if path is None:
        return specification.make_prior(options, model, key), None
    if options:
        raise UsageError(
            found=f"prior.file beside prior.{next(iter(options))}",
            expected="one prior",
            fix="Leave one out.",
        )
    return files.read_prior(path)[0], path


def _check_dimension(prior: Any, names: tuple[str, ...], regression: bool) -> None:
    """What the library checks too, which does not know the names of columns."""
    size = getattr(prior, "own_size", 0)
    if regression and names and size != len(names) and not by_column(prior, len(names)):
        raise StructureError(
            found=f"a prior of {size} dimensions for {len(names)} columns {some(names)}",
            expected="a coefficient for each column, in this order",
            fix="Give the prior as many dimensions; set model.target if one is no input.",
        )


def _personal(personal: Any, names: tuple[str, ...]) -> Any:
    """As :func:`posterity.federate` takes it, columns by their numbers in place of their names."""
    if personal is None or isinstance(personal, bool):
        return bool(personal)
    places = [_place(str(column), names) for column in personal]
    if len(set(places)) < len(places):
        raise UsageError(
            found=f"model.personal with a column named twice: {some(list(map(str, personal)))}",
            expected="each column once, by its name or its number",
            fix="Leave one out.",
        )
    return (
        dict(zip(places, personal.values(), strict=True)) if isinstance(personal, dict) else places
    )


def _called(personal: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that differ between sites, in the order of their spreads."""
    if isinstance(personal, bool):
        return names if personal else ()
    return tuple(name for place, name in enumerate(names) if place in personal)


def _place(column: str, names: tuple[str, ...]) -> int:
    if clean(column) in names:
        return names.index(clean(column))
    if column.isdecimal():
        return int(column)
    raise UsageError(
        found=f"model.personal for a column {column!r}",
        expected=f"columns among {some(names)}, or their numbers, from 0",
        fix="Name them as the tables do.",
    )


# --- a model and its records ---------------------------------------------------------------------


class Problem(NamedTuple):
    """A ``model`` of the ``kind`` that was named, its ``prior``, and its ``data`` (x, y).

    ``names`` are those of the columns of x; ``reads`` the files that it was read from.
    """

    kind: str
    model: Any
    prior: Any
    data: tuple[np.ndarray, np.ndarray]
    names: tuple[str, ...]
    notes: tuple[str, ...]
    reads: tuple[Path, ...]


def problem_of(settings: Settings) -> Problem:
    """What the options of :data:`~posterity.cli.schema.NETWORK` and a file of records say.

    Raises:
        UsageError: for options that make no sense together.
        ArtifactError: if a file cannot be read.
        StructureError, ParameterError: for data that the model cannot take.
    """
    with settings.named():
        return _problem(settings)


def _problem(settings: Settings) -> Problem:
    path = Path(settings.need("data.file"))
    kind = specification.full_name(settings["model.kind"] or "network")
    intercept, target = bool(settings["model.intercept"]), settings["model.target"]
    if intercept and kind == "network":
        raise UsageError(
            found="model.intercept = true beside a network",
            expected="linear-regression or logistic-regression, which see a column of ones",
            fix="Leave model.intercept out: layers have biases.",
        )
    tables = read_sites({path.stem: path}, target, intercept)
    columns = in_one_order(tables, (), target, kind != "network")
    data: Any = next(iter(columns.data.values()))
    if not isinstance(data, tuple):
        raise StructureError(
            found=f"data {str(path)!r} without labels",
            expected="x and y, or a column that model.target names",
            fix="Name the column that is predicted in model.target.",
        )
    options = settings.table("model", "kind", "target", "intercept")
    variance = settings["prior.variance"]
    model, prior = specification.make_model_and_prior(kind, options, variance, *data)
    reads = (path,) if settings.file is None else (settings.file, path)
    return Problem(kind, model, prior, data, columns.names, columns.notes, reads)


# --- teachers and where students listen ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Distilled:
    """A teacher, the inputs at which a student listens to it, and the files about both.

    ``names`` are those of the columns of inputs; ``record`` is what the student's file says of its
    teacher.
    """

    teacher: Teacher
    inputs: Inputs
    names: tuple[str, ...]
    notes: tuple[str, ...]
    reads: tuple[Path, ...]
    record: dict[str, str]


def distillation_of(settings: Settings) -> Distilled:
    """The distillation of the posterior in a file, or of one that is sampled.

    Raises:
        UsageError: for a posterior whose model is not known, and options that do not go together.
        StructureError: for inputs that the model cannot take.
        ArtifactError: if a file cannot be read.
    """
    if not settings.files:
        return _of_data(settings)
    path, *others = settings.files
    if others:
        raise UsageError(
            found=f"{len(others) + 1} posteriors", expected="one", fix="Fuse them first."
        )
    apart = [place for place in settings.values if place.startswith(("data.", "sampler."))]
    if apart:
        raise UsageError(
            found=f"{apart[0]} beside the posterior {str(path)!r}",
            expected="a posterior, or data to sample one from",
            fix="Leave one of both out.",
        )
    return _of_posterior(settings, path)


def _of_posterior(settings: Settings, path: Path) -> Distilled:

    found, inspection = files.read(path)
    posterior: Any = found.posterior if isinstance(found, Ledger) else found
    model = _model(settings, posterior, path)
    network = getattr(posterior, "network_layers", None) is not None
    size = posterior.layers.inputs if network else posterior.own_size
    names = () if network else listed(names_in(posterior))
    pool, x = _pool(settings, names, size, str(path))
    named = {} if pool is None else {str(settings["inputs.file"]): pool.names, str(path): names}
    notes = unnamed(named, names) if names else []
    return Distilled(
        teacher=Independent(posterior, model, x=x),
        inputs=_inputs(settings, x, (size,)),
        names=names or (pool.names if pool else ()),
        notes=tuple(notes),
        reads=tuple(each for each in (path, settings.path("inputs.file"), settings.file) if each),
        record={"teacher": repr(posterior), "teacher digest": inspection.digest},
    )


def _of_data(settings: Settings) -> Distilled:

    problem = problem_of(settings)
    x, place = problem.data[0], settings.path("inputs.file")
    teacher = _sampler(settings, problem)
    kernel = settings["sampler.kernel"]
    pool = None
    if place is not None:
        _, pool = _pool(settings, problem.names, int(np.prod(x.shape[1:])), "the data")
    return Distilled(
        teacher=teacher,
        inputs=_inputs(settings, x if pool is None else pool, x.shape[1:]),
        names=problem.names,
        notes=problem.notes,
        reads=(*problem.reads, *([place] if place else [])),
        record={"teacher": f"{teacher.chains} chains of {problem.kind} by {kernel}"},
    )


# --- teachers ------------------------------------------------------------------------------------


def _model(settings: Settings, posterior: Any, path: Path) -> Any:
    """What a posterior in a file is a law of."""
    kind, likelihood = settings["model.kind"], settings["model.likelihood"]
    kind = None if kind is None else specification.full_name(kind)
    noise = settings["model.noise_variance"]
    known = {} if noise is None else {"noise_variance": noise}
    if getattr(posterior, "network_layers", None) is not None:
        if kind not in (None, "network"):
            raise _unfit(f"--model {kind} for the network", path, "Leave --model out.")
        if likelihood is None and posterior.layers.outputs == 1:
            raise files.no_likelihood(path)
        likelihood = likelihood or "categorical"
        specification.check_noise(likelihood == "gaussian", noise)
        model = NeuralNetwork.of_layers(posterior.layers, likelihood=likelihood, **known)
        check_outputs(posterior.layers, likelihood)
        return model
    if likelihood is not None:
        raise _unfit(f"--likelihood {likelihood} for {posterior!r}", path, "Pass --model instead.")
    if kind not in specification.REGRESSIONS or not isinstance(posterior, Gaussian):
        raise UsageError(
            found=f"{'' if kind is None else f'--model {kind} for '}{posterior!r} in {str(path)!r}",
            expected=f"a network, or a Gaussian over coefficients and --model "
            f"{' or '.join(specification.REGRESSIONS)}",
            fix="Name the regression that it was fitted with; of other models call "
            "posterity.distill in Python.",
        )
    specification.check_noise(kind == "linear-regression", noise)
    return specification.MODELS[kind](**known)


def _unfit(what: str, path: Path, fix: str) -> UsageError:
    return UsageError(
        found=f"{what} in {str(path)!r}",
        expected="--likelihood of networks, --model of regressions",
        fix=fix,
    )


def _sampler(settings: Settings, problem: Any) -> Any:
    """Chains of the kernel that was named."""
    kernels = {
        "sgld": distillation.SGLD,
        "preconditioned-sgld": distillation.PreconditionedSGLD,
        "sghmc": distillation.SGHMC,
    }
    schedules = {
        "polynomial": distillation.Polynomial,
        "halving": distillation.Halving,
        "cyclical": distillation.Cyclical,
    }
    said = settings.table("sampler", "kernel")
    options = {key: said.pop(key) for key in KERNEL_OPTIONS if key in said}
    if isinstance(options.get("step_size"), dict):
        given = dict(options["step_size"])
        schedule = specification.one_of(
            schedules, given.pop("kind", None), "sampler.step_size.kind"
        )
        options["step_size"] = specification.build(schedule, given, "sampler.step_size")
    kernel = specification.build(kernels[settings["sampler.kernel"]], options, "sampler")
    run = functools.partial(
        distillation.Langevin, problem.model, problem.prior, problem.data, kernel=kernel
    )
    return specification.build(run, said, "sampler")


# --- where the student listens -------------------------------------------------------------------


def _pool(
    settings: Settings, names: tuple[str, ...], size: int, of: str
) -> tuple[Table | None, np.ndarray | None]:
    """The file of inputs as it is, and its inputs in the order of the names."""
    path = settings.path("inputs.file")
    if path is None:
        return None, None
    pool = read_inputs(path, settings["inputs.array"])
    x = reordered(pool, names, str(path), of)
    if (wide := x[0].size) != size:
        raise StructureError(
            found=f"inputs of {wide} numbers in {str(path)!r}",
            expected=f"{size}, as the network or regression takes",
            fix="Give the columns that it was trained on, without labels.",
        )
    return pool, x


def _inputs(settings: Settings, x: np.ndarray | None, shape: tuple[int, ...]) -> Inputs:
    """The law of inputs: those of a pool, perturbed or mixed, or all of a box."""
    said = settings.table("inputs", "kind", "file", "array")
    boxed = "low" in said or "high" in said
    kind = settings["inputs.kind"] or (
        "box" if boxed else "perturbed" if "noise" in said or not settings.files else "pool"
    )
    if x is None and kind != "box":
        raise UsageError(
            found="no inputs to listen at",
            expected="a file of inputs like those that will come (--inputs), or --low and --high",
            fix="Unlabelled records will do: the teacher says what they are.",
        )
    if kind == "box" and settings["inputs.file"] is not None:
        raise UsageError(
            found="a box beside a file of inputs", expected="one of both", fix="Leave one out."
        )

    def box(*, low: Any, high: Any) -> Box:
        return Box(*(np.broadcast_to(np.asarray(end, float), shape) for end in (low, high)))

    def perturbed(*, noise: float | None = None) -> Perturbed:
        """Not of columns that are constant, as an intercept is."""
        assert x is not None
        return Perturbed(x) if noise is None else Perturbed(x, np.where(x.std(0) > 0, noise, 0.0))

    mixed, plain = functools.partial(Mixup, x), functools.partial(Pool, x)
    kinds = {"box": box, "perturbed": perturbed, "mixup": mixed, "pool": plain}
    return specification.build(kinds[kind], said, "inputs")
