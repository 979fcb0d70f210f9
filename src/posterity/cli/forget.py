"""``posterity forget`` and ``verify``: taking sites out of a ledger, with a receipt."""

# ruff: noqa: UP045 (typer below 0.12 cannot read `X | None`)

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from posterity.cli.app import app, example
from posterity.cli.streams import Json, check_outputs, present, progress
from posterity.errors import LedgerError, StructureError, UsageError


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
        Optional[Path],
        typer.Option(metavar="CONFIG", help="The federation that made it, to refine what is left."),
    ] = None,
    sweeps: Annotated[
        Optional[int],
        typer.Option(metavar="N", help="Passes of refinement; else 2, or 20 if noisy."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take sites out of a ledger.

    Exact, to the last bit, where every other factor was found from its own site's data alone.
    Otherwise the others were fitted in the company of those who left: then the result says that
    it is not exact, and with --config the sites that stay refine it.
    """
    check_outputs([output, receipt], [ledger])
    if receipt.exists():
        raise UsageError(
            found=f"receipt {str(receipt)!r}, which is there",
            expected="a new file: a receipt cannot be made again once the ledger is deleted",
            fix="Choose another --receipt.",
        )
    compute = lambda: _forget(ledger, tuple(site), output, receipt, config, sweeps)
    present(compute, "forgetting_text", as_json)


@app.command(epilog=example("posterity verify receipt.json shared.safetensors without.safetensors"))
def verify(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt.")],
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The ledger before.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The ledger after.")],
    as_json: Json = False,
) -> None:
    """Check a receipt against the ledgers before and after; fails if a claim does not hold."""

    def compute() -> dict[str, Any]:
        from posterity.cli.report import verification_data
        from posterity.receipt import Receipt, verify

        loaded = Receipt.load(receipt)
        verification = verify(loaded, _ledger(before), _ledger(after))
        if not verification.passed:
            broken = [claim for claim, holds in verification.claims.items() if not holds]
            raise LedgerError(
                found=f"a receipt that does not hold: not true that {'; nor that '.join(broken)}",
                expected="every claim borne out by the two ledgers",
                fix="Check that these are the files that the receipt was issued for.",
            )
        return verification_data(loaded, verification)

    present(compute, "verification_text", as_json)


def _forget(
    path: Path,
    sites: tuple[str, ...],
    output: Path,
    receipt: Path,
    config: Path | None,
    sweeps: int | None,
) -> dict[str, Any]:
    from posterity import __version__
    from posterity.artifact import inspect, save
    from posterity.cli.config.federation import load_config
    from posterity.cli.report import forgetting_data
    from posterity.federation.checkpoint import with_ledger
    from posterity.federation.forget import forget

    ledger = _ledger(path)
    with progress("Forgetting"):
        target = ledger
        if config is not None:
            federation = load_config(config)
            check_outputs([output, receipt], federation.inputs)
            target = with_ledger(federation.start(), ledger)
        done = forget(target, *sites, sweeps=sweeps)
    provenance = {"made by": f"posterity {__version__} forget", "before": done.receipt.before}
    # The receipt comes last: where there is one, the ledger that it speaks of is there too.
    save(done.ledger, output, provenance=provenance)
    done.receipt.save(receipt)
    return forgetting_data(done, inspect(output), str(receipt))


def _ledger(path: Path) -> Any:
    from posterity.artifact import load
    from posterity.ledger import Ledger

    found = load(path)
    if not isinstance(found, Ledger):
        raise StructureError(
            found=f"a {type(found).__name__} in {str(path)!r}",
            expected="a ledger, which knows what each site contributed",
            fix="Use the ledger that the posterior was made of.",
        )
    return found
