"""The two rules over whole posteriors: every block by itself, then all put together again."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posterity.arrays.canonical import canonical_sums
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Bool, Float, Int
from posterity.families import ExponentialFamily, Plate, stack
from posterity.fusion import paths
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.block_table import BlockTable, group_totals, keys_of_sites
from posterity.fusion.blocks import Block, TiedBlock, one_member
from posterity.fusion.common_prior import common_prior, common_total, part_of
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.geometry import Divergence, moved, opposite
from posterity.fusion.paths import assembled
from posterity.fusion.rules import barycenter
from posterity.fusion.tied import average_tied, tied_terms
from posterity.ledger import Ledger

Array = np.ndarray
Alignments = Mapping[str, Alignment]
Blocks = Mapping[str, Block | BlockTable]


def _labels(block: Block | BlockTable, alignment: Alignment | None) -> Int[Array, " n"]:
    """The fused component of each local one; there is one where nothing was matched."""
    return np.zeros(len(block.used), int) if alignment is None else alignment.labels


# --- the barycentre ------------------------------------------------------------------------------


def average(
    like: ExponentialFamily,
    blocks: Blocks,
    alignments: Alignments,
    divergence: Divergence | Discrepancy,
    importance: Float[Array, " sites"],
) -> ExponentialFamily:
    """The posterior, of the structure of ``like``, closest to those of all sites."""

    def one(path: str, block: Block | BlockTable) -> ExponentialFamily:
        if isinstance(block, TiedBlock):
            return average_tied(block, alignments[path], divergence, importance)
        return _averaged(block, alignments.get(path), divergence, importance)

    return assembled(like, {path: one(path, block) for path, block in blocks.items()})


def _averaged(
    block: Block | BlockTable,
    alignment: Alignment | None,
    divergence: Divergence | Discrepancy,
    importance: Array,
) -> ExponentialFamily:
    labels = _labels(block, alignment)
    members = _barycenters(block, labels, alignment, divergence, importance)
    if not block.plate:
        return members[0]
    if not block.weighted:
        return Plate(members)
    share = importance / math.fsum(importance)
    shared = lambda piece: (piece.at_components(share) * piece.counts)[:, None]
    size = members.batch_shape[0]
    counts = group_totals(block, labels, size, shared)[:, 0]
    total = common_total(block.concentrations, importance=importance).total
    kind = block.like.weights  # pyright: ignore[reportAttributeAccessIssue]
    return Plate(members, kind.exchangeable(total, size) + kind.of_counts(counts))


def _barycenters(
    block: Block | BlockTable,
    labels: Array,
    alignment: Alignment | None,
    divergence: Divergence | Discrepancy,
    importance: Array,
) -> ExponentialFamily:
    if isinstance(block, Block):
        parts = Absorbing.of(block, None if alignment is None else alignment.into)
        whole = (labels >= 0) & parts.whole
        weights = block.at_components(importance)[whole]
        return barycenter(parts.members[whole], labels[whole], divergence, weights)
    reverse = divergence is Divergence.REVERSE

    def weighted(piece: Block) -> Array:
        weight = piece.at_components(importance)[:, None]
        members = piece.members
        rows = members.natural_parameters if reverse else members.mean_parameters
        return np.hstack([rows * weight, weight])

    totals = group_totals(block, labels, int(labels.max()) + 1, weighted)
    mean, template = totals[:, :-1] / totals[:, -1:], block.layout.template
    kind = template.with_natural_parameters if reverse else template.with_mean_parameters
    return moved(kind(mean), opposite(block.origin))


# --- the product ---------------------------------------------------------------------------------


class Terms(NamedTuple):
    """A prior of one block, what sites add to it, and which sites had another prior.

    ``totals`` are those whose prior over mixing weights was another. ``each`` gives what every
    site adds, ``all`` the sum.
    """

    prior: ExponentialFamily
    others: Bool[Array, " sites"]
    totals: Bool[Array, " sites"]
    each: Callable[[], Sequence[ExponentialFamily]]
    all: Callable[[], ExponentialFamily]


class Pooled(NamedTuple):
    """The prior once, and one aligned factor a site.

    ``rebased`` had other priors of their own, in ``part``.
    """

    ledger: Ledger
    rebased: tuple[str, ...]
    part: str


def add(
    like: ExponentialFamily,
    names: Sequence[str],
    blocks: Blocks,
    alignments: Alignments,
    prior: ExponentialFamily | None = None,
    budget: float | int = math.inf,
) -> Pooled:
    """Every site's contribution, its posterior less its own prior, beside one common prior.

    That is ``prior``, else one that the sites' own make up (:mod:`.common_prior`). If factors for
    all sites take more than ``budget`` bytes there is one for all of them together.

    Raises:
        StructureError: priors that tell the components of a plate apart.
    """
    given = {} if prior is None else paths.blocks(prior)
    terms = {
        path: _terms(block, alignments.get(path), given.get(path)) for path, block in blocks.items()
    }
    common = assembled(like, {path: own.prior for path, own in terms.items()})
    members = np.any([own.others for own in terms.values()], axis=0)
    others = np.any([members, *(own.totals for own in terms.values())], axis=0)
    rebased = tuple(names[index] for index in np.flatnonzero(others).tolist())
    # Rows of a plate were found in the others' company, and an average holds everyone's prior.
    alone = not alignments and not (rebased and prior is None)
    size = len(names) * sum(leaf.nbytes for leaf in leaves(common))
    if size > budget:
        name = _all_sites(names, blocks)
        warnings.warn(
            f"a factor for each of {len(names)} sites would take {size:,} bytes, beyond the "
            f"budget: the ledger holds one for all, {name!r}, and no single site can be forgotten; "
            "pass a larger budget= to keep them apart",
            stacklevel=5,
        )
        factors = {name: assembled(like, {path: own.all() for path, own in terms.items()})}
    else:
        each = {path: own.each() for path, own in terms.items()}
        factors = {
            name: assembled(like, {path: own[index] for path, own in each.items()})
            for index, name in enumerate(names)
        }
    return Pooled(Ledger(common).extend(factors, independent=alone), rebased, part_of(members))


def _all_sites(names: Sequence[str], blocks: Blocks) -> str:
    """What one factor of all these sites goes by: their number, and a digest of their contents."""
    keys = keys_of_sites(blocks)
    return f"{len(names)} sites {int(keys.sum(dtype=np.uint64)):016x}"


def _terms(
    block: Block | BlockTable, alignment: Alignment | None, given: ExponentialFamily | None
) -> Terms:
    if isinstance(block, TiedBlock):
        assert alignment is not None  # labels that are shared were matched
        prior, added, others = tied_terms(block, alignment, given)
        return Terms(prior, others, others, lambda: added, lambda: added[0])
    return _PlainTerms.of(block, _labels(block, alignment), given)


@dataclasses.dataclass(frozen=True)
class _PlainTerms:
    """What the components of a block add, under labels below ``groups``."""

    block: Block | BlockTable
    labels: Int[Array, " n"]
    groups: int

    @classmethod
    def of(cls, block: Block | BlockTable, labels: Array, given: ExponentialFamily | None) -> Terms:
        known = None if given is None else one_member(given)
        common = common_prior(block.priors.each(block.names), known)
        own = cls(block, labels, int(labels.max()) + 1)
        if not block.plate:
            no = np.zeros_like(common.others)
            return Terms(common.prior, common.others, no, own.each, own.all)
        base, strange = None, np.zeros_like(common.others)
        if block.weighted:
            over = None if given is None else given.weights  # pyright: ignore
            total, strange = common_total(block.concentrations, over)
            base = block.like.weights.exchangeable(total, own.groups)  # pyright: ignore
        prior = Plate(stack([common.prior] * own.groups), base)
        return Terms(prior, common.others, strange, own.each, own.all)

    def each(self) -> list[ExponentialFamily]:
        """What each site adds."""
        return [
            factor
            for piece, labels in self.block.pieces(self.labels)
            for factor in self._factors(piece, labels)
        ]

    def _factors(self, piece: Block, labels: Array) -> list[ExponentialFamily]:
        """All sites at once: each has as many rows of its own as there are fused components."""
        kept, sites, groups = labels >= 0, len(piece.sizes), self.groups
        rows = piece.site[kept] * groups + labels[kept]
        added = map_leaves(
            lambda leaf: _summed(leaf, rows, sites * groups), self._added(piece, kept)
        )
        if not piece.plate:
            return [added[index] for index in range(sites)]
        counts = [None] * sites
        if piece.weighted:
            summed = _summed(piece.counts[kept], rows, sites * groups).reshape(sites, groups)
            counts = [piece.like.weights.of_counts(row) for row in summed]  # pyright: ignore
        return [
            Plate(added[index * groups : (index + 1) * groups], mine)
            for index, mine in enumerate(counts)
        ]

    def all(self) -> ExponentialFamily:
        """What all sites add together."""
        every = lambda piece: np.column_stack(
            [self._added(piece, slice(None)).natural_parameters, piece.counts]
        )
        totals = group_totals(self.block, self.labels, self.groups, every)
        like: ExponentialFamily = self.block.like
        if not self.block.plate:
            return like.with_natural_parameters(totals[0, :-1])
        weights = like.weights.of_counts(totals[:, -1]) if self.block.weighted else None  # pyright: ignore
        return Plate(like.members[:1].with_natural_parameters(totals[:, :-1]), weights)  # pyright: ignore

    def _added(self, piece: Block, rows: Array | slice) -> ExponentialFamily:
        """What components have learnt: posterior less prior."""
        members = moved(piece.members[rows], opposite(piece.origin))
        return members - piece.priors.each(piece.names)[piece.site[rows]]


def _summed(leaf: Array, rows: Array, size: int) -> Array:
    """The entries of a leaf that go to each of ``size`` rows, added up."""
    if np.bincount(rows).max(initial=0) <= 1:
        out = np.zeros((size, *leaf.shape[1:]))
        out[rows] = leaf
        return out
    sums = canonical_sums(leaf.reshape(len(leaf), -1), rows, size)
    return sums.reshape(size, *leaf.shape[1:])
