"""``posterity export``: a posterior's means and standard deviations, as a table."""

from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.streams import Json, present
from posterity.errors import UsageError

SUFFIXES = (".csv", ".json")


@app.command(
    epilog=example(
        "posterity export both.safetensors -o table.csv",
        "posterity export both.safetensors -o table.csv --covariance covariance.csv",
        "posterity export both.safetensors -o table.json",
    )
)
def export(
    posterior: Annotated[
        Path, typer.Argument(metavar="FILE", help="A posterior, or a ledger of one.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write: .csv or .json.")
    ],
    covariance: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write the covariance beside a .csv."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a posterior's means and standard deviations as a table, which `import` reads again."""
    outputs = [output] if covariance is None else [output, covariance]
    files.check_outputs(outputs, [posterior])
    if output.suffix.lower() not in SUFFIXES:
        raise UsageError(
            found=f"output {str(output)!r}",
            expected="a file that ends in .csv or .json",
            fix="Choose another output.",
        )
    present(lambda: _export(posterior, output, covariance), "export", as_json)


def _export(path: Path, output: Path, covariance: Path | None) -> dict[str, Any]:
    from posterity.adapters.tables import to_table, write

    law, _ = files.read(path)
    table = to_table(law)
    write(law, output, covariance=covariance)
    dropped = "covariance" in table and covariance is None and output.suffix.lower() == ".csv"
    return {
        "output": str(output),
        "covariance": None if covariance is None else str(covariance),
        "family": table["family"],
        "parameters": len(table["names"]),
        "notes": ["correlations are not in the table: give --covariance FILE, or write a .json"]
        if dropped and len(table["names"]) > 1
        else [],
    }
