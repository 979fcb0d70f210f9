"""What reports of commands are made of: numbers as JSON and people have them, tables, statuses.

rich is imported where there is something to print.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posterity.cli.failures import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Data = dict[str, Any]
MOST_ROWS = 24
"""Rows of a table that a person is shown; JSON has all of them."""


def number(value: Any) -> float | None:
    """JSON has no infinity and no NaN: null stands for what overflowed, or is not known."""
    return float(value) if value is not None and math.isfinite(value) else None


def short(value: float | None) -> str:
    """Four digits."""
    return "overflow" if value is None else f"{value:.4g}"


def table(*headers: str, plain: bool = False) -> "Table":
    """An empty table with lines about its cells, or a plain one without."""
    from rich.box import HEAVY_HEAD, SIMPLE
    from rich.table import Table

    if plain:
        return Table(*headers, box=SIMPLE, padding=(0, 0, 0, 1))
    return Table(*headers, box=HEAVY_HEAD)


def group(*parts: Any) -> "RenderableType":
    """Texts and tables, one under the other."""
    from rich.console import Group

    return Group(*parts)


def alarming(text: str, alarm: bool) -> "RenderableType":
    """A text, in red if it is an alarm."""
    from rich.text import Text

    return Text(text, style="red" if alarm else "")


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return printable(f"{text[:1].upper()}{text[1:]}.")


def first(rows: Sequence[Any], into: "Table", cells: Any, most: int = MOST_ROWS) -> "Table":
    """A row of ``cells(row)`` for each of the first rows, and how many more there are."""
    for row in rows[:most]:
        into.add_row(*cells(row))
    if (more := len(rows) - most) > 0:
        into.add_row(f"and {more} more")
    return into


def parameters(rows: Sequence[Data]) -> "Table":
    """Names, means and standard deviations; of very many the first."""
    cells = lambda row: (printable(row["name"]), short(row["mean"]), short(row["sd"]))
    return first(rows, table("parameter", "mean", "sd"), cells)


def status_of(status: Any, **more: Any) -> Data:
    """A status as data: state, nats left, those allowed, reasons, and what a verb has beside."""
    return {
        "state": status.state,
        "left": number(status.left),
        "tolerance": number(status.tolerance),
        "reasons": list(status.reasons),
        **more,
    }


def told_status(what: str, status: Data) -> "RenderableType":
    """Whether ``what`` has converged and why not, in red if not."""
    left = "an unknown number of" if status["left"] is None else f"{status['left']:.2g}"
    allowed = "" if status["tolerance"] is None else f", {status['tolerance']:.2g} allowed"
    lines = [f"{what} has {status['state']}: {left} nats left{allowed}."]
    lines += map(sentence, status["reasons"])
    return alarming("\n".join(lines), status["state"] != "converged")
