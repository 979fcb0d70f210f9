"""What was matched in passes, seen part by part as a clustering in memory is: how sure it is, and
which components are parts of others of their site.
"""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from posterity.arrays.canonical import content_hashes
from posterity.arrays.typing import Float, Int
from posterity.fusion.absorb import Absorbing
from posterity.fusion.block_table import HASH
from posterity.fusion.clustering import Clustering, Evidence, Judged, LocalComponents
from posterity.fusion.confidence import NEIGHBOURS, Confidence
from posterity.fusion.geometry import Centroids, moved, opposite
from posterity.fusion.group_sums import GroupSums
from posterity.fusion.matching import Matched
from posterity.fusion.passes import Passes, PassResult, without_groups
from posterity.fusion.search import Found

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Whole:
    """All components under one assignment; only sums of them are in memory."""

    passes: Passes
    result: PassResult

    @functools.cached_property
    def centroids(self) -> Centroids:
        """The average of each group, of what was matched."""
        return self.passes.centroids(self.result.matched)

    @functools.cached_property
    def judged(self) -> Judged:
        """What the number of groups is judged by, from one more pass."""
        near, counts, shape = self.passes.near, self.result.counts, 0.0
        width = near.traits(slice(1)).shape[1]
        sums = GroupSums(len(counts), width)
        for block in self.passes.store.blocks():
            local = self.local(block.rows, block.starts)
            sums.add(local.traits(), self.result.labels[block.span].astype(int))
            shape += local.shape_potential
        centres = sums.means
        evidence: Evidence = near.evidence(centres)
        misfit = float(self.passes.potentials[0] - counts @ evidence.potential)
        return Judged(
            centres, evidence, max(misfit, 0.0), max(float(shape - counts @ evidence.shape), 0.0)
        )

    @functools.cached_property
    def objective(self) -> float:
        """Description length, in nats."""
        judged, criterion = self.judged, self.passes.criterion
        surprise = judged.evidence.surprise
        return float(criterion.length(judged.misfit, judged.shape, surprise, self.result.counts))

    def local(self, rows: Array, starts: Int[Array, " bounds"]) -> LocalComponents:
        """Components of some sites, judged against the population and sites of all."""
        passes = self.passes
        local = LocalComponents(passes.layout.points(rows, passes.near.points), starts)
        vars(local).update(_population=passes.near._population, criterion=passes.criterion)
        return local

    def part(self, rows: Array, starts: Int[Array, " bounds"], labels: Array) -> "Part":
        """Some sites' components in the groups of all."""
        return Part(self.local(rows, starts), labels.astype(int), self)

    @property
    def parts(self) -> Iterator["Part"]:
        """All components, some sites at a time."""
        for block in self.passes.store.blocks():
            yield self.part(block.rows, block.starts, self.result.labels[block.span])


@dataclasses.dataclass(frozen=True)
class Part(Clustering):
    """Some sites' components in groups whose sums are those of all sites' components."""

    whole: Whole

    counts = property(lambda self: self.whole.result.counts)  # pyright: ignore
    centroids = property(lambda self: self.whole.centroids)  # pyright: ignore
    judged = property(lambda self: self.whole.judged)  # pyright: ignore
    objective = property(lambda self: self.whole.objective)  # pyright: ignore


@dataclasses.dataclass(frozen=True)
class PassConfidence(Confidence):
    """How sure a matching in passes is: as of one in memory, by further passes when it is asked."""

    whole: Whole

    @classmethod
    def of(cls, whole: Whole, levels: dict[int, float], free: bool) -> "PassConfidence":
        """For the groups of all; the components of the sample stand for them."""
        sample = whole.passes.sample
        labels = whole.result.labels[sample.places]
        return cls(whole.part(sample.rows, sample.starts, labels), levels, free, whole)

    @property
    def parts(self) -> Iterator[Part]:
        """All components, some sites at a time."""
        return self.whole.parts

    @property
    def objective(self) -> float:
        """As passes compute it."""
        return self.whole.passes.objective(self.whole.result)

    def neighbours(self) -> Iterator[tuple[int, float]]:
        """By dissolving the group that costs least, or founding one where something fits worst."""
        passes = self.whole.passes
        for more in (False, True):
            current: PassResult | None = passes.refine(self.whole.result, sweeps=1)
            for _ in range(NEIGHBOURS):
                few = len(current.counts) <= passes.store.sizes.max()  # pyright: ignore
                coordinates = None if few and not more else _neighbour(current, more)
                current = None if coordinates is None else passes.fixed(coordinates)
                if current is None:
                    break
                yield len(current.counts), passes.objective(current)


def _neighbour(result: PassResult | None, more: bool) -> Float[Array, "g dim"]:
    assert result is not None
    if more:
        return np.concatenate([result.matched, result.worst[None]])
    return np.delete(result.matched, int(result.loss.argmin()), axis=0)


def absorbed(
    passes: Passes, result: PassResult, into: Int[Array, " n"]
) -> tuple[PassResult, list[float]] | None:
    """The matching once more, where components that are alone were put into others of their site.

    Their rows are dropped, those of the others replaced by the union, and ``into`` (N,), which has
    the component that each one is part of, is changed in place. None if there are no such.
    """
    table, whole = passes.table, Whole(passes, result)
    alone = np.flatnonzero(result.counts[result.labels] == 1)
    ends = np.cumsum(passes.store.sizes)
    sites = np.unique(np.searchsorted(ends, alone, side="right"))
    if not table.weighted or not len(sites):
        return None
    rows, places = table.rows_of(sites)
    block = table.block(rows, sites)
    block = dataclasses.replace(
        block, members=moved(block.members, opposite(table.origin)), origin=None
    )
    starts = np.concatenate([[0], np.cumsum(block.sizes)])
    part = whole.part(rows, starts, result.labels[places])
    order = np.arange(len(rows))
    matched = Matched(part.labels, Found(part, []), order)
    parts = Absorbing.of(block).more(matched, order, table.origin)
    if parts is None:
        return None
    gone, (hosts, dim) = ~parts.whole, (np.unique(parts.into[~parts.whole]), passes.layout.dim)
    union = rows[hosts]
    union[:, :dim] = moved(parts.members[hosts], table.origin).natural_parameters
    union[:, HASH - 1] = parts.counts[hosts]
    union[:, HASH] = content_hashes(union[:, :dim]).view(float)
    union = passes.layout.completed(union, None)
    everyone = np.flatnonzero(table.used)[places]
    for one, host in zip(everyone[gone], everyone[parts.into[gone]], strict=True):
        into[into == one] = host
    kept = np.ones(len(passes.store), bool)
    kept[places[gone]] = False
    table.keep(kept, dict(zip(places[hosts].tolist(), union, strict=True)))
    passes.count()
    left = np.bincount(result.labels[kept], minlength=len(result.counts)) > 0
    again = passes.sweep(result.matched[left])
    return passes.fewer(passes.refine(without_groups(again, again.counts == 0)))
