"""Spurious components of a local fit: parts of one component at one site are merged.

Components of one site are never matched with each other. If a local fit split a component in two,
its parts are matched with parts or with nothing. The factors of parts add up: with a known prior
the union is ``q_k + q_l - prior``, exactly in conjugate families. Two components of a site are
merged before the matching, if this raises the evidence lower bound of the site's own fit. The
change is the log evidence of the union (heller2005), minus that of both, plus the log number of
assignments, minus the entropy of the responsibilities that the two laws imply. Families other than
normal ones have no such terms, and need as many observations as parameters, since the prior alone
favours a union. If all counts at the site are whole numbers, labels are known, and none are merged.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.canonical import canonical_mean, canonical_sums
from posterity.arrays.typing import Bool, Float, Int
from posterity.families import ExponentialFamily
from posterity.families.normal_wishart import NormalPrecision
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block, MemberPriors
from posterity.fusion.geometry import PIECE, chunks, middle, moved, opposite

Array = np.ndarray
DRAWS = 256  # Number of antithetic pairs of draws per component for the entropy of responsibilities


@dataclasses.dataclass(frozen=True)
class Absorbing:
    """A plate's components; ``into`` (N,) is the row that absorbed each, or its own row. Unknown
    priors of normal components may be taken as ``empty``, which suffices to doubt components.
    """

    block: Block
    into: Int[Array, " n"]
    empty: bool = False

    @classmethod
    def of(cls, block: Block, into: Mapping[str, Int[Array, " k"]] | None = None) -> "Absorbing":
        """Make it for a plate; ``into`` has, by site, the local component that absorbed each."""
        if not into:
            return cls(block, np.arange(len(block.site)))
        return cls(block, np.concatenate([*into.values()]) + first_of_site(block))

    @property
    def whole(self) -> Bool[Array, " n"]:
        """Mask of the components that were not absorbed."""
        return self.into == np.arange(len(self.into))

    @functools.cached_property
    def counts(self) -> Float[Array, " n"]:
        """Expected observations; those of parts are counted for what absorbed them."""
        own = self.block.counts
        if self.whole.all():
            return own
        return canonical_sums(own[:, None], self.into, len(self.into))[:, 0]

    @functools.cached_property
    def members(self) -> ExponentialFamily:
        """All components (N,), with the union in place of each that absorbed others."""
        members = self.block.members
        parts = np.bincount(self.into, minlength=len(self.into))
        joined = np.flatnonzero(parts > 1)
        if not len(joined):
            return members
        of = np.isin(self.into, joined)
        natural = members.natural_parameters
        total = canonical_sums(natural[of], self.into[of], len(natural))[joined]
        prior = self.block.priors.at(self.block.site[joined]).natural_parameters
        out = natural.copy()
        out[joined] = total - (parts[joined] - 1)[:, None] * prior
        return members.with_natural_parameters(out)

    @classmethod
    def within_sites(cls, block: Block, rows: Int[Array, " n"]) -> "Absorbing":
        """Merge those of these rows that are one by the evidence of their own site alone, the most
        likely first, until there are none.
        """
        found = cls.of(block)
        fresh = np.ones(len(block.site), bool)
        rows = found.counted(rows[~found.known[rows]])
        origin = middle(block.members[rows]) if len(rows) else None
        while fresh[rows].any():
            one, other = found.beside(fresh, rows, origin)
            enough = found.enough(one, other)
            one = one[enough]
            other = other[enough]
            parts = found._joined(one, other, found.evidence(one, other, origin))
            # Only pairs with changed components can still gain.
            fresh[:] = False
            fresh[parts.into[found.into != parts.into]] = True
            rows = rows[parts.whole[rows]]
            found = parts
        return found

    def counted(self, rows: Int[Array, " n"]) -> Int[Array, " some"]:
        """Return those of these rows that have counts, and whose site has one known prior for all
        components or an ``empty`` one.
        """
        known = self.block.priors.exchangeable[self.block.site[rows]] | self.empty
        return rows[known & self.block.weighted]

    def enough(self, one: Int[Array, " m"], other: Int[Array, " m"]) -> Bool[Array, " m"]:
        """Return which pairs of rows have as many observations as parameters, so that their union
        is not what the prior alone favours; all pairs of normal families, which are judged under
        the population.
        """
        members = self.block.members
        seen = self.counts[one] + self.counts[other]
        return isinstance(members, NormalPrecision) | (seen >= members.degrees_of_variation)

    @functools.cached_property
    def known(self) -> Bool[Array, " n"]:
        """Mask of components at sites whose counts are whole numbers, up to a millionth, as for
        labelled records.
        """
        block = self.block
        counts = self.block.counts
        open_ = np.bincount(block.site, np.abs(counts - np.round(counts)) > 1e-6)
        return open_[block.site] == 0

    def pairs(
        self, rows: Int[Array, " n"], origin: Any, *, least: float = 25.0
    ) -> tuple[Int[Array, " m"], Int[Array, " m"]]:
        """Return pairs of these rows at one site that are near enough to be parts of one: along no
        coordinate further apart than ``least`` summed variances, which a few observations in the
        tail of many others may be.
        """
        site = self.block.site[rows]
        members = self.members[rows]
        columns = []
        if isinstance(members, NormalPrecision):
            mean, spread = _spread(moved(members, origin))
            spread = spread if spread.ndim < 3 else np.diagonal(spread, axis1=1, axis2=2)
            columns = [np.ascontiguousarray(x.T) for x in (mean, spread)]
        more = np.searchsorted(site, site, side="right") - np.arange(len(site)) - 1
        pairs = [(rows[:0], rows[:0])]
        for some in chunks(len(rows), 16 * int(more.max(initial=0)), PIECE):
            own = more[some]
            one = np.repeat(np.arange(some.start, some.stop), own)
            other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(own) - own, own)
            for mean, spread in zip(*columns, strict=True):
                near = (mean[one] - mean[other]) ** 2 <= least * (spread[one] + spread[other])
                one = one[near]
                other = other[near]
            pairs.append((rows[one], rows[other]))
        first, second = map(np.concatenate, zip(*pairs, strict=True))
        return first, second

    def beside(
        self, alone: Bool[Array, " n"], rows: Int[Array, " some"], origin: Any
    ) -> tuple[Int[Array, " m"], Int[Array, " m"]]:
        """Return the :meth:`pairs` of these rows of which one or both are in ``alone``."""
        site = self.block.site
        rows = self.counted(rows)
        one, other = self.pairs(rows[np.isin(site[rows], site[alone])], origin)
        either = alone[one] | alone[other]
        return one[either], other[either]

    def _pairs(self, one: Int[Array, " m"], other: Int[Array, " m"], origin: Any) -> "Pairs":
        """Return these pairs of rows relative to an origin."""
        rows, place = np.unique([one, other], return_inverse=True)
        laws = moved(self.members[rows], origin)
        block = self.block
        learnt = laws.natural_parameters
        start = laws
        if block.priors.exchangeable[block.site[rows]].all():
            start = moved(block.priors.at(block.site[rows]), origin)
            learnt = learnt - start.natural_parameters
        if isinstance(laws, NormalPrecision):
            start = moved(self.population, origin)[np.zeros(len(rows), int)]
        return Pairs(laws, learnt, start, *place.reshape(2, -1))

    def evidence(
        self, one: Int[Array, " m"], other: Int[Array, " m"], origin: Any
    ) -> Float[Array, " m"]:
        """Return the nats by which each of these pairs of rows is likelier one than two."""
        gain = np.zeros(len(one))
        for some in chunks(len(one), 32 * self.block.members.dimension, PIECE):
            i = one[some]
            j = other[some]
            gain[some] = self._pairs(i, j, origin).evidence(self.counts[i], self.counts[j])
        return gain

    @property
    def population(self) -> ExponentialFamily:
        """The :func:`population` of the block, unless that of more sites is known."""
        block = self.block
        own = vars(self.block)
        if "population" not in own:
            own["population"] = population(
                block.members[block.used], block.counts[block.used], block.priors
            )
        return own["population"]

    def _joined(
        self, one: Int[Array, " m"], other: Int[Array, " m"], gain: Float[Array, " m"]
    ) -> "Absorbing":
        """Merge the smaller of each pair into the larger if this is a gain, the largest gain first;
        each component takes part in one merge at most.
        """
        swap = self.counts[one] > self.counts[other]
        into = np.arange(len(self.into))
        taken = set()
        parts, hosts = np.where(swap, (other, one), (one, other))
        for at in np.argsort(-gain, kind="stable")[: int((gain > 0).sum())]:
            part = int(parts[at])
            host = int(hosts[at])
            if taken.isdisjoint((part, host)):
                taken |= {part, host}
                into[part] = host
        return Absorbing(self.block, into[self.into])


def population(
    members: ExponentialFamily, counts: Float[Array, " n"], priors: MemberPriors, few: int = 3
) -> ExponentialFamily:
    """Return the law (1,) from which normal components are drawn: the member with the least summed
    ``KL(component || .)`` to all of them, without those with fewer observations than parameters, if
    at least a ``few`` are left.

    Its location is as uncertain as in the sites' priors, if they are known, since few clusters do
    not determine it.
    """
    some = counts >= members.degrees_of_variation
    if some.sum() < few:
        some = counts >= np.sort(counts)[-max(few, len(counts) // 2) :][0]
    origin = middle(members[some])
    laws = moved(members[some], origin)
    found = laws[:1].with_mean_parameters(canonical_mean(laws.mean_parameters)[None])
    here = found.location()
    starts = [law for law in priors.laws if not law.batch_shape]
    own: Any = moved(found, here)
    known = [own.mean_precision, *(law.mean_precision[None] for law in starts)]  # pyright: ignore
    known = np.min(known, axis=0)
    found = moved(type(own)(known, own.degrees, own.precision_mean, own.scatter), opposite(here))
    return moved(found, opposite(origin))


def of_one_label(site: Int[Array, " n"], labels: Int[Array, " n"]) -> Int[Array, " n"]:
    """Return the first component of the site with the same label; for -1, the own index."""
    _, first, place = np.unique([site, labels], axis=1, return_index=True, return_inverse=True)
    return np.where(labels >= 0, first[place.ravel()], np.arange(len(labels)))


def first_of_site(block: Block | BlockTable) -> Int[Array, " n"]:
    """Return, for each component, the row of the first component of its site."""
    return np.repeat(np.cumsum(block.sizes) - block.sizes, block.sizes)


class Pairs(NamedTuple):
    """Pairs (m,) of components that may be one: all components (n,), their factors relative to the
    sites' priors, the laws (n,) under which evidence is computed, and the two indices of each pair.

    These laws are the priors, or, for normal families, the population of components: a wide prior
    favours one component without evidence.
    """

    laws: ExponentialFamily
    learnt: Float[Array, "n dim"]
    start: ExponentialFamily
    first: Int[Array, " m"]
    second: Int[Array, " m"]

    @property
    def union(self) -> Float[Array, "m dim"]:
        """Natural parameters of the union of each pair: one prior plus both factors."""
        return self.laws.natural_parameters[self.first] + self.learnt[self.second]

    def evidence(self, many: Float[Array, " m"], few: Float[Array, " m"]) -> Float[Array, " m"]:
        """Return the log evidence, in nats, for one component against two with ``many`` and ``few``
        observations.

        Log normalisers are log evidences up to a common term. Two normal components also need the
        assignment of each observation, minus the entropy of the responsibilities that the two laws
        imply, also of known labels: one component explains none (heller2005, equation 2;
        bishop2006, equation 10.70).
        """
        start = self.start.natural_parameters
        alone = self.laws.evaluated(start + self.learnt)[0]
        both = start[self.first] + self.learnt[self.first] + self.learnt[self.second]
        gain = self.laws.evaluated(both)[0] + self.start.log_normalizer()[self.first]
        gain = gain - alone[self.first] - alone[self.second]
        if not isinstance(self.laws, NormalPrecision):
            return gain
        gammaln = scipy.special.gammaln
        both = many + few
        gain = gain + gammaln(both + 1) - gammaln(many + 1) - gammaln(few + 1)
        likelier = np.flatnonzero(gain > 0)
        for some in chunks(len(likelier), 64 * DRAWS * self.laws.own_size, PIECE):
            rows = likelier[some]
            sides = (many, self.first), (few, self.second)
            laws = [(count[rows], *_density(self.laws[own[rows]])) for count, own in sides]
            gain[rows] -= entropy(*laws)
        return gain


def _spread(members: Any) -> tuple[Float[Array, "n d"], Array]:
    """Return the mean of an observation, and the covariances (n, d, d), or variances (n, d), of its
    expected log density.
    """
    degrees = members.degrees_of_freedom
    scatter = members.inverse_scale
    more = [1] * (scatter.ndim - degrees.ndim)
    return members.mean, scatter / degrees.reshape(*degrees.shape, *more)


def _density(members: Any) -> tuple[Float[Array, " n"], Float[Array, "n d"], Array]:
    """Return the expected log density (n,) of an observation at the mean, without ``log(2π)``, and
    :func:`_spread`.
    """
    at_mean = moved(members, members.location()).mean_parameters
    return at_mean[:, : 2 * members.mean_precision[0].size].sum(1), *_spread(members)


def entropy(first: Sequence[Array], second: Sequence[Array]) -> Float[Array, " m"]:
    """Return the entropy of the responsibilities of pairs of components, over all observations.

    Each side has counts (m,) and the result of :func:`_density`. Responsibilities follow from the
    expected log densities; expectations are over fixed antithetic draws.
    """
    half = np.random.default_rng(0).standard_normal((DRAWS, first[2].shape[-1]))
    draws = np.concatenate([half, -half])
    full = first[3].ndim > first[2].ndim
    times = np.matmul if full else np.multiply
    laws = []
    total = np.zeros(len(first[0]))
    own = (draws**2).sum(-1)
    for count, at_mean, mean, spread in (first, second):
        scale, axes = np.linalg.eigh(spread) if full else (spread, 1.0)
        scale = np.sqrt(np.maximum(scale, np.finfo(float).tiny))[:, None]
        out = np.swapaxes(axes * scale, 1, 2) if full else scale
        weight = scipy.special.digamma(count) + at_mean
        laws.append((count, mean[:, None], out, axes / scale, weight[:, None]))
    for one, two in (laws, laws[::-1]):
        (count, mean, out, _, weight), (_, other, _, inner, against) = one, two
        # Draws of one component, in the standard coordinates of the other.
        there = times(draws, times(out, inner)) + times(mean - other, inner)
        odds = weight - against + (np.einsum("mnd,mnd->mn", there, there) - own) / 2
        odds = np.abs(odds)  # the entropy of two responsibilities, from their log odds
        share = np.exp(-odds)
        total += count * (np.log1p(share) + odds * share / (1 + share)).mean(-1)
    return total
