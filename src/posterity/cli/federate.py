"""``posterity federate``: a federation simulated from a configuration."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.errors import UsageError

if TYPE_CHECKING:
    from posterity.federation import Run


@app.command(epilog=example("posterity federate federation.toml"))
def federate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file.")],
    as_json: Json = False,
) -> None:
    """Simulate a federation: sites improve one posterior, step by step.

    The configuration names each site's data, the model, the prior, and who updates when. A
    checkpoint is kept beside the output: a federation that was interrupted goes on where it was
    when the command is run again.
    """
    present(lambda: _federate(config), "federate", as_json)


def _federate(path: Path) -> dict[str, Any]:
    from posterity.artifact.columns import as_provenance
    from posterity.cli.config.federation import load_config
    from posterity.federation.checkpoint import resumed
    from posterity.federation.durable import advance_safely
    from posterity.files import write_file

    config = load_config(path)
    files.check_outputs(config.outputs, config.inputs)
    run = resumed(config.start(), config.checkpoint)
    done = run.state.step
    if done > config.steps:
        raise UsageError(
            found=f"schedule.steps = {config.steps}, of which {done} were made",
            expected="as many as the checkpoint has made, or more",
            fix="Raise schedule.steps, or remove the checkpoint to begin anew.",
        )
    with bar(f"Federating, {config.steps} {run.schedule.unit}", config.steps, done) as moved:
        run = advance_safely(
            run, config.steps, config.checkpoint, config.every, lambda run: moved(run.state.step)
        )
    told = _provenance(run) | as_provenance(config.columns)
    written = files.write(run.ledger, config.output, "federate", told)
    if config.history is not None:
        lines = (json.dumps(dataclasses.asdict(visit)) + "\n" for visit in run.history)
        write_file(config.history, "".join(lines).encode())
    data = {"output": written.path, "digest": written.digest, "resumed": done}
    named = {"columns": list(config.columns), "notes": list(config.notes)}
    return data | named | _data(run)


def _provenance(run: "Run") -> dict[str, str]:
    return {
        "schedule": type(run.schedule).__name__,
        "steps": str(run.state.step),
    }


def _data(run: "Run") -> dict[str, Any]:
    outcomes = Counter((visit.site, visit.outcome) for visit in run.history)
    last = {visit.site: visit.residual for visit in run.history}
    return {
        "schedule": type(run.schedule).__name__,
        "unit": run.schedule.unit,
        "steps": run.state.step,
        "exact": run.exact,
        "sites": {
            site: {
                "records": records.size,
                "updates": outcomes[site, "updated"],
                "failures": outcomes[site, "failed"] + outcomes[site, "refused"],
                "residual": number(last.get(site)),
            }
            for site, records in run.federation.sites.items()
        },
    }
