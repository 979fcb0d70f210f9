"""Mixing weights of a plate, as counts: what a relabelling carries along.

A Dirichlet's concentrations and the sticks of a Dirichlet process (blei2006) are both linear in
the expected number of observations of each component, and only these can be matched: which
stick comes first means nothing across sites.
"""

import numpy as np
from jaxtyping import Float

from posterity.families import Beta, Dirichlet

Array = np.ndarray
Weights = Dirichlet | Beta


def counts(weights: Weights, prior: Weights | None) -> Float[Array, " k"]:
    """Expected observations of each component; with a Dirichlet but no prior, all of ``α``."""
    if isinstance(weights, Beta):
        return np.asarray(weights.a) - 1
    base = 0.0 if prior is None else np.asarray(prior.concentration)  # pyright: ignore
    return np.asarray(weights.concentration) - base


def total_concentration(weights: Weights, prior: Weights | None) -> float:
    """The prior's concentration over all components together, zero if it is not known."""
    if isinstance(weights, Beta):
        return float(weights.b[-1])  # nothing comes after the last stick
    return 0.0 if prior is None else float(prior.concentration.sum())  # pyright: ignore


def prior_weights(like: Weights, concentration: float, size: int) -> Weights:
    """The exchangeable prior over ``size`` components with this total concentration."""
    if isinstance(like, Beta):
        return Beta.from_standard(np.ones(size), np.full(size, concentration))
    return Dirichlet.from_standard(np.full(size, concentration / size))


def contribution(like: Weights, counted: Float[Array, " k"]) -> Weights:
    """What these counts add to the natural parameters of a prior; linear in the counts."""
    if isinstance(like, Beta):
        later = np.concatenate([np.cumsum(counted[::-1])[::-1][1:], [0.0]])
        return Beta(counted, later)
    return Dirichlet(counted)
