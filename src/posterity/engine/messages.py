"""Letters: what one site sends to another, and how it becomes bytes that the sender signs."""

import dataclasses
import functools
import hashlib
from typing import Any, Self

from posterity.artifact.manifest import as_text
from posterity.engine.refusal import Refusal
from posterity.engine.signing import MESSAGE, Envelope, PrivateKey, read_json
from posterity.errors import ArtifactError
from posterity.federation.messages import Token, dumps, loads


@dataclasses.dataclass(frozen=True)
class Acknowledgement:
    """Tells that a letter is durable where it went, so that it need not be sent again."""

    digest: str
    """SHA-256 of the bytes of the letter."""


@dataclasses.dataclass(frozen=True)
class Tombstone:
    """A statement that a site was forgotten, in its envelope, which goes from site to site."""

    envelope: bytes


@dataclasses.dataclass(frozen=True)
class Question:
    """What the server of a star asks a site, its ``number``-th question of the run.

    ``content`` is a question of :mod:`posterity.federation.messages` as bytes.
    """

    number: int
    content: bytes


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a site answers; ``question`` is the SHA-256 of the content of that."""

    question: str
    content: bytes


Body = Token | Acknowledgement | Tombstone | Question | Answer


@dataclasses.dataclass(frozen=True)
class Letter:
    """A message from one member of a federation to another.

    ``terms`` is the digest of what the sender agreed to, ``highest`` the highest number of an epoch
    of which it has heard.
    """

    terms: str
    sender: str
    receiver: str
    highest: int
    body: Body

    def to_bytes(self) -> bytes:
        """A head in JSON on a line of its own, and after it the body."""
        match self.body:
            case Token():
                body = dumps(self.body)
            case Acknowledgement(digest):
                body = digest.encode("ascii")
            case Tombstone(body):
                pass
            case Question(number, content):
                body = as_text({"number": number}).encode() + b"\n" + content
            case Answer(question, content):
                body = as_text({"question": question}).encode() + b"\n" + content
        head = {field: getattr(self, field) for field in HEAD} | {"kind": type(self.body).__name__}
        return as_text(head).encode() + b"\n" + body

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The letter that :meth:`to_bytes` gave.

        Raises:
            Refusal: if it is none, or another spelling of one.
        """
        line, _, body = content.partition(b"\n")
        head = read_json(line, "the head of a letter")
        try:
            kind, plain = head.pop("kind"), [type(head[field]) for field in HEAD]
            if plain != [str, str, str, int] or not 0 <= head["highest"] < MOST_EPOCHS:
                raise ValueError("a head of other fields")
            letter = cls(**head, body=_READERS[kind](body))
            canonical = letter.to_bytes() == content
        except (ArtifactError, KeyError, TypeError, ValueError) as error:
            raise Refusal(
                found=f"a letter that cannot be read ({error})", expected="one that a site wrote"
            ) from error
        if not canonical:
            raise Refusal(
                found="a letter of another spelling",
                expected="the only one of its content",
                reason="canonical",
            )
        return letter

    def sealed(self, key: PrivateKey) -> bytes:
        """The bytes that are sent: the letter in an envelope with the sender's signature."""
        return Envelope(self.to_bytes(), MESSAGE).signed(key).to_bytes()


HEAD = ("terms", "sender", "receiver", "highest")
MOST_EPOCHS = 2**53
"""Numbers of epochs stay below: JSON readers of other languages know them exactly."""


def sender_of(content: bytes) -> str:
    """The name that a letter gives for its sender, before its body is read; a Refusal if none."""
    sender = read_json(content.partition(b"\n")[0], "the head of a letter").get("sender")
    if not isinstance(sender, str):
        raise Refusal(found=f"a letter of {sender!r}", expected="the name of its sender")
    return sender


def _token(body: bytes) -> Token:
    token: Any = loads(body)
    if not isinstance(token, Token) or token.epoch[0] >= MOST_EPOCHS:
        raise ValueError(f"a {type(token).__name__} where a token should be")
    return token


def _with_head(kind: type, field: str, plain: type, body: bytes) -> Any:
    head, _, content = body.partition(b"\n")
    value = read_json(head, f"the head of a {kind.__name__}")[field]
    if type(value) is not plain:
        raise ValueError(f"{field} = {value!r}")
    return kind(value, content)


_READERS: dict[str, Any] = {
    "Token": _token,
    "Acknowledgement": lambda body: Acknowledgement(body.decode("ascii")),
    "Tombstone": Tombstone,
    "Question": functools.partial(_with_head, Question, "number", int),
    "Answer": functools.partial(_with_head, Answer, "question", str),
}


def digest_of(content: bytes) -> str:
    """SHA-256 of the bytes of a letter, by which it is acknowledged and logged."""
    return hashlib.sha256(content).hexdigest()
