"""How many records were predicted, and how unsure they are on average."""

from typing import Any

from posterity.cli.failures import printable
from posterity.cli.report.numbers import short

UNITS = {"entropy": " nats", "mutual_information": " nats"}


def text(data: dict[str, Any]) -> str:
    """A headline, means of what is uncertain, and where it is all written."""
    what = f"{data['kind']} in {printable(data['file'])}"
    means = (
        f"  mean {name.replace('_', ' ')}: {short(value)}{UNITS.get(name, '')}"
        for name, value in data["means"].items()
    )
    columns = ", ".join(_few(data["columns"]))
    wrote = f"Wrote {columns} to {printable(data['output'])}"
    return "\n".join([f"Predicted {data['records']:,} records by the {what}.", *means, wrote])


def _few(columns: list[str]) -> list[str]:
    """Not all of a hundred classes."""
    return columns if len(columns) <= 12 else [*columns[:4], "...", *columns[-4:]]
