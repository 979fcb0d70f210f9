"""``posterity distill``: one small network that predicts as a posterior does."""

import warnings
from typing import TYPE_CHECKING, Any

from posterity.cli import files
from posterity.cli.failures import printable
from posterity.cli.options import Settings, verb
from posterity.cli.report import Data, group, left_in, status_of, status_report
from posterity.cli.streams import bar
from posterity.errors import ConvergenceWarning
from posterity.interrupts import deferred

if TYPE_CHECKING:
    from posterity.cli.teachers import Distilled
    from posterity.distillation import Distillation
    from posterity.status import Progress

DIAGNOSTICS = ("drift", "temperature", "rhat", "effective")
"""What is reported of a student beside its status; all but the first is of its teacher's chains."""


def _report(data: Data) -> Any:
    student, status = data["student"], data["status"]
    resumed = f", from {data['resumed']:,} on" if data["resumed"] else ""
    split = ", split" if student["split"] else ""
    parts = [
        f"Distilled {printable(data['teacher'])} in {data['steps']:,} steps{resumed}.",
        f"Student: {student['network']}, {student['likelihood']}{split}, "
        f"{student['weights']:,} weights.",
        status_report("The student", status, "nats from its teacher"),
    ]
    if status["temperature"] is not None:
        parts.append(f"Temperature of the chains: {status['temperature']:.3f}; it should be 1.")
    if status["rhat"] is not None:
        parts.append(f"R-hat {status['rhat']:.2f}, {status['effective']:.0f} effective draws.")
    parts += left_in("Drew how it closed in, in", data["plot"])
    return group(*parts, f"Wrote the student to {printable(data['output'])}")


@verb("distill", report=_report)
def distill(settings: Settings) -> Data:
    """Train one small network to predict as a posterior does."""
    from posterity.cli.teachers import distillation_of

    with deferred() as interrupts:
        job = distillation_of(settings)
        distillation, resumed = _run(settings, job)
        data = _written(settings, job, distillation) | {"resumed": resumed}
        interrupts.check()
        settings.checkpoint.unlink(missing_ok=True)  # other steps are another distillation
    return data


def _run(settings: Settings, job: "Distilled") -> "tuple[Distillation, int]":
    """The distillation, and the step that an earlier call had come to."""
    import jax

    from posterity.distillation import Head, distill
    from posterity.networks import Layers

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

        def progress(now: "Progress") -> None:
            seen.append(now.step)
            moved(now)

        distillation = distill(
            job.teacher,
            student,
            key=key,
            inputs=job.inputs,
            checkpoint=settings.checkpoint,
            progress=progress,
            **options,
        )
    before = distillation.trace[: len(distillation.trace) - len(seen)]
    return distillation, before[-1].step if before else 0


def _written(settings: Settings, job: "Distilled", distillation: "Distillation") -> Data:
    """Draw the picture if it is wanted, and write the student; what there is to report."""
    from posterity.artifact.provenance import as_provenance
    from posterity.plots import plot_distillation

    plot, student = settings.path("output.plot"), distillation.student
    if plot is not None:  # before the student: a picture that cannot be drawn leaves nothing
        plot_distillation(distillation, plot)
    record = {
        **job.record,
        "seed": str(settings["seed"]),
        "steps": str(distillation.steps),
        "status": str(distillation.status),
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
        "steps": distillation.steps,
        "status": status_of(
            distillation.status, **{name: getattr(distillation, name) for name in DIAGNOSTICS}
        ),
    }
