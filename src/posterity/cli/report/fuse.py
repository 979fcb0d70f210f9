"""What was fused, and which components of which site went where."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table

from posterity.cli.failures import printable
from posterity.cli.report.numbers import MOST_ROWS, short

MOST_COLUMNS = 12
"""Fused components that a person is shown."""


def text(data: dict[str, Any]) -> RenderableType:
    """A headline and a table for each plate."""
    parts: list[RenderableType] = [
        f"Fused {len(data['sites'])} sites ({data['rule']}, {data['divergence']} KL)."
    ]
    for path, plate in data["plates"].items():
        parts += ["", _headline(path, plate), _matching(plate)]
    return Group(*parts, "", f"Wrote {data['kind']} to {printable(data['output'])}")


def _headline(path: str, plate: dict[str, Any]) -> str:
    name = f"{printable(path)}: " if path else ""
    size, cost = plate["components"], short(plate["cost"])
    return f"{name}{size} components, cost {cost} nats. Columns are fused, cells local ones."


def _matching(plate: dict[str, Any]) -> Table:
    """Rows are sites, columns fused components, cells the local indices that went there."""
    shown = range(min(plate["components"], MOST_COLUMNS))
    table = Table("site", *map(str, shown), box=SIMPLE, padding=(0, 0, 0, 1))
    hidden = plate["components"] > len(shown)
    unused = any(-1 in labels for labels in plate["matching"].values())
    for header in ["more"] * hidden + ["unused"] * unused:
        table.add_column(header)
    for site, labels in list(plate["matching"].items())[:MOST_ROWS]:
        cells = [_members(labels, g) for g in shown]
        cells += [str(sum(g >= len(shown) for g in labels))] * hidden  # how many
        table.add_row(printable(site), *cells, *[_members(labels, -1)] * unused)
    if (more := len(plate["matching"]) - MOST_ROWS) > 0:
        table.add_row(f"and {more} more sites")
    return table


def _members(labels: Sequence[int], component: int) -> str:
    found = (str(index) for index, label in enumerate(labels) if label == component)
    return ",".join(found) or "."
