"""Matching of the components of more sites than fit into memory, by passes that keep only sums.

A sample of sites is matched in memory. A pass assigns each component to a group of the sample, and
collects those that fit nowhere; these are clustered by the same search and get new groups. Then
assignments and centroids alternate. Only the label of each component is in memory.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.artifact.checkpoint import Checkpoint
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import Clustering, assign, packed
from posterity.fusion.components import LocalComponents
from posterity.fusion.criterion import USUAL, DescriptionLength
from posterity.fusion.geometry import Centroids, middle
from posterity.fusion.rows import ExactGroupSums, GroupSums, Rows
from posterity.fusion.search import SearchResult, price_of_a_group, search
from posterity.status import Progress

Array = np.ndarray
COSTS = 2**22  # Number of divergences in memory at a time


@dataclasses.dataclass(frozen=True)
class PassResult:
    """All components under one assignment (label -1 for those that fit nowhere), each group's
    number of components and their average coordinates, and the centroids at which they were
    ``assigned`` (None for known labels).
    """

    labels: Int[Array, " n"]
    counts: Float[Array, " g"]
    matched: Float[Array, "g dim"]
    assigned: Any = None

    def packed(self) -> "PassResult":
        """Return the result without empty groups."""
        kept = self.counts > 0
        labels = packed(self.labels).astype(self.labels.dtype)
        return PassResult(labels, self.counts[kept], self.matched[kept], self.assigned[kept])


@dataclasses.dataclass
class Stages:
    """The state of each plate's search, in a checkpoint from which the same call resumes."""

    checkpoint: Checkpoint

    def __post_init__(self) -> None:
        saved = self.checkpoint.load()
        self._plates: dict[str, Any] = {} if saved is None else saved[0]

    def resumed(self, passes: "Passes") -> tuple[PassResult, int] | None:
        """Restore a plate's sample and its last stored assignment, by one pass, with the number of
        sweeps that are left; raise an ArtifactError if the file is not such a checkpoint. None if
        nothing was stored.
        """
        kept = self._plates.get(f"plate {passes.table.path}")
        if kept is None:
            return None
        try:
            passes.draw(np.asarray(kept["sampled"], int))
            return passes.sweep(np.asarray(kept["assigned"], float)), int(kept["left"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise self.checkpoint.foreign() from error

    def keep(self, passes: "Passes", sweep: PassResult, left: int) -> None:
        """Record the state of a plate, and save the checkpoint if one is due."""
        kept = {"sampled": passes.sampled, "assigned": sweep.assigned, "left": left}
        self._plates[f"plate {passes.table.path}"] = kept
        if self.checkpoint.due:
            self.checkpoint.save(self._plates, {})


class Passes:
    """The components of one block of all sites, in a table that is read in repeated passes.

    About ``sample`` components are clustered in memory at a time, or twice as many if some fit
    nowhere. After each pass ``progress`` is called with the number of passes; ``stages`` store the
    state. ``numbers`` are those of the criterion.
    """

    def __init__(
        self,
        table: Any,
        sample: int,
        progress: Any = None,
        numbers: DescriptionLength = USUAL,
        stages: Stages | None = None,
    ):
        self.numbers = numbers
        self.table = table
        self.store = table.store
        self.most = sample
        self.progress = progress
        self.stages = stages or Stages(Checkpoint(None, "fuse", {}))
        self.swept = 0
        self.population: ExponentialFamily | None = None  # from which components are drawn
        self.sampled = table.ranked(sample)
        some = table.gather(self.sampled)
        table.origin = middle(table.natural(some.rows))
        for block in self.store.blocks():
            self.store.replace(block, self.table.completed(block.rows, table.origin))
        self.count()

    def count(self) -> None:
        """Compute the sample and the sum of potentials again, after the table has changed."""
        self.draw(self.sampled)
        sums = ExactGroupSums(1, 1)
        for block in self.store.blocks():
            sums.add(block.rows[:, [self.table.matched.stop]], np.zeros(len(block.rows), int))
        self.potential = float(sums.totals[0, 0])

    def draw(self, sites: Int[Array, " some"]) -> None:
        """Take these sites as the sample."""
        self.sampled = sites
        self.sample = self.table.gather(sites)
        self.near = self._local(self.sample.rows, self.sample.starts)

    def _local(self, rows: Float[Array, "n width"], starts: Int[Array, " b"]) -> LocalComponents:
        return LocalComponents(self.table.points(rows), starts, numbers=self.numbers)

    def centroids(self, coordinates: Float[Array, "g dim"]) -> Centroids:
        """Return centroids at these coordinates."""
        return self.near.points.centroids(coordinates)

    def misfit(self, sweep: PassResult) -> float:
        """Return the summed divergence of components to their centroids, in nats."""
        potential = self.centroids(sweep.matched).potential
        return max(float(self.potential - sweep.counts @ potential), 0.0)

    def sweep(self, coordinates: Float[Array, "g dim"], price: float = np.inf) -> PassResult:
        """Assign each site's components to groups at these coordinates, and compute new sums.
        Components with divergences above the ``price`` stay unassigned.
        """
        centroids = self.centroids(coordinates)
        groups = len(coordinates)

        def nearest(part: Rows) -> Array:
            costs = self.table.points(part.rows, self.near.points).divergences(centroids)
            labels = assign(costs, part.starts, price)
            return np.where(labels == groups, -1, labels)

        self.swept += 1
        if self.progress is not None:
            self.progress(Progress(self.swept))
        return dataclasses.replace(self._summed(groups, nearest), assigned=coordinates)

    def _summed(self, groups: int, labels_of: Callable[[Rows], Array]) -> PassResult:
        """Return the result for the labels that a function returns for some sites at a time."""
        labels = np.zeros(len(self.store), np.int16 if groups < 2**15 else np.int32)
        sums = GroupSums(groups, self.table.dim)
        for block in self.store.blocks():
            for part in block.parts(max(1, COSTS // groups)):
                labels[part.span] = own = labels_of(part)
                sums.add(part.rows[:, self.table.matched], own)
        return PassResult(labels, sums.counts, sums.means)

    def refine(self, sweep: PassResult, left: int = 8, *, settled: float = 1e-4) -> PassResult:
        """Alternate assignment and centroids at a fixed number of groups; the misfit only falls.

        Args:
            sweep: where to begin.
            left: number of sweeps, at most.
            settled: share of the misfit; sweeps end when it falls by less.
        """
        misfit = self.misfit(sweep)
        while left:
            self.stages.keep(self, sweep, left)
            left = left - 1
            proposal = self.sweep(sweep.matched)
            if not proposal.counts.all():
                break
            before = misfit
            misfit = self.misfit(proposal)
            if misfit > before * (1 + 1e-12):
                break
            sweep = proposal
            if misfit >= before * (1 - settled):
                break
        self.stages.keep(self, sweep, 0)
        return sweep

    def search(self, components: int | None, *, sweeps: int = 8) -> tuple[PassResult, SearchResult]:
        """Return the assignment of all components, resumed from the stages, after at most so many
        ``sweeps``, and the clustering of the sample.
        """
        least = len(self.sampled)
        start, left = self.stages.resumed(self) or (None, sweeps)
        found = search(self.near, components)
        if start is None:
            seed = found.clustering
            coordinates = seed.centroids.coordinates
            if components is None:
                coordinates = self._opened(coordinates, price_of_a_group(seed))
            start = self.sweep(coordinates)
        if components is not None and not start.counts.all():
            # Equal components, of which only the sample's are in groups apart.
            labels = start.labels.copy()
            labels[self.sample.places] = found.clustering.labels
            start = dataclasses.replace(self.as_labelled(labels), assigned=start.assigned)
        result = self.refine(start.packed(), left)
        if len(self.sampled) > least:
            seed = self.in_sample(result)
            found = SearchResult(seed, [seed.objective])
        return result, found

    def _opened(
        self, coordinates: Float[Array, "g dim"], price: float, *, rounds: int = 4
    ) -> Float[Array, "h dim"]:
        """Return centroids with those of new groups for components beyond the ``price``. In all
        ``rounds`` together the sites of which these are clustered double the sample, which they
        join.
        """
        first = np.cumsum(self.store.sizes) - self.store.sizes
        for _ in range(rounds):
            outliers = self.sweep(coordinates, price).labels < 0
            many = np.add.reduceat(outliers, first, dtype=int)
            order = np.lexsort((self.table.keys, -many))[: np.count_nonzero(many)]
            if not len(order):
                break
            room = int(np.searchsorted(np.cumsum(self.store.sizes[order]), self.most // rounds))
            some = order[: max(room, 1)]
            rows, starts, _ = self.table.gather(some, outliers)
            new = search(self._local(rows, starts)).clustering.centroids.coordinates
            coordinates = np.concatenate([coordinates, new])
            self.draw(np.union1d(self.sampled, some))
        return coordinates

    def permute(self) -> PassResult:
        """Match sites by permutations, starting from the first site in canonical order."""
        return self.refine(self.sweep(self.near.points.coordinates[: self.store.sizes[0]]))

    def as_labelled(self, labels: Int[Array, " n"] | None) -> PassResult:
        """Return the result for known labels; None stands for each site's own numbering."""
        if labels is not None:
            return self._summed(int(labels.max()) + 1, lambda part: labels[part.span])

        def own(part: Rows) -> Array:
            return np.arange(len(part.rows)) - np.repeat(part.starts[:-1], np.diff(part.starts))

        return self._summed(int(self.store.sizes.max()), own)

    def in_sample(self, result: PassResult) -> Clustering:
        """Return the clustering of the sample by a result."""
        return Clustering(self.near, packed(result.labels[self.sample.places]))
