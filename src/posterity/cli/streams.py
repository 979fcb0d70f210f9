"""Standard output and standard error of commands; rich is imported where there is a reader."""

import contextlib
import contextvars
import enum
import functools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli.failures import printable, stopped
from posterity.cli.report import plain
from posterity.interrupts import deferred, heed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from posterity.status import ProgressCallback

JSON: Any = typer.Option("--json", help="Print one JSON document, and only that.")
Json = Annotated[bool, JSON]


class LogFormat(enum.StrEnum):
    """Progress, warnings and errors on standard error: as texts, or as lines of JSON."""

    text = "text"
    json = "json"


LOG: Any = typer.Option(
    "--log-format", help="Format of progress and warnings on standard error: text, or JSON by line."
)
_log: contextvars.ContextVar[LogFormat] = contextvars.ContextVar("log", default=LogFormat.text)


def present(
    compute: Callable[[], dict[str, Any]],
    report: Callable[[dict[str, Any]], Any],
    as_json: bool,
    log: LogFormat = LogFormat.text,
) -> dict[str, Any]:
    """Print and return the data that ``compute`` gives as JSON, or what ``report`` makes of them.

    They are made plain, as :func:`~posterity.cli.report.plain` does, before either.

    Standard output belongs to the JSON document: all else goes to standard error, and so do the
    ``warnings`` and the ``notes`` of what was found where people read it.
    """
    _log.set(log)
    stop = functools.partial(stopped, as_json=as_json)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        heed()
        with deferred(stop) as interrupts:  # libraries may swallow what a signal raises
            data = plain(compute())
        if interrupts.rescue is not None:  # else the first signal ends it by itself
            interrupts.check()
    if as_json:
        print(json.dumps(data, indent=2, allow_nan=False))
        return data
    for kind in ("warning", "note"):
        for text in data.get(f"{kind}s", ()):
            line = printable(f"{kind}: {text}")
            line = json.dumps({"event": kind, "text": text}) if log == "json" else line
            print(line, file=sys.stderr)
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    console.width = console.width or 80  # COLUMNS=0 would print nothing
    if (shown := report(data)) is not None:
        console.print(shown)
    return data


def bar(title: str) -> "AbstractContextManager[ProgressCallback]":
    """The display of a command's progress: a bar in a terminal, or lines of the log.

    It is a sign of life where nothing is reported.
    """
    from posterity.progress import shown

    return shown(title, "json" if _log.get() == "json" else "auto")
