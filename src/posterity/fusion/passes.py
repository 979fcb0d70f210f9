"""Matching of the components of more sites than fit into memory, by passes that keep only sums.

The default search clusters a sample. One pass assigns each component to a group of the sample, and
collects those that fit nowhere; these are clustered by the same search and get new groups. Then
assignments and centroids alternate, and groups are dissolved if this lowers the objective. Only
the label of each component is in memory.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.artifact.checkpoint import Checkpoint
from posterity.families import ExponentialFamily
from posterity.fusion.block_table import BlockTable
from posterity.fusion.clustering import assign, sums
from posterity.fusion.components import LocalComponents
from posterity.fusion.criterion import USUAL, DescriptionLength
from posterity.fusion.geometry import Centroids, of_places
from posterity.fusion.judged import Evidence, Judged
from posterity.fusion.rows import ExactGroupSums, GroupSums, Rows
from posterity.fusion.search import price_of_a_group, search
from posterity.status import Progress

Array = np.ndarray
COSTS = 2**22  # Number of divergences in memory at a time


@dataclasses.dataclass(frozen=True)
class PassResult:
    """All components under one assignment (label -1 for those that fit nowhere), and each group's
    averages of natural parameters and of ``matched`` coordinates.

    ``loss`` (G,) is the rise of the misfit if a group's components move to their ``second`` choice
    (N,). Labels are for centroids at ``assigned``; if ``ahead``, ``loss`` and ``second`` are for
    centroids at ``matched``. ``worst`` are the coordinates of the worst-fitting component.
    """

    labels: Int[Array, " n"]
    counts: Float[Array, " g"]
    natural: Float[Array, "g dim"]
    matched: Float[Array, "g dim"]
    loss: Float[Array, " g"]
    second: Int[Array, " n"]
    worst: Float[Array, " dim"]
    assigned: Any = None
    ahead: bool = False

    def packed(self) -> "PassResult":
        """Return the result without empty groups."""
        if self.counts.all():
            return self
        kept = np.flatnonzero(self.counts)
        rank = np.cumsum(self.counts > 0) - 1
        return dataclasses.replace(
            self,
            labels=rank.astype(self.labels.dtype)[self.labels],
            counts=self.counts[kept],
            natural=self.natural[kept],
            matched=self.matched[kept],
            loss=self.loss[kept],
            second=np.maximum(rank, 0).astype(self.second.dtype)[self.second],
            assigned=None if self.assigned is None else self.assigned[kept],
        )


@dataclasses.dataclass
class Stages:
    """The state of each plate's search, in a checkpoint from which the same call resumes."""

    checkpoint: Checkpoint

    def __post_init__(self) -> None:
        saved = self.checkpoint.load()
        self._plates: dict[str, Any] = {} if saved is None else saved[0]

    def resumed(self, passes: "Passes") -> tuple[PassResult, list[float]] | None:
        """Restore the last stored clustering of a plate, and its trace, by at most two passes;
        raise an ArtifactError if the file is not such a checkpoint. None if none was stored.
        """
        kept = self._plates.get(f"plate {passes.table.path}")
        if kept is None:
            return None
        try:
            sweep = passes.sweep(np.asarray(kept["assigned"], float))
            trace = list(map(float, kept["trace"]))
            return (passes.refine(sweep, sweeps=1) if kept["ahead"] else sweep), trace
        except (KeyError, TypeError, ValueError) as error:
            raise self.checkpoint.foreign() from error

    def keep(self, passes: "Passes", sweep: PassResult, trace: Sequence[float]) -> None:
        """Record the state of a plate, and save the checkpoint if one is due."""
        kept = {"assigned": sweep.assigned, "ahead": sweep.ahead, "trace": list(trace)}
        self._plates[f"plate {passes.table.path}"] = kept
        if self.checkpoint.due:
            self.checkpoint.save(self._plates, {})


class Passes:
    """The components of one block of all sites, in a table that is read in repeated passes.

    About ``sample`` components are clustered in memory at a time; as many determine the first
    groups and the population. After each pass ``progress`` is called with the number of passes.
    ``numbers`` are those of the criterion.
    """

    def __init__(
        self, table: Any, sample: int, progress: Any = None, numbers: DescriptionLength = USUAL
    ):
        self.numbers = numbers
        self.table = table
        self.store = table.store
        self.most = sample
        self.progress = progress
        self.swept = 0
        self.population: ExponentialFamily | None = None  # from which components are drawn
        self.sampled = table.ranked(sample)
        some = table.gather(self.sampled)
        table.origin = _origin(self.table.natural(some.rows))
        for block in self.store.blocks():
            self.store.replace(block, self.table.completed(block.rows, table.origin))
        self.count()

    def count(self) -> None:
        """Compute the sample and the sums of potentials again, after the table has changed."""
        self.sample = self.table.gather(self.sampled)
        self.near = self.local(self.sample.rows, self.sample.starts)
        sums = ExactGroupSums(1, 2)
        columns = [self.table.dim, self.table.matched.stop]
        for block in self.store.blocks():
            sums.add(block.rows[:, columns], np.zeros(len(block.rows), int))
        dim = self.table.dim
        less = [self.near.unequal(b.rows[:, :dim]) for b in self.store.blocks()]
        self.potentials: Array = sums.totals[0] - [sum(map(np.sum, less)), 0.0]
        sites = len(self.table.keys)
        total = len(self.store)
        self.criterion = dataclasses.replace(self.near.criterion, sites=sites, total=total)

    def centroids(self, coordinates: Float[Array, "g dim"]) -> Centroids:
        """Return centroids at these coordinates."""
        return self.near.points.centroids(coordinates)

    def misfit(self, sweep: PassResult) -> float:
        """Return the summed divergence of components to their centroids, in nats."""
        potential = self.centroids(sweep.matched).potential
        return max(float(self.potentials[1] - sweep.counts @ potential), 0.0)

    def objective(self, sweep: PassResult) -> float:
        """Return the description length, in nats, like :attr:`Clustering.objective`; the misfit of
        shapes is extrapolated from the sample.
        """
        return self._judged(sweep, np.arange(len(sweep.counts)), sweep.counts, 0.0)

    def _judged(self, sweep: PassResult, groups: Array, counts: Array, more: float) -> float:
        """Return the objective of some groups with other counts, and ``more`` misfit."""
        near = self.near
        shape = 0.0
        centroids = near.judged.centroids(sweep.natural)
        potential = centroids.potential - near.unequal(sweep.natural)
        typical = np.zeros(len(sweep.counts))
        if near.shapes is not None:
            seen, means, shape = self._shapes(sweep)
            own = near.evidence_of(centroids.take(seen), np.hstack([sweep.natural[seen], means]))
            potential[seen], typical[:] = own.potential, own.typical.mean()
            typical[seen] = own.typical
        misfit = max(float(self.potentials[0] - sweep.counts @ potential), 0.0)
        every = Evidence(potential, np.zeros(len(potential)), near.surprise(centroids), typical)
        some = Evidence(*(values[groups] for values in every))
        along = near.along(self.in_sample(sweep, near.masses)[1])
        judged = Judged(sweep.natural[groups], some, misfit + more, shape, along)
        return judged.length(self.criterion, counts)

    def in_sample(self, sweep: PassResult, rows: Array) -> tuple[Array, Float[Array, "seen width"]]:
        """Return the groups with members in the sample, and the sums of their rows there."""
        seen, labels = np.unique(sweep.labels[self.sample.places], return_inverse=True)
        return seen, sums(rows, labels)

    def _shapes(self, sweep: PassResult) -> tuple[Array, Float[Array, "seen dim"], float]:
        """Return the groups with members in the sample, the averages of their shapes there, and the
        estimated misfit of the shapes of all components.
        """
        shapes: Any = self.near.shapes
        counts = np.bincount(sweep.labels[self.sample.places])
        seen, totals = self.in_sample(sweep, shapes.coordinates)
        means = totals / counts[seen, None]
        potential = shapes.potential_at(means) - self.near.unequal(means)
        misfit = max(float(self.near.totals[1] - counts[seen] @ potential), 0.0)
        spare = max(len(shapes) - len(seen), 1)
        return seen, means, misfit * (len(self.store) - len(sweep.counts)) / spare

    def sweep(
        self, coordinates: Float[Array, "g dim"], price: float = np.inf, *, second: bool = True
    ) -> PassResult:
        """Assign each site's components to groups at these coordinates, and compute new sums.
        Components with divergences above the ``price`` stay unassigned. ``second`` choices give the
        loss by dissolving each group.
        """
        centroids = self.centroids(coordinates)
        sums = _Accumulator(self.table, len(coordinates))
        for block in self.store.blocks():
            for part in block.parts(max(1, COSTS // len(coordinates))):
                costs = self.table.points(part.rows, self.near.points).divergences(centroids)
                labels = assign(costs, part.starts, price)
                labels[labels == len(coordinates)] = -1
                sums.add(part, labels, costs if second else None)
        self.swept += 1
        if self.progress is not None:
            self.progress(Progress(self.swept))
        return dataclasses.replace(sums.result(), assigned=coordinates)

    def refine(self, sweep: PassResult, *, sweeps: int = 8, settled: float = 1e-4) -> PassResult:
        """Alternate assignment and centroids at a fixed number of groups; the misfit only falls.
        The result has second choices.
        """
        misfit = self.misfit(sweep)
        for _ in range(sweeps):
            proposal = self.sweep(sweep.matched)
            before = misfit
            misfit = self.misfit(proposal)
            if not proposal.counts.all() or misfit > before * (1 + 1e-12):
                ahead = {"loss": proposal.loss, "second": proposal.second, "ahead": True}
                return dataclasses.replace(sweep, **ahead)
            sweep = proposal
            if misfit >= before * (1 - settled):
                break
        return sweep

    def local(
        self, rows: Float[Array, "n width"], starts: Int[Array, " bounds"]
    ) -> LocalComponents:
        """Return rows of some sites as components for clustering in memory."""
        return LocalComponents(self.table.points(rows), starts, numbers=self.numbers)

    def search(
        self, components: int | None, stages: Stages | None = None
    ) -> tuple[PassResult, list[float]]:
        """Return the best clustering and the trace of its objective, resumed from the ``stages``
        and stored there.
        """
        begun = None if stages is None else stages.resumed(self)
        if components is None:
            sweep, trace = begun or (self._begun(), [])
            return self.fewer(sweep, trace, stages)
        if begun:
            return begun
        few = self.near
        wanted = components
        if wanted > len(self.sample.places):  # a sample with enough components
            few = self.local(*self.table.gather(self.table.ranked(2 * wanted))[:2])
        seed = search(few, components).clustering
        sweep = self.refine(self._filled(self.sweep(seed.centroids.coordinates)))
        trace = [self.objective(sweep)]
        if stages is not None:
            stages.keep(self, sweep, trace)
        return sweep, trace

    def _begun(self) -> PassResult:
        """Start with the sample's groups, and new ones for components that fit none of them."""
        seed = search(self.near).clustering
        return self.refine(self._open(seed.centroids.coordinates, price_of_a_group(seed)))

    def fixed(self, coordinates: Float[Array, "g dim"]) -> PassResult | None:
        """Assign to groups near these coordinates and refine; return None if some are empty."""
        sweep = self.sweep(coordinates)
        return self.refine(sweep, sweeps=4) if sweep.counts.all() else None

    def permute(self) -> tuple[PassResult, list[float]]:
        """Match sites by permutations, starting from the first site in canonical order."""
        sweep = self.sweep(self.near.points.coordinates[: self.store.sizes[0]])
        refined = self.refine(sweep)
        return refined, [self.misfit(sweep), self.misfit(refined)]

    def as_labelled(self, labels: Int[Array, " n"] | None) -> tuple[PassResult, list[float]]:
        """Return the result for known labels; None stands for each site's own numbering."""
        groups = int(self.store.sizes.max() if labels is None else labels.max() + 1)
        sums = _Accumulator(self.table, groups)
        for block in self.store.blocks():
            own = np.arange(len(block.rows)) - np.repeat(block.starts[:-1], np.diff(block.starts))
            sums.add(block, own if labels is None else labels[block.span])
        result = sums.result()
        return result, [self.misfit(result)]

    def _filled(self, sweep: PassResult) -> PassResult:
        """Move empty groups to the worst-fitting components."""
        for _ in range(len(sweep.counts)):
            empty = np.flatnonzero(sweep.counts == 0)
            if not len(empty):
                break
            coordinates = sweep.matched.copy()
            coordinates[empty[0]] = sweep.worst
            sweep = self.sweep(coordinates)
        return sweep

    def _open(
        self, coordinates: Float[Array, "g dim"], price: float, *, rounds: int = 16
    ) -> PassResult:
        """Assign all components to groups at the coordinates, or to groups that are opened."""
        for _ in range(rounds):
            sweep = self.sweep(coordinates, price, second=False)
            outliers = sweep.labels < 0
            if not outliers.any():
                return sweep.packed()
            more, all_of_them = self._among(outliers)
            coordinates = np.concatenate([sweep.matched[sweep.counts > 0], more])
            if all_of_them:
                break
        return self.sweep(coordinates).packed()

    def _among(self, outliers: Array) -> tuple[Float[Array, "more dim"], bool]:
        """Cluster the outliers, or those of the sites with most of them, and return centroids."""
        many = np.add.reduceat(outliers, np.cumsum(self.store.sizes) - self.store.sizes, dtype=int)
        sites = np.flatnonzero(many)
        sites = sites[np.lexsort((self.table.keys[sites], -many[sites]))]
        most = max(1, int(np.searchsorted(np.cumsum(many[sites]), self.most, side="right")))
        local = self.local(*self.table.gather(sites[:most], outliers)[:2])
        return search(local).clustering.centroids.coordinates, most >= len(sites)

    def fewer(
        self,
        sweep: PassResult,
        trace: Sequence[float] = (),
        stages: Stages | None = None,
    ) -> tuple[PassResult, list[float]]:
        """Drop the groups that are not needed, one by one; return the result and the trace."""
        trace = list(trace) or [self.objective(sweep)]
        while True:
            if stages is not None:
                stages.keep(self, sweep, trace)
            if len(sweep.counts) <= self.store.sizes.max():
                break
            gone = int(sweep.loss.argmin())
            if self._hopeless(sweep, gone, trace[-1]):
                break
            smaller = self.fixed(np.delete(sweep.matched, gone, axis=0))
            if smaller is None or (objective := self.objective(smaller)) >= trace[-1]:
                break
            sweep = smaller
            trace = [*trace, objective]
        return sweep, trace

    def _hopeless(self, sweep: PassResult, gone: int, best: float) -> bool:
        """Return whether dissolving a group cannot be a gain, by a bound without a pass: if ``m``
        members join ``n``, the centroid's move leaves ``n / (n + m)`` of the added misfit.
        """
        others = np.delete(np.arange(len(sweep.counts)), gone)
        more = np.bincount(sweep.second[sweep.labels == gone], minlength=len(sweep.counts))
        counts = (sweep.counts + more)[others]
        left = (sweep.counts[others] / counts)[more[others] > 0].min(initial=1.0)
        counts = np.minimum(counts, self.criterion.sites)  # more members would go further away
        return self._judged(sweep, others, counts, left * sweep.loss[gone]) >= best


class _Accumulator:
    """The sums of a pass."""

    def __init__(self, table: BlockTable, groups: int):
        self.table = table
        kind = np.int16 if groups < 2**15 else np.int32
        self.labels, self.second = np.zeros((2, len(table.store)), kind)
        self.sums = GroupSums(groups, table.dim * (1 + table.forward))
        self.loss, self.worst, self.cost = np.zeros(groups), np.zeros(table.dim), -np.inf

    def add(self, part: Rows, labels: Array, costs: Array | None = None) -> None:
        """Add some assigned sites; ``costs`` is overwritten."""
        self.labels[part.span], table = labels, self.table
        values = part.rows[:, table.matched]
        if table.forward:
            values = np.hstack([part.rows[:, : table.dim], values])
        self.sums.add(values, labels)
        if costs is not None and costs.shape[1] > 1 and (kept := np.flatnonzero(labels >= 0)).size:
            self._choose_again(part, labels[kept], costs, kept)

    def _choose_again(self, part: Rows, labels: Array, costs: Array, kept: Array) -> None:
        own = costs[kept, labels]
        if own.max() > self.cost:
            self.cost = own.max()
            self.worst = part.rows[kept[own.argmax()], self.table.matched].copy()
        costs[kept, labels] = np.inf
        second = costs.argmin(1)[kept]
        self.second[part.row + kept] = second
        self.loss += np.bincount(labels, costs[kept, second] - own, len(self.loss))

    def result(self) -> PassResult:
        """Return the result of the whole pass."""
        counts = self.sums.counts
        dim = self.table.dim
        means = self.sums.totals / np.maximum(counts, 1.0)[:, None]
        places = means[:, :dim], means[:, -dim:]
        return PassResult(self.labels, counts, *places, self.loss, self.second, self.worst)


def _origin(members: ExponentialFamily) -> object:
    """Return the middle of the members, or None if the origin is already within their spread."""
    place = members.location()
    amid: list[bool] = []
    of_places(lambda x: amid.append(bool((np.abs(x.mean(0)) <= x.std(0)).all())), place)
    return None if all(amid) else of_places(lambda x: x.mean(0), place)
