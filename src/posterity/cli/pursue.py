"""``posterity pursue``: a posterior as a mixture that grows until nothing is gained."""

import functools
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.failures import printable, stopped
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.errors import ConvergenceError, ConvergenceWarning
from posterity.interrupts import Interrupts, Watch, deferred

if TYPE_CHECKING:
    from posterity.cli.config.pursuit import Job
    from posterity.families import Mixture
    from posterity.pursuit import Pursuit
    from posterity.status import Progress


@app.command(epilog=example("posterity pursue pursuit.toml"))
def pursue(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file.")],
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to draw how it grew: .png, .pdf or .svg."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find a posterior as a mixture, which grows until another component adds nothing.

    The configuration names data, model, prior and the kind of the components. Ctrl-C ends it after
    the component that it is at, twice at once; the mixture so far is then kept beside the output,
    as NAME.partial.ENDING. A posterior that has not converged is written, said to be so, and the
    exit code is 9.
    """
    stop, settled = functools.partial(stopped, as_json=as_json), []
    present(lambda: _pursue(config, plot, stop, settled.append, as_json), "pursue", as_json)
    if not all(settled):
        raise typer.Exit(ConvergenceError.exit_code)


def _pursue(
    file: Path, plot: Path | None, stop: Watch, settled: Callable[[bool], None], as_json: bool
) -> dict[str, Any]:
    with deferred(stop) as interrupts:
        job, plot = _job(file, plot)
        interrupts.check()
        found = _run(job, interrupts, as_json)
        settled(found.status.converged)
        told = _written(job, plot, found) | _data(found)
    interrupts.check()  # here, where those that come later are not deferred any more
    return told


def _job(file: Path, plot: Path | None) -> "tuple[Job, Path | None]":
    """All that is read, checked before any work, and where the picture goes."""
    from posterity.cli.config.pursuit import load_job
    from posterity.plots import check_format

    job = load_job(file)
    plot = job.plot if plot is None else plot
    outputs = [path for path in (job.output, job.partial, plot) if path]
    files.check_outputs(outputs, job.reads)
    if plot is not None:
        check_format(plot)
    return job, plot


def _run(job: "Job", interrupts: Interrupts, as_json: bool) -> "Pursuit":
    """The pursuit; what it has found when it is interrupted is kept."""
    import jax

    import posterity

    total = job.options.get("components")
    with bar("Pursuing: the first component", total) as moved, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the status says it

        def progress(now: "Progress") -> None:
            if sys.stderr.isatty():
                print(now.result.trace[-1], file=sys.stderr)  # above the bar
            moved(now.step, f"Pursuing: {now.step} components")
            interrupts.rescue = functools.partial(_kept, job, now, as_json)
            if interrupts.came:
                interrupts.rescue()
                interrupts.rescue = lambda: None
                interrupts.check()

        found = posterity.pursue(
            job.target, job.base, key=jax.random.key(job.seed), progress=progress, **job.options
        )
    interrupts.rescue = lambda: None  # nothing is lost: it is written next
    return found


def _kept(job: "Job", now: "Progress", as_json: bool) -> None:
    """Write the mixture so far beside the output, and say so to people."""
    so_far = now.result
    told = {"status": "interrupted", "elbo": f"{so_far.elbo} ± {so_far.standard_error}"}
    _write(job, so_far.posterior, job.partial, told)
    if not as_json:
        what = f"{now.step} components that were found are in {job.partial}"
        print(printable(what), file=sys.stderr)


def _write(job: "Job", posterior: "Mixture", path: Path, told: dict[str, str]) -> Any:
    named = {}
    if job.columns:  # of coefficients, or of the inputs of a network
        key = "inputs" if job.about["model"] == "network" else "coefficients"
        named[key] = json.dumps(list(job.columns))
    return files.write(
        posterior, path, "pursue", {**job.about, "seed": str(job.seed), **told, **named}
    )


def _written(job: "Job", plot: Path | None, found: "Pursuit") -> dict[str, Any]:
    from posterity.plots import plot_pursuit

    if plot is not None:  # before the posterior: a picture that cannot be drawn leaves nothing
        plot_pursuit(found, plot)
    told = {
        "elbo": f"{found.elbo} ± {found.standard_error}",
        "evaluations": str(found.trace[-1].evaluations),
        "status": str(found.status),
    }
    written = _write(job, found.posterior, job.output, told)
    job.partial.unlink(missing_ok=True)  # of an earlier call, which was interrupted
    return {
        "output": written.path,
        "digest": written.digest,
        "plot": None if plot is None else str(plot),
        "model": job.about["model"],
        "base": job.base,
        "columns": list(job.columns),
        "notes": list(job.notes),
    }


def _data(found: "Pursuit") -> dict[str, Any]:
    status = found.status
    return {
        "components": found.posterior.size,
        "elbo": number(found.elbo),
        "standard_error": number(found.standard_error),
        "trace": [
            {
                name: value if isinstance(value, int) else number(value)
                for name, value in row._asdict().items()
            }
            for row in found.trace
        ],
        "refused": [{"number": place, "reason": reason} for place, reason in found.refused],
        "status": {
            "state": status.state,
            "left": number(status.left),
            "tolerance": number(status.tolerance),
            "gap": number(found.gap),
            "effective": number(found.effective),
            "reasons": list(status.reasons),
        },
    }
