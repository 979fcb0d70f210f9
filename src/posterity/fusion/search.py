"""The default matching: merge, refine, drop, and keep the shortest description.

Sites and components are put in a canonical order by their contents, so that the result does not
depend on the order in which they were passed.
"""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.arrays.typing import Int
from posterity.fusion.agglomeration import agglomerate
from posterity.fusion.clustering import (
    Clustering,
    assign,
    judge,
    packed,
    polish,
    refine,
)
from posterity.fusion.components import LocalComponents
from posterity.fusion.criterion import buffet
from posterity.fusion.effects import Effects

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

    ``levels`` has the least objective of those that were refined, for each number of groups.
    ``effects`` decided if sites differ by far more than sampling.
    """

    clustering: Clustering
    trace: list[float]
    levels: dict[int, float] = dataclasses.field(default_factory=dict)
    effects: Effects | None = None


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
    best = merging.level(merging.best)
    assert best is not None  # the best level exists
    more = merging.level(merging.best + 1)
    fewer = merging.level(merging.best - 1)
    known = [*filter(None, (best, more, fewer))]
    return _descend(best, more or best, thorough=True, known=known)


def _descend(
    best: Clustering,
    current: Clustering | None,
    *,
    thorough: bool,
    patience: int = 5,
    known: Sequence[Clustering] = (),
) -> SearchResult:
    """Refine clusterings with fewer and fewer groups, from the ``current`` one on, until several
    together are no better than the best. The trace of the objective never rises. What is known of
    some clusterings isn't computed again.
    """
    trace = [best.objective]
    levels = {len(best.counts): best.objective}
    waited = 0
    while current is not None:
        hopeless = current.objective - trace[-1] > most_gained(current)
        if not hopeless:
            current = polish(refine(current)) if thorough else refine(current, sweeps=2)
        groups = len(current.counts)
        objective = current.objective
        if not hopeless:
            levels[groups] = min(objective, levels.get(groups, np.inf))
        waited += 1
        if objective < trace[-1] - ROUNDING * abs(trace[-1]):
            best = current
            trace.append(objective)
            waited = 0
        if waited > patience or (hopeless and groups < len(best.counts)):
            break
        current = drop(current, 3) if thorough else shed(current)
        if current is not None:
            current = next(filter(current.same, known), current)
    return SearchResult(best, trace, levels)


def most_gained(clustering: Clustering) -> float:
    """Return an upper bound of the nats that polishing gains."""
    dim = clustering.local.points.coordinates.shape[1]
    groups = len(clustering.counts)
    return (HOPELESS + groups / 2) * dim


def _exactly(start: Clustering | None, components: int) -> SearchResult:
    """Drop or split groups until there are ``components``, which is known to be feasible."""
    clustering: Any = start
    clustering = polish(refine(clustering))
    step = drop if len(clustering.counts) > components else split
    while len(clustering.counts) != components:
        clustering = polish(refine(step(clustering)))  # pyright: ignore
    return SearchResult(clustering, [clustering.objective])


def drop(clustering: Clustering, tries: int = 1) -> Clustering | None:
    """Dissolve the group whose members lose least by moving, each to the best of the others; return
    None if none can go. Of several ``tries`` that lose up to what polishing may gain more, that one
    is taken that leaves the shortest description.
    """
    group, more = clustering.rivals()
    loss = np.bincount(clustering.labels, more)
    close = np.count_nonzero(loss <= loss.min() + most_gained(clustering))
    order = np.argsort(loss, kind="stable")
    return _without(clustering, order[: min(close, tries), None], group)


def shed(clustering: Clustering) -> Clustering | None:
    """Dissolve the group whose members lose least by moving to groups in which their sites have
    none, or two, or four, and so on, whichever leaves the shortest description. Of groups that take
    in members of each other only the one that loses least may go. Return None if none can go.
    """
    labels = clustering.labels
    group, more = clustering.rivals(free=True)
    order = np.argsort(np.bincount(labels, more), kind="stable")
    rank = np.argsort(order)
    least = rank.copy()
    np.minimum.at(least, group, rank[labels])
    np.minimum.at(least, labels, rank[group])
    apart = order[least[order] == rank[order]]
    numbers = 2 ** np.arange(len(apart).bit_length())
    return _without(clustering, [apart[:number] for number in numbers], group)


def _without(clustering: Clustering, options: Any, group: Int[Array, " n"]) -> Clustering | None:
    """Dissolve the set of groups, of several, that leaves the shortest description; its members
    move to the ``group`` of each.
    """
    groups = np.arange(len(clustering.counts))
    shorter = []
    for gone in options:
        if len(groups) - len(gone) >= clustering.local.largest:
            labels = np.where(np.isin(clustering.labels, gone), group, clustering.labels)
            labels = clustering.exclusive(labels, np.delete(groups, gone))
            option = clustering.relabelled(labels)
            if not any(map(option.same, shorter)):
                shorter.append(option)
    if len(shorter) < 2:
        return shorter[0] if shorter else None
    judge(shorter)
    return min(shorter, key=operator.attrgetter("objective"))


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
    """Assign all other sites, open groups for components that fit nowhere, and refine; dissolve
    groups as long as that is better.
    """
    current = Clustering(local, _open(local, seed, components))
    if components is None:  # the sample was polished
        current = refine(current, sweeps=2)
        return _descend(current, shed(current), thorough=False, patience=0)
    current = refine(current, sweeps=8)
    if len(current.counts) != components:
        return _exactly(current, components)
    return SearchResult(current, [current.objective])


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
