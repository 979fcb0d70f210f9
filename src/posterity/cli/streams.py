"""Standard output and error of commands: results, progress, and all failures.

rich is imported only to print.
"""

import contextlib
import contextvars
import dataclasses
import functools
import json
import math
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import typer

from posterity.cli.schema import FLAG, flags
from posterity.errors import ArtifactError, PosterityError, UsageError
from posterity.runtime.interrupts import Interrupts, Terminated, deferred, heed, of_signal
from posterity.runtime.progress import shown
from posterity.runtime.text import clean

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from posterity.cli.options import Settings
    from posterity.status import ProgressCallback

Data = dict[str, Any]
BUG = 70
"""Exit code of an internal error, as in sysexits.h."""
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
DEBUG = "POSTERITY_DEBUG"
CALL = re.compile(r"\b(?:posterity\.)?([a-z]+)\(\.\.\., (\w+=[^()\s]*)\)")
"""A call of a function in a sentence."""
ARGUMENT = re.compile(r"(?<![\w\[./+-])([a-z]+(?:_[a-z]+)*)=(True|False|'[\w-]+')?(?=[\s,.;)]|$)")
"""An argument of a function in a sentence."""
_log_as_json = contextvars.ContextVar("log_as_json", default=False)


@dataclasses.dataclass(frozen=True)
class Verb:
    """Function of a command, and the function that makes a printed report of its data."""

    report: Callable[[Data], Any]
    run: "Callable[[Settings], Data]"


def verb(report: Callable[[Data], Any]) -> "Callable[[Callable[[Settings], Data]], Verb]":
    """Make a function of settings a :class:`Verb`; usable as a decorator."""
    return functools.partial(Verb, report)


def present(
    call: "Callable[[], tuple[Settings, Verb]]", as_json: bool, log_as_json: bool = False
) -> Data:
    """Run a verb, and print and return its data, as JSON or as its report.

    With JSON, standard output holds only the document; all else goes to standard error. In a
    printed report, the ``warnings`` and ``notes`` of the data also go there.
    """
    _log_as_json.set(log_as_json)
    stop = functools.partial(_stopped, as_json=as_json)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        heed()
        with deferred(stop) as interrupts:  # libraries may catch what a signal raises
            settings, verb = call()
            data = plain(verb.run(settings))
            told = (kind for kind in ("warnings", "notes") if kind in data)
            data |= {kind: [in_shell(str(text)) for text in data[kind]] for kind in told}
        if interrupts.rescue is not None:  # otherwise the first signal exits
            interrupts.check()
    if as_json:
        print(json.dumps(data, indent=2, allow_nan=False))
        return data
    for kind in ("warning", "note"):
        for text in data.get(f"{kind}s", ()):
            line = json.dumps({"event": kind, "text": text})
            print(line if log_as_json else printable(f"{kind}: {text}"), file=sys.stderr)
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    console.width = console.width or 80  # COLUMNS=0 would print nothing
    text = verb.report(escaped(data))
    if text is not None:
        console.print(text)
    return data


def bar(title: str) -> "AbstractContextManager[ProgressCallback]":
    """Return the display of a command's progress: a bar in a terminal, or lines of the log.

    It also shows that the command is running while nothing is reported.
    """
    return shown(title, "json" if _log_as_json.get() else "auto")


def plain(value: Any) -> Any:
    """Return a value for JSON: arrays as lists, named tuples and dataclasses by field and label.

    Paths become texts. Infinity and NaN become null, for overflowed or unknown values.

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


def in_shell(text: str) -> str:
    """Return a sentence about arguments of functions as one about flags of commands; those of no
    flag, such as arguments in formulas, are left.

    >>> in_shell("fit both (federate(..., personal=True)), or pass prior=")
    'fit both (posterity federate --personal true), or pass --prior'
    """
    return ARGUMENT.sub(_flag, CALL.sub(r"posterity \1 \2", text))


def _flag(argument: re.Match[str]) -> str:
    flag = f"--{argument[1].replace('_', '-')}"
    if flag not in flags():
        return argument[0]
    value = argument[2] or ""
    value = "" if value == "True" and flags()[flag] is FLAG else value
    value = value if value.startswith("'") else value.lower()
    return f"{flag} {value}".rstrip()


def printable(text: object) -> str:
    """Return ``text`` with control characters escaped.

    Names in files of other origin must not control the terminal.
    """
    return clean(str(text))


def escaped(data: Any) -> Any:
    """Return data with :func:`printable` texts and names, from which reports are made."""
    if isinstance(data, dict):
        return {printable(name): escaped(value) for name, value in data.items()}
    if isinstance(data, list):
        return [escaped(value) for value in data]
    return printable(data) if isinstance(data, str) else data


# --- errors --------------------------------------------------------------------------------------


def guarded(call: Callable[[], Any], as_json: bool) -> int:
    """Return the exit code of ``call``, and print the error if it is not zero."""
    try:
        code = call()
        if code != INTERRUPTED:  # newer versions of typer return this after Ctrl-C
            return code if isinstance(code, int) else 0
        error: BaseException = KeyboardInterrupt()
    except (Exception, KeyboardInterrupt, Terminated) as raised:
        error = raised
        if os.environ.get(DEBUG):
            traceback.print_exc()
    return _print_error(error, as_json)


def _print_error(error: BaseException, as_json: bool) -> int:
    *sentences, code = explain(error)
    if "in configuration" not in sentences[0]:  # a file, whose arguments are no flags
        sentences = [*map(in_shell, sentences)]
    found, expected, fix = sentences
    kind = "UsageError" if code == UsageError.exit_code else type(error).__name__
    data = {"type": kind, "found": found, "expected": expected, "fix": fix, "exit_code": code}
    line = f"error: found {found}; expected {expected}" + f"; next: {fix}" * bool(fix)
    print(json.dumps({"error": data}) if as_json else printable(line), file=sys.stderr)
    return code


def _stopped(interrupts: Interrupts, number: int, count: int, as_json: bool) -> None:
    """Announce a stop at the first signal; at the second, save what there is and exit.

    The first signal exits if nothing can be lost. Nothing waits: this may be the only running
    thread.
    """
    if count > 2:
        os._exit(128 + number)
    if count == 2 or interrupts.rescue is None:
        threading.Thread(target=_end, args=(interrupts, number, as_json), daemon=True).start()
    elif sys.stderr.isatty():
        print("Ending after this step. Press Ctrl-C again to end at once.", file=sys.stderr)


def _end(interrupts: Interrupts, number: int, as_json: bool) -> None:
    try:
        if interrupts.rescue is not None:
            interrupts.rescue()
        if sys.stderr.isatty():
            print("\x1b[?25h", end="", file=sys.stderr)  # show the cursor, which a bar hides
        _print_error(of_signal(number), as_json)
        sys.stderr.flush()
    finally:
        os._exit(128 + number)


def explain(error: BaseException) -> tuple[str, str, str, int]:
    """Return the three sentences of an error (found, expected, fix) and the exit code."""
    if isinstance(error, PosterityError):
        return error.found, error.expected, error.fix, error.exit_code
    again = f"Run the command again: {shlex.join(['posterity', *sys.argv[1:]])}"
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return "an interruption", "a run to the end", again, INTERRUPTED
    if isinstance(error, Terminated):
        return "a request to end (SIGTERM)", "a run to the end", again, TERMINATED
    if hasattr(error, "format_message"):  # click's; typer may have its own copy of click
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "posterity"
        message: str = error.format_message()  # type: ignore[attr-defined]
        found = (message[:1].lower() + message[1:]).rstrip(".")
        return found, "arguments as in the help", f"See '{command} --help'.", UsageError.exit_code
    if isinstance(error, OSError):
        expected = "files that can be read and written"
        fix = "Check paths, permissions and space."
        return f"an error of the system ({error})", expected, fix, ArtifactError.exit_code
    found = f"an unexpected {type(error).__name__} ({error})"
    fix = f"Run again with {DEBUG}=1 to see the traceback, and report it with that."
    return found, "no error of this kind: it is a bug in posterity", fix, BUG
