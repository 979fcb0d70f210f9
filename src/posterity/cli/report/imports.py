"""What was read from a table, parameter by parameter."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from posterity.cli.failures import printable
from posterity.cli.report.numbers import MOST_ROWS, short


def text(data: dict[str, Any]) -> RenderableType:
    """A line a parameter, and where they went."""
    headline = f"Read {len(data['parameters'])} parameters ({data['family']})."
    return Group(headline, "", parameters(data["parameters"]), "", _written(data))


def parameters(rows: list[dict[str, Any]]) -> Table:
    """Names, means and standard deviations; of very many the first."""
    table = Table("parameter", "mean", "sd")
    for row in rows[:MOST_ROWS]:
        table.add_row(printable(row["name"]), short(row["mean"]), short(row["sd"]))
    if len(rows) > MOST_ROWS:
        table.add_row(f"and {len(rows) - MOST_ROWS} more", "", "")
    return table


def _written(data: dict[str, Any]) -> str:
    of = "" if data["site"] is None else f" of site {printable(data['site'])}"
    return f"Wrote {data['kind']}{of} to {printable(data['output'])}"
