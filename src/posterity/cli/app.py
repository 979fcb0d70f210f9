"""The application that the commands belong to, its help, and its entry point.

Whatever needs JAX is imported inside the commands, so that ``--help`` answers at once.
"""

import functools
import io
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from posterity.cli.failures import guarded
from posterity.cli.schema import commands

HELP, EPILOG = commands()["app"]["help"], commands()["app"]["epilog"]


class _Group(TyperGroup):
    """Turns every way to fail into one message and an exit code."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Parse and run; always exits."""
        args = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra["standalone_mode"] = False
        call = functools.partial(super().main, args, prog_name or "posterity", **extra)
        sys.exit(guarded(call, as_json="--json" in args or _logs_json(args)))


def _logs_json(args: Sequence[str]) -> bool:
    return "--log-format json" in " ".join(args).replace("=", " ")


app = typer.Typer(
    cls=_Group,
    help=HELP,
    epilog=EPILOG,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point of the command ``posterity``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names need not fit the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # too late: the exit code stands


def example(*commands: str) -> str:
    """Lines that help must not flow together, as a backspace before them says."""
    return "\n  ".join(["\b\nExample:", *commands])


def _version(wanted: bool) -> bool:
    if wanted:
        from posterity.version import __version__

        print(f"posterity {__version__}")
        raise typer.Exit
    return wanted


@app.callback(help=HELP)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
