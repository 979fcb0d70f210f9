"""Offline audits of certificates of forgetting and of logs.

An auditor needs the terms, which contain the members' public keys, and a file: a certificate, or
the output of ``posterity site audit``. Only signed content of the file is relied on.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from posterity.engine.agreement import Terms
from posterity.engine.author import claims_on_answers
from posterity.engine.log import Tree, TreeHead, continues, key_name
from posterity.engine.notices import Known, followed, notices_in, parsed, read, standing_of
from posterity.engine.refusal import Refusal, reading
from posterity.receipt import Verification

TRUST = (
    "What rests on trust: that each member did what it signed, such as destroying the factor and "
    "every copy outside its store; that its log is complete; and that the keys in the terms are "
    "theirs."
)


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of an audit: whether each claim holds, and sentences on what that shows."""

    verification: Verification
    shown: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if all claims hold."""
        return self.verification.passed

    @property
    def statement(self) -> str:
        """The sentences on what is shown, and on what rests on trust."""
        return " ".join([*self.shown, TRUST])


def audit_certificate(terms: Terms, envelope: bytes) -> Audit:
    """Check a certificate's signature, and that it follows from the members' signed answers. Raises
    a Refusal if no member of these terms signed it, or if it lacks the answers.
    """
    with reading("a certificate", "one with the changes of keys before it, as they were signed"):
        terms = followed(terms, parsed(envelope).predicate.get("rotations", ()))
    known = read(terms, envelope)
    if known.claim != "certificate":
        raise Refusal.of(f"a notice with the claim {known.claim!r}", "a certificate")
    predicate = known.predicate
    if predicate["residuals"] and not predicate["envelopes"]:
        found = f"a certificate with digests of {len(predicate['residuals'])} members' answers"
        expected = "the answers themselves, without which it cannot be checked"
        fix = "They are left out where they are too large: agree on a larger limits.bytes."
        raise Refusal.of(found, expected, fix=fix)
    residuals = notices_in(terms, predicate["envelopes"], "residual")
    tombstones = notices_in(terms, predicate["tombstones"], "tombstone")
    gone = sorted(tombstones)
    answers = {site: standing_of(terms, each) for site, each in residuals.items()}
    claims = claims_on_answers(terms, known, residuals) | {
        "as many members have answered as the terms ask for": (
            len(residuals) >= (terms.quorum or 0)
        ),
        "the forgotten that it names have tombstones, signed by themselves or by an authority": (
            {site: each.digest for site, each in tombstones.items()} == predicate["forgotten"]
        ),
        "the epoch began after every tombstone": all(
            known.version[0][0] > each.predicate["highest"] for each in tombstones.values()
        ),
        "every remaining member reports that it destroyed the forgotten factors": all(
            set(gone) <= set(answer.forgotten) for answer in answers.values()
        ),
        "it is called independent if and only if every remaining factor is": (
            predicate["independent"] == all(answer.independent for answer in answers.values())
        ),
    }
    words = (*_words(known, gone, len(residuals)), *_changes(terms))
    if not terms.knows_model:
        unknown = f"Not checked, since no model is imported here: the state, by {terms.model}."
        words = (*words, unknown)
    return Audit(Verification(claims), words)


def _words(known: Known, gone: list[str], answers: int) -> tuple[str, ...]:
    predicate = known.predicate
    left = known.predicate["left"]
    absent = ", ".join(map(json.dumps, predicate["absent"]))
    lacks = f" Not among them, so that nothing is known of theirs: {absent}." if absent else ""
    nats = "an unknown number of" if left is None else f"{left:.2g}"
    (number, who), sequence, _ = known.version
    state = f"{predicate['state']}, with {nats} nats left to change"
    certified = (
        f"{known.signer!r} certifies the posterior of epoch {number}, begun by {who!r}, at "
        f"sequence {sequence}, with the signed answers of {answers} members: "
        f"{'; '.join([state, *predicate['reasons']])}.{lacks}"
    )
    if not gone:
        return certified, "No member was forgotten."
    names = ", ".join(map(json.dumps, gone))
    was = "was" if len(gone) == 1 else "were"
    began = f"The epoch began at the prior, after {names} {was} forgotten, without their factors."
    how = "The remaining factors were fitted together with the forgotten ones, and refined since."
    if predicate["independent"]:
        how = "Each site signed that its factor depends only on its own records."
    return certified, began, how


def _changes(terms: Terms) -> list[str]:
    """Return sentences on the changes of keys."""
    return [
        f"The key of {each.site!r} is {each.key}, by order of {each.signer!r}: the one before "
        f"counts in epochs below {each.epoch}."
        for each in terms.rotations
    ]


def audit_log(terms: Terms, bundle: Mapping[str, Any], since: bytes | None = None) -> Audit:
    """Check the log of a member, as ``posterity site audit`` wrote it, and its cosignatures.
    ``since`` is an earlier checkpoint kept by the auditor, which the log must continue. Raises a
    Refusal if the bundle cannot be read.
    """
    with reading("an audit", "what `posterity site audit` wrote, of a member of these terms"):
        site = bundle["site"]
        entries = [str(entry).encode() for entry in bundle["entries"]]
        head = TreeHead.from_bytes(bundle["checkpoint"].encode())
        notes = [TreeHead.from_bytes(note.encode()) for note in bundle.get("cosignatures", [])]
        terms = followed(terms, bundle.get("rotations", ()))
        tree = Tree(entries)
        keys = terms.keys_of(site)
    own = key_name(terms.name, site)
    witnesses = {key_name(terms.name, name): terms.keys[name] for name in terms.members}
    del witnesses[own]
    # Drop notes that the keeper did not sign, even if others cosigned them.
    notes = [n for n in notes if n.origin == own and _holds(n.verify, *keys)]
    cosigned = sorted({name for note in notes for name in note.witnesses(witnesses)})
    claims = {
        "the checkpoint is that of the member, and signed by it": (
            head.origin == own and _holds(head.verify, keys[0])
        ),
        "the log has as many entries as its checkpoint says": len(tree) == head.size,
        "its entries are those of the checkpoint": tree.root() == head.root,
        "what others cosigned is the beginning of this log": all(n.begins(tree) for n in notes),
    }
    if since is not None:
        old = TreeHead.from_bytes(since)
        path = tree.consistency(min(old.size, len(tree)))
        goes_on = _holds(continues, old, head, path, keys[0])
        claims["the log continues the checkpoint that was kept"] = goes_on
    others = ", ".join(cosigned) or "no other member"
    shown = f"The log of {site!r} has {len(tree)} entries; {others} cosigned a beginning of it."
    return Audit(Verification(claims), (shown, *_changes(terms)))


def _holds(check: Callable[..., Any], *arguments: Any) -> bool:
    try:
        check(*arguments)
    except Refusal:
        return False
    return True
