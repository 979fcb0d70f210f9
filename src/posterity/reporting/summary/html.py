"""HTML tables for notebooks. All names are escaped, and rendering never raises."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.tree import leaves
from posterity.families.distribution import Distribution
from posterity.families.names import is_quick
from posterity.ledger import Ledger
from posterity.reporting.markup import shown, signed, table
from posterity.reporting.summary import summarise
from posterity.reporting.summary.rows import EXACT, sites_of
from posterity.runtime.text import clean

FIRST = 12
"""Number of rows of a notebook's tables."""


def render(value: Any, kind: str) -> str:
    """Return the HTML of a law, ledger, run or fusion: its one-line text, and any tables."""
    line = f"<code>{html.escape(clean(repr(value)))}</code>"
    if kind not in BODIES:
        return line
    try:
        with np.errstate(all="ignore"):
            return f"<div>{line}{BODIES[kind](value)}</div>"
    except Exception:  # a notebook shows the line if there is no table
        return f"<div>{line}</div>"


def _cheap(law: Distribution) -> bool:
    shapes = [np.shape(leaf) for leaf in leaves(law)]
    square = max((s[-1] for s in shapes if len(s) > 1 and s[-1] == s[-2]), default=0)
    size = sum(int(np.prod(shape, dtype=float)) for shape in shapes)
    return is_quick(size // 100, square)


def _law(law: Distribution) -> str:
    if not _cheap(law):
        return ""
    summary = summarise(law)
    parts = []
    if summary.components:
        names = [f"{c.block}: {c.name}" if c.block else c.name for c in summary.components]
        rows = [
            (name, shown(c.weight), ", ".join(word for word, _ in c.top[:5]))
            for name, c in zip(names, summary.components, strict=True)
        ]
        headers = summary.components[0].kind, "weight", "most probable"
        parts.append(_table("Components", headers, rows))
    if summary.size:
        numbers = [(row.label, *map(shown, row[4:])) for row in summary.first(FIRST)]
        headers = "", "mean", "sd", f"{100 * summary.level:g} % from", "to"
        parts.append(table("Numbers", headers, numbers, summary.size - len(numbers)))
    if summary.layers:
        rows = [
            (str(one.number), one.kind, f"{one.weights:,}", shown(one.sd)) for one in summary.layers
        ]
        parts.append(_table("Layers", ("layer", "", "weights", "sd"), rows))
    return "".join(parts)


def _ledger(ledger: Ledger) -> str:
    if not _cheap(ledger.prior):
        return ""
    rows = []
    for one in sites_of(ledger) if len(ledger.entries) <= EXACT else ():
        moved = ("", "") if one.most is None else (one.most.label, signed(one.most.by))
        rows.append((one.name, one.why or shown(one.nats), *moved))
    headers = "site", "adds, nats", "pulls most", "by, sd"
    return (_table("Sites", headers, rows) if rows else "") + _law(ledger.total)


def _fusion(fusion: Any) -> str:
    parts = []
    for path, plate in fusion.plates.items():
        rows = [(s, " ".join(map(str, labels[:40]))) for s, labels in plate.matching.items()]
        headers = f"{path}: site" if path else "site", "fused component of each local one"
        parts.append(_table("Matching", headers, rows))
    return "".join(parts) + _law(fusion.posterior)


def _table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of the first rows."""
    return table(caption, headers, rows[:FIRST], len(rows) - FIRST)


BODIES: Mapping[str, Callable[[Any], str]] = {
    "law": _law,
    "ledger": _ledger,
    "run": lambda run: _law(run.posterior),
    "fusion": _fusion,
}
"""Functions that return the tables of each kind of value."""
