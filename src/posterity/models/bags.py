"""Documents as bags of words: tables of counts, as every library has them, and padded lists."""

from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.typing import ArrayLike, Float, Int
from posterity.errors import ParameterError, StructureError
from posterity.models.data import Column

Array = np.ndarray
WORDS = Column(
    "words of shape (n, l)", (None,), "word numbers 0, 1, 2, …", lambda x: (x >= 0) & (x % 1 == 0)
)
COUNTS = Column("counts of shape (n, l)", (None,), "counts of at least 0", lambda x: x >= 0)


class Documents(NamedTuple):
    """Word numbers of each document and how often they occur, padded by counts of 0.

    A pair of arrays whose first axis counts documents, as models take data.
    """

    words: Int[Array, "n l"]
    counts: Float[Array, "n l"]

    @property
    def totals(self) -> Float[Array, " n"]:
        """Words of each document, with repetitions."""
        return np.asarray(self.counts).sum(1)


def documents(table: ArrayLike) -> Documents:
    """From counts (n, V), a document a row: a NumPy array, or any sparse array of SciPy.

    Counts may be of any type, also fractional; they become float64.

    Raises:
        StructureError: unless it is a table of numbers.
        ParameterError: for NaN, infinite and negative counts.

    >>> documents(np.array([[0, 2, 1], [3, 0, 0]])).words
    array([[1, 2],
           [0, 0]], dtype=int32)
    """
    starts, words, counts = _rows(table)
    sizes = np.diff(starts)
    longest = max(int(sizes.max(initial=0)), 1)
    out = Documents(
        np.zeros((len(sizes), longest), np.int32), np.zeros((len(sizes), longest), np.float64)
    )
    document = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(words)) - starts[:-1][document]
    out.words[document, place], out.counts[document, place] = words, counts
    return out


def _rows(table: ArrayLike) -> tuple[Array, Array, Array]:
    """The start of each document in the list of all words, those words, and their counts."""
    sparse = hasattr(table, "tocsr")
    try:
        counts: Any = table.tocsr(copy=True) if sparse else np.asarray(table)  # pyright: ignore
        result = f"documents of shape {counts.shape} and type {counts.dtype}"
    except ValueError:  # NumPy's, for lists of several lengths
        counts, result = np.zeros(0), "documents of different lengths"
    if counts.ndim != 2 or counts.dtype.kind not in "biuf":
        raise StructureError(
            found=result,
            expected="a table of counts (n, V), a document a row and a word a column",
            fix="Count every word of the vocabulary in every document first, as "
            "sklearn.feature_extraction.text.CountVectorizer does.",
        )
    if sparse:
        counts.sum_duplicates()
        values, words, sizes = counts.data, counts.indices, np.diff(counts.indptr)
    else:
        rows, words = np.nonzero(counts)
        values, sizes = counts[rows, words], np.bincount(rows, minlength=len(counts))
    values = values.astype(np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ParameterError(
            found="counts that are NaN, infinite or negative",
            expected="how often each word occurs",
            fix="Check how the documents were counted; scores such as tf-idf are no counts.",
        )
    return np.concatenate([[0], np.cumsum(sizes)]), words, values


def by_length(counts: Float[Array, "n l"], room: int) -> list[tuple[Int[Array, " some"], int]]:
    """Documents in groups that fill ``room`` entries, and the most words of each: short ones first.

    Padding then costs little, however long the longest document is.
    """
    used = np.asarray(counts) > 0
    last = used.shape[1] - used[:, ::-1].argmax(1)  # one more than the place of the last word
    lengths = np.where(used.any(1), last, 0)
    order = np.argsort(lengths, kind="stable")
    groups, start = [], 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * max(lengths[order[end]], 1) <= room:
            end += 1
        groups.append((order[start:end], max(int(lengths[order[end - 1]]), 1)))
        start = end
    return groups
