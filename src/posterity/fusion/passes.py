"""Matching the components of more sites than memory holds: passes that keep only sums.

The default search clusters a sample; one pass gives every component to a group of the sample's and
collects what fits nowhere, which is clustered by the same search and opens groups of its own; then
centroids and assignments alternate, and groups that are not needed are dissolved, as the objective
says. What is in memory of a component is its label.
"""

import dataclasses

import numpy as np

from posterity.arrays.typing import Float, Int, Num
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import LocalComponents, assign
from posterity.fusion.geometry import Centroids, Divergence, Points, moved, of_places
from posterity.fusion.group_sums import ExactGroupSums, GroupSums
from posterity.fusion.samples import Sample, gather, ranked
from posterity.fusion.search import _price, search
from posterity.fusion.tables import Block, Table

Array = np.ndarray
COSTS = 2**22
"""Divergences that are in memory at a time."""
SETTLED = 1e-4
"""Share of the misfit by which a sweep has to lower it, or there is no other."""
ROUNDS = 16
"""Times that groups are opened for what fits nowhere."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is in which column of a row: natural parameters, their log normaliser, and more.

    Mean parameters with their potential follow if components are matched on these, expected
    observations if sites have mixing weights, and at the end 64 bits of the content, as it came.
    """

    template: ExponentialFamily
    divergence: Divergence
    weighted: bool

    @property
    def dim(self) -> int:
        """Number of parameters of a component."""
        return self.template.dimension

    @property
    def width(self) -> int:
        """Number of columns."""
        return (self.dim + 1) * (1 + self.forward) + self.weighted + 1

    @property
    def counts(self) -> int:
        """The column of expected observations."""
        return self.width - 2

    @property
    def forward(self) -> bool:
        """Whether components are matched on mean parameters."""
        return self.divergence is Divergence.FORWARD

    @property
    def matched(self) -> slice:
        """The columns that are averaged; their potential is in the next one."""
        start = (self.dim + 1) * self.forward
        return slice(start, start + self.dim)

    def natural(self, rows: Float[Array, "n width"]) -> ExponentialFamily:
        """The components themselves."""
        return self.template.with_natural_parameters(rows[:, : self.dim])

    def points(self, rows: Float[Array, "n width"], like: Points | None = None) -> Points:
        """The components as they are matched, centred about the same middle as those they are like.

        So no divergence depends on which components are in one block.
        """
        potential = rows[:, self.matched.stop]
        found = Points(self.template, self.divergence, rows[:, self.matched], potential)
        if like is not None:
            found.__dict__["middle"] = like.middle
        return found

    def prepared(self, rows: Float[Array, "n width"], origin: object) -> Float[Array, "n width"]:
        """Rows as they came, seen from another origin, and with all columns."""
        members, rows = moved(self.natural(rows), origin), rows.copy()
        if origin is not None:
            rows[:, : self.dim] = members.natural_parameters
        rows[:, self.dim] = members.log_normalizer()
        if self.forward:
            rows[:, self.matched] = members.mean_parameters
            rows[:, self.matched.stop] = members.negative_entropy()
        return rows


@dataclasses.dataclass(frozen=True)
class Sweep:
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
    """The components of one plate, at all sites: a table that was filled and closed.

    ``keys`` (J,) are digests of the sites' contents. About ``sample`` components are clustered in
    memory at a time; as many seed the groups, and make up the population.
    """

    def __init__(self, table: Table, keys: Num[Array, " sites"], layout: Layout, sample: int):
        self.table, self.keys, self.layout, self.most = table, keys, layout, sample
        few = ranked(keys, table.sizes, sample)
        self.sample = gather(table, keys, few)
        self.origin = _origin(layout.natural(self.sample.rows))
        self.sample = self.sample._replace(rows=layout.prepared(self.sample.rows, self.origin))
        self.near = self.local(self.sample)
        self.potentials = self._prepare()
        sites, total = len(keys), len(table)
        self.criterion = dataclasses.replace(self.near.criterion, sites=sites, total=total)

    def _prepare(self) -> Float[Array, " two"]:
        """All rows get all columns; the sums of the potentials, judged and matched."""
        columns = [self.layout.dim, self.layout.matched.stop]
        sums = ExactGroupSums(1, 2)
        for block in self.table.blocks():
            rows = self.layout.prepared(block.rows, self.origin)
            sums.add(rows[:, columns], np.zeros(len(rows), int))
            self.table.replace(block, rows)
        return sums.totals[0]

    # --- what an assignment is worth -------------------------------------------------------------

    def centroids(self, coordinates: Float[Array, "g dim"]) -> Centroids:
        """Groups at these coordinates."""
        return self.near.points.centroids(coordinates)

    def misfit(self, sweep: Sweep) -> float:
        """Summed divergence of components to their centroids, in nats."""
        potential = self.centroids(sweep.matched).potential
        return max(float(self.potentials[1] - sweep.counts @ potential), 0.0)

    def objective(self, sweep: Sweep) -> float:
        """Description length, in nats, as of :attr:`Clustering.objective`.

        What components differ from their group in shape is that of the sample, for as many.
        """
        return self._judged(sweep, np.arange(len(sweep.counts)), sweep.counts, 0.0)

    def _judged(self, sweep: Sweep, groups: Array, counts: Array, more: float) -> float:
        """That of some groups with other counts, and so much more misfit."""
        centroids = self.near.judged.centroids(sweep.natural)
        misfit = max(float(self.potentials[0] - sweep.counts @ centroids.potential), 0.0)
        surprise, shape = self.near.surprise(centroids)[groups], self._shape(sweep)
        return float(self.criterion.length(misfit + more, shape, surprise, counts))

    def _shape(self, sweep: Sweep) -> float:
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
        return found * (len(self.table) - len(sweep.counts)) / spare

    # --- passes ----------------------------------------------------------------------------------

    def sweep(
        self, coordinates: Float[Array, "g dim"], price: float = np.inf, *, second: bool = True
    ) -> Sweep:
        """Each site's best assignment to groups at these coordinates, and the new sums.

        What differs from all groups by more than the ``price`` is given to none. Without the
        ``second`` choices nothing is found out about what it would cost to dissolve a group.
        """
        centroids = self.centroids(coordinates)
        tally = _Tally(len(self.table), len(coordinates), self.layout)
        for block in self.table.blocks():
            for part in block.parts(max(1, COSTS // len(coordinates))):
                costs = self.layout.points(part.rows, self.near.points).divergences(centroids)
                labels = assign(costs, part.starts, price)
                labels[labels == len(coordinates)] = -1
                tally.add(part, labels, costs if second else None)
        return tally.sweep()

    def refine(self, sweep: Sweep, *, sweeps: int = 8) -> Sweep:
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

    def local(self, sample: Sample) -> LocalComponents:
        """A sample, as what is clustered in memory."""
        return LocalComponents(self.layout.points(sample.rows), sample.starts)

    def search(self, components: int | None) -> tuple[Sweep, list[float]]:
        """The best clustering, and how the objective fell on the way to it."""
        seed = search(self._seeds(components), components).clustering
        if components is not None:
            sweep = self.refine(self._filled(self.sweep(seed.centroids.coordinates)))
            return sweep, [self.objective(sweep)]
        return self._fewer(self.refine(self._open(seed.centroids.coordinates, _price(seed))))

    def _seeds(self, components: int | None) -> LocalComponents:
        """A sample in which so many components can be told apart."""
        if (components or 0) <= len(self.sample.rows):
            return self.near
        few = ranked(self.keys, self.table.sizes, 2 * (components or 0))
        return self.local(gather(self.table, self.keys, few))

    def permute(self) -> tuple[Sweep, list[float]]:
        """A permutation a site, from the first in canonical order on."""
        sweep = self.sweep(self.near.points.coordinates[: self.table.sizes[0]])
        refined = self.refine(sweep)
        return refined, [self.misfit(sweep), self.misfit(refined)]

    def as_labelled(self) -> tuple[Sweep, list[float]]:
        """Each site's components in the order that they have there."""
        tally = _Tally(len(self.table), int(self.table.sizes.max()), self.layout)
        for block in self.table.blocks():
            first = np.repeat(block.starts[:-1], np.diff(block.starts))
            tally.add(block, np.arange(len(block.rows)) - first)
        sweep = tally.sweep()
        return sweep, [self.misfit(sweep)]

    def _filled(self, sweep: Sweep) -> Sweep:
        """Groups that nobody uses move to what fits its group worst."""
        for _ in range(len(sweep.counts)):
            empty = np.flatnonzero(sweep.counts == 0)
            if not len(empty):
                break
            coordinates = sweep.matched.copy()
            coordinates[empty[0]] = sweep.worst
            sweep = self.sweep(coordinates)
        return sweep

    def _open(self, coordinates: Float[Array, "g dim"], price: float) -> Sweep:
        """Everything assigned, in groups of the seed's or in groups that were opened."""
        for _ in range(ROUNDS):
            sweep = self.sweep(coordinates, price, second=False)
            outliers = sweep.labels < 0
            kept = sweep.counts > 0
            if not outliers.any():
                return _without(sweep, ~kept)
            found, all_of_them = self._among(outliers)
            coordinates = np.concatenate([sweep.matched[kept], found])
            if all_of_them:
                break
        sweep = self.sweep(coordinates)
        return _without(sweep, sweep.counts == 0)

    def _among(self, outliers: Array) -> tuple[Float[Array, "more dim"], bool]:
        """Groups of what fits nowhere, or of a bounded part of it: the largest sites first."""
        ends = np.concatenate([[0], np.cumsum(outliers)])
        bounds = np.concatenate([[0], np.cumsum(self.table.sizes)])
        many = np.diff(ends[bounds])
        sites = np.flatnonzero(many)
        sites = sites[np.lexsort((self.keys[sites], -many[sites]))]
        most = max(1, int(np.searchsorted(np.cumsum(many[sites]), self.most, side="right")))
        local = self.local(gather(self.table, self.keys, sites[:most], outliers))
        return search(local).clustering.centroids.coordinates, most >= len(sites)

    def _fewer(self, sweep: Sweep) -> tuple[Sweep, list[float]]:
        """Without the groups that are not needed, one after the other."""
        trace = [self.objective(sweep)]
        while len(sweep.counts) > self.table.sizes.max():
            gone = int(sweep.loss.argmin())
            if self._hopeless(sweep, gone, trace[-1]):
                break
            smaller = self.sweep(np.delete(sweep.matched, gone, axis=0))
            if not smaller.counts.all():
                break
            smaller = self.refine(smaller, sweeps=4)
            if self.objective(smaller) >= trace[-1]:
                break
            sweep = smaller
            trace.append(self.objective(sweep))
        return sweep, trace

    def _hopeless(self, sweep: Sweep, gone: int, best: float) -> bool:
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


class _Tally:
    """What a pass adds up."""

    def __init__(self, rows: int, groups: int, layout: Layout):
        self.layout, kind = layout, np.int16 if groups < 2**15 else np.int32
        self.labels, self.second = np.empty(rows, kind), np.zeros(rows, kind)
        self.sums = GroupSums(groups, layout.dim * (1 + layout.forward))
        self.loss, self.worst, self.cost = np.zeros(groups), np.zeros(layout.dim), -np.inf

    def add(self, part: Block, labels: Array, costs: Array | None = None) -> None:
        """Some sites, assigned; the costs are used up."""
        self.labels[part.span], layout = labels, self.layout
        values = part.rows[:, layout.matched]
        if layout.forward:
            values = np.hstack([part.rows[:, : layout.dim], values])
        self.sums.add(values, labels)
        if costs is not None and costs.shape[1] > 1 and (kept := np.flatnonzero(labels >= 0)).size:
            self._choose_again(part, labels[kept], costs, kept)

    def _choose_again(self, part: Block, labels: Array, costs: Array, kept: Array) -> None:
        own = costs[kept, labels]
        if own.max() > self.cost:
            self.cost = own.max()
            self.worst = part.rows[kept[own.argmax()], self.layout.matched].copy()
        costs[kept, labels] = np.inf
        second = costs.argmin(1)[kept]
        self.second[part.row + kept] = second
        self.loss += np.bincount(labels, costs[kept, second] - own, len(self.loss))

    def sweep(self) -> Sweep:
        """The pass, when it has seen all."""
        counts, dim = self.sums.counts, self.layout.dim
        means = self.sums.totals / np.maximum(counts, 1.0)[:, None]
        loss, natural, matched = self.loss, means[:, :dim], means[:, -dim:]
        return Sweep(self.labels, counts, natural, matched, loss, self.second, self.worst)


def _without(sweep: Sweep, gone: Array) -> Sweep:
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
