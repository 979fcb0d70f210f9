"""Clusterings of all sites' components, in which components of one site are in different groups."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.fusion.components import LocalComponents
from posterity.fusion.geometry import PIECE, Centroids, chunks, finite
from posterity.fusion.judged import Evidence, Judged
from posterity.fusion.rows import membership

Array = np.ndarray


SMALL = 2**14  # Entries of a membership matrix up to which a dense one is faster than a sparse one


class Rivals(NamedTuple):
    """Another group for each component, and the loss by moving there."""

    group: Int[Array, " n"]
    more: Float[Array, " n"]


@dataclasses.dataclass(frozen=True)
class Clustering:
    """Labels ``0 .. G - 1`` of all components, with the centroids that fit them best."""

    local: LocalComponents
    labels: Int[Array, " n"]

    @functools.cached_property
    def counts(self) -> Float[Array, " g"]:
        """Number of components of each group."""
        return np.bincount(self.labels).astype(float)

    @functools.cached_property
    def totals(self) -> Float[Array, "g dim"]:
        """Sums of the coordinates of each group's components."""
        return self._members @ self.local.points.coordinates

    @functools.cached_property
    def _members(self) -> Any:
        """The membership matrix (G, n)."""
        return memberships(self.labels, len(self.counts))

    @functools.cached_property
    def centroids(self) -> Centroids:
        """Each group's average, with its gradient."""
        return self.local.points.centroids(self.totals / self.counts[:, None])

    @functools.cached_property
    def misfit(self) -> float:
        """Summed divergence of components to their centroids: a sum of Jensen gaps, in nats."""
        gap = self.local.points.potential.sum() - self.counts @ self.centroids.potential
        return max(float(gap), 0.0)

    @functools.cached_property
    def objective(self) -> float:
        """Description length, in nats, which the chosen number of components minimises."""
        return self.judged.length(self.local.criterion, self.counts)

    @functools.cached_property
    def judged(self) -> Judged:
        """The statistics by which the number of groups is judged."""
        judge([self])
        return vars(self)["judged"]

    @property
    def centres(self) -> Float[Array, "g traits"]:
        """Each group's average of its components' :meth:`.LocalComponents.traits`."""
        local = self.local
        own = [self._members @ local.judged.coordinates if local.forward else self.totals]
        if local.shapes is not None:
            own.append(self._members @ local.shapes.coordinates)
        return np.hstack(own) / self.counts[:, None]

    def same(self, other: "Clustering") -> bool:
        """Return whether the groups are those of another clustering of the same components."""
        groups = len(self.counts)
        if groups != len(other.counts):
            return False
        pairs = np.bincount(self.labels * groups + other.labels)
        return np.count_nonzero(pairs) == groups

    def take_evidence(self, centres: Float[Array, "g traits"], evidence: Evidence) -> None:
        """Take the evidence on the groups, of known :attr:`centres`."""
        local = self.local
        along = local.along(self._members @ local.masses)
        vars(self)["judged"] = Judged.of(centres, evidence, self.counts, *local.totals, along)

    def costs(self, rows: Any = slice(None)) -> Float[Array, "some g"]:
        """Return the divergence of components to each centroid."""
        return self.local.points.take(rows).divergences(self.centroids)

    @property
    def own_costs(self) -> Float[Array, " n"]:
        """Divergence of each component to its centroid."""
        return self.local.points.paired_divergences(self.centroids, self.labels)

    @functools.cached_property
    def nearest(self) -> Int[Array, " n"]:
        """Labels of each site's best assignment to these centroids."""
        labels = np.empty(len(self.labels), int)
        for rows, some in self.local.points.differences(self.centroids):
            labels[rows] = finite(some).argmin(1)
        return self.exclusive(labels, np.arange(len(self.counts)))

    def exclusive(self, labels: Int[Array, " n"], groups: Int[Array, " some"]) -> Int[Array, " n"]:
        """Give sites with two components of one label their best assignment to these groups, in
        place; return the labels.
        """
        local = self.local
        sites = contested(labels, local.site, len(self.counts))
        for some in chunks(len(sites), 8 * len(self.counts) * local.largest, PIECE):
            rows, bounds = local.rows_of(sites[some])
            labels[rows] = groups[assign(self.costs(rows)[:, groups], bounds)]
        return labels

    def rivals(self, *, free: bool = False) -> Rivals:
        """Return the best other group for each component; if ``free``, of those in which its site
        has none.
        """
        labels = self.labels
        site = self.local.site
        taken = np.zeros((self.local.sites, len(self.counts)), bool)
        taken[site, labels] = free
        group = np.empty(len(labels), int)
        more = np.empty(len(labels))
        for rows, some in self.local.points.differences(self.centroids):
            at = np.arange(len(some))
            own = some[at, labels[rows]]
            some[at, labels[rows]] = np.inf
            some[taken[site[rows]]] = np.inf
            there = some.argmin(1)
            group[rows] = there
            more[rows] = some[at, there] - own
        return Rivals(group, more)

    def relabelled(self, labels: Int[Array, " n"]) -> "Clustering":
        """Return the clustering with other labels, without empty groups."""
        return Clustering(self.local, packed(labels))


def judge(clusterings: Sequence[Clustering]) -> None:
    """Compute :attr:`Clustering.judged` of clusterings of the same components, all at once."""
    local = clusterings[0].local
    centres = np.concatenate([own.centres for own in clusterings])
    evidence = local.evidence(centres)
    end = 0
    for own in clusterings:
        groups = slice(end, end + len(own.counts))
        end = groups.stop
        own.take_evidence(centres[groups], evidence.take(groups))


def packed(labels: Int[Array, " n"]) -> Int[Array, " n"]:
    """Return labels without gaps, in the same order."""
    return ((np.bincount(labels) > 0).cumsum() - 1)[labels]


def sums(
    rows: Float[Array, "n dim"], labels: Int[Array, " n"], groups: int | None = None
) -> Float[Array, "g dim"]:
    """Return the sums of rows by label, for ``groups`` labels or as many as occur."""
    return memberships(labels, int(labels.max()) + 1 if groups is None else groups) @ rows


def memberships(labels: Int[Array, " n"], groups: int) -> Any:
    """Return the membership matrix (G, n): a sparse one if it is large."""
    if groups * len(labels) <= SMALL:
        return (labels == np.arange(groups)[:, None]).astype(float)
    return membership(labels, groups)


def assign(
    costs: Float[Array, "n g"], starts: Int[Array, " bounds"], price: float = np.inf
) -> Int[Array, " n"]:
    """Return each site's best assignment of its rows to different columns (kuhn1955). With a finite
    ``price``, a row may stay unassigned at this cost; its label is then ``g``.
    """
    labels = finite(costs).argmin(1)
    groups = costs.shape[1]
    if price < np.inf:
        labels[costs[np.arange(len(costs)), labels] > price] = groups
    # If the nearest columns of a site differ, they are the best assignment.
    site = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    for at in contested(labels, site, groups).tolist():
        rows = slice(starts[at], starts[at + 1])
        own = costs[rows]
        if price < np.inf:
            own = np.hstack([own, np.full((len(own), len(own)), price)])
        labels[rows] = np.minimum(scipy.optimize.linear_sum_assignment(own)[1], groups)
    return labels


def contested(labels: Int[Array, " n"], site: Int[Array, " n"], groups: int) -> Int[Array, " some"]:
    """Return the sites that have two rows with one label below ``groups``."""
    width = groups + 1
    pairs = np.sort(site * width + labels)
    taken = pairs[1:][pairs[1:] == pairs[:-1]]
    return np.unique(taken[taken % width < groups] // width)


def refine(clustering: Clustering, *, sweeps: int = 20) -> Clustering:
    """Alternate assignment and centroids at a fixed number of groups; the misfit only falls."""
    return _improved(clustering, operator.attrgetter("nearest"), sweeps)


def polish(clustering: Clustering, *, sweeps: int = 10) -> Clustering:
    """Reassign all sites, each component to its own group's centroid without it, or to another's.

    Alternation stalls if a component keeps a centroid in place. Here it is removed first, and
    ``n / (n + 1)`` of the divergence is charged, the cost of joining ``n`` others to second order.
    """
    return _improved(clustering, _leave_one_out, sweeps)


def _improved(
    clustering: Clustering, proposed: Callable[[Clustering], Int[Array, " n"]], sweeps: int
) -> Clustering:
    """Take the proposed labels as long as the misfit falls and no group is empty."""
    for _ in range(sweeps):
        labels = proposed(clustering)
        if (labels == clustering.labels).all():
            break
        proposal = clustering.relabelled(labels)
        fewer = len(proposal.counts) < len(clustering.counts)
        if fewer or proposal.misfit >= clustering.misfit * (1 - 1e-9):
            break
        clustering = proposal
    return clustering


def _leave_one_out(clustering: Clustering, *, far: float = 16.0) -> Int[Array, " n"]:
    """Return each site's best labels, where each component's own group is the others' of it. Where
    all other groups are ``far`` times as far as the own one with it and a nat, nothing is computed.
    """
    local = clustering.local
    counts = clustering.counts
    out = clustering.labels.copy()
    for part, starts in local.parts(len(counts)):
        own = clustering.labels[part]
        at = np.arange(len(own))
        costs = clustering.costs(part) * (counts / (counts + 1))
        home = costs[at, own]
        costs[at, own] = np.inf
        if (costs.min(1) > far * (home + 1)).all():
            continue
        points = local.points.take(part)
        # A group of one component keeps its centroid, so that staying costs nothing.
        shared = counts[own] > 1
        left = np.maximum(counts[own] - 1, 1.0)
        rest = (clustering.totals[own] - points.coordinates) / left[:, None]
        others = points.centroids(np.where(shared[:, None], rest, points.coordinates))
        share = np.where(shared, left / (left + 1), 1.0)
        costs[at, own] = points.paired_divergences(others, at) * share
        out[part] = assign(costs, starts)
    return out
