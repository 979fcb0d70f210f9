"""Audits: a certificate and a log show what they claim, and nothing that was altered does."""

import dataclasses
import hashlib
import json
import sys

import numpy as np
import pytest
from engine.coins import PRIOR, Coins, terms
from engine.keys import KEYS
from engine.packages import provide
from engine.test_notices import walked

from posterity.engine.audit import audit_certificate, audit_log
from posterity.engine.author import Author
from posterity.engine.log import Tree, TreeHead, key_name
from posterity.engine.memory import Memory
from posterity.engine.notices import Standing, read
from posterity.engine.refusal import Refusal
from posterity.engine.signing import Envelope
from posterity.families import Beta, DiagonalGaussian
from posterity.federation.messages import Report


@pytest.fixture(scope="module")
def coins() -> Coins:
    """Four sites that converged, of which one was then forgotten."""
    coins = Coins(terms(steps=None))
    walked(coins, coins.begin("a"))
    walked(coins, coins.forget("b"))
    return coins


def certificate(coins: Coins):
    return coins.memories["d"].certificate


def test_a_certificate_of_a_forgetting_holds(coins):
    audit = audit_certificate(coins.terms, certificate(coins).envelope)
    assert audit.passed and len(audit.verification.claims) == 9
    assert '"b"' in audit.statement and "converged" in audit.statement
    assert "rests on trust" in audit.statement


def altered(coins: Coins, **changes) -> bytes:
    """A certificate that says something else, signed again by who issued it."""
    known = certificate(coins)
    predicate = {**known.predicate, **changes}
    del predicate["terms"], predicate["site"]
    author = Author(coins.terms, known.signer, KEYS[known.signer])
    return author._made("certificate", known.signer, **predicate).envelope


@pytest.mark.parametrize(
    "change",
    [
        {"left": 1e-9},
        {"state": "not converged"},
        {"independent": False},
        {"tolerance": 1e-9},
        {"reasons": ["nobody asked"]},
        {"residuals": {}},
        {"forgotten": {}},
        {"absent": ["c"]},
        {"absent": ["b"]},
        {"tombstones": []},
        {"epoch": [1, "a"]},
        {"sequence": 3},
    ],
)
def test_a_certificate_that_says_something_else_does_not_hold(coins, change):
    known = certificate(coins).predicate
    assert all(known[name] != value for name, value in change.items())
    assert not audit_certificate(coins.terms, altered(coins, **change)).passed


def test_a_certificate_without_the_answer_of_one_does_not_hold(coins):
    known = certificate(coins).predicate
    names = sorted(known["residuals"])
    fewer = [e for e in known["envelopes"] if f'"{names[0]}"' not in _site(e)]
    residuals = {name: known["residuals"][name] for name in names[1:]}
    audit = audit_certificate(coins.terms, altered(coins, envelopes=fewer, residuals=residuals))
    assert (
        "every remaining member has answered or is named as absent, and no other"
        in audit.verification.broken
    )


def test_answers_to_somebody_else_s_survey_do_not_hold(coins):
    known = certificate(coins)
    first, other = sorted(known.predicate["residuals"])[:2]
    envelopes = []
    for text in known.predicate["envelopes"]:
        answer = read(coins.terms, text.encode())
        if answer.site == first:
            said = {**answer.predicate, "to": other if other != known.signer else first}
            del said["terms"], said["site"]
            answer = Author(coins.terms, first, KEYS[first])._made("residual", first, **said)
        envelopes.append(answer.envelope.decode())
    digests = {read(coins.terms, e.encode()).site: _sha(e) for e in envelopes}
    audit = audit_certificate(coins.terms, altered(coins, envelopes=envelopes, residuals=digests))
    assert audit.verification.broken == (
        "all answered its issuer about the posterior that it holds",
    )


def _sha(envelope: str) -> str:
    return hashlib.sha256(envelope.encode()).hexdigest()


def test_a_certificate_of_large_answers_holds_or_says_what_it_lacks(coins):
    size = 60
    prior = DiagonalGaussian.from_standard(np.zeros(size), np.ones(size))
    options = {"model": "logistic-regression", "prior": prior}
    for limits in ({}, {"bytes": 400_000}):
        agreed, zero = terms(**options, steps=None, limits=limits), prior.zero()
        survey = Author(agreed, "a", KEYS["a"]).survey((1, "a"), 9, prior)
        parts = {"direction": zero, "value": 0.0, "fixed_point": zero}
        parts |= {"slope": np.zeros(size), "curvature": np.eye(size)}
        residuals = {
            site: Author(agreed, site, key).residual(
                survey, Standing(True, False, True, Report(site, **parts))
            )
            for site, key in KEYS.items()
        }
        made = Author(agreed, "a", KEYS["a"]).certificate(survey, residuals, {}, 0)
        assert sum(len(each.envelope) for each in residuals.values()) > 2**17
        if not limits:
            assert audit_certificate(agreed, made.envelope).passed
            continue
        with pytest.raises(Refusal, match="digests of 4 members' answers"):
            audit_certificate(agreed, made.envelope)


def test_an_answer_about_another_posterior_is_none_to_the_survey(coins):
    author, other = (Author(coins.terms, site, KEYS[site]) for site in "ac")
    survey = author.survey((9, "a"), 5, PRIOR)
    false = author.survey((9, "a"), 5, Beta.from_standard(2.0, 2.0))
    memory, standing = Memory.empty("a"), Standing(True, True, True, None)
    for asked in (false, other.survey((9, "a"), 5, PRIOR)):
        answer = other.residual(asked, standing)
        held = dataclasses.replace(memory, notices={answer.place: answer})
        assert held.residuals(survey) == {}
    answer = other.residual(survey, standing)
    held = dataclasses.replace(memory, notices={answer.place: answer})
    assert held.residuals(survey) == {"c": answer}


def test_an_auditor_imports_no_model(tmp_path, monkeypatch):
    """The package's module is there, and fails where it is imported."""
    provide(tmp_path, monkeypatch, theirs="audited_models:Theirs")
    module = tmp_path / "audited_models.py"
    module.write_text("from posterity.models import BetaBernoulli as Theirs")
    named = {"model": "theirs", "package": "acme", "version": "1.0", "steps": None}
    coins = Coins(terms(**named, allow={"acme": "1.0"}))
    walked(coins, coins.begin("a"))
    del sys.modules["audited_models"]
    module.write_text("raise SystemExit('imported')")
    audit = audit_certificate(terms(**named), certificate(coins).envelope)
    assert terms(**named).digest == coins.terms.digest
    assert audit.passed and len(audit.verification.claims) == 8
    assert "Not checked, since no model is imported here" in audit.statement
    assert "audited_models" not in sys.modules
    false = audit_certificate(terms(**named), altered(coins, independent=False))
    assert not false.passed


def _site(envelope: str) -> str:

    return json.dumps(
        json.loads(Envelope.from_bytes(envelope.encode()).payload)["predicate"]["site"]
    )


def test_what_nobody_signed_is_refused(coins):
    envelope = certificate(coins).envelope
    other = coins.memories["d"].tombstones["b"].envelope
    for content in (b"", envelope[:-9], envelope.replace(b"sig", b"gis"), other):
        with pytest.raises(Refusal):
            audit_certificate(coins.terms, content)


def bundle(coins: Coins, site: str, entries: list[bytes]) -> dict:
    head = TreeHead.of(Tree(entries), key_name(coins.terms.name, site), KEYS[site])
    cosigned = head.cosigned(key_name(coins.terms.name, "c"), KEYS["c"], 1_700_000_000)
    return {
        "site": site,
        "entries": [entry.decode() for entry in entries],
        "checkpoint": head.to_bytes().decode(),
        "cosignatures": [cosigned.to_bytes().decode()],
    }


def test_a_log_holds_and_one_that_was_rewritten_does_not(coins):
    entries = [entry for site, entry in coins.log if site == "a"]
    kept = bundle(coins, "a", entries[:5])["checkpoint"].encode()
    audit = audit_log(coins.terms, bundle(coins, "a", entries), kept)
    assert audit.passed and "coins/c" in audit.statement
    rewritten = [entries[0], b"{}", *entries[2:]]
    assert not audit_log(coins.terms, bundle(coins, "a", rewritten), kept).passed
    whole = bundle(coins, "a", entries)
    for change in (
        {"entries": whole["entries"][:-1]},
        {"site": "c"},
        {"checkpoint": bundle(coins, "a", rewritten)["checkpoint"]},
        {"cosignatures": bundle(coins, "a", rewritten)["cosignatures"]},
    ):
        assert not audit_log(coins.terms, whole | change).passed
    for junk in ({}, {"site": "z"}, whole | {"entries": 3}, whole | {"checkpoint": "x"}):
        with pytest.raises(Refusal):
            audit_log(coins.terms, junk)
