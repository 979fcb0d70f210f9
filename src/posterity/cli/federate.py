"""``posterity federate``: a federation simulated from a configuration."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli.app import app, example
from posterity.cli.streams import Json, check_outputs, present
from posterity.errors import UsageError


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
    present(lambda: _federate(config), "federation_text", as_json)


def _federate(path: Path) -> dict[str, Any]:
    from posterity.artifact import inspect, save
    from posterity.cli.config.federation import load_config
    from posterity.cli.report import federation_data
    from posterity.federation.checkpoint import resumed
    from posterity.federation.federate import advance_safely

    config = load_config(path)
    check_outputs(config.outputs, config.inputs)
    run = resumed(config.start(), config.checkpoint)
    done = run.state.step
    if done > config.steps:
        raise UsageError(
            found=f"schedule.steps = {config.steps}, of which {done} were made",
            expected="as many as the checkpoint has made, or more",
            fix="Raise schedule.steps, or remove the checkpoint to begin anew.",
        )
    with _bar(done, config.steps, run.schedule.unit) as moved:
        run = advance_safely(
            run, config.steps, config.checkpoint, config.every, lambda run: moved(run.state.step)
        )
    provenance = {
        "made by": f"posterity {_version()} federate",
        "schedule": type(run.schedule).__name__,
        "steps": str(run.state.step),
        "grid": json.dumps(run.problem.grid.exponents),
    }
    save(run.ledger, config.output, provenance=provenance)
    if config.history is not None:
        _write_history(run, config.history)
    return federation_data(run, inspect(config.output), done)


@contextlib.contextmanager
def _bar(done: int, steps: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where someone is looking."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"Federating, {steps} {unit}", total=steps, completed=done)
        yield lambda step: progress.update(task, completed=step)


def _write_history(run: Any, path: Path) -> None:
    import dataclasses

    from posterity.artifact import write_file

    lines = "".join(json.dumps(dataclasses.asdict(visit)) + "\n" for visit in run.history)
    write_file(path, lines.encode())


def _version() -> str:
    from posterity import __version__

    return __version__
