"""A clustering of all sites' components under the rule that a site's own stay apart."""

import dataclasses
import functools
from itertools import pairwise

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.errors import ParameterError
from posterity.fusion.criterion import description_length
from posterity.fusion.geometry import Centroids, Points

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class LocalComponents:
    """All sites' components: points, grouped by site, and where each site's begin and end.

    ``starts`` (J + 1,) has the first row of each site, and the end.
    """

    points: Points
    starts: Int[Array, " bounds"]

    @property
    def sites(self) -> int:
        """Number of sites."""
        return len(self.starts) - 1

    @functools.cached_property
    def site(self) -> Int[Array, " n"]:
        """The site of each row."""
        return np.repeat(np.arange(self.sites), np.diff(self.starts))

    @functools.cached_property
    def overall(self) -> Centroids:
        """The centroid of all components."""
        return self.points.centroids(self.points.coordinates.mean(0, keepdims=True))

    def span(self, site: int) -> slice:
        """The rows of one site."""
        return slice(self.starts[site], self.starts[site + 1])

    def largest(self) -> int:
        """Most components at any site: no clustering can have fewer groups."""
        return int(np.diff(self.starts).max())

    def take(self, rows: Int[Array, " some"]) -> "LocalComponents":
        """Some of the components, in the order that they have here."""
        sizes = np.unique(self.site[rows], return_counts=True)[1]
        return LocalComponents(self.points.take(rows), np.concatenate([[0], np.cumsum(sizes)]))


@dataclasses.dataclass(frozen=True)
class Clustering:
    """Labels ``0 .. G - 1`` of all components, with the centroids that fit them best."""

    local: LocalComponents
    labels: Int[Array, " n"]

    @functools.cached_property
    def counts(self) -> Float[Array, " g"]:
        """Components in each group."""
        return np.bincount(self.labels).astype(float)

    @functools.cached_property
    def centroids(self) -> Centroids:
        """Each group's average, with its gradient."""
        points = self.local.points
        return points.centroids(sums(points.coordinates, self.labels) / self.counts[:, None])

    @functools.cached_property
    def misfit(self) -> float:
        """Summed divergence of components to their centroids: a sum of Jensen gaps, in nats."""
        gap = self.local.points.potential.sum() - self.counts @ self.centroids.potential
        return max(float(gap), 0.0)

    @functools.cached_property
    def between(self) -> Float[Array, " g"]:
        """Divergence from the overall centroid to each group's."""
        overall, mine = self.local.overall, self.centroids
        step = mine.coordinates - overall.coordinates
        gap = mine.potential - overall.potential - step @ overall.gradient[0]
        return np.maximum(gap, 0.0)

    @functools.cached_property
    def objective(self) -> float:
        """Description length, in nats: what choosing the number of components minimises."""
        dim = self.local.points.coordinates.shape[1]
        return description_length(
            self.misfit, self.between, self.counts, sites=self.local.sites, dim=dim
        )

    def relabelled(self, labels: Int[Array, " n"]) -> "Clustering":
        """Other labels; groups that nobody uses disappear."""
        return Clustering(self.local, np.unique(labels, return_inverse=True)[1])


def sums(rows: Float[Array, "n dim"], labels: Int[Array, " n"]) -> Float[Array, "g dim"]:
    """Sums of the rows of each label."""
    order = np.argsort(labels, kind="stable")
    starts = np.concatenate([[0], np.flatnonzero(np.diff(labels[order])) + 1])
    return np.add.reduceat(rows[order], starts, axis=0)


def assign(costs: Float[Array, "n g"], starts: Int[Array, " bounds"]) -> Int[Array, " n"]:
    """Each site's best assignment of its rows to different columns (kuhn1955)."""
    labels = finite(costs).argmin(1)
    for first, last in pairwise(starts.tolist()):
        # Where the nearest columns differ already, they are the best assignment.
        if len(set(labels[first:last].tolist())) < last - first:
            labels[first:last] = scipy.optimize.linear_sum_assignment(costs[first:last])[1]
    return labels


def finite(costs: Float[Array, "n g"]) -> Float[Array, "n g"]:
    """The costs, or a ParameterError if any is NaN or infinite."""
    if not np.isfinite(costs).all():
        raise ParameterError(
            found="components so sharp for their distance that their divergences overflow",
            expected="divergences that float64 can tell apart",
            fix="Use divergence='reverse', or rescale the components.",
        )
    return costs


def refine(clustering: Clustering, *, sweeps: int = 20) -> Clustering:
    """Alternate assignment and centroids at a fixed number of groups; the misfit only falls."""
    local = clustering.local
    for _ in range(sweeps):
        costs = local.points.divergences(clustering.centroids)
        labels = assign(costs, local.starts)
        proposal = clustering.relabelled(labels)
        if len(proposal.counts) < len(clustering.counts):
            break
        if proposal.misfit >= clustering.misfit * (1 - 1e-9):
            break
        clustering = proposal
    return clustering


def polish(clustering: Clustering, *, sweeps: int = 10) -> Clustering:
    """Reassign site by site, each time without the site's own pull on the centroids.

    Alternation stalls where a component holds a centroid in place; taking the site out first
    and charging ``n / (n + 1)`` of the divergence, what joining ``n`` others costs to second
    order, does not. A site's change is kept only if the misfit falls.
    """
    for _ in range(sweeps):
        proposals = _leave_one_out(clustering)
        changed = _accept(clustering, proposals)
        if changed is None:
            break
        clustering = changed
    return clustering


def _leave_one_out(clustering: Clustering) -> Int[Array, " n"]:
    """Each site's best labels, against centroids of all other sites' components."""
    local, labels = clustering.local, clustering.labels
    counts, points = clustering.counts, local.points
    weighted = points.divergences(clustering.centroids) * (counts / (counts + 1))
    # A group of one's own keeps its centroid, which staying costs nothing.
    left = np.maximum(counts[labels] - 1, 1.0)[:, None]
    total = clustering.centroids.coordinates[labels] * counts[labels, None]
    shared = counts[labels] > 1
    without = np.where(shared[:, None], (total - points.coordinates) / left, points.coordinates)
    others, share = points.centroids(without), (left / (left + 1))[:, 0]
    for site in range(local.sites):
        rows = local.span(site)
        own = points.take(rows).divergences(others.take(rows))
        weighted[rows, labels[rows]] = own * np.where(shared[rows], share[rows], 1.0)
    return assign(weighted, local.starts)


def _accept(clustering: Clustering, proposals: Int[Array, " n"]) -> Clustering | None:
    """Apply the proposals of one site after another where the misfit falls; None if nowhere."""
    local, points = clustering.local, clustering.local.points
    labels, counts = clustering.labels.copy(), clustering.counts.copy()
    total = clustering.centroids.coordinates * counts[:, None]
    potential = clustering.centroids.potential.copy()
    threshold, changed = 1e-9 * clustering.misfit, False
    for site in np.unique(local.site[proposals != labels]):
        rows = local.span(int(site))
        before, after = labels[rows], proposals[rows]
        groups = np.unique(np.concatenate([before[before != after], after[before != after]]))
        new_total, new_counts = total.copy(), counts.copy()
        np.subtract.at(new_total, before, points.coordinates[rows])
        np.add.at(new_total, after, points.coordinates[rows])
        np.subtract.at(new_counts, before, 1)
        np.add.at(new_counts, after, 1)
        if (new_counts[groups] == 0).any():
            continue
        moved = points.centroids(new_total[groups] / new_counts[groups, None]).potential
        gain = new_counts[groups] @ moved - counts[groups] @ potential[groups]
        if gain <= threshold:
            continue
        labels[rows], total, counts, changed = after, new_total, new_counts, True
        potential[groups] = moved
    return Clustering(local, labels) if changed else None
