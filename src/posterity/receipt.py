"""Receipts of forgetting: which sites were removed, verifiable with both ledgers."""

import dataclasses
import datetime
import hashlib
import json
import math
import os
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Self

from posterity.arguments import Constraint, instance
from posterity.artifact import digest
from posterity.artifact.container import unique
from posterity.entries import looks
from posterity.errors import ArtifactError, PosterityError
from posterity.handed_on import Likeness, handed_on
from posterity.ledger import Ledger
from posterity.runtime.files import AnyPath, write_file
from posterity.runtime.text import clean, cut

FORMAT_VERSION = 2
"""Version of the format of receipts."""

# --- the document ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Refinement:
    """The updates of the remaining sites after the subtraction.

    ``updates``: number of changes of each site's factor. ``joined``: sites that contribute for the
    first time, since a walk had not reached them before. ``restarted``: whether all factors were
    set to zero first. ``residuals``, in sqrt(nats), and the distance in nats are the issuer's
    measurements (:func:`posterity.federation.certify`), None if it could not measure them.
    """

    updates: Mapping[str, int]
    joined: tuple[str, ...]
    restarted: bool
    residuals: Mapping[str, float | None]
    estimated_distance_nats: float | None

    @classmethod
    def between(cls, before: Ledger, after: Ledger, restarted: bool, **measured: Any) -> Self:
        """Make a refinement from the versions in two ledgers, and the ``measured`` fields."""
        updates = _updates(before, after, restarted)
        return cls(updates, _joined(before, after), restarted, **measured)

    @property
    def statement(self) -> str:
        """A description of the refinement."""
        counts = list(filter(None, self.updates.values()))
        distance = self.estimated_distance_nats
        zeroed = "the others were set to zero, and " if self.restarted else ""
        joined = f", for the first time {_named(self.joined)}" if self.joined else ""
        nats = "an unknown number of" if distance is None else f"{distance:.2g}"
        return (
            f"{zeroed}{len(counts)} sites refined theirs, {max(counts, default=0)} times at most"
            f"{joined}; the issuer estimates that going on would change the posterior by {nats} "
            "nats, which a receipt cannot show"
        )


@dataclasses.dataclass(frozen=True)
class Receipt:
    """The record of a forgetting, as data and in words.

    ``before`` and ``after`` are digests of the two ledgers. ``refinement`` is None if factors were
    only subtracted. A saved receipt has a digest of itself, which detects accidental changes; it is
    a checksum, not a signature.
    """

    sites: tuple[str, ...]
    exact: bool
    before: str
    after: str
    time: str
    version: str
    refinement: Refinement | None = None

    def __repr__(self) -> str:
        how = "exact" if self.exact else "not exact"
        line = f"Receipt(forgot {_named(self.sites)}, {how}, {self.time}, version {self.version})"
        return cut(clean(line))

    @property
    def statement(self) -> str:
        """The receipt in words, with its limitations. The wording is part of the format."""
        done = self.refinement.statement if self.refinement else "nothing else was changed"
        shown = _EXACT if self.exact else _NOT_EXACT
        return f"The factors of {_named(self.sites)} were subtracted; {done}. {shown}"

    def to_json(self) -> str:
        """Return a JSON document with sorted keys."""
        return json.dumps(self._document(), indent=2, sort_keys=True) + "\n"

    def save(self, path: AnyPath) -> None:
        """Write the JSON document atomically. Raises ArtifactError if that fails."""
        write_file(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: AnyPath) -> "Receipt":
        """Read a saved receipt. Raises ArtifactError if it is missing, invalid or altered."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            document = json.loads(text, object_pairs_hook=unique)
            receipt = cls._of(document)
        except ArtifactError as error:
            raise error.at(f"file {os.fspath(path)!r}") from error
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _unreadable(path, f"not a receipt: {error}") from error
        if _canonical(document) != _canonical(receipt._document()):
            raise _unreadable(path, "altered, or of another version")
        return receipt

    @classmethod
    def _of(cls, document: Any) -> "Receipt":
        content = _checked(document, _RECEIPT)
        content["sites"] = tuple(content["sites"])
        if content["refinement"] is not None:
            refined = _checked(content["refinement"], _REFINEMENT)
            content["refinement"] = Refinement(**{**refined, "joined": tuple(refined["joined"])})
        return cls(**content)

    def _document(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        content |= {"receipt": FORMAT_VERSION, "statement": self.statement}
        return content | {"digest": hashlib.sha256(_canonical(content).encode()).hexdigest()}


_EXACT = (
    "Every factor that stays is marked as found from its own site's data alone: if that is so, "
    "the posterior is, to the last bit, one that never saw theirs."
)
_NOT_EXACT = (
    "This does not prove that nothing of them is left: what stays may have been fitted in their "
    "company."
)


def _named(sites: tuple[str, ...]) -> str:
    """Return the names, each quoted and escaped, so that none can imitate the text."""
    return ", ".join(clean(json.dumps(site, ensure_ascii=False)) for site in sites)


def _canonical(document: Any) -> str:
    return json.dumps(document, sort_keys=True)


def _unreadable(path: AnyPath, why: str) -> ArtifactError:
    return ArtifactError(
        found=f"receipt {os.fspath(path)!r} that cannot be read ({why})",
        expected="a JSON document as `posterity forget` writes it",
        fix="Name the receipt before the ledgers: posterity verify RECEIPT BEFORE AFTER.",
    )


# --- constraints on the fields -----------------------------------------------------------------


def _are_names(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return texts and value == sorted(set(value))


def _is_time(value: Any) -> bool:
    time = datetime.datetime.fromisoformat(value).astimezone(datetime.UTC)
    return time.year >= 2020 and time.isoformat(timespec="seconds") == value


_FLAG = instance("true or false", bool)
_DIGEST = Constraint(
    "64 hexadecimal digits", lambda value: bool(re.fullmatch("[0-9a-f]{64}", value))
)
_COUNT = Constraint("a count", lambda value: type(value) is int and value >= 0)
_LENGTH = Constraint(
    "a finite number from zero on, or null",
    lambda value: value is None or (isinstance(value, float) and 0 <= value < math.inf),
)
_RECEIPT = {
    "sites": Constraint("names, sorted, at least one", lambda value: value and _are_names(value)),
    "exact": _FLAG,
    "before": _DIGEST,
    "after": _DIGEST,
    "time": Constraint("a time in UTC from 2020 on, as 2026-11-21T09:00:00+00:00", _is_time),
    "version": Constraint(
        "a version number", lambda value: bool(re.fullmatch(r"\d+\.\d+[\w.+-]*", value))
    ),
    "refinement": instance("an object, or null", dict, NoneType),
}
_REFINEMENT = {
    "updates": Constraint("counts by site", lambda value: all(map(_COUNT.allows, value.values()))),
    "joined": Constraint("names, sorted", _are_names),
    "restarted": _FLAG,
    "residuals": Constraint(
        "lengths by site, or null", lambda value: all(map(_LENGTH.allows, value.values()))
    ),
    "estimated_distance_nats": _LENGTH,
}


def _checked(document: Any, constraints: Mapping[str, Constraint]) -> dict[str, Any]:
    content = {name: document[name] for name in constraints}
    for name, constraint in constraints.items():
        if not constraint.allows(content[name]):
            raise ArtifactError(
                found=f"{name} {reprlib.repr(content[name])} in a receipt",
                expected=constraint.expected,
            )
    return content


# --- issuing and verifying ---------------------------------------------------------------------


def issue(before: Ledger, after: Ledger, refinement: Refinement | None) -> Receipt:
    """Return the receipt of a forgetting now, with the names of all sites that it removed."""
    from posterity.version import __version__

    return Receipt(
        sites=tuple(sorted(set(before.sites) & set(after.forgotten))),
        exact=after.independent and refinement is None,
        before=digest(before),
        after=digest(after),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version=__version__,
        refinement=refinement,
    )


@dataclasses.dataclass(frozen=True)
class Verification:
    """Claims of a receipt, each with whether it agrees with the two ledgers."""

    claims: Mapping[str, bool]

    @property
    def broken(self) -> tuple[str, ...]:
        """The claims that do not agree with the ledgers."""
        return tuple(claim for claim, holds in self.claims.items() if not holds)

    @property
    def passed(self) -> bool:
        """True if all claims agree with the ledgers."""
        return not self.broken


RECEIPT = Constraint(
    "a Receipt", lambda it: hasattr(it, "refinement"), fix="Read the file with Receipt.load(path)."
)
LEDGERS = Constraint(
    "a Ledger", lambda it: hasattr(it, "entries"), fix="Read the file with posterity.load(path)."
)


def verify(
    receipt: Receipt,
    before: Ledger,
    after: Ledger,
    likeness: Likeness = Likeness(),  # noqa: B008
) -> Verification:
    """Check the claims of a receipt against the ledgers before and after the forgetting.

    ``likeness`` says from when on a change is a factor of a forgotten site, handed on.

    >>> from posterity import Ledger, forget
    >>> from posterity.families import Gamma
    >>> ledger = Ledger(Gamma.from_standard(shape=1.0, rate=1.0))
    >>> ledger = ledger.update("north", Gamma(3.0, 2.0), independent=True)
    >>> done = forget(ledger, "north")
    >>> verify(done.receipt, ledger, done.ledger).passed
    True

    Raises a UsageError for other objects, such as names of files.
    """
    RECEIPT.check(receipt=receipt)
    LEDGERS.check(before=before, after=after)
    refined = receipt.refinement
    sites = set(receipt.sites)
    restarted = refined is not None and refined.restarted
    epochs = {site: entry.epoch for site, entry in before.entries.items()}

    def is_barred(site: str) -> bool:
        old = before.entries.get(site)
        new = after.entries.get(site)
        version = old is not None and (old.epoch, True, old.sequence + restarted)
        return new is not None and new.rank == version

    def others(ledger: Ledger) -> Ledger:
        names = ledger.entries.keys() - sites
        return Ledger(ledger.prior, {site: ledger.entries[site] for site in names})

    named = bool(sites) and sites <= set(before.sites)
    theirs = frozenset().union(*map(looks, sites))
    stay = frozenset().union(*map(looks, set(after.sites) - sites))
    same_epochs = all(entry.epoch == epochs.get(s, 0) for s, entry in after.entries.items())
    gone = set(before.forgotten) <= set(after.forgotten)
    claims = {
        "the ledger before is the one that the receipt names": digest(before) == receipt.before,
        "the ledger after is the one that the receipt names": digest(after) == receipt.after,
        "the prior is the same": before.prior == after.prior,
        "sites are named, each of which contributed before": named,
        "none of the sites contributes after": sites.isdisjoint(after.sites),
        "no site that stays has a name that looks like theirs": theirs.isdisjoint(stay),
        "each of the sites is barred, at the version that it had": all(map(is_barred, sites)),
        "nobody else left": set(before.sites) <= sites | set(after.sites),
        "nobody came back": same_epochs and gone,
        "no version went back, vanished or has two contents": _follows(before, after),
    }
    if refined is None:
        marked = (
            "it is called exact if and only if every factor that stays is marked as independent"
        )
        claims["every other factor is the same, to the last bit"] = others(before) == others(after)
        claims[marked] = receipt.exact == after.independent
        return Verification(claims)
    updates = _updates(before, after, restarted)
    same_prior = before.prior == after.prior
    kept = same_prior and not handed_on(receipt.sites, before, after, likeness)
    claims |= {
        "what was refined is not called exact": not receipt.exact,
        "every other site refined as often as the receipt says": updates == refined.updates,
        "nobody joined but whom the receipt names": _joined(before, after) == refined.joined,
        "what left was not handed on": kept,
    }
    return Verification(claims)


def _follows(before: Ledger, after: Ledger) -> bool:
    """Return whether a merge of ``before`` into ``after`` changes nothing."""
    try:
        return before.merge(after) == after
    except PosterityError:
        return False


def _updates(before: Ledger, after: Ledger, restarted: bool) -> dict[str, int]:
    start = {site: entry.sequence + restarted for site, entry in before.entries.items()}
    return {site: after.entries[site].sequence - start.get(site, -1) for site in after.sites}


def _joined(before: Ledger, after: Ledger) -> tuple[str, ...]:
    return tuple(sorted(set(after.sites) - set(before.sites)))
