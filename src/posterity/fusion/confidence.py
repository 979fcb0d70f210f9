"""Confidence in a matching: the cost of the next best one, in nats.

Differences of description length are approximate differences of log evidence: a margin of ``m``
nats says that the data speak ``exp(m)`` to one against the alternative, as far as the criterion
is right. How often matches of a given margin are wrong was measured (``docs/fuse.md``).
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.families import ExponentialFamily
from posterity.fusion.agglomeration import hollow
from posterity.fusion.clustering import Clustering, polish, refine
from posterity.fusion.geometry import CACHED, Centroids, Points, chunks
from posterity.fusion.grouping import Grouping
from posterity.fusion.search import drop, needed, split

Array = np.ndarray
AMBIGUOUS = 3.0
"""Nats below which a match, or a number of components, is ambiguous: odds of twenty to one."""
AT_ONCE = 2**20
"""Pairs of a component and a group up to which ambiguous matches are looked for unasked."""
NUMBERS = 2**27
"""Numbers in all such pairs up to which they are."""
CHANCE = 0.999
"""How seldom sampling alone may make matched components of two sites differ so much."""
NEIGHBOURS = 2
"""Components more and fewer than found for which there is always evidence."""
SHORTLIST = 8
"""Other groups of each component for which the rise is computed exactly."""
SURE = 30.0
"""Nats beyond which a rise is left to first order."""
BLOCK = 2**18
"""Pairs of a component and a group that are looked at together."""


class Confidence:
    """Confidence in the best clustering that a search met, computed when it is asked for.

    ``levels`` has the least objective met with each number of groups, ``free`` says whether the
    number was chosen by it, ``joined`` whether slices were merged at the end, for reasons that it
    does not know, ``thorough`` whether neighbouring numbers are looked at unasked.
    """

    thorough: ClassVar[bool] = True

    joined: bool = False

    def __init__(self, clustering: Clustering, levels: dict[int, float], free: bool):
        self.clustering, self.levels, self.free = clustering, levels, free

    @property
    def parts(self) -> Iterable[Clustering]:
        """The clustering, as a part of all components after another; in memory there is one."""
        return [self.clustering]

    @property
    def objective(self) -> float:
        """The description length that the levels are compared with."""
        return self.clustering.objective

    @functools.cached_property
    def margins(self) -> Float[Array, " n"]:
        """Rise of the objective, in nats, if a component were where it rises least
        (:class:`Moves`).
        """
        return np.concatenate([Moves(part, self.free).margins() for part in self.parts])

    @functools.cached_property
    def components(self) -> dict[int, float]:
        """Nats by which the best clustering met with each number of groups is worse.

        Zero for the number found, and negative where another is better. Two more and two fewer
        are always there, where there can be so many, if need be by dissolving a group or founding
        one, and refining; empty if the number was not chosen by the objective.
        """
        return self._above(self.levels, self._fewer, self._more) if self.free else {}

    @functools.cached_property
    def _fewer(self) -> dict[int, float]:
        return dict(self.neighbours(more=False))

    @functools.cached_property
    def _more(self) -> dict[int, float]:
        met, number = dict(self.neighbours(more=True)), len(self.clustering.counts) + 1
        return met | {n: min(met[n], self.objective + self.alone) for n in {number} & met.keys()}

    def neighbours(self, more: bool) -> Iterator[tuple[int, float]]:
        """Numbers of groups near the one found, ``more`` or fewer, and the objective of a
        clustering into as many.
        """
        current: Clustering | None = self.clustering
        for _ in range(NEIGHBOURS):
            large, several = _large(current), (current.counts > 1).any()
            if more:
                current = split(current) if several else None
            else:
                current = drop(current, tries=1 if large else 3)
            if current is None:
                break
            large = _large(current)
            current = refine(current, sweeps=2) if large else polish(refine(current))
            yield len(current.counts), current.objective

    @property
    def runner_up(self) -> tuple[int, float] | None:
        """The next best number of groups, if any, and how much worse it is, in nats; two more and
        two fewer are looked at even where the search did not pass them, fewer only where these are
        not out of the question.
        """
        if not self.free:
            return None
        found, local = len(self.clustering.counts), self.clustering.local
        near = {found + more for more in range(-NEIGHBOURS, NEIGHBOURS + 1)}
        near &= set(range(local.largest(), local.criterion.total + 1))
        met = [self.levels]
        if self.thorough and not _large(self.clustering) and near - self.levels.keys():
            met.append(self._more)
            if not self._more or not needed(self.clustering):
                met.append(self._fewer)
        others = self._above(*met)
        del others[found]
        return min(others.items(), key=lambda other: other[1], default=None)

    @property
    def suspect(self) -> bool:
        """True where some match or number may hang on little, by a cheap estimate, to first order
        with some to spare; it is not looked for beyond :data:`AT_ONCE` and :data:`NUMBERS`.
        """
        if _large(self.clustering):
            return False
        other = self.runner_up
        if (other and other[1] < AMBIGUOUS) or not self.identified or self.hollow:
            return True
        least = (Moves(part, self.free).least_at_first_order() for part in self.parts)
        return min(least) < 2 * AMBIGUOUS

    @functools.cached_property
    def hollow(self) -> list[int]:
        """Groups that may be several (:func:`.agglomeration.hollow`)."""
        return hollow(self.clustering) if self.free or self.joined else []

    @functools.cached_property
    def alone(self) -> float:
        """The least rise of the objective, in nats, by a component in a group of its own."""
        return min(Moves(part, self.free).least_alone() for part in self.parts)

    @functools.cached_property
    def identified(self) -> bool:
        """True where there is a scale to judge by how much matched components differ.

        Posteriors of a Gaussian family carry none: two sites whose components differ by more than
        they are uncertain may share them and differ, or share nothing; where none is matched, none
        shows how much they differ.
        """
        local = self.clustering.local
        criterion, points = local.criterion, local.points
        if not self.free or criterion.sites > 2 or not _scale_free(points.template):
            return True
        judged = self.clustering.judged
        freedom = (criterion.total - len(judged.centres)) * points.coordinates.shape[1] / 2
        return bool(freedom and judged.misfit < scipy.special.gammaincinv(freedom, CHANCE))

    def _above(self, *levels: dict[int, float]) -> dict[int, float]:
        above: dict[int, float] = {}
        for groups, level in itertools.chain(*(own.items() for own in levels)):
            above[groups] = min(level - self.objective, above.get(groups, np.inf))
        return dict(sorted((above | {len(self.clustering.counts): 0.0}).items()))


class RegroupedConfidence(Confidence):
    """Confidence in groups by an evidence of their own; there is reason to doubt it, too, where
    nothing is matched: units may differ.
    """

    objective = 0.0  # pyright: ignore
    neighbours = lambda _, more: iter(())  # pyright: ignore
    alone = np.inf  # pyright: ignore
    thorough = False

    def __init__(self, clustering: Clustering, grouping: Grouping):
        super().__init__(clustering, grouping.levels, free=True)
        self.grouping = grouping

    @functools.cached_property
    def margins(self) -> Float[Array, " n"]:
        """Nats by which a component's group, or its being alone, is better than the next best."""
        return self.grouping.margins

    @property
    def suspect(self) -> bool:
        """True where some match hangs on little, or there is none."""
        alone, other = len(self.clustering.counts) == len(self.clustering.labels), self.runner_up
        close = other is not None and other[1] < AMBIGUOUS
        return alone or close or float(self.margins.min()) < AMBIGUOUS


def _large(clustering: Clustering) -> bool:
    pairs = clustering.local.criterion.total * len(clustering.counts)
    return pairs > AT_ONCE or pairs * clustering.local.points.coordinates.shape[1] > NUMBERS


def _scale_free(family: ExponentialFamily) -> bool:
    """Whether location and precision are free of each other, with no count that binds them."""
    blocks = family.independent_blocks()
    return all(map(_scale_free, blocks.values())) if blocks else family.gaussian


@dataclasses.dataclass(frozen=True)
class Moves:
    """All ways to put one component elsewhere, in another group (where it changes places with that
    of its site, if there is one) or in one of its own, numbered after the last, where the number is
    ``free``.
    """

    clustering: Clustering
    free: bool = True

    def margins(self) -> Float[Array, " n"]:
        """The least rise for each component, in nats, negative where the objective would fall: all
        groups to first order, the nearest :data:`SHORTLIST` and a group of one's own exactly.
        """
        return np.concatenate([self._least(rows) for rows in self._blocks()])

    def least_at_first_order(self) -> float:
        """About the least rise of any component that goes elsewhere, at little cost."""
        return float(min(self._first_order(rows).min() for rows in self._blocks()))

    def least_alone(self) -> float:
        """The least rise of any component that goes into a group of its own; infinite if none."""
        groups, counts = len(self._counts), self._counts[self.clustering.labels]
        rows = np.flatnonzero(counts > 1) if self.free else np.arange(0)
        least = np.inf
        for part in chunks(len(rows), 8 * self.clustering.judged.centres.shape[1], CACHED):
            some = rows[part]
            rises = self._exactly(some, np.full(len(some), groups), np.full(len(some), -1))
            least = min(least, float(rises.min()))
        return least

    def _least(self, rows: slice) -> Float[Array, " n"]:
        rise, groups = self._first_order(rows), len(self._counts)
        near = np.argpartition(rise[:, :-1], min(SHORTLIST, groups) - 1, axis=1)[:, :SHORTLIST]
        near = np.hstack([near, np.full((len(near), 1), groups)])
        rise[rise[:, groups] < np.inf, groups] = 0.0  # which is computed exactly
        rise = np.take_along_axis(rise, near, axis=1)
        close = np.nonzero(rise < SURE)
        partners = self._partners(rows)[close[0], near[close]]
        rise[close] = self._exactly(rows.start + close[0], near[close], partners)
        return rise.min(axis=1)

    # --- to first order ---------------------------------------------------------------------------

    def _first_order(self, rows: slice) -> Float[Array, "n h"]:
        """The rise by going to each group, as if divergences were quadratic; infinite at home."""
        own, counts = self.clustering.labels[rows], np.append(self._counts, 0.0)
        partners, alone = self._partners(rows), (counts[own] == 1)[:, None]
        fewer, more = self._recounted
        first = self._priced(np.ones(len(own)), *self.clustering.local.alone(rows))
        moves = partners < 0
        price = np.where(moves, np.append(more, 0.0) + fewer[own][:, None], 0.0)
        price[:, -1] += first
        groups = (counts == 0) - 1 * (moves & alone)
        rise = self._rise(self._misfits(rows, partners), price, groups)
        if not self.free:
            rise[alone & moves] = rise[:, -1] = np.inf
        rise[alone & (counts == np.where(moves, 0, 1))] = np.inf  # which but changes names
        rise[np.arange(len(own)), own] = np.inf
        return rise

    def _misfits(self, rows: slice, partners: Int[Array, "n h"]) -> list[Float[Array, "n h"]]:
        """Rises of the misfit, of all that components are and of their shapes."""
        local, centres = self.clustering.local, self.clustering.judged.centres
        dim = local.judged.coordinates.shape[1]
        centroids = self.clustering.centroids
        if local.forward:
            centroids = local.judged.centroids(centres[:, :dim])
        whole = self._misfit(local.judged, centroids, rows, partners)
        if local.shapes is None:
            return [whole, np.zeros_like(whole)]
        centroids = local.shapes.centroids(centres[:, dim:])
        return [whole, self._misfit(local.shapes, centroids, rows, partners)]

    def _misfit(
        self, points: Points, centroids: Centroids, rows: slice, partners: Int[Array, "n h"]
    ) -> Float[Array, "n h"]:
        """Joining n others costs n / (n + 1) of the divergence; leaving n - 1 gains n / (n - 1)."""
        own, counts = self.clustering.labels[rows], self._counts
        costs = points.take(rows).divergences(centroids)
        at_home = costs[np.arange(len(own)), own]
        leave = at_home * counts[own] / np.maximum(counts[own] - 1, 1.0)
        misfit = np.zeros(partners.shape)
        np.multiply(costs, counts / (counts + 1), out=misfit[:, :-1])
        misfit -= leave[:, None]
        # Change places: the share of the divergence to a group of n of which one has left.
        one, group = np.nonzero(partners >= 0)
        other, share = partners[one, group] - rows.start, 1 - 1 / counts
        there = costs[one, group] * share[group] - at_home[one]
        misfit[one, group] = there + costs[other, own[one]] * share[own[one]] - at_home[other]
        return misfit

    @functools.cached_property
    def _recounted(self) -> tuple[Float[Array, " g"], Float[Array, " g"]]:
        """The change of the price of each group with one component fewer, and one more."""
        price = self._prices
        fewer = self._priced(np.maximum(self._counts - 1, 1.0), *self._evidence) - price
        more = self._priced(self._counts + 1, *self._evidence) - price
        return np.where(self._counts > 1, fewer, -price), more

    # --- exactly ----------------------------------------------------------------------------------

    def _exactly(
        self, rows: Int[Array, " m"], groups: Int[Array, " m"], partners: Int[Array, " m"]
    ) -> Float[Array, " m"]:
        """The rise if components (rows) go to groups, in exchange for partners (-1 is none)."""
        judged, local = self.clustering.judged, self.clustering.local
        swap, both = partners >= 0, np.stack([self.clustering.labels[rows], groups])
        traits = local.traits(rows)
        step = traits - swap[:, None] * local.traits(partners)
        before = np.append(self._counts, 0.0)
        counts = before[both] + np.where(swap, 0, [[-1], [1]])
        centres = np.vstack([judged.centres, np.zeros_like(judged.centres[:1])])
        totals = (before[:, None] * centres)[both]
        totals += np.stack([-step, step])
        # A group that nobody is left in disappears; anything proper will do for its centroid.
        used = counts > 0
        totals[0] = np.where(used[0][:, None], totals[0], traits)
        centres = totals / np.maximum(counts, 1.0)[..., None]
        evidence = local.evidence(centres.reshape(-1, centres.shape[-1]))
        potential, shape, *own = (values.reshape(both.shape) for values in evidence)
        pairs = ((judged.evidence.potential, potential), (judged.evidence.shape, shape))
        price = np.where(used, self._priced(np.maximum(counts, 1.0), *own), 0.0)
        return self._rise(
            [((before * np.append(a, 0.0))[both] - counts * b).sum(0) for a, b in pairs],
            (price - np.append(self._prices, 0.0)[both]).sum(0),
            (used.astype(int) - (before[both] > 0)).sum(0),
        )

    # --- the objective ----------------------------------------------------------------------------

    def _rise(self, misfits: Sequence[Array], price: Array, groups: Array) -> Array:
        """Rise of the objective, where misfits, the prices and the number of groups rise so."""
        judged, (misfit, shape), prices = self.clustering.judged, misfits, self._prices.sum()
        length, number = self.clustering.local.criterion.length_of_sums, len(self._counts)
        after = length(
            judged.misfit + misfit, judged.shape + shape, prices + price, number + groups
        )
        return after - length(judged.misfit, judged.shape, prices, number)

    @functools.cached_property
    def _prices(self) -> Float[Array, " g"]:
        return self._priced(self._counts, *self._evidence)

    def _priced(self, counts: Array, surprise: Array, typical: Array) -> Array:
        """Prices of groups where shapes are spread as they are now: to first order, those at the
        spread that is best once something has moved.
        """
        return self.clustering.local.criterion.prices(surprise, typical, counts, self._spread)

    @functools.cached_property
    def _spread(self) -> float:
        return self.clustering.judged.prices(self.clustering.local.criterion, self._counts)[1]

    @property
    def _evidence(self) -> tuple[Array, Array]:
        return self.clustering.judged.evidence[2:]

    # --- where components are ---------------------------------------------------------------------

    @property
    def _counts(self) -> Float[Array, " g"]:
        return self.clustering.counts

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
