"""How many components: the description length of a clustering of components.

Every site's component is taken as a noisy copy of one global component. In half of the
directions of parameter space the noise is that of sampling, of size one in natural units since
a posterior knows how sharp it is; in the other half sites truly differ, by a dispersion that is
estimated. Global components are spread by a second dispersion, estimated too. Integrating them
out leaves, up to constants, a misfit, a price for each global component, and the Indian-buffet
prior on which site has which component (griffiths2011). Nothing is left to tune; why half, what
else was measured, and where it errs is in ``docs/decisions.md``.
"""

import numpy as np
import scipy

from posterity.arrays.typing import Float

Array = np.ndarray
SPREADS = np.exp(np.arange(-3.0, 60.0, 0.5))
"""Candidate dispersions between global components, in natural units."""


def description_length(
    misfit: float, between: Float[Array, " g"], counts: Float[Array, " g"], *, sites: int, dim: int
) -> float:
    """Negative log evidence of a clustering, in nats, up to what all clusterings share.

    Args:
        misfit: summed divergence of the components to the centroid of their group.
        between: divergence of each centroid from the overall one.
        counts: number of components (that is, of sites) in each group.
        sites: number of sites.
        dim: number of parameters of a component.
    """
    total = counts.sum()
    differing = sampling = dim / 2
    spare = max(total - len(counts), 0.0)
    sampled = min(misfit, spare * sampling / 2)
    excess = misfit - sampled
    dispersion = max(1.0, 2 * excess / (max(spare, 1.0) * differing))
    noise = sampled + excess / dispersion + differing * total * np.log(dispersion) / 2
    price = _spread(between, counts, sampling, dim, 1.0)
    price = price + _spread(between, counts, differing, dim, dispersion)
    return float(noise + price.min() + buffet(counts, sites))


def buffet(counts: Float[Array, " g"], sites: int) -> float:
    """Negative log probability of who has what under an Indian buffet.

    Its rate is at its most likely value, components over the harmonic number of the sites
    (griffiths2011, equation 14, with columns taken as distinct).
    """
    harmonic = (1 / np.arange(1, sites + 1)).sum()
    groups = len(counts)
    gammaln = scipy.special.gammaln
    columns = gammaln(counts) + gammaln(sites - counts + 1) - gammaln(sites + 1)
    poisson = groups * np.log(groups / harmonic) - groups - gammaln(groups + 1)
    return float(-poisson - columns.sum())


def _spread(
    between: Array, counts: Array, directions: float, dim: int, noise: float
) -> Float[Array, " spreads"]:
    """Price of the centroids in ``directions`` directions with this noise, for each spread."""
    ratio = counts * SPREADS[:, None]
    price = directions * np.log1p(ratio / noise) / 2
    return (price + directions / dim * counts * between / (noise + ratio)).sum(-1)
