"""What a file holds: facts, the family as a tree, and a ledger's sites."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.tree import Tree

from posterity.cli.failures import printable
from posterity.cli.report.numbers import MOST_ROWS, short

MOST_NUMBERS = 8
"""Weights that a person is shown."""
MOST_CHARACTERS = 60
"""Of a plain value."""


def text(data: dict[str, Any]) -> RenderableType:
    """Facts first."""
    facts = Table.grid("", "", padding=(0, 2))
    facts.columns[1].overflow = "fold"
    for name in ("path", "kind", "format", "bytes", "digest", "prior_digest", "proper"):
        if name in data:
            facts.add_row(name, printable(data[name]))
    for name, value in data["provenance"].items():
        if name != "columns":  # which are told with their coefficients
            facts.add_row("provenance", printable(f"{name}: {value}"))
    for name, value in data.get("student", {}).items():
        if isinstance(value, dict):
            value = ", ".join(part for part, is_so in value.items() if is_so) or None
        if value is not None:
            facts.add_row(name.replace("_", " "), printable(value))
    if data.get("inputs"):
        facts.add_row("columns", printable(_few(data["inputs"])))
    parts = [_tree(data["content"] if "content" in data else data["family"])]
    parts += [_sites(data["sites"])] if "sites" in data else []
    parts += [_coefficients(data["coefficients"])] if data.get("coefficients") else []
    return Group(facts, *(part for one in parts for part in ("", one)))


def _few(names: list[str]) -> str:
    more = len(names) - MOST_ROWS
    return ", ".join(names[:MOST_ROWS]) + (f" and {more} more" if more > 0 else "")


def _coefficients(rows: list[dict[str, Any]]) -> Table:
    table = Table("coefficient", "mean", "sd", "95 % interval")
    for index, row in enumerate(rows[:MOST_ROWS]):
        name = str(index) if row["name"] is None else row["name"]
        block = f"{row['block']}: " if row["block"] else ""
        cells = (short(row["mean"]), short(row["sd"]), " to ".join(map(short, row["interval"])))
        table.add_row(printable(block + name), *cells)
    if (more := len(rows) - MOST_ROWS) > 0:
        table.add_row(f"and {more} more")
    return table


def _sites(sites: dict[str, Any]) -> Table:
    table = Table("site", "epoch", "sequence", "contributes")
    for site, entry in sites.items():
        contributes = "no (forgotten)" if entry["forgotten"] else "yes"
        table.add_row(printable(site), str(entry["epoch"]), str(entry["sequence"]), contributes)
    return table


def _tree(node: dict[str, Any], name: str = "") -> Tree:
    tree = Tree(f"{printable(name)}: {_label(node)}" if name else _label(node))
    for key, child in _children(node).items():
        if isinstance(child, dict):
            tree.add(_tree(child, key))
        elif isinstance(child, str):
            tree.add(printable(f"{key}: {child[:MOST_CHARACTERS]}"))
        elif child is not None:
            tree.add(f"{printable(key)} {tuple(child)}")
    return tree


def _children(node: dict[str, Any]) -> dict[str, Any]:
    children = dict(node["parameters"])
    blocks = children.get("blocks")
    if not isinstance(blocks, dict) or isinstance(blocks.get("type"), str):
        return children
    return {**children.pop("blocks"), **children}  # of a product, whatever its name


def _label(node: dict[str, Any]) -> str:
    label = printable(node["type"])
    if "components" in node:
        label += f" of {node['components']} components"
    if "batch" in node:
        label += f", batch {tuple(node['batch'])}"
    if "expected_weights" in node:
        weights = node["expected_weights"]
        more = " ..." if len(weights) > MOST_NUMBERS else ""
        label += f", expected weights {' '.join(map(short, weights[:MOST_NUMBERS]))}{more}"
    return label
