"""What a site's records say, coefficient by coefficient or component by component."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from posterity.cli.failures import printable
from posterity.cli.report.imports import parameters
from posterity.cli.report.numbers import MOST_ROWS, short


def text(data: dict[str, Any]) -> RenderableType:
    """A headline, a table, and where the ledger went."""
    of = "" if data["target"] is None else f" of {printable(data['target'])}"
    lines = [f"Fitted a {data['model']} model{of} to {data['records']} records."]
    if data["noise_variance"] is not None:
        lines.append(f"Noise variance {short(data['noise_variance'])}.")
    table = parameters(data["parameters"]) if data["parameters"] else _components(data)
    end = f"Wrote Ledger of site {printable(data['site'])} to {printable(data['output'])}"
    return Group(*lines, "", table, "", end)


def _components(data: dict[str, Any]) -> Table:
    """Heaviest first."""
    table = Table("weight", *(printable(name) for name in data["columns"]))
    ranked = sorted(data["components"], key=lambda part: -(part["weight"] or 0))
    for part in ranked[:MOST_ROWS]:
        table.add_row(short(part["weight"]), *map(short, part["mean"]))
    return table
