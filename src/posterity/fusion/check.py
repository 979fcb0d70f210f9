"""The one check of a fusion.

Is each site's posterior, each component's part of it and each number, what the others predict? Each
is compared with the posterior from the others alone (:mod:`.deviations`); a doubt is named if as
large a deviation has less than the chance ``level``, corrected for the number of comparisons. What
is about another matching or number of components is named if the evidence for it is within
:data:`.confidence.AMBIGUOUS` nats, unless sampling alone tells which components are one.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from posterity.arrays.typing import Int
from posterity.families.marginals import Names
from posterity.fusion.alignment import Alignment
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block
from posterity.fusion.confidence import AMBIGUOUS, Confidence, EffectsConfidence
from posterity.fusion.doubts import LEVEL, Doubt, Kind, doubt
from posterity.fusion.geometry import BUDGET
from posterity.fusion.groups import Groups, different, told_by_sampling
from posterity.fusion.judged_passes import PassConfidence
from posterity.fusion.other_components import (
    likelier_elsewhere,
    may_be_one,
    strangers,
)
from posterity.fusion.passes import Passes
from posterity.fusion.silence import few_records, say_nothing
from posterity.fusion.topics import are_topics


def doubts(
    blocks: Mapping[str, Block | BlockTable],
    plates: Mapping[str, Alignment],
    names: Names,
    level: float = LEVEL,
    *,
    searched: bool = True,
) -> Iterator[Doubt]:
    """Yield doubts about a fusion.

    Of sites that were matched in passes some are examined (:meth:`.PassConfidence.examined`), whose
    number is said; those that say nothing are then looked for only if there is one block. Of
    topics, and mixing weights, only matches are checked.

    Args:
        blocks: what sites say, by path; empty for networks.
        plates: the matching of each plate, by path.
        names: names of coordinates, by path.
        level: chance that sites of one truth are doubted, for each kind of doubt.
        searched: whether matchings were searched for, so that they may be ambiguous.
    """
    with np.errstate(all="ignore"):
        whole = {path: block for path, block in blocks.items() if isinstance(block, Block)}
        yield from say_nothing(whole, len(whole) == len(blocks))
        for path in {**blocks, **plates}:
            block = blocks.get(path)
            alignment = plates.get(path)
            sure = not searched
            found: list[Doubt] = []
            if block is not None and not are_topics(block):
                groups = _groups(block, alignment)
                found = [*different(groups, names.get(path, ()), level)]
                told = isinstance(block, Block) and not found
                sure = sure or (told and told_by_sampling(groups, level))
                found += _of_block(groups, level)
                if not isinstance(block, Block):
                    found += say_nothing({path: groups.block}, len(blocks) == 1)
                    found = _noted(found, len(groups.block.names), len(block.names))
            if alignment is not None and not sure:
                place = f" in block {path!r}" * bool(path)
                suspect = alignment.confidence is not None and alignment.confidence.suspect
                yield from of_matching(alignment, place) if suspect else ()
            yield from found


def _noted(found: list[Doubt], few: int, many: int) -> list[Doubt]:
    """Return doubts about a few of many sites, which say how many these are."""
    if few == many:
        return found
    note = f" (of {many} sites {few} were examined)"
    return [dataclasses.replace(own, finding=own.finding + note) for own in found]


def _groups(block: Block | BlockTable, alignment: Alignment | None) -> Groups:
    """Return the matched components of a block, or of the sites of a table that are examined."""
    if isinstance(block, Block):
        return Groups(block, alignment)
    known = alignment and alignment.confidence
    if not isinstance(known, PassConfidence):
        passes = Passes(block, BUDGET // (64 * block.dim))
        known = PassConfidence(passes, passes.as_labelled(None))  # that all sites are alike
    groups = Groups(*_of_sites(known, alignment, known.examined()))
    if alignment is not None:
        groups.everywhere = block.site, alignment.labels
    return groups


def _of_sites(
    confidence: PassConfidence, alignment: Alignment | None, sites: Int[np.ndarray, " some"]
) -> tuple[Block, Alignment]:
    """Return some sites of a table, and their matching, as if they were all."""
    block, clustering, places = confidence.of_sites(sites)
    labels = clustering.labels
    if alignment is not None:
        used = confidence.passes.table.used
        labels = alignment.labels[places if used.all() else np.flatnonzero(used)[places]]
    own = Alignment(
        matching=block.by_site(labels),
        components=len(confidence.result.counts),
        cost=clustering.misfit,
        trace=(),
        confidence=Confidence(clustering, {}, confidence.free),
        rows=np.arange(len(labels)),
    )
    return block, own


def _of_block(groups: Groups, level: float) -> Iterator[Doubt]:
    """Yield doubts about one block, but for those about sites that differ."""
    yield from few_records(groups.block)
    if groups.alignment is not None and groups.free:
        yield from strangers(groups, level)
        yield from may_be_one(groups, level)
        yield from likelier_elsewhere(groups)


def of_matching(alignment: Alignment, place: str = "") -> Iterator[Doubt]:
    """Yield doubts about what is determined by less than :data:`.confidence.AMBIGUOUS` nats; none
    about a known matching.
    """
    confidence = alignment.confidence
    if alignment.known or confidence is None:
        return
    if not alignment.identified:
        yield doubt(Kind.SCALE, place=place)
    if isinstance(confidence, EffectsConfidence):
        yield doubt(Kind.FAR, place=place)
    if not alignment.judged:
        yield doubt(Kind.UNJUDGED, place=place)
    other = confidence.runner_up
    if other and other[1] < AMBIGUOUS:
        by = f"only {other[1]:.1f} nats worse" if other[1] >= 0 else f"{-other[1]:.1f} nats better"
        yield doubt(Kind.NUMBER, other[1], other=other[0], by=by, place=place)
    unsure = alignment.ambiguous()
    if unsure:
        site, component, margin = unsure[0]
        facts: Any = {"count": len(unsure), "matched": int((alignment.labels >= 0).sum())}
        facts |= {"least": AMBIGUOUS, "margin": round(margin, 1) + 0.0}  # no negative zero
        yield doubt(Kind.MATCH, margin, site, component, place=place, **facts)
