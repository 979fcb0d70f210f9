"""Merging of groups: of single components before the search, and of slices after it.

The search assumes that sites differ equally in all directions. If they differ more in some, and
there are very many sites, several slices have a shorter description than the one component: half a
nat per direction and member outweighs any price. So after the search, groups are merged as long as
this shortens a description in which the directions where sites differ most have their own
dispersions. Groups that are further apart than slices of their width are not merged. Halves that
differ in shape are recognised because no site has both, although many would by chance.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering, sums
from posterity.fusion.components import Evidence, Judged, LocalComponents
from posterity.fusion.geometry import CACHED, ROOM, Centroids, chunks, of_places

Array = np.ndarray
MANY = 12  # Least number of members of groups that may be slices, so that their width is known
APART = 20.0
"""Largest squared distance of the means of two slices, in variances within them: 7 for a normal
distribution cut at its mean, 12 for a uniform one cut often, more for narrow slices."""
HALVES, BY_CHANCE = 8.0, 10.0
"""The largest such distance of halves, and the least number of sites with both by chance."""
PATIENCE = 16  # Number of merges of slices without progress after which merging ends
DIRECTIONS = 64  # Largest number of directions of a location that are distinguished
RATIO, SCATTER = np.sqrt(2 / np.pi), np.sqrt(1 - 3 / np.pi)
"""The mean absolute deviation of a normal distribution over its standard deviation, and the
standard error of this ratio, times the root of the sample size (geary1935)."""
ERRORS = 3.0  # Standard errors of that ratio above which one group may be several
BY_LUCK = 1e-3  # Probability of a warning by chance, over all groups


@dataclasses.dataclass(frozen=True)
class Groups:
    """Statistics of groups: their counts, sums of traits, evidence and centroids."""

    counts: Float[Array, " groups"]
    traits: Float[Array, "groups traits"]
    evidence: Evidence
    centroids: Centroids

    def known(self, local: LocalComponents, own: Int[Array, " g"]) -> dict[str, Any]:
        """Return the cached values of a clustering into some of these groups."""
        counts = self.counts[own]
        traits = self.traits[own]
        evidence = Evidence(*(values[own] for values in self.evidence))
        return {
            "counts": counts,
            "totals": traits[:, : local.points.coordinates.shape[1]],
            "centroids": self.centroids.take(own),
            "judged": Judged.of(traits / counts[:, None], evidence, counts, *local.totals),
        }


@dataclasses.dataclass(frozen=True)
class Merging:
    """Ward's merging of single components: level ``k`` has ``N - k`` groups.

    ``pairs`` has the representatives of the two groups merged at each step, the first of which
    stays; ``made`` the number of the merged group; ``objective`` the description length of each
    level; ``every`` the statistics of the groups of all levels, or None to save memory.
    """

    local: LocalComponents
    pairs: Int[Array, "steps two"]
    objective: Float[Array, " levels"]
    made: Int[Array, " steps"]
    every: "Groups | None"

    def level(self, groups: int) -> Clustering | None:
        """Return the clustering with this number of groups, or None if merging had none."""
        steps = len(self.local.points) - groups
        if not 0 <= steps <= len(self.pairs):
            return None
        labels = np.arange(len(self.local.points))
        labels[self.pairs[:steps, 1]] = self.pairs[:steps, 0]
        while (labels != (further := labels[labels])).any():
            labels = further
        kept = np.bincount(labels) > 0
        clustering = Clustering(self.local, (kept.cumsum() - 1)[labels])
        if self.every is not None:
            own = self._numbers(steps)
            vars(clustering).update(self.every.known(self.local, own))
            column, costs = self._shared if groups <= self.top else (own, None)
            if costs is not None:
                vars(clustering)["_costs"] = costs[:, column[own]]
        return clustering

    @property
    def best(self) -> int:
        """The number of groups of the level with the shortest description."""
        return len(self.local.points) - int(self.objective.argmin())

    @property
    def top(self) -> int:
        """The number of groups from which a search for fewer starts."""
        return self.best + 1 + self.best // 8

    def _numbers(self, steps: int) -> Int[Array, " groups"]:
        """Return the numbers of the groups at a level, in the order of their representatives."""
        number = np.arange(len(self.local.points))
        number[self.pairs[:steps, 0]] = self.made[:steps]
        return np.delete(number, self.pairs[:steps, 1])

    @functools.cached_property
    def _shared(self) -> tuple[Int[Array, " numbers"], Float[Array, "n groups"] | None]:
        """The column of each group from the top level on, and the divergences to all of them, or
        None if these need too much memory.
        """
        assert self.every is not None  # otherwise no level needs them
        steps = max(len(self.local.points) - self.top, 0)
        numbers = np.concatenate([self._numbers(steps), self.made[steps:]])
        column = np.full(len(self.every.counts), -1)
        column[numbers] = np.arange(len(numbers))
        if 8 * len(self.local.points) * len(numbers) > ROOM:
            return column, None
        return column, self.local.points.divergences(self.every.centroids.take(numbers))

    @property
    def fewest(self) -> int:
        """The number of groups at the end of merging."""
        return len(self.local.points) - len(self.pairs)


def agglomerate(local: LocalComponents) -> Merging:
    """Merge the pair that raises the misfit least, never two groups with a common site. Objectives
    of levels are exact; distances are exact for quadratic divergences.
    """
    points = local.points
    total = len(local.points)
    distance = points.divergences(points.alone)
    distance = distance + distance.T
    distance /= 4  # the rise by merging each pair, to second order
    distance[local.site[:, None] == local.site] = np.inf
    tree = ward(distance, np.ones(total))
    own = local.traits()
    parts = np.concatenate([np.empty((2, 0), int), *tree.parts], axis=1).T
    counts = tree.weights
    traits = np.empty((len(counts), own.shape[1]), own.dtype)
    end = total
    traits[:total] = own
    for one, other in tree.parts:
        traits[end : (end := end + len(one))] = traits[one] + traits[other]
    centres = traits / counts[:, None]
    centroids = local.judged.centroids(centres[:, : local.judged.coordinates.shape[1]])
    evidence = local.evidence_of(centroids, centres)
    every = Groups(counts, traits, evidence, centroids)
    objective = _level_objectives(local, every, parts, tree.order)
    kept = None if local.wide or local.forward else every
    return Merging(local, tree.rows[tree.order], objective, total + tree.order, kept)


class Tree(NamedTuple):
    """Ward's tree: groups are numbered, single ones first, then those made at each step. ``rows``
    are the first members of the two groups merged at each step; ``parts`` their numbers, for steps
    that are made together; ``order`` has the steps sorted by distance.
    """

    rows: Int[Array, "steps two"]
    parts: list[Int[Array, "two some"]]
    order: Int[Array, " steps"]
    weights: Float[Array, " groups"]


def ward(distance: Float[Array, "n n"], weights: Float[Array, " n"]) -> Tree:
    """Merge the nearest groups until all distances are infinite; ``distance`` is overwritten.

    Distances are updated by the recurrence of Lance and Williams (ward1963, lance1967). Merging
    brings no group nearer to any other. So all pairs of mutually nearest groups are merged in one
    step, and the steps are sorted by distance at the end (murtagh1983).
    """
    total = len(distance)
    each = np.arange(total)
    parts = []
    rows = [np.empty((2, 0), int)]
    made = each.copy()  # the group of each row
    groups = 2 * total  # upper bound
    height = np.zeros(groups)
    sizes = np.empty(groups)
    sizes[:total], many = weights, total
    nearest = np.zeros(total, int)
    least = np.full(total, np.inf)
    stale = np.arange(total)
    while len(stale):
        for part in chunks(len(stale), 8 * total, CACHED):
            nearest[stale[part]] = distance[stale[part]].argmin(1)
        least[stale] = distance[stale, nearest[stale]]
        mutual = (nearest[nearest] == each) & (each < nearest) & (least < np.inf)
        first = mutual.nonzero()[0]
        first = first[least[first].argsort(kind="stable")]
        second = nearest[first]
        _merge(distance, sizes[made], first, second)
        rows.append(np.array([first, second]))
        one, other = own = made[rows[-1]]
        parts.append(own)
        made[first] = new = many + np.arange(len(first))
        many += len(first)
        sizes[new] = sizes[one] + sizes[other]
        height[new] = np.maximum(least[first], np.maximum(height[one], height[other]))
        # Only merged groups, and groups nearest to these, get another nearest group.
        touched = np.zeros(total, bool)
        touched[first] = touched[second] = True
        least[second] = np.inf
        stale = (touched[nearest] & (least < np.inf)).nonzero()[0] if len(first) else first
    order = np.argsort(height[total:many], kind="stable")
    return Tree(np.concatenate(rows, axis=1).T, parts, order, sizes[:many])


def _merge(distance: Array, counts: Array, first: Array, second: Array) -> None:
    """Merge rows into others, in place and one after the other. Infinite distances, between groups
    with a common site, stay infinite.
    """
    a = counts[first, None]
    b = counts[second, None]
    apart = distance[first, second][:, None]

    def joined(one: Array, other: Array, size: Array) -> Array:
        row = (a + size) * one
        row += (b + size) * other
        row -= size * apart
        return np.maximum(row / (a + b + size), 0.0)

    rows = joined(distance[first], distance[second], counts)
    both = joined(rows[:, first].T, rows[:, second].T, counts[first] + counts[second])
    lower = np.tril(both)  # the diagonal is infinite
    distance[first], distance[:, first] = rows, rows.T
    distance[first[:, None], first] = lower + lower.T
    distance[second], distance[:, second] = np.inf, np.inf


def _level_objectives(
    local: LocalComponents,
    every: Groups,
    parts: Int[Array, "merged two"],
    order: Int[Array, " merged"],
) -> Float[Array, " levels"]:
    """Return the objective of each level: terms of merged groups, minus those of their two
    ``parts``, are summed in the ``order`` of merging.
    """
    criterion = local.criterion
    total = len(local.points)
    counts = every.counts
    evidence = every.evidence

    def levels(worth: Array) -> Array:
        change = worth[total:] - worth[parts[:, 0]] - worth[parts[:, 1]]
        start = worth[:total].sum(0)
        return start + np.concatenate([np.zeros((1, *start.shape)), change[order].cumsum(0)])

    misfit = local.totals[0] - levels(counts * evidence.potential)
    shape = local.totals[1] - levels(counts * evidence.shape)
    _, _, surprise, typical = (values[:, None] for values in evidence)
    prices = criterion.prices(surprise, typical, counts[:, None], criterion.spreads)
    price, _ = criterion.shortest(levels(prices))
    return criterion.length_of_sums(misfit, shape, price, total - np.arange(len(order) + 1))


def merge_slices(clustering: Clustering) -> Clustering:
    """Merge slices of one component; return the clustering itself if there are none."""
    clustering = _halves_merged(clustering)
    local = clustering.local
    counts = clustering.counts
    apart = ~_together(clustering)
    many = counts >= MANY
    several = apart & many & many[:, None] & ~np.eye(len(many), dtype=bool)
    if not 2 <= local.criterion.located <= _directions(local) or not several.any():
        return clustering
    places = Places.of(local)
    best = clustering
    waited = 0
    least = places.length(clustering)
    while waited < PATIENCE and (pair := places.nearest(clustering)):
        clustering = _merged(clustering, *pair)
        waited = waited + 1
        length = places.length(clustering)
        if length < least:
            least = length
            best = clustering
            waited = 0
    return best


def hollow(clustering: Clustering) -> list[int]:
    """Return groups that may be several: along the direction in which their members differ most,
    the ratio of mean absolute to standard deviation exceeds that of a normal distribution.
    """
    local = clustering.local
    large = np.flatnonzero(np.bincount(clustering.labels) >= 2 * MANY)
    if not len(large) or not 1 <= local.criterion.located <= _directions(local):
        return []
    places = Places.of(local)
    groups = []
    errors = max(ERRORS, -scipy.special.ndtri(BY_LUCK / len(large)))
    for group in large.tolist():
        own = places.points[clustering.labels == group]
        own = own - own.mean(0)
        along = own @ np.linalg.eigh(own.T @ own)[1][:, -1]
        ratio = np.abs(along).mean() / max(along.std(), np.finfo(float).tiny)
        if (ratio - RATIO) * np.sqrt(len(along)) > errors * SCATTER:
            groups.append(group)
    return groups


def _directions(local: LocalComponents) -> int:
    """Return the number of directions that the number of components can distinguish."""
    return min(DIRECTIONS, len(local.points) // 4)


def _merged(clustering: Clustering, first: int, second: int) -> Clustering:
    """Return the clustering with two groups merged."""
    return clustering.relabelled(np.where(clustering.labels == second, first, clustering.labels))


def _halves_merged(clustering: Clustering) -> Clustering:
    """Merge halves: pairs of groups without a gap between them, both of which no site has, although
    many sites would if groups were independent.
    """
    sizes = np.diff(clustering.local.starts)
    while True:
        counts = clustering.counts
        share = np.where(counts >= MANY, counts, 0.0) / sizes.sum()
        both = np.outer(share, share) * (sizes * (sizes - 1)).sum()
        pairs = np.argwhere(np.triu((both >= BY_CHANCE) & ~_together(clustering), 1)).tolist()
        gaps = []
        for first, second in pairs:  # compared by differences of costs to the two groups
            rows = [np.flatnonzero(clustering.labels == group) for group in (first, second)]
            costs = [clustering.costs(own) for own in rows]
            gaps.append(_gap(*(own[:, second] - own[:, first] for own in costs)))
        if min(gaps, default=np.inf) > HALVES:
            return clustering
        clustering = _merged(clustering, *pairs[int(np.argmin(gaps))])


def _gap(one: Array, other: Array) -> float:
    """Return the squared distance of the means of a statistic of two groups, in variances within
    them. The variance is at least the distance, which sampling alone causes.
    """
    distance = one.mean() - other.mean()
    within = (len(one) * one.var() + len(other) * other.var()) / (len(one) + len(other))
    return float(distance**2 / max(within, distance, np.finfo(float).tiny))


def _together(clustering: Clustering) -> Array:
    """Return a matrix of the pairs of groups that some site has both of."""
    holds = np.zeros((clustering.local.sites, len(clustering.counts)), np.float32)
    holds[clustering.local.site, clustering.labels] = 1.0
    return holds.T @ holds > 0


@dataclasses.dataclass(frozen=True)
class Places:
    """Centred locations of components, in standard deviations of an average component, and their
    observations relative to the average; ones if unknown.
    """

    points: Float[Array, "n located"]
    weights: Float[Array, " n"]

    @classmethod
    def of(cls, local: LocalComponents) -> "Places":
        """Make it for all components, in the metric of an average component's divergence."""
        assert local.shapes is not None
        members = local.judged.members(slice(None))
        shapes = local.shapes
        place = members.location()
        known = members.observations()
        parts: list[Array] = []
        of_places(parts.append, place)
        points = np.hstack(parts)
        scale = np.where((spread := points.std(0)) > 0, spread, 1.0)
        average = shapes.family(np.repeat(shapes.middle[0], len(scale) + 1, axis=0))
        steps = np.vstack([np.zeros(len(scale)), np.diag(scale)])
        ends = np.cumsum([own.shape[-1] for own in parts])[:-1]
        offsets = iter(np.split(steps, ends, axis=1))
        moved = average.translate(of_places(lambda _: next(offsets), place))
        # A translation changes both parameters linearly, up to terms that the other one lacks.
        natural, mean = (p[1:] - p[0] for p in (moved.natural_parameters, moved.mean_parameters))
        metric = (natural @ mean.T + mean @ natural.T) / 2
        points = (points / scale) @ np.linalg.cholesky(metric)
        weights = np.ones(len(points)) if known is None else known / known.mean()
        return cls(points - points.mean(0), weights)

    def length(self, clustering: Clustering) -> float:
        """Return the description length, in nats, with own dispersions of leading directions."""
        judged = clustering.judged
        criterion = clustering.local.criterion
        sizes, means = self._groups(clustering)
        scatter = (self.weights[:, None] * self.points).T @ self.points
        shares = np.maximum(np.linalg.eigvalsh(scatter - (sizes[:, None] * means).T @ means), 0.0)
        shares = shares[::-1] / max(shares.sum(), np.finfo(float).tiny)
        misfit = max(judged.misfit - judged.shape, 0.0)
        saved = criterion.saved(misfit * shares, len(sizes))
        return judged.length(criterion, clustering.counts) - saved

    def nearest(self, clustering: Clustering) -> tuple[int, int] | None:
        """Return the two groups whose merge raises the scatter within groups least, relative to its
        width, among pairs that no site has both of and that are not too far apart; or None.
        """
        sizes, means = self._groups(clustering)
        within = self.points - means[clustering.labels]
        scatter = (self.weights[:, None] * within).T @ within / len(within)
        root = np.linalg.cholesky(np.linalg.inv(scatter + np.eye(len(scatter))))
        first, second = np.nonzero(np.triu(~_together(clustering), 1))
        distance = (((means[first] - means[second]) @ root) ** 2).sum(1)
        rise = distance * sizes[first] * sizes[second] / (sizes[first] + sizes[second])
        order = np.argsort(rise, kind="stable")
        pairs = zip(first[order].tolist(), second[order].tolist(), strict=True)
        return next((pair for pair in pairs if self.gap(clustering, *pair) <= APART), None)

    def gap(self, clustering: Clustering, first: int, second: int) -> float:
        """Return the :func:`_gap` of two groups along the line through their means."""
        one, other = (self.points[clustering.labels == group] for group in (first, second))
        line = one.mean(0) - other.mean(0)
        return _gap(one @ line, other @ line)

    def _groups(self, clustering: Clustering) -> tuple[Array, Array]:
        """Return the weight (g,) and the mean (g, located) of each group."""
        sizes = np.bincount(clustering.labels, self.weights)
        totals = sums(self.weights[:, None] * self.points, clustering.labels)
        return sizes, totals / sizes[:, None]
