"""Merging of single components into groups, from which the search starts (Ward's method)."""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering
from posterity.fusion.components import LocalComponents
from posterity.fusion.judged import Evidence, shares

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Merging:
    """Ward's merging of single components: level ``k`` has ``N - k`` groups, and ``objective`` is
    the description length of each level. ``centres`` and ``evidence`` are those of all groups of
    the tree.
    """

    local: LocalComponents
    tree: "Tree"
    centres: Float[Array, "groups traits"]
    evidence: Evidence
    objective: Float[Array, " levels"]

    def level(self, groups: int) -> Clustering | None:
        """Return the clustering with this number of groups, or None if merging had none."""
        if not self.fewest <= groups <= len(self.local.points):
            return None
        rows, labels = np.unique(self.tree.cut(groups), return_inverse=True)
        level = Clustering(self.local, labels)
        level.take_evidence(self.centres[rows], self.evidence.take(rows))
        return level

    @property
    def best(self) -> int:
        """The number of groups of the level with the shortest description."""
        return len(self.local.points) - int(self.objective.argmin())

    @property
    def fewest(self) -> int:
        """The number of groups at the end of merging."""
        return len(self.local.points) - len(self.tree.merged)


def agglomerate(local: LocalComponents) -> Merging:
    """Merge the pair that raises the misfit least, never two groups with a common site. Objectives
    of levels are exact; costs are exact for quadratic divergences.
    """
    points = local.points
    costs = points.divergences(points.own)
    costs = (costs + costs.T) / 4  # the rise by merging each pair, to second order
    costs[local.site[:, None] == local.site] = np.inf
    tree = ward(costs)
    counts = tree.sums(np.ones((len(points), 1)))
    centres = tree.sums(local.traits()) / counts
    evidence = local.evidence(centres)
    objective = _level_objectives(local, tree, counts[:, 0], evidence)
    return Merging(local, tree, centres, evidence, objective)


class Tree(NamedTuple):
    """Ward's tree of ``size`` single ones: the numbers of the two groups that are merged at each
    step, the nearest first. Single ones come first, then the groups that steps make.
    """

    size: int
    merged: Int[Array, "steps two"]

    def cut(self, groups: int) -> Int[Array, " n"]:
        """Return the number of each single one's group when so many are left, or as few as
        possible.
        """
        steps = self.merged[: max(self.size - groups, 0)]
        into = np.arange(self.size + len(steps))
        into[steps] = self.size + np.arange(len(steps))[:, None]
        while (into != into[into]).any():
            into = into[into]
        return into[: self.size]

    def sums(self, own: Float[Array, "n width"]) -> Float[Array, "groups width"]:
        """Return the sum of the rows of each group's members."""
        out = np.empty((self.size + len(self.merged), own.shape[1]))
        out[: self.size] = own
        for place, (one, other) in enumerate(self.merged.tolist(), self.size):
            np.add(out[one], out[other], out=out[place])
        return out


def ward(costs: Float[Array, "n n"]) -> Tree:
    """Merge the groups that it costs least to merge (ward1963), as long as that is allowed.

    Args:
        costs: those of merging each pair of single ones, symmetric; infinite where no group may
            have both.
    """
    size = len(costs)
    pairs = scipy.spatial.distance.squareform(costs, checks=False)
    if not len(pairs):
        return Tree(size, np.empty((0, 2), int))
    allowed = np.isfinite(pairs)
    # In units of the largest cost, so that squares neither overflow nor underflow.
    pairs /= pairs[allowed].max(initial=0.0) or 1.0
    # No allowed merge costs more than this, none with a forbidden pair as little.
    most = float(size)
    pairs[~allowed] = 10 * size * most
    tree = scipy.cluster.hierarchy.linkage(np.sqrt(pairs), "ward")
    return Tree(size, tree[tree[:, 2] ** 2 <= most, :2].astype(int))


def _level_objectives(
    local: LocalComponents, tree: Tree, counts: Float[Array, " groups"], evidence: Evidence
) -> Float[Array, " levels"]:
    """Return the objective of each level: terms of merged groups, minus those of their two parts,
    are summed in the order of merging.
    """
    criterion = local.criterion
    total = len(local.points)

    def levels(worth: Array) -> Array:
        change = worth[total:] - worth[tree.merged].sum(1)
        return np.concatenate([worth[:total].sum(0)[None], change]).cumsum(0)

    misfit = local.totals[0] - levels(counts * evidence.potential)
    shape = local.totals[1] - levels(counts * evidence.shape)
    _, _, surprise, typical = (values[:, None] for values in evidence)
    prices = criterion.prices(surprise, typical, counts[:, None], criterion.spreads)
    price, _ = criterion.shortest(levels(prices))
    groups = total - np.arange(len(tree.merged) + 1)
    along = _along_levels(tree.sums(local.masses), tree.merged)
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
