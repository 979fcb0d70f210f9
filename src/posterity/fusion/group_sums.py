"""Sums of rows by their labels: plain ones for the way, exact ones for the result."""

import numpy as np
import scipy.sparse

from posterity.arrays.exact_sums import exact_sum
from posterity.arrays.typing import Float, Int

Array = np.ndarray


class GroupSums:
    """Sums (G, D) of rows that come block by block; rows labelled -1 count nowhere."""

    def __init__(self, groups: int, width: int):
        self.counts = np.zeros(groups)
        self.totals = np.zeros((groups, width))

    def add(self, rows: Float[Array, "n width"], labels: Int[Array, " n"]) -> None:
        """One more block."""
        members = membership(labels, len(self.counts))
        self.totals += members @ rows
        self.counts += np.bincount(labels[labels >= 0], minlength=len(self.counts))

    @property
    def means(self) -> Float[Array, "g width"]:
        """The average row of each group, all of which have some."""
        return self.totals / self.counts[:, None]


class ExactGroupSums:
    """The same, exact and rounded once when read: they depend on no order.

    Source: rump2008, section 3.
    """

    def __init__(self, groups: int, width: int):
        self._shape, self._layers = (groups, width), np.zeros((1, groups * width))

    def add(self, rows: Float[Array, "n width"], labels: Int[Array, " n"]) -> None:
        """One more block, by parts whose sums are exact: what lies above a power of two."""
        members, rest, parts = membership(labels, self._shape[0]), np.array(rows), [self._layers]
        high = np.empty_like(rest)  # made once: fresh memory costs more than the additions
        while (largest := np.maximum(rest.max(0, initial=0.0), -rest.min(0, initial=0.0))).any():
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


def membership(labels: Int[Array, " n"], groups: int) -> scipy.sparse.csc_array:
    """The matrix (G, n) of who is in which group."""
    kept = labels >= 0
    ends = np.concatenate([[0], np.cumsum(kept)])
    ones = np.ones(int(ends[-1]))
    return scipy.sparse.csc_array((ones, labels[kept], ends), shape=(groups, len(labels)))
