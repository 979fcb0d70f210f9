"""Letters: the messages between sites, and their form as bytes that the sender signs."""

import dataclasses
import hashlib
import re
from typing import Any, Self

from posterity.artifact.manifest import as_text
from posterity.engine.refusal import Refusal, reading
from posterity.engine.signing import MESSAGE, Envelope, PrivateKey, read_json
from posterity.federation.messages import Token, dumps, loads
from posterity.version import __version__


@dataclasses.dataclass(frozen=True)
class Acknowledgement:
    """Confirms that a letter is durable at its receiver, so that it need not be sent again."""

    digest: str
    """SHA-256 of the bytes of the letter."""
    void: bool = False
    """True if it held a token of an epoch in which the receiver can no longer take part, or a
    question that it cannot answer any more.
    """


@dataclasses.dataclass(frozen=True)
class Notice:
    """A signed statement in its envelope, which is forwarded from site to site."""

    content: bytes


VERSION = re.compile(r"[\w.+-]{1,40}", re.ASCII)
"""The version of a release, which people are told to install."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question of the server of a star to a site; ``number`` counts all its questions.

    ``content`` is a question of :mod:`posterity.federation.messages` as bytes. ``survey`` is the
    envelope of the survey for which the site has to sign a residual; empty if there is none.
    """

    number: int
    content: bytes
    survey: str = ""


@dataclasses.dataclass(frozen=True)
class Answer:
    """A site's answer to the question with this digest, and a residual if it was asked for."""

    question: str
    content: bytes
    residual: str = ""


@dataclasses.dataclass(frozen=True)
class Unread:
    """Refuses a letter whose schema the receiver does not read; the head tells which it does."""

    digest: str


Body = Token | Acknowledgement | Notice | Question | Answer | Unread | str | None
"""The content of a letter; for one of an unknown schema, the name of its kind, and for one that a
replaced key signed, None."""


SCHEMA = 2
"""Schema of letters that are written and read."""
Seen = tuple[int, int, str, int]
NOTHING_SEEN: Seen = (0, 0, "", -1)


@dataclasses.dataclass(frozen=True)
class Letter:
    """A message from one member of a federation to another.

    ``schema`` is the version of this form and ``release`` that of the sender's posterity. They,
    ``terms``, ``sender``, ``receiver`` and the kind of the body are in letters of all schemas.
    ``changes`` is the number of changes of members' keys that the sender knows.
    ``terms`` is the digest of the sender's terms, ``highest`` the highest epoch number that it has
    recorded. ``gone`` are, sorted, the members whose tombstones it has. ``seen`` is the newest that
    the receiver has signed, as far as the sender knows: the number of its starts, and the epoch
    (number and site) and sequence number of its last answer. A store that is behind it is old.
    """

    terms: str
    sender: str
    receiver: str
    highest: int
    gone: tuple[str, ...]
    body: Body
    seen: Seen = NOTHING_SEEN
    changes: int = 0
    schema: int = SCHEMA
    release: str = __version__

    def to_bytes(self) -> bytes:
        """Return a head in JSON on a line of its own, followed by the content of the body."""
        plain = {} if isinstance(self.body, Token) else dict(vars(self.body))
        content = plain.pop("content", b"")
        if isinstance(self.body, Token):
            content = dumps(self.body)
        head = {field: getattr(self, field) for field in HEAD}
        head |= {"kind": type(self.body).__name__, "body": plain}
        return as_text(head).encode() + b"\n" + content

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a letter from :meth:`to_bytes`. Raises a Refusal if the bytes are no letter, or
        encode one in another way.
        """
        line, _, body = content.partition(b"\n")
        head = read_json(line, "head of a letter")
        with reading("a letter", "a letter of a site"):
            kind = head.pop("kind")
            plain = head.pop("body")
            is_read = head["schema"] == SCHEMA
            fields = HEAD if is_read else ALWAYS
            typed = all(type(head[field]) is HEAD[field] for field in fields)
            numbers = [head[field] for field in fields if type(head[field]) is int]
            bounded = all(0 <= number < MOST_EPOCHS for number in numbers)
            if not (typed and bounded and VERSION.fullmatch(head["release"])):
                raise ValueError("a head with other fields, or with a number out of bounds")
            if not is_read:
                return cls(**{f: head[f] for f in ALWAYS}, highest=0, gone=(), body=str(kind))
            head["gone"], head["seen"] = tuple(head["gone"]), tuple(head["seen"])
            seen = [*map(type, head["seen"])] == [*map(type, NOTHING_SEEN)]
            if not seen or list(head["gone"]) != sorted({*map(str, head["gone"])}):
                raise ValueError("other places, or names that are not sorted")
            letter = cls(**head, body=_body(kind, plain, body))
            if letter.to_bytes() == content:
                return letter
        unique = "the only spelling of its content"
        raise Refusal.of("a letter in another encoding", unique, "canonical")

    def sealed(self, key: PrivateKey) -> bytes:
        """Return the bytes to send: the letter in an envelope with the sender's signature."""
        return Envelope(self.to_bytes(), MESSAGE).signed(key).to_bytes()


ALWAYS = {"schema": int, "release": str, "terms": str, "sender": str, "receiver": str}
HEAD = {**ALWAYS, "highest": int, "gone": list, "seen": list, "changes": int}
"""Fields of the head of a letter with their types: of all schemas, and of this one."""
MOST_EPOCHS = 2**53
"""Bound of epoch numbers, which JSON readers of other languages then read exactly."""
MOST_SEQUENCES = 2**32 - 2
"""Bound of sequence numbers, from which random keys are made."""


def _token(body: bytes) -> Token:
    token: Any = loads(body)
    if not isinstance(token, Token) or token.epoch[0] >= MOST_EPOCHS:
        raise ValueError(f"a {type(token).__name__} instead of a token")
    return token


_KINDS: dict[str, Any] = {
    k.__name__: k for k in (Acknowledgement, Notice, Question, Answer, Unread)
}


def _body(kind: str, plain: dict[str, Any], content: bytes) -> Body:
    """Return the body of a letter; a Python error if it is invalid."""
    if kind == "Token":
        return _token(content)
    fields = {field.name: field.type for field in dataclasses.fields(_KINDS[kind])}
    body = _KINDS[kind](**plain, **({"content": content} if "content" in fields else {}))
    wrong = any(type(getattr(body, name)) is not of for name, of in fields.items())
    if wrong or (isinstance(body, Question) and not 0 <= body.number < MOST_EPOCHS):
        raise ValueError(f"a {kind} with values of another kind")
    return body


def body_of(content: bytes) -> Any:
    """Return the body of a letter that was checked before, such as one in the site's outbox; also
    of a change of the site's key, which is there without a letter.
    """
    envelope = Envelope.from_bytes(content)
    is_letter = envelope.kind == MESSAGE
    return Letter.from_bytes(envelope.payload).body if is_letter else Notice(content)


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a letter's bytes, which identifies it in acknowledgements and logs."""
    return hashlib.sha256(content).hexdigest()
