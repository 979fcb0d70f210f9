"""What goes to standard output, and what beside it."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.errors import ArtifactError, UsageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, and only that.")]


def present(compute: Callable[[], dict[str, Any]], text: str, as_json: bool) -> None:
    """Print what ``compute`` found, as JSON or by the function of the report named ``text``."""
    with streams(as_json):
        data = compute()
    if as_json:
        return show(data, as_json)
    import posterity.cli.report

    show(getattr(posterity.cli.report, text)(data), as_json)


def streams(as_json: bool) -> contextlib.AbstractContextManager[Any]:
    """Standard output belongs to the JSON document: all else goes to standard error."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def show(what: Any, as_json: bool) -> None:
    """Print a JSON document, or what rich renders."""
    if as_json:  # the demo's document is text already
        text = what if isinstance(what, str) else json.dumps(what, indent=2, allow_nan=False)
        print(text.rstrip())
        return
    from rich.console import Console

    Console(markup=False, highlight=False).print(what)


def progress(message: str) -> contextlib.AbstractContextManager[Any]:
    """A moving sign of life on standard error, if someone is looking."""
    from rich.console import Console

    return Console(stderr=True).status(message)


def check_outputs(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Before any work: folders are there, and no file is written twice or over an input."""
    for index, output in enumerate(outputs):
        _check_place(output)
        if any(_same(output, file) for file in inputs):
            raise _clash(output, "one of the inputs", "another file: what a site sent is kept")
        if any(_same(output, other) for other in outputs[:index]):
            raise _clash(output, "another output too", "a file for each")


def _check_place(output: Path) -> None:
    if not output.parent.is_dir() or (output.exists() and not output.is_file()):
        raise ArtifactError(
            found=f"output {os.fspath(output)!r}, "
            + ("which is no file" if output.exists() else "in a folder that does not exist"),
            expected="a file in a folder that exists",
            fix="Make the folder, or choose another output; nothing was written.",
        )


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))


def _clash(output: Path, what: str, expected: str) -> UsageError:
    return UsageError(
        found=f"output {os.fspath(output)!r}, which is {what}",
        expected=expected,
        fix="Choose another output.",
    )
