"""Which units are one: merging the closest, never two of one site, until a number is left."""

from typing import NamedTuple

import numpy as np
import scipy.optimize

from posterity.arrays.typing import Float, Int

Array = np.ndarray
SWEEPS = 4
"""Times that each site's units are assigned anew; the sum hardly falls after the second."""


class Tree(NamedTuple):
    """Every step of merging: ``merges`` (steps, 2) of groups, each called by its first unit.

    ``rows`` (n, d) are the units, ``site`` (n,) whose they are, ``mass`` (n,) what they weigh.
    """

    rows: Float[Array, "n d"]
    site: Int[Array, " n"]
    mass: Float[Array, " n"]
    merges: Int[Array, "steps 2"]

    @property
    def narrowest(self) -> int:
        """The number of groups after the last merge."""
        return len(self.rows) - len(self.merges)

    def cut(self, width: int) -> Int[Array, " n"]:
        """The group of each unit when ``width`` groups are left, or the fewest."""
        parent = np.arange(len(self.rows))
        for kept, gone in self.merges[: max(len(self.rows) - width, 0)]:
            parent[gone] = kept
        # A group is always gone into one that was not gone before: chains lead to their ends.
        while (parent != parent[parent]).any():
            parent = parent[parent]
        return np.unique(parent, return_inverse=True)[1]


def merged(rows: Float[Array, "n d"], site: Int[Array, " n"], mass: Float[Array, " n"]) -> Tree:
    """Ward's tree (ward1963), in which groups that share a site are never merged.

    The sum of squares about the groups' centroids rises least at every step. Distances are
    updated by the formula of lance1967, in which an infinite one, of two groups that share a
    site, stays infinite.
    """
    n, size = len(rows), mass.astype(float).copy()
    squares = (rows**2).sum(1)
    cost = squares[:, None] + squares[None] - 2 * rows @ rows.T
    cost = np.maximum(cost, 0.0) * (size[:, None] * size[None] / (size[:, None] + size[None]))
    cost[site[:, None] == site[None]] = np.inf
    nearest, least = cost.argmin(1), cost.min(1)
    merges = []
    for _ in range(n - 1):
        i = int(least.argmin())
        if not np.isfinite(least[i]):
            break
        i, j = sorted((i, int(nearest[i])))
        merges.append((i, j))
        total = size + size[i] + size[j]
        with np.errstate(invalid="ignore"):
            row = (size + size[i]) * cost[i] + (size + size[j]) * cost[j] - size * cost[i, j]
        row = np.where(np.isfinite(cost[i]) & np.isfinite(cost[j]), np.maximum(row / total, 0), np.inf)
        row[[i, j]] = np.inf
        size[i] += size[j]
        cost[i], cost[:, i], cost[j], cost[:, j] = row, row, np.inf, np.inf
        least[j] = np.inf
        stale = np.isin(nearest, (i, j)) & np.isfinite(least)
        stale[i] = True
        better = ~stale & (row < least)
        nearest[better], least[better] = i, row[better]
        again = np.flatnonzero(stale)
        nearest[again], least[again] = cost[again].argmin(1), cost[again].min(1)
    return Tree(rows, site, mass, np.array(merges, int).reshape(-1, 2))


def assigned(tree: Tree, width: int) -> Int[Array, " n"]:
    """Groups of units, ``width`` at most: the tree's, then each site's best assignment in turn.

    With the others fixed, one site's best is a linear assignment on
    ``n/(n + m) m ||u - centroid||²`` with the mass ``n`` of a group without that site. Units
    for which there is no room are -1: the lightest.
    """
    labels, rows, mass = tree.cut(width), tree.rows, tree.mass
    sites, size = range(int(tree.site.max()) + 1), min(width, len(rows))
    if labels.max() >= size:  # the tree got stuck: its lightest groups give way
        weight = np.bincount(labels, mass)
        rank = np.empty(len(weight), int)
        rank[np.argsort(-weight, kind="stable")] = np.arange(len(weight))
        labels = np.where(rank[labels] < size, rank[labels], -1)
    best = np.inf
    for _ in range(SWEEPS):
        for j in sites:
            labels = _reassigned(rows, mass, labels, np.flatnonzero(tree.site == j), size)
        now = _spread(rows, mass, labels, size)
        if now >= best * (1 - 1e-9):
            break
        best = now
    return labels


def _centroids(rows: Array, mass: Array, labels: Array, size: int) -> tuple[Array, Array]:
    kept = labels >= 0
    share = np.zeros((size, len(rows)))
    share[labels[kept], np.flatnonzero(kept)] = mass[kept]
    weight = share.sum(1)
    return share @ rows / np.maximum(weight, 1e-300)[:, None], weight


def _reassigned(rows: Array, mass: Array, labels: Array, own: Array, size: int) -> Array:
    others = labels.copy()
    others[own] = -1
    centre, weight = _centroids(rows, mass, others, size)
    mine = rows[own]
    distance = (mine**2).sum(1)[:, None] + (centre**2).sum(1) - 2 * mine @ centre.T
    cost = np.maximum(distance, 0) * (weight * mass[own, None] / (weight + mass[own, None]))
    found = np.full(len(own), -1)
    if len(own) > size:  # who is left out costs what it weighs against zero
        cost = cost - (mass[own] * (mine**2).sum(1))[:, None]
    picked, places = scipy.optimize.linear_sum_assignment(cost)
    found[picked] = places
    others[own] = found
    return others


def _spread(rows: Array, mass: Array, labels: Array, size: int) -> float:
    centre, _ = _centroids(rows, mass, labels, size)
    kept = labels >= 0
    left = (mass[~kept] * (rows[~kept] ** 2).sum(1)).sum()
    return float((mass[kept] * ((rows[kept] - centre[labels[kept]]) ** 2).sum(1)).sum() + left)
