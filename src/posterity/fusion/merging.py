"""Halves of one component, put together again.

The criterion takes sites to differ alike in all directions. Where they differ more in one of them,
and there are very many sites, it describes a component shorter as two halves: half a nat each of
some thousand members outweighs any price. Halves give themselves away: no site holds both, though
by chance many would, and they lie no further apart, for how wide they are, than the halves of a
normal distribution. Where sites have one component each nothing gives halves away: none are joined.
"""

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering

Array = np.ndarray
MANY = 12
"""Members below which a group is no half: its width is not known."""
HALVES = 8.0
"""Squared distance of the means of two halves, in variances within them: 7 for a normal
distribution cut at its mean, and a little for how well both are known."""
BY_CHANCE = 10.0
"""Sites that would hold both of two groups, if one said nothing of the other."""


def merge_halves(clustering: Clustering) -> Clustering:
    """The clustering without halves: groups of many sites, never of one site, that no gap divides.

    They are joined where that shortens the description, had it known their own width; the
    objective, which does not, rises.
    """
    while (pair := _halves(clustering)) is not None:
        labels = clustering.labels.copy()
        labels[labels == pair[1]] = pair[0]
        clustering = clustering.relabelled(labels)
    return clustering


def _halves(clustering: Clustering) -> tuple[int, int] | None:
    """The two groups that most surely are halves of one; None if none are."""
    many = np.flatnonzero(clustering.counts >= MANY)
    if len(many) < 2:
        return None
    apart = _divergences(clustering, many)
    np.fill_diagonal(apart, np.inf)
    apart[_together(clustering, many)] = np.inf
    best, least = None, 0.0
    for one in np.flatnonzero(np.isfinite(apart.min(1, initial=np.inf))):
        pair = int(many[one]), int(many[apart[one].argmin()])
        rise = _rise(clustering, *sorted(pair))
        if rise < least:
            best, least = (min(pair), max(pair)), rise
    return best


def _divergences(clustering: Clustering, groups: Int[Array, " m"]) -> Float[Array, "m m"]:
    centroids = clustering.centroids.take(groups)
    points = clustering.local.points
    members = type(points).of(points.family(centroids.coordinates), points.divergence)
    return members.divergences(centroids)


def _together(clustering: Clustering, groups: Int[Array, " m"]) -> Array:
    """Which two groups some site has both of, or few would have by chance."""
    local, sizes = clustering.local, np.diff(clustering.local.starts)
    holds = np.zeros((local.sites, len(clustering.counts)), np.float32)
    holds[local.site, clustering.labels] = 1.0
    share = clustering.counts / sizes.sum()
    by_chance = np.outer(share, share) * (sizes * (sizes - 1)).sum()
    return ((holds.T @ holds > 0) | (by_chance < BY_CHANCE))[np.ix_(groups, groups)]


def _rise(clustering: Clustering, first: int, second: int) -> float:
    """Of the description if two groups were one, as wide along their line as they are; infinite
    where there is a gap between them.
    """
    labels, counts, local = clustering.labels, clustering.counts, clustering.local
    rows = np.flatnonzero((labels == first) | (labels == second))
    # What tells the two apart is linear in a component: how much nearer it is to one of them.
    nearer = clustering.costs[rows, second] - clustering.costs[rows, first]
    mine, theirs = nearer[labels[rows] == first], nearer[labels[rows] == second]
    distance = mine.mean() - theirs.mean()
    within = (len(mine) * mine.var() + len(theirs) * theirs.var()) / len(rows)
    # Sampling alone scatters them by their distance.
    gap = distance**2 / max(within, distance, np.finfo(float).tiny)
    if gap > HALVES:
        return np.inf
    share = len(mine) * len(theirs) / len(rows) ** 2
    surprise = clustering.judged.evidence.surprise[[first, second]]
    parts, joint = counts[[first, second]], counts[[first, second]].sum()
    criterion, groups = local.criterion, len(counts)
    price = criterion.prices(surprise.mean(keepdims=True), np.array([joint])).sum()
    price -= criterion.prices(surprise, parts).sum()
    price += criterion.columns(groups - 1) - criterion.columns(groups)
    return float(len(rows) * np.log1p(share * gap) / 2 + price)
