"""Parts of the reports of commands: numbers as JSON and people have them, tables, statuses.

rich is imported where there is something to print.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from posterity.cli.failures import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from posterity.status import Status

Data = dict[str, Any]
MOST_ROWS = 24
"""Rows of a table that a person is shown; JSON has all of them."""


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays as lists, named tuples and dataclasses by field and label.

    Paths are texts. There is no infinity and no NaN: null stands for what overflowed, or is not
    known.

    >>> plain({"mean": (1.0, math.inf), "count": 3})
    {'mean': [1.0, None], 'count': 3}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    names = getattr(value, "_fields", getattr(value, "__dataclass_fields__", ()))
    if names:
        fields = {name: plain(getattr(value, name)) for name in names}
        return fields | ({"label": value.label} if hasattr(value, "label") else {})
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


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


def group(*parts: "RenderableType") -> "RenderableType":
    """Texts and tables, one under the other."""
    from rich.console import Group

    return Group(*parts)


def alarming(text: str, alarm: bool) -> "RenderableType":
    """A text, in red if it is an alarm."""
    from rich.text import Text

    return Text(text, style="red" if alarm else "")


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return printable(f"{text[:1].upper()}{text[1:]}.")


def first(
    rows: Sequence[Any],
    into: "Table",
    cells: Callable[[Any], Iterable[str]],
    most: int | None = MOST_ROWS,
    hidden: int = 0,
    hint: str = "",
) -> "Table":
    """A row of ``cells(row)`` for each of the first rows, and how many more there are."""
    for row in rows[:most]:
        into.add_row(*cells(row))
    hidden += 0 if most is None else max(len(rows) - most, 0)
    if hidden:
        into.add_row(f"and {hidden:,} more{hint}")
    return into


def listed(names: Sequence[str], most: int = MOST_ROWS) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return printable(", ".join(names[:most]) + more)


def parameters(rows: Sequence[Data]) -> "Table":
    """Names, means and standard deviations; of very many the first."""
    cells = lambda row: (printable(row["name"]), short(row["mean"]), short(row["sd"]))
    return first(rows, table("parameter", "mean", "sd"), cells)


def status_of(status: "Status", **more: float | int | None) -> Data:
    """A status as data: state, nats left, those allowed, reasons, and what a verb has beside."""
    return plain(status) | more


def left_in(what: str, path: str | None) -> list[str]:
    """The line on a picture or a second file of which there is a path; none else."""
    return [] if path is None else [f"{what} {printable(path)}"]


def status_report(what: str, status: Data, unit: str = "nats left") -> "RenderableType":
    """The state of ``what`` and the reasons for it, in red if it has not converged."""
    left = "an unknown number of" if status["left"] is None else f"{status['left']:.2g}"
    allowed = "" if status["tolerance"] is None else f", {status['tolerance']:.2g} allowed"
    lines = [f"{what} has {status['state']}: {left} {unit}{allowed}."]
    lines += map(sentence, status["reasons"])
    return alarming("\n".join(lines), status["state"] != "converged")
