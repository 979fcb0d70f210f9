"""Receipts: what was forgotten, from which ledger, leaving which; checkable by who holds both."""

import dataclasses
import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posterity.artifact import digest, write_file
from posterity.errors import ArtifactError
from posterity.ledger import Ledger

FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What a forgetting did, as data.

    ``before`` and ``after`` are digests of the two ledgers. ``refinement`` is None if nothing
    but a subtraction was done. Its own digest tells a receipt that was altered by accident; it is
    a checksum, not a signature.
    """

    sites: tuple[str, ...]
    exact: bool
    before: str
    after: str
    time: str
    version: str
    refinement: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """One JSON document, keys sorted."""
        content = {"receipt": FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(content | {"digest": _checksum(content)}, indent=2, sort_keys=True) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON document, whole or not at all; an ArtifactError if that fails."""
        write_file(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Receipt":
        """Read what :meth:`save` wrote; an ArtifactError if it is missing, foreign or altered."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            checksum = content.pop("digest")
            version = content.pop("receipt")
            receipt = cls(**{**content, "sites": tuple(content["sites"])})
            if not all(isinstance(text, str) for text in (*receipt.sites, receipt.time)):
                raise TypeError("sites or time are no text")
            intact = checksum == _checksum({"receipt": version, **dataclasses.asdict(receipt)})
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _unreadable(path, f"not a receipt: {error}") from error
        if version != FORMAT_VERSION or not intact:
            raise _unreadable(path, "altered, or of another version")
        return receipt


def issue(
    before: Ledger, after: Ledger, sites: tuple[str, ...], refinement: Mapping[str, Any] | None
) -> Receipt:
    """The receipt of a forgetting that just happened."""
    from posterity import __version__

    return Receipt(
        sites=tuple(sorted(sites)),
        exact=after.independent and refinement is None,
        before=digest(before),
        after=digest(after),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version=__version__,
        refinement=refinement,
    )


@dataclasses.dataclass(frozen=True)
class Verification:
    """Claims of a receipt, each with whether the two ledgers bear it out."""

    claims: Mapping[str, bool]

    @property
    def passed(self) -> bool:
        """Whether all do."""
        return all(self.claims.values())


def verify(receipt: Receipt, before: Ledger, after: Ledger) -> Verification:
    """Check a receipt against the ledgers before and after; nothing in it is taken on trust.

    >>> from posterity import Ledger, forget
    >>> from posterity.families import Gamma
    >>> ledger = Ledger(Gamma.from_standard(shape=1.0, rate=1.0))
    >>> ledger = ledger.update("north", Gamma(3.0, 2.0), independent=True)
    >>> done = forget(ledger, "north")
    >>> verify(done.receipt, ledger, done.ledger).passed
    True
    """
    sites, left, stay = receipt.sites, _others(receipt, before), _others(receipt, after)
    claims = {
        "the ledger before is the one that the receipt names": digest(before) == receipt.before,
        "the ledger after is the one that the receipt names": digest(after) == receipt.after,
        "sites are named, none of which was forgotten before": bool(sites)
        and not set(sites) & set(before.forgotten),
        "the sites do not contribute after": not set(sites) & set(after.sites),
        "the sites are barred from coming back by an old message": set(sites)
        <= set(after.forgotten)
        and all(_newer(site, before, after) for site in sites),
        "nobody else left or came back": left.forgotten == stay.forgotten
        and set(left.sites) <= set(stay.sites),
        "no other site went back to an older version": not any(
            _newer(site, after, before) for site in left.entries
        ),
        "the prior is the same": before.prior == after.prior,
    }
    if receipt.exact:
        claims["every other factor is the same, to the last bit"] = left == stay
        claims["every other factor was found without the sites"] = after.independent
    else:
        claims["it says exact where it could"] = not (left == stay and after.independent)
    return Verification(claims)


def _others(receipt: Receipt, ledger: Ledger) -> Ledger:
    """The ledger without what it says of the receipt's sites."""
    kept = {site: entry for site, entry in ledger.entries.items() if site not in receipt.sites}
    return Ledger(ledger.prior, kept)


def _newer(site: str, old: Ledger, new: Ledger) -> bool:
    """Whether ``new`` says of the site what beats all that ``old`` says."""
    if site not in new.entries:
        return False
    return site not in old.entries or new.entries[site].rank > old.entries[site].rank


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _unreadable(path: str | os.PathLike[str], why: str) -> ArtifactError:
    return ArtifactError(
        found=f"receipt {os.fspath(path)!r} that cannot be read ({why})",
        expected="a JSON document as `posterity forget` writes it",
        fix="Fetch the receipt again from who issued it.",
    )
