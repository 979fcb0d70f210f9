"""Merging groups: single components pair by pair, where the search starts, and halves at its end.

The criterion takes sites to differ alike in all directions. Where they differ more in one of them,
and there are very many sites, it describes a component shorter as two halves: half a nat each of
some thousand members outweighs any price. Halves give themselves away: no site holds both, though
by chance many would, and they lie no further apart, for how wide they are, than the halves of a
normal distribution. So do more and narrower slices of one component, of which by chance many sites
would hold any two. Where sites have one component each nothing gives halves away: none are joined.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering, Evidence, LocalComponents
from posterity.fusion.geometry import CACHED, Points, chunks

Array = np.ndarray
MANY = 12
"""Members below which a group is no half: its width is not known."""
HALVES = 8.0
"""Squared distance of the means of two halves, in variances within them: 7 for a normal
distribution cut at its mean, and a little for how well both are known."""
SLICES = 16.0
"""The same of slices of one that was cut more often: 12 for a uniform distribution, and more for
how narrow they are and how well they are known."""
BY_CHANCE, BESIDE = 10.0, 2.0
"""Sites that would hold two parts of one component, and each part beside another, if one said
nothing of the other."""


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
        labels[self.pairs[:steps, 1]] = self.pairs[:steps, 0]
        while (labels != (further := labels[labels])).any():
            labels = further
        kept = np.bincount(labels) > 0
        return Clustering(self.local, (kept.cumsum() - 1)[labels])

    @property
    def fewest(self) -> int:
        """The number of groups that merging ended with."""
        return len(self.local.points) - len(self.pairs)


def agglomerate(local: LocalComponents) -> Merging:
    """Merge the pair that raises the misfit least, never two of one site (ward1963).

    Distances are updated by the recurrence of Lance and Williams (lance1967), exact where
    divergences are quadratic; the objective of each level is the true one. Merging brings no group
    nearer to any other, so that all pairs that are nearest to each other are merged at once, and
    put in the order of their distances at the end (murtagh1983).
    """
    points, total = local.points, len(local.points)
    distance = points.divergences(points.alone)
    distance = distance + distance.T
    distance /= 4  # the rise by merging each pair, to second order
    distance[local.site[:, None] == local.site] = np.inf
    # Groups are numbered: single components by their rows, then what is merged.
    most, end, made = 2 * total - 1, total, np.arange(total)  # the group in each row
    counts, height, traits = np.ones(most), np.zeros(most), local.traits()
    traits = np.concatenate([traits, np.empty_like(traits[1:])])
    parts, rows = np.empty((2, total - 1, 2), int)
    nearest, least, stale = np.zeros(total, int), np.full(total, np.inf), np.arange(total)
    while len(stale):
        for part in chunks(len(stale), 8 * total, CACHED):
            nearest[stale[part]] = distance[stale[part]].argmin(1)
        least[stale] = distance[stale, nearest[stale]]
        first = np.flatnonzero((nearest[nearest] == np.arange(total)) & (least < np.inf))
        first = first[first < nearest[first]]
        first = first[np.argsort(least[first], kind="stable")]
        second = nearest[first]
        _merge(distance, counts[made], first, second)
        one, other, own = made[first], made[second], np.arange(end, end + len(first))
        counts[own], traits[own] = counts[one] + counts[other], traits[one] + traits[other]
        height[own] = np.maximum(least[first], np.maximum(height[one], height[other]))
        parts[own - total] = np.column_stack([one, other])
        rows[own - total] = np.column_stack([first, second])
        made[first], end = own, end + len(first)
        # Only what is merged, or was nearest to what is, has another that is nearest.
        touched = np.zeros(total, bool)
        touched[first] = touched[second] = True
        least[second] = np.inf
        stale = np.flatnonzero(touched[nearest] & (least < np.inf)) if len(first) else first
    order = np.argsort(height[total:end], kind="stable")
    objective = _level_objectives(
        local, counts[:end], traits[total:end], parts[: len(order)], order
    )
    return Merging(local, rows[order], objective)


def _merge(distance: Array, counts: Array, first: Array, second: Array) -> None:
    """Fold rows into others, in place and one after the other: infinite distances, of what holds
    components of one site, stay so.
    """
    a, b, apart = counts[first, None], counts[second, None], distance[first, second][:, None]

    def joined(one: Array, other: Array, size: Array) -> Array:
        row = (a + size) * one
        row += (b + size) * other
        row -= size * apart
        return np.maximum(row / (a + b + size), 0.0)

    rows = joined(distance[first], distance[second], counts)
    both = joined(rows[:, first].T, rows[:, second].T, counts[first] + counts[second])
    both = np.tril(both) + np.tril(both, -1).T
    distance[first], distance[:, first] = rows, rows.T
    distance[np.ix_(first, first)] = both
    distance[second], distance[:, second] = np.inf, np.inf


def _level_objectives(
    local: LocalComponents,
    counts: Float[Array, " groups"],
    traits: Float[Array, "merged traits"],
    parts: Int[Array, "merged two"],
    order: Int[Array, " merged"],
) -> Float[Array, " levels"]:
    """The objective of every level: what a merged group adds, less what its two ``parts`` did,
    summed up in the ``order`` in which groups are merged.
    """
    criterion, total = local.criterion, len(local.points)
    both = zip(local.alone, local.evidence(traits / counts[total:, None]), strict=True)
    evidence = Evidence(*map(np.concatenate, both))

    def levels(worth: Array) -> Array:
        change = worth[total:] - worth[parts[:, 0]] - worth[parts[:, 1]]
        start = worth[:total].sum(0)
        return start + np.concatenate([np.zeros((1, *start.shape)), change[order].cumsum(0)])

    misfit = local.judged.potential.sum() - levels(counts * evidence.potential)
    shape = local.shape_potential - levels(counts * evidence.shape)
    _, _, surprise, typical = (values[:, None] for values in evidence)
    prices = criterion.prices(surprise, typical, counts[:, None], criterion.spreads)
    price, _ = criterion.shortest(levels(prices))
    return criterion.length_of_sums(misfit, shape, price, total - np.arange(len(order) + 1))


# --- halves --------------------------------------------------------------------------------------


def merge_halves(clustering: Clustering) -> Clustering:
    """The clustering without halves: groups of many sites, never of one site, that no gap divides.

    They are joined where that shortens the description, had it known their own width; the
    objective, which does not, rises. Then slices are, and then what is left of their ends.
    """
    halves = lambda c: _many(c) & (_by_chance(c) >= BY_CHANCE)
    clustering = _joined(clustering, halves, HALVES)
    slices = _joined(clustering, _many, SLICES)
    wide = _surely_one(clustering, slices)[slices.labels]  # components of groups that had slices
    if not wide.any():
        return clustering
    labels = np.where(wide, len(clustering.counts) + slices.labels, clustering.labels)
    labels = np.unique(labels, return_inverse=True)[1]
    return _joined(Clustering(clustering.local, labels), lambda c: _ends(c, wide), HALVES)


def _joined(clustering: Clustering, which: Callable[[Clustering], Array], limit: float) -> Any:
    """With all pairs of groups joined, one after the other, of ``which`` (g, g) that no site has
    both of, that no gap beyond the ``limit`` divides, and that shorten the description so.
    """
    while True:
        pairs = which(clustering)
        pairs = pairs & ~_together(clustering) if pairs.any() else pairs
        pair = _nearest_pair(clustering, pairs, limit)
        if pair is None:
            return clustering
        labels = clustering.labels.copy()
        labels[labels == pair[1]] = pair[0]
        clustering = clustering.relabelled(labels)


def _nearest_pair(clustering: Clustering, pairs: Array, limit: float) -> tuple[int, int] | None:
    """The two groups that most surely are parts of one; None if none are."""
    some = np.flatnonzero(pairs.any(1))
    if not len(some):
        return None
    centroids, points = clustering.centroids.take(some), clustering.local.points
    members = Points.of(points.family(centroids.coordinates), points.divergence)
    apart = np.where(pairs[np.ix_(some, some)], members.divergences(centroids), np.inf)
    best, least = None, 0.0
    for one in np.flatnonzero(np.isfinite(apart.min(1, initial=np.inf))):
        first, second = sorted((int(some[one]), int(some[apart[one].argmin()])))
        rise = _rise(clustering, first, second, limit)
        if rise < least:
            best, least = (first, second), rise
    return best


def _many(clustering: Clustering) -> Array:
    """Which two groups both have a width that is known, and may be parts of one for all that many
    sites show: some would hold each of them and one of the others that it never meets.
    """
    many = clustering.counts >= MANY
    pairs = many[:, None] & many & ~np.eye(len(many), dtype=bool)
    if not pairs.any():
        return pairs
    beside = (_by_chance(clustering) * (pairs & ~_together(clustering))).sum(1) >= BESIDE
    return pairs & beside & beside[:, None]


def _ends(clustering: Clustering, wide: Array) -> Array:
    """Which two groups are one of ``wide`` components and one of few, whose width is not known."""
    whole = np.bincount(clustering.labels, wide) > 0
    few = ~whole & (clustering.counts < MANY)
    return (whole[:, None] & few) | (few[:, None] & whole)


def _surely_one(clustering: Clustering, joined: Clustering) -> Array:
    """Which groups were joined of several that many sites would hold two of by chance, and some
    each of them beside another.
    """
    groups = len(clustering.counts)
    if len(joined.counts) == groups:
        return np.zeros(groups, bool)
    whole = np.empty(groups, int)
    whole[clustering.labels] = joined.labels
    others = (whole[:, None] == whole) & ~np.eye(groups, dtype=bool)
    beside = (_by_chance(clustering) * others).sum(1)
    sure = np.bincount(whole, beside) / 2 >= BY_CHANCE
    sure[whole[beside < BESIDE]] = False
    return sure


def _together(clustering: Clustering) -> Array:
    """Which two groups some site has both of."""
    holds = np.zeros((clustering.local.sites, len(clustering.counts)), np.float32)
    holds[clustering.local.site, clustering.labels] = 1.0
    return holds.T @ holds > 0


def _by_chance(clustering: Clustering) -> Array:
    """How many sites would hold both of two groups, if one said nothing of the other."""
    sizes = np.diff(clustering.local.starts)
    share = clustering.counts / sizes.sum()
    return np.outer(share, share) * (sizes * (sizes - 1)).sum()


def _rise(clustering: Clustering, first: int, second: int, limit: float) -> float:
    """Rise of the description if two groups were one, as wide along their line as they are;
    infinite where there is a gap beyond the ``limit`` between them.
    """
    labels, counts, local = clustering.labels, clustering.counts, clustering.local
    rows = np.flatnonzero((labels == first) | (labels == second))
    # What tells the two apart is linear in a component: how much nearer it is to one of them.
    costs = clustering.costs(rows)
    nearer = costs[:, second] - costs[:, first]
    mine, theirs = nearer[labels[rows] == first], nearer[labels[rows] == second]
    distance = mine.mean() - theirs.mean()
    within = (len(mine) * mine.var() + len(theirs) * theirs.var()) / len(rows)
    # Sampling alone scatters them by their distance.
    gap = distance**2 / max(within, distance, np.finfo(float).tiny)
    if gap > limit:
        return np.inf
    share = len(mine) * len(theirs) / len(rows) ** 2
    surprise, typical = (values[[first, second]] for values in clustering.judged.evidence[2:])
    parts, joint = counts[[first, second]], counts[[first, second]].sum()
    criterion, groups = local.criterion, len(counts)
    _, spread = clustering.judged.prices(criterion, counts)
    price = criterion.prices(parts @ surprise / joint, parts @ typical / joint, joint, spread)
    price -= criterion.prices(surprise, typical, parts, spread).sum()
    price += criterion.columns(groups - 1) - criterion.columns(groups)
    return float(len(rows) * np.log1p(share * gap) / 2 + price)
