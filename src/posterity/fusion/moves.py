"""What the objective rises by if one component were elsewhere."""

import dataclasses
import functools
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering
from posterity.fusion.geometry import Centroids, Points

Array = np.ndarray
SHORTLIST = 8
"""Other groups of each component for which the rise is computed exactly."""
SURE = 30.0
"""Nats beyond which a rise is left to first order."""
BLOCK = 2**18
"""Pairs of a component and a group that are looked at together."""


@dataclasses.dataclass(frozen=True)
class Moves:
    """All ways to put one component elsewhere: in another group, or in one of its own.

    Where another group holds a component of the same site, the two change places. ``free`` says
    whether the number of groups may change; a group of one's own is numbered after the last.
    """

    clustering: Clustering
    free: bool = True

    def margins(self) -> Float[Array, " n"]:
        """The least rise for each component, in nats; infinite where it can be nowhere else.

        Negative where the objective would fall. All groups are gone through to first order, the
        nearest :data:`SHORTLIST` of them and a group of one's own exactly.
        """
        return np.concatenate([self._least(rows) for rows in self._blocks()])

    def least_at_first_order(self) -> float:
        """About the least rise of any component that goes to another group, at little cost."""
        return float(min(self._first_order(rows).min(initial=np.inf) for rows in self._blocks()))

    def _least(self, rows: slice) -> Float[Array, " n"]:
        rise, own = self._first_order(rows), self.clustering.labels[rows]
        groups = rise.shape[1]
        near = np.argpartition(rise, min(SHORTLIST, groups) - 1, axis=1)[:, :SHORTLIST]
        near = np.hstack([near, np.full((len(near), 1), groups)])
        rise = np.hstack([rise, np.full((len(rise), 1), np.inf)])
        if self.free:
            rise[self.clustering.counts[own] > 1, groups] = 0.0  # not known yet
        rise = np.take_along_axis(rise, near, axis=1)
        close = np.nonzero(rise < SURE)
        partners = self._partners(rows)[close[0], near[close]]
        rise[close] = self._exactly(rows.start + close[0], near[close], partners)
        return rise.min(axis=1)

    # --- to first order ---------------------------------------------------------------------------

    def _first_order(self, rows: slice) -> Float[Array, "n g"]:
        """The rise by going to each group, as if divergences were quadratic; infinite at home."""
        own, counts = self.clustering.labels[rows], self._counts
        partners, alone = self._partners(rows)[:, :-1], (counts[own] == 1)[:, None]
        fewer, more = self._recounted
        moves = partners < 0
        price = np.where(moves, more + fewer[own][:, None], 0.0)
        rise = self._rise(self._misfits(rows, partners), price, -1 * (moves & alone))
        if not self.free:
            rise[alone & moves] = np.inf
        rise[alone & ~moves & (counts == 1)] = np.inf  # two that would but change names
        rise[np.arange(len(own)), own] = np.inf
        return rise

    def _misfits(self, rows: slice, partners: Int[Array, "n g"]) -> list[Float[Array, "n g"]]:
        """Of all that components are, and of their shapes."""
        local, centres = self.clustering.local, self.clustering.judged.centres
        dim = local.judged.coordinates.shape[1]
        found = [self._misfit(local.judged, self._centroids, rows, partners)]
        if local.shapes is None:
            return [*found, np.zeros_like(found[0])]
        centroids = local.shapes.centroids(centres[:, dim:])
        return [*found, self._misfit(local.shapes, centroids, rows, partners)]

    def _misfit(
        self, points: Points, centroids: Centroids, rows: slice, partners: Int[Array, "n g"]
    ) -> Float[Array, "n g"]:
        """Joining n others costs n / (n + 1) of the divergence; leaving n - 1 gains n / (n - 1)."""
        own, counts = self.clustering.labels[rows], self._counts
        costs = points.take(rows).divergences(centroids)
        at_home = costs[np.arange(len(own)), own]
        leave = at_home * counts[own] / np.maximum(counts[own] - 1, 1.0)
        misfit = costs * (counts / (counts + 1)) - leave[:, None]
        # Change places: the share of the divergence to a group of n of which one has left.
        one, group = np.nonzero(partners >= 0)
        other, share = partners[one, group] - rows.start, 1 - 1 / counts
        there = costs[one, group] * share[group] - at_home[one]
        misfit[one, group] = there + costs[other, own[one]] * share[own[one]] - at_home[other]
        return misfit

    @functools.cached_property
    def _recounted(self) -> tuple[Float[Array, " g"], Float[Array, " g"]]:
        """What the price of each group changes by with one component fewer, and one more."""
        price, surprise = self._prices, self.clustering.judged.evidence.surprise
        fewer = self._price(surprise, np.maximum(self._counts - 1, 1.0)) - price
        more = self._price(surprise, self._counts + 1) - price
        return np.where(self._counts > 1, fewer, -price), more

    # --- exactly ----------------------------------------------------------------------------------

    def _exactly(
        self, rows: Int[Array, " m"], groups: Int[Array, " m"], partners: Int[Array, " m"]
    ) -> Float[Array, " m"]:
        """The rise if components (rows) go to groups, in exchange for partners (-1 is none)."""
        found, local = self.clustering.judged, self.clustering.local
        swap, both = partners >= 0, np.stack([self.clustering.labels[rows], groups])
        traits = local.traits(rows)
        step = traits - swap[:, None] * local.traits(partners)
        before = np.append(self._counts, 0.0)
        counts = before[both] + np.where(swap, 0, [[-1], [1]])
        centres = np.vstack([found.centres, np.zeros_like(found.centres[:1])])
        totals = (before[:, None] * centres)[both]
        totals += np.stack([-step, step])
        # A group that nobody is left in disappears; anything proper will do for its centroid.
        used = counts > 0
        totals[0] = np.where(used[0][:, None], totals[0], traits)
        centres = totals / np.maximum(counts, 1.0)[..., None]
        evidence = local.evidence(centres.reshape(-1, centres.shape[-1]))
        potential, shape, surprise = (values.reshape(both.shape) for values in evidence)
        pairs = ((found.evidence.potential, potential), (found.evidence.shape, shape))
        price = np.where(used, self._price(surprise, np.maximum(counts, 1.0)), 0.0)
        return self._rise(
            [((before * np.append(a, 0.0))[both] - counts * b).sum(0) for a, b in pairs],
            (price - np.append(self._prices, 0.0)[both]).sum(0),
            (used.astype(int) - (before[both] > 0)).sum(0),
        )

    # --- the objective ----------------------------------------------------------------------------

    def _rise(self, misfits: Sequence[Array], price: Array, groups: Array) -> Array:
        """Of the objective, where misfits, the prices and the number of groups rise so."""
        found, (misfit, shape) = self.clustering.judged, misfits
        length = self.clustering.local.criterion.length_of_sums(
            found.misfit + misfit,
            found.shape + shape,
            self._prices.sum() + price,
            len(self._counts) + groups,
        )
        return length - self.clustering.objective

    @functools.cached_property
    def _prices(self) -> Float[Array, " g"]:
        return self._price(self.clustering.judged.evidence.surprise, self._counts)

    def _price(self, surprise: Array, counts: Array) -> Array:
        return self.clustering.local.criterion.prices(surprise, counts)

    # --- where components are ---------------------------------------------------------------------

    @property
    def _counts(self) -> Float[Array, " g"]:
        return self.clustering.counts

    @functools.cached_property
    def _centroids(self) -> Centroids:
        local = self.clustering.local
        if local.forward:
            dim = local.judged.coordinates.shape[1]
            return local.judged.centroids(self.clustering.judged.centres[:, :dim])
        return self.clustering.centroids

    def _partners(self, rows: slice) -> Int[Array, "n h"]:
        """The row that is in each group and of the same site; -1 if none, as in one's own."""
        site, labels = self.clustering.local.site[rows], self.clustering.labels[rows]
        site = site - site[0]
        holder = np.full((site[-1] + 1, len(self._counts) + 1), -1)
        holder[site, labels] = np.arange(rows.start, rows.stop)
        return holder[site]

    def _blocks(self) -> list[slice]:
        """The rows of some whole sites each, bounded in what they take."""
        starts = self.clustering.local.starts
        block = starts[1:] * len(self._counts) // BLOCK
        first = np.flatnonzero(np.diff(block, prepend=-1))
        return [slice(a, b) for a, b in pairwise([*starts[first].tolist(), int(starts[-1])])]
