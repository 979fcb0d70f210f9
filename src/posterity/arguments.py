"""Constraints on arguments, with their error messages."""

import dataclasses
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from posterity.errors import PosterityError, StructureError, UsageError


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A condition on a value, in words and as a function; ``fix`` is the advice in the error.

    >>> COUNT.check(steps=3)
    """

    expected: str
    holds: Callable[[Any], bool]
    error: type[PosterityError] = UsageError
    fix: str = ""

    def check(self, **arguments: Any) -> None:
        """Raise the error if an argument does not meet the condition."""
        for name, value in arguments.items():
            if not self.allows(value):
                found = f"{name}={value!r}"
                raise self.error(found=found, expected=self.expected, fix=self.fix)

    def allows(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        try:
            return bool(self.holds(value))
        except (TypeError, ValueError, AttributeError, OverflowError):
            # A value that cannot be compared has the wrong type.
            return False

    def or_none(self) -> "Constraint":
        """Return the constraint that also allows None."""
        return dataclasses.replace(self, holds=lambda value: value is None or self.holds(value))


def number_of(kind: type, holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test for numbers of this kind (bools excluded) for which ``holds`` is true."""
    return lambda x: isinstance(x, kind) and not isinstance(x, bool) and holds(x)


def instance(expected: str, *kinds: type) -> Constraint:
    """Return the constraint that a value is an instance of one of these classes."""
    return Constraint(expected, lambda value: isinstance(value, kinds))


def at_least(least: int) -> Constraint:
    """Return the constraint that a value is a whole number, at least ``least``."""
    holds = number_of(Integral, lambda n: int(n) >= least)
    return Constraint(f"a whole number, at least {least}", holds)


def one_of(*choices: str) -> Constraint:
    """Return the constraint that a value is one of these words."""
    *others, last = map(repr, choices)
    return Constraint(f"{', '.join(others)} or {last}", lambda word: word in choices)


def check_shape(what: str, array: Any, *axes: int | None) -> None:
    """Raise a StructureError unless an array has these axes, of which None has any length."""
    shape = tuple(getattr(array, "shape", ()))
    pairs = zip(axes, shape, strict=False)
    if len(shape) != len(axes) or any(size not in (None, own) for size, own in pairs):
        wanted = ", ".join("any" if size is None else str(size) for size in axes)
        raise StructureError(found=f"{what} of shape {shape}", expected=f"shape ({wanted})")


COUNT = at_least(1)
"""What counts something that there is at least once."""
NATURAL = at_least(0)
"""What counts something that there may be none of."""
POSITIVE = Constraint("a positive number", number_of(Real, lambda x: 0 < float(x) < math.inf))
NOT_NEGATIVE = Constraint(
    "a finite number, not negative",
    lambda x: not isinstance(x, bool | str) and 0 <= float(x) < math.inf,
)
FINITE = Constraint("a finite number", number_of(Real, lambda x: math.isfinite(float(x))))
FLAG = instance("True or False", bool)
SHARE = Constraint("a number in (0, 1]", number_of(Real, lambda x: 0 < float(x) <= 1))
BETWEEN = Constraint(
    "a number between 0 and 1", lambda x: not isinstance(x, str) and 0 < float(x) < 1
)
