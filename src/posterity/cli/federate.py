"""``posterity federate``: a federation simulated from a configuration."""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.failures import stopped
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.errors import ConvergenceError
from posterity.interrupts import Watch, deferred
from posterity.status import Progress

if TYPE_CHECKING:
    from posterity.cli.config.federation import Config
    from posterity.federation import Run


@app.command(epilog=example("posterity federate federation.toml"))
def federate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file.")],
    as_json: Json = False,
) -> None:
    """Simulate a federation: sites improve one posterior, step by step.

    The configuration names each site's data, the model, the prior, and who updates when. A
    checkpoint is kept beside the output: a federation that was interrupted goes on where it was
    when the command is run again. Ctrl-C ends it after the step that it is at, twice at once. A
    posterior that has not converged is written, said to be so, and the exit code is 9.
    """
    stop, settled = functools.partial(stopped, as_json=as_json), []
    present(lambda: _federate(config, stop, settled.append), "federate", as_json)
    if not all(settled):
        raise typer.Exit(ConvergenceError.exit_code)


def _federate(path: Path, stop: Watch, settled: Callable[[bool], None]) -> dict[str, Any]:
    with deferred(stop) as interrupts:
        from posterity.cli.config.federation import load_config
        from posterity.federation.federate import proceed

        config = load_config(path)
        files.check_outputs(config.outputs, config.inputs)
        interrupts.check()
        run, steps = config.start(), []
        converge = config.steps is None or config.until is not None
        with bar(f"Federating: {run.rule}", None if converge else config.steps) as moved:

            def report(progress: Progress) -> None:
                steps.append(progress.step)
                moved(progress.step)

            checkpoint = config.checkpoint
            run = proceed(run, config.steps, converge, progress=report, checkpoint=checkpoint)
        settled(run.status.converged or config.steps == 0)
        interrupts.check()
        resumed = steps[0] - 1 if steps else run.state.step
        told = _written(config, run) | {"resumed": resumed} | _data(run, config.steps)
    interrupts.check()  # here, where those that come later are not deferred any more
    return told


def _written(config: "Config", run: "Run") -> dict[str, Any]:
    from posterity.artifact.aligned import listed, names_in
    from posterity.files import write_file

    written = files.write(run.ledger, config.output, "federate", _provenance(run))
    if config.history is not None:
        lines = (json.dumps(dataclasses.asdict(visit)) + "\n" for visit in run.trace)
        write_file(config.history, "".join(lines).encode())
    named = {"columns": list(listed(names_in(run.ledger))), "notes": list(config.notes)}
    return {"output": written.path, "digest": written.digest} | named


def _provenance(run: "Run") -> dict[str, str]:
    return {
        "schedule": type(run.schedule).__name__,
        "steps": str(run.state.step),
        "status": str(run.status),
    }


def _data(run: "Run", steps: int | None) -> dict[str, Any]:
    from posterity.federation.federate import too_few_hops

    outcomes = Counter((visit.site, visit.outcome) for visit in run.trace)
    last = {visit.site: visit.residual for visit in run.trace}
    return {
        "schedule": type(run.schedule).__name__,
        "unit": run.schedule.unit,
        "steps": run.state.step,
        "exact": run.exact,
        "rule": run.rule,
        "warning": too_few_hops(run, steps),
        "status": {
            "state": run.status.state,
            "left": number(run.status.left),
            "tolerance": run.status.tolerance,
            "reasons": list(run.status.reasons),
        },
        "sites": {
            site: {
                "records": records,
                "updates": outcomes[site, "updated"],
                "failures": outcomes[site, "failed"] + outcomes[site, "refused"],
                "residual": number(last.get(site)),
            }
            for site, records in run.federation.records.items()
        },
    }
