"""Letters: what one site sends to another, and how it becomes bytes that the sender signs."""

import dataclasses
import hashlib
import re
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
    void: bool = False
    """Whether it held a token of an epoch in which the receiver can take no part any more."""


@dataclasses.dataclass(frozen=True)
class Notice:
    """A signed statement in its envelope, which goes from site to site."""

    envelope: bytes


FILE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
"""Names that files may have that one member gives to another."""


@dataclasses.dataclass(frozen=True)
class Handover:
    """A file that one member gives to another, such as a posterior to be fused or distilled."""

    name: str
    content: bytes


@dataclasses.dataclass(frozen=True)
class Question:
    """What the server of a star asks a site, its ``number``-th question of all.

    ``content`` is a question of :mod:`posterity.federation.messages` as bytes, and ``survey`` the
    envelope of the survey to which the site shall sign its answer, empty where there is none.
    """

    number: int
    content: bytes
    survey: bytes = b""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a site answers to the question of this digest; and if it was asked for, a residual."""

    question: str
    content: bytes
    residual: bytes = b""


Body = Token | Acknowledgement | Notice | Handover | Question | Answer


@dataclasses.dataclass(frozen=True)
class Letter:
    """A message from one member of a federation to another.

    ``terms`` is the digest of what the sender agreed to, ``highest`` the highest number of an epoch
    of which it has heard, and ``gone`` are, sorted, the members whose tombstones it has.
    """

    terms: str
    sender: str
    receiver: str
    highest: int
    gone: tuple[str, ...]
    body: Body

    def to_bytes(self) -> bytes:
        """A head in JSON on a line of its own, and after it the body."""
        match self.body:
            case Token():
                body = dumps(self.body)
            case Acknowledgement(digest, void):
                body = digest.encode("ascii") + b" void" * void
            case Notice(body):
                pass
            case Handover(name, content):
                body = as_text({"name": name}).encode() + b"\n" + content
            case Question(number, content, survey):
                start = as_text({"number": number, "survey": survey.decode()})
                body = start.encode() + b"\n" + content
            case Answer(question, content, residual):
                start = as_text({"question": question, "residual": residual.decode()})
                body = start.encode() + b"\n" + content
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
            if plain != [str, str, str, int, list] or not 0 <= head["highest"] < MOST_EPOCHS:
                raise ValueError("a head of other fields")
            head["gone"] = tuple(head["gone"])
            if list(head["gone"]) != sorted({*map(str, head["gone"])}):
                raise ValueError("names that are not sorted")
            letter = cls(**head, body=_READERS[kind](body))
            canonical = letter.to_bytes() == content
        except (ArtifactError, AttributeError, KeyError, TypeError, ValueError) as error:
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


HEAD = ("terms", "sender", "receiver", "highest", "gone")
MOST_EPOCHS = 2**53
"""Numbers of epochs stay below: JSON readers of other languages know them exactly."""
MOST_SEQUENCES = 2**32 - 2
"""Sequence numbers stay below: random keys are made of them."""


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


def _acknowledgement(body: bytes) -> Acknowledgement:
    digest, void, _ = body.decode("ascii").partition(" void")
    return Acknowledgement(digest, bool(void))


def _handover(body: bytes) -> Handover:
    head, _, content = body.partition(b"\n")
    name = read_json(head, "the head of a file")["name"]
    if not FILE_NAME.fullmatch(name):
        raise ValueError("a file name with other than letters, digits, '.', '-' and '_'")
    return Handover(name, content)


def _question(body: bytes) -> Question:
    head, _, content = body.partition(b"\n")
    plain = read_json(head, "the head of a question")
    number = plain["number"]
    if type(number) is not int or not 0 <= number < MOST_EPOCHS:
        raise ValueError(f"question {number!r}")
    return Question(number, content, plain["survey"].encode())


def _answer(body: bytes) -> Answer:
    head, _, content = body.partition(b"\n")
    plain = read_json(head, "the head of an answer")
    if not isinstance(plain["question"], str):
        raise ValueError(f"an answer to {plain['question']!r}")
    return Answer(plain["question"], content, plain["residual"].encode())


_READERS: dict[str, Any] = {
    "Token": _token,
    "Acknowledgement": _acknowledgement,
    "Notice": Notice,
    "Handover": _handover,
    "Question": _question,
    "Answer": _answer,
}


def digest_of(content: bytes) -> str:
    """SHA-256 of the bytes of a letter, by which it is acknowledged and logged."""
    return hashlib.sha256(content).hexdigest()
