"""AMPS: approximate merging of posteriors with symmetry (campbell2014), from its description.

Posteriors of sites that learnt apart agree only up to a permutation of their components. Of all
permutations that one is taken which maximises the log normaliser of the summed natural
parameters, prior counted once: Σ_k A(η₀ + Σ_j (η_jσ_j(k) - η₀)). For two sites this is a linear
assignment; for more, each site in turn is taken out and assigned again to the sum of the others,
until nothing changes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from posterity.families import Plate

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
