"""``posterity verify``: offline checks of receipts, certificates and logs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posterity.cli import files
from posterity.cli.options import Settings, unwanted
from posterity.cli.streams import Data, verb
from posterity.errors import LedgerError
from posterity.receipt import Receipt, Verification
from posterity.receipt import verify as verified
from posterity.runtime.files import check_regular


def _report(data: Data) -> str:
    lines = [data["headline"], "", data["statement"], "", *(f"  {c}" for c in data["claims"])]
    return "\n".join(lines)


@verb(_report)
def verify(settings: Settings) -> Data:
    """Check a receipt against its two ledgers, or a certificate or a log against the terms."""
    federation = settings.path("federation")
    since = settings.path("since")
    if federation is None and since is None:
        after = "the one after; a certificate or a log needs --federation FILE"
        return _receipt(*settings.arguments("a receipt", "the ledger before", after))
    (path,) = settings.arguments("a certificate or a log, without ledgers")
    return _audit(path, Path(settings.need("federation")), since)


def _receipt(path: Path, before: Path, after: Path) -> Data:
    check_regular(path)
    receipt = Receipt.load(path)
    verification = verified(receipt, files.read_ledger(before)[0], files.read_ledger(after)[0])
    names = ", ".join(receipt.sites)
    kind = "exactly" if receipt.exact else "not exactly"
    return {
        "sites": receipt.sites,
        "exact": receipt.exact,
        "time": receipt.time,
        "headline": f"The receipt holds: {names} forgotten {kind}, {receipt.time}.",
        "statement": receipt.statement,
        "claims": _upheld(verification, "receipt", "the two ledgers"),
    }


def _audit(path: Path, federation: Path, since: Path | None) -> Data:
    from posterity.cli import deployment  # both need the extra `engine`
    from posterity.engine.audit import audit_certificate, audit_log

    for file in filter(None, (path, federation, since)):
        check_regular(file)
    terms = deployment.read_terms(federation)
    content = path.read_bytes()
    try:
        document: Any = json.loads(content)
    except ValueError:
        document = None
    if isinstance(document, dict) and "entries" in document:
        kind = "log"
        audit = audit_log(terms, document, since and since.read_bytes())
    else:
        kind = "certificate"
        if since is not None:
            raise unwanted(f"--since {since}", "beside a certificate", "a log, which has a past")
        audit = audit_certificate(terms, content.strip())
    return {
        "federation": terms.name,
        "headline": f"The {kind} holds.",
        "statement": audit.statement,
        "claims": _upheld(audit.verification, kind, "what its signatures show"),
    }


def _upheld(verification: Verification, what: str, by: str) -> Mapping[str, bool]:
    if not verification.passed:
        raise LedgerError(
            found=f"a {what} of which these claims are false: " + "; ".join(verification.broken),
            expected=f"only claims that {by} confirm",
        )
    return verification.claims
