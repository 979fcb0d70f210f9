"""Errors, each with what was found, what was expected, and a fix."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

CHOOSE = ' (page "Which verb, which rule")'
"""The reference at the end of warnings that require a decision."""


class PosterityError(Exception):
    """The base class of all errors that posterity raises.

    ``found``, ``expected`` and ``fix`` are the parts of the message; ``fix`` is what to do, empty
    if that is clear from what is expected. ``exit_code`` is the exit code of the command line.
    """

    exit_code: ClassVar[int] = 1
    parts: ClassVar[tuple[str, ...]] = ("found", "expected", "fix")

    def __init__(self, *, found: str, expected: str, fix: str = ""):
        super().__init__(f"found {found}; expected {expected}. {fix}".rstrip())
        self.found = found
        self.expected = expected
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructor takes keywords only; attributes such as `error.run` are pickled too.
        sentences = {"found": self.found, "expected": self.expected, "fix": self.fix}
        return functools.partial(type(self), **sentences), (), self.__dict__

    @classmethod
    def check(cls, *rules: tuple[Any, ...]) -> None:
        """Raise the error of the first rule that is broken. A rule is whether it is broken, and
        then the first ``parts`` of the error: those that others have as their default may lack.
        """
        for broken, *sentences in rules:
            if broken:
                raise cls(**dict(zip(cls.parts, sentences, strict=False)))

    def at(self, place: str) -> "PosterityError":
        """Return the error with its place (a site, a block, a file) in the message."""
        return type(self)(found=f"{self.found} in {place}", expected=self.expected, fix=self.fix)


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Return a context that adds a place (a site, a block, a file) to errors in its block."""
    try:
        yield
    except PosterityError as error:
        raise error.at(place) from error


class UsageError(PosterityError):
    """An argument that is invalid, or inconsistent with other arguments."""

    exit_code = 2


class ParameterError(PosterityError):
    """Parameters or data that are NaN, infinite or out of range, or that make a law improper, such
    as a covariance that is not positive definite.
    """

    exit_code = 3


class StructureError(PosterityError):
    """Families, blocks, shapes or dimensions that do not match: posteriors of different families,
    data of a wrong shape, or a model that the chosen method does not support.
    """

    exit_code = 4


class ArtifactError(PosterityError):
    """A file that cannot be read, trusted or written: it is missing, truncated, altered, of an
    unknown format, or its folder cannot be written.
    """

    exit_code = 5


class LedgerError(PosterityError):
    """A change that the ledger's history forbids, such as two different factors of a site at one
    epoch, a merge of ledgers with different priors, or the removal of a site that has no factor.
    """

    exit_code = 6


class MissingExtraError(PosterityError, ImportError):
    """An optional dependency that is not installed; the fix in the message is the command that
    installs it. It is an ImportError too.
    """

    exit_code = 7

    @classmethod
    def of(cls, package: str, extra: str) -> "MissingExtraError":
        """Return the error for a missing ``package``, which ``extra`` installs."""
        return cls(
            found=f"no installed package {package!r}",
            expected=f"the extra {extra!r}",
            fix=f"Run: pip install 'posterity[{extra}]'",
        )


class SiteError(PosterityError):
    """A site of a federation that failed; its factor was not changed."""

    exit_code = 8


class ConvergenceError(PosterityError):
    """A posterior that has not converged, in an operation that requires convergence."""

    exit_code = 9


class ConvergenceWarning(UserWarning):
    """A posterior that has not converged; the run's ``status`` has the remaining change."""


class ScaleWarning(UserWarning):
    """Data of a scale that does not suit the prior of the weights."""


class IdentificationWarning(UserWarning):
    """A matching that is barely identified: another one explains the sites nearly as well."""


class CheckpointWarning(UserWarning):
    """A checkpoint whose computation uses functions that may have changed since it was saved."""


class FusionWarning(UserWarning):
    """Sites that contradict each other, contribute nothing, or may have the same data."""


class FitWarning(UserWarning):
    """A distribution that does not fit the draws, or too few draws or records of a class, with what
    to try.
    """
