"""``posterity verify``: whether a receipt holds."""

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli import files
from posterity.cli.app import app, example
from posterity.cli.failures import printable
from posterity.cli.report import Data
from posterity.cli.streams import Json, present
from posterity.errors import LedgerError


@app.command(epilog=example("posterity verify receipt.json shared.safetensors without.safetensors"))
def verify(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt.")],
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The ledger before.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The ledger after.")],
    as_json: Json = False,
) -> None:
    """Check a receipt against the ledgers before and after; fails if a claim does not hold."""
    present(lambda: _verify(receipt, before, after), _report, as_json)


def _verify(path: Path, before: Path, after: Path) -> Data:
    from posterity.receipt import Receipt, verify

    files.check_regular(path)
    receipt = Receipt.load(path)
    verification = verify(receipt, files.read_ledger(before)[0], files.read_ledger(after)[0])
    if not verification.passed:
        broken = "; nor that ".join(verification.broken)
        raise LedgerError(
            found=f"a receipt that does not hold: not true that {broken}",
            expected="every claim borne out by the two ledgers",
            fix="Check that these are the files that the receipt was issued for.",
        )
    return {
        "sites": list(receipt.sites),
        "exact": receipt.exact,
        "time": receipt.time,
        "statement": receipt.statement,
        "claims": dict(verification.claims),
    }


# --- what people are told ------------------------------------------------------------------------


def _report(data: Data) -> str:
    """What the receipt shows, in words, and a line a claim."""
    names = ", ".join(map(printable, data["sites"]))
    kind = "exactly" if data["exact"] else "not exactly"
    headline = f"The receipt holds: {names} forgotten {kind}, {printable(data['time'])}."
    claims = (f"  {claim}" for claim in data["claims"])
    return "\n".join([headline, "", printable(data["statement"]), "", *claims])
