"""Latent Dirichlet allocation: documents' mixtures of given topics, and expected counts of words.

A document's mixture ``θ ~ Dirichlet(α)`` has the variational posterior ``Dirichlet(γ)`` at the
fixed point of (blei2003, hoffman2010)

    r_wk ∝ exp(E[log θ_k] + E[log φ_kw]),    γ_k = α + Σ_w n_w r_wk.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import psi

from posterity.families import Plate

Array = np.ndarray
ROOM = 2**14
"""Number of words of documents processed together, so that they fit the processor's cache."""


class Documents(NamedTuple):
    """Word numbers (n, l) of each document and their counts (n, l), padded by counts of 0."""

    words: Array
    counts: Array

    @property
    def totals(self) -> Array:
        """Number of words of each document, with repetitions."""
        return self.counts.sum(1)


def documents(table: Any) -> Documents:
    """Make documents from a sparse table of counts (n, V) with a document in each row."""
    table = table.tocsr(copy=True)
    table.sum_duplicates()
    sizes = np.diff(table.indptr)
    shape = len(sizes), max(int(sizes.max(initial=0)), 1)
    out = Documents(np.zeros(shape, np.int32), np.zeros(shape))
    document = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(document)) - table.indptr[:-1][document]
    out.words[document, place] = table.indices
    out.counts[document, place] = table.data
    return out


def by_length(counts: Array, room: int) -> list[tuple[Array, int]]:
    """Return groups of documents of at most ``room`` entries, by increasing length, each with its
    padded length, so that a long document does not increase the padding of the others.
    """
    used = counts > 0
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


def mixtures(
    q: Plate, data: Documents, concentration: float, iterations: int, tolerance: float
) -> Array:
    """Return the mean (n, K) of each document's mixture over topics."""
    logs: Any = q.members.mean_parameters
    table = scaled(np.asarray(logs).T)[0]
    result = np.full((len(data.words), q.size), float(concentration))
    for rows, length in by_length(data.counts, max(ROOM // 4, ROOM * 16 // q.size)):
        some = data.words[rows, :length], data.counts[rows, :length].astype(table.dtype)
        result[rows] = mixtures_of(table, *some, concentration, iterations, tolerance).gamma
    return result / result.sum(1, keepdims=True)


def word_chances(q: Plate, topics: str = "mean") -> Array:
    """Return word probabilities of topics: ``E[φ]``, or ``exp E[log φ]``, which sum to less."""
    members: Any = q.members
    return np.asarray(members.mean if topics == "mean" else np.exp(members.mean_parameters))


def log_completion(mixed: Array, chances: Array, unseen: Documents) -> Array:
    """Return the log probability, in nats, of each document's words given its mixture of topics.

    A word of zero probability in all topics makes it minus infinity.
    """
    result = np.zeros(len(mixed))
    for rows, length in by_length(unseen.counts, ROOM):
        own = np.take(chances.T, unseen.words[rows, :length], axis=0)
        number = unseen.counts[rows, :length]
        some = np.matmul(own, mixed[rows][:, :, None])[..., 0]
        with np.errstate(divide="ignore"):
            result[rows] = (number * np.log(np.where(number > 0, some, 1.0))).sum(1)
    return result


class Part(NamedTuple):
    """A group of documents: words (b, l), counts, the words' topic weights (b, l, k), ``γ``, ``exp
    E[log θ]``, and the sum over topics for each word.
    """

    words: Array
    counts: Array
    topics: Array
    gamma: Array
    mixture: Array
    norm: Array


def scaled(log_words: Array) -> tuple[Array, Array]:
    """Return ``exp`` of each word's row (v, k) relative to its largest entry, and that entry's
    logarithm. Entries are bounded below so that neither they nor their squares underflow.
    """
    shift = log_words.max(1)
    return np.exp(np.maximum(log_words - shift[:, None], _least(log_words.dtype))), shift


def mixtures_of(
    table: Array,
    words: Array,
    counts: Array,
    concentration: float,
    iterations: int,
    tolerance: float,
) -> Part:
    """Return documents' mixtures under topics, given by their :func:`scaled` table."""
    topics = np.take(table, words, axis=0)
    start = concentration + counts.sum(1, keepdims=True) / table.shape[1]
    gamma = np.broadcast_to(start, (len(words), table.shape[1])).astype(table.dtype)
    for _ in range(iterations):
        mixture = _mixture(gamma)
        norm = np.matmul(topics, mixture[..., None])[..., 0]
        new = concentration + mixture * np.matmul((counts / norm)[..., None, :], topics)[..., 0, :]
        moved = np.abs(new - gamma).mean(1).max(initial=0.0)
        gamma = new
        if moved < tolerance:
            break
    mixture = _mixture(gamma)
    norm = np.matmul(topics, mixture[..., None])[..., 0]
    return Part(words, counts, topics, gamma, mixture, norm)


def add_counts(table: Array, part: Part) -> None:
    """Add a part's expected counts of each word in each topic to a table (v, k)."""
    rates = (part.counts / part.norm)[..., None] * part.topics
    rates *= part.mixture[:, None, :]
    used = part.counts > 0
    order = np.argsort(part.words[used], kind="stable")
    words = part.words[used][order]
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    if len(starts):
        table[words[starts]] += np.add.reduceat(rates[used][order], starts, axis=0)


def _mixture(gamma: Array) -> Array:
    """Return ``exp E[log θ]``, bounded above zero."""
    logs = psi(gamma) - psi(gamma.sum(-1, keepdims=True))
    return np.exp(np.maximum(logs, _least(gamma.dtype)))


def _least(dtype: Any) -> float:
    """Logarithm whose exponential, squared, is above the smallest number."""
    return np.log(np.finfo(dtype).tiny) / 2.1
