"""Merging components pair by pair, from single ones up: where the search starts from."""

import dataclasses
from typing import NamedTuple

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering, Evidence, LocalComponents

Array = np.ndarray


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
    divergences are quadratic; the objective of each level is the true one.
    """
    distance = _distances(local)
    counts, pairs = np.ones(len(distance)), []
    nearest = distance.argmin(1)
    least = distance[np.arange(len(distance)), nearest]
    while np.isfinite(least[one := int(least.argmin())]):
        first, second = sorted((one, int(nearest[one])))
        _merge(distance, counts, first, second)
        pairs.append((first, second))
        # The merged group is nearer to nobody than the nearer of the two was: only rows whose
        # nearest was one of them are looked through again.
        stale = np.flatnonzero((nearest == first) | (nearest == second))
        some = distance[stale]
        nearest[stale] = at = some.argmin(1)
        least[stale] = some[np.arange(len(at)), at]
    steps = np.array(pairs, dtype=int).reshape(-1, 2)
    return Merging(local, steps, _level_objectives(local, steps))


def _distances(local: LocalComponents) -> Float[Array, "n n"]:
    """Rise of the misfit by merging each pair, to second order; infinite within a site."""
    points = local.points
    one_way = points.divergences(points.alone)
    distance = (one_way + one_way.T) / 4
    distance[local.site[:, None] == local.site] = np.inf
    return distance


def _merge(distance: Array, counts: Array, first: int, second: int) -> None:
    """Fold ``second`` into ``first``, in place; what is infinite, within a site, stays so."""
    a, b = counts[first], counts[second]
    row = (a + counts) * distance[first] + (b + counts) * distance[second]
    row -= counts * distance[first, second]
    row = np.maximum(row / (a + b + counts), 0.0)
    distance[first], distance[:, first] = row, row
    distance[second], distance[:, second] = np.inf, np.inf
    counts[first] = a + b


def _level_objectives(
    local: LocalComponents, pairs: Int[Array, "steps two"]
) -> Float[Array, " levels"]:
    """The objective of every level: what a merged group adds, less what the two did, summed up."""
    traits, criterion = local.traits(), local.criterion
    total, merges = len(traits), _follow(traits, pairs)
    counts = np.concatenate([np.ones(total), merges.counts])
    both = zip(local.alone, local.evidence(merges.centres), strict=True)
    found = Evidence(*map(np.concatenate, both))

    def levels(worth: Array) -> Array:
        change = worth[total:] - worth[merges.kept] - worth[merges.gone]
        return worth[:total].sum() + np.concatenate([[0.0], change.cumsum()])

    misfit = local.judged.potential.sum() - levels(counts * found.potential)
    shape = local.shape_potential - levels(counts * found.shape)
    price = levels(criterion.prices(found.surprise, counts))
    return criterion.length_of_sums(misfit, shape, price, total - np.arange(len(pairs) + 1))


class _Merges(NamedTuple):
    """The groups that merging made, one a step: ``N + step`` of ``kept`` and ``gone``."""

    centres: Float[Array, "steps dim"]
    counts: Float[Array, " steps"]
    kept: Int[Array, " steps"]
    gone: Int[Array, " steps"]


def _follow(coordinates: Array, pairs: Array) -> _Merges:
    total, counts = coordinates.copy(), [1.0] * len(coordinates)
    made, number = list(range(len(total))), np.empty(len(pairs))
    parts, centres = np.empty((2, len(pairs)), int), np.empty((len(pairs), total.shape[1]))
    for step, (kept, gone) in enumerate(pairs.tolist()):
        total[kept] += total[gone]
        counts[kept] += counts[gone]
        parts[:, step] = made[kept], made[gone]
        made[kept] = len(made) + step
        centres[step], number[step] = total[kept], counts[kept]
    return _Merges(centres / number[:, None], number, *parts)
