"""How sure a matching is: what the next best one would cost, in nats.

Differences of description length are approximate differences of log evidence: a margin of ``m``
nats says that the data speak ``exp(m)`` to one against the alternative, as far as the criterion
is right. How often matches of a given margin are wrong was measured (``docs/fuse.md``).
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import numpy as np
import scipy

from posterity.arrays.typing import Float
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import Clustering, polish, refine
from posterity.fusion.moves import Moves
from posterity.fusion.search import drop, split

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


@dataclasses.dataclass(frozen=True)
class Confidence:
    """How sure a clustering is; found when it is asked for.

    Attributes:
        clustering: what was found.
        levels: the least objective that the search met with each number of groups.
        free: whether the number of groups was chosen by the objective.
    """

    clustering: Clustering
    levels: dict[int, float]
    free: bool

    @property
    def parts(self) -> Iterable[Clustering]:
        """The clustering, as a part of all components after another; in memory there is one."""
        return [self.clustering]

    @property
    def objective(self) -> float:
        """What the levels are compared with."""
        return self.clustering.objective

    @functools.cached_property
    def margins(self) -> Float[Array, " n"]:
        """Rise of the objective, in nats, if a component were elsewhere: where it rises least.

        See :class:`Moves`.
        """
        return np.concatenate([Moves(part, self.free).margins() for part in self.parts])

    @functools.cached_property
    def components(self) -> dict[int, float]:
        """Nats by which the best clustering met with each number of groups is worse.

        Zero for the number found. Two more and two fewer are always there, where there can be so
        many, if need be by dissolving a group or founding one, and refining; empty if the number
        was not chosen by the objective.
        """
        if not self.free:
            return {}
        met = dict(self.levels)
        for number, objective in self.neighbours():
            met[number] = min(objective, met.get(number, np.inf))
        return self._above(met)

    def neighbours(self) -> Iterator[tuple[int, float]]:
        """Numbers of groups near the one found, and the objective of a clustering into as many."""
        for step in (_one_fewer, _one_more):
            current = self.clustering
            for _ in range(NEIGHBOURS):
                current = step(current)
                if current is None:
                    break
                yield len(current.counts), current.objective

    @property
    def runner_up(self) -> tuple[int, float] | None:
        """The next best number of groups that the search met, if any, and how much worse it is."""
        others = self._above(self.levels) if self.free else {}
        others.pop(len(self.clustering.counts), None)
        return min(others.items(), key=lambda other: other[1], default=None)

    @property
    def suspect(self) -> bool:
        """Whether some match or number may hang on little, told at little cost: to first order,
        with some to spare.

        It is not looked for beyond :data:`AT_ONCE` and :data:`NUMBERS`.
        """
        if _large(self.clustering):
            return False
        close = self.runner_up is not None and self.runner_up[1] < AMBIGUOUS
        if close or not self.identified:
            return True
        least = (Moves(part, self.free).least_at_first_order() for part in self.parts)
        return min(least) < 2 * AMBIGUOUS

    @functools.cached_property
    def identified(self) -> bool:
        """Whether there is a scale to judge by how much matched components differ.

        Posteriors of a Gaussian family carry none: two sites whose components differ by more than
        they are uncertain may share them and differ, or share nothing.
        """
        local = self.clustering.local
        criterion, points = local.criterion, local.points
        if not self.free or criterion.sites > 2 or not _scale_free(points.template):
            return True
        found = self.clustering.judged
        freedom = (criterion.total - len(found.centres)) * points.coordinates.shape[1] / 2
        return bool(not freedom or found.misfit < scipy.special.gammaincinv(freedom, CHANCE))

    def _above(self, levels: dict[int, float]) -> dict[int, float]:
        above = {groups: max(level - self.objective, 0.0) for groups, level in levels.items()}
        return dict(sorted((above | {len(self.clustering.counts): 0.0}).items()))


def _one_fewer(clustering: Clustering) -> Clustering | None:
    fewer = drop(clustering, tries=1 if _large(clustering) else 3)
    return None if fewer is None else _refined(fewer)


def _one_more(clustering: Clustering) -> Clustering | None:
    return _refined(split(clustering)) if (clustering.counts > 1).any() else None


def _refined(clustering: Clustering) -> Clustering:
    return refine(clustering, sweeps=2) if _large(clustering) else polish(refine(clustering))


def _large(clustering: Clustering) -> bool:
    pairs = clustering.local.criterion.total * len(clustering.counts)
    return pairs > AT_ONCE or pairs * clustering.local.points.coordinates.shape[1] > NUMBERS


def _scale_free(family: ExponentialFamily) -> bool:
    """Whether location and precision are free of each other, with no count that binds them."""
    blocks = family.independent_blocks()
    return all(map(_scale_free, blocks.values())) if blocks else family.gaussian
