"""``posterity federate``: a federation simulated from a configuration."""

import dataclasses
import functools
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.failures import stopped
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.interrupts import Watch, deferred

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
    when the command is run again. Ctrl-C ends it after the step that it is at, twice at once.
    """
    stop = functools.partial(stopped, as_json=as_json)
    present(lambda: _federate(config, stop), "federate", as_json)


def _federate(path: Path, stop: Watch) -> dict[str, Any]:
    with deferred(stop) as interrupts:
        from posterity.cli.config.federation import load_config
        from posterity.federation.checkpoint import keep
        from posterity.federation.durable import advance_safely

        config = load_config(path)
        files.check_outputs(config.outputs, config.inputs)
        interrupts.check()
        with keep(config.start(), config.checkpoint) as kept:
            done, steps = kept.run.state.step, config.steps
            with bar(f"Federating, {steps} {kept.run.schedule.unit}", steps, done) as moved:
                run = advance_safely(kept, steps, config.every, lambda run: moved(run.state.step))
        return _written(config, run) | {"resumed": done} | _data(run)


def _written(config: "Config", run: "Run") -> dict[str, Any]:
    from posterity.files import write_file

    written = files.write(run.ledger, config.output, "federate", _provenance(run))
    if config.history is not None:
        lines = (json.dumps(dataclasses.asdict(visit)) + "\n" for visit in run.history)
        write_file(config.history, "".join(lines).encode())
    return {"output": written.path, "digest": written.digest}


def _provenance(run: "Run") -> dict[str, str]:
    return {
        "schedule": type(run.schedule).__name__,
        "steps": str(run.state.step),
        "grid": json.dumps(run.federation.grid.exponents),
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
