"""The application, its commands as ``data/commands.toml`` declares them, and its entry point.

A command's module is imported only when the command runs, so that ``--help`` is fast.
"""

import copy
import enum
import functools
import importlib
import inspect
import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from posterity.cli.options import ENDING, Settings, read
from posterity.cli.schema import commands, options_of, parameter
from posterity.cli.streams import guarded, present
from posterity.errors import ConvergenceError, UsageError
from posterity.version import __version__


class _Group(TyperGroup):
    """Command group that converts every failure to one message and an exit code."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Parse arguments and run; always exits."""
        args = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra["standalone_mode"] = False
        call = functools.partial(super().main, args, prog_name or "posterity", **extra)
        as_json = "--json" in args or "--log-format json" in " ".join(args).replace("=", " ")
        sys.exit(guarded(call, as_json))


class LogFormat(enum.StrEnum):
    """Format of progress, warnings and errors on standard error: text, or lines of JSON."""

    text = "text"
    json = "json"


app = typer.Typer(
    cls=_Group,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the command ``posterity``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may not fit the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    one = copy.copy(app)
    asked = sys.argv[1:2]
    own = [command for command in app.registered_commands if [command.name] == asked]
    if own:
        one.registered_commands = own  # building all takes longer
        one.registered_groups = []
    try:
        one()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exit code is already decided


def _version(wanted: bool) -> bool:
    if wanted:
        print(f"posterity {__version__}")
        raise typer.Exit
    return wanted


@app.callback(**commands()["app"])
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _register(name: str, declared: Mapping[str, Any], group: typer.Typer) -> None:
    """Add a command that calls ``run``, a function in a module of this package.

    An argument that ends in ``.toml``, and is no folder, is the configuration. Outputs are checked
    before the function is called. The exit code is 9 if the returned data have a ``status`` that is
    not converged. A function with ``prints`` prints its own output.
    """
    module, _, function = declared["run"].partition(":")
    options = options_of(name)
    prints = declared.get("prints", False)

    def command(
        files: list[Path] | None,
        as_json: bool = False,
        log_format: LogFormat = LogFormat.text,
        **values: Any,
    ) -> None:
        flags = {k.replace("__", "."): v for k, v in values.items() if v is not None}
        named = [path for path in files or () if path.suffix == ENDING]
        configurations = [path for path in named if not os.path.isdir(path)]
        others = [path for path in files or () if path not in configurations]

        def call() -> tuple[Settings, Any]:
            if len(configurations) > 1:
                found = f"{len(configurations)} configurations"
                raise UsageError(found=found, expected="only one of them")
            file = configurations[0] if configurations else None
            settings = read(name, flags, file, others, as_json)
            settings.check_outputs()
            module_ = importlib.import_module(f"posterity.cli.{module}")
            return settings, getattr(module_, function)

        if prints:
            settings, run = call()
            return run(settings)
        data = present(call, as_json, log_format == "json")
        if data.get("status", {}).get("state", "converged") != "converged":
            raise typer.Exit(ConvergenceError.exit_code)

    argument = typer.Argument(metavar="FILE", help=declared["files"], show_default=False)
    parameters = [parameter("files", list[Path] | None, argument)]
    parameters += [option.parameter for option in options]
    if not prints:
        json = typer.Option("--json", help="Print one JSON document, and only that.")
        what = "Format of progress and warnings on standard error: text, or JSON by line."
        log = typer.Option("--log-format", help=what)
        parameters.append(parameter("as_json", bool, json, False))
        parameters.append(parameter("log_format", LogFormat, log, LogFormat.text))
    command.__doc__ = declared["help"]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    # A backspace keeps help from rewrapping the lines after it.
    epilog = "\n  ".join(["\b\nExample:", *declared["examples"]])
    group.command(name.split()[-1], epilog=epilog)(command)


_groups = {"": app}
for _name, _help in commands()["groups"].items():
    _options: Any = {"no_args_is_help": True, "rich_markup_mode": None}
    _groups[_name] = typer.Typer(help=_help, **_options)
    app.add_typer(_groups[_name], name=_name)
for _name, _declared in commands().items():
    if "run" in _declared:
        _register(_name, _declared, _groups[_name.rpartition(" ")[0]])
