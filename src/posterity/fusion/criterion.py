"""The criterion for the number of components: the description length of a clustering of components.

Every site's component is taken as a noisy copy of one global component, and global components as
draws from a population, which is the family's closest member to all sites' components together.
Three terms, in nats: what the copies differ from their global component, more than sampling
explains only where sites truly differ; what each global component says beyond the population;
and the Indian-buffet prior on which site has which component (griffiths2011).

Sites mostly differ in *where* their components lie, so the misfit has two parts, each with a
dispersion of its own: that of location, which moving components onto each other takes away, and
that of shape, which stays. Shapes of global components may be alike as well: how widely they are
spread is estimated together with the clustering, so that a component whose shape is that of all
others costs no more than its place. Reasons, what else was measured, and where it errs are in
``docs/decisions.md``.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Float
from posterity.families import ExponentialFamily

Array = np.ndarray
MATCHES = 2.0  # Matched components that the prior on dispersions is worth
APART = 0.75
"""How far, squared, the same component is expected to lie from site to site, in standard deviations
of one observation and over all directions together."""
SHARE, SHARE_UNLOCATED = 0.01, 0.03
"""The same where nothing counts observations, as a share of the population's variance."""
SPREADS = np.concatenate([[0.0], np.geomspace(0.01, 1e6, 48)])
"""Spreads of shapes that are tried, as variances in units of a component's own uncertainty."""
UNLIKE, UNLIKELY, LEAST = 20.0, 5.0, 0.02
"""The spread below which shapes are unexpectedly alike, the numbers that this expectation is worth,
and the spread below which it makes no difference."""
NEW = 2.0  # Nats that each global component costs beside, where shapes may be alike


@dataclasses.dataclass(frozen=True)
class Criterion:
    """The criterion by which a clustering of ``total`` components of so many ``sites`` is judged.

    Attributes:
        located: directions in which components lie apart; zero where a family has no location.
        shaped: further directions in which an event is free to vary.
        expected: the dispersion, a variance in units of a component's own, that is expected of
            location, or of everything where there is none; at least one.
        place: nats of what a component's location says beyond the population's, on average.
    """

    sites: int
    total: int
    located: int
    shaped: int
    expected: float
    place: float = 0.0

    @classmethod
    def of(
        cls,
        family: ExponentialFamily,
        observations: Float[Array, " sites"] | None,
        *,
        sites: int,
        total: int,
        surprise: float,
        shape: float = 0.0,
    ) -> "Criterion":
        """Make the criterion for components of a family, known from so many ``observations`` at
        each site (None where that is not known), whose ``KL(. || population)`` is ``surprise`` on
        average: half the logarithm of how much wider the population is, for each direction.
        ``shape`` is the same of their shapes.
        """
        located, free = _size(family.location()), family.degrees_of_variation
        if located and observations is not None:
            observations = np.maximum(observations, 1.0)
            total_of, spare = observations.sum(), max(len(observations) - 1, 1)
            # What a few of many observations each differ, the others say of those with less.
            least = (total_of - (observations**2).sum() / total_of) / spare
            count = min(np.exp(np.log(observations).mean()), max(least, 1.0))
            expected = 1 + APART / located * count
        else:
            share = SHARE if located else SHARE_UNLOCATED
            expected = max(1.0, share * np.exp(min(2 * surprise / (located or free), 600.0)))
        # Components that are not one lie no nearer to each other than copies of one.
        place = max(surprise - shape, located * float(np.log(expected)) / 2)
        return cls(sites, total, located, free - located, float(expected), place)

    @property
    def both(self) -> bool:
        """True if components have a place and, beside it, a shape that others may share."""
        return bool(self.located and self.shaped)

    def length_of_sums(self, misfit: Any, shape: Any, price: Any, groups: Any) -> Any:
        """Return the negative log evidence of clusterings into ``groups`` groups, in nats, up to
        what all share.

        It takes the summed divergence of components to their centroids (``misfit``), the part of it
        that is left once all lie in one place (``shape``), and the sum of the :meth:`prices` of all
        groups.
        """
        misfit, spare = np.maximum(misfit, 0.0), self.total - groups
        if not self.located:
            noise = _noise(misfit, spare, self.shaped, self.expected)
        else:
            shape = np.minimum(np.maximum(shape, 0.0), misfit)
            # Shapes differ in half of their directions: those in which they do are not known.
            sampled = np.minimum(shape, spare * self.shaped / 4)
            noise = _noise(misfit - shape, spare, self.located, self.expected)
            noise = noise + sampled + _noise(shape - sampled, spare, self.shaped / 2, 1.0)
        return noise + price + self.columns(groups)

    def saved(self, misfits: Float[Array, " located"], groups: int) -> float:
        """Return the nats by which the description is shorter where the directions in which sites
        differ most, as many as serve best, have dispersions of their own (minka2001dimension);
        ``misfits`` are those of location along each direction, the largest first.
        """
        spare, dim = self.total - groups, self.located
        noise = lambda misfit, directions: _noise(misfit, spare, directions, self.expected)
        leading = np.arange(1, dim)
        angles = (dim - (leading - 1) / 2) * leading  # numbers that say which directions lead
        each = noise(misfits[:-1], 1).cumsum()
        rest = np.array([noise(misfits[k:].sum(), dim - k) for k in leading.tolist()])
        lengths = each + rest + angles * np.log(max(spare, 1)) / 2
        return max(float(noise(misfits.sum(), dim) - lengths.min(initial=np.inf)), 0.0)

    def columns(self, groups: Any) -> Any:
        """Return what so many groups add to the description beside their prices."""
        if not self.single:
            return _columns(groups, self.sites)
        rate = groups / _harmonic(self.sites)
        gammaln = scipy.special.gammaln
        return gammaln(rate + self.total) - gammaln(rate) - groups * np.log(rate)

    def prices(self, surprise: Any, typical: Any, counts: Any, spread: Any) -> Any:
        """Return what each group of so many components adds to the description, in nats, beside its
        part of the misfit; ``surprise`` and ``typical`` are as of :class:`.components.Evidence`,
        ``spread`` is the variance of the shapes of groups in units of a component's own.
        """
        # A group knows its component n_g times as sharply as one site. Of the nat a direction,
        # half is what this knowledge, being uncertain, adds to the misfit, and half is for a
        # population that was fitted to the same components.
        gammaln = scipy.special.gammaln
        presence = -gammaln(counts) if self.single else _presence(counts, self.sites)
        if not self.both:
            dim = self.located + self.shaped
            return surprise + dim * np.log(counts) / 2 + dim + presence + 0.0 * spread
        wider = 1 + counts * spread
        shape = counts * typical / wider + self.shaped * np.log(wider) / 2
        return surprise + self.located * (np.log(counts) / 2 + 1) + NEW + shape + presence

    @property
    def spreads(self) -> Float[Array, " spreads"]:
        """The spreads of shapes that are tried; zero alone where there is none."""
        return SPREADS if self.both else np.zeros(1)

    def shortest(self, prices: Float[Array, "*many spreads"]) -> tuple[Any, Any]:
        """The least of sums of prices at all :attr:`spreads`, and the spread of shapes that has
        it.
        """
        spreads = self.spreads
        if self.both:
            prices = prices + UNLIKELY / 2 * np.log1p(UNLIKE / (spreads + LEAST))
        return prices.min(-1), spreads[prices.argmin(-1)]

    @property
    def single(self) -> bool:
        """True if each site has one component, which some group then has to have: a partition, not
        a choice of columns.
        """
        return self.total == self.sites


def _size(place: Any) -> int:
    """Numbers in the location of one member."""
    if isinstance(place, dict):
        return sum(map(_size, place.values()))
    return 0 if place is None else place.shape[-1]


def _noise(misfit: Any, spare: Any, directions: int | float, expected: float) -> Any:
    """A misfit in so many directions, with their dispersion at its most likely value.

    Sampling alone puts half a nat a direction on each component to spare: a dispersion of one. The
    prior speaks as :data:`MATCHES` components to spare of the ``expected`` dispersion would.
    """
    if not directions:
        return misfit
    matches, both = MATCHES, MATCHES + spare
    dispersion = np.maximum(1.0, (2 * misfit / directions + matches * expected) / both)
    fit = misfit / dispersion + directions * matches * expected / dispersion / 2
    known = directions * matches * (1 + np.log(expected)) / 2
    return fit + directions * both * np.log(dispersion) / 2 - known


def buffet(counts: Array, sites: int) -> Any:
    """Negative log probability of who has what under an Indian buffet, columns without labels, at
    its most likely rate, components over the harmonic number of the sites (griffiths2011, equation
    14, with columns taken as distinct).
    """
    return _columns(counts.shape[-1], sites) + _presence(counts, sites).sum(-1)


def _columns(groups: Any, sites: int) -> Any:
    """That there are so many columns."""
    return groups - groups * np.log(groups / _harmonic(sites))


@functools.lru_cache(maxsize=64)
def _harmonic(sites: int) -> float:
    return float((1 / np.arange(1, sites + 1)).sum())


def _presence(counts: Any, sites: int) -> Any:
    """That these sites, of all, have each column."""
    gammaln = scipy.special.gammaln
    return gammaln(sites + 1) - gammaln(counts) - gammaln(sites - counts + 1)
