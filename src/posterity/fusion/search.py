"""The default matching: merge, refine, drop, and keep the shortest description.

Everything runs in a canonical order of sites and components, given by their contents, so that
the result does not depend on the order in which they came.
"""

import dataclasses

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering, LocalComponents, assign, polish, refine
from posterity.fusion.criterion import buffet, description_length

Array = np.ndarray
SEED_COMPONENTS = 320
"""Components up to which all pairs are compared; beyond, a canonical sample of sites is."""
PATIENCE = 3
"""Numbers of groups without progress after which the search for fewer stops."""


@dataclasses.dataclass(frozen=True)
class Found:
    """The best clustering and how the objective fell on the way to it."""

    clustering: Clustering
    trace: list[float]


class Incumbent:
    """The best clustering so far; the trace of its objective never rises."""

    def __init__(self, clustering: Clustering):
        self.best, self.trace = clustering, [clustering.objective]

    def offer(self, clustering: Clustering) -> bool:
        """Keep it if it is better; say whether it was."""
        better = clustering.objective < self.trace[-1]
        if better:
            self.best = clustering
            self.trace.append(clustering.objective)
        return better


def search(local: LocalComponents, components: int | None = None) -> Found:
    """Cluster the components of all sites, into ``components`` groups or the best number.

    The objective is :attr:`Clustering.objective`, in nats; its trace never rises. Cost grows
    linearly with the number of sites: all pairs are compared within a sample of sites only.
    """
    sample = _sample(local)
    if len(sample) == len(local.points):
        return _search_sample(local, components)
    seed = _search_sample(local.take(sample), components)
    return _extend(local, seed.clustering, components)


# --- within the sample ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Merging:
    """Ward's merging from single components up: level ``k`` has ``N - k`` groups.

    Attributes:
        pairs: (M, 2) representatives of the two groups merged at each step; the first stays.
        objective: (M + 1,) the description length of each level.
    """

    local: LocalComponents
    pairs: Int[Array, "steps two"]
    objective: Float[Array, " levels"]

    def level(self, groups: int) -> Clustering | None:
        """The clustering with this many groups, if merging passed through it."""
        steps = len(self.local.points) - groups
        if not 0 <= steps <= len(self.pairs):
            return None
        labels = np.arange(len(self.local.points))
        for kept, gone in self.pairs[:steps]:
            labels[labels == gone] = kept
        return Clustering(self.local, np.unique(labels, return_inverse=True)[1])

    @property
    def fewest(self) -> int:
        """The number of groups that merging ended with."""
        return len(self.local.points) - len(self.pairs)


def _search_sample(local: LocalComponents, components: int | None) -> Found:
    merging = agglomerate(local)
    if components is not None:
        wanted = min(components, len(local.points))  # a sample may have fewer
        start = merging.level(max(wanted, merging.fewest))
        return _exactly(_certain(start), wanted)
    return _descend(merging)


def _descend(merging: Merging) -> Found:
    """Refine from a little above the best level of merging, down to where nothing improves."""
    groups = len(merging.local.points) - int(merging.objective.argmin())
    best = _certain(merging.level(groups))
    current = merging.level(groups + 1 + groups // 8) or best
    incumbent, waited, dropped = Incumbent(best), 0, None
    while True:
        groups = len(current.counts)
        options = [c for c in (merging.level(groups), dropped) if c is not None]
        current = min((polish(refine(c)) for c in options), key=lambda c: c.misfit)
        waited = 0 if incumbent.offer(current) else waited + 1
        dropped = drop(current)
        if dropped is None or waited > PATIENCE + groups // 8:
            return Found(incumbent.best, incumbent.trace)
        current = dropped


def _exactly(clustering: Clustering, components: int) -> Found:
    """Bring the number of groups to what was asked for."""
    clustering = polish(refine(clustering))
    while len(clustering.counts) > components:
        clustering = polish(refine(_certain(drop(clustering))))
    while len(clustering.counts) < components:
        clustering = polish(refine(split(clustering)))
    return Found(clustering, [clustering.objective])


def _certain(clustering: Clustering | None) -> Clustering:
    assert clustering is not None  # the number of components was checked to be feasible
    return clustering


def agglomerate(local: LocalComponents) -> Merging:
    """Merge the pair that raises the misfit least, never two of one site (ward1963).

    Distances are updated by the recurrence of Lance and Williams (lance1967), exact where
    divergences are quadratic; the objective of each level is the true one.
    """
    distance = _distances(local)
    counts, pairs = np.ones(len(distance)), []
    nearest = distance.argmin(1)
    least = distance[np.arange(len(distance)), nearest]
    while np.isfinite(least.min()):
        first, second = sorted((int(least.argmin()), int(nearest[least.argmin()])))
        _merge(distance, counts, first, second)
        pairs.append((first, second))
        # Rows whose nearest was one of the two, or may now be, are looked through again.
        stale = np.flatnonzero((nearest == first) | (nearest == second) | (distance[first] < least))
        stale = np.union1d(stale, [first, second])
        nearest[stale] = distance[stale].argmin(1)
        least[stale] = distance[stale, nearest[stale]]
    steps = np.array(pairs, dtype=int).reshape(-1, 2)
    return Merging(local, steps, _level_objectives(local, steps))


def _distances(local: LocalComponents) -> Float[Array, "n n"]:
    """Rise of the misfit by merging each pair, to second order; infinite within a site."""
    points = local.points
    one_way = points.divergences(points.centroids(points.coordinates))
    distance = (one_way + one_way.T) / 4
    distance[local.site[:, None] == local.site] = np.inf
    return distance


def _merge(distance: Array, counts: Array, first: int, second: int) -> None:
    """Fold ``second`` into ``first``, in place."""
    a, b = counts[first], counts[second]
    with np.errstate(invalid="ignore"):
        row = (a + counts) * distance[first] + (b + counts) * distance[second]
        row = (row - counts * distance[first, second]) / (a + b + counts)
    row = np.where(np.isnan(row), np.inf, np.maximum(row, 0.0))  # infinite: shares a site
    row[first] = np.inf
    distance[first], distance[:, first] = row, row
    distance[second], distance[:, second] = np.inf, np.inf
    counts[first] = a + b


def _level_objectives(
    local: LocalComponents, pairs: Int[Array, "steps two"]
) -> Float[Array, " levels"]:
    """The objective of every level, with the centroids of all merged groups in one call."""
    points, overall = local.points, local.overall
    totals, counts, merged = points.coordinates.copy(), np.ones(len(points)), []
    for kept, gone in pairs:
        totals[kept] += totals[gone]
        counts[kept] += counts[gone]
        merged.append(totals[kept] / counts[kept])
    found = points.centroids(np.reshape(merged, (-1, totals.shape[1])))
    centres = np.concatenate([points.coordinates, found.coordinates])
    potential = np.concatenate([points.potential, found.potential])
    between = potential - overall.potential
    between -= (centres - overall.coordinates) @ overall.gradient[0]
    return _follow(local, pairs, potential, np.maximum(between, 0.0))


def _follow(local: LocalComponents, pairs: Array, potential: Array, between: Array) -> Array:
    total = len(local.points)
    node, alive, counts = np.arange(total), np.ones(total, bool), np.ones(total)
    sites, dim = local.sites, local.points.coordinates.shape[1]
    objectives = []
    for step in range(len(pairs) + 1):
        if step:
            kept, gone = pairs[step - 1]
            node[kept], alive[gone] = total + step - 1, False
            counts[kept] += counts[gone]
        held, number = node[alive], counts[alive]
        misfit = max(float(local.points.potential.sum() - number @ potential[held]), 0.0)
        objectives.append(description_length(misfit, between[held], number, sites=sites, dim=dim))
    return np.array(objectives)


def drop(clustering: Clustering, tries: int = 3) -> Clustering | None:
    """Dissolve the group whose members lose least by going elsewhere; None if none can."""
    local, labels = clustering.local, clustering.labels
    if len(clustering.counts) <= local.largest():
        return None
    costs = local.points.divergences(clustering.centroids)
    own = costs[np.arange(len(costs)), labels]
    others = costs.copy()
    others[np.arange(len(costs)), labels] = np.inf
    loss = np.bincount(labels, others.min(1) - own)
    candidates = [
        clustering.relabelled(assign(np.delete(costs, group, axis=1), local.starts))
        for group in np.argsort(loss, kind="stable")[:tries]
    ]
    return min(candidates, key=lambda c: c.misfit)


def split(clustering: Clustering) -> Clustering:
    """Let the component that fits its group worst found a group of its own."""
    costs = clustering.local.points.divergences(clustering.centroids)
    own = costs[np.arange(len(costs)), clustering.labels]
    own[clustering.counts[clustering.labels] < 2] = -np.inf
    labels = clustering.labels.copy()
    labels[own.argmax()] = len(clustering.counts)
    return clustering.relabelled(labels)


# --- beyond the sample ---------------------------------------------------------------------------


def _sample(local: LocalComponents) -> Int[Array, " some"]:
    """The rows of the first sites in canonical order, which hold some hundred components."""
    ends = local.starts[1:]
    limit = max(SEED_COMPONENTS, int(ends[min(1, len(ends) - 1)]))
    return np.flatnonzero(ends[local.site] <= limit)


def _extend(local: LocalComponents, seed: Clustering, components: int | None) -> Found:
    """Assign all other sites, opening groups for what fits nowhere; then refine everything."""
    labels = _open(local, seed, components)
    current = refine(Clustering(local, labels), sweeps=8)
    incumbent = Incumbent(current)
    while components is None:
        smaller = drop(current, tries=1)
        if smaller is None:
            break
        smaller = refine(smaller, sweeps=4)
        if not incumbent.offer(smaller):
            break
        current = smaller
    if components is not None and len(current.counts) != components:
        return _exactly(current, components)
    return Found(incumbent.best, incumbent.trace)


def _open(local: LocalComponents, seed: Clustering, components: int | None) -> Int[Array, " n"]:
    """Labels of all components: a group of the seed's, or one of the outliers' own."""
    groups, points = len(seed.counts), local.points
    # With the number given, a group of one's own is for those who find no other.
    costs = points.divergences(seed.centroids)
    price = 1e6 * (1 + costs.max()) if components is not None else _price(seed)
    spare = np.full((len(costs), local.largest()), price)
    labels = assign(np.hstack([costs, spare]), local.starts)
    outliers = np.flatnonzero(labels >= groups)
    if len(outliers):
        # They are clustered by the same search, a bounded part of them at a time.
        labels[outliers] = groups + search(local.take(outliers)).clustering.labels
    return np.unique(labels, return_inverse=True)[1]


def _price(seed: Clustering) -> float:
    """The divergence, in nats, beyond which a component founds a group of its own.

    What a group costs in the description, but no less than twice what any component of the
    sample was found to differ from its group.
    """
    sites = seed.local.sites + 1
    dim = seed.local.points.coordinates.shape[1]
    extra = buffet(np.append(seed.counts, 1.0), sites) - buffet(seed.counts, sites)
    costs = seed.local.points.divergences(seed.centroids)
    own = costs[np.arange(len(costs)), seed.labels]
    scale = max(2 * own.mean() / dim, 1.0)
    return max(scale * (dim * np.log1p(seed.counts.mean()) / 2 + extra), 2 * own.max())
