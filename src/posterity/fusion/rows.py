"""Rows of numbers of many sites, in memory up to a budget and then in a file; and their sums."""

import tempfile
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.exact_sums import exact_sum
from posterity.arrays.typing import Float, Int
from posterity.errors import ArtifactError, ParameterError

Array = np.ndarray
BLOCK = 2**20  # Bytes of a block, up to one site more: the size of a processor's cache


class MemoryBudget:
    """The bytes of memory that the rows of all blocks may use together."""

    def __init__(self, budget: int):
        self.left = budget

    def take(self, size: int) -> bool:
        """Reserve bytes; return whether as many were left."""
        granted = size <= self.left
        self.left -= size * granted
        return granted


class Rows(NamedTuple):
    """Some sites' rows, site by site. ``first`` and ``row`` are the indices of the first site and
    the first row in the table; ``starts`` has the first row of each site, and the end.
    """

    index: int
    first: int
    row: int
    starts: Int[Array, " bounds"]
    rows: Float[Array, "n width"]

    @property
    def sites(self) -> slice:
        """Slice of the table's sites."""
        return slice(self.first, self.first + len(self.starts) - 1)

    @property
    def span(self) -> slice:
        """Slice of the table's rows."""
        return slice(self.row, self.row + len(self.rows))

    def parts(self, most: int) -> Iterator["Rows"]:
        """Yield the block in pieces of at most ``most`` rows, or one site."""
        first = 0
        while first < len(self.starts) - 1:
            reach = int(np.searchsorted(self.starts, self.starts[first] + most, side="right")) - 1
            last = max(reach, first + 1)
            low = int(self.starts[first])
            high = int(self.starts[last])
            starts = self.starts[first : last + 1] - low
            yield Rows(self.index, self.first + first, self.row + low, starts, self.rows[low:high])
            first = last


class RowStore:
    """Rows (N, width), site by site, which are appended once and then read block by block.

    The blocks depend on the rows alone, not on how many were appended at a time, so that sums over
    blocks are reproducible to the last bit.
    """

    def __init__(self, width: int, budget: MemoryBudget):
        self.width = width
        self._budget = budget
        self._blocks: list[Any] = []  # rows, or their place in the file
        self._bounds: list[tuple[int, Array]] = []
        self._file: Any = None
        self._end = 0
        self._pending: list[Array] = []
        self._waiting: list[Array] = []
        self._closed: Array | None = None
        self._target = max(1, BLOCK // (8 * width))

    def append(self, rows: Float[Array, "n width"], sizes: Int[Array, " sites"]) -> None:
        """Append rows of further sites."""
        self._pending.append(rows)
        self._waiting.append(sizes)
        if sum(map(len, self._pending)) >= self._target:
            self._cut()

    def close(self) -> None:
        """Store the pending rows; nothing can be appended afterwards."""
        self._cut()
        if self._pending and len(self._waiting[0]):
            self._store(self._pending[0], self._waiting[0])
        self._pending = []
        self._waiting = []

    def replace(
        self, block: Rows, rows: Float[Array, "n width"], sizes: Int[Array, " sites"] | None = None
    ) -> None:
        """Replace the rows of a block by as many others, or by fewer, with ``sizes``."""
        place = self._blocks[block.index]
        if sizes is not None:
            self._bounds[block.index] = (len(rows), np.asarray(sizes, np.int32))
            self._closed = None
        if isinstance(place, np.ndarray):
            self._blocks[block.index] = rows
        else:
            self._write(place, rows)

    def _cut(self) -> None:
        """Store pending rows as blocks, each of which ends with the site that fills it."""
        rows = np.concatenate(self._pending)
        sizes = np.concatenate(self._waiting)
        ends = np.cumsum(sizes)
        row = site = 0
        while len(ends) and ends[-1] - row >= self._target:
            last = int(np.searchsorted(ends, row + self._target)) + 1
            self._store(rows[row : ends[last - 1]], sizes[site:last])
            row = int(ends[last - 1])
            site = last
        self._pending = [rows[row:]]
        self._waiting = [sizes[site:]]

    def _store(self, rows: Array, sizes: Array) -> None:
        self._bounds.append((len(rows), np.asarray(sizes, np.int32)))
        if self._budget.take(rows.nbytes):
            self._blocks.append(np.array(rows))
            return
        self._blocks.append(self._end)
        self._write(self._end, rows)
        self._end += rows.nbytes

    def _write(self, place: int, rows: Array) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the store)
                weakref.finalize(self, self._file.close)
            self._file.seek(place)
            self._file.write(np.ascontiguousarray(rows).data)
            self._file.flush()
        except OSError as error:
            raise ArtifactError(
                found=f"a temporary folder that cannot take what is beyond the budget ({error})",
                expected="a larger budget=, or a folder with more room, which TMPDIR names",
            ) from error

    @property
    def sizes(self) -> Int[Array, " sites"]:
        """Number of rows of each site."""
        if self._closed is None:
            self._closed = np.concatenate([np.zeros(0, np.int32), *(s for _, s in self._bounds)])
        return self._closed

    def __len__(self) -> int:
        return sum(number for number, _ in self._bounds)

    def blocks(self) -> Iterator[Rows]:
        """Yield all rows, in the order in which they were appended."""
        site = row = 0
        for index, (number, sizes) in enumerate(self._bounds):
            starts = np.concatenate([[0], np.cumsum(sizes)])
            rows = self._blocks[index]
            if not isinstance(rows, np.ndarray):
                self._file.seek(rows)
                rows = np.empty((number, self.width))
                self._file.readinto(rows.data)
            yield Rows(index, site, row, starts, rows)
            site = site + len(sizes)
            row = row + number


class GroupSums:
    """Sums (G, D) of rows that are added block by block; rows with label -1 are left out."""

    def __init__(self, groups: int, width: int):
        self.counts = np.zeros(groups)
        self.totals = np.zeros((groups, width))

    def add(self, rows: Float[Array, "n width"], labels: Int[Array, " n"]) -> None:
        """Add a block."""
        self.totals += membership(labels, len(self.counts)) @ rows
        self.counts += np.bincount(labels[labels >= 0], minlength=len(self.counts))

    @property
    def means(self) -> Float[Array, "g width"]:
        """The average row of each group; zeros for an empty one."""
        return self.totals / np.maximum(self.counts, 1.0)[:, None]


class ExactGroupSums:
    """Exact sums, rounded once when read, and independent of any order (rump2008, section 3)."""

    def __init__(self, groups: int, width: int):
        self._shape = (groups, width)
        self._layers = np.zeros((1, groups * width))

    def add(self, rows: Float[Array, "n width"], labels: Int[Array, " n"]) -> None:
        """Add a block in parts with exact sums: the bits above a power of two, then the rest."""
        members = membership(labels, self._shape[0])
        rest = np.array(rows)
        parts = [self._layers]
        high = np.empty_like(rest)  # allocated once: allocation is slower than the additions
        while (largest := np.maximum(rest.max(0, initial=0.0), -rest.min(0, initial=0.0))).any():
            if not np.isfinite(largest).all():
                raise ParameterError(
                    found="components whose potentials are not finite",
                    expected="proper members, of records in units that float64 holds",
                )
            unit = np.ldexp(1.0, np.frexp(largest)[1] + len(rest).bit_length() + 1)
            np.add(rest, unit, out=high)
            high -= unit
            rest -= high
            parts.append((members @ high).reshape(1, -1))
        self._layers = exact_sum(np.concatenate(parts))

    @property
    def totals(self) -> Float[Array, "g width"]:
        """The sums, rounded to nearest."""
        return self._layers[0].reshape(self._shape)


def membership(labels: Int[Array, " n"], groups: int) -> "scipy.sparse.csc_array":
    """Return the membership matrix (G, n)."""
    kept = labels >= 0
    ends = np.concatenate([[0], np.cumsum(kept)])
    ones = np.ones(int(ends[-1]))
    return scipy.sparse.csc_array((ones, labels[kept], ends), shape=(groups, len(labels)))
