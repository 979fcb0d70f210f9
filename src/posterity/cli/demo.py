"""``posterity demo``: handwritten digits, fused from the files of several sites."""

from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli.app import app, example
from posterity.cli.streams import Json, present


@app.command(epilog=example("posterity demo --output posterity-demo"))
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for its files.")
    ] = Path("posterity-demo"),
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all that is random.")] = 0,
    as_json: Json = False,
) -> None:
    """Fuse posteriors trained at several sites, and show what came out."""
    present(lambda: _demo(output, seed), "demo", as_json)


def _demo(output: Path, seed: int) -> dict[str, Any]:
    from posterity.cli.digits import FUSED, PICTURE, REPORT, run

    report = run(output, seed=seed)
    files = [f"{row['name']}.safetensors" for row in report["sites"]]
    return report | {"folder": str(output), "files": [*files, FUSED, PICTURE, REPORT]}
