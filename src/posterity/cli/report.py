"""Parts of the printed reports of commands: numbers, tables, statuses."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.box import HEAVY_HEAD, SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posterity.cli.streams import Data, plain
from posterity.status import Status

MOST_ROWS = 24
"""Number of rows of a table that are printed; JSON has all of them."""


def short(value: float | None) -> str:
    """Format a number in four digits."""
    return "overflow" if value is None else f"{value:.4g}"


def table(*headers: str, plain: bool = False) -> Table:
    """Return an empty table, with lines between its cells unless ``plain``."""
    if plain:
        return Table(*headers, box=SIMPLE, padding=(0, 0, 0, 1))
    return Table(*headers, box=HEAVY_HEAD)


def group(*parts: RenderableType | None) -> Group:
    """Return texts and tables one below the other; None is left out."""
    return Group(*(part for part in parts if part is not None))


def alarming(text: str, alarm: bool) -> Text:
    """Return a text, in red if it is an alarm."""
    return Text(text, style="red" if alarm else "")


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def filled(into: Table, rows: Iterable[Iterable[Any]]) -> Table:
    """Add rows of texts and numbers to a table: whole ones, others in four digits, and None."""

    def text(cell):
        if isinstance(cell, int):
            return f"{cell:,}"
        return "-" if cell is None else short(cell) if isinstance(cell, float) else cell

    for row in rows:
        into.add_row(*map(text, row))
    return into


def first(
    rows: Sequence[Any],
    into: Table,
    cells: Callable[[Any], Iterable[Any]],
    most: int | None = MOST_ROWS,
    hidden: int = 0,
    hint: str = "",
) -> Table:
    """Add ``cells(row)`` of the first rows, and the number of remaining ones, to a table."""
    hidden += len(rows[most:]) if most else 0
    more = [[f"and {hidden:,} more{hint}"]] if hidden else []
    return filled(into, [*map(cells, rows[:most]), *more])


def parameters(rows: Sequence[Data]) -> Table:
    """Return a table of names, means and standard deviations, of at most the first rows."""
    return first(rows, table("parameter", "mean", "sd"), operator.itemgetter("name", "mean", "sd"))


def status_of(status: Status, **more: float | int | None) -> Data:
    """Return a status as data: state, nats left and allowed, reasons, and a verb's own numbers."""
    return plain(status) | more


def status_report(what: str, status: Data, unit: str = "nats left") -> RenderableType:
    """Return the state of ``what`` with its reasons, in red if it has not converged."""
    left = "an unknown number of" if status["left"] is None else f"{status['left']:.2g}"
    allowed = "" if status["tolerance"] is None else f", {status['tolerance']:.2g} allowed"
    lines = [f"{what} has {status['state']}: {left} {unit}{allowed}."]
    lines += map(sentence, status["reasons"])
    return alarming("\n".join(lines), status["state"] != "converged")
