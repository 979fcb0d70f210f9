"""AMPS: approximate merging of posteriors with symmetry (campbell2014), from its description.

Posteriors of sites that learnt apart agree only up to a permutation of their components. Of all
permutations that one is taken which maximises the log normaliser of the summed natural
parameters, prior counted once:

    Σ_k A(η₀ + Σ_j (η_jσ_j(k) - η₀)).

For two sites this is a linear assignment; for more, each site in turn is taken out and assigned
again to the sum of the others, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from posterity.families import ExponentialFamily, Plate
from posterity.ledger import Ledger

Array = np.ndarray


def amps(sites: Sequence[Ledger], *, sweeps: int = 2) -> Plate:
    """The merged posterior of sites' plates, all of one size and with one prior."""
    prior = sites[0].prior
    factors = [site.posterior.members - site.prior.members for site in sites]  # pyright: ignore
    naturals = np.stack([factor.natural_parameters for factor in factors])
    labels = permutations(prior.members, naturals, sweeps=sweeps)  # pyright: ignore
    total = prior.members.natural_parameters + sum(  # pyright: ignore
        own[order] for own, order in zip(naturals, labels, strict=True)
    )
    return Plate(prior.members.with_natural_parameters(total))  # pyright: ignore


def permutations(prior: ExponentialFamily, naturals: Array, *, sweeps: int = 2) -> Array:
    """For each site (J, K) the local component of each merged one, from factors (J, K, D)."""
    sites, size = naturals.shape[:2]
    labels = np.tile(np.arange(size), (sites, 1))
    total = prior.natural_parameters + naturals[0]
    for site in range(1, sites):
        labels[site] = _best(prior, total, naturals[site])
        total = total + naturals[site][labels[site]]
    for _ in range(sweeps):
        before = labels.copy()
        for site in range(sites):
            others = total - naturals[site][labels[site]]
            labels[site] = _best(prior, others, naturals[site])
            total = others + naturals[site][labels[site]]
        if (labels == before).all():
            break
    return labels


def objective(prior: ExponentialFamily, naturals: Array, labels: Array) -> float:
    """The summed log normalisers, which permutations maximise."""
    total = prior.natural_parameters + sum(
        own[order] for own, order in zip(naturals, labels, strict=True)
    )
    return float(np.sum(prior.with_natural_parameters(total).log_normalizer()))


def _best(prior: ExponentialFamily, total: Array, own: Array) -> Array:
    """The permutation of one site's components that fits the sum of the others best."""
    gains = np.stack(
        [np.asarray(prior.with_natural_parameters(own + row).log_normalizer()) for row in total]
    )
    return linear_sum_assignment(gains, maximize=True)[1]
