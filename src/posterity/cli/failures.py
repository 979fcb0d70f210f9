"""Every way to fail, turned into one message and an exit code."""

import json
import os
import shlex
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import typer

from posterity.errors import ArtifactError, PosterityError
from posterity.interrupts import Interrupts, Terminated, of_signal
from posterity.text import clean

USAGE, BUG, INTERRUPTED, TERMINATED = 2, 70, 130, 143
DEBUG = "POSTERITY_DEBUG"


def guarded(call: Callable[[], Any], as_json: bool) -> int:
    """The exit code of ``call``, which is told about if it is not zero."""
    try:
        code = call()
        if code != INTERRUPTED:  # how newer versions of typer return from Ctrl-C
            return code if isinstance(code, int) else 0
        error: BaseException = KeyboardInterrupt()
    except (Exception, KeyboardInterrupt, Terminated) as raised:
        error = raised
        if os.environ.get(DEBUG):
            traceback.print_exc()
    return _print_error(error, as_json)


def _print_error(error: BaseException, as_json: bool) -> int:
    """Print an error as a sentence, or as data; its exit code."""
    found, expected, fix, code = _explain(error)
    kind = "UsageError" if code == USAGE else type(error).__name__
    data = {"type": kind, "found": found, "expected": expected, "fix": fix, "exit_code": code}
    line = printable(f"error: found {found}; expected {expected}; next: {fix}")
    print(json.dumps({"error": data}) if as_json else line, file=sys.stderr)
    return code


def stopped(interrupts: Interrupts, number: int, count: int, as_json: bool) -> None:
    """Say at a first signal that it will be heeded; at a second save what there is and end.

    Where nothing can be lost yet the first one ends it. Nothing is waited for: this may be the only
    thread that still runs.
    """
    if count > 2:
        os._exit(128 + number)
    if count == 2 or interrupts.rescue is None:
        threading.Thread(target=_end, args=(interrupts, number, as_json), daemon=True).start()
    elif sys.stderr.isatty():
        print("Ending after this step. Again: at once.", file=sys.stderr)


def _end(interrupts: Interrupts, number: int, as_json: bool) -> None:
    try:
        if interrupts.rescue is not None:
            interrupts.rescue()
        if sys.stderr.isatty():
            print("\x1b[?25h", end="", file=sys.stderr)  # the cursor, which a bar hides
        _print_error(of_signal(number), as_json)
        sys.stderr.flush()
    finally:
        os._exit(128 + number)


def _explain(error: BaseException) -> tuple[str, str, str, int]:
    """The three sentences of an error (found, expected, fix) and the exit code."""
    if isinstance(error, PosterityError):
        return error.found, error.expected, error.fix, error.exit_code
    again = f"Run the command again: {shlex.join(['posterity', *sys.argv[1:]])}"
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return "an interruption", "to run to the end", again, INTERRUPTED
    if isinstance(error, Terminated):
        return "a request to end", "to run to the end", again, TERMINATED
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


def printable(text: object) -> str:
    """``text`` with control characters escaped.

    Names come from files that others wrote: nothing in them may steer a terminal.
    """
    return clean(str(text))
