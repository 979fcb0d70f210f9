"""A clustering of all sites' components under the rule that a site's own stay apart."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment

from posterity.fusion.criterion import description_length
from posterity.fusion.geometry import Centroids, Points

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Problem:
    """Components of several sites: the points, and where each site's rows begin and end.

    Rows are grouped by site; ``starts`` (J + 1,) has the first row of each site and the end.
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

    def rows(self, site: int) -> slice:
        """The rows of one site."""
        return slice(self.starts[site], self.starts[site + 1])

    def largest(self) -> int:
        """Most components at any site: no clustering can have fewer groups."""
        return int(np.diff(self.starts).max())

    def keep(self, sites: Int[Array, " some"]) -> "Problem":
        """The problem of some sites alone."""
        rows = np.concatenate([np.arange(self.starts[j], self.starts[j + 1]) for j in sites])
        sizes = np.diff(self.starts)[sites]
        return Problem(self.points.take(rows), np.concatenate([[0], np.cumsum(sizes)]))


@dataclasses.dataclass(frozen=True)
class Clustering:
    """Labels ``0 .. G - 1`` of all components, with the centroids that fit them best."""

    problem: Problem
    labels: Int[Array, " n"]

    @functools.cached_property
    def counts(self) -> Float[Array, " g"]:
        """Components in each group."""
        return np.bincount(self.labels).astype(float)

    @functools.cached_property
    def centroids(self) -> Centroids:
        """Each group's average, with its gradient."""
        points = self.problem.points
        return points.centroids(sums(points.coordinates, self.labels) / self.counts[:, None])

    @functools.cached_property
    def misfit(self) -> float:
        """Summed divergence of components to their centroids: a sum of Jensen gaps, in nats."""
        gap = self.problem.points.potential.sum() - self.counts @ self.centroids.potential
        return max(float(gap), 0.0)

    @functools.cached_property
    def between(self) -> Float[Array, " g"]:
        """Divergence from the overall centroid to each group's."""
        overall, mine = self.problem.overall, self.centroids
        step = mine.coordinates - overall.coordinates
        gap = mine.potential - overall.potential - step @ overall.gradient[0]
        return np.maximum(gap, 0.0)

    @functools.cached_property
    def objective(self) -> float:
        """Description length, in nats: what choosing the number of components minimises."""
        dim = self.problem.points.coordinates.shape[1]
        return description_length(
            self.misfit, self.between, self.counts, sites=self.problem.sites, dim=dim
        )

    def relabelled(self, labels: Int[Array, " n"]) -> "Clustering":
        """Other labels; groups that nobody uses disappear."""
        return Clustering(self.problem, np.unique(labels, return_inverse=True)[1])


def sums(rows: Float[Array, "n dim"], labels: Int[Array, " n"]) -> Float[Array, "g dim"]:
    """Sums of the rows of each label."""
    order = np.argsort(labels, kind="stable")
    starts = np.concatenate([[0], np.flatnonzero(np.diff(labels[order])) + 1])
    return np.add.reduceat(rows[order], starts, axis=0)


def assign(costs: Float[Array, "n g"], starts: Int[Array, " bounds"]) -> Int[Array, " n"]:
    """Each site's best assignment of its rows to different columns (kuhn1955)."""
    labels = costs.argmin(1)
    for first, last in zip(starts[:-1], starts[1:], strict=True):
        # Where the nearest columns differ already, they are the best assignment.
        if len(set(labels[first:last].tolist())) < last - first:
            labels[first:last] = linear_sum_assignment(costs[first:last])[1]
    return labels


def refine(clustering: Clustering, *, sweeps: int = 20) -> Clustering:
    """Alternate assignment and centroids at a fixed number of groups; the misfit only falls."""
    problem = clustering.problem
    for _ in range(sweeps):
        costs = problem.points.divergences(clustering.centroids)
        labels = assign(costs, problem.starts)
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
    order, does not. A change is kept only if the misfit falls.
    """
    points, best = clustering.problem.points, clustering
    for _ in range(sweeps):
        before = best.misfit
        for site in range(clustering.problem.sites):
            best = _reassign(points, best, site)
        if best.misfit >= before * (1 - 1e-9):
            break
    return best


def _reassign(points: Points, clustering: Clustering, site: int) -> Clustering:
    rows = clustering.problem.rows(site)
    labels = clustering.labels[rows]
    shared = clustering.counts[labels] > 1  # a group of one's own has no other centroid
    counts = clustering.counts.copy()
    counts[labels[shared]] -= 1
    centroids = _without(points, clustering, rows, shared)
    costs = points.take(np.arange(rows.start, rows.stop)).divergences(centroids)
    costs *= counts / (counts + 1)
    proposal = clustering.labels.copy()
    proposal[rows] = linear_sum_assignment(costs)[1]
    if (proposal[rows] == labels).all() or (np.bincount(proposal) == 0).any():
        return clustering
    better = Clustering(clustering.problem, proposal)
    if len(better.counts) < len(counts) or better.misfit >= clustering.misfit:
        return clustering
    return better


def _without(points: Points, clustering: Clustering, rows: slice, shared: Array) -> Centroids:
    """Centroids after the site's rows have left the groups that they share."""
    labels, all_ = clustering.labels[rows][shared], clustering.centroids
    if not len(labels):
        return all_
    counts = clustering.counts[labels, None]
    own = points.coordinates[rows][shared]
    moved = points.centroids((all_.coordinates[labels] * counts - own) / (counts - 1))
    fields = [all_.coordinates.copy(), all_.potential.copy(), all_.gradient.copy()]
    for field, new in zip(fields, (moved.coordinates, moved.potential, moved.gradient), strict=True):
        field[labels] = new
    return Centroids(*fields)
