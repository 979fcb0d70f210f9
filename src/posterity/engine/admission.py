"""Checks of a letter before it has any effect, each with a reason code."""

import dataclasses
from collections.abc import Container
from typing import Any

import numpy as np

from posterity.arrays.tree import structure
from posterity.engine.agreement import Terms
from posterity.engine.messages import MOST_SEQUENCES, Answer, Letter, Notice, Question
from posterity.engine.refusal import Refusal
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
    body = letter.body
    strange = not terms.members.keys() >= {letter.sender, *letter.gone}
    astray = (letter.terms, letter.receiver) != (terms.digest, receiver)
    late = letter.sender in gone and isinstance(body, Token | Question | Answer)
    found = f"a letter for {letter.receiver!r} under terms {letter.terms[:16]!r}"
    expected = f"one for {receiver!r} under {terms.digest[:16]!r}"
    of_gone = f"a {type(body).__name__} of {letter.sender!r}"
    Refusal.check(
        (strange, "a letter of or about nonmembers", "only members", "membership"),
        (astray, found, expected, "membership"),
        (late, of_gone, "one of a remaining member", "tombstone"),
    )
    if isinstance(body, Token):
        _check_token(terms, letter, body)
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


def _check_token(terms: Terms, letter: Letter, token: Token) -> None:
    """Check a letter's token, and that the posterior in it is within the agreed limits."""
    number, who = token.epoch
    members = terms.members.keys()
    own = (token.agreement, token.sender) == (terms.digest, letter.sender)
    numbered = 0 < token.sequence < MOST_SEQUENCES
    begun = who in members and number >= 1
    found = f"a token of {token.sender!r} under terms {token.agreement[:16]!r}"
    expected = f"one that {letter.sender!r} made, under {terms.digest[:16]!r}"
    sealed = members >= {site for site, *_ in token.seals}
    Refusal.check(
        (terms.server is not None, "a token", "a question of the server", "membership"),
        (number > letter.highest, f"a token of epoch {token.epoch}", "one announced", "epoch"),
        (not (own and numbered), found, expected, "membership"),
        (not begun, f"epoch {token.epoch}", "one that a member began", "membership"),
        (not sealed, "seals of nonmembers", "seals of members", "membership"),
    )
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
    check_size(terms, own)
    changed = np.abs(own - prior).max()
    most = terms.limits.pseudo_counts
    improper = (
        terms.knows_model  # an auditor imports none
        and terms.agreement.update.conjugate
        and not terms.agreement.admits(posterior)
    )
    size = f"factors of {changed:.3g} pseudo-counts"
    Refusal.check(
        (not changed <= most, size, f"at most {most:.3g}", "magnitude"),
        (improper, f"an improper {type(posterior).__name__}", "a distribution", "proper"),
    )
