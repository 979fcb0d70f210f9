"""The command line: ``posterity fuse``, ``inspect``, ``diff`` and ``demo``.

Whatever needs JAX is imported inside the commands, so that ``--help`` answers at once.
"""

# ruff: noqa: UP045 (typer below 0.12 cannot read `X | None`)

import contextlib
import functools
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from posterity.errors import ArtifactError, PosterityError, UsageError

USAGE, BUG, INTERRUPTED = 2, 70, 130
DEBUG = "POSTERITY_DEBUG"
HELP = "Fuse, inspect and compare Bayesian posteriors that are kept as files."
EPILOG = """\
\b
Examples:
  posterity demo
  posterity fuse north.safetensors south.safetensors -o both.safetensors
  posterity inspect both.safetensors
  posterity diff north.safetensors both.safetensors --json

\b
Exit codes:
  0    done
  2    usage: arguments that make no sense, alone or together
  3    NaN, infinite or improper parameters
  4    families, blocks or dimensions that do not fit together
  5    a file that cannot be read, trusted or written
  6    a change that a ledger's history forbids
  7    an optional dependency that is not installed
  1    any other error that posterity raises on purpose
  70   an unexpected error; set POSTERITY_DEBUG=1 to see the traceback
  130  interrupted
"""


class _Group(TyperGroup):
    """Turns every way to fail into one message and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse and run; always exits."""
        args = list(sys.argv[1:] if args is None else args) or ["--help"]
        call = functools.partial(
            super().main, args, prog_name or "posterity", standalone_mode=False, **extra
        )
        sys.exit(_guarded(call, as_json="--json" in args))


app = typer.Typer(
    cls=_Group,
    help=HELP,
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, and only that.")]


def main() -> None:
    """The entry point of the command ``posterity``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names need not fit the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    app()


def _example(*commands: str) -> str:
    """Lines that help must not flow together, as a backspace before them says."""
    return "\n  ".join(["\b\nExample:", *commands])


# --- commands ------------------------------------------------------------------------------------


def _version(wanted: bool) -> bool:
    if wanted:
        from posterity import __version__

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


@app.command(
    epilog=_example(
        "posterity fuse north.safetensors south.safetensors -o both.safetensors",
        "posterity fuse site-*.safetensors -o all.safetensors --rule product --json",
    )
)
def fuse(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="One posterior or ledger a site.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the result.")
    ],
    rule: Annotated[
        str,
        typer.Option(
            metavar="[barycenter|product]",
            help="The average of matched posteriors, or the prior once plus every site's data.",
        ),
    ] = "barycenter",
    divergence: Annotated[
        str,
        typer.Option(metavar="[reverse|forward]", help="KL(fused || site), or KL(site || fused)."),
    ] = "reverse",
    matching: Annotated[
        str,
        typer.Option(
            metavar="[evidence|hungarian|kl-fusion|identity]", help="How components are matched."
        ),
    ] = "evidence",
    components: Annotated[
        Optional[int], typer.Option(metavar="N", help="Fused components; found if left out.")
    ] = None,
    weight: Annotated[
        Optional[list[str]],
        typer.Option(metavar="SITE=W", help="A site's weight in the average; name every site."),
    ] = None,
    prior: Annotated[
        Optional[Path],
        typer.Option(metavar="FILE", help="What all sites started from, if they are no ledgers."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Merge posteriors trained on separate data into one file.

    A site goes by the names in its ledger, else by the name of its file. With --rule product
    the output is a ledger, from which a site can be taken out again; it replaces what was at
    --output, but never one of the inputs.
    """
    options = {
        "rule": rule,
        "divergence": divergence,
        "matching": matching,
        "components": components,
        "weights": _weights(weight or []),
    }
    _check_output(output, [*files, prior] if prior else files)
    _present(lambda: _fuse(files, output, prior, options), "fusion_text", as_json)


@app.command(epilog=_example("posterity inspect both.safetensors"))
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by posterity.")],
    as_json: Json = False,
) -> None:
    """Check a file and say what is in it."""

    def compute() -> dict[str, Any]:
        from posterity.artifact import inspect, load
        from posterity.report import inspection_data

        return inspection_data(inspect(file), load(file))

    _present(compute, "inspection_text", as_json)


@app.command(epilog=_example("posterity diff before.safetensors after.safetensors"))
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A posterior or ledger.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one of the same model.")],
    as_json: Json = False,
) -> None:
    """Compare two files: KL divergence in nats, block by block, components matched."""

    def compute() -> dict[str, Any]:
        from posterity.artifact import load
        from posterity.diff import diff
        from posterity.report import diff_data

        return diff_data(diff(load(a), load(b)))

    _present(compute, "diff_text", as_json)


@app.command(epilog=_example("posterity demo --output posterity-demo"))
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for its files.")
    ] = Path("posterity-demo"),
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of all that is random.")] = 0,
    as_json: Json = False,
) -> None:
    """Fuse posteriors trained at several sites, and show what came out."""
    with _streams(as_json):
        from posterity.demo import run

        report = run(output, seed=seed)
    _print(report.to_json() if as_json else report.table(), as_json)


# --- fuse ----------------------------------------------------------------------------------------


def _fuse(
    files: Sequence[Path], output: Path, prior: Path | None, options: dict[str, Any]
) -> dict[str, Any]:
    from posterity.artifact import inspect, save
    from posterity.fusion import fuse
    from posterity.report import fusion_data

    with _progress(f"Fusing {len(files)} files"):
        sites, digests = _sites(files)
        fusion = fuse(sites, prior=_prior(prior), **options)
        result = fusion.posterior if fusion.ledger is None else fusion.ledger
        save(result, output, provenance=_provenance(fusion, options, digests, prior))
    return fusion_data(fusion, inspect(output), digests, options["matching"])


def _sites(files: Sequence[Path]) -> tuple[dict[str, Any], dict[str, str]]:
    """What the files hold, and their digests, by site."""
    from posterity.artifact import inspect, load
    from posterity.ledger import Ledger

    sites, digests = {}, {}
    for file in files:
        found = load(file)
        own = "+".join(found.sites) if isinstance(found, Ledger) else ""
        name = own or file.stem
        if name in sites:
            raise UsageError(
                found=f"two files of site {name!r}, the second {os.fspath(file)!r}",
                expected="each site once",
                fix="Leave one out, or rename one: a file goes by the sites of its ledger, "
                "else by its name.",
            )
        sites[name], digests[name] = found, inspect(file).digest
    return sites, digests


def _prior(file: Path | None) -> Any:
    if file is None:
        return None
    from posterity.artifact import load
    from posterity.ledger import Ledger

    found = load(file)
    return found.prior if isinstance(found, Ledger) else found


def _provenance(
    fusion: Any, options: Mapping[str, Any], digests: Mapping[str, str], prior: Path | None
) -> dict[str, str]:
    from posterity import __version__
    from posterity.artifact import inspect

    record = {
        "made by": f"posterity {__version__} fuse",
        "rule": fusion.rule.value,
        "divergence": fusion.divergence.value,
        "matching": str(options["matching"]),
        **{f"input {site}": digest for site, digest in digests.items()},
    }
    if options["components"] is not None:
        record["components"] = str(options["components"])
    if prior is not None:
        record["prior"] = inspect(prior).digest
    weights = options["weights"] or {}
    return record | {f"weight {site}": repr(weight) for site, weight in weights.items()}


def _weights(given: Sequence[str]) -> dict[str, float] | None:
    weights: dict[str, float] = {}
    for text in given:
        site, _, number = text.rpartition("=")
        value = _float(number)
        if not site or value is None or site in weights:
            raise UsageError(
                found=f"--weight {text!r}" + (", the second one of its site" * (site in weights)),
                expected="SITE=W, once a site",
                fix="Write for example --weight north=2 --weight south=1.",
            )
        weights[site] = value
    return weights or None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _check_output(output: Path, inputs: Sequence[Path]) -> None:
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


# --- streams -------------------------------------------------------------------------------------


def _present(compute: Callable[[], dict[str, Any]], text: str, as_json: bool) -> None:
    """Print what ``compute`` found, as JSON or by the function of the report named ``text``."""
    with _streams(as_json):
        data = compute()
    if as_json:
        return _print(data, as_json)
    import posterity.report

    _print(getattr(posterity.report, text)(data), as_json)


def _streams(as_json: bool) -> contextlib.AbstractContextManager[Any]:
    """Standard output belongs to the JSON document: all else goes to standard error."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def _print(what: Any, as_json: bool) -> None:
    if as_json:  # the demo's document is text already
        text = what if isinstance(what, str) else json.dumps(what, indent=2, allow_nan=False)
        print(text.rstrip())
        return
    from rich.console import Console

    Console(markup=False, highlight=False).print(what)


def _progress(message: str) -> contextlib.AbstractContextManager[Any]:
    """A moving sign of life on standard error, if someone is looking."""
    from rich.console import Console

    return Console(stderr=True).status(message)


# --- errors --------------------------------------------------------------------------------------


def _guarded(call: Callable[[], Any], as_json: bool) -> int:
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
    return {
        "type": "UsageError" if code == USAGE else type(error).__name__,
        "found": found,
        "expected": expected,
        "fix": fix,
        "exit_code": code,
    }


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
