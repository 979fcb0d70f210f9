"""``posterity forget``: taking sites out of a ledger, with a receipt."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.report.numbers import number
from posterity.cli.streams import Json, bar, present
from posterity.errors import ArtifactError, UsageError
from posterity.files import alongside

if TYPE_CHECKING:
    from posterity.ledger import Ledger


@app.command(
    epilog=example(
        "posterity forget shared.safetensors --site north -o without.safetensors "
        "--receipt receipt.json",
        "posterity forget shared.safetensors --site north -o without.safetensors "
        "--receipt receipt.json --config federation.toml",
    )
)
def forget(
    ledger: Annotated[Path, typer.Argument(metavar="LEDGER", help="A ledger.")],
    site: Annotated[list[str], typer.Option(metavar="NAME", help="Who leaves; may be repeated.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write what is left.")
    ],
    receipt: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to write the receipt, as JSON.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="The federation that made it, to refine what is left."),
    ] = None,
    sweeps: Annotated[
        int | None,
        typer.Option(metavar="N", help="Passes of refinement; else as many as it takes."),
    ] = None,
    allow_unconverged: Annotated[
        bool, typer.Option("--allow-unconverged", help="Also where what is left has not converged.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take sites out of a ledger.

    Exact, to the last bit, where every other factor was found from its own site's data alone.
    Otherwise the others were fitted in the company of those who left: then the result says that
    it is not exact, and with --config the sites that stay refine it.
    """
    files.check_outputs([output, receipt], [ledger])
    if sweeps is not None and config is None:
        raise UsageError(
            found=f"--sweeps {sweeps} without --config",
            expected="a configuration, by which the sites that stay can be asked",
            fix="Leave --sweeps out, or give the --config that the ledger was federated with.",
        )
    outputs, sites = (output, receipt), tuple(dict.fromkeys(site))
    options = {"sweeps": sweeps, "allow_unconverged": allow_unconverged}
    present(lambda: _forget(ledger, sites, outputs, config, options), "forget", as_json)


def _forget(
    path: Path,
    sites: tuple[str, ...],
    outputs: tuple[Path, Path],
    config: Path | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    from posterity.artifact.recipes import check_same

    output, receipt = outputs
    ledger, found = files.read_ledger(path)
    _check_new(receipt, sites, ledger)
    with bar("Forgetting"):
        if config is None:
            left, issued = _subtracted(ledger, sites)
            distance = 0.0 if issued.exact else None
        else:
            left, issued, distance = _refined(ledger, sites, config, outputs, options)
    # The receipt comes last: where there is one, the ledger that it speaks of is there too.
    record = {"before": issued.before, **check_same({"": found.provenance})}
    with alongside(receipt, issued.to_json().encode()):
        written = files.write(left, output, "forget", record)
    return {
        "output": written.path,
        "receipt": str(receipt),
        "digest": written.digest,
        "sites": list(issued.sites),
        "left": list(left.sites),
        "exact": issued.exact,
        "refined": issued.refinement is not None,
        "statement": issued.statement,
        "distance": number(distance),
    }


def _check_new(receipt: Path, sites: tuple[str, ...], before: "Ledger") -> None:
    """Raise a UsageError for a receipt that is there, unless it is of this very request."""
    from posterity.artifact import digest
    from posterity.receipt import Receipt

    with contextlib.suppress(ArtifactError):
        known = Receipt.load(receipt)
        if (set(known.sites), known.before) == (set(sites), digest(before)):
            return
    if receipt.exists():
        raise UsageError(
            found=f"receipt {str(receipt)!r}, which is there",
            expected="a new file: a receipt cannot be made again once the ledger is deleted",
            fix="Choose another --receipt.",
        )


def _subtracted(before: Any, sites: tuple[str, ...]) -> Any:
    """All that can be done where no site can be asked: arithmetic, which needs no JAX."""
    from posterity.checks import check_proper
    from posterity.receipt import issue

    after = before.forget(*sites)
    check_proper(after.posterior, "what is left of the ledger")
    return after, issue(before, after, None)


def _refined(
    before: Any,
    sites: tuple[str, ...],
    config: Path,
    outputs: Sequence[Path],
    options: dict[str, Any],
) -> Any:
    from posterity.artifact.aligned import names_in
    from posterity.cli.config.federation import load_config
    from posterity.federation.forget import forget

    federation = load_config(config, names_in(before))
    files.check_outputs(outputs, federation.inputs)
    done = forget(federation.start().with_ledger(before), *sites, **options)
    return done.ledger, done.receipt, done.distance
