"""Local topic models: latent Dirichlet allocation by online, then batch, variational Bayes.

In single precision and over batches of documents, which takes a tenth of the time of fits by
document; the last pass is over all documents, so that posterior less prior are expected counts.
"""

from typing import Any

import numpy as np
from scipy.special import psi

from posterity.families import Dirichlet, Plate
from posterity.models.topics import Documents, add_counts, by_length, documents, mixtures_of, scaled

Array = np.ndarray
ROOM = 2**13
TOLERANCE = 0.02
OFFSET, DECAY = 10.0, 0.7


def fit(
    table: Any,
    topics: int,
    *,
    alpha: float,
    beta: float,
    seed: Any,
    passes: int = 3,
    batch: int = 256,
    iterations: int = 25,
) -> Plate:
    """Posterior over topics of counts (n, V), a sparse array, under ``Dirichlet(beta)`` topics.

    Source: hoffman2010, with steps ``(OFFSET + t)^-DECAY``.
    """
    rng = np.random.default_rng(seed)
    concentration = rng.gamma(100.0, 0.01, (table.shape[1], topics))
    step = 0
    for _ in range(passes):
        order = rng.permutation(table.shape[0])
        for rows in np.array_split(order, max(1, round(len(order) / batch))):
            some = documents(table[rows])
            rate, step = (OFFSET + step) ** -DECAY, step + 1
            found = counts(concentration, some, alpha, iterations)
            concentration *= 1 - rate
            concentration += rate * (beta + found * (table.shape[0] / len(rows)))
    for _ in range(2):
        concentration = beta + counts(concentration, documents(table), alpha, iterations)
    return Plate(Dirichlet.from_standard(np.ascontiguousarray(concentration.T)))


def counts(concentration: Array, data: Documents, alpha: float, iterations: int) -> Array:
    """Expected counts (V, K) of words in topics with these concentrations (V, K)."""
    logs = (psi(concentration) - psi(concentration.sum(0))).astype(np.float32)
    words, found = scaled(logs)[0], np.zeros(concentration.shape)
    for rows, length in by_length(data.counts, ROOM):
        some = data.words[rows, :length], data.counts[rows, :length].astype(np.float32)
        add_counts(found, mixtures_of(words, *some, alpha, iterations, TOLERANCE))
    return found
