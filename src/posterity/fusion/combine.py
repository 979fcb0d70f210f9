"""The two rules for whole posteriors: blocks are combined one by one, and then reassembled.

A product counts one prior once, even if the sites' priors differ. A site's contribution, its
posterior minus its prior, can be added to any other prior. The default is the average of the sites'
priors in natural parameters: the opinion pool that commutes with learning from data (genest1986),
about as certain as one site's prior on average.
"""

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.canonical import canonical_sums
from posterity.arrays.stacks import unstacked
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import ParameterError, StructureError
from posterity.families import ExponentialFamily, HiddenMarkov, Plate, stack
from posterity.families.emitting import MixingWeights
from posterity.families.names import some
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.block_table import BlockTable, group_totals, keys_of_sites
from posterity.fusion.blocks import (
    SAME,
    Block,
    assembled,
    common_prior,
    one_member,
    picked,
    resized,
)
from posterity.fusion.blocks import blocks as blocks_of
from posterity.fusion.geometry import Divergence, barycenter, moved, opposite
from posterity.ledger import Ledger

Array = np.ndarray
Alignments = Mapping[str, Alignment]
Blocks = Mapping[str, Block | BlockTable]


def _labels(block: Block | BlockTable, alignment: Alignment | None) -> Int[Array, " n"]:
    """Return the fused component of each local one; without matching there is only one."""
    return np.zeros(len(block.used), int) if alignment is None else alignment.labels


def average(
    like: ExponentialFamily,
    blocks: Blocks,
    alignments: Alignments,
    divergence: Divergence,
    importance: Float[Array, " sites"],
) -> ExponentialFamily:
    """Return the barycentre of all sites' posteriors, with the structure of ``like``."""

    def one(path: str, block: Block | BlockTable) -> ExponentialFamily:
        alignment = alignments.get(path)
        labels = _labels(block, alignment)
        members = barycenters(block, labels, alignment)
        if isinstance(block, Block) and block.whole:
            return _averaged_labels(block, alignments[path], members, importance)
        if not block.plate:
            return members[0]
        if not block.weighted:
            return Plate(members)
        share = importance / math.fsum(importance)

        def shared(piece, rows):
            return (piece.at_components(share) * piece.counts)[rows, None]

        size = members.batch_shape[0]
        kind = block.like.weights  # pyright: ignore
        counts = group_totals(block, labels, size, shared)[:, 0]
        total, _ = common_total(block.concentrations, importance=importance)
        return Plate(members, kind.exchangeable(total, size) + kind.of_counts(counts))

    def barycenters(
        block: Block | BlockTable, labels: Array, alignment: Alignment | None
    ) -> ExponentialFamily:
        if isinstance(block, Block):
            parts = Absorbing.of(block, None if alignment is None else alignment.into)
            whole = np.flatnonzero((labels >= 0) & parts.whole)
            weights = block.at_components(importance)[whole]
            return barycenter(picked(parts.members, whole), labels[whole], divergence, weights)
        side = block.divergence

        def weighted(piece: Block, rows: Array) -> Array:
            weight = piece.at_components(importance)[rows, None]
            return np.hstack([side.coordinates(picked(piece.members, rows)) * weight, weight])

        totals = group_totals(block, labels, int(labels.max()) + 1, weighted)
        mean = side.family(block.template, totals[:, :-1] / totals[:, -1:])
        return moved(mean, opposite(block.origin))

    return assembled(like, {path: one(path, block) for path, block in blocks.items()})


def common_total(
    totals: Float[Array, " sites"],
    prior: MixingWeights | None = None,
    importance: Float[Array, " sites"] | None = None,
) -> tuple[float, Bool[Array, " sites"]]:
    """Return the total concentration of mixing weights, and a mask of sites that had another one.
    It is that of the ``prior``, or by default the average over sites, weighted by ``importance``.
    """
    share = np.ones(len(totals)) if importance is None else importance
    alike = bool((totals == totals[0]).all())
    total = float(totals[0]) if alike else math.fsum(share * totals) / math.fsum(share)
    total = total if prior is None else prior.total(prior)
    return total, ~np.isclose(totals, total, rtol=1e3 * SAME, atol=0.0)


def add(
    like: ExponentialFamily,
    names: Sequence[str],
    blocks: Blocks,
    alignments: Alignments,
    prior: ExponentialFamily | None = None,
    budget: float | int = math.inf,
) -> tuple[Ledger, tuple[str, ...]]:
    """Return a ledger of a common prior and each site's contribution, its posterior minus its own
    prior, as one aligned factor; and the sites that had other priors. If factors need more than
    ``budget`` bytes, the ledger has one factor for all sites.

    The common prior is ``prior``, or :func:`common_prior` of the sites', with a warning if they
    differ. Raise a StructureError if a prior differs between components of a plate.
    """
    wanted = {} if prior is None else blocks_of(prior)
    terms = {
        path: TiedTerms(block, alignments[path], wanted.get(path))
        if isinstance(block, Block) and block.whole
        else Terms(block, alignments.get(path), wanted.get(path))
        for path, block in blocks.items()
    }
    common = assembled(like, {path: own.prior for path, own in terms.items()})
    members = np.any([own.others for own in terms.values()], axis=0)
    others = np.any([members, *(own.totals for own in terms.values())], axis=0)
    rebased = tuple(names[index] for index in np.flatnonzero(others).tolist())
    # With plates or an averaged prior, factors depend on the other sites.
    alone = not alignments and not (rebased and prior is None)
    size = len(names) * sum(leaf.nbytes for leaf in leaves(common))
    if size > budget:
        # The name has the number of sites and a digest of their contents.
        name = f"{len(names)} sites {int(keys_of_sites(blocks).sum(dtype=np.uint64)):016x}"
        warnings.warn(
            f"a factor for each of {len(names)} sites would take {size:,} bytes, beyond the "
            f"budget: the ledger holds one for all, {name!r}, and no single site can be forgotten; "
            "pass a larger budget= to keep them apart",
            stacklevel=4,
        )
        whole = {path: own.all() for path, own in terms.items() if isinstance(own, Terms)}
        factors = {name: assembled(like, whole)}
    else:
        each = {path: own.each() for path, own in terms.items()}
        factors = {
            name: assembled(like, {path: own[index] for path, own in each.items()})
            for index, name in enumerate(names)
        }
    if rebased and prior is None:
        part = "priors" if members.any() else "priors over mixing weights"
        warnings.warn(
            f"{part} differ: those of {some(rebased, 3)} are not the common one (ledger.prior of "
            "the result), which is the average of all sites': of natural parameters, and of the "
            "total concentration of mixing weights. Contributions, posterior less own prior, were "
            "added to it. Pass prior= to choose another, and to silence this",
            stacklevel=4,
        )
    return Ledger(common).extend(factors, independent=alone), rebased


def pooled_posterior(ledger: Ledger, rebased: Sequence[str]) -> ExponentialFamily:
    """Return the prior plus all contributions; raise a ParameterError if this is improper."""
    try:
        return ledger.posterior
    except ParameterError as error:
        if not rebased:
            raise
        raise ParameterError(
            found=f"{error.found}: contributions of {some(rebased, 3)} beside another prior than "
            "their own",
            expected="a prior= as sharp as the sites' own, one prior of all, or rule='barycenter'",
        ) from error


class Terms:
    """The common prior of one block, and the sites' contributions to it.

    ``others`` (J,) marks sites with another prior of components, ``totals`` (J,) those with another
    one over mixing weights.
    """

    def __init__(self, block: Block | BlockTable, alignment: Alignment | None, prior: Any):
        self.block = block
        self.labels = _labels(block, alignment)
        self.groups = int(self.labels.max()) + 1
        known = None if prior is None else one_member(prior)
        self.prior, self.others = common_prior(block.priors.each(block.names), known)
        self.totals = np.zeros_like(self.others)
        base = None
        like = block.like
        if block.weighted:
            over = None if prior is None else prior.weights
            total, self.totals = common_total(block.concentrations, over)
            base = like.weights.exchangeable(total, self.groups)  # pyright: ignore
        if block.plate:
            self.prior = Plate(stack([self.prior] * self.groups), base)

    def each(self) -> list[ExponentialFamily]:
        """Return the contribution of each site."""
        return [
            factor
            for piece, labels in self.block.pieces(self.labels)
            for factor in self._factors(piece, labels)
        ]

    def _factors(self, piece: Block, labels: Array) -> list[ExponentialFamily]:
        """Return the factors of a piece's sites, each with one row per fused component."""
        kept = np.flatnonzero(labels >= 0)
        sites = len(piece.sizes)
        groups = self.groups
        rows = piece.site[kept] * groups + labels[kept]

        def summed(leaf):
            return _summed(leaf, rows, sites * groups)

        added = map_leaves(summed, self._added(piece, kept))
        if not piece.plate:
            return unstacked(added)
        added = map_leaves(lambda x: x.reshape(sites, groups, *x.shape[1:]), added)
        weights = None
        if piece.weighted:
            counts = summed(piece.counts[kept]).reshape(sites, groups)
            weights = piece.like.weights.of_counts(counts)  # pyright: ignore
        return unstacked(Plate(added, weights))

    def all(self) -> ExponentialFamily:
        """Return the sum of all contributions."""

        def every(piece, rows):
            added = self._added(piece, rows).natural_parameters
            return np.column_stack([added, piece.counts[rows]])

        totals = group_totals(self.block, self.labels, self.groups, every)
        like: Any = self.block.like
        if not self.block.plate:
            return like.with_natural_parameters(totals[0, :-1])
        weights = like.weights.of_counts(totals[:, -1]) if self.block.weighted else None
        return Plate(like.members[:1].with_natural_parameters(totals[:, :-1]), weights)

    def _added(self, piece: Block, rows: Int[Array, " n"]) -> ExponentialFamily:
        """Return the contributions of components: posterior minus prior."""
        members = moved(picked(piece.members, rows), opposite(piece.origin))
        priors = piece.priors
        one = len(priors.laws) == 1  # saves the memory of as many priors as members
        return members - (priors.laws[0] if one else priors.at(piece.site[rows]))


def _summed(leaf: Array, rows: Array, size: int) -> Array:
    """Add up the entries of a leaf by row, for ``size`` rows."""
    if np.bincount(rows).max(initial=0) <= 1:
        out = np.zeros((size, *leaf.shape[1:]))
        out[rows] = leaf
        return out
    sums = canonical_sums(leaf.reshape(len(leaf), -1), rows, size)
    return sums.reshape(size, *leaf.shape[1:])


def _averaged_labels(
    tied: Block, alignment: Alignment, members: ExponentialFamily, importance: Array
) -> HiddenMarkov:
    """Return the prior plus the average contribution of all sites, with these members. Raise a
    StructureError without priors if a concentration has counts at no site.
    """
    kind = type(tied.whole[0])
    spread = _spread(tied.whole_priors, importance, alignment.components, kind.concentrations)
    fused = kind.exchangeable(members[0], spread, alignment.components)
    share = importance / math.fsum(importance)
    for factor, own in zip(contributions(tied, alignment), share.tolist(), strict=True):
        fused = fused + factor * own
    fused = fused.with_members(members)
    if not np.all(fused.is_proper()):
        raise StructureError(
            found=f"{alignment.components} fused states of which no site has seen all pairs"
            f"{tied.place}, and no prior",
            expected="prior=, or ledgers: what nobody has seen is as the prior says",
        )
    return fused


class TiedTerms:
    """The common prior of a block with shared labels, of the fused size, and contributions."""

    def __init__(self, tied: Block, alignment: Alignment, prior: Any):
        own = [known for known in tied.whole_priors if known is not None]  # all are known
        make = type(own[0]).exchangeable
        size = alignment.components
        member, _ = common_prior(tied.priors.each(tied.names))
        if prior is None:
            spread = _spread(own, np.ones(len(own)), size, type(own[0]).concentrations)
        else:
            prior = resized(prior, size)
            spread = prior.spread()
            member = one_member(prior.as_plate(prior))

        def same(a, b):
            return np.allclose(a, b, rtol=1e3 * SAME, atol=1e3 * SAME)

        pairs = [(known, make(member, spread, known.states)) for known in own]
        alike = [all(map(same, leaves(known), leaves(common))) for known, common in pairs]
        self.others = self.totals = ~np.array(alike, bool)
        self.prior = make(member, spread, size)
        self.each = functools.partial(contributions, tied, alignment)


def contributions(tied: Block, alignment: Alignment) -> list[HiddenMarkov]:
    """Return each site's contribution, relative to its prior, with the fused labels."""
    sites = zip(tied.names, tied.whole, tied.whole_priors, strict=True)
    return [
        q.contribution(prior).relabel(alignment.matching[name], alignment.components)
        for name, q, prior in sites
    ]


def _spread(
    priors: Sequence[HiddenMarkov | None],
    importance: Float[Array, " sites"],
    labels: int,
    width: int,
) -> Float[Array, " s"]:
    """Return the average of the sites' concentrations, over sites with enough labels to determine
    all of them; unknown priors count as zero.
    """
    nothing = np.zeros(width)
    rows = np.array([nothing if p is None else p.spread() for p in priors])
    known = ~np.isnan(rows).any(1)
    if not known.any():
        if labels > 1:
            warnings.warn(
                "priors of one state do not tell staying from moving: all of their concentration "
                "counts as moving. Pass prior= of two states or more to say otherwise",
                stacklevel=5,
            )
        known = ~known
    kept = importance[known]
    rows = rows[known]
    if (rows == rows[:1]).all():
        return rows[0]
    return np.array([math.fsum(column) for column in (kept[:, None] * rows).T]) / math.fsum(kept)
