"""Parts of the printed reports of commands: numbers, tables, statuses."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.box import HEAVY_HEAD, SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posterity.cli.streams import Data, plain, printable
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
    return printable(f"{text[:1].upper()}{text[1:]}.")


def first(
    rows: Sequence[Any],
    into: Table,
    cells: Callable[[Any], Iterable[str]],
    most: int | None = MOST_ROWS,
    hidden: int = 0,
    hint: str = "",
) -> Table:
    """Add ``cells(row)`` of the first rows, and the number of remaining ones, to a table."""
    for row in rows[:most]:
        into.add_row(*cells(row))
    hidden += 0 if most is None else max(len(rows) - most, 0)
    if hidden:
        into.add_row(f"and {hidden:,} more{hint}")
    return into


def listed(names: Sequence[str], most: int = MOST_ROWS) -> str:
    """Return the first names, and the number of remaining ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return printable(", ".join(names[:most]) + more)


def parameters(rows: Sequence[Data]) -> Table:
    """Return a table of names, means and standard deviations, of at most the first rows."""

    def cells(row):
        return (printable(row["name"]), short(row["mean"]), short(row["sd"]))

    return first(rows, table("parameter", "mean", "sd"), cells)


def status_of(status: Status, **more: float | int | None) -> Data:
    """Return a status as data: state, nats left and allowed, reasons, and a verb's own numbers."""
    return plain(status) | more


def wrote(what: str, path: str | None) -> str | None:
    """Return a line on a written file, or None without a path."""
    return None if path is None else f"{what} {printable(path)}"


def status_report(what: str, status: Data, unit: str = "nats left") -> RenderableType:
    """Return the state of ``what`` with its reasons, in red if it has not converged."""
    left = "an unknown number of" if status["left"] is None else f"{status['left']:.2g}"
    allowed = "" if status["tolerance"] is None else f", {status['tolerance']:.2g} allowed"
    lines = [f"{what} has {status['state']}: {left} {unit}{allowed}."]
    lines += map(sentence, status["reasons"])
    return alarming("\n".join(lines), status["state"] != "converged")
