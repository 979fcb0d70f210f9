"""Every way to fail, turned into one message and an exit code."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import typer

from posterity.errors import ArtifactError, PosterityError

USAGE, BUG, INTERRUPTED = 2, 70, 130
DEBUG = "POSTERITY_DEBUG"


def guarded(call: Callable[[], Any], as_json: bool) -> int:
    """The exit code of ``call``, which is told about if it is not zero."""
    try:
        code = call()
        if code != INTERRUPTED:  # how newer versions of typer return from Ctrl-C
            return code if isinstance(code, int) else 0
        error: BaseException = KeyboardInterrupt()
    except (Exception, KeyboardInterrupt) as raised:
        error = raised
        if os.environ.get(DEBUG):
            traceback.print_exc()
    problem = _problem(error)
    print(json.dumps({"error": problem}) if as_json else _sentence(problem), file=sys.stderr)
    return problem["exit_code"]


def _problem(error: BaseException) -> dict[str, Any]:
    """An error as data: its type, what was found and expected, what to do next, the code."""
    found, expected, fix, code = _explain(error)
    kind = "UsageError" if code == USAGE else type(error).__name__
    return {"type": kind, "found": found, "expected": expected, "fix": fix, "exit_code": code}


def _explain(error: BaseException) -> tuple[str, str, str, int]:
    if isinstance(error, PosterityError):
        return error.found, error.expected, error.fix, error.exit_code
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return "an interruption", "to run to the end", "Run the command again.", INTERRUPTED
    if hasattr(error, "format_message"):  # click's, of which typer may hold its own copy
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "posterity"
        message: str = error.format_message()  # type: ignore[attr-defined]
        found = (message[:1].lower() + message[1:]).rstrip(".")
        return found, "arguments as in the help", f"See '{command} --help'.", USAGE
    if isinstance(error, OSError):
        expected, fix = "files and folders that can be used", "Mend path, permissions or space."
        return f"that the system refused ({error})", expected, fix, ArtifactError.exit_code
    found = f"an unexpected {type(error).__name__} ({error})"
    fix = f"Run again with {DEBUG}=1 to see the traceback, and report it with that."
    return found, "no error of this kind: it is a bug in posterity", fix, BUG


def _sentence(problem: Mapping[str, Any]) -> str:
    return printable("error: found {found}; expected {expected}; next: {fix}".format_map(problem))


def printable(text: object) -> str:
    """``text`` with control characters escaped.

    Names come from files that others wrote: nothing in them may steer a terminal.
    """
    escape = lambda c: c.encode("unicode_escape").decode()
    return "".join(c if c.isprintable() else escape(c) for c in str(text))
