"""Topic models at sites by variational Bayes, and AMPS, which merges their posteriors.

Latent Dirichlet allocation is fitted by online, then batch, variational Bayes, in single precision
and over batches of documents; the last pass is over all documents, so that posterior less prior are
expected counts. AMPS [campbell2014] is written from its description: posteriors of sites that
learnt apart agree only up to a permutation of their components, and of all permutations that one is
taken which maximises the log normaliser of the summed natural parameters, prior counted once:
Σ_k A(η₀ + Σ_j (η_jσ_j(k) - η₀)). Each site in turn is assigned again to the sum of the others.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import psi

from experiments.klfusion.lda import (
    Documents,
    add_counts,
    by_length,
    documents,
    mixtures_of,
    scaled,
)
from posterity.families import Dirichlet, Plate

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


Array = np.ndarray


def amps(sites: Sequence[Any], *, sweeps: int = 2) -> Plate:
    """The merged posterior of sites' plates, given as ledgers, all of one size and one prior."""
    prior = sites[0].prior.members
    factors = [site.posterior.members - site.prior.members for site in sites]
    naturals = np.stack([factor.natural_parameters for factor in factors])
    labels = permutations(prior, naturals, sweeps=sweeps)
    return Plate(prior.with_natural_parameters(summed(prior, naturals, labels)))


def permutations(prior: Any, naturals: Array, *, sweeps: int = 2) -> Array:
    """For each site (J, K) the local component of each merged one, from factors (J, K, D)."""
    labels = np.tile(np.arange(naturals.shape[1]), (len(naturals), 1))
    total = prior.natural_parameters + naturals[0]
    for site in range(1, len(naturals)):
        labels[site] = _best(prior, total, naturals[site])
        total = total + naturals[site][labels[site]]
    for _ in range(sweeps):
        before = labels.copy()
        for site, own in enumerate(naturals):
            others = total - own[labels[site]]
            labels[site] = _best(prior, others, own)
            total = others + own[labels[site]]
        if (labels == before).all():
            break
    return labels


def summed(prior: Any, naturals: Array, labels: Array) -> Array:
    """Natural parameters (K, D) of the merged components."""
    pairs = zip(naturals, labels, strict=True)
    return prior.natural_parameters + sum(own[order] for own, order in pairs)


def objective(prior: Any, naturals: Array, labels: Array) -> float:
    """The summed log normalisers, which permutations maximise."""
    merged = prior.with_natural_parameters(summed(prior, naturals, labels))
    return float(np.sum(merged.log_normalizer()))


def _best(prior: Any, total: Array, own: Array) -> Array:
    """The permutation of one site's components that fits the sum of the others best."""
    gains = [np.asarray(prior.with_natural_parameters(own + row).log_normalizer()) for row in total]
    return linear_sum_assignment(np.stack(gains), maximize=True)[1]
