"""Spurious components of a local fit: several of one site that are one are put together.

A site's own components are never matched with each other, so where local fits split a component
in two, or left a few observations beside it, parts are matched with parts or with nothing. What
parts of one component have learnt adds up: where the prior is known their union is
``q_k + q_l - prior``, exactly in conjugate families. Two of a site's components are put together

* before the matching, where the evidence lower bound of the site's own fit is higher of their
  union: the log evidence of the union (heller2005) less that of both, and of which observation is
  in which, less the entropy of their responsibilities, which the two laws themselves imply; and
  where both have seen enough for that not to be what the prior alone prefers. Where
  all counts are whole numbers nothing was left open, as of labels that are known, and none are.
  They stay apart if the matching then shows each nearest to a group of its own at other sites;
* after it, where one of them is alone and this is higher by no less than what the union makes
  worse at the other sites, give or take what sampling explains, half a nat a direction.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from posterity.arrays.canonical import canonical_sums
from posterity.arrays.typing import Bool, Float, Int
from posterity.families import ExponentialFamily
from posterity.families.normal_wishart import NormalPrecision
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block
from posterity.fusion.clustering import Clustering
from posterity.fusion.geometry import PIECE, Points, chunks, middle, moved
from posterity.fusion.matching import Matched

Array = np.ndarray
NEAR = 25.0
"""Squared distance, in variances of both along any one coordinate, beyond which components are not
one: of a few observations in the tail of many others it may be as much."""
WHOLE = 1e-6
"""The part of an observation up to which a count is a whole number."""
ENOUGH = 1.0
"""Observations a parameter of a component: of fewer the prior, not the data, makes two one."""
HELD = 2
"""Sites that hold a group which tells apart what one site's fit does not."""
DRAWS = 256
"""Pairs of opposite draws from each component for the entropy of responsibilities."""
AMID = object()
"""The origin in the middle of all components."""


@dataclasses.dataclass(frozen=True)
class Absorbing:
    """A plate's components, some of them within others of their site.

    ``into`` (N,) is the row that each is part of, its own where it is not absorbed.
    """

    block: Block
    into: Int[Array, " n"]

    @classmethod
    def of(cls, block: Block, into: Mapping[str, Int[Array, " k"]] | None = None) -> "Absorbing":
        """Make the table from the local component that each is part of, by site, if there are
        such.
        """
        if not into:
            return cls(block, np.arange(len(block.site)))
        return cls(block, np.concatenate([*into.values()]) + first_of_site(block))

    @property
    def whole(self) -> Bool[Array, " n"]:
        """Which components are not part of another."""
        return self.into == np.arange(len(self.into))

    @property
    def counts(self) -> Float[Array, " n"]:
        """Expected observations; those of parts are with what absorbed them."""
        own = self.block.counts[:, None]
        return canonical_sums(own, self.into, len(self.into))[:, 0]

    @property
    def members(self) -> ExponentialFamily:
        """All components (N,), the union in place of what absorbed others."""
        members, parts = self.block.members, np.bincount(self.into, minlength=len(self.into))
        joined = np.flatnonzero(parts > 1)
        if not len(joined):
            return members
        of = np.isin(self.into, joined)
        natural = members.natural_parameters
        total = canonical_sums(natural[of], self.into[of], len(natural))[joined]
        prior = self._priors(joined).natural_parameters
        out = natural.copy()
        out[joined] = total - (parts[joined] - 1)[:, None] * prior
        return members.with_natural_parameters(out)

    def _priors(self, rows: Int[Array, " m"]) -> ExponentialFamily:
        """The prior of each row."""
        return self.block.priors.at(self.block.site[rows])

    @classmethod
    def within_sites(cls, block: Block, rows: Int[Array, " n"]) -> "Absorbing":
        """Put together those of these rows that are one by their own sites' evidence alone, the
        likeliest first, until there are none.
        """
        found = cls.of(block)
        rows = found.counted(rows[~found.known[rows]])
        origin = middle(block.members[rows]) if len(rows) else None
        while len(rows):
            one, other = found.pairs(rows, origin)
            enough = found.enough(one, other)
            one, other = one[enough], other[enough]
            parts = found._joined(one, other, found.evidence(one, other, origin))
            changed = block.site[found.into != parts.into]
            rows = rows[np.isin(block.site[rows], changed) & parts.whole[rows]]
            found = parts
        return found

    def less(self, matched: Matched, rows: Int[Array, " n"]) -> "Absorbing | None":
        """Return the table without unions of components that are each nearest to a group of their
        own that several sites hold, as these rows were matched; None if there are none.
        """
        clustering, part = matched.result.clustering, np.flatnonzero(~self.whole)
        held = clustering.counts >= HELD
        if not len(part) or held.sum() < HELD:
            return None
        origin = middle(self.members[rows[np.argsort(matched.rows)]])
        centroids = clustering.centroids.take(np.flatnonzero(held))
        near = [
            Points.of(moved(self.block.members[own], origin), clustering.local.points.divergence)
            .divergences(centroids)
            .argmin(1)
            for own in (part, self.into[part])
        ]
        into, away = self.into.copy(), part[near[0] != near[1]]
        into[away] = away
        return Absorbing(self.block, into) if len(away) else None

    def more(
        self, matched: Matched, rows: Int[Array, " n"], origin: Any = AMID
    ) -> "Absorbing | None":
        """Return the table with what the matching of these rows leaves alone and should not; None
        if nothing.

        Components were matched as they are seen from the ``origin``, by default the middle of all.
        """
        clustering, place = matched.result.clustering, np.empty(len(self.into), int)
        place[rows] = matched.rows
        if origin is AMID:
            origin = middle(self.members[rows[np.argsort(matched.rows)]])
        alone = np.zeros(len(self.into), bool)
        alone[rows] = clustering.counts[clustering.labels[matched.rows]] == 1
        site, rows = self.block.site, self.counted(rows)
        rows = rows[np.isin(site[rows], site[alone])]
        if not len(rows):
            return None
        one, other = self.pairs(rows, origin)
        either = alone[one] | alone[other]
        if not either.any():
            return None
        one, other = one[either], other[either]
        union = self._halves(one, other, origin).union
        against = disagreement(clustering, place[np.where(alone[other], one, other)], union)
        explained = np.where(self.enough(one, other), union.degrees_of_variation / 2, 0.0)
        against = np.where(self.known[one], np.maximum(against, 0.0), against - explained)
        gain = self.evidence(one, other, origin) - against
        parts = self._joined(one, other, gain)
        return None if (parts.into == self.into).all() else parts

    def counted(self, rows: Int[Array, " n"]) -> Int[Array, " some"]:
        """Return those of these rows that have counts, and whose site has one prior that is
        known.
        """
        return rows[self.block.priors.exchangeable[self.block.site[rows]] & self.block.weighted]

    def enough(self, one: Int[Array, " m"], other: Int[Array, " m"]) -> Bool[Array, " m"]:
        """True for pairs of rows with :data:`ENOUGH` observations a parameter between them."""
        seen = self.counts[one] + self.counts[other]
        return seen >= ENOUGH * self.block.members.degrees_of_variation

    @property
    def known(self) -> Bool[Array, " n"]:
        """True where counts at a component's site are whole numbers, as of records with labels."""
        block, counts = self.block, self.block.counts
        open_ = np.bincount(block.site, np.abs(counts - np.round(counts)) > WHOLE)
        return open_[block.site] == 0

    def pairs(
        self, rows: Int[Array, " n"], origin: Any
    ) -> tuple[Int[Array, " m"], Int[Array, " m"]]:
        """Pairs of these rows that are of one site, and no further apart than parts of one are."""
        site, members, columns = self.block.site[rows], self.members[rows], []
        if isinstance(members, NormalPrecision):
            _, *columns = _density(moved(members, origin))
            columns = [x.T if x.ndim < 3 else np.diagonal(x, axis1=1, axis2=2).T for x in columns]
        more = np.searchsorted(site, site, side="right") - np.arange(len(site)) - 1
        pairs = [(rows[:0], rows[:0])]
        for some in chunks(len(rows), 16 * int(more.max()), PIECE):
            own = more[some]
            one = np.repeat(np.arange(some.start, some.stop), own)
            other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(own) - own, own)
            for mean, spread in zip(*columns, strict=True):
                near = (mean[one] - mean[other]) ** 2 <= NEAR * (spread[one] + spread[other])
                one, other = one[near], other[near]
            pairs.append((rows[one], rows[other]))
        first, second = map(np.concatenate, zip(*pairs, strict=True))
        return first, second

    def _halves(self, one: Int[Array, " m"], other: Int[Array, " m"], origin: Any) -> "Halves":
        """These pairs of rows, as they are seen from an origin."""
        laws = self.members[one], self.members[other], self._priors(one)
        first, second, prior = (moved(law, origin) for law in laws)
        seen = self.counts[one], self.counts[other], self.known[one]
        return Halves(first, second, prior, *seen)

    def evidence(
        self, one: Int[Array, " m"], other: Int[Array, " m"], origin: Any
    ) -> Float[Array, " m"]:
        """Nats by which each of these pairs of rows is likelier to be one than two."""
        gain = np.zeros(len(one))
        for some in chunks(len(one), 32 * self.block.members.dimension):
            gain[some] = self._halves(one[some], other[some], origin).evidence_of_one()
        return gain

    def _joined(
        self, one: Int[Array, " m"], other: Int[Array, " m"], gain: Float[Array, " m"]
    ) -> "Absorbing":
        """With the smaller of pairs in the larger where that is a gain, the most first, each in one
        at most.
        """
        swap, into, taken = self.counts[one] > self.counts[other], np.arange(len(self.into)), set()
        parts, hosts = np.where(swap, (other, one), (one, other))
        for at in np.argsort(-gain, kind="stable")[: int((gain > 0).sum())]:
            part, host = int(parts[at]), int(hosts[at])
            if taken.isdisjoint((part, host)):
                taken |= {part, host}
                into[part] = host
        return Absorbing(self.block, into[self.into])


def of_one_label(site: Int[Array, " n"], labels: Int[Array, " n"]) -> Int[Array, " n"]:
    """The first component of its site that has the same label; its own index where that is -1."""
    _, first, place = np.unique([site, labels], axis=1, return_index=True, return_inverse=True)
    return np.where(labels >= 0, first[place.ravel()], np.arange(len(labels)))


def first_of_site(block: Block | BlockTable) -> Int[Array, " n"]:
    """The row of the first component of each one's site."""
    return np.repeat(np.cumsum(block.sizes) - block.sizes, block.sizes)


@dataclasses.dataclass(frozen=True)
class Halves:
    """Pairs of components (m,) that might be one: their site's prior, their counts, and whether it
    is known which observations are of which.
    """

    first: ExponentialFamily
    second: ExponentialFamily
    prior: ExponentialFamily
    many: Float[Array, " m"]
    few: Float[Array, " m"]
    known: Bool[Array, " m"]

    @functools.cached_property
    def union(self) -> ExponentialFamily:
        """One component in place of the two, with what both have learnt."""
        return self.first.with_natural_parameters(
            self.first.natural_parameters
            + (self.second.natural_parameters - self.prior.natural_parameters)
        )

    def evidence_of_one(self) -> Float[Array, " m"]:
        """Nats of log evidence by which a site's data are likelier of one component than of two.

        Log normalisers are log evidences up to what data share. Two components also have to say
        whose each observation is, but for the entropy of what they leave open. That is left out
        where nothing says how observations lie.

        Source: heller2005, equation 2; bishop2006, equation 10.70.
        """
        together = self.union.log_normalizer() + self.prior.log_normalizer()
        gain = together - self.first.log_normalizer() - self.second.log_normalizer()
        if not isinstance(self.first, NormalPrecision):
            return gain
        gammaln, both = scipy.special.gammaln, self.many + self.few
        gain = gain + gammaln(both + 1) - gammaln(self.many + 1) - gammaln(self.few + 1)
        likelier = np.flatnonzero((gain > 0) & ~self.known)
        laws = [(self.many, *_density(self.first)), (self.few, *_density(self.second))]
        for some in chunks(len(likelier), 64 * DRAWS * self.first.own_size):
            rows = likelier[some]
            gain[rows] -= entropy(*([part[rows] for part in law] for law in laws))
        return gain


def _density(members: Any) -> tuple[Float[Array, " n"], Float[Array, "n d"], Array]:
    """The expected log density (n,) of an observation at the mean, without ``log(2π)``; the mean;
    and the covariance (n, d, d), or variances (n, d), by which it falls off.
    """
    degrees, scatter = members.degrees_of_freedom, members.inverse_scale
    spread = scatter / degrees.reshape(*degrees.shape, *[1] * (scatter.ndim - degrees.ndim))
    at_mean = moved(members, members.location()).mean_parameters
    return at_mean[:, : 2 * members.mean_precision[0].size].sum(1), members.mean, spread


def entropy(first: Sequence[Array], second: Sequence[Array]) -> Float[Array, " m"]:
    """Nats that responsibilities of pairs of components leave open, over all observations.

    Each has counts (m,) and what :func:`_density` has. An observation is of either as expected log
    densities there say; expectations are over the same antithetic draws always.
    """
    half = np.random.default_rng(0).standard_normal((DRAWS, first[2].shape[-1]))
    draws, full = np.concatenate([half, -half]), first[3].ndim > first[2].ndim
    times, laws, total = np.matmul if full else np.multiply, [], np.zeros(len(first[0]))
    for count, at_mean, mean, spread in (first, second):
        scale, axes = np.linalg.eigh(spread) if full else (spread, 1.0)
        scale = np.sqrt(np.maximum(scale, np.finfo(float).tiny))[:, None]
        out = np.swapaxes(axes * scale, 1, 2) if full else scale
        weight = scipy.special.digamma(count) + at_mean
        laws.append((count, mean[:, None], out, axes / scale, weight[:, None]))
    for count, mean, out, *_ in laws:
        x = mean + times(draws, out)
        log = [w - (times(x - m, inner) ** 2).sum(-1) / 2 for _, m, _, inner, w in laws]
        log = np.array(log) - np.logaddexp(*log)
        total -= count * (np.exp(log) * log).sum(0).mean(-1)
    return total


def disagreement(
    clustering: Clustering, rows: Int[Array, " m"], union: ExponentialFamily
) -> Float[Array, " m"]:
    """Nats by which the misfit is longer to describe with a union in place of each of the rows."""
    local, judged, groups = clustering.local, clustering.judged, clustering.labels[rows]
    points, place = Points.of(union), union.location()
    traits, shape = points.coordinates, np.zeros(len(rows))
    if place is not None:
        shapes = Points.of(moved(union, place))
        traits, shape = np.hstack([traits, shapes.coordinates]), shapes.potential
        shape = shape - local.shapes.potential[rows]  # pyright: ignore[reportOptionalMemberAccess]
    less = local.unequal(points.coordinates) - local.unequal(local.judged.coordinates[rows])
    counts = clustering.counts[groups]
    centres = judged.centres[groups] + (traits - local.traits(rows)) / counts[:, None]
    new = local.evidence(centres)
    potential, shape = points.potential - local.judged.potential[rows] - less, shape - less
    misfit = potential - counts * (new.potential - judged.evidence.potential[groups])
    shape = shape - counts * (new.shape - judged.evidence.shape[groups])
    length, size = local.criterion.length_of_sums, len(clustering.counts)
    return length(judged.misfit + misfit, judged.shape + shape, 0.0, size) - length(
        judged.misfit, judged.shape, 0.0, size
    )
