"""``posterity distill``: training of one small network that predicts as a posterior does."""

import dataclasses
import functools
import math
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from posterity import distillation, models
from posterity.artifact import provenance
from posterity.artifact.aligned import listed, names_in
from posterity.cli import files
from posterity.cli.jobs import problem_of
from posterity.cli.options import Settings, conflict
from posterity.cli.recipes import reading_of, recipe_of
from posterity.cli.report import Group, group, status_of, status_report
from posterity.cli.schema import places_of
from posterity.cli.streams import Data, bar, verb
from posterity.distillation import (
    Box,
    Distillation,
    Head,
    Independent,
    Inputs,
    Mixup,
    Perturbed,
    Pool,
    Teacher,
)
from posterity.errors import ConvergenceWarning, StructureError, UsageError, within
from posterity.federation import specification
from posterity.federation.specification import build
from posterity.models import NeuralNetwork
from posterity.models.likelihoods import check_outputs
from posterity.networks import Layers
from posterity.runtime.interrupts import deferred
from posterity.status import Progress
from posterity.tabular.pooled import teacher_of
from posterity.tabular.predictions import table_to_predict
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.recipe_model import inputs_of, offset_of
from posterity.tabular.records import Table, read_inputs, reordered
from posterity.tabular.sites import as_provenance, kept, law_of, sites_in, together

KERNELS = {"sgld": distillation.SGLD, "sghmc": distillation.SGHMC}
KERNEL_OPTIONS = ("step_size", "noise", "friction")


@dataclasses.dataclass(frozen=True)
class Distilled:
    """A teacher, and the inputs at which a student learns from it.

    ``names`` are those of the columns of inputs; ``record`` is provenance of the teacher, for the
    student's file.
    """

    teacher: Teacher
    inputs: Inputs
    names: tuple[str, ...]
    notes: tuple[str, ...]
    record: dict[str, str]


def distillation_of(settings: Settings) -> Distilled:
    """Return the distillation of the posterior in a file, or of one that is sampled."""
    if not settings.files and settings["posterior"] is None:
        return _of_data(settings)
    path = settings.single("posterior")
    value, about = files.read(path)
    posterior = law_of(value)
    like = settings.path("data.like")
    recipe = recipe_in(about.provenance) if like is None else recipe_of(like)
    reading = set[str]() if recipe is None else {*places_of("reading"), "data.like"}
    apart = [p for p in settings.values if p.startswith(("data.", "sampler.")) and p not in reading]
    if apart:
        raise conflict(apart[0], f"the posterior '{path}'")
    record = {"teacher": repr(posterior), "teacher digest": about.digest, **kept(about.provenance)}
    notes = list[str]()
    if recipe is None:
        model = _model(settings, posterior, path)
        network = getattr(posterior, "network_layers", None) is not None
        size = posterior.layers.inputs if network else posterior.own_size
        names = () if network else listed(names_in(posterior))
    else:
        _check_recipe(settings, recipe, path)
        known = together(sites_in(about.provenance).values()).get(recipe.spread or "")
        spread = settings["model.noise_variance"] or known
        with within(f"posterior '{path}'"):
            posterior, model, notes = teacher_of(value, recipe, spread)
        names = inputs_of(recipe)[0]
        size = len(names)
        record |= as_provenance(recipe) if like is not None else {}
    facts = {"value": value, "known": sites_in(about.provenance)}
    pool, x, more = _pool(settings, names, size, str(path), recipe, facts)
    named = {} if pool is None else {str(settings["inputs.file"]): pool.names, str(path): names}
    return Distilled(
        teacher=Independent(posterior, model, x=x),
        inputs=_inputs(settings, x, (size,), default="pool"),
        names=names or (pool.names if pool else ()),
        notes=(*notes, *more, *(provenance.unnamed(named, names) if names else ())),
        record=record,
    )


def _check_recipe(settings: Settings, recipe: Recipe, path: Path) -> None:
    kind = settings["model.kind"]
    own = specification.full_name(recipe.model)
    of = {"model.noise_variance": "linear", "model.likelihood": "network"}
    wrong = [settings.flag(p) for p, model in of.items() if settings[p] and recipe.model != model]
    wrong += [f"--model {kind}"] * (kind is not None and specification.full_name(kind) != own)
    if wrong:
        raise conflict(wrong[0], f"the recipe of '{path}', a {own}")


def _of_data(settings: Settings) -> Distilled:
    """Return chains that sample the posterior of records."""
    with settings.named():
        problem = problem_of(settings)
    recipe = recipe_in(problem.record)
    if getattr(problem.model, "likelihood", None) is None or (recipe and offset_of(recipe)):
        raise UsageError(
            found=f"a sampler (--data) for --model {problem.kind}",
            expected="a network, or a linear or logistic regression without offset or weights",
            fix="Fit it without a sampler: posterity fit TABLE ... -o FILE; then "
            "posterity distill FILE -o STUDENT --inputs TABLE.",
        )
    x = problem.data[0]
    run = settings.table("sampler", "kernel")
    options = {name: run.pop(name) for name in KERNEL_OPTIONS if name in run}
    own = "sghmc" if "friction" in options else "sgld"
    kind = settings["sampler.kernel"] or (own if options else None)
    kernel = None if kind is None else build(KERNELS[kind], options, "sampler")
    about = problem.model, problem.prior, problem.data
    chains = functools.partial(distillation.Langevin, *about, kernel=kernel)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        teacher = build(chains, run, "sampler")
    sampler = type(teacher.kernel).__name__
    own = settings, problem.names, math.prod(x.shape[1:]), "the data", recipe, {}
    _, pool, notes = _pool(*own, problem.record.get(provenance.TARGET))
    return Distilled(
        teacher=teacher,
        inputs=_inputs(settings, x if pool is None else pool, x.shape[1:], default="perturbed"),
        names=problem.names,
        notes=(*problem.notes, *notes, *(str(one.message) for one in heard)),
        record=problem.record
        | {"teacher": f"{teacher.chains} chains of {problem.kind} by {sampler}"},
    )


def _model(settings: Settings, posterior: Any, path: Path) -> models.Model:
    """Return the model, given by flags, of a posterior without a recipe."""
    kind = settings["model.kind"]
    likelihood = settings["model.likelihood"]
    kind = None if kind is None else specification.full_name(kind)
    noise = settings["model.noise_variance"]
    known = {} if noise is None else {"noise_variance": noise}
    network = getattr(posterior, "network_layers", None) is not None
    wrong = f"--model {kind}" if network and kind not in (None, "network") else None
    if not network and likelihood is not None:
        wrong = f"--likelihood {likelihood}"
    if wrong:
        raise conflict(wrong, f"{posterior!r} in '{path}'")
    if network:
        if likelihood is None and posterior.layers.outputs == 1:
            raise files.no_likelihood(path)
        likelihood = likelihood or "categorical"
        specification.check_noise(likelihood == "gaussian", noise)
        model = NeuralNetwork.of_layers(posterior.layers, likelihood=likelihood, **known)
        check_outputs(posterior.layers, likelihood)
        return model
    kinds = [k for k in specification.REGRESSIONS if hasattr(specification.MODELS[k], "likelihood")]
    full = getattr(posterior, "gaussian", False) and not posterior.diagonal
    if kind not in kinds or not full:
        raise UsageError(
            found=f"{'' if kind is None else f'--model {kind} for '}{posterior!r} in '{path}'",
            expected="a network, a regression that posterity fit wrote, or a Gaussian and --model "
            f"{' or '.join(kinds)}",
            fix="Name a file of the same model by --like, or call posterity.distill in Python.",
        )
    specification.check_noise(kind == "linear-regression", noise)
    return specification.MODELS[kind](**known)


def _pool(
    settings: Settings,
    names: tuple[str, ...],
    size: int,
    of: str,
    recipe: Recipe | None,
    facts: dict[str, Any],
    target: str | None = None,
) -> tuple[Table | None, np.ndarray | None, list[str]]:
    """Return the file of inputs, the inputs in the order of the names, and notes. A column of the
    ``target`` is left out. ``facts`` are the ledger, and what is known of its sites, whose columns
    have the units of a recipe.
    """
    path = settings.path("inputs.file")
    notes = []
    if path is None:
        return None, None, []
    if recipe is not None:
        target = settings.values.get("model.target")
        data, notes = table_to_predict(path, recipe, reading_of(settings), target=target, **facts)
        pool = Table(inputs_of(recipe, data)[1], None, inputs_of(recipe)[0])
    else:
        pool = read_inputs(path, settings["inputs.array"], known=target, scored=False)
    x = reordered(pool, names, str(path), of)
    wide = x[0].size
    if wide != size:
        raise StructureError(
            found=f"inputs with {wide} columns in '{path}'",
            expected=f"{size} columns, those of the network or regression",
        )
    return pool, x, notes


def _inputs(
    settings: Settings, x: np.ndarray | None, shape: tuple[int, ...], default: str
) -> Inputs:
    """Return the law of inputs: those of a pool, perturbed or mixed, or uniform in a box."""
    options = settings.table("inputs", "kind", "file", "array")
    if "noise" in options:
        default = "perturbed"
    kind = settings["inputs.kind"] or ("box" if options.keys() & {"low", "high"} else default)
    if x is None and kind != "box":
        raise UsageError(
            found="no inputs for the student",
            expected="a file of inputs like those to be predicted (--inputs), or --low and --high",
        )
    if kind == "box" and settings["inputs.file"] is not None:
        raise conflict("a box", "a file of inputs")

    def box(*, low: Any, high: Any) -> Box:
        return Box(*(np.broadcast_to(np.asarray(end, float), shape) for end in (low, high)))

    def perturbed(*, noise: float | None = None) -> Perturbed:
        assert x is not None
        # Constant columns, such as an intercept, stay constant.
        return Perturbed(x) if noise is None else Perturbed(x, np.where(x.std(0) > 0, noise, 0.0))

    mixed = functools.partial(Mixup, x)
    plain = functools.partial(Pool, x)
    kinds = {"box": box, "perturbed": perturbed, "mixup": mixed, "pool": plain}
    return build(kinds[kind], options, "inputs")


# --- the command ---------------------------------------------------------------------------------

DIAGNOSTICS = ("drift", "temperature", "rhat", "effective")
"""Numbers reported with a student's status; all but the first are about its teacher's chains."""


def _report(data: Data) -> Group:
    student = data["student"]
    status = data["status"]
    resumed = f", from {data['resumed']:,} on" if data["resumed"] else ""
    split = ", split" if student["split"] else ""
    parts: list[Any] = [
        f"Distilled {data['teacher']} in {data['steps']:,} steps{resumed}.",
        f"Student: {student['network']}, {student['likelihood']}{split}, "
        f"{student['weights']:,} weights.",
        status_report("The student", status, "nats from its teacher"),
    ]
    if status["temperature"] is not None:
        parts.append(f"Temperature of the chains: {status['temperature']:.3f}; it should be 1.")
    if status["rhat"] is not None:
        parts.append(f"R-hat {status['rhat']:.2f}, {status['effective']:.0f} effective draws.")
    return group(*parts, f"Wrote the student to {data['output']}")


@verb(_report)
def distill(settings: Settings) -> Data:
    """Train one small network to predict as a posterior does."""
    with deferred() as interrupts:
        job = distillation_of(settings)
        result, resumed = _run(settings, job)
        data = _written(settings, job, result) | {"resumed": resumed}
        interrupts.check()
        settings.checkpoint.unlink(missing_ok=True)  # other steps make another distillation
    return data


def _run(settings: Settings, job: Distilled) -> tuple[Distillation, int]:
    """Return the distillation, and the step that an earlier call had reached."""
    key = jax.random.key(settings["seed"])
    seen = []
    hidden = settings["student.hidden"]
    options = settings.table("student", "hidden")
    student = None  # the library's default
    if hidden is not None:
        with jax.enable_x64(False):
            x: Any = job.inputs.sample(2, key=key)
            own = job.teacher.head(x[:2])
            split = bool(settings["student.split"])
            head = Head(own.likelihood, own.targets, split, own.noise_variance)
            student = Layers.dense(x[0].size, *hidden, head.size)
    with bar("Distilling") as moved, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # reported by the status

        def progress(now: Progress) -> None:
            seen.append(now.step)
            moved(now)

        result = distillation.distill(
            job.teacher,
            student,
            key=key,
            inputs=job.inputs,
            checkpoint=settings.checkpoint,
            progress=progress,
            **options,
        )
    before = result.trace[: len(result.trace) - len(seen)]
    return result, before[-1].step if before else 0


def _written(settings: Settings, job: Distilled, result: Distillation) -> Data:
    """Write the student, and return the report."""
    student = dataclasses.replace(result.student, columns=job.names)
    record = {
        **job.record,
        "seed": str(settings["seed"]),
        "steps": str(result.steps),
        "status": str(result.status),
        **provenance.as_provenance(job.names),
    }
    written = files.write(student, settings.output, "distill", record)
    return {
        **written,
        "teacher": job.record["teacher"],
        "columns": job.names,
        "notes": job.notes,
        "student": {
            "network": student.summary,
            "weights": student.size,
            **{name: getattr(student.head, name) for name in ("likelihood", "targets", "split")},
        },
        "steps": result.steps,
        "status": status_of(result.status, **{name: getattr(result, name) for name in DIAGNOSTICS}),
    }
