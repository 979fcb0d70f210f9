"""The default matching: merge, refine, drop, and keep the shortest description.

Everything runs in a canonical order of sites and components, given by their contents, so that
the result does not depend on the order in which they came.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from posterity.fusion.clustering import Clustering, Problem, assign, polish, refine
from posterity.fusion.criterion import buffet

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


def search(problem: Problem, components: int | None = None) -> Found:
    """Cluster the components of all sites, into ``components`` groups or the best number.

    The objective is :attr:`Clustering.objective`, in nats; its trace never rises. Cost grows
    linearly with the number of sites: all pairs are compared within a sample of sites only.
    """
    sample = _sample(problem)
    whole = len(sample) == problem.sites
    seed = problem if whole else problem.keep(sample)
    found = _search_seed(seed, components)
    return found if whole else _extend(problem, sample, found.clustering, components)


# --- within the sample ---------------------------------------------------------------------------


def _search_seed(problem: Problem, components: int | None) -> Found:
    levels = agglomerate(problem)
    if components is not None:
        start = next((c for c in levels if len(c.counts) <= components), levels[-1])
        return _exactly(start, components)
    return _descend(levels)


def _descend(levels: list[Clustering]) -> Found:
    """Refine from a little above the best level of merging, down to where nothing improves."""
    best = min(levels, key=lambda level: level.objective)
    top = len(best.counts) + 1 + len(best.counts) // 8
    by_size = {len(level.counts): level for level in levels}
    current = by_size.get(top, best)
    incumbent, waited, dropped = Incumbent(best), 0, None
    while True:
        size = len(current.counts)
        options = [c for c in (by_size.get(size), dropped) if c is not None]
        refined = [polish(refine(option)) for option in options or [current]]
        current = min(refined, key=lambda c: c.misfit)
        waited = 0 if incumbent.offer(current) else waited + 1
        if waited > PATIENCE + size // 8 or size <= current.problem.largest():
            return Found(incumbent.best, incumbent.trace)
        dropped = drop(current)
        if dropped is None or (size - 1 not in by_size and len(dropped.counts) >= size):
            return Found(incumbent.best, incumbent.trace)
        current = dropped


def _exactly(clustering: Clustering, components: int) -> Found:
    """Bring the number of groups to what was asked for."""
    clustering = polish(refine(clustering))
    incumbent = Incumbent(clustering)
    while len(clustering.counts) > components:
        smaller = drop(clustering)
        if smaller is None:
            break
        clustering = polish(refine(smaller))
        incumbent = Incumbent(clustering)
    while len(clustering.counts) < components:
        clustering = polish(refine(split(clustering)))
        incumbent = Incumbent(clustering)
    return Found(clustering, incumbent.trace)


def agglomerate(problem: Problem) -> list[Clustering]:
    """Ward's merging from single components up, never two of one site (ward1963).

    Distances are updated by the recurrence of Lance and Williams, exact where divergences are
    quadratic; the levels returned carry their true misfit.
    """
    distance = _distances(problem)
    counts, labels = np.ones(len(distance)), np.arange(len(distance))
    levels = [Clustering(problem, labels.copy())]
    while True:
        first, second = divmod(int(distance.argmin()), len(distance))
        if not np.isfinite(distance[first, second]):
            return levels
        _merge(distance, counts, first, second)
        labels[labels == second] = first
        levels.append(levels[-1].relabelled(labels))


def _distances(problem: Problem) -> Float[Array, "n n"]:
    """Rise of the misfit by merging each pair, to second order; infinite within a site."""
    points = problem.points
    one_way = points.divergences(points.centroids(points.coordinates))
    distance = (one_way + one_way.T) / 4
    distance[problem.site[:, None] == problem.site] = np.inf
    return distance


def _merge(distance: Array, counts: Array, first: int, second: int) -> None:
    """Fold ``second`` into ``first``, in place (lance1967)."""
    a, b = counts[first], counts[second]
    with np.errstate(invalid="ignore"):
        row = (a + counts) * distance[first] + (b + counts) * distance[second]
        row = (row - counts * distance[first, second]) / (a + b + counts)
    row = np.where(np.isnan(row), np.inf, np.maximum(row, 0.0))  # infinite: shares a site
    row[first] = np.inf
    distance[first], distance[:, first] = row, row
    distance[second], distance[:, second] = np.inf, np.inf
    counts[first] = a + b


def drop(clustering: Clustering, tries: int = 3) -> Clustering | None:
    """Dissolve the group whose members lose least by going elsewhere; None if none can."""
    groups = len(clustering.counts)
    if groups <= clustering.problem.largest():
        return None
    problem = clustering.problem
    costs = problem.points.divergences(clustering.centroids)
    own = costs[np.arange(len(costs)), clustering.labels]
    others = costs.copy()
    others[np.arange(len(costs)), clustering.labels] = np.inf
    loss = np.bincount(clustering.labels, others.min(1) - own)
    candidates = []
    for group in np.argsort(loss, kind="stable")[:tries]:
        labels = assign(np.delete(costs, group, axis=1), problem.starts)
        candidates.append(clustering.relabelled(labels))
    return min(candidates, key=lambda c: c.misfit)


def split(clustering: Clustering) -> Clustering:
    """Let the component that fits its group worst found a group of its own."""
    costs = clustering.problem.points.divergences(clustering.centroids)
    own = costs[np.arange(len(costs)), clustering.labels]
    own[clustering.counts[clustering.labels] < 2] = -np.inf
    labels = clustering.labels.copy()
    labels[own.argmax()] = len(clustering.counts)
    return clustering.relabelled(labels)


# --- beyond the sample ---------------------------------------------------------------------------


def _sample(problem: Problem) -> Int[Array, " some"]:
    """Sites, from the first in canonical order, that hold some hundred components."""
    ends = np.cumsum(np.diff(problem.starts))
    limit = max(SEED_COMPONENTS, int(ends[min(1, len(ends) - 1)]))
    return np.flatnonzero(ends <= limit)


def _extend(
    problem: Problem, sample: Int[Array, " some"], seed: Clustering, components: int | None
) -> Found:
    """Assign all other sites, opening groups for what fits nowhere; then refine everything."""
    labels = _open(problem, sample, seed, components)
    current = refine(Clustering(problem, labels), sweeps=8)
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


def _open(
    problem: Problem, sample: Int[Array, " some"], seed: Clustering, components: int | None
) -> Int[Array, " n"]:
    """Labels of all components: a group of the seed's, or one of the outliers' own."""
    centroids, points = seed.centroids, problem.points
    groups = len(seed.counts)
    price = np.inf if components is not None else _price(seed)
    costs = points.divergences(centroids)
    largest = problem.largest()
    spare = np.full((len(costs), largest), price)
    labels = assign(np.hstack([costs, np.where(np.isfinite(spare), spare, 1e300)]), problem.starts)
    outliers = np.flatnonzero(labels >= groups)
    if len(outliers):
        labels[outliers] = groups + _group_outliers(problem, outliers)
    del sample
    return np.unique(labels, return_inverse=True)[1]


def _price(seed: Clustering) -> float:
    """The misfit, in nats, at which a group of one's own is the shorter description."""
    alone = np.append(seed.counts, 1.0)
    dim = seed.problem.points.coordinates.shape[1]
    extra = buffet(alone, seed.problem.sites + 1) - buffet(seed.counts, seed.problem.sites + 1)
    own = np.sort(seed.problem.points.divergences(seed.centroids).min(1))
    typical = 2 * own.mean() / dim
    return max(typical, 1.0) * (dim * np.log1p(seed.counts.mean()) / 2 + max(extra, 0.0))


def _group_outliers(problem: Problem, outliers: Int[Array, " some"]) -> Int[Array, " some"]:
    """Cluster what fits nowhere by the same search, a bounded part of it at a time."""
    site = problem.site[outliers]
    present, sizes = np.unique(site, return_counts=True)
    inner = Problem(problem.points.take(outliers), np.concatenate([[0], np.cumsum(sizes)]))
    del present
    return search(inner).clustering.labels
