"""Ed25519 keys, and in-toto statements in DSSE envelopes.

Signatures are those of ``cryptography``. This module only implements the encoding of envelopes
(dsse2021) and statements (intoto2023) as bytes.
"""

import base64
import binascii
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from posterity.artifact.container import parsed
from posterity.artifact.manifest import as_text
from posterity.engine.refusal import Refusal, reading
from posterity.errors import MissingExtraError
from posterity.runtime.files import write_file, writing

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519
except ImportError as error:
    raise MissingExtraError.of("cryptography", "engine") from error

STATEMENT = "application/vnd.in-toto+json"
MESSAGE = "application/vnd.posterity.message"
"""Payload types of envelopes: an in-toto statement, and a message of a federation."""
START = b'{"payload":"'
"""The bytes before a payload."""
MOST_TAIL = 2**18
"""Maximum number of bytes after a payload: the signatures of 1024 members, the most there are."""

# --- keys ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """A member's Ed25519 key (rfc8032), 32 bytes, which are in base64 as text."""

    raw: bytes

    @classmethod
    def of(cls, text: str) -> Self:
        """Read the key from its text; a Refusal if the text is no key."""
        fix = "Ask the member for the key that `posterity site init` printed."
        with reading(f"public key {str(text)[:60]!r}", "an Ed25519 key, 32 bytes in base64", fix):
            raw = base64.b64decode(text, validate=True)
            if len(raw) != 32 or base64.b64encode(raw).decode() != text:
                raise ValueError("other bytes, or another encoding of them")
            return cls(raw)

    def __str__(self) -> str:
        return base64.b64encode(self.raw).decode()

    @functools.cached_property
    def id(self) -> str:
        """The key's SHA-256, by which envelopes identify it."""
        return hashlib.sha256(self.raw).hexdigest()

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Return whether the content was signed with the private half of this key."""
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, content)
        except InvalidSignature:
            return False
        return True


@dataclasses.dataclass(frozen=True)
class PrivateKey:
    """The secret half of a member's key, which never leaves the site."""

    raw: bytes = dataclasses.field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        """Return a new key from the system's source of randomness."""
        return cls(ed25519.Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the key from a file by :meth:`save`; a Refusal if the file contains none, or others
        than its owner may read or change it.
        """
        expected = "an Ed25519 key in PEM, without a password"
        fix = "Name this site's key file."
        name = f"private key {os.fspath(path)!r}"
        with reading(name, expected, fix):
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                content = file.read()
            if mode & 0o077:
                fix = f"Run: chmod 600 {path}. Replace the key if others may have read it."
                found = f"{name}, which others may read (mode {mode:o})"
                raise Refusal.of(found, "mode 600, as its holder can sign as its owner", fix=fix)
            key = serialization.load_pem_private_key(content, password=None)
            if not isinstance(key, ed25519.Ed25519PrivateKey):
                raise TypeError("another kind of key")
            return cls(key.private_bytes_raw())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new PEM file that only its owner can read. Raises an ArtifactError if a file
        exists already, or it cannot be written.
        """
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        text = self._key.private_bytes(*form, serialization.NoEncryption())
        with writing(Path(path)):
            if os.path.lexists(path):
                raise FileExistsError(0, "it exists")
        write_file(Path(path), text, mode=0o600)

    @functools.cached_property
    def public(self) -> PublicKey:
        """The public half of the key."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, content: bytes) -> bytes:
        """Return the signature of a content, 64 bytes."""
        return self._key.sign(content)

    @functools.cached_property
    def _key(self) -> ed25519.Ed25519PrivateKey:
        return ed25519.Ed25519PrivateKey.from_private_bytes(self.raw)


def from_base64(text: Any, what: str) -> bytes:
    """Return the bytes of a text, or of its bytes, in standard base64; a Refusal for any other
    encoding. Where every character is one of base64, only the last four have several spellings.
    """
    with contextlib.suppress(ValueError, TypeError):
        content = text.encode() if isinstance(text, str) else text
        raw = binascii.a2b_base64(content, strict_mode=True)
        if base64.b64encode(raw[(len(raw) - 1) // 3 * 3 :]) == content[-4:]:
            return raw
    raise Refusal.of(f"{what} that is not in standard base64", "canonical base64")


# --- envelopes -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Envelope:
    """A payload and its signatures, by key ID. Do not use the payload before :meth:`verify`.

    Source: dsse2021.
    """

    payload: bytes
    kind: str = STATEMENT
    signatures: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def encoding(self) -> bytes:
        """The bytes that are signed: type and payload, each after its length."""
        kind = self.kind.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.payload), self.payload)

    def signed(self, key: PrivateKey) -> Self:
        """Return the envelope with one more signature."""
        signatures = {**self.signatures, key.public.id: key.sign(self.encoding)}
        return dataclasses.replace(self, signatures=signatures)

    def verify(self, keys: Mapping[str, PublicKey]) -> tuple[str, ...]:
        """Return the sorted names in ``keys`` whose signatures are valid. Raises a Refusal if there
        are none.
        """
        encoding = self.encoding
        signers = [
            name
            for name, key in keys.items()
            if key.id in self.signatures and key.verifies(self.signatures[key.id], encoding)
        ]
        if not signers:
            raise Refusal.of("no valid signature", f"one of {sorted(keys)}", "signature")
        return tuple(sorted(signers))

    def to_bytes(self) -> bytes:
        """Return one JSON document, the same for equal envelopes."""

        def text(content):
            return base64.b64encode(content).decode()

        signed = sorted(self.signatures.items())
        document = {
            "payload": text(self.payload),
            "payloadType": self.kind,
            "signatures": [{"keyid": key, "sig": text(signature)} for key, signature in signed],
        }
        return as_text(document).encode()

    @classmethod
    def from_bytes(cls, content: bytes, *, most: int = 2**30) -> Self:
        """Read an envelope from :meth:`to_bytes`. Raises a Refusal if the bytes are no envelope,
        encode one in another way, or are more than ``most``.
        """
        if len(content) > most:
            raise Refusal.of(f"{len(content)} bytes", f"at most {most}", "size")
        end = content.find(b'"', len(START)) if content.startswith(START) else 0
        tail = content[end:]
        if len(tail) > MOST_TAIL:
            raise Refusal.of("an envelope without a payload", "one of DSSE")
        document = read_json(START + tail if end else tail, "DSSE envelope")
        with reading("an envelope", "one of DSSE"):
            pairs = [(each["keyid"], each["sig"]) for each in document["signatures"]]
            signatures = {str(key): from_base64(text, "a signature") for key, text in pairs}
            envelope = cls(b"", str(document["payloadType"]), signatures)
            if end and envelope.to_bytes() == START + tail:
                payload = from_base64(memoryview(content)[len(START) : end], "a payload")
                return dataclasses.replace(envelope, payload=payload)
        ordered = "keys sorted, no spaces, signatures by key ID"
        raise Refusal.of("an envelope in another encoding", ordered, "canonical")


def read_json(content: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object without duplicate keys; a Refusal for anything else. An escape of half a
    surrogate pair is refused, since it could not be encoded as bytes again.
    """
    with reading(f"a {what}", "a JSON object, each key once"):
        text = content.decode("utf-8")
        document = parsed(text, what)
        if "\\ud" in text.lower():
            json.dumps(document, ensure_ascii=False).encode()
        return document


# --- statements ----------------------------------------------------------------------------------

Claim = Literal[
    "tombstone",
    "agreement",
    "absence",
    "survey",
    "residual",
    "certificate",
    "checkpoint",
    "cosignature",
    "rotation",
]
"""The claim of a statement, one of :mod:`posterity.engine.notices`."""
PREDICATE = "https://posterity.dev/{}/v1"


@dataclasses.dataclass(frozen=True)
class Statement:
    """A signer's claim about ``subjects``, which are identified by their SHA-256 in hexadecimal.

    Source: intoto2023.
    """

    claim: Claim
    subjects: Mapping[str, str]
    predicate: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return the payload of an envelope: an in-toto statement in JSON."""
        subjects = [
            {"name": name, "digest": {"sha256": digest}} for name, digest in self.subjects.items()
        ]
        document = {
            "_type": "https://in-toto.io/Statement/v1",
            "predicateType": PREDICATE.format(self.claim),
            "subject": sorted(subjects, key=lambda subject: subject["name"]),
            "predicate": dict(self.predicate),
        }
        return as_text(document).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a statement from :meth:`to_bytes`; a Refusal if the bytes are no statement."""
        document = read_json(content, "statement")
        with reading("a statement", "an in-toto statement of a claim that posterity makes"):
            claims: dict[Any, Claim] = {PREDICATE.format(c): c for c in get_args(Claim)}
            subjects = {each["name"]: each["digest"]["sha256"] for each in document["subject"]}
            digests = all(len(bytes.fromhex(digest)) == 32 for digest in subjects.values())
            statement = cls(claims[document["predicateType"]], subjects, document["predicate"])
            if not digests or statement.to_bytes() != content:
                raise ValueError("another encoding of it")
            return statement

    def signed(self, key: PrivateKey) -> Envelope:
        """Return an envelope with the statement, signed with a key."""
        return Envelope(self.to_bytes()).signed(key)
