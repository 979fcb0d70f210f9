"""``posterity export``: a posterior's means and standard deviations, as a table."""

from pathlib import Path

from posterity.cli import files
from posterity.cli.failures import printable
from posterity.cli.options import FILE, Option, Settings, verb
from posterity.cli.report import Data
from posterity.cli.schema import OUTPUT
from posterity.errors import UsageError

SUFFIXES = (".csv", ".json")


def _report(data: Data) -> str:
    lines = [f"Wrote {data['parameters']} parameters to {printable(data['output'])}"]
    if data["covariance"] is not None:
        lines.append(f"Wrote their covariance to {printable(data['covariance'])}")
    return "\n".join(lines)


@verb(
    Option("posterior", FILE, "The posterior, in place of the argument."),
    Option("covariance", FILE, "Where to write the covariance beside a .csv."),
    OUTPUT,
    files="A posterior, or a ledger of one.",
    report=_report,
    examples=[
        "posterity export both.safetensors -o table.csv",
        "posterity export both.safetensors -o table.csv --covariance covariance.csv",
        "posterity export both.safetensors -o table.json",
    ],
)
def export(settings: Settings) -> Data:
    """Write a posterior's means and standard deviations as a table, which `import` reads again."""
    from posterity.adapters.tables import to_table, write

    path, output = settings.single("posterior"), Path(settings.need("output.file"))
    covariance = settings.path("covariance")
    files.check_outputs([output, *([covariance] if covariance else [])], [path])
    if output.suffix.lower() not in SUFFIXES:
        raise UsageError(
            found=f"output {str(output)!r}",
            expected="a file that ends in .csv or .json",
            fix="Choose another output.",
        )
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
