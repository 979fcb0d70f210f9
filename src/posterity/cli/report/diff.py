"""How far two posteriors are from each other, block by block."""

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from posterity.cli.failures import printable
from posterity.cli.report.numbers import MOST_ROWS, short

Data = dict[str, Any]
MOST_SHIFTS = 5
"""Coordinates whose shift is told."""


def text(data: Data) -> RenderableType:
    """One table, and whose data went into which."""
    table = Table("block", "in a", "in b", "KL(a || b)", "KL(b || a)")
    for path, block in data["blocks"].items():
        table.add_row(printable(path) or block["family"], "", "", *_cells(block))
        for row in _plate_rows(block):
            table.add_row("", *row)
    table.add_section()
    table.add_row("total, in nats", "", "", *_cells(data))
    if data["standard_errors"]:
        table.add_row("standard error", "", "", *_cells(data["standard_errors"]))
    sites = [(name, data[f"sites_{name}"]) for name in "ab" if data[f"sites_{name}"] is not None]
    lines = [f"sites of {name}: {', '.join(found) or 'none'}" for name, found in sites]
    lines += [_moved(path, block["shifts"]) for path, block in data["blocks"].items()
              if block.get("shifts")]  # fmt: skip
    return Group(table, *map(printable, lines))


def _moved(path: str, shifts: dict[str, float | None]) -> str:
    """The coordinates whose means moved most, in standard deviations of a."""
    far = lambda name: -math.inf if shifts[name] is None else -abs(shifts[name] or 0.0)
    most = sorted(shifts, key=far)[:MOST_SHIFTS]
    told = ", ".join(f"{name} {short(shifts[name])}" for name in most)
    more = f", and {len(shifts) - len(most)} more" if len(shifts) > len(most) else ""
    return f"means{f' of {path}' if path else ''} from a to b, in sd of a: {told}{more}"


def _plate_rows(block: Data) -> list[tuple[str, ...]]:
    pairs, only_a, only_b = (block.get(n, []) for n in ("components", "only_in_a", "only_in_b"))
    rows = [(str(pair["a"]), str(pair["b"]), *_cells(pair)) for pair in _farthest(pairs)]
    if block.get("weights"):
        rows.append(("weights", "weights", *_cells(block["weights"])))
    rows += [(_weighted(lone), "-", "only in a", "") for lone in only_a[:MOST_ROWS]]
    rows += [("-", _weighted(lone), "only in b", "") for lone in only_b[:MOST_ROWS]]
    hidden = sum(max(0, len(found) - MOST_ROWS) for found in (pairs, only_a, only_b))
    return [*rows, (f"and {hidden} more", "", "", "")] if hidden else rows


def _farthest(pairs: list[Data]) -> list[Data]:
    """The pairs that differ most, in their order; what overflowed differs most of all."""
    size = lambda pair: sum(math.inf if pair[k] is None else pair[k] for k in ("kl_ab", "kl_ba"))
    kept = sorted(range(len(pairs)), key=lambda i: -size(pairs[i]))[:MOST_ROWS]
    return [pairs[i] for i in sorted(kept)]


def _weighted(lone: Data) -> str:
    return f"{lone['component']} (weight {short(lone['expected_weight'])})"


def _cells(data: Data) -> tuple[str, str]:
    return short(data["kl_ab"]), short(data["kl_ba"])
