"""Confidence in a matching: the cost of the next best one, in nats.

Differences of description length are approximate differences of log evidence: a margin of ``m``
nats means odds of ``exp(m)`` to one against the alternative, as far as the criterion is right. How
often matches with a given margin are wrong was measured (``docs/fuse.md``).
"""

import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import Clustering, polish, refine
from posterity.fusion.effects import Effects
from posterity.fusion.judged import Evidence
from posterity.fusion.search import drop, most_gained, split

Array = np.ndarray
AMBIGUOUS = 3.0
"""Nats below which a match, or a number of components, is ambiguous: odds of twenty to one."""
AT_ONCE = 2**20
"""Number of pairs of a component and a group up to which ambiguity is always checked."""
NUMBERS = 2**27  # Number of floats in all such pairs up to which ambiguity is always checked
CHANCE = 0.999
"""Quantile of the misfit under sampling alone, below which two sites' scale is identified."""
NEIGHBOURS = 2  # Difference from the number of groups found, up to which there is always evidence


class Confidence:
    """Confidence in the best clustering that a search found, computed on access.

    ``levels`` has the least objective found for each number of groups; ``free`` is whether the
    objective chose the number.
    """

    def __init__(self, clustering: Clustering, levels: dict[int, float], free: bool):
        self.clustering = clustering
        self.levels = levels
        self.free = free

    @property
    def parts(self) -> Iterable[Clustering]:
        """The clustering in parts, each of some components; in memory there is one part."""
        return [self.clustering]

    @property
    def number(self) -> int:
        """Number of components of all sites."""
        return len(self.clustering.labels)

    @property
    def margins(self) -> Float[Array, " n"]:
        """Least rise of the objective (N,), in nats, if one component is moved (:class:`Moves`)."""
        return self._rises[:, 0]

    @functools.cached_property
    def _rises(self) -> Float[Array, "n 2"]:
        return np.concatenate([Moves(part, self.free).rises() for part in self.parts])

    @functools.cached_property
    def components(self) -> dict[int, float]:
        """For each number of groups, the nats by which the best clustering found is worse.

        Zero for the chosen number, negative if another is better. Two more and two fewer groups
        are included if possible; if the search did not try them, a group is dissolved or added and
        the clustering refined. Empty if the objective did not choose the number.
        """
        if not self.free:
            return {}
        return self._above(*self.levels.items(), *self._alone(), *self._neighbours())

    def _alone(self) -> Iterator[tuple[int, float]]:
        """Yield the number of groups, and the objective, if one component gets its own group."""
        least = float(self._rises[:, 1].min())
        if least < np.inf:
            yield len(self.clustering.counts) + 1, self.clustering.objective + least

    def _neighbours(self) -> Iterator[tuple[int, float]]:
        """Yield up to two larger and two smaller numbers of groups, and the objective of a
        clustering with each, which is refined unless polishing cannot make it as good.
        """
        for step in (split, drop):
            current: Clustering | None = self.clustering
            for _ in range(NEIGHBOURS):
                current = step(current)
                if current is None:
                    break
                large = _large(current)
                more = current.objective - self.clustering.objective
                if more <= most_gained(current):
                    current = refine(current, sweeps=2) if large else polish(refine(current))
                yield len(current.counts), current.objective

    @property
    def runner_up(self) -> tuple[int, float] | None:
        """The next best number of groups, if any, and how much worse it is, in nats: of
        :attr:`components`, or of those that the search tried if there are too many to look.
        """
        tried = self.levels.items() if self.free else ()
        others = self._above(*tried) if _large(self.clustering) else self.components
        found = len(self.clustering.counts)
        rest = ((number, nats) for number, nats in others.items() if number != found)
        return min(rest, key=operator.itemgetter(1), default=None)

    @property
    def suspect(self) -> bool:
        """True if it is looked whether some match or the number is ambiguous: up to :data:`AT_ONCE`
        and :data:`NUMBERS`.
        """
        return not _large(self.clustering, self.number)

    @functools.cached_property
    def identified(self) -> bool:
        """True if there is a scale by which to judge the differences of matched components.

        Gaussian posteriors have none. If components of two sites differ by more than their
        uncertainty, the sites may share them and differ, or share nothing. Without any match, no
        difference can be estimated.
        """
        local = self.clustering.local
        criterion = local.criterion
        points = local.points
        if not self.free or criterion.sites > 2 or not _scale_free(points.template):
            return True
        judged = self.clustering.judged
        freedom = (criterion.total - len(judged.centres)) * points.coordinates.shape[1] / 2
        return bool(freedom and judged.misfit < scipy.special.gammaincinv(freedom, CHANCE))

    def _above(self, *levels: tuple[int, float]) -> dict[int, float]:
        """Return the least of these objectives for each number of groups, above the one found."""
        above: dict[int, float] = {}
        for groups, level in levels:
            above[groups] = min(level - self.clustering.objective, above.get(groups, np.inf))
        return dict(sorted((above | {len(self.clustering.counts): 0.0}).items()))


class EffectsConfidence(Confidence):
    """Confidence in the groups of sites that differ, without other numbers of groups."""

    def __init__(self, clustering: Clustering, effects: Effects):
        super().__init__(clustering, {}, free=True)
        self.effects = effects

    @functools.cached_property
    def margins(self) -> Float[Array, " n"]:
        """Nats by which each component's place (a group, or none) is better than the next best."""
        return self.effects.margins

    @functools.cached_property
    def components(self) -> dict[int, float]:
        """The number of groups alone."""
        return self._above()


def _large(clustering: Clustering, number: int = 0) -> bool:
    pairs = max(len(clustering.labels), number) * len(clustering.counts)
    return pairs > AT_ONCE or pairs * clustering.local.points.coordinates.shape[1] > NUMBERS


def _scale_free(family: ExponentialFamily) -> bool:
    """True if location and precision vary independently: no count of records ties them."""
    blocks = family.independent_blocks()
    return all(map(_scale_free, blocks.values())) if blocks else family.gaussian


@dataclasses.dataclass(frozen=True)
class Moves:
    """All moves of one component: to another group, exchanging places with a component of its site
    if the group has one, or, if the number of groups is ``free``, to a new group, which is numbered
    after the last. Of other groups the ``nearest`` are tried, those that cost least if centroids
    stay: with four, margins of 8,320 components, 1,208 of them below 3 nats, were those of all.
    """

    clustering: Clustering
    free: bool = True
    nearest: int = 4

    def rises(self) -> Float[Array, "n 2"]:
        """Return the least rise for each component, in nats, and that by a new group; negative if
        the objective would fall. Rises are exact, by a new group and by the ``nearest`` others.
        """
        parts = self.clustering.local.parts(len(self._counts))
        return np.concatenate([self._least(rows) for rows, _ in parts])

    def _least(self, rows: slice) -> Float[Array, "n 2"]:
        partners = self._partners(rows)
        more = self._roughly(rows, partners)
        near = np.argsort(more, axis=1, kind="stable")[:, : 1 + self.nearest]
        one, place = np.nonzero(np.take_along_axis(more, near, axis=1) < np.inf)
        group = near[one, place]
        rise = np.full(near.shape, np.inf)
        rise[one, place] = self._exactly(rows.start + one, group, partners[one, group])
        new = np.where(near == len(self._counts), rise, np.inf)
        return np.stack([rise.min(axis=1), new.min(axis=1)], axis=1)

    def _roughly(self, rows: slice, partners: Int[Array, "n h"]) -> Float[Array, "n h"]:
        """Return by how much divergences rise by moving to each group if centroids stay; infinite
        for what is no move, and least for the new group, which is always tried.
        """
        own = self.clustering.labels[rows]
        costs = self.clustering.costs(rows)
        home = costs[np.arange(len(own)), own]
        more = np.insert(costs - home[:, None], len(self._counts), -np.inf, axis=1)
        one, group = np.nonzero(partners >= 0)
        other = partners[one, group] - rows.start
        more[one, group] += costs[other, own[one]] - home[other]
        counts = np.append(self._counts, 0.0)
        alone = (counts[own] == 1)[:, None]
        moves = partners < 0
        if not self.free:
            more[alone & moves] = more[:, -1] = np.inf
        more[alone & (counts == np.where(moves, 0, 1))] = np.inf  # would only rename groups
        more[np.arange(len(own)), own] = np.inf
        return more

    # --- exactly ----------------------------------------------------------------------------------

    def _exactly(
        self, rows: Int[Array, " m"], groups: Int[Array, " m"], partners: Int[Array, " m"]
    ) -> Float[Array, " m"]:
        """Return the rise if components (rows) move to groups in exchange for partners (or -1)."""
        judged = self.clustering.judged
        local = self.clustering.local
        swap = partners >= 0
        both = np.stack([self.clustering.labels[rows], groups])
        traits = local.traits(rows)
        step = traits - swap[:, None] * local.traits(partners)
        before = np.append(self._counts, 0.0)[both]
        counts = before + np.where(swap, 0, [[-1], [1]])
        centres = np.insert(judged.centres, len(judged.centres), 0.0, axis=0)[both]
        totals = before[..., None] * centres + np.stack([-step, step])
        # An empty group disappears; its centroid may be anything proper.
        used = counts > 0
        totals[0] = np.where(used[0][:, None], totals[0], traits)
        counts = np.maximum(counts, 1.0)
        averages = (totals / counts[..., None]).reshape(-1, traits.shape[1])
        after = self._worth(
            Evidence(*np.reshape(local.evidence(averages), (4, *both.shape))), counts
        )
        now = np.insert(self._worth(judged.evidence, self._counts), len(self._counts), 0.0, axis=1)
        misfit, shape, price = (np.where(used, after, 0.0) - now[:, both]).sum(1)
        number = used.sum(0) - (before > 0).sum(0)
        return judged.rise(local.criterion, -misfit, -shape, price, number)

    def _worth(self, evidence: Evidence, counts: Array) -> Float[Array, "3 ..."]:
        """Return summed potentials of groups and of their shapes, and prices at the present spread
        of shapes: to first order, these equal the prices at the best spread after the move.
        """
        criterion = self.clustering.local.criterion
        price = criterion.prices(evidence.surprise, evidence.typical, counts, self._spread)
        return np.stack([counts * evidence.potential, counts * evidence.shape, price])

    @functools.cached_property
    def _spread(self) -> float:
        return self.clustering.judged.prices(self.clustering.local.criterion, self._counts)[1]

    # --- where components are ---------------------------------------------------------------------

    @property
    def _counts(self) -> Float[Array, " g"]:
        return self.clustering.counts

    def _partners(self, rows: slice) -> Int[Array, "n h"]:
        """Return the row of the same site in each group, or -1 (also in the new group)."""
        site = self.clustering.local.site[rows]
        labels = self.clustering.labels[rows]
        site = site - site[0]
        holder = np.full((site[-1] + 1, len(self._counts) + 1), -1)
        holder[site, labels] = np.arange(rows.start, rows.stop)
        return holder[site]
