"""The criterion for the number of components: the description length of a clustering of components.

Each local component is modelled as a noisy copy of a global one. Global components are draws from a
population, the member of the family that is closest to all local components. The length has three
terms, in nats: the misfit, i.e. the divergence of copies from their global component; the
divergence of global components from the population; and the Indian-buffet prior on which site has
which component (griffiths2011). The misfit exceeds sampling noise only if sites differ.

Sites mostly differ in the *location* of their components. So the misfit has two parts, each with
its own dispersion: that of location, which vanishes if components are moved to one place, and that
of shape, which remains. The spread of the shapes of global components is estimated together with
the clustering: a component with the shape of all others is charged for its location only. Reasons,
further measurements and known errors are in ``docs/decisions/0021``.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy

from posterity.arguments import NOT_NEGATIVE, POSITIVE
from posterity.arrays.tree import leaves
from posterity.arrays.typing import Float
from posterity.families import ExponentialFamily

Array = np.ndarray
SPREADS = np.concatenate([[0.0], np.geomspace(0.01, 1e6, 48)])
"""Candidates for the spread of shapes: variances in units of a component's own uncertainty."""
ROUNDED = 0.02  # The spread below which shapes are as unexpectedly alike as if they were equal


@dataclasses.dataclass(frozen=True)
class DescriptionLength:
    """What is expected of sites and components before any is seen: the numbers by which
    ``posterity.fuse(..., criterion=)`` chooses how many components there are. More matches and
    nats merge less or more, as each says.

    Attributes:
        matches: weight of what is expected of dispersions between sites, in matched components.
            More of it splits sites that differ more than expected.
        apart: expected squared distance of one component between sites, in standard deviations of
            one observation, over all directions together.
        share: the same for components whose numbers of observations are not known, as a share of
            the population's variance.
        share_unlocated: the same for components without a location.
        new: nats that each component costs beside its place, if shapes may be alike. With none two
            clusters are made of one that differs between sites, with two small ones are merged.
        new_alone: the same where each site has one component: the prior on partitions asks less of
            a group than the Indian buffet does.
        unlikely: weight, in nats, of the expectation that shapes differ.
        unlike: spread below which shapes are unexpectedly alike, as a variance in units of a
            component's own uncertainty.
        unequal: ratio of the largest and the least number of observations from which on that is no
            misfit which these alone cause; of single components, its square.
        each: components of all sites for each direction of their locations, from which on the
            directions in which sites differ most may have dispersions of their own. With fewer
            components a direction is none that sites share.
        far: ratio of the dispersion of location to the expected one above which components are
            matched by their effects (:mod:`.effects`): matched ones are then four standard
            deviations of an observation apart, over all directions together.

    Raises:
        UsageError: a number that is negative, or zero where only positive ones make sense.

    >>> DescriptionLength(new=0.5).new
    0.5
    """

    matches: float = 2.0
    apart: float = 0.75
    share: float = 0.01
    share_unlocated: float = 0.03
    new: float = 1.0
    new_alone: float = 2.0
    unlikely: float = 5.0
    unlike: float = 20.0
    unequal: float = 16.0
    each: float = 12.0
    far: float = 10.0

    def __post_init__(self) -> None:
        positive = ("matches", "unlike", "unequal", "each", "far")
        POSITIVE.check(**{name: getattr(self, name) for name in positive})
        rest = ("apart", "share", "share_unlocated", "new", "new_alone", "unlikely")
        NOT_NEGATIVE.check(**{name: getattr(self, name) for name in rest})


USUAL = DescriptionLength()


@dataclasses.dataclass(frozen=True)
class Criterion:
    """The criterion for clusterings of ``total`` components of ``sites`` sites.

    Attributes:
        located: number of directions of the location; zero for a family without a location.
        shaped: number of further directions in which components vary.
        expected: expected dispersion of location (of everything, without a location): a variance in
            units of a component's own; at least one.
        place: average divergence of a component's location from the population's, in nats.
        numbers: what is expected of sites and components.
    """

    sites: int
    total: int
    located: int
    shaped: int
    expected: float
    place: float = 0.0
    numbers: DescriptionLength = USUAL

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
        numbers: DescriptionLength = USUAL,
    ) -> "Criterion":
        """Make the criterion for components with ``observations`` at each site (None if unknown).

        ``surprise`` is their average ``KL(. || population)``: per direction, half the logarithm of
        the ratio of the population's variance to theirs. ``shape`` is that of their shapes.
        """
        located = sum(own.shape[-1] for own in leaves(family.location()))
        free = family.degrees_of_variation
        if located and observations is not None:
            observations = np.maximum(observations, 1.0)
            total_of = observations.sum()
            spare = max(len(observations) - 1, 1)
            # A few sites with very many observations do not determine the expectation for the rest.
            least = (total_of - (observations**2).sum() / total_of) / spare
            count = min(np.exp(np.log(observations).mean()), max(least, 1.0))
            expected = 1 + numbers.apart / located * count
        else:
            share = numbers.share if located else numbers.share_unlocated
            expected = max(1.0, share * np.exp(min(2 * surprise / (located or free), 600.0)))
        # Different components are at least as far apart as copies of one.
        place = max(surprise - shape, located * float(np.log(expected)) / 2)
        return cls(sites, total, located, free - located, float(expected), place, numbers)

    @property
    def both(self) -> bool:
        """True if components have a location and a shape."""
        return bool(self.located and self.shaped)

    @property
    def directed(self) -> bool:
        """True if directions of locations may have dispersions of their own."""
        return 2 <= self.located <= self.total / self.numbers.each

    def length_of_sums(
        self, misfit: Any, shape: Any, price: Any, groups: Any, along: Array | None = None
    ) -> Any:
        """Return the negative log evidence of clusterings into ``groups`` groups, in nats, up to a
        common constant.

        ``misfit`` is the summed divergence of components to their centroids, ``shape`` the part of
        it that remains once all are moved to one place, and ``price`` the sum of the
        :meth:`prices` of all groups. ``along`` (..., located) are the shares of the other part
        along the directions in which members of groups differ, the largest first; without them all
        directions have one dispersion.
        """
        misfit = np.maximum(misfit, 0.0)
        spare = self.total - groups
        if not self.located:
            noise = self._noise(misfit, spare, self.shaped, self.expected)
        else:
            shape = np.minimum(np.maximum(shape, 0.0), misfit)
            # Shapes are taken to differ in half of their directions, which are unknown.
            sampled = np.minimum(shape, spare * self.shaped / 4)
            noise = self._located(misfit - shape, spare, along)
            noise = noise + sampled + self._noise(shape - sampled, spare, self.shaped / 2, 1.0)
        return noise + price + self.columns(groups)

    def _located(self, misfit: Any, spare: Any, along: Array | None) -> Any:
        """Return the length of a misfit of location. The directions in which groups differ most
        have dispersions of their own, as many as make it shortest (minka2001dimension).
        """
        if along is None:
            return self._noise(misfit, spare, self.located, self.expected)
        dim = self.located
        misfits = np.asarray(misfit)[..., None] * along
        spare = np.asarray(spare)[..., None]
        leading = np.arange(dim)
        alone = self._noise(misfits, spare, 1, self.expected)
        left = misfits[..., ::-1].cumsum(-1)[..., ::-1]
        rest = self._noise(left, spare, dim - leading, self.expected)
        angles = leading * (dim - (leading - 1) / 2)  # numbers that describe leading directions
        lengths = alone.cumsum(-1) - alone + rest + angles * np.log(np.maximum(spare, 1)) / 2
        return lengths.min(-1)

    def _noise(self, misfit: Any, spare: Any, directions: Any, expected: float) -> Any:
        """Return the length of a misfit in ``directions``, with the most likely dispersion.

        Sampling alone gives half a nat per direction and ``spare`` component: a dispersion of one.
        The prior has the weight of some spare components of the ``expected`` dispersion.
        """
        if not np.all(directions):
            return misfit
        matches = self.numbers.matches
        both = matches + spare
        dispersion = np.maximum(1.0, (2 * misfit / directions + matches * expected) / both)
        fit = misfit / dispersion + directions * matches * expected / dispersion / 2
        known = directions * matches * (1 + np.log(expected)) / 2
        return fit + directions * both * np.log(dispersion) / 2 - known

    def columns(self, groups: Any) -> Any:
        """Return the length that a number of groups adds to the description, without prices."""
        if not self.single:
            return _columns(groups, self.sites)
        rate = groups / _harmonic(self.sites)
        gammaln = scipy.special.gammaln
        return gammaln(rate + self.total) - gammaln(rate) - groups * np.log(rate)

    def prices(self, surprise: Any, typical: Any, counts: Any, spread: Any) -> Any:
        """Return the length, in nats, that each group of ``counts`` components adds, without its
        misfit. ``surprise`` and ``typical`` are those of :class:`.components.Evidence`; ``spread``
        is the variance of the shapes of groups, in units of a component's own.
        """
        gammaln = scipy.special.gammaln
        presence = -gammaln(counts) if self.single else _presence(counts, self.sites)
        # A group determines its component n_g times as precisely as one site. Of the nat per
        # direction, half is the remaining uncertainty's contribution to the misfit, and half is
        # for a population that was fitted to the same components.
        if not self.both:
            dim = self.located + self.shaped
            return surprise + dim * np.log(counts) / 2 + dim + presence + 0.0 * spread
        wider = 1 + counts * spread
        shape = counts * typical / wider + self.shaped * np.log(wider) / 2
        new = self.numbers.new_alone if self.single else self.numbers.new
        return surprise + self.located * (np.log(counts) / 2 + 1) + new + shape + presence

    @property
    def spreads(self) -> Float[Array, " spreads"]:
        """The candidates for the spread of shapes; only zero for components without shapes."""
        return SPREADS if self.both else np.zeros(1)

    def shortest(self, prices: Float[Array, "*many spreads"]) -> tuple[Any, Any]:
        """Return the least of the sums of prices at all :attr:`spreads`, and the spread that
        attains it.
        """
        spreads = self.spreads
        if self.both:
            few = self.numbers.unlike / (spreads + ROUNDED)
            prices = prices + self.numbers.unlikely / 2 * np.log1p(few)
        return prices.min(-1), spreads[prices.argmin(-1)]

    @property
    def single(self) -> bool:
        """True if each site has one component. The prior is then one on partitions, not an Indian
        buffet.
        """
        return self.total == self.sites


def buffet(counts: Array, sites: int) -> Any:
    """Return the negative log probability of columns with ``counts`` sites under an Indian buffet
    at its most likely rate: their number over the harmonic number of the sites (griffiths2011,
    equation 14, with distinct columns).
    """
    return _columns(counts.shape[-1], sites) + _presence(counts, sites).sum(-1)


def _columns(groups: Any, sites: int) -> Any:
    """Return the negative log probability of the number of columns."""
    return groups - groups * np.log(groups / _harmonic(sites))


@functools.lru_cache(maxsize=64)
def _harmonic(sites: int) -> float:
    return float((1 / np.arange(1, sites + 1)).sum())


def _presence(counts: Any, sites: int) -> Any:
    """Return the negative log probability that these sites, of all, have each column."""
    gammaln = scipy.special.gammaln
    return gammaln(sites + 1) - gammaln(counts) - gammaln(sites - counts + 1)
