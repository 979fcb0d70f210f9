"""``posterity distill``: one small network that predicts as a posterior does."""

import warnings
from typing import Any

import jax

from posterity import distillation
from posterity.artifact.provenance import as_provenance
from posterity.cli import files
from posterity.cli.options import Settings
from posterity.cli.report import Group, group, status_of, status_report, wrote
from posterity.cli.streams import Data, bar, printable, verb
from posterity.cli.teachers import Distilled, distillation_of
from posterity.distillation import Distillation, Head
from posterity.errors import ConvergenceWarning
from posterity.interrupts import deferred
from posterity.networks import Layers
from posterity.plots import plot_distillation
from posterity.status import Progress

DIAGNOSTICS = ("drift", "temperature", "rhat", "effective")
"""What is reported of a student beside its status; all but the first is of its teacher's chains."""


def _report(data: Data) -> Group:
    student, status = data["student"], data["status"]
    resumed = f", from {data['resumed']:,} on" if data["resumed"] else ""
    split = ", split" if student["split"] else ""
    parts: list[Any] = [
        f"Distilled {printable(data['teacher'])} in {data['steps']:,} steps{resumed}.",
        f"Student: {student['network']}, {student['likelihood']}{split}, "
        f"{student['weights']:,} weights.",
        status_report("The student", status, "nats from its teacher"),
    ]
    if status["temperature"] is not None:
        parts.append(f"Temperature of the chains: {status['temperature']:.3f}; it should be 1.")
    if status["rhat"] is not None:
        parts.append(f"R-hat {status['rhat']:.2f}, {status['effective']:.0f} effective draws.")
    parts.append(wrote("Drew how it closed in, in", data["plot"]))
    return group(*parts, f"Wrote the student to {printable(data['output'])}")


@verb(_report)
def distill(settings: Settings) -> Data:
    """Train one small network to predict as a posterior does."""
    with deferred() as interrupts:
        job = distillation_of(settings)
        result, resumed = _run(settings, job)
        data = _written(settings, job, result) | {"resumed": resumed}
        interrupts.check()
        settings.checkpoint.unlink(missing_ok=True)  # other steps are another distillation
    return data


def _run(settings: Settings, job: Distilled) -> tuple[Distillation, int]:
    """The distillation, and the step that an earlier call had come to."""
    key, seen = jax.random.key(settings["seed"]), []
    hidden, options = settings["student.hidden"], settings.table("student", "hidden")
    student = None  # the library's own
    if hidden is not None:
        with jax.enable_x64(False):
            x: Any = job.inputs.sample(2, key=key)
            own = job.teacher.head(x[:2])
            split = bool(settings["student.split"])
            head = Head(own.likelihood, own.targets, split, own.noise_variance)
            student = Layers.dense(x[0].size, *hidden, head.size)
    with bar("Distilling") as moved, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the status says it

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
    """Draw the picture if it is wanted, and write the student; what there is to report."""
    plot, student = settings.path("output.plot"), result.student
    if plot is not None:  # before the student: a picture that cannot be drawn leaves nothing
        plot_distillation(result, plot)
    record = {
        **job.record,
        "seed": str(settings["seed"]),
        "steps": str(result.steps),
        "status": str(result.status),
        **as_provenance(job.names),
    }
    written = files.write(student, settings.output, "distill", record)
    return {
        "output": written.path,
        "digest": written.digest,
        "plot": plot,
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
