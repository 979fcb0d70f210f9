"""What was fused, and which components of which site went where."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posterity.cli.failures import printable
from posterity.cli.report.numbers import MOST_ROWS, short

MOST_COLUMNS = 12
"""Fused components that a person is shown."""


def text(data: dict[str, Any]) -> RenderableType:
    """A headline and a table for each plate."""
    parts: list[RenderableType] = [
        f"Fused {data['count']} sites ({data['rule']}, {_divergence(data['divergence'])})."
    ]
    if data["network"] is not None:
        parts.append(_network(data["network"]))
    if data["plot"] is not None:
        parts.append(f"Drew the matching in {printable(data['plot'])}")
    for path, plate in data["plates"].items():
        parts += [
            "",
            _headline(path, plate),
            *_scale(plate, data),
            _matching(plate),
            *_absorbed(plate),
        ]
        parts += _sureness(plate)
    return Group(*parts, "", f"Wrote {data['kind']} to {printable(data['output'])}")


def _network(network: dict[str, Any]) -> str:
    widths = ", ".join(map(str, network["widths"])) or "no"
    kl, tried = short(network["predictive_kl"]), network["tried"]
    looked = f" ({len(tried)} widths tried, tolerance {network['tolerance']:g})"
    return (
        f"A network of {widths} hidden units, {kl} nats of predictive KL from all sites' side by "
        f"side{looked if len(tried) > 1 else ''}."
    )


def _divergence(name: str) -> str:
    """A direction of KL is said to be one."""
    return f"{name} KL" if name in ("reverse", "forward") else name


def _headline(path: str, plate: dict[str, Any]) -> str:
    name = f"{printable(path)}: " if path else ""
    size, cost = plate["components"], short(plate["cost"])
    return f"{name}{size} components, cost {cost} nats. Columns are fused, cells local ones."


def _scale(plate: dict[str, Any], data: dict[str, Any]) -> list[RenderableType]:
    """Nats a component, beside what sampling alone would give."""
    if plate["residual"] is None or data["network"] is not None:
        return []
    scale = plate["scale"]
    return [Text(f"{scale[:1].upper()}{scale[1:]}.")]


def _absorbed(plate: dict[str, Any]) -> list[RenderableType]:
    """Which local components were found to be part of another of their site's."""
    found = [(site, k) for site, parts in plate["absorbed"].items() for k in parts]
    if not found:
        return []
    told = ", ".join(f"{k} of {printable(site)}" for site, k in found[:MOST_ROWS])
    more = f" and {len(found) - MOST_ROWS} more" if len(found) > MOST_ROWS else ""
    return [Text(f"Absorbed, part of another of their site's: {told}{more}.")]


def _sureness(plate: dict[str, Any]) -> list[RenderableType]:
    """The runner-up among numbers of components, and the matches that hang on little."""
    # Here, so that what lists commands and renders other results imports no array library.
    from posterity.fusion.alignment import NO_SCALE
    from posterity.fusion.confidence import AMBIGUOUS

    lines: list[RenderableType] = []
    others = {int(g): n for g, n in plate["components_evidence"].items()}
    others.pop(plate["components"], None)
    if others:
        number = min(others, key=others.__getitem__)
        nats, style = others[number], "red" if others[number] < AMBIGUOUS else ""
        lines.append(Text(f"Next best: {number} components, {short(nats)} nats worse.", style))
    if not plate["identified"]:
        lines.append(Text(f"Not identified: {NO_SCALE}.", "red"))
    return [*lines, _doubtful(plate["doubtful"])] if plate["doubtful"] else lines


def _doubtful(rows: list[dict[str, Any]]) -> Table:
    table = Table("doubtful at", "component", "margin in nats", box=SIMPLE, padding=(0, 0, 0, 1))
    for row in rows[:MOST_ROWS]:
        table.add_row(printable(row["site"]), str(row["component"]), short(row["margin"]))
    if (more := len(rows) - MOST_ROWS) > 0:
        table.add_row(f"and {more} more")
    return table


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
