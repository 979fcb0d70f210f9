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
    import posterity.report

    show(getattr(posterity.report, text)(data), as_json)


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


def check_output(output: Path, inputs: Sequence[Path]) -> None:
    """Before any work: the folder is there, and no input would be replaced."""
    if not output.parent.is_dir() or output.is_dir():
        raise ArtifactError(
            found=f"output {os.fspath(output)!r}, "
            + ("a folder" if output.is_dir() else "in a folder that does not exist"),
            expected="a file in a folder that exists",
            fix="Make the folder, or choose another output; nothing was written.",
        )
    for file in inputs:
        if output.exists() and file.exists() and output.samefile(file):
            raise UsageError(
                found=f"output {os.fspath(output)!r}, which is one of the inputs",
                expected="another file: what a site sent is kept",
                fix="Choose another --output.",
            )
