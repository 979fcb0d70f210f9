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
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from posterity.arrays.canonical import canonical_sums
from posterity.arrays.typing import Bool, Float, Int
from posterity.families import ExponentialFamily
from posterity.families.normal_wishart import NormalPrecision
from posterity.fusion.blocks import Block
from posterity.fusion.geometry import PIECE, chunks, middle, moved

Array = np.ndarray
DRAWS = 256  # Number of antithetic pairs of draws per component for the entropy of responsibilities


@dataclasses.dataclass(frozen=True)
class Absorbing:
    """A plate's components; ``into`` (N,) is the row that absorbed each, or its own row."""

    block: Block
    into: Int[Array, " n"]

    @classmethod
    def of(cls, block: Block, into: Int[Array, " n"] | None = None) -> "Absorbing":
        """Make it for a plate; without ``into`` none was absorbed."""
        return cls(block, np.arange(len(block.site)) if into is None else into)

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
        likely first, until there are none. Pairs of families that are not normal need as many
        observations as parameters, so that their union is not what the prior alone favours.
        """
        found = cls.of(block)
        members = block.members
        least = 0 if isinstance(members, NormalPrecision) else members.degrees_of_variation
        fresh = np.ones(len(block.site), bool)
        rows = rows[~found.known[rows]]
        origin = middle(members[rows]) if len(rows) else None
        while fresh[rows].any():
            one, other = found.beside(fresh, rows, origin)
            enough = found.counts[one] + found.counts[other] >= least
            parts = found._joined(one[enough], other[enough], origin)
            # Only pairs with changed components can still gain.
            fresh[:] = False
            fresh[parts.into[found.into != parts.into]] = True
            rows = rows[parts.whole[rows]]
            found = parts
        return found

    @functools.cached_property
    def known(self) -> Bool[Array, " n"]:
        """Mask of components at sites whose counts are whole numbers, up to a millionth, as for
        labelled records.
        """
        block = self.block
        counts = self.block.counts
        open_ = np.bincount(block.site, np.abs(counts - np.round(counts)) > 1e-6)
        return open_[block.site] == 0

    def beside(
        self, alone: Bool[Array, " n"], rows: Int[Array, " some"], origin: Any, near: float = 25.0
    ) -> Int[Array, "two m"]:
        """Return pairs of these rows that may be parts of one: with counts, at one site, with one
        known prior for all components, and one or both ``alone``. Normal ones are along no
        coordinate further apart than ``near`` summed variances, which a few observations in the
        tail of many others may be.
        """
        block = self.block
        possible = block.priors.exchangeable[block.site]
        possible &= np.bincount(block.site, alone)[block.site] > 0
        rows = rows[possible[rows] & block.weighted]
        site = block.site[rows]
        columns = []
        if isinstance(block.members, NormalPrecision):
            law: Any = moved(self.members[rows], origin)
            spread = _covariance(law)
            spread = np.diagonal(spread, axis1=1, axis2=2) if law.whole else spread
            columns = [np.ascontiguousarray(x.T) for x in (law.mean, spread)]
        more = np.searchsorted(site, site, side="right") - np.arange(len(site)) - 1
        pairs = [np.empty((2, 0), int)]
        for some in chunks(len(rows), 16 * int(more.max(initial=0)), PIECE):
            own = more[some]
            one = np.repeat(np.arange(some.start, some.stop), own)
            other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(own) - own, own)
            both = np.stack([one, other])[:, alone[rows[one]] | alone[rows[other]]]
            for mean, spread in zip(*columns, strict=True):
                apart = np.diff(mean[both], axis=0)[0]
                both = both[:, apart**2 <= near * spread[both].sum(0)]
            pairs.append(rows[both])
        return np.hstack(pairs)

    def evidence(
        self, one: Int[Array, " m"], other: Int[Array, " m"], origin: Any
    ) -> Float[Array, " m"]:
        """Return the nats by which each of these pairs of rows is likelier one than two."""
        gain = np.zeros(len(one))
        for some in chunks(len(one), 32 * self.block.members.dimension, PIECE):
            gain[some] = self._evidence(one[some], other[some], origin)
        return gain

    def _evidence(
        self, one: Int[Array, " m"], other: Int[Array, " m"], origin: Any
    ) -> Float[Array, " m"]:
        """Return the log evidence, in nats, for one component against two.

        Log normalisers are log evidences up to a common term: under the priors or, for normal
        families, the population of components, as a wide prior favours one component without
        evidence. Two normal components also need the assignment of each observation, minus the
        entropy of the responsibilities that the two laws imply, also of known labels: one component
        explains none (heller2005, equation 2; bishop2006, equation 10.70).
        """
        block = self.block
        rows, place = np.unique([one, other], return_inverse=True)
        first, second = place.reshape(2, -1)
        laws = moved(self.members[rows], origin)
        normal = isinstance(laws, NormalPrecision)
        start = moved(block.priors.at(block.site[rows]), origin).natural_parameters
        learnt = laws.natural_parameters - start
        if normal:
            start[:] = moved(block.population, origin).natural_parameters
        alone = laws.evaluated(start + learnt)[0]
        both = start[first] + learnt[first] + learnt[second]
        gain = laws.evaluated(both)[0] + laws.evaluated(start)[0][first]
        gain = gain - alone[first] - alone[second]
        if not normal:
            return gain
        gammaln = scipy.special.gammaln
        many = self.counts[one]
        few = self.counts[other]
        gain = gain + gammaln(many + few + 1) - gammaln(many + 1) - gammaln(few + 1)
        likelier = np.flatnonzero(gain > 0)
        for some in chunks(len(likelier), 64 * DRAWS * laws.own_size, PIECE):
            at = likelier[some]
            sides = (laws[first[at]], many[at]), (laws[second[at]], few[at])
            gain[at] -= entropy(*(_density(*side) for side in sides))
        return gain

    def _joined(self, one: Int[Array, " m"], other: Int[Array, " m"], origin: Any) -> "Absorbing":
        """Merge the smaller of each of these pairs into the larger if this is a gain, the largest
        gain first; each component takes part in one merge at most.
        """
        gain = self.evidence(one, other, origin)
        into = np.arange(len(self.into))
        taken = set()
        for at in np.argsort(-gain, kind="stable")[: np.count_nonzero(gain > 0)]:
            part, host = sorted((int(one[at]), int(other[at])), key=self.counts.__getitem__)
            if taken.isdisjoint((part, host)):
                taken |= {part, host}
                into[part] = host
        return Absorbing(self.block, into[self.into])


def of_one_label(site: Int[Array, " n"], labels: Int[Array, " n"]) -> Int[Array, " n"]:
    """Return the first component of the site with the same label; for -1, the own index."""
    _, first, place = np.unique([site, labels], axis=1, return_index=True, return_inverse=True)
    return np.where(labels >= 0, first[place.ravel()], np.arange(len(labels)))


def _covariance(members: Any) -> Array:
    """Return the covariances (n, d, d), or variances (n, d), of the expected log density of an
    observation.
    """
    degrees = members.degrees_of_freedom
    return members.inverse_scale / (degrees[:, None, None] if members.whole else degrees)


def _density(members: Any, counts: Float[Array, " m"]) -> tuple[Array, Array, Array, Array]:
    """Return the counts, the log weight of a responsibility at the mean, without ``log(2π)``, the
    mean, and a root (m, d, d) of the covariance of an observation.
    """
    at_mean = moved(members, members.location()).mean_parameters
    at_mean = at_mean[:, : 2 * members.mean_precision[0].size].sum(1)
    covariance = _covariance(members)
    if members.whole:
        root = np.linalg.cholesky(covariance)
    else:
        root = np.sqrt(covariance)[..., None] * np.eye(members.own_size)
    return counts, scipy.special.digamma(counts) + at_mean, members.mean, root


def entropy(first: Sequence[Array], second: Sequence[Array]) -> Float[Array, " m"]:
    """Return the entropy of the responsibilities of pairs of components, over all observations.

    Each side is the result of :func:`_density`. Responsibilities follow from the expected log
    densities; expectations are over fixed antithetic draws.
    """
    half = np.random.default_rng(0).standard_normal((DRAWS, first[2].shape[-1]))
    draws = np.concatenate([half, -half])
    total = np.zeros(len(first[0]))
    for one, two in ((first, second), (second, first)):
        count, weight, mean, root = one
        _, against, other, inner = two
        # Draws of one component, in the standard coordinates of the other.
        there = np.linalg.solve(inner, root @ draws.T + (mean - other)[..., None])
        odds = ((there**2).sum(1) - (draws**2).sum(1)) / 2 + (weight - against)[:, None]
        odds = np.abs(odds)  # the entropy of two responsibilities, from their log odds
        share = np.exp(-odds)
        total += count * (np.log1p(share) + odds * share / (1 + share)).mean(1)
    return total
