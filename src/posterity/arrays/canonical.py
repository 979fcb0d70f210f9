"""Orders by content, and sums that do not depend on the order of what is added up.

Orders that decide a result are by hashes of numbers in single precision first, so that they are the
same where numbers differ by rounding, as those of two processors do; numbers that agree in single
precision are ordered by all their digits.

For sums, rows are sorted by their contents before they are added, which costs a tenth of the sum
itself. The sums of :mod:`posterity.arrays.exact_sums` do not depend on the order either and leave
no rounding that a later subtraction could show; they take eight times as long.
"""

import numpy as np

from posterity.arrays.typing import Float, Int

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # The golden ratio, whose powers are well mixed
HALF = np.uint64(32)  # Number of bits for rounded contents, and for all digits


def content_hashes(rows: Float[np.ndarray, "n dim"]) -> np.ndarray:
    """Return a hash of 64 bits of each row, (n,): equal rows have equal hashes. The first half is
    that of the numbers in single precision, so that rounding changes hardly any order.

    >>> hashes = content_hashes(np.array([[1 / 3], [1 / 3 + 1e-16], [0.3]]))
    >>> [len(set(half.tolist())) for half in (hashes >> np.uint64(32), hashes)]
    [2, 3]
    """
    with np.errstate(over="ignore"):
        rounded = np.asarray(rows, np.float32) + 0.0  # no zero has a sign
    return _halves(_hashes(rounded), _hashes(rows))


def set_hashes(hashes: np.ndarray, starts: Int[np.ndarray, " sets"]) -> np.ndarray:
    """Return a hash of each set of rows, which begin at ``starts``, from the rows' hashes in any
    order; its first half is that of their first halves.
    """
    parts = (hashes >> HALF, hashes)
    return _halves(*(np.add.reduceat(_scrambled(part), starts) for part in parts))


def _halves(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first >> HALF << HALF) | (second >> HALF)


def _hashes(rows: np.ndarray) -> np.ndarray:
    # Round numbers end in zero bits, which products modulo 2^64 would keep: ends are swapped.
    words = np.ascontiguousarray(rows, np.float64).byteswap().view(np.uint64)
    powers = np.multiply.accumulate(np.full(words.shape[1], GOLDEN))
    return np.einsum("nd,d->n", words, powers)


def _scrambled(keys: np.ndarray) -> np.ndarray:
    """Scramble 64-bit keys so that sums distinguish sets of them (steele2014's finalizer)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return keys ^ (keys >> np.uint64(31))


def canonical_order(
    rows: Float[np.ndarray, "n dim"], labels: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Return the order (n,) by label, then by content; the same rows always get the same order."""
    bits = np.uint64(int(labels.max(initial=0)).bit_length())
    keys = _hashes(rows) >> bits
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
