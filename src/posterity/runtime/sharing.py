"""Immutable maps whose changed copies share the unchanged parts."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class SharedMap(Mapping[str, Value], Generic[Value]):
    """An immutable map from names, iterated in sorted order, with cheap changed copies.

    Its number of parts is proportional to the square root of its size: ``shared | changes`` copies
    only the parts that change, and shares the others.

    >>> old = SharedMap.of({"north": 1})
    >>> new = old | {"south": 2}
    >>> dict(old), dict(new)
    ({'north': 1}, {'north': 1, 'south': 2})
    """

    __slots__ = ("_parts", "_size")

    def __init__(self, parts: list[dict[str, Value]], size: int):
        """Make a map of parts that no other code changes; use :meth:`of`."""
        self._parts = parts
        self._size = size

    @classmethod
    def of(cls, items: Mapping[str, Value], least: int = 16) -> "SharedMap[Value]":
        """Return a map with these items, of ``least`` parts or more; itself if it is a map."""
        if isinstance(items, SharedMap):
            return items
        parts: list[dict[str, Value]] = [{} for _ in range(max(least, math.isqrt(8 * len(items))))]
        for name, value in items.items():
            parts[hash(name) % len(parts)][name] = value
        return SharedMap(parts, len(items))

    def __or__(self, changes: Mapping[str, Value]) -> "SharedMap[Value]":
        parts = self._parts.copy()
        size = self._size
        own = set()
        for name, value in changes.items():
            place = hash(name) % len(parts)
            if place not in own:
                own.add(place)
                parts[place] = parts[place].copy()
            size += name not in parts[place]
            parts[place][name] = value
        result = SharedMap(parts, size)
        return result if 2 * size <= len(parts) ** 2 else SharedMap.of(dict(result))

    def __getitem__(self, name: str) -> Value:
        return self._parts[hash(name) % len(self._parts)][name]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(itertools.chain.from_iterable(self._parts)))

    def __repr__(self) -> str:
        return repr(dict(self.items()))

    def __reduce__(self) -> Any:
        return SharedMap.of, (dict(self.items()),)  # hashes of strings differ between processes
