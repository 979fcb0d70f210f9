"""The default matching: merge, refine, drop, and keep the shortest description.

Sites and components are put in a canonical order by their contents, so that the result does not
depend on the order in which they were passed.
"""

import dataclasses
from typing import Any

import numpy as np

from posterity.arrays.typing import Int
from posterity.fusion.agglomeration import Merging, agglomerate
from posterity.fusion.clustering import (
    Clustering,
    assign,
    packed,
    polish,
    refine,
)
from posterity.fusion.components import LocalComponents
from posterity.fusion.criterion import buffet
from posterity.fusion.effects import Effects
from posterity.fusion.geometry import PIECE, chunks

Array = np.ndarray
SEED_COMPONENTS = 320
"""Number of components up to which all pairs are compared; of more, a canonical sample."""
HOPELESS = 8.0
"""Nats per parameter, plus half a nat per group, that polishing cannot gain: on varied problems it
never gained more than six in all, nor more than half a nat per group."""
ROUNDING = 1e-12  # Relative difference of objectives that summation in another order may cause


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The best clustering and the trace of its objective.

    ``levels`` has the least objective for each number of groups. ``effects`` decided if
    sites differ by far more than sampling.
    """

    clustering: Clustering
    trace: list[float]
    levels: dict[int, float] = dataclasses.field(default_factory=dict)
    effects: Effects | None = None


class Incumbent:
    """The best clustering so far; the trace of its objective never rises."""

    def __init__(self, clustering: Clustering):
        self.best = clustering
        self.trace = [clustering.objective]
        self.levels = {len(clustering.counts): clustering.objective}

    def offer(self, clustering: Clustering) -> bool:
        """Keep a clustering if it is better by more than rounding; return whether it was."""
        groups = len(clustering.counts)
        objective = clustering.objective
        self.levels[groups] = min(objective, self.levels.get(groups, np.inf))
        better = objective < self.trace[-1] - ROUNDING * abs(self.trace[-1])
        if better:
            self.best = clustering
            self.trace.append(objective)
        return better


def search(local: LocalComponents, components: int | None = None) -> SearchResult:
    """Cluster the components of all sites into ``components`` groups or the best number.

    The objective is :attr:`Clustering.objective`, in nats; its trace never rises. Time grows
    linearly with the number of sites: all pairs are compared only within a sample of sites.
    """
    # The sample is the first sites in canonical order, with some hundred components.
    ends = local.starts[1:]
    limit = max(SEED_COMPONENTS, int(ends[min(1, len(ends) - 1)]))
    sample = np.flatnonzero(ends[local.site] <= limit)
    if len(sample) == len(local.points):
        return _search_sample(local, components)
    seed = _search_sample(local.take(sample), components)
    return _extend(local, seed.clustering, components)


def _search_sample(local: LocalComponents, components: int | None) -> SearchResult:
    merging = agglomerate(local)
    if components is not None:
        wanted = min(components, len(local.points))  # a sample may have fewer
        start = merging.level(max(wanted, merging.fewest))
        return _exactly(start, wanted)
    return _descend(merging)


def _descend(merging: Merging, *, patience: int = 5) -> SearchResult:
    """Refine clusterings with fewer and fewer groups, from one more than the best level of merging
    has, until several together are no better.
    """
    best = merging.level(merging.best)
    assert best is not None  # the best level exists
    incumbent = Incumbent(best)
    current = merging.level(merging.best + 1) or best
    waited = 0
    while current is not None:
        current = refine(current)
        hopeless = current.objective - incumbent.trace[-1] > most_gained(current)
        current = current if hopeless else polish(current)
        waited = 0 if incumbent.offer(current) else waited + 1
        beyond = hopeless and len(current.counts) < len(incumbent.best.counts)
        current = None if beyond or waited > patience else drop(current)
    return SearchResult(incumbent.best, incumbent.trace, incumbent.levels)


def most_gained(clustering: Clustering) -> float:
    """Return an upper bound of the nats that polishing gains."""
    dim = clustering.local.points.coordinates.shape[1]
    groups = len(clustering.counts)
    return (HOPELESS + groups / 2) * dim


def _exactly(start: Clustering | None, components: int) -> SearchResult:
    """Drop or split groups until there are ``components``, which is known to be feasible."""
    clustering: Any = start
    clustering = polish(refine(clustering))
    while len(clustering.counts) > components:
        clustering = polish(refine(drop(clustering)))  # pyright: ignore
    while len(clustering.counts) < components:
        clustering = polish(refine(split(clustering)))  # pyright: ignore
    return SearchResult(clustering, [clustering.objective])


def drop(clustering: Clustering) -> Clustering | None:
    """Dissolve the group whose members lose least by moving; return None if none can go."""
    if len(clustering.counts) <= clustering.local.largest:
        return None
    loss = np.bincount(clustering.labels, clustering.rivals.more)
    return _without(clustering, loss.argmin())


def _without(clustering: Clustering, gone: Any) -> Clustering:
    """Dissolve one group or several: their components are assigned to the nearest of the others."""
    labels = clustering.nearest.copy()
    kept = np.ones(len(clustering.counts), bool)
    kept[gone] = False
    rows = np.flatnonzero(~kept[labels])
    left = np.flatnonzero(kept)
    for some in chunks(len(rows), 8 * len(kept), PIECE):
        part = rows[some]
        labels[part] = left[clustering.costs(part)[:, left].argmin(1)]
    return clustering.relabelled(clustering.exclusive(labels, left))


def split(clustering: Clustering) -> Clustering | None:
    """Move the worst-fitting component of those that are not alone to a new group; return None if
    all are alone.
    """
    groups = len(clustering.counts)
    if groups == len(clustering.labels):
        return None
    shared = clustering.counts[clustering.labels] > 1
    labels = clustering.labels.copy()
    labels[np.where(shared, clustering.own_costs, -1.0).argmax()] = groups
    return clustering.relabelled(labels)


def _extend(local: LocalComponents, seed: Clustering, components: int | None) -> SearchResult:
    """Assign all other sites, open groups for components that fit nowhere, and refine."""
    current = refine(Clustering(local, _open(local, seed, components)), sweeps=8)
    incumbent = Incumbent(current)
    better = components is None
    while better and len(current.counts) > local.largest:
        current = refine(_shed(current), sweeps=4)
        better = incumbent.offer(current)
    if components is not None and len(current.counts) != components:
        return _exactly(current, components)
    return SearchResult(incumbent.best, incumbent.trace, incumbent.levels)


def _shed(clustering: Clustering) -> Clustering:
    """Dissolve the group whose members lose least by moving, or two, or four, and so on, as long as
    more are better; none that takes in members of another one.
    """
    rivals = clustering.rivals
    loss = np.bincount(clustering.labels, rivals.more)
    pairs = set(zip(clustering.labels.tolist(), rivals.group.tolist(), strict=True))
    chosen: list[int] = []
    for group in np.argsort(loss, kind="stable").tolist():
        if not any({(group, own), (own, group)} & pairs for own in chosen):
            chosen.append(group)
    chosen = chosen[: len(loss) - clustering.local.largest]
    best = _without(clustering, chosen[:1])
    number = 2
    while number < 2 * len(chosen):
        fewer = _without(clustering, chosen[:number])
        if fewer.objective >= best.objective:
            break
        best = fewer
        number = 2 * number
    return best


def _open(local: LocalComponents, seed: Clustering, components: int | None) -> Int[Array, " n"]:
    """Label all components with groups of the seed or, for outliers, new groups."""
    groups = len(seed.counts)
    labels = np.empty(len(local.points), int)
    price = np.inf if components is not None else price_of_a_group(seed)
    for rows, starts in local.parts(groups):
        costs = local.points.take(rows).divergences(seed.centroids)
        labels[rows] = assign(costs, starts, price)
    outliers = np.flatnonzero(labels == groups)
    if len(outliers):
        # Outliers are clustered by the same search, a bounded part of them at a time.
        labels[outliers] = groups + search(local.take(outliers)).clustering.labels
    return packed(labels)


def price_of_a_group(seed: Clustering) -> float:
    """Return the divergence, in nats, above which a component gets a group of its own: the cost of
    a group in the description, but at least twice the largest divergence of a component of the
    sample from its centroid.
    """
    sites = seed.local.sites + 1
    dim = seed.local.points.coordinates.shape[1]
    extra = buffet(np.append(seed.counts, 1.0), sites) - buffet(seed.counts, sites)
    own = seed.own_costs
    scale = max(2 * own.mean() / dim, 1.0)
    return max(scale * (dim * np.log1p(seed.counts.mean()) / 2 + extra), 2 * own.max())
