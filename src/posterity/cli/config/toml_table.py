"""A table of a TOML file, read key by key, every mistake named by where it stands."""

import math
from collections.abc import Mapping
from typing import Any

from posterity.errors import UsageError

TYPES = {
    bool: "boolean",
    dict: "table",
    float: "float",
    int: "integer",
    list: "array",
    str: "string",
}
"""What TOML calls them."""
NUMBER = (int, float)


class Table:
    """A table of the file, from which every key must be taken."""

    def __init__(self, values: Mapping[str, Any], name: str):
        self.values, self.name, self.taken = dict(values), name, list[str]()
        self.tables: list[Table] = []

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        """The value of ``key``; a UsageError if it is missing or of another type."""
        self.taken.append(key)
        value = self.values.get(key, default)
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        if value is ... or (key in self.values and wrong):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise UsageError(
                found=f"no {self._full(key)}" if value is ... else f"{self._full(key)} = {value!r}",
                expected=f"{self._full(key)}, of type {' or '.join(TYPES[k] for k in kinds)}",
                fix="See docs/federate.md for a complete file.",
            )
        return value

    def count(self, key: str, default: Any = ..., least: int = 1) -> int:
        """A whole number that is at least ``least``."""
        value: int = self.take(key, int, default)
        return self._within(key, value, value >= least, f"at least {least}")

    def positive(self, key: str, default: float) -> float:
        """A positive number."""
        value = float(self.take(key, NUMBER, default))
        return self._within(key, value, 0 < value < math.inf, "a positive number")

    def all_of(self, kind: type | tuple[type, ...]) -> dict[str, Any]:
        """The whole table, every value of one type."""
        return {key: self.take(key, kind) for key in self.values}

    def choice(self, key: str, choices: Mapping[str, Any], default: Any = ...) -> Any:
        """The value of ``key``, which must be one of ``choices``."""
        value: Any = self.take(key, str, default)
        fine = value is None or value in choices
        return self._within(key, value, fine, f"one of {list(choices)}")

    def table(self, key: str, default: Any = ...) -> "Table":
        """The table of this name."""
        self.tables.append(Table(self.take(key, dict, default), self._full(key)))
        return self.tables[-1]

    def rest(self) -> dict[str, Any]:
        """All that was not taken yet."""
        left = {key: value for key, value in self.values.items() if key not in self.taken}
        self.taken += list(left)
        return left

    def finish(self) -> None:
        """Raise a UsageError if there is a key that nobody took."""
        unknown = [self._full(key) for key in self.values if key not in self.taken]
        if unknown:
            raise UsageError(
                found=f"{', '.join(unknown)}, of which nothing is known",
                expected=f"keys among {sorted(set(self.taken))}",
                fix="Check the spelling, or remove them.",
            )
        for table in self.tables:
            table.finish()

    def _within(self, key: str, value: Any, fine: bool, expected: str) -> Any:
        if not fine:
            raise UsageError(
                found=f"{self._full(key)} = {value!r}", expected=expected, fix="Mend this value."
            )
        return value

    def _full(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key
