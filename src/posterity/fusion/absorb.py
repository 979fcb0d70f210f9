"""Spurious components of a local fit: two of one site that are one are put together.

A site's own components are never matched with each other, so where a local fit split a component
in two, or left a few observations beside it, one part finds its match and the other stays alone.
What parts of one component have learnt adds up: where the prior is known their union is
``q_k + q_l - prior``, exactly in conjugate families. A part that is alone is absorbed by one of
its site's that another site holds, too, if

* the two are no further apart than halves of one heap are, for how wide they are;
* the site's own data say that the two are one: joined, they have more evidence, that of which
  observation is in which part included (heller2005);
* and the other sites do not contradict: the union agrees with them no worse than its part did,
  give or take what sampling alone explains, half a nat a direction.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from posterity.arrays.canonical import canonical_sums
from posterity.arrays.typing import Bool, Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block
from posterity.fusion.clustering import Clustering
from posterity.fusion.geometry import Points, chunks, middle, moved
from posterity.fusion.matching import Matched

Array = np.ndarray
HELD = 2
"""Sites that hold what absorbs, its own included: where no other has it, none says that the fit
is wrong."""

NEAREST = 4
"""Components of its site's that might absorb what is alone: those of the nearest groups."""
STRANGE = 6.0
"""Nats by which an observation of a part may surprise the other: half of the 12 variances by which
the halves of a uniform distribution, the flattest that has one mode, are apart, squared."""
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
        """From the local component that each is part of, by site, if there are such."""
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

    def more(
        self, matched: Matched, rows: Int[Array, " n"], origin: Any = AMID
    ) -> "Absorbing | None":
        """With what the matching of these rows leaves alone and should not; None if nothing.

        Components were matched as they are seen from the ``origin``, by default the middle of all.
        """
        alone, other = self._candidates(matched, rows)
        if not len(alone):
            return None
        place = np.empty(len(self.into), int)
        place[rows] = matched.rows
        if origin is AMID:
            origin = middle(self.members[rows[np.argsort(matched.rows)]])
        members, priors, counts = self.members, self._priors(alone), self.counts
        first, second, priors = (moved(p, origin) for p in (members[other], members[alone], priors))
        halves = Halves(first, second, priors, counts[other], counts[alone])
        gain = halves.evidence_of_one()
        against = disagreement(matched.result.clustering, place[other], halves.union)
        sampled = halves.union.natural_parameters.shape[1] / 2
        fits = (gain > 0) & (halves.strangeness() <= STRANGE) & (against <= sampled)
        # Each goes into the one of most evidence, at most one at a time.
        into, taken = self.into.copy(), set()
        for at in np.flatnonzero(fits)[np.argsort(-gain[fits], kind="stable")]:
            part, host = int(alone[at]), int(other[at])
            if taken.isdisjoint((part, host)):
                taken |= {part, host}
                into[self.into == part] = host
        return Absorbing(self.block, into) if taken else None

    def _candidates(
        self, matched: Matched, rows: Int[Array, " n"]
    ) -> tuple[Int[Array, " m"], Int[Array, " m"]]:
        """Rows of what is alone, where its observations are counted and its site's one prior is
        known, with those of its site's that others hold, whose groups are nearest.
        """
        clustering, local = matched.result.clustering, matched.result.clustering.local
        groups = np.flatnonzero(clustering.counts >= HELD)
        alone = np.flatnonzero(clustering.counts[clustering.labels] == 1)
        origin = np.empty(len(rows), int)
        origin[matched.rows] = rows
        known = self.block.priors.exchangeable[self.block.site[origin[alone]]]
        alone = alone[known & self.block.weighted]
        pairs, near = [(alone[:0], alone[:0])], min(NEAREST, len(groups))
        for some in chunks(len(alone), 8 * max(len(groups), 1)):
            mine = alone[some]
            sites, at = np.unique(local.site[mine], return_inverse=True)
            holder = np.full((len(sites), len(clustering.counts)), -1)
            own, _ = local.rows_of(sites)
            holder[np.searchsorted(sites, local.site[own]), clustering.labels[own]] = own
            other = holder[at][:, groups]
            cost = local.points.take(mine).divergences(clustering.centroids.take(groups))
            cost[other < 0] = np.inf
            best = np.argsort(cost, axis=1, kind="stable")[:, :near]
            other = np.take_along_axis(other, best, axis=1)
            one, place = np.nonzero(other >= 0)
            pairs.append((origin[mine[one]], origin[other[one, place]]))
        first, second = map(np.concatenate, zip(*pairs, strict=True))
        return first, second


def first_of_site(block: Block | BlockTable) -> Int[Array, " n"]:
    """The row of the first component of each one's site."""
    return np.repeat(np.cumsum(block.sizes) - block.sizes, block.sizes)


@dataclasses.dataclass(frozen=True)
class Halves:
    """Pairs of components (m,) that might be one: each two's site's prior, and their counts."""

    first: ExponentialFamily
    second: ExponentialFamily
    prior: ExponentialFamily
    many: Float[Array, " m"]
    few: Float[Array, " m"]

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
        whose each observation is, if they lie somewhere: mixtures of laws without a location, such
        as topics, are laws of the same kind, and one would always be likelier.

        Source: heller2005, equation 2.
        """
        together = self.union.log_normalizer() + self.prior.log_normalizer()
        gain = together - self.first.log_normalizer() - self.second.log_normalizer()
        if self.prior.location() is None:
            return gain
        gammaln, both = scipy.special.gammaln, self.many + self.few
        return gain + gammaln(both + 1) - gammaln(self.many + 1) - gammaln(self.few + 1)

    def strangeness(self) -> Float[Array, " m"]:
        """Nats by which an observation of the smaller surprises the larger more than its own do."""
        swap, fewer = (self.few > self.many)[:, None], np.minimum(self.many, self.few)
        large = np.where(swap, self.second.natural_parameters, self.first.natural_parameters)
        share = (fewer / np.maximum(self.many, self.few))[:, None]
        own = large + share * (large - self.prior.natural_parameters)
        expected = self.first.with_natural_parameters(own).log_normalizer()
        return (expected - self.union.log_normalizer()) / fewer


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
