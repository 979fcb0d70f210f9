"""``posterity distill``: one small network that predicts as a posterior does."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.failures import stopped
from posterity.cli.networks import Likelihood
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.errors import ConvergenceError, ConvergenceWarning, UsageError
from posterity.interrupts import Watch, deferred

if TYPE_CHECKING:
    from posterity.cli.jobs import Job, Options
    from posterity.distillation import Distillation
    from posterity.status import Progress

CONFIG = ".toml"
"""How the name of a configuration ends."""


@app.command(
    epilog=example(
        "posterity distill both.safetensors -o student.safetensors --inputs pool.csv --split",
        "posterity distill both.safetensors -o student.safetensors --box -6 6 --hidden 100,50",
        "posterity distill coefficients.safetensors -o student.safetensors --model logistic "
        "--inputs pool.csv",
        "posterity distill distillation.toml",
    )
)
def distill(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A posterior or ledger of a network or regression; or a TOML file that names "
            "data, model, sampler and student, and then everything else.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where the student goes.")
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Unlabelled inputs to listen at: .csv, .npz or .npy."),
    ] = None,
    array: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which array of an .npz, if several.")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.0, help="Perturb the inputs by so much, in their units."),
    ] = None,
    box: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="Inputs anywhere between these, without a file."),
    ] = None,
    mixup: Annotated[bool, typer.Option("--mixup", help="Mix pairs of the inputs.")] = False,
    model: Annotated[
        str | None,
        typer.Option(metavar="[logistic|linear]", help="The regression that a Gaussian is of."),
    ] = None,
    likelihood: Likelihood = None,
    noise_variance: Annotated[
        float | None,
        typer.Option(metavar="V", help="Of what is observed about its mean, for values."),
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="The student's hidden units; as the teacher's if left out."
        ),
    ] = None,
    split: Annotated[
        bool,
        typer.Option("--split", help="Keep apart what more data would tell."),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of the student; 20,000 if left out.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of all that is random; 0 if left out.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to draw how it closed in: .png, .pdf or .svg."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the run is kept; beside the output if left out."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train one small network to predict as a posterior does, without its data.

    A checkpoint is kept beside the output until the student is written: a distillation that was
    interrupted goes on where it was when the command is run again. Ctrl-C ends it after the steps
    that it is at, twice at once. A student that is not as close to its teacher as the tolerance is
    written, said to be so, and the exit code is 9.
    """
    stop, settled = functools.partial(stopped, as_json=as_json), []
    given = {
        "output": output, "pool": inputs, "array": array, "noise": noise, "box": box,
        "mixup": mixup or None, "model": model, "likelihood": likelihood,
        "noise_variance": noise_variance, "hidden": _hidden(hidden), "split": split or None,
        "steps": steps, "seed": seed, "plot": plot, "checkpoint": checkpoint,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    present(lambda: _distill(file, given, stop, settled.append), "distill", as_json)
    if not all(settled):
        raise typer.Exit(ConvergenceError.exit_code)


def _distill(
    file: Path, given: dict[str, Any], stop: Watch, settled: Callable[[bool], None]
) -> dict[str, Any]:
    with deferred(stop) as interrupts:
        job = _job(file, given)
        interrupts.check()
        found, resumed = _run(job)
        settled(found.status.converged)
        interrupts.check()
        told = _written(job, found) | {"resumed": resumed} | _data(found)
    interrupts.check()  # here, where those that come later are not deferred any more
    job.checkpoint.unlink(missing_ok=True)  # a call with other steps is another distillation
    return told


def _job(file: Path, given: dict[str, Any]) -> "Job":
    """All that is read, checked before any work."""
    from posterity.plots import check_format

    if file.suffix == CONFIG:
        from posterity.cli.config.distillation import load_job

        if given:
            names = ", ".join("--" + name.replace("_", "-") for name in given)
            raise UsageError(
                found=f"{names} beside the configuration {str(file)!r}".replace("pool", "inputs"),
                expected="everything in the configuration",
                fix="Say it there: see docs/distill.md for a complete file.",
            )
        job = load_job(file)
    else:
        from posterity.cli.jobs import Options, of_posterior

        if "output" not in given:
            raise UsageError(
                found="no --output", expected="where the student goes", fix="Pass -o FILE."
            )
        _check_files(Options(**given), file)
        job = of_posterior(file, Options(**given))
    files.check_outputs(job.outputs, job.reads)
    if job.plot is not None:
        check_format(job.plot)
    return job


def _check_files(options: "Options", file: Path) -> None:
    """Before anything is read, which may take a while."""
    outputs = [path for path in (options.output, options.plot, options.checkpoint) if path]
    files.check_outputs(outputs, [path for path in (file, options.pool) if path])


def _run(job: "Job") -> "tuple[Distillation, int]":
    """What came of it, and the step that an earlier call had come to."""
    import jax

    from posterity.distillation import distill
    from posterity.distillation.distill import STEPS

    key, seen = jax.random.key(job.seed), []
    with jax.enable_x64(False):
        student = job.student(job.teacher, job.inputs.sample(2, key=key))
    with bar("Distilling", job.options.get("steps", STEPS)) as moved, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the status says it

        def progress(now: "Progress") -> None:
            seen.append(now.step)
            moved(now.step, f"Distilling: {now.left:.2g} nats to go")

        found = distill(
            job.teacher, student, key=key, inputs=job.inputs, checkpoint=job.checkpoint,
            progress=progress, **job.options,
        )  # fmt: skip
    before = found.trace[: len(found.trace) - len(seen)]
    return found, before[-1].step if before else 0


def _written(job: "Job", found: "Distillation") -> dict[str, Any]:
    from posterity.artifact.columns import as_provenance
    from posterity.plots import plot_distillation

    if job.plot is not None:  # before the student: a picture that cannot be drawn leaves nothing
        plot_distillation(found, job.plot)
    told = {**job.about, "seed": str(job.seed), "steps": str(found.steps),
            "status": str(found.status)}  # fmt: skip
    written = files.write(found.student, job.output, "distill", told | as_provenance(job.columns))
    return {
        "output": written.path,
        "digest": written.digest,
        "plot": None if job.plot is None else str(job.plot),
        "teacher": job.about["teacher"],
        "columns": list(job.columns),
        "notes": list(job.notes),
    }


def _data(found: "Distillation") -> dict[str, Any]:
    student, status = found.student, found.status
    return {
        "student": {
            "network": student.summary,
            "weights": student.size,
            "likelihood": student.head.likelihood,
            "targets": student.head.targets,
            "split": student.head.split,
        },
        "steps": found.steps,
        "status": {
            "state": status.state,
            "left": number(status.left),
            "tolerance": status.tolerance,
            "drift": number(found.drift),
            "temperature": number(found.temperature),
            "reasons": list(status.reasons),
        },
    }


def _hidden(text: str | None) -> tuple[int, ...] | None:
    """Numbers of units, one a layer."""
    if text is None:
        return None
    try:
        units = tuple(int(part) for part in text.split(","))
    except ValueError:
        units = ()
    if not units or min(units) < 1:
        raise UsageError(
            found=f"--hidden {text}",
            expected="whole numbers, at least 1, with commas between them",
            fix="Write for example --hidden 150, or --hidden 100,50.",
        )
    return units
