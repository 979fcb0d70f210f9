"""The two rules over whole posteriors: every block by itself, then all put together again."""

from collections.abc import Mapping, Sequence

import numpy as np

from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Float
from posterity.errors import StructureError
from posterity.families import ExponentialFamily, Plate, stack
from posterity.families.batches import place
from posterity.families.mixing import MixingWeights
from posterity.fusion.alignment import Alignment
from posterity.fusion.blocks import Block, Plates
from posterity.fusion.geometry import Divergence
from posterity.fusion.paths import assembled
from posterity.fusion.rules import barycenter
from posterity.ledger import Ledger

Array = np.ndarray
Alignments = Mapping[str, Alignment]
Terms = tuple[ExponentialFamily, Sequence[ExponentialFamily]]
"""A prior, and what each site adds to it."""


# --- the barycentre ------------------------------------------------------------------------------


def average(
    like: ExponentialFamily,
    blocks: Sequence[Block],
    alignments: Alignments,
    divergence: Divergence,
    importance: Float[Array, " sites"],
) -> ExponentialFamily:
    """The posterior, of the structure of ``like``, closest to those of all sites."""

    def one(block: Block) -> ExponentialFamily:
        if isinstance(block, Plates):
            return _average_plate(block, alignments[block.path], divergence, importance)
        together = np.zeros(len(block.names), dtype=int)
        return barycenter(stack(block.posteriors), together, divergence, importance)[0]

    return assembled(like, {block.path: one(block) for block in blocks})


def _average_plate(
    plates: Plates, alignment: Alignment, divergence: Divergence, importance: Array
) -> Plate:
    kept, labels = alignment.labels >= 0, alignment.labels
    weights = importance[plates.site[kept]]
    members = barycenter(plates.members[kept], labels[kept], divergence, weights)
    if not plates.weighted:
        return Plate(members)
    base, added = _mixing_terms(plates, alignment)
    share = importance / importance.sum()
    mean = sum((s * counts for s, counts in zip(share, added, strict=True)), start=base * 1.0)
    return Plate(members, mean)


# --- the product ---------------------------------------------------------------------------------


def add(
    like: ExponentialFamily,
    names: Sequence[str],
    blocks: Sequence[Block],
    alignments: Alignments,
) -> Ledger:
    """The prior once, and one aligned factor a site, of the structure of ``like``.

    Raises:
        StructureError: priors that differ, or tell the components of a plate apart.
    """
    terms = {
        block.path: _plate_terms(block, alignments[block.path])
        if isinstance(block, Plates)
        else _terms(block)
        for block in blocks
    }
    prior = assembled(like, {path: prior for path, (prior, _) in terms.items()})
    factors = {
        name: assembled(like, {path: added[index] for path, (_, added) in terms.items()})
        for index, name in enumerate(names)
    }
    # Rows of a plate were found in the others' company.
    return Ledger(prior).extend(factors, independent=not alignments)


def _terms(block: Block) -> Terms:
    prior = _common(block, block.priors)  # pyright: ignore[reportArgumentType]
    added = stack(block.posteriors) - prior
    return prior, [added[index] for index in range(len(block.names))]


def _plate_terms(plates: Plates, alignment: Alignment) -> Terms:
    pairs = zip(plates.priors, plates.names, strict=True)
    members = [_member(prior, name) for prior, name in pairs]
    prior, components = _common(plates, members), alignment.components
    # All sites at once: each has as many rows of its own as there are fused components.
    rows = np.where(alignment.labels < 0, -1, plates.site * components + alignment.labels)
    total = len(plates.names) * components
    added = map_leaves(lambda leaf: place(leaf, rows, total, 0), plates.members - prior)
    base, counts = None, [None] * len(plates.names)
    if plates.weighted:
        _check_equal(plates)
        base, counts = _mixing_terms(plates, alignment)
    factors = [
        Plate(added[index * components : (index + 1) * components], mine)
        for index, mine in enumerate(counts)
    ]
    return Plate(stack([prior] * components), base), factors


def _member(prior: Plate | None, name: str) -> ExponentialFamily:
    """The one prior that all members of a plate share."""
    assert prior is not None  # every site has one: it was checked
    if any((leaf != leaf[:1]).any() for leaf in leaves(prior.members)):
        raise StructureError(
            found=f"members of the prior that differ, at site {name!r}",
            expected="exchangeable members: one prior for all components of a plate",
            fix="Use one prior for all components, or rule='barycenter'.",
        )
    return prior.members[0]


def _common(block: Block, priors: Sequence[ExponentialFamily]) -> ExponentialFamily:
    """The prior that all sites share, to twelve digits."""
    strange = np.zeros(len(priors), bool)
    for leaf in leaves(stack(priors)):
        close = np.isclose(leaf, leaf[:1], rtol=1e-12, atol=0.0)
        strange |= ~close.reshape(len(priors), -1).all(1)
    if strange.any():
        raise StructureError(
            found=f"different priors at sites {block.names[0]!r} and "
            f"{block.names[int(strange.argmax())]!r}{block.place}",
            expected="one prior, chosen without looking at any site's data",
            fix="Fit all sites with the same prior (scikit-learn's default depends on the "
            "data: set mean_prior, covariance_prior and the like), pass prior=, or use "
            "rule='barycenter'.",
        )
    return priors[0]


# --- mixing weights ------------------------------------------------------------------------------


def _mixing_terms(
    plates: Plates, alignment: Alignment
) -> tuple[MixingWeights, list[MixingWeights]]:
    """The prior of the fused mixing weights, and each site's counts under the fused labels."""
    like, components = plates.weights[0][0], alignment.components
    base = like.exchangeable(float(np.mean(plates.concentrations)), components)
    kept, labels = alignment.labels >= 0, alignment.labels
    counts = np.zeros((len(plates.names), components))
    counts[plates.site[kept], labels[kept]] = plates.counts[kept]
    return base, [like.of_counts(row) for row in counts]


def _check_equal(plates: Plates) -> None:
    """Refuse sites whose priors over mixing weights differ in total concentration."""
    totals = plates.concentrations
    strange = ~np.isclose(totals, totals[0], rtol=1e-9, atol=0.0)
    if strange.any():
        at = int(strange.argmax())
        raise StructureError(
            found=f"prior concentrations {totals[0]:g} at {plates.names[0]!r} and "
            f"{totals[at]:g} at {plates.names[at]!r}, over all components together",
            expected="one prior, counted once",
            fix="Give all sites one total (each component's is the total over their number), "
            "or use rule='barycenter'.",
        )
