"""Which component of which site is which fused one, for one plate."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.absorb import Absorbing, first_of_site
from posterity.fusion.block_table import BlockTable, ValuesBySite, group_totals
from posterity.fusion.blocks import Block
from posterity.fusion.confidence import AMBIGUOUS, Confidence
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.geometry import Divergence
from posterity.fusion.judged_passes import PassConfidence, Whole, absorbed
from posterity.fusion.matching import Matched, Matching, check_components, match, member_hashes
from posterity.fusion.passes import Passes
from posterity.fusion.refusals import check_held

Array = np.ndarray
SAMPLED = 24
"""The share of the budget that the parameters of a sample may take: matching them takes ten times
their memory."""
LEAST = 1000
"""Components of a sample, however small the budget."""
NO_SCALE = (
    "Gaussian posteriors of two sites have no scale by which to tell components that differ "
    "between the sites from components that they do not share"
)


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The matching of one plate.

    ``matching`` has, by site, the fused component of each local one, -1 where the local one
    held no data; ``cost`` is the summed divergence to the centroids in nats, ``trace`` the
    objective after each accepted change; ``known`` says whether labels were given and not found,
    ``judged`` whether the number of components was given, or compared with others;
    ``confidence`` is how sure the matching is, of components in an order in which ``rows`` has
    their places, by site. ``into`` has, by site, the local component that
    each one is part of: its own index, but where it was absorbed.
    """

    matching: Mapping[str, Int[Array, " k"]]
    components: int
    cost: float
    trace: tuple[float, ...]
    known: bool = False
    judged: bool = True
    confidence: Confidence | None = dataclasses.field(default=None, repr=False)
    rows: Mapping[str, Int[Array, " k"]] = dataclasses.field(default_factory=dict, repr=False)
    into: Mapping[str, Int[Array, " k"]] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def labels(self) -> Int[Array, " n"]:
        """The matching of all sites in a row."""
        if isinstance(self.matching, ValuesBySite):
            return self.matching.values_of_all
        return np.concatenate(list(self.matching.values()))

    @property
    def absorbed(self) -> dict[str, tuple[int, ...]]:
        """The local components of each site that were found to be part of another of its own.

        Sites without any are left out.
        """
        found = {
            site: tuple(np.flatnonzero(into != np.arange(len(into))).tolist())
            for site, into in self.into.items()
        }
        return {site: parts for site, parts in found.items() if parts}

    @functools.cached_property
    def margins(self) -> dict[str, Float[Array, " k"]]:
        """By site, the nats that speak for each component's place against the next best one.

        What the description length would rise by if this one component were in another group,
        changing places with its own site's where that holds one, or in a group of its own;
        infinite where it can be nowhere else, NaN where it is matched with nothing or absorbed.
        """
        if self.confidence is None:
            return {site: np.full(len(labels), np.nan) for site, labels in self.matching.items()}
        found = np.append(self.confidence.margins, np.nan)
        return {site: found[rows] for site, rows in self.rows.items()}

    @functools.cached_property
    def components_evidence(self) -> dict[int, float]:
        """By number of components, the nats by which the best matching found is worse.

        Zero for the number found; empty unless the evidence decided it.
        """
        return {} if self.confidence is None else self.confidence.components

    @property
    def identified(self) -> bool:
        """False where nothing can tell sites that differ from sites that share nothing.

        So it is for Gaussian posteriors, which carry no scale, at two sites whose matched
        components differ by more than they are uncertain.
        """
        return self.confidence is None or self.confidence.identified

    @property
    def left(self) -> float:
        """Nats by which the description would be shorter if one component were elsewhere.

        Zero where none should be, and infinite where that is not known.
        """
        if self.known:
            return 0.0
        if self.confidence is None:
            return np.inf
        return max(0.0, -float(self.confidence.margins.min(initial=0.0)))

    def ambiguous(self) -> list[tuple[str, int, float]]:
        """Site, local component and margin of each match below 3 nats, the least sure first."""
        rows = [
            (site, int(k), float(own[k]))
            for site, own in self.margins.items()
            for k in np.flatnonzero(own < AMBIGUOUS)
        ]
        return sorted(rows, key=lambda row: row[2])

    def reasons(self) -> list[str]:
        """In words, what the matching hangs on by less than 3 nats; nothing if it was given."""
        if self.known:
            return []
        if self.confidence is None:
            return ["how sure the matches are was not looked for"]
        said = [] if self.identified else [NO_SCALE]
        if not self.judged:
            said.append("the number of components was not compared with others")
        other = self.confidence.runner_up
        if other and other[1] < AMBIGUOUS:
            said.append(f"{other[0]} components are only {other[1]:.1f} nats worse")
        if unsure := self.ambiguous():
            (site, component, margin), matched = unsure[0], (self.labels >= 0).sum()
            said.append(
                f"less than {AMBIGUOUS:g} nats better than the next best are {len(unsure)} of "
                f"{matched} matches, component {component} of {site!r} the least ({margin:.1f})"
            )
        return said


def align(
    block: Block | BlockTable,
    matching: Matching,
    divergence: Divergence | Discrepancy,
    components: int | None,
    importance: Float[Array, " sites"],
    absorb: bool = False,
    given: Int[Array, " n"] | None = None,
    budget: int = 0,
) -> Alignment:
    """Match the components of all sites' plates, and number them by weight.

    With ``absorb``, a site's components that are one (:mod:`.absorb`) are matched as one. Labels
    that are ``given`` for ``Matching.IDENTITY`` stay as they are. Rows of a table are gone through
    in passes, with samples that ``budget`` bytes have room for.

    Raises:
        UsageError: a site without data, or a number of components that cannot be.
    """
    free = matching is Matching.EVIDENCE and components is None
    if not isinstance(block, Block):
        found = _in_passes(block, matching, components, absorb and free, given, budget)
    else:
        found = _in_memory(block, matching, divergence, components, absorb and free, given)
    labels = found.labels
    if matching is not Matching.IDENTITY:
        labels = _by_weight(block, labels, importance)
    return Alignment(
        matching=block.by_site(labels),
        components=int(labels.max()) + 1,
        cost=found.cost,
        trace=tuple(found.trace),
        known=matching is Matching.IDENTITY,
        judged=matching is not Matching.KL_FUSION or components is not None,
        confidence=found.confidence,
        rows=block.by_site(found.rows),
        into={} if found.into is None else block.by_site(found.into - first_of_site(block)),
    )


class _Aligned(NamedTuple):
    """A matching of N components: ``labels``; ``rows``, their places in what the confidence knows,
    -1 for none; and ``into``, the component that each is part of.
    """

    labels: Int[Array, " n"]
    rows: Int[Array, " n"]
    into: Int[Array, " n"] | None
    cost: float
    trace: Sequence[float]
    confidence: Confidence


def _in_memory(
    block: Block,
    matching: Matching,
    divergence: Divergence | Discrepancy,
    components: int | None,
    absorb: bool,
    given: Int[Array, " n"] | None,
) -> _Aligned:
    every = np.ones_like(block.used) if matching is Matching.IDENTITY else block.used
    used = every if given is None else given >= 0

    def matched(parts: Absorbing, rows: Array) -> Matched:
        held = np.bincount(block.site[rows], minlength=len(block.names))
        check_held(
            [block.names[index] for index in np.flatnonzero(held == 0).tolist()], block.place
        )
        starts, own = np.cumsum([0, *held]), None if given is None else given[rows]
        counts, members = parts.counts[rows], parts.members[rows]
        return match(members, starts, matching, divergence, components, counts, own)

    parts, left = Absorbing.of(block), np.flatnonzero(used)
    result = matched(parts, left)
    while absorb and (more := parts.more(result, left)) is not None:
        parts, left = more, np.flatnonzero(used & more.whole)
        result = matched(parts, left)
    found = result.found
    labels, rows = np.full(len(used), -1), np.full(len(used), -1)
    labels[left], rows[left] = result.labels, result.rows
    labels[used] = labels[parts.into[used]]
    cost = found.clustering.misfit if found.cost is None else found.cost
    free = matching is Matching.EVIDENCE and components is None and not found.joined
    confidence = Confidence(found.clustering, found.levels, free)
    return _Aligned(labels, rows, parts.into, cost, found.trace, confidence)


def _in_passes(
    table: BlockTable,
    matching: Matching,
    components: int | None,
    absorb: bool,
    given: Int[Array, " n"] | None,
    budget: int,
) -> _Aligned:
    if given is not None:
        site = np.repeat(np.arange(len(table.sizes)), table.sizes)
        held = np.bincount(site[table.used & (given >= 0)], minlength=len(table.sizes))
        check_held([table.names[k] for k in np.flatnonzero(held == 0).tolist()], table.place)
        table.keep(given[table.used] >= 0)
        given = given[table.used]
    else:
        check_components(table.store.sizes, matching, components)
    passes = Passes(table, max(LEAST, budget // (SAMPLED * 8 * table.layout.dim)))
    into = np.arange(len(table.used))
    if matching is Matching.IDENTITY:
        result, trace = passes.as_labelled(given)
    elif matching is Matching.HUNGARIAN:
        result, trace = passes.permute()
    else:
        result, trace = passes.search(components)
        while absorb and (more := absorbed(passes, result, into)) is not None:
            result, trace = more
    labels, rows = np.full((2, len(table.used)), -1)
    labels[table.used], rows[table.used] = result.labels, np.arange(len(result.labels))
    part = into != np.arange(len(into))
    labels[part] = labels[into[part]]
    free = matching is Matching.EVIDENCE and components is None
    levels = dict(zip(range(len(result.counts) + len(trace) - 1, 0, -1), trace, strict=False))
    confidence = PassConfidence.of(Whole(passes, result), levels, free)
    some = into if part.any() else None
    return _Aligned(labels, rows, some, passes.misfit(result), trace, confidence)


def _by_weight(block: Block | BlockTable, labels: Array, importance: Array) -> Array:
    """Numbered so that the heaviest component comes first; ties by content."""
    groups = int(labels.max()) + 1
    weights = lambda piece: (piece.at_components(importance) * piece.counts)[:, None]
    weight = group_totals(block, labels, groups, weights)[:, 0]
    content = np.zeros(groups, np.uint64)
    if len(np.unique(weight)) < groups:
        # A sum of hashes is one of what a group holds, in whatever order.
        for piece, own in block.pieces(labels):
            np.add.at(content, own[own >= 0], member_hashes(piece.members)[own >= 0])
    rank = np.full(groups + 1, -1)  # the last is that of -1
    rank[np.lexsort((content, -weight))] = np.arange(groups)
    return rank[labels]
