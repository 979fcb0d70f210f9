"""The two rules over whole posteriors: every block by itself, then all put together again."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.canonical import canonical_sums
from posterity.arrays.tree import map_leaves
from posterity.arrays.typing import Bool, Float
from posterity.families import ExponentialFamily, Plate, stack
from posterity.fusion import paths
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.blocks import Block, Plates, TiedPlates
from posterity.fusion.common_prior import common_prior, common_total, one_member, part_of
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.geometry import Divergence
from posterity.fusion.paths import assembled
from posterity.fusion.rules import barycenter
from posterity.fusion.tied import average_tied, tied_terms
from posterity.ledger import Ledger

Array = np.ndarray
Alignments = Mapping[str, Alignment]


class Terms(NamedTuple):
    """A prior of one block, what each site adds to it, and which sites had another prior.

    ``totals`` are those whose prior over mixing weights was another.
    """

    prior: ExponentialFamily
    added: Sequence[ExponentialFamily]
    others: Bool[Array, " sites"]
    totals: Bool[Array, " sites"]


# --- the barycentre ------------------------------------------------------------------------------


def average(
    like: ExponentialFamily,
    blocks: Sequence[Block],
    alignments: Alignments,
    divergence: Divergence | Discrepancy,
    importance: Float[Array, " sites"],
) -> ExponentialFamily:
    """The posterior, of the structure of ``like``, closest to those of all sites."""

    def one(block: Block) -> ExponentialFamily:
        if isinstance(block, TiedPlates):
            return average_tied(block, alignments[block.path], divergence, importance)
        if isinstance(block, Plates):
            return _average_plate(block, alignments[block.path], divergence, importance)
        together = np.zeros(len(block.names), dtype=int)
        return barycenter(stack(block.posteriors), together, divergence, importance)[0]

    return assembled(like, {block.path: one(block) for block in blocks})


def _average_plate(
    plates: Plates, alignment: Alignment, divergence: Divergence | Discrepancy, importance: Array
) -> Plate:
    parts, labels = Absorbing.of(plates, alignment.into), alignment.labels
    kept, whole = labels >= 0, (labels >= 0) & parts.whole
    weights = importance[plates.site[whole]]
    members = barycenter(parts.members[whole], labels[whole], divergence, weights)
    if not plates.weighted:
        return Plate(members)
    share = importance / math.fsum(importance)
    shared = (share[plates.site] * plates.counts)[kept, None]
    counts = canonical_sums(shared, labels[kept], alignment.components)[:, 0]
    like, size = plates.weights[0][0], alignment.components
    total = common_total(plates.concentrations, importance=importance).total
    return Plate(members, like.exchangeable(total, size) + like.of_counts(counts))


# --- the product ---------------------------------------------------------------------------------


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
    blocks: Sequence[Block],
    alignments: Alignments,
    prior: ExponentialFamily | None = None,
) -> Pooled:
    """Every site's contribution, its posterior less its own prior, beside one common prior.

    That is ``prior``, else one that the sites' own make up (:mod:`.common_prior`).

    Raises:
        StructureError: priors that tell the components of a plate apart.
    """
    given = {} if prior is None else paths.blocks(prior)
    terms = {
        block.path: _terms_of(block, alignments.get(block.path), given.get(block.path))
        for block in blocks
    }
    common = assembled(like, {path: own.prior for path, own in terms.items()})
    factors = {
        name: assembled(like, {path: own.added[index] for path, own in terms.items()})
        for index, name in enumerate(names)
    }
    members = np.any([own.others for own in terms.values()], axis=0)
    others = np.any([members, *(own.totals for own in terms.values())], axis=0)
    rebased = tuple(name for name, other in zip(names, others, strict=True) if other)
    # Rows of a plate were found in the others' company, and an average holds everyone's prior.
    alone = not alignments and not (rebased and prior is None)
    return Pooled(Ledger(common).extend(factors, independent=alone), rebased, part_of(members))


def _terms_of(block: Block, alignment: Alignment | None, given: Any) -> Terms:
    """Those of a block, or of one whose components were matched."""
    if alignment is None:
        return _terms(block, given)
    if isinstance(block, TiedPlates):
        prior, added, others = tied_terms(block, alignment, given)
        return Terms(prior, added, others, others)
    assert isinstance(block, Plates)  # nothing else was matched
    return _plate_terms(block, alignment, given)


def _terms(block: Block, given: ExponentialFamily | None) -> Terms:
    own: Any = block.priors  # every site has one: it was checked
    common = common_prior(own, given)
    added, no = stack(block.posteriors) - stack(own), np.zeros(len(own), bool)
    return Terms(common.prior, [added[index] for index in range(len(own))], common.others, no)


def _plate_terms(plates: Plates, alignment: Alignment, given: Plate | None) -> Terms:
    pairs = zip(plates.priors, plates.names, strict=True)
    own = [one_member(prior, f"site {name!r}") for prior, name in pairs]
    common = common_prior(own, None if given is None else one_member(given, "the prior"))
    sites, components = len(plates.names), alignment.components
    # All sites at once: each has as many rows of its own as there are fused components.
    kept = alignment.labels >= 0
    rows = plates.site[kept] * components + alignment.labels[kept]
    added = map_leaves(
        lambda leaf: _summed(leaf, rows, sites * components),
        plates.members[kept] - stack(own)[plates.site[kept]],
    )
    base, counts, strange = None, [None] * sites, np.zeros(sites, bool)
    if plates.weighted:
        like, weights = plates.weights[0][0], None if given is None else given.weights
        total, strange = common_total(plates.concentrations, weights)
        base = like.exchangeable(total, components)
        counts = _summed(plates.counts[kept], rows, sites * components)
        counts = [like.of_counts(row) for row in counts.reshape(sites, components)]
    factors = [
        Plate(added[index * components : (index + 1) * components], mine)
        for index, mine in enumerate(counts)
    ]
    return Terms(Plate(stack([common.prior] * components), base), factors, common.others, strange)


def _summed(leaf: Array, rows: Array, size: int) -> Array:
    """The entries of a leaf that go to each of ``size`` rows, added up."""
    if np.bincount(rows).max(initial=0) <= 1:
        out = np.zeros((size, *leaf.shape[1:]))
        out[rows] = leaf
        return out
    sums = canonical_sums(leaf.reshape(len(leaf), -1), rows, size)
    return sums.reshape(size, *leaf.shape[1:])
