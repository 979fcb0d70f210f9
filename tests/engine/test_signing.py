"""Envelopes and statements, judged by securesystemslib; certificates in the manner of NVFlare's."""

import base64
import dataclasses
import json
import os
import pickle
import stat

import pytest
from engine.keys import KEYS, PUBLIC
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope as Judge
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from posterity.engine.refusal import Refusal
from posterity.engine.signing import (
    MESSAGE,
    Envelope,
    PrivateKey,
    PublicKey,
    Statement,
    from_base64,
    read_json,
)
from posterity.errors import ArtifactError

STATEMENT = Statement("certificate", {"after": "ab" * 32, "before": "cd" * 32}, {"sites": ["va"]})


def judged(key: PublicKey) -> SSlibKey:
    return SSlibKey(key.id, "ed25519", "ed25519", {"public": key.raw.hex()})


def test_another_library_reads_our_envelopes():
    envelope = STATEMENT.signed(KEYS["a"]).signed(KEYS["b"])
    judge = Judge.from_dict(json.loads(envelope.to_bytes()))
    assert judge.pae() == envelope.encoding
    accepted = judge.verify([judged(key) for key in PUBLIC.values()], threshold=2)
    assert accepted.keys() == {PUBLIC["a"].id, PUBLIC["b"].id}
    with pytest.raises(VerificationError):
        judge.verify([judged(key) for key in PUBLIC.values()], threshold=3)


@given(
    st.binary(max_size=50),
    st.sampled_from(["", MESSAGE, "\u2603"]),
    st.sets(st.sampled_from("abc")),
)
def test_an_envelope_comes_back_with_who_signed_it(payload, kind, signers):
    envelope = Envelope(payload, kind)
    for name in signers:
        envelope = envelope.signed(KEYS[name])
    again = Envelope.from_bytes(envelope.to_bytes())
    assert again == envelope
    if signers:
        assert again.verify(PUBLIC) == tuple(sorted(signers))
    else:
        with pytest.raises(Refusal, match="no valid signature"):
            again.verify(PUBLIC)


def test_what_is_altered_holds_no_more():
    envelope = STATEMENT.signed(KEYS["a"])
    stranger = {PUBLIC["a"].id: KEYS["b"].sign(envelope.encoding)}
    for altered in (
        dataclasses.replace(envelope, payload=envelope.payload + b" "),
        dataclasses.replace(envelope, kind=MESSAGE),
        dataclasses.replace(envelope, signatures=stranger),
        dataclasses.replace(envelope, signatures={PUBLIC["a"].id: b""}),
    ):
        with pytest.raises(Refusal, match="no valid signature"):
            altered.verify(PUBLIC)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "schema"),
        (b"\xff", "schema"),
        (b"[]", "schema"),
        (b"[" * 100_000, "schema"),
        (b"{}", "schema"),
        (b'{"payload": 3, "payloadType": "x", "signatures": []}', "canonical"),
        (b'{"payload":"AB==","payloadType":"x","signatures":[]}', "schema"),
        (b'{"payload":"AA=","payloadType":"x","signatures":[]}', "schema"),
        (b'{"payload":"","payload":"","payloadType":"x","signatures":[]}', "schema"),
        (b'{"payload":"","payloadType":"x","signatures":3}', "schema"),
        (b'{"payload":"","payloadType":"x","signatures":[{"keyid":"a","sig":"/"}]}', "schema"),
        (b'{"payload":"","payloadType":"x", "signatures":[]}', "canonical"),
        (b'{"more":1,"payload":"","payloadType":"x","signatures":[]}', "canonical"),
        (b"x" * 1001, "size"),
    ],
)
def test_foreign_bytes_are_refused_by_reason(content, reason):
    with pytest.raises(Refusal) as error:
        Envelope.from_bytes(content, most=100_000 if content[:1] == b"[" else 1000)
    assert error.value.reason == reason
    assert pickle.loads(pickle.dumps(error.value.at("here"))).reason == reason


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "another"},
        {"predicateType": "https://elsewhere.example/v1"},
        {"subject": [{"name": "a", "digest": {"sha256": "12"}}]},
        {"subject": [{"name": "a", "digest": {"md5": "12"}}]},
        {"subject": "a"},
        {"predicate": 3},
        {"more": 1},
    ],
)
def test_foreign_statements_are_refused(change):
    document = json.loads(STATEMENT.to_bytes()) | change
    envelope = Envelope(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(Refusal):
        Statement.from_bytes(envelope.payload)


def test_a_statement_comes_back_with_who_signed_it():
    envelope = STATEMENT.signed(KEYS["a"]).signed(KEYS["c"])
    assert envelope.verify(PUBLIC) == ("a", "c")
    assert Statement.from_bytes(envelope.payload) == STATEMENT


def test_private_keys_are_their_owners_files(tmp_path, monkeypatch):
    path = tmp_path / "site.key"
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(ArtifactError, match="full"):
            KEYS["a"].save(path)
    assert not path.exists()  # half a key would stand in the way
    KEYS["a"].save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert PrivateKey.load(path) == KEYS["a"]
    assert "raw" not in repr(KEYS["a"])
    with pytest.raises(ArtifactError):
        KEYS["b"].save(path)
    for content in (b"", b"\x00", path.read_bytes()[:60]):
        (tmp_path / "bad.key").write_bytes(content)
        (tmp_path / "bad.key").chmod(0o600)
        with pytest.raises(Refusal, match="cannot be read"):
            PrivateKey.load(tmp_path / "bad.key")
    with pytest.raises(Refusal):
        PrivateKey.load(tmp_path / "missing.key")
    assert PublicKey.of(str(PUBLIC["a"])) == PUBLIC["a"]
    for text in ("", "AAAA", str(PUBLIC["a"])[:-1], str(PUBLIC["a"]) + "\n"):
        with pytest.raises(Refusal):
            PublicKey.of(text)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o777])
def test_a_private_key_that_others_may_read_is_refused(tmp_path, mode):
    path = tmp_path / "officer.key"
    KEYS["a"].save(path)
    path.chmod(mode)
    with pytest.raises(Refusal, match=f"mode {mode:o}") as refused:
        PrivateKey.load(path)
    assert f"chmod 600 {path}" in refused.value.fix
    path.chmod(0o400)
    assert PrivateKey.load(path) == KEYS["a"]


def test_a_private_key_is_its_owners_from_the_first_byte_on(tmp_path, monkeypatch):
    modes, write = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda h: (modes.append(os.fstat(h).st_mode), write(h)))
    before = os.umask(0)
    try:
        KEYS["a"].save(tmp_path / "site.key")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(mode) for mode in modes if stat.S_ISREG(mode)] == [0o600]
    assert any(map(stat.S_ISDIR, modes)), "the name of the file is durable too"


def test_half_a_surrogate_pair_is_refused_where_json_is_read() -> None:
    assert read_json(rb'{"a": "\ud83d\ude00"}', "letter") == {"a": "\U0001f600"}
    with pytest.raises(Refusal):
        read_json(rb'{"a": ["\ud800"]}', "letter")


def test_an_envelope_has_room_for_signatures_of_a_thousand_members():
    def signed(members):
        signatures = {f"{number:064x}": bytes(64) for number in range(members)}
        return Envelope(b"", MESSAGE, signatures).to_bytes()

    assert len(Envelope.from_bytes(signed(1024)).signatures) == 1024
    with pytest.raises(Refusal, match="without a payload"):
        Envelope.from_bytes(signed(2048))


@pytest.mark.parametrize("content", [bytes(2**20), b'{"payload":"' + bytes(2**20)])
def test_bytes_without_an_envelope_are_refused_before_they_are_parsed(content):
    with pytest.raises(Refusal, match=r"without a payload|cannot be read"):
        Envelope.from_bytes(content)


@given(st.text("AB+/=\n \u00e9", max_size=9))
def test_a_text_is_base64_only_in_the_one_spelling(text):
    try:
        raw = base64.b64decode(text, validate=True)
        canonical = base64.b64encode(raw).decode() == text
    except ValueError:
        canonical = False
    try:
        assert from_base64(text, "a text") == base64.b64decode(text) and canonical
    except Refusal:
        assert not canonical
