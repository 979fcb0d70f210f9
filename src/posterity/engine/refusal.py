"""The error for content that a site does not accept, with a code for its log."""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, Self

from posterity.errors import ArtifactError, PosterityError

Reason = Literal[
    "schema",  # not of the form of its kind
    "size",  # larger than agreed
    "signature",  # not signed by the claimed signer, or by too few
    "retired",  # by a key that was replaced, or a change of a key that loses to another
    "release",  # of another schema of letters
    "membership",  # of or for a site that is no member, or of another federation
    "tombstone",  # of a forgotten member
    "family",  # another family or shape than the prior's
    "canonical",  # not in the only valid encoding
    "proper",  # an improper distribution
    "magnitude",  # natural parameters or pseudo-counts above the agreed limits
    "epoch",  # of an epoch that has ended
    "replay",  # answered before
    "left out",  # a token that lacks factors which were in it
    "rollback",  # a token that holds another factor of the site than its store
    "order",  # a command that the state of the site forbids
    "proof",  # a certificate that does not follow from its contents
    "unwitnessed",  # a log without a proof that it continues the known one
    "rewritten",  # a log that does not continue the known one
]


DROP = "Drop it, and ask its sender for another."
UNREADABLE = (
    PosterityError,
    OSError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that reading content of another form, or a file that is not there, may raise."""
RELEASE = "Open the store with the release that wrote it."


class Refusal(ArtifactError):
    """A message, envelope, proof or command that was refused and changed nothing. ``reason`` is the
    code in the site's log.
    """

    parts = ("found", "expected", "reason", "fix")

    def __init__(self, *, found: str, expected: str, fix: str = DROP, reason: Reason = "schema"):
        super().__init__(found=found, expected=expected, fix=fix)
        self.reason: Reason = reason

    @classmethod
    def of(cls, found: str, expected: str, reason: Reason = "schema", fix: str = DROP) -> Self:
        """Make a refusal of received content, which is to be dropped unless ``fix`` differs."""
        return cls(found=found, expected=expected, fix=fix, reason=reason)

    def at(self, place: str) -> Self:
        kept: dict[str, Any] = {"expected": self.expected, "fix": self.fix, "reason": self.reason}
        return type(self)(found=f"{self.found} in {place}", **kept)


@contextlib.contextmanager
def reading(what: str, expected: str, fix: str = DROP) -> Iterator[None]:
    """Turn any error raised while ``what`` is read into a Refusal; refusals stay as they are."""
    try:
        yield
    except Refusal:
        raise
    except UNREADABLE as error:
        named = f"{type(error).__name__}: {error}"  # whose repr may hold all that was read
        why = error.found if isinstance(error, PosterityError) else named
        raise Refusal.of(f"{what} that cannot be read ({why})", expected, fix=fix) from error


def forbidden(
    found: str, reason: Reason, expected: str = "what the state of the site allows"
) -> Refusal:
    """Return the refusal of a command or message that the state of a site does not allow."""
    return Refusal.of(found, expected, reason, "See `posterity site status`.")
