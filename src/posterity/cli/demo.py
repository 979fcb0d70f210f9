"""``posterity demo``."""

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli.app import app, example
from posterity.cli.streams import Json, show, streams


@app.command(epilog=example("posterity demo --output posterity-demo"))
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for its files.")
    ] = Path("posterity-demo"),
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of all that is random.")] = 0,
    as_json: Json = False,
) -> None:
    """Fuse posteriors trained at several sites, and show what came out."""
    with streams(as_json):
        from posterity.cli.digits import run

        report = run(output, seed=seed)
    show(report.to_json() if as_json else report.table(), as_json)
