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

HELP = "Fuse, federate, forget, pursue and distill: Bayesian posteriors that are kept as files."
EPILOG = """\
\b
Examples:
  posterity demo
  posterity fit records.csv --target y --model logistic -o north.safetensors
  posterity import coefficients.csv -o north.safetensors
  posterity fuse north.safetensors south.safetensors -o both.safetensors
  posterity show both.safetensors
  posterity inspect both.safetensors
  posterity export both.safetensors -o table.csv
  posterity diff north.safetensors both.safetensors --json
  posterity federate federation.toml
  posterity forget shared.safetensors --site north -o left.safetensors --receipt receipt.json
  posterity pursue pursuit.toml
  posterity distill both.safetensors -o student.safetensors --inputs pool.csv
  posterity predict both.safetensors new.csv -o predictions.csv
  posterity evaluate both.safetensors test.csv
  posterity report both.safetensors -o report.html
  posterity site init north --name north
  posterity federation new terms.toml -o federation.toml
  posterity site run north

\b
Exit codes:
  0    done
  2    usage: arguments that make no sense, alone or together
  3    NaN, infinite or improper parameters
  4    families, blocks or dimensions that do not fit together
  5    a file that cannot be read, trusted or written
  6    a change that a ledger's history forbids
  7    an optional dependency that is not installed
  8    a site that could not do its part of a federation
  9    a result that has not converged: written, or no receipt is given of it
  1    any other error that posterity raises on purpose
  70   an unexpected error; set POSTERITY_DEBUG=1 to see the traceback
  130  interrupted
  143  asked to end (SIGTERM)
"""


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
