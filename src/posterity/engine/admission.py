"""Checks of a letter before it has any effect, each with a reason code."""

import dataclasses
from collections.abc import Container
from typing import Any

import numpy as np

from posterity.arrays.tree import structure
from posterity.artifact.artifact import from_bytes
from posterity.engine.agreement import Terms
from posterity.engine.messages import MOST_SEQUENCES, Answer, Handover, Letter, Notice, Question
from posterity.engine.refusal import Refusal, reading
from posterity.engine.signing import MESSAGE, STATEMENT, Envelope, Statement
from posterity.families import ExponentialFamily
from posterity.federation import Token
from posterity.federation.messages import Report


def admitted(terms: Terms, content: bytes, receiver: str, gone: Container[str]) -> Letter:
    """Return the letter in some bytes, signed by a member, of these terms and for this receiver.
    ``gone`` are the names of forgotten members. The body is None if a key signed it that was
    replaced. A change of a key needs no letter; the one returned has no release. Raises a Refusal
    if it is no such letter, or its contents exceed the agreed limits.
    """
    envelope = Envelope.from_bytes(content, most=terms.limits.bytes)
    if envelope.kind not in (MESSAGE, STATEMENT):
        raise Refusal.of(f"an envelope of type {envelope.kind!r}", MESSAGE, "schema")
    signers = envelope.verify({**terms.keys, **terms.authorities})  # before anything is read
    if envelope.kind == STATEMENT:
        letter = _without_letter(terms, content, envelope, receiver)
    else:
        letter = Letter.from_bytes(envelope.payload)
        before = {each.label for each in terms.rotations if each.site == letter.sender}
        if before.intersection(signers):
            return dataclasses.replace(letter, body=None)
        if letter.sender not in signers:
            reason = "signature" if letter.sender in terms.members else "membership"
            raise Refusal.of(f"a letter of {letter.sender!r}", f"one of {signers[0]!r}", reason)
    if not terms.members.keys() >= {letter.sender, *letter.gone}:
        raise Refusal.of("a letter of or about nonmembers", "only members", "membership")
    if (letter.terms, letter.receiver) != (terms.digest, receiver):
        found = f"a letter for {letter.receiver!r} under terms {letter.terms[:16]!r}"
        expected = f"one for {receiver!r} under {terms.digest[:16]!r}"
        raise Refusal.of(found, expected, "membership")
    if isinstance(letter.body, Token | Question | Answer | Handover) and letter.sender in gone:
        kind = type(letter.body).__name__
        raise Refusal.of(f"a {kind} of {letter.sender!r}", "one of a remaining member", "tombstone")
    if isinstance(letter.body, Token):
        if terms.server is not None:
            raise Refusal.of("a token", "a question of the server", "membership")
        if letter.body.epoch[0] > letter.highest:
            raise Refusal.of(f"a token of epoch {letter.body.epoch}", "one announced", "epoch")
        _check_token(terms, letter.sender, letter.body)
    if isinstance(letter.body, Handover):
        with reading("a file that was handed over", "an artifact of posterity"):
            from_bytes(letter.body.content)
    return letter


def _without_letter(terms: Terms, content: bytes, envelope: Envelope, receiver: str) -> Letter:
    """Return a letter without a release for a change of a key, by which its maker's letters are
    signed; a Refusal for another statement.
    """
    statement = Statement.from_bytes(envelope.payload)
    if statement.claim != "rotation":
        raise Refusal.of(f"a {statement.claim} without a letter", "one in a letter", "schema")
    sender = str(statement.predicate.get("site"))
    return Letter(terms.digest, sender, receiver, 0, (), Notice(content), release="")


def _check_token(terms: Terms, sender: str, token: Token) -> None:
    """Check a token by itself, and that the posterior in it is within the agreed limits."""
    numbered = 0 < token.sequence < MOST_SEQUENCES
    if (token.agreement, token.sender) != (terms.digest, sender) or not numbered:
        found = f"a token of {token.sender!r} under terms {token.agreement[:16]!r}"
        expected = f"one that {sender!r} made, under {terms.digest[:16]!r}"
        raise Refusal.of(found, expected, "membership")
    if token.epoch[1] not in terms.members or token.epoch[0] < 1:
        raise Refusal.of(f"epoch {token.epoch}", "one that a member began", "membership")
    if not terms.members.keys() >= {site for site, *_ in token.seals}:
        raise Refusal.of("seals of nonmembers", "seals of members", "membership")
    for layer in token.exact_sum.layers:
        check_structure(terms, layer)
    check_posterior(terms, token.posterior)


def check_structure(terms: Terms, law: Any) -> None:
    """Check that a distribution is like the prior in structure; a Refusal if not. What was read
    from bytes is finite.
    """
    prior = terms.law
    if structure(law) != structure(prior):
        found = f"a {type(law).__name__}, or one of another shape"
        raise Refusal.of(found, f"a {type(prior).__name__} like the prior", "family")


def check_report(terms: Terms, report: Report) -> None:
    """Check that a site's report has the prior's family and shapes, and numbers within the limits.
    Raises a Refusal if not.
    """
    for law in (report.direction, report.fixed_point):
        if law is not None:
            check_structure(terms, law)
            check_size(terms, law.natural_parameters)
    arrays = (report.slope, report.curvature)
    for axes, array in enumerate(arrays, start=1):
        shape = (terms.law.event_size,) * axes
        if array is not None and np.shape(array) != shape:
            raise Refusal.of(f"a report of shape {np.shape(array)}", f"{shape}", "family")
    if report.elsewhere is not None and np.ndim(report.elsewhere) != 1:
        raise Refusal.of(f"values of shape {np.shape(report.elsewhere)}", "(m,)", "family")
    numbers = (*arrays, report.elsewhere, report.value, report.variance, report.quadrature_error)
    check_size(terms, *(number for number in numbers if number is not None))


def check_size(terms: Terms, *numbers: Any) -> None:
    """Check that no number is NaN or above the agreed limit; a Refusal if one is."""
    most = terms.limits.magnitude
    for number in numbers:
        if np.size(number) and not np.abs(number).max() <= most:
            raise Refusal.of(f"a number beyond {most:.3g}", f"at most {most:.3g}", "magnitude")


def check_posterior(terms: Terms, posterior: ExponentialFamily) -> None:
    """Check that a sum of prior and factors is within the agreed limits; a Refusal if not. For
    conjugate models every such sum must be proper. For others, a sum that lacks some sites' factors
    may be improper; a site then passes the token on unchanged.
    """
    own = posterior.natural_parameters
    prior = terms.law.natural_parameters
    changed = np.abs(own - prior).max()
    largest = np.abs(own).max()
    limits = terms.limits
    if not largest <= limits.magnitude:
        size = f"a natural parameter of magnitude {largest:.3g}"
        raise Refusal.of(size, f"at most {limits.magnitude:.3g}", "magnitude")
    if not changed <= limits.pseudo_counts:
        size = f"factors of {changed:.3g} pseudo-counts"
        raise Refusal.of(size, f"at most {limits.pseudo_counts:.3g}", "magnitude")
    if not terms.knows_model:  # an auditor imports none
        return
    if terms.agreement.update.conjugate and not terms.agreement.admits(posterior):
        raise Refusal.of(f"an improper {type(posterior).__name__}", "a distribution", "proper")
