"""Matching the components of more sites than memory holds: passes that keep only sums.

The default search clusters a sample; one pass gives every component to a group of the sample's and
collects what fits nowhere, which is clustered by the same search and opens groups of its own; then
centroids and assignments alternate, and groups that are not needed are dissolved, as the objective
says. What is in memory of a component is its label.
"""

import dataclasses

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.block_table import BlockTable, Layout, gather, ranked
from posterity.fusion.clustering import LocalComponents, assign
from posterity.fusion.geometry import Centroids, of_places
from posterity.fusion.group_sums import ExactGroupSums, GroupSums
from posterity.fusion.rows import Rows
from posterity.fusion.search import price_of_a_group, search

Array = np.ndarray
COSTS = 2**22
"""Divergences that are in memory at a time."""
SETTLED = 1e-4
"""Share of the misfit by which a sweep has to lower it, or there is no other."""
ROUNDS = 16
"""Times that groups are opened for what fits nowhere."""


@dataclasses.dataclass(frozen=True)
class PassResult:
    """All components under one assignment, and the sums of the groups that it makes.

    Attributes:
        labels: (N,) group of each component, -1 for what fits nowhere.
        counts: (G,) components of each group.
        natural, matched: (G, D) averages of natural parameters, and of what is matched.
        loss: (G,) rise of the misfit if a group's components went to their second choice.
        second: (N,) where each component would go if its group were dissolved.
        worst: the coordinates of what fits its group worst.
    """

    labels: Int[Array, " n"]
    counts: Float[Array, " g"]
    natural: Float[Array, "g dim"]
    matched: Float[Array, "g dim"]
    loss: Float[Array, " g"]
    second: Int[Array, " n"]
    worst: Float[Array, " dim"]


class Passes:
    """The components of one block of all sites, in a table that is gone through as often as needed.

    About ``sample`` components are clustered in memory at a time; as many make up the first groups,
    and the population.
    """

    def __init__(self, table: BlockTable, sample: int):
        self.table, self.store, self.layout, self.most = table, table.store, table.layout, sample
        self._sampled = ranked(table.keys, self.store.sizes, sample)
        some = gather(self.store, table.keys, self._sampled)
        table.origin = _origin(self.layout.natural(some.rows))
        for block in self.store.blocks():
            self.store.replace(block, self.layout.completed(block.rows, table.origin))
        self.count()

    def count(self) -> None:
        """Look again at what the table holds: its sample, and the sums of its potentials."""
        self.sample = gather(self.store, self.table.keys, self._sampled)
        self.near = self.local(self.sample.rows, self.sample.starts)
        sums, columns = ExactGroupSums(1, 2), [self.layout.dim, self.layout.matched.stop]
        for block in self.store.blocks():
            sums.add(block.rows[:, columns], np.zeros(len(block.rows), int))
        self.potentials: Array = sums.totals[0]
        sites, total = len(self.table.keys), len(self.store)
        self.criterion = dataclasses.replace(self.near.criterion, sites=sites, total=total)

    # --- what an assignment is worth -------------------------------------------------------------

    def centroids(self, coordinates: Float[Array, "g dim"]) -> Centroids:
        """Groups at these coordinates."""
        return self.near.points.centroids(coordinates)

    def misfit(self, sweep: PassResult) -> float:
        """Summed divergence of components to their centroids, in nats."""
        potential = self.centroids(sweep.matched).potential
        return max(float(self.potentials[1] - sweep.counts @ potential), 0.0)

    def objective(self, sweep: PassResult) -> float:
        """Description length, in nats, as of :attr:`Clustering.objective`.

        What components differ from their group in shape is that of the sample, for as many.
        """
        return self._judged(sweep, np.arange(len(sweep.counts)), sweep.counts, 0.0)

    def _judged(self, sweep: PassResult, groups: Array, counts: Array, more: float) -> float:
        """That of some groups with other counts, and so much more misfit."""
        centroids = self.near.judged.centroids(sweep.natural)
        misfit = max(float(self.potentials[0] - sweep.counts @ centroids.potential), 0.0)
        surprise, shape = self.near.surprise(centroids)[groups], self._shape(sweep)
        return float(self.criterion.length(misfit + more, shape, surprise, counts))

    def _shape(self, sweep: PassResult) -> float:
        """The part of the misfit that is left once all lie in one place."""
        shapes = self.near.shapes
        if shapes is None:
            return 0.0
        sums = GroupSums(len(sweep.counts), shapes.coordinates.shape[1])
        sums.add(shapes.coordinates, sweep.labels[self.sample.places])
        seen = sums.counts > 0
        potential = shapes.potential_at(sums.totals[seen] / sums.counts[seen, None])
        found = max(float(shapes.potential.sum() - sums.counts[seen] @ potential), 0.0)
        spare = max(len(shapes) - int(seen.sum()), 1)
        return found * (len(self.store) - len(sweep.counts)) / spare

    # --- passes ----------------------------------------------------------------------------------

    def sweep(
        self, coordinates: Float[Array, "g dim"], price: float = np.inf, *, second: bool = True
    ) -> PassResult:
        """Each site's best assignment to groups at these coordinates, and the new sums.

        What differs from all groups by more than the ``price`` is given to none. Without the
        ``second`` choices nothing is found out about what it would cost to dissolve a group.
        """
        centroids = self.centroids(coordinates)
        sums = _Accumulator(len(self.store), len(coordinates), self.layout)
        for block in self.store.blocks():
            for part in block.parts(max(1, COSTS // len(coordinates))):
                costs = self.layout.points(part.rows, self.near.points).divergences(centroids)
                labels = assign(costs, part.starts, price)
                labels[labels == len(coordinates)] = -1
                sums.add(part, labels, costs if second else None)
        return sums.result()

    def refine(self, sweep: PassResult, *, sweeps: int = 8) -> PassResult:
        """Alternate assignment and centroids at a fixed number of groups; the misfit only falls.

        What comes back knows of second choices.
        """
        misfit = self.misfit(sweep)
        for _ in range(sweeps):
            proposal = self.sweep(sweep.matched)
            before, misfit = misfit, self.misfit(proposal)
            if not proposal.counts.all() or misfit > before * (1 + 1e-12):
                return dataclasses.replace(sweep, loss=proposal.loss, second=proposal.second)
            sweep = proposal
            if misfit >= before * (1 - SETTLED):
                break
        return sweep

    def local(
        self, rows: Float[Array, "n width"], starts: Int[Array, " bounds"]
    ) -> LocalComponents:
        """Rows of some sites, as what is clustered in memory."""
        return LocalComponents(self.layout.points(rows), starts)

    def search(self, components: int | None) -> tuple[PassResult, list[float]]:
        """The best clustering, and how the objective fell on the way to it."""
        seed = search(self._seeds(components), components).clustering
        if components is not None:
            sweep = self.refine(self._filled(self.sweep(seed.centroids.coordinates)))
            return sweep, [self.objective(sweep)]
        return self.fewer(
            self.refine(self._open(seed.centroids.coordinates, price_of_a_group(seed)))
        )

    def fixed(self, coordinates: Float[Array, "g dim"]) -> PassResult | None:
        """The best assignment to about so many groups; None if some stay without members."""
        found = self.sweep(coordinates)
        return self.refine(found, sweeps=4) if found.counts.all() else None

    def _seeds(self, components: int | None) -> LocalComponents:
        """A sample in which so many components can be told apart."""
        if (components or 0) <= len(self.sample.places):
            return self.near
        few = ranked(self.table.keys, self.store.sizes, 2 * (components or 0))
        return self.local(*gather(self.store, self.table.keys, few)[:2])

    def permute(self) -> tuple[PassResult, list[float]]:
        """A permutation a site, from the first in canonical order on."""
        sweep = self.sweep(self.near.points.coordinates[: self.store.sizes[0]])
        refined = self.refine(sweep)
        return refined, [self.misfit(sweep), self.misfit(refined)]

    def as_labelled(self, given: Int[Array, " n"] | None) -> tuple[PassResult, list[float]]:
        """The labels that are given, or else each site's components in the order that they have."""
        groups = int(self.store.sizes.max() if given is None else given.max() + 1)
        sums = _Accumulator(len(self.store), groups, self.layout)
        for block in self.store.blocks():
            own = np.arange(len(block.rows)) - np.repeat(block.starts[:-1], np.diff(block.starts))
            sums.add(block, own if given is None else given[block.span])
        found = sums.result()
        return found, [self.misfit(found)]

    def _filled(self, sweep: PassResult) -> PassResult:
        """Groups that nobody uses move to what fits its group worst."""
        for _ in range(len(sweep.counts)):
            empty = np.flatnonzero(sweep.counts == 0)
            if not len(empty):
                break
            coordinates = sweep.matched.copy()
            coordinates[empty[0]] = sweep.worst
            sweep = self.sweep(coordinates)
        return sweep

    def _open(self, coordinates: Float[Array, "g dim"], price: float) -> PassResult:
        """Everything assigned, in groups of the seed's or in groups that were opened."""
        for _ in range(ROUNDS):
            sweep = self.sweep(coordinates, price, second=False)
            outliers = sweep.labels < 0
            kept = sweep.counts > 0
            if not outliers.any():
                return without_groups(sweep, ~kept)
            found, all_of_them = self._among(outliers)
            coordinates = np.concatenate([sweep.matched[kept], found])
            if all_of_them:
                break
        sweep = self.sweep(coordinates)
        return without_groups(sweep, sweep.counts == 0)

    def _among(self, outliers: Array) -> tuple[Float[Array, "more dim"], bool]:
        """Groups of what fits nowhere, or of a bounded part of it: the largest sites first."""
        ends = np.concatenate([[0], np.cumsum(outliers)])
        bounds = np.concatenate([[0], np.cumsum(self.store.sizes)])
        many = np.diff(ends[bounds])
        sites = np.flatnonzero(many)
        sites = sites[np.lexsort((self.table.keys[sites], -many[sites]))]
        most = max(1, int(np.searchsorted(np.cumsum(many[sites]), self.most, side="right")))
        local = self.local(*gather(self.store, self.table.keys, sites[:most], outliers)[:2])
        return search(local).clustering.centroids.coordinates, most >= len(sites)

    def fewer(self, sweep: PassResult) -> tuple[PassResult, list[float]]:
        """Without the groups that are not needed, one after the other."""
        trace = [self.objective(sweep)]
        while len(sweep.counts) > self.store.sizes.max():
            gone = int(sweep.loss.argmin())
            if self._hopeless(sweep, gone, trace[-1]):
                break
            smaller = self.fixed(np.delete(sweep.matched, gone, axis=0))
            if smaller is None:
                break
            if (objective := self.objective(smaller)) >= trace[-1]:
                break
            sweep = smaller
            trace.append(objective)
        return sweep, trace

    def _hopeless(self, sweep: PassResult, gone: int, best: float) -> bool:
        """Whether dissolving a group cannot pay, told without a pass.

        Centroids that follow their new members take back half of the rise of the misfit at most,
        where no group takes in more members than it had.
        """
        others = np.delete(np.arange(len(sweep.counts)), gone)
        more = np.bincount(sweep.second[sweep.labels == gone], minlength=len(sweep.counts))
        if (more > sweep.counts)[others].any():
            return False
        counts = (sweep.counts + more)[others]
        return self._judged(sweep, others, counts, sweep.loss[gone] / 2) >= best


class _Accumulator:
    """What a pass adds up."""

    def __init__(self, rows: int, groups: int, layout: Layout):
        self.layout, kind = layout, np.int16 if groups < 2**15 else np.int32
        self.labels, self.second = np.empty(rows, kind), np.zeros(rows, kind)
        self.sums = GroupSums(groups, layout.dim * (1 + layout.forward))
        self.loss, self.worst, self.cost = np.zeros(groups), np.zeros(layout.dim), -np.inf

    def add(self, part: Rows, labels: Array, costs: Array | None = None) -> None:
        """Some sites, assigned; the costs are used up."""
        self.labels[part.span], layout = labels, self.layout
        values = part.rows[:, layout.matched]
        if layout.forward:
            values = np.hstack([part.rows[:, : layout.dim], values])
        self.sums.add(values, labels)
        if costs is not None and costs.shape[1] > 1 and (kept := np.flatnonzero(labels >= 0)).size:
            self._choose_again(part, labels[kept], costs, kept)

    def _choose_again(self, part: Rows, labels: Array, costs: Array, kept: Array) -> None:
        own = costs[kept, labels]
        if own.max() > self.cost:
            self.cost = own.max()
            self.worst = part.rows[kept[own.argmax()], self.layout.matched].copy()
        costs[kept, labels] = np.inf
        second = costs.argmin(1)[kept]
        self.second[part.row + kept] = second
        self.loss += np.bincount(labels, costs[kept, second] - own, len(self.loss))

    def result(self) -> PassResult:
        """The pass, when it has seen all."""
        counts, dim = self.sums.counts, self.layout.dim
        means = self.sums.totals / np.maximum(counts, 1.0)[:, None]
        loss, natural, matched = self.loss, means[:, :dim], means[:, -dim:]
        return PassResult(self.labels, counts, natural, matched, loss, self.second, self.worst)


def without_groups(sweep: PassResult, gone: Array) -> PassResult:
    """The same without some groups that have no members."""
    if not gone.any():
        return sweep
    kept = np.flatnonzero(~gone)
    rank = np.cumsum(~gone) - 1
    return dataclasses.replace(
        sweep,
        labels=rank.astype(sweep.labels.dtype)[sweep.labels],
        counts=sweep.counts[kept],
        natural=sweep.natural[kept],
        matched=sweep.matched[kept],
        loss=sweep.loss[kept],
        second=np.maximum(rank, 0).astype(sweep.second.dtype)[sweep.second],
    )


def _origin(members: ExponentialFamily) -> object:
    """The middle of the members, or None where the origin lies amid them already."""
    place = members.location()
    amid: list[bool] = []
    of_places(lambda x: amid.append(bool((np.abs(x.mean(0)) <= x.std(0)).all())), place)
    return None if all(amid) else of_places(lambda x: x.mean(0), place)
