"""The matching of one plate: the fused component of each local component."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posterity.arrays.typing import Bool, Float, Int
from posterity.fusion.absorb import Absorbing, of_one_label
from posterity.fusion.block_table import BlockTable, ValuesBySite, group_totals
from posterity.fusion.blocks import Block, check_seen, picked
from posterity.fusion.confidence import AMBIGUOUS, Confidence, EffectsConfidence
from posterity.fusion.criterion import USUAL, DescriptionLength
from posterity.fusion.geometry import Divergence
from posterity.fusion.judged_passes import PassConfidence, joined, within_sites
from posterity.fusion.matching import Matching, check_components, match
from posterity.fusion.passes import Passes, Stages
from posterity.fusion.topics import (
    TopicConfidence,
    are_topics,
    topics_in_memory,
    topics_in_table,
)
from posterity.status import ProgressCallback

Array = np.ndarray
SAMPLED = 24
"""The parameters of a sample may use 1/SAMPLED of the budget: matching needs ten times their
memory, and the sample may double."""
LEAST = 1000  # Least number of components in a sample, for any budget


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The matching of one plate.

    ``matching`` has, by site, the fused component of each local one, or -1 if it was left out;
    ``cost`` is the summed divergence to the centroids in nats; ``trace`` has the objective after
    each accepted change. ``known`` is whether labels were passed; ``judged`` whether the number of
    components was passed or compared with others. ``rows`` (N,) has the place of each component of
    all sites in ``confidence``, and ``into`` (N,) the component that absorbed each one, or its own
    index; None if none was absorbed.
    """

    matching: Mapping[str, Int[Array, " k"]]
    components: int
    cost: float
    trace: tuple[float, ...]
    known: bool = False
    judged: bool = True
    confidence: Confidence | None = dataclasses.field(default=None, repr=False)
    rows: Int[Array, " n"] | None = dataclasses.field(default=None, repr=False)
    into: Int[Array, " n"] | None = dataclasses.field(default=None, repr=False)

    @property
    def labels(self) -> Int[Array, " n"]:
        """The labels (N,) of all sites, concatenated."""
        if isinstance(self.matching, ValuesBySite):
            return self.matching.values_of_all
        return np.concatenate(list(self.matching.values()))

    @property
    def absorbed(self) -> dict[str, tuple[int, ...]]:
        """For each site with any, the local components that were merged into another one of the
        site.
        """
        if self.into is None:
            return {}
        parts = self._by_site(self.into != np.arange(len(self.into)))
        return {
            site: tuple(np.flatnonzero(own).tolist()) for site, own in parts.items() if own.any()
        }

    @functools.cached_property
    def margins(self) -> dict[str, Float[Array, " k"]]:
        """For each site, the nats by which each component's group is better than the next best.

        This is the least rise of the description length if the component moves to another group
        (exchanging places with a component of its site there) or gets a new group. It is infinite
        if no move is possible, and NaN for components that were left out or absorbed.
        """
        if self.confidence is None:
            return self._by_site(np.full(len(self.labels), np.nan))
        return self._by_site(np.append(self.confidence.margins, np.nan)[self.rows])

    def _by_site(self, values: Array) -> dict[str, Array]:
        """Return the values of the components (N,), by site."""
        ends = np.cumsum([len(own) for own in self.matching.values()])
        return dict(zip(self.matching, np.split(values, ends[:-1]), strict=True))

    @functools.cached_property
    def components_evidence(self) -> dict[int, float]:
        """For each number of components, the nats by which the best matching that was tried is
        worse: zero for the chosen number, negative for better ones. Empty if no evidence chose it.
        """
        return {} if self.confidence is None else self.confidence.components

    @property
    def identified(self) -> bool:
        """True if sites that differ can be distinguished from sites that share nothing.

        False for Gaussian posteriors, which have no scale, of two sites whose matched components
        differ by more than their uncertainty.
        """
        return self.confidence is None or self.confidence.identified

    @property
    def left(self) -> float:
        """Nats by which moving one component, or another number of components that was tried, would
        shorten the description: zero at an optimum or for a known matching, infinite if this is
        unknown.
        """
        if self.known:
            return 0.0
        if self.confidence is None:
            return np.inf
        other = self.confidence.runner_up
        least = 0.0 if other is None else other[1]
        return max(0.0, -float(self.confidence.margins.min(initial=least)))

    def ambiguous(self) -> list[tuple[str, int, float]]:
        """Return site, local component and margin of each match below 3 nats, least first; matches
        with margins that are equal to six digits by the site's name, whatever the sites' order.
        """
        rows = [
            (site, int(k), float(own[k]))
            for site, own in self.margins.items()
            for k in np.flatnonzero(own < AMBIGUOUS)
        ]
        return sorted(rows, key=lambda row: (round(row[2], 6), row[0], row[1]))


@dataclasses.dataclass(frozen=True)
class Aligner:
    """Matches the components of a plate at all sites, and numbers fused components by weight.

    ``absorb`` is whether components of a site that are one (:mod:`.absorb`) are merged first;
    ``labels`` (N,) are known labels. For tables, ``budget`` is the memory for samples in bytes,
    ``progress`` is called after each pass, and ``stages`` store the state of the search.
    ``numbers`` are those of the criterion.
    """

    matching: Matching
    divergence: Divergence
    components: int | None
    absorb: bool = False
    labels: Int[Array, " n"] | None = None
    budget: int = 0
    progress: ProgressCallback | None = None
    stages: Stages | None = None
    numbers: DescriptionLength = USUAL

    @property
    def free(self) -> bool:
        """True if the evidence chooses the number of components."""
        return self.matching is Matching.EVIDENCE and self.components is None

    def align(self, block: Block | BlockTable, importance: Float[Array, " sites"]) -> Alignment:
        """Match the components of one plate; raise a UsageError for a site without data, or an
        impossible number of components.
        """
        known = self.matching is Matching.IDENTITY
        seen = block.used if isinstance(block, Block) else block.seen
        wanted = seen | known if self.labels is None else self.labels >= 0
        check_seen(block, wanted)
        find = self._in_memory if isinstance(block, Block) else self._in_passes
        aligned = find(block, wanted)  # pyright: ignore[reportArgumentType]
        labels = aligned.labels
        if not known:
            labels = _by_weight(block, labels, importance)
        return Alignment(
            matching=block.by_site(labels),
            components=int(labels.max()) + 1,
            cost=aligned.cost,
            trace=tuple(aligned.trace),
            known=known,
            judged=self.matching is not Matching.KL_FUSION or self.components is not None,
            confidence=aligned.confidence,
            rows=aligned.rows,
            into=aligned.into,
        )

    def _in_memory(self, block: Block, wanted: Bool[Array, " n"]) -> "_Aligned":
        parts = Absorbing.of(block)
        known = self.labels
        topics = None
        if self._merges(block):
            topics = topics_in_memory(block, self.absorb, self.components)
            parts = Absorbing(block, topics.into)
            known = topics.labels
        elif known is not None:
            parts = Absorbing(block, of_one_label(block.site, known))
        elif self.absorb and self.free and block.weighted:
            parts = Absorbing.within_sites(block, np.flatnonzero(wanted))
        left = np.flatnonzero(wanted & parts.whole)
        starts = np.cumsum([0, *np.bincount(block.site[left], minlength=len(block.names))])
        counts = parts.counts[left]
        members = picked(parts.members, left)
        own = None if known is None else known[left]
        how = self.matching, self.divergence, self.components, counts, own
        matched = match(members, starts, *how, numbers=self.numbers)
        labels, rows = np.full((2, len(wanted)), -1)
        labels[left] = matched.labels
        rows[left] = matched.rows
        labels[wanted] = labels[parts.into[wanted]]
        result = matched.result
        cost = result.clustering.misfit
        confidence = Confidence(result.clustering, result.levels, self.free)
        if result.effects is not None:
            confidence = EffectsConfidence(result.clustering, result.effects)
        if topics is not None:
            confidence = TopicConfidence(confidence, topics)
        return _Aligned(labels, rows, parts.into, cost, result.trace, confidence)

    def _merges(self, block: Block | BlockTable) -> bool:
        """Return whether components are topics, which the evidence of their words merges."""
        if self.matching is not Matching.EVIDENCE or not are_topics(block):
            return False
        check_components(block.sizes, self.matching, self.components)
        return True

    def _in_passes(self, table: BlockTable, wanted: Bool[Array, " n"]) -> "_Aligned":
        if not wanted[table.used].all():
            table.keep(wanted[table.used])
        if self.labels is None:
            check_components(table.store.sizes, self.matching, self.components)
        sample = max(LEAST, self.budget // (SAMPLED * 8 * table.dim), 2 * (self.components or 0))
        passes = Passes(table, sample, self.progress, self.numbers, self.stages)
        # There may be many millions: arrays have 32 bits, and exist only while they are needed.
        merges = self._merges(table)
        topics = None
        found = None
        into = np.arange(len(table.used), dtype=np.int32)
        if merges:
            topics = topics_in_table(table, self.absorb, self.components)
            kept = joined(passes, topics.into, into)
            result = passes.as_labelled(topics.labels[kept])
        elif self.matching is Matching.IDENTITY:
            own = None if self.labels is None else self.labels[table.used]
            if own is not None:
                site = np.repeat(np.arange(len(passes.store.sizes)), passes.store.sizes)
                own = own[joined(passes, of_one_label(site, own), into)]
            result = passes.as_labelled(own)
        elif self.matching is Matching.HUNGARIAN:
            result = passes.permute()
        else:
            if self.absorb and self.free and table.weighted:
                within_sites(passes, into)
            result, found = passes.search(self.components)
        labels = np.full(len(table.used), -1, np.int32)
        labels[table.used] = result.labels
        rows = np.cumsum(table.used, dtype=np.int32) - 1
        rows[~table.used] = -1
        absorbed = into != np.arange(len(into))
        labels[absorbed] = labels[into[absorbed]]
        absorbing = into if absorbed.any() else None
        confidence = PassConfidence(passes, result, found, self.free)
        if topics is not None:
            confidence = TopicConfidence(confidence, topics)
        cost = passes.misfit(result)
        trace = [cost] if found is None else found.trace
        return _Aligned(labels, rows, absorbing, cost, trace, confidence)


class _Aligned(NamedTuple):
    """A matching of N components: ``labels``; ``rows``, their places in ``confidence`` (or -1);
    and ``into``, the component that absorbed each.
    """

    labels: Int[Array, " n"]
    rows: Int[Array, " n"]
    into: Int[Array, " n"] | None
    cost: float
    trace: Sequence[float]
    confidence: Confidence


def _by_weight(block: Block | BlockTable, labels: Array, importance: Array) -> Array:
    """Number groups by weight, in place; ties are ordered by their summed factors, if known."""
    groups = int(labels.max()) + 1
    known = bool(block.priors.exchangeable.all())

    def keys(piece: Block, rows: Array) -> Array:
        weights = piece.at_components(importance) * piece.counts * piece.held
        learnt = picked(piece.members, rows).natural_parameters
        if known:
            learnt = learnt - piece.priors.at(piece.site[rows]).natural_parameters
        return np.column_stack([weights[rows], learnt])

    totals = _to_rounding(group_totals(block, labels, groups, keys))
    rank = np.full(groups + 1, -1, labels.dtype)  # the last entry serves the label -1
    rank[np.lexsort(-totals.T[::-1])] = np.arange(groups)
    return np.take(rank, labels, out=labels, mode="wrap")


def _to_rounding(totals: Float[Array, "g width"]) -> Float[Array, "g width"]:
    """Round sums so that rounding errors of their terms do not affect the order."""
    return np.round(totals / np.maximum(np.abs(totals).max(0), np.finfo(float).tiny), 9)
