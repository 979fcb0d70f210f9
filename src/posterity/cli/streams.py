"""Standard output and standard error of commands; rich is imported where there is a reader."""

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from posterity.cli.failures import printable, stopped
from posterity.interrupts import deferred, heed

JSON: Any = typer.Option("--json", help="Print one JSON document, and only that.")
Json = Annotated[bool, JSON]


def present(
    compute: Callable[[], dict[str, Any]], report: Callable[[dict[str, Any]], Any], as_json: bool
) -> dict[str, Any]:
    """Print and return the data that ``compute`` gives as JSON, or what ``report`` makes of them.

    Standard output belongs to the JSON document: all else goes to standard error, and so do the
    ``warnings`` and the ``notes`` of what was found where people read it.
    """
    stop = functools.partial(stopped, as_json=as_json)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        heed()
        with deferred(stop):  # libraries may swallow an exception that a signal raises
            data = compute()
    if as_json:
        print(json.dumps(data, indent=2, allow_nan=False))
        return data
    for warning in data.get("warnings", ()):
        print(printable(f"warning: {warning}"), file=sys.stderr)
    for note in data.get("notes", ()):
        print(printable(f"note: {note}"), file=sys.stderr)
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    console.width = console.width or 80  # COLUMNS=0 would print nothing
    console.print(report(data))
    return data


@contextlib.contextmanager
def bar(message: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A bar on standard error, if someone is looking; yields what moves it to a step.

    Given a text beside the step, that stands in the place of the ``message``. Without a ``total``
    it is but a sign of life.
    """
    if not sys.stderr.isatty():
        yield lambda step, text=None: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(message, total=total)
        yield lambda step, text=None: progress.update(task, completed=step, description=text)
