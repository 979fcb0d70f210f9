"""Sums that do not depend on the order of what is added up, to the last bit.

Rows are sorted by their contents before they are added, which costs a tenth of the sum itself. The
sums of :mod:`posterity.arrays.exact_sums` do not depend on the order either and leave no rounding
that a later subtraction could show; they take eight times as long.
"""

import numpy as np

from posterity.arrays.typing import Float, Int

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def content_hashes(rows: Float[np.ndarray, "n dim"]) -> np.ndarray:
    """Return a hash of 64 bits of each row, (n,): equal rows have equal hashes."""
    # Round numbers end in zero bits, which products modulo 2^64 would keep: ends are swapped.
    words = np.ascontiguousarray(rows, np.float64).byteswap().view(np.uint64)
    powers = np.multiply.accumulate(np.full(words.shape[1], GOLDEN))
    return np.einsum("nd,d->n", words, powers)


def canonical_order(
    rows: Float[np.ndarray, "n dim"], labels: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Return the order (n,) by label, then by content; the same rows always get the same order."""
    bits = np.uint64(int(labels.max(initial=0)).bit_length())
    keys = content_hashes(rows) >> bits
    if bits:
        keys |= labels.astype(np.uint64) << (np.uint64(64) - bits)
    order = np.argsort(keys)
    tied = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(tied) and (rows[order[tied]] != rows[order[tied + 1]]).any():  # a collision
        return np.lexsort((*np.transpose(rows), labels))
    return order


def canonical_sums(
    rows: Float[np.ndarray, "n dim"], labels: Int[np.ndarray, " n"], size: int
) -> Float[np.ndarray, "size dim"]:
    """Return the sum of the rows of each label from 0 to ``size - 1``, whatever their order.

    >>> rows = np.array([[1e16], [1.0], [-1e16], [1.0]])
    >>> one = canonical_sums(rows, np.zeros(4, int), 1)
    >>> bool((one == canonical_sums(rows[::-1], np.zeros(4, int), 1)).all())
    True
    """
    out = np.zeros((size, rows.shape[1]))
    if len(rows):
        order = canonical_order(rows, labels)
        sorted_labels = labels[order]
        starts = np.flatnonzero(np.diff(sorted_labels, prepend=-1))
        out[sorted_labels[starts]] = np.add.reduceat(rows[order], starts, axis=0)
    return out


def canonical_mean(rows: Float[np.ndarray, "n *shape"]) -> Float[np.ndarray, "*shape"]:
    """Return the mean over the first axis, which does not depend on the order of the rows."""
    flat = rows.reshape(len(rows), -1)
    mean = canonical_sums(flat, np.zeros(len(flat), int), 1) / len(rows)
    return mean.reshape(rows.shape[1:])
