"""Confidence in a matching in passes, and merging of components within sites, part by part like a
clustering in memory.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator

import numpy as np

from posterity.arrays.canonical import content_hashes
from posterity.arrays.typing import Bool, Int
from posterity.families import ExponentialFamily
from posterity.families.normal_wishart import NormalPrecision
from posterity.fusion.absorb import Absorbing
from posterity.fusion.block_table import HASH
from posterity.fusion.blocks import Block, population
from posterity.fusion.clustering import Clustering, packed
from posterity.fusion.components import LocalComponents
from posterity.fusion.confidence import Confidence
from posterity.fusion.geometry import Centroids, moved, opposite
from posterity.fusion.judged import Judged
from posterity.fusion.passes import Passes, PassResult
from posterity.fusion.rows import GroupSums, Rows
from posterity.fusion.search import SearchResult

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Part(Clustering):
    """Some sites' components, in groups with the statistics of all sites."""

    whole: "PassConfidence"

    counts = property(operator.attrgetter("whole.result.counts"))  # pyright: ignore
    centroids = property(operator.attrgetter("whole.centroids"))  # pyright: ignore
    judged = property(operator.attrgetter("whole.judged"))  # pyright: ignore


class PassConfidence(Confidence):
    """Confidence in a matching in passes: of the number of components, that of the ``clustering``
    of the sample; of single matches, by further passes.
    """

    def __init__(
        self,
        passes: Passes,
        result: PassResult,
        found: SearchResult | None = None,
        free: bool = False,
    ):
        self.passes = passes
        self.result = result
        clustering = passes.in_sample(result) if found is None else found.clustering
        super().__init__(clustering, {} if found is None else found.levels, free)

    @functools.cached_property
    def centroids(self) -> Centroids:
        """The average of the matched coordinates of each group."""
        return self.passes.centroids(self.result.matched)

    @functools.cached_property
    def judged(self) -> Judged:
        """The statistics by which the number of groups is judged, from one more pass."""
        near = self.passes.near
        counts = self.result.counts
        sums = GroupSums(len(counts), near.traits(slice(1)).shape[1])
        total = 0.0
        shape = 0.0
        for part in self.parts:
            sums.add(part.local.traits(), part.labels)
            total += part.local.totals[0]
            shape += part.local.totals[1]
        along = self.clustering.judged.along
        return Judged.of(sums.means, near.evidence(sums.means), counts, total, shape, along)

    def part(self, rows: Array, starts: Int[Array, " bounds"], labels: Array) -> Part:
        """Return some sites' components in the groups, and with the population, of all sites."""
        near = self.passes.near
        table = self.passes.table
        points = table.points(rows, near.points)
        local = LocalComponents(points, starts, table.origin, self.passes.numbers)
        every = {"sites": len(table.keys), "total": self.number}
        known = dict(_populations=near._populations, _unequal=near._unequal)
        vars(local).update(known, criterion=dataclasses.replace(near.criterion, **every))
        if near.shapes is not None:
            vars(local)["typical"] = near.typical
        return Part(local, labels.astype(int), self)

    @property
    def parts(self) -> Iterator[Part]:
        """All components, some sites at a time."""
        for block in self.passes.store.blocks():
            yield self.part(block.rows, block.starts, self.result.labels[block.span])

    @property
    def number(self) -> int:
        """Number of components of all sites."""
        return len(self.passes.store)

    def examined(self) -> Int[Array, " some"]:
        """Return the sites that warnings are about, whatever the order of sites: a sample, and
        those with a component that is furthest from its group, half of them each; together about
        as many as the sample that was matched.
        """
        table = self.passes.table
        most = self.passes.most // 2
        furthest = [np.maximum.reduceat(p.own_costs, p.local.starts[:-1]) for p in self.parts]
        worst = np.lexsort((table.keys, -np.concatenate(furthest)))
        few = np.searchsorted(np.cumsum(self.passes.store.sizes[worst]), most, side="right")
        return np.union1d(table.ranked(most), worst[: max(few, 1)])

    def of_sites(self, sites: Int[Array, " some"]) -> tuple[Block, Clustering, Int[Array, " n"]]:
        """Return some sites as a block in memory, their clustering, and the place of each of their
        components in the table.
        """
        rows, starts, places = self.passes.table.rows_of(sites)
        labels = packed(self.result.labels[places])
        local = self.part(rows, starts, labels).local
        return _where_they_were(self.passes, rows, sites), Clustering(local, labels), places


def within_sites(passes: Passes, into: Int[Array, " all"]) -> None:
    """Merge components that are one by their own site's evidence, before the matching. In the
    table, unions replace their parts; ``into`` (N,), the component that absorbed each one, is
    changed in place.
    """
    store = passes.store
    passes.population = _population(passes)
    parts = np.arange(len(store), dtype=into.dtype)
    for rows in store.blocks():
        own = np.arange(len(rows.rows))
        found = Absorbing.within_sites(_piece(passes, rows), own)
        parts[rows.span] += found.into - own
    joined(passes, parts, into)


def joined(passes: Passes, parts: Int[Array, " n"], into: Int[Array, " all"]) -> Bool[Array, " n"]:
    """Replace parts by unions in the table and in ``into``; return a mask of the remaining rows.
    ``parts`` has, for each row, the row that absorbed it, or its own index.
    """
    table = passes.table
    kept = parts == np.arange(len(parts), dtype=into.dtype)
    if kept.all():
        return kept
    for rows in passes.store.blocks():
        if kept[rows.span].all():
            continue
        own = Absorbing(_piece(passes, rows), parts[rows.span] - rows.row)
        hosts = np.unique(own.into[~own.whole])
        new = rows.rows.copy()
        dim = table.dim
        union = new[hosts]
        union[:, :dim] = moved(own.members[hosts], table.origin).natural_parameters
        union[:, HASH - 1] = own.counts[hosts]
        union[:, HASH] = content_hashes(union[:, :dim]).view(float)
        new[hosts] = table.completed(union, None)
        sizes = np.add.reduceat(own.whole, rows.starts[:-1], dtype=int)
        passes.store.replace(rows, new[own.whole], sizes)
    host = np.arange(len(into), dtype=into.dtype)
    everyone = np.flatnonzero(table.used)
    host[everyone] = everyone[parts]
    into[:] = host[into]
    table.used = table.used.copy()
    table.used[everyone[~kept]] = False
    passes.count()
    return kept


def _population(passes: Passes) -> ExponentialFamily | None:
    """Return the population of normal components (:func:`.blocks.population`) from the sample,
    which depends on contents alone: not on the order of sites, nor on the blocks of the store.
    """
    table = passes.table
    rows = passes.sample.rows
    members = moved(table.natural(rows), opposite(table.origin))
    if not isinstance(members, NormalPrecision) or not table.priors.exchangeable.any():
        return None
    return population(members, rows[:, HASH - 1], table.priors)


def _piece(passes: Passes, rows: Rows) -> Block:
    """Return some sites of a table as a block."""
    return _where_they_were(passes, rows.rows, np.arange(rows.sites.start, rows.sites.stop))


def _where_they_were(passes: Passes, rows: Array, sites: Int[Array, " some"]) -> Block:
    """Return rows of some sites as a block, moved back from the table's origin, with the population
    of all sites if it was computed.
    """
    table = passes.table
    block = table.block(rows, sites)
    members = moved(block.members, opposite(table.origin))
    block = dataclasses.replace(block, members=members, origin=None)
    if passes.population is not None:
        vars(block)["population"] = passes.population
    return block
