"""Errors that say what was found, what was expected, and what to do next."""

import functools
from typing import Any, ClassVar

CHOOSE = " (docs/how-to-choose.md)"
"""Where a warning that asks for a decision points."""


class PosterityError(Exception):
    """The root of all errors that posterity raises on purpose.

    ``found``, ``expected`` and ``fix`` are sentences for people; ``exit_code`` is what the
    command line returns.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, *, found: str, expected: str, fix: str):
        super().__init__(f"found {found}; expected {expected}. {fix}")
        self.found, self.expected, self.fix = found, expected, fix

    def __reduce__(self) -> tuple[Any, ...]:
        # Keywords alone make one; what was attached to it (`error.run`) travels along.
        sentences = {"found": self.found, "expected": self.expected, "fix": self.fix}
        return functools.partial(type(self), **sentences), (), self.__dict__

    def at(self, place: str) -> "PosterityError":
        """The same error, naming where (a site, a block, a file) it came up."""
        return type(self)(found=f"{self.found} in {place}", expected=self.expected, fix=self.fix)


class UsageError(PosterityError):
    """An argument that makes no sense, alone or beside the others."""

    exit_code = 2


class ParameterError(PosterityError):
    """NaN, infinite or improper parameters."""

    exit_code = 3


class StructureError(PosterityError):
    """Families, blocks, shapes or dimensions that do not fit together."""

    exit_code = 4


class ArtifactError(PosterityError):
    """A file that cannot be read, trusted or written."""

    exit_code = 5


class LedgerError(PosterityError):
    """A change that the ledger's history forbids."""

    exit_code = 6


class MissingExtraError(PosterityError, ImportError):
    """An optional dependency that is not installed."""

    exit_code = 7

    @classmethod
    def of(cls, package: str, extra: str) -> "MissingExtraError":
        """The error for a missing ``package``, which the extra ``extra`` brings."""
        return cls(
            found=f"no installed package {package!r}",
            expected=f"the extra {extra!r}",
            fix=f"Run: pip install 'posterity[{extra}]'",
        )


class SiteError(PosterityError):
    """A site that could not do its part of a federation; nothing of it was committed."""

    exit_code = 8


class ConvergenceError(PosterityError):
    """A posterior that has not converged, where something irreversible was to follow from it."""

    exit_code = 9


class ConvergenceWarning(UserWarning):
    """A posterior that has not converged: what is left to change is in the run's ``status``."""


class ScaleWarning(UserWarning):
    """Data in units for which a prior of the weights was hardly meant."""


class IdentificationWarning(UserWarning):
    """A matching that hangs on little: another one explains the sites nearly as well."""


class FusionWarning(UserWarning):
    """Sites that contradict each other, add nothing, or may hold the same data."""


class FitWarning(UserWarning):
    """A law through draws that does not fit them, or draws that say too little: and what to try."""
