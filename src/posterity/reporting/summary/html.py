"""HTML tables for notebooks. All names are escaped, and rendering never raises."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.tree import leaves
from posterity.families.distribution import Distribution
from posterity.families.names import MOST_READ, MOST_SOLVED
from posterity.ledger import Ledger
from posterity.reporting.summary import summarise
from posterity.reporting.summary.rows import EXACT, sites_of
from posterity.runtime.text import clean

MOST_ROWS = 12


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


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], more: int = 0) -> str:
    """Return an HTML table, with a note of how many rows were left out."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headers)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(clean(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    if more > 0:
        body += f'<tr><td colspan="{len(headers)}">and {more:,} more</td></tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.4g}"


def _cheap(law: Distribution) -> bool:
    shapes = [np.shape(leaf) for leaf in leaves(law)]
    square = max((s[-1] for s in shapes if len(s) > 1 and s[-1] == s[-2]), default=0)
    size = sum(int(np.prod(shape, dtype=float)) for shape in shapes)
    return square <= MOST_SOLVED and size <= 100 * MOST_READ


def _law(law: Distribution) -> str:
    if not _cheap(law):
        return ""
    summary = summarise(law)
    parts = []
    if summary.components:
        shown = summary.components[:MOST_ROWS]
        name = lambda c: f"{c.block}: {c.name}" if c.block else c.name
        rows = ((name(c), _number(c.weight), ", ".join(w for w, _ in c.top[:5])) for c in shown)
        headers = shown[0].kind, "weight", "most probable"
        parts.append(table(headers, rows, len(summary.components) - len(shown)))
    if summary.size:
        numbers = [(row.label, *map(_number, row[4:])) for row in summary.first(MOST_ROWS)]
        percent = f"{100 * summary.level:g} % from"
        headers = "", "mean", "sd", percent, "to"
        parts.append(table(headers, numbers, summary.size - len(numbers)))
    if summary.layers:
        cells = lambda one: (str(one.number), one.kind, f"{one.weights:,}", _number(one.sd))
        parts.append(table(("layer", "", "weights", "sd"), map(cells, summary.layers)))
    return "".join(parts)


def _ledger(ledger: Ledger) -> str:
    if not _cheap(ledger.prior):
        return ""
    sites = list(sites_of(ledger)) if len(ledger.entries) <= EXACT else []
    most = lambda one: ("", "") if one.most is None else (one.most.label, f"{one.most.by:+.3g}")
    rows = ((one.name, one.why or _number(one.nats), *most(one)) for one in sites[:MOST_ROWS])
    drawn = table(("site", "adds, nats", "pulls most", "by, sd"), rows, len(sites) - MOST_ROWS)
    return (drawn if sites else "") + _law(ledger.total)


def _fusion(fusion: Any) -> str:
    parts = []
    for path, plate in fusion.plates.items():
        shown = list(plate.matching.items())[:MOST_ROWS]
        rows = ((site, " ".join(map(str, labels[:40]))) for site, labels in shown)
        headers = f"{path}: site" if path else "site", "fused component of each local one"
        parts.append(table(headers, rows, len(plate.matching) - len(shown)))
    return "".join(parts) + _law(fusion.posterior)


BODIES: Mapping[str, Callable[[Any], str]] = {
    "law": _law,
    "ledger": _ledger,
    "run": lambda run: _law(run.posterior),
    "fusion": _fusion,
}
"""Functions that return the tables of each kind of value."""
