"""Which units are one: merging the closest, never two of one site, until a number is left."""

from typing import NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int

Array = np.ndarray
SWEEPS = 3
"""Times that each site's units are assigned anew; the sum hardly falls after the second."""
ENOUGH = 1e-3
"""A sweep that lowers the sum by a smaller share of it was the last."""


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
        row = np.where(
            np.isfinite(cost[i]) & np.isfinite(cost[j]), np.maximum(row / total, 0), np.inf
        )
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
    ``n m/(n + m) ||u - centroid||²`` with the mass ``n`` of a group without that site and the
    mass ``m`` of the unit. Units for which there is no room are -1: the lightest.
    """
    size = min(width, len(tree.rows))
    groups = _Groups(tree, _within(tree, tree.cut(width), size), size)
    before = np.inf
    for _ in range(SWEEPS):
        for own in groups.sites:
            groups.assign(own)
        if (now := groups.spread()) >= before * (1 - ENOUGH):
            break
        before = now
    return _filled(tree, groups.labels, size)


def _filled(tree: Tree, labels: Int[Array, " n"], size: int) -> Int[Array, " n"]:
    """Groups that nobody is in get a unit each, the farthest from its own: as many as asked for.

    Where units of two sites are all but equal, to share a group costs as little as to have one.
    """
    labels = labels.copy()
    for empty in np.setdiff1d(np.arange(size), labels):
        held = labels >= 0
        count = np.bincount(labels[held], minlength=size)
        weight = np.bincount(labels[held], tree.mass[held], minlength=size)
        sums = np.zeros((size, tree.rows.shape[1]))
        np.add.at(sums, labels[held], tree.mass[held, None] * tree.rows[held])
        centres = sums / np.where(weight > 0, weight, 1.0)[:, None]
        far = tree.mass * ((tree.rows - centres[labels]) ** 2).sum(1)
        far[~held | (count[labels] < 2)] = -1.0
        labels[int(far.argmax())] = empty
    return labels


def _within(tree: Tree, labels: Int[Array, " n"], size: int) -> Int[Array, " n"]:
    """Where the tree stopped short of so few groups, its lightest give way."""
    weight = np.bincount(labels, tree.mass)
    rank = np.empty(len(weight), int)
    rank[np.argsort(-weight, kind="stable")] = np.arange(len(weight))
    return np.where(rank[labels] < size, rank[labels], -1)


class _Groups:
    """The sums and masses of groups, kept while one site after the other is assigned anew."""

    def __init__(self, tree: Tree, labels: Int[Array, " n"], size: int):
        self.labels = labels
        self.rows, self.mass = tree.rows.astype(np.float32), tree.mass
        self.square = (tree.rows**2).sum(1)
        self.sites = [np.flatnonzero(tree.site == j) for j in np.unique(tree.site)]
        self.sums = np.zeros((size, tree.rows.shape[1]), np.float32)
        self.weight = np.zeros(size)
        for own in self.sites:
            self._add(own, 1)

    def _add(self, own: Int[Array, " k"], sign: int) -> None:
        own = own[self.labels[own] >= 0]  # of one site: no two have one label
        self.sums[self.labels[own]] += (
            sign * self.mass[own, None].astype(np.float32) * self.rows[own]
        )
        self.weight[self.labels[own]] += sign * self.mass[own]

    def assign(self, own: Int[Array, " k"]) -> None:
        """One site's units, the other sites' being where they are."""
        self._add(own, -1)
        self.labels[own] = -1
        empty = np.bincount(self.labels[self.labels >= 0], minlength=len(self.weight)) == 0
        self.weight[empty], self.sums[empty] = 0.0, 0.0  # rounding is not a unit
        weight, mass = self.weight, self.mass[own, None]
        safe = np.where(empty, 1.0, weight)
        along = self.rows[own] @ self.sums.T / safe
        centre = (self.sums.astype(float) ** 2).sum(1) / safe**2
        distance = np.maximum(self.square[own, None] - 2 * along + centre, 0.0)
        cost = distance * (weight * mass / (weight + mass))
        if len(own) > len(weight):  # to be left out costs what a unit weighs against zero
            cost = cost - mass * self.square[own, None]
        picked, places = scipy.optimize.linear_sum_assignment(cost)
        self.labels[own[picked]] = places
        self._add(own, 1)

    def spread(self) -> float:
        """The sum of squares about the centroids, and about zero of what is left out."""
        whole = (self.mass * self.square).sum()
        held = self.weight > 0
        return float(
            whole - ((self.sums[held].astype(float) ** 2).sum(1) / self.weight[held]).sum()
        )
