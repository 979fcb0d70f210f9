"""Merging of single components into groups, from which the search starts (Ward's method)."""

import dataclasses
from typing import NamedTuple

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering, packed
from posterity.fusion.components import LocalComponents
from posterity.fusion.geometry import CACHED, chunks
from posterity.fusion.judged import shares

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Merging:
    """Ward's merging of single components: level ``k`` has ``N - k`` groups, and ``objective`` is
    the description length of each level.
    """

    local: LocalComponents
    tree: "Tree"
    objective: Float[Array, " levels"]

    def level(self, groups: int) -> Clustering | None:
        """Return the clustering with this number of groups, or None if merging had none."""
        if not self.fewest <= groups <= len(self.local.points):
            return None
        return Clustering(self.local, self.tree.cut(groups))

    @property
    def best(self) -> int:
        """The number of groups of the level with the shortest description."""
        return len(self.local.points) - int(self.objective.argmin())

    @property
    def fewest(self) -> int:
        """The number of groups at the end of merging."""
        return len(self.local.points) - len(self.tree.order)


def agglomerate(local: LocalComponents) -> Merging:
    """Merge the pair that raises the misfit least, never two groups with a common site. Objectives
    of levels are exact; distances are exact for quadratic divergences.
    """
    points = local.points
    distance = points.divergences(points.alone)
    distance = distance + distance.T
    distance /= 4  # the rise by merging each pair, to second order
    distance[local.site[:, None] == local.site] = np.inf
    tree = ward(distance, np.ones(len(points)))
    objective = _level_objectives(local, tree)
    return Merging(local, tree, objective)


class Tree(NamedTuple):
    """Ward's tree: groups are numbered, single ones first, then those made at each step. ``rows``
    are the first members of the two groups merged at each step; ``parts`` their numbers, for steps
    that are made together; ``order`` has the steps sorted by distance.
    """

    rows: Int[Array, "steps two"]
    parts: list[Int[Array, "two some"]]
    order: Int[Array, " steps"]
    weights: Float[Array, " groups"]

    def cut(self, groups: int) -> Int[Array, " n"]:
        """Return the group of each single one when so many are left, or as few as possible."""
        total = len(self.weights) - len(self.order)
        first = np.arange(total)
        kept, gone = self.rows[self.order[: max(total - groups, 0)]].T
        first[gone] = kept
        # A group is merged into one that still existed: chains end at the final group.
        while (first != first[first]).any():
            first = first[first]
        return packed(first)

    def sums(self, own: Float[Array, "n width"]) -> Float[Array, "groups width"]:
        """Return the sum of the rows of each group's members."""
        out = np.empty((len(self.weights), own.shape[1]), own.dtype)
        end = len(own)
        out[:end] = own
        for one, other in self.parts:
            out[end : (end := end + len(one))] = out[one] + out[other]
        return out


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


def _level_objectives(local: LocalComponents, tree: Tree) -> Float[Array, " levels"]:
    """Return the objective of each level: terms of merged groups, minus those of their two parts,
    are summed in the order of merging.
    """
    criterion = local.criterion
    total = len(local.points)
    counts = tree.weights
    order = tree.order
    parts = np.concatenate([np.empty((2, 0), int), *tree.parts], axis=1).T
    evidence = local.evidence(tree.sums(local.traits()) / counts[:, None])

    def levels(worth: Array) -> Array:
        change = worth[total:] - worth[parts[:, 0]] - worth[parts[:, 1]]
        start = worth[:total].sum(0)
        return start + np.concatenate([np.zeros((1, *start.shape)), change[order].cumsum(0)])

    misfit = local.totals[0] - levels(counts * evidence.potential)
    shape = local.totals[1] - levels(counts * evidence.shape)
    _, _, surprise, typical = (values[:, None] for values in evidence)
    prices = criterion.prices(surprise, typical, counts[:, None], criterion.spreads)
    price, _ = criterion.shortest(levels(prices))
    groups = total - np.arange(len(order) + 1)
    along = _along_levels(tree.sums(local.masses), parts[order])
    return criterion.length_of_sums(misfit, shape, price, groups, along)


def _along_levels(
    masses: Float[Array, "groups located+1"], parts: Int[Array, "merged two"]
) -> Float[Array, "levels located"] | None:
    """Return the shares of each level's scatter along its principal directions, which grows by that
    of the two ``parts`` that are merged; None where directions are not told apart.
    """
    if not masses.shape[1]:
        return None
    weights = masses[parts, 0]
    means = masses[parts, 1:] / weights[..., None]
    step = (means[:, 0] - means[:, 1]) * np.sqrt(weights.prod(1) / weights.sum(1))[:, None]
    scatter = (step[:, :, None] * step[:, None]).cumsum(0)
    return shares(np.insert(scatter, 0, 0.0, axis=0))
