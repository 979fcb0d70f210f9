"""The default matching: merge, refine, drop, and keep the shortest description.

Sites and components are put in a canonical order by their contents, so that the result does not
depend on the order in which they were passed.
"""

import dataclasses
import operator
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.agglomeration import Merging, agglomerate
from posterity.fusion.clustering import (
    Clustering,
    assign,
    contested,
    find_centroids,
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
STRIDE = 64  # Number of groups from which the search for fewer drops several at a time
HOPELESS = 8.0
"""Nats per parameter, plus half a nat per group, that polishing cannot gain: on varied problems it
never gained more than six in all, nor more than half a nat per group."""
ROUNDING = 1e-12  # Relative difference of objectives that summation in another order may cause
SWEEPS = 2  # Number of polishing sweeps for wide components


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


def _descend(merging: Merging) -> SearchResult:
    """Refine levels from a little above the best one of merging down, until nothing improves. Of
    many groups several are dropped at a time; then single ones around the best number.
    """
    groups = merging.best
    level = merging.level(groups)
    total = len(merging.local.points)
    assert level is not None  # the best level exists
    incumbent = Incumbent(level)
    step = 1 + groups // STRIDE
    if merging.local.wide:  # only the best level is refined
        incumbent.offer(polish(refine(level), sweeps=SWEEPS))
        levels = {total - at: float(objective) for at, objective in enumerate(merging.objective)}
        return SearchResult(incumbent.best, incumbent.trace, levels | incumbent.levels)
    _walk(merging, incumbent, merging.top, step)
    if step > 1:
        _walk(merging, incumbent, len(incumbent.best.counts) + step - 1, 1, patience=step)
    return SearchResult(incumbent.best, incumbent.trace, incumbent.levels)


def _walk(
    merging: Merging, incumbent: Incumbent, groups: int, step: int, patience: int | None = None
) -> None:
    """Offer refined clusterings with fewer and fewer groups, until none is better for as many
    numbers as ``patience`` says, by default three and an eighth of the groups.
    """
    current = merging.level(groups) or incumbent.best
    waited = 0
    dropped = current
    while True:
        groups = len(current.counts)
        current = _better(merging.level(groups), dropped, incumbent)
        waited = 0 if incumbent.offer(current) else waited + step
        hopeless = _hopeless(current, incumbent)
        beyond = hopeless and groups < len(incumbent.best.counts)
        if beyond or waited > (3 + groups // 8 if patience is None else patience):
            return
        tries = 1 if hopeless else 3
        if step == 1:
            dropped = drop(current, tries)
        else:  # at most ``step`` groups, those whose members lose least
            rivals = _rivals(current)
            order = np.argsort(np.bincount(current.labels, rivals.more), kind="stable")
            chosen = _independent(current, rivals, order, step)
            dropped = _without(current, np.array([chosen]), rivals)[0] if chosen else None
        if dropped is None:
            return
        current = dropped


def _better(level: Clustering | None, dropped: Clustering, incumbent: Incumbent) -> Clustering:
    """Return the clustering with less misfit, refined, and polished if that may help."""
    if level is not None and level.same(dropped):
        dropped = level  # has more cached values
    refined = refine(dropped)
    if level is None or level is dropped or level.same(refined):
        return _promising(refined, incumbent)
    other = refine(level)
    if other.same(refined):
        return _promising(other, incumbent)
    return min(
        (_promising(c, incumbent) for c in (other, refined)), key=operator.attrgetter("misfit")
    )


def _promising(clustering: Clustering, incumbent: Incumbent) -> Clustering:
    """Polish a clustering, unless that cannot make it the best."""
    return clustering if _hopeless(clustering, incumbent) else polish(clustering)


def _hopeless(clustering: Clustering, incumbent: Incumbent) -> bool:
    """Return whether a clustering is worse than the best by more than polishing can gain."""
    return clustering.objective - incumbent.trace[-1] > _most(clustering)


def _most(clustering: Clustering) -> float:
    """Return an upper bound of the nats that polishing gains."""
    dim = clustering.local.points.coordinates.shape[1]
    groups = len(clustering.counts)
    return (HOPELESS + groups / 2) * dim


def _exactly(start: Clustering | None, components: int) -> SearchResult:
    """Drop or split groups until there are ``components``, which is known to be feasible."""
    clustering: Any = start
    sweeps = SWEEPS if clustering.local.wide else 10
    clustering = polish(refine(clustering), sweeps=sweeps)
    while len(clustering.counts) > components:
        clustering = polish(refine(drop(clustering)), sweeps=sweeps)  # pyright: ignore
    while (missing := components - len(clustering.counts)) > 0:
        clustering = refine(split(clustering, 1 + missing // 2))
        if len(clustering.counts) == components:
            clustering = polish(clustering, sweeps=sweeps)
    return SearchResult(clustering, [clustering.objective])


def drop(clustering: Clustering, tries: int = 3) -> Clustering | None:
    """Dissolve the group whose members lose least by moving; return None if none can go."""
    if len(clustering.counts) <= clustering.local.largest:
        return None
    rivals = _rivals(clustering)
    loss = np.bincount(clustering.labels, rivals.more)
    options = _without(clustering, np.argsort(loss, kind="stable")[:tries, None], rivals)
    find_centroids(options)
    return min(options, key=operator.attrgetter("misfit"))


class _Rivals(NamedTuple):
    """The best other group for each component, and the loss by moving there."""

    group: Int[Array, " n"]
    more: Float[Array, " n"]


def _rivals(clustering: Clustering) -> _Rivals:
    labels = clustering.labels
    group = np.empty(len(labels), int)
    more = np.empty(len(labels))
    for rows, some in clustering.pieces():
        at = np.arange(len(some))
        own = some[at, labels[rows]]
        some[at, labels[rows]] = np.inf
        group[rows] = there = some.argmin(1)
        more[rows] = some[at, there] - own
    return _Rivals(group, more)


def _independent(
    clustering: Clustering, rivals: _Rivals, groups: Array, number: int | None = None
) -> list[int]:
    """Return the first of these groups that can go together: none hosts another's members."""
    chosen, (gone, hosts) = [], np.zeros((2, len(clustering.counts)), bool)
    spare = len(gone) - clustering.local.largest
    spare = spare if number is None else min(spare, number)
    ends = clustering.counts.cumsum().astype(int)[:-1]
    members = np.split(np.argsort(clustering.labels, kind="stable"), ends)
    for group in groups.tolist():
        to = rivals.group[members[group]]
        if len(chosen) < spare and not hosts[group] and not gone[to].any():
            chosen.append(group)
            gone[group] = hosts[to] = True
    return chosen


def _without(
    clustering: Clustering, options: Int[Array, "options gone"], rivals: _Rivals
) -> list[Clustering]:
    """Dissolve groups, in each of the ``options``: sites with a component in one are reassigned to
    the remaining groups. A component moves to its best other group, unless that is taken.
    """
    local = clustering.local
    nearest = clustering.nearest
    gone = np.zeros((len(options), len(clustering.counts)), bool)
    np.put_along_axis(gone, options, True, 1)
    away = gone[:, nearest]
    left = np.flatnonzero(~gone[0])[None]
    if len(options) > 1:  # each without one group
        each = np.arange(gone.shape[1] - 1)
        left = np.where(each == options, len(each), each)
    labels = np.where(away, rivals.group, nearest)
    used, unsure = np.zeros((2, len(options), local.sites), bool)
    unsure[:, clustering.contested] = True
    site = local.site + local.sites * np.arange(len(options))[:, None]
    unsure.reshape(-1)[contested(labels.reshape(-1), site.reshape(-1), gone.shape[1])] = True
    unsure.reshape(-1)[site[np.take_along_axis(gone, labels, 1)]] = True
    unsure[:, local.site[nearest != clustering.labels]] = True
    used.reshape(-1)[site[away]] = True
    option, sites = np.nonzero(used & unsure)
    for some in chunks(len(sites), 8 * left.shape[1] * local.largest, PIECE):
        rows, bounds = local.rows_of(sites[some])
        own = np.repeat(option[some], np.diff(bounds))
        costs = clustering.costs(rows)
        if len(options) == 1:
            costs = costs[:, left[0]]
        else:  # one column of each row is replaced by the last one
            costs[np.arange(len(rows)), options[own, 0]] = costs[:, -1]
            costs = costs[:, :-1]
        labels[own, rows] = left[own, assign(costs, bounds)]
    return [clustering.relabelled(own) for own in labels]


def split(clustering: Clustering, number: int = 1) -> Clustering:
    """Move the worst-fitting components to new groups, at most one from each group."""
    order = np.argsort(-clustering.own_costs, kind="stable")
    first = np.sort(np.unique(clustering.labels[order], return_index=True)[1])
    worst = order[first]
    worst = worst[clustering.counts[clustering.labels[worst]] > 1][:number]
    labels = clustering.labels.copy()
    labels[worst] = len(clustering.counts) + np.arange(len(worst))
    return clustering.relabelled(labels)


def _extend(local: LocalComponents, seed: Clustering, components: int | None) -> SearchResult:
    """Assign all other sites, open groups for components that fit nowhere, and refine."""
    current = refine(Clustering(local, _open(local, seed, components)), sweeps=8)
    incumbent = Incumbent(current)
    while components is None:
        rivals = _rivals(current)
        gains = _gains(current, rivals)
        fewer = _shed(current, rivals, gains)
        if fewer is None or not incumbent.offer(fewer):
            fewer = None if gains.max() < -_most(current) else drop(current, tries=1)
            if fewer is None or not incumbent.offer(fewer := refine(fewer, sweeps=4)):
                break
        current = fewer
    if components is not None and len(current.counts) != components:
        return _exactly(current, components)
    return SearchResult(incumbent.best, incumbent.trace, incumbent.levels)


def _shed(clustering: Clustering, rivals: _Rivals, gains: Array) -> Clustering | None:
    """Dissolve all groups whose removal seems a gain, or the best half, or quarter, and so on, as
    gains are not quite additive. Return None unless there are two.
    """
    best = None
    worst = np.argsort(-gains, kind="stable")[: int((gains > 0).sum())]
    chosen = _independent(clustering, rivals, worst)
    while len(chosen) > 1:
        fewer = refine(_without(clustering, np.array([chosen]), rivals)[0], sweeps=4)
        if best is not None and fewer.objective >= best.objective:
            break
        best = fewer
        chosen = chosen[: len(chosen) // 2]
    return best


def needed(clustering: Clustering) -> bool:
    """Return whether every group is needed: polishing cannot compensate for the loss of any."""
    if len(clustering.counts) <= clustering.local.largest:
        return True
    return bool(_gains(clustering, _rivals(clustering)).max() < -_most(clustering))


def _gains(clustering: Clustering, rivals: _Rivals) -> Float[Array, " g"]:
    """Return the nats by which the description is shorter without each group, to second order."""
    labels = clustering.labels
    counts = clustering.counts
    local = clustering.local
    judged = clustering.judged
    criterion = local.criterion
    surprise, typical = judged.evidence[2:]
    dim, (_, spread) = local.judged.coordinates.shape[1], judged.prices(criterion, counts)
    pairs = labels * len(counts) + rivals.group
    joining = np.bincount(pairs, minlength=len(counts) ** 2)
    group, host = np.divmod(np.flatnonzero(joining), len(counts))
    # Centroids move towards the components that join their groups.
    hosts = counts[rivals.group]
    number = joining[pairs]
    share = hosts / (hosts + number)
    misfit = np.bincount(labels, rivals.more * share)
    shape = np.zeros(len(counts))
    shapes = local.shapes
    if shapes is not None:
        centroids = shapes.centroids(judged.centres[:, dim:])
        there, here = (shapes.paired_divergences(centroids, at) for at in (rivals.group, labels))
        shape = np.bincount(labels, (there - here) * share)
    price = criterion.prices(surprise, typical, counts, spread)
    larger = np.minimum(counts[host] + joining[joining > 0], local.sites)
    rise = criterion.prices(surprise[host], typical[host], larger, spread) - price[host]
    price = np.bincount(group, rise) - price
    return -judged.rise(criterion, misfit, shape, price, -1)


def _open(local: LocalComponents, seed: Clustering, components: int | None) -> Int[Array, " n"]:
    """Label all components with groups of the seed or, for outliers, new groups."""
    groups = len(seed.counts)
    labels = np.empty(len(local.points), int)

    def costs(rows):
        return local.points.take(rows).divergences(seed.centroids)

    price = price_of_a_group(seed)
    if components is not None:  # only components without any free group are outliers
        price = 1e6 * (1 + max(float(costs(rows).max()) for rows, _ in local.parts(groups)))
    for rows, starts in local.parts(groups):
        labels[rows] = assign(costs(rows), starts, price)
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
