"""Matched components, each compared with the others of its group."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from posterity.arrays.typing import Int
from posterity.families import stack
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.blocks import Block
from posterity.fusion.clustering import sums
from posterity.fusion.deviations import (
    Deviations,
    compared,
    deviate,
    in_closed_form,
    laws_of,
    nats,
)
from posterity.fusion.doubts import DIFFER, LEVEL, Doubt, Kind, doubt
from posterity.fusion.geometry import BUDGET, CACHED, chunks, middle, moved

Array = np.ndarray
EVERYTHING = "everything together"
"""What a distance between laws of several numbers is at, if at no single one."""


class Groups:
    """Matched components (n,) in groups, each to be compared with the others of its group. Natural
    parameters are relative to the origin of the search. ``rows`` are places among all components
    of the block, ``labels`` their groups, ``fused`` their numbers in the fusion.
    """

    def __init__(self, block: Block, alignment: Alignment | None):
        laws = block.members
        self.block = block
        self.alignment = alignment
        self.rows = np.arange(len(block.site))
        if alignment is None or alignment.confidence is None:
            origin = middle(laws)
            self.labels = np.zeros(len(self.rows), int)
            self.natural = moved(laws, origin).natural_parameters
        else:
            clustering = alignment.confidence.clustering
            origin = clustering.local.origin
            self.labels = clustering.labels
            self.natural = clustering.local.judged.coordinates
            places: Any = alignment.rows
            found = np.flatnonzero(places >= 0)
            self.rows = np.empty(len(found), int)
            self.rows[places[found]] = found
        self.site = block.site[self.rows]
        self.fused = self.labels if alignment is None else alignment.labels[self.rows]
        self.sizes = np.bincount(self.labels)
        self.everywhere = self.site, self.fused
        self.law: Any = laws[:1].with_natural_parameters
        self.start = np.zeros((len(self.rows), 1))
        self.records = None
        if block.priors.exchangeable.all():
            starts: Any = stack(block.priors.laws)
            own = block.priors.own[self.site]
            self.start = moved(starts, origin).natural_parameters[own]
            whole = Absorbing.of(block, alignment and alignment.into)
            before = starts.observations()
            if before is not None:
                records = np.asarray(whole.members.observations())  # pyright: ignore
                self.records = records[self.rows] - before[own]
            elif block.weighted:
                self.records = whole.counts[self.rows]
        self.learnt = self.natural - self.start
        self.totals = sums(self.learnt, self.labels)

    @property
    def holders(self) -> Int[Array, " fused"]:
        """The number of sites that have each fused component."""
        labels = self.everywhere[1]
        return np.bincount(labels[labels >= 0])

    def of_both(self, one: int, other: int) -> Int[Array, " some"]:
        """Return the sites that have both of two fused components."""
        site, labels = self.everywhere
        return np.intersect1d(site[labels == one], site[labels == other])

    @property
    def free(self) -> bool:
        """True if the evidence chose the number of components."""
        confidence = self.alignment and self.alignment.confidence
        return bool(confidence and confidence.free)

    @property
    def several(self) -> Int[Array, " m"]:
        """The components that are not alone in their groups."""
        return np.flatnonzero((self.sizes > 1)[self.labels])

    def within(self, some: Int[Array, " m"]) -> Deviations:
        """Return the deviations of some :attr:`several` from what other members of groups say."""
        parts = [self._within(some[part]) for part in self._chunks(len(some))]
        squares, shares, freedom = zip(*parts, strict=True)
        return Deviations(np.concatenate(squares), np.concatenate(shares), freedom[0])

    def _within(self, some: Int[Array, " m"]) -> Deviations:
        labels = self.labels[some]
        learnt = self.learnt[some]
        theirs = self.totals[labels] - learnt
        start = self.start[some]
        alike = None
        # A prior shifts few records the most: it is left out where records alone determine a law;
        # else each law is compared with that of equally many records of the other's kind.
        if self.records is not None and self.block.members.location() is not None:
            start = 0.0
        elif self.records is not None:
            own = self.records[some]
            ratio = own / (np.bincount(self.labels, self.records)[labels] - own)
            ratio = np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)[:, None]
            alike = self.law(ratio * theirs + start), self.law(learnt / ratio + start)
        return compared(self.law(learnt + start), self.law(theirs + start), alike, len(self.rows))

    def apart(self, level: float) -> bool:
        """Return whether each component deviates by more than chance from all groups but its own,
        in the mean of some number, as if laws were normal.
        """
        mine = [law.mean.shape[-1] for law in laws_of(self.law(self.natural[:1]))]
        limit = deviate(np.log(sum(mine)) - np.log(level)) ** 2
        row, group = np.nonzero(self.labels[:, None] != np.arange(len(self.sizes)))
        theirs = laws_of(self.law(self.totals + self.start[:1]))
        for one, other in zip(laws_of(self.law(self.natural)), theirs, strict=True):
            for k in range(one.shape[-1]):
                gap = one.mean[row, k] - other.mean[group, k]
                near = ~(gap**2 > limit * (one.sd[row, k] ** 2 + other.sd[group, k] ** 2))
                row = row[near]
                group = group[near]
        return not len(row)

    def _chunks(self, number: int) -> list[slice]:
        return chunks(number, 8 * self.natural.shape[1], CACHED)


def fits(numbers: int) -> bool:
    """Return whether so many numbers are compared, which takes eight times their memory."""
    return 64 * numbers <= BUDGET


def different(
    groups: Groups, names: tuple[str, ...], level: float = LEVEL, verb: str = "fuse"
) -> Iterator[Doubt]:
    """Yield a doubt about the site that deviates most from the others, or, if none does by more
    than chance, about all sites if they differ in some number. The advice names the ``verb``.
    """
    block = groups.block
    some = groups.several
    if not len(some) or not in_closed_form(block.members):
        return
    found = groups.within(some)
    far = found.beyond(level / len(some))
    coefficients = block.members.gaussian and not block.plate and not block.path
    personal = f", or {DIFFER.format(verb=verb)}" if coefficients else ""
    facts: Any = {"place": block.place}
    if len(far):
        # Two sites are equally far from each other: the first by name is reported first.
        found = found.take(far)
        site = np.array(block.names)[groups.site[some[far]]]
        at = int(np.lexsort((site, -np.round(found.worst, 6)))[0])
        number = int(found.nats[at].argmax())
        row = int(some[far[at]])
        component = int(groups.fused[row]) if block.plate else None
        facts["sigmas"] = float(deviate(found.nats[at, number]))
        facts["about"] = _number(groups, row, number, names)
        others = [name for name in block.names if name != site[at]]
        if len(others) == 1:
            facts["whom"] = f"site {others[0]!r}"
        facts["where"] = "" if component is None else f" of component {component}"
        evidence = float(found.worst[at] - np.log(len(some)))
        yield doubt(Kind.CONTRADICTION, evidence, str(site[at]), component, personal, **facts)
        return
    squares, freedom = found.summed()
    every = nats(squares, freedom) - np.log(len(freedom))
    number = int(every.argmax())
    if every[number] > -np.log(level):
        facts["times"] = float(squares[number] / freedom[number])
        facts["about"] = _number(groups, int(some[0]), number, names)
        yield doubt(Kind.DIFFERENCE, float(every[number]), also=personal, **facts)


def _number(groups: Groups, row: int, number: int, names: tuple[str, ...]) -> str:
    """Return in words what a number of a component is; the last one may be all together."""
    law: Any = groups.block.members
    for table in law[[groups.rows[row]]].tables():
        if number < table.law.mean.size:
            own = names if len(names) == table.law.mean.size else table.names
            return " ".join(filter(None, (table.block, table.quantity, own[number]))) or "its value"
        number -= table.law.mean.size
    return EVERYTHING


def told_by_sampling(groups: Groups, level: float) -> bool:
    """Return whether sampling alone tells which components are one: each deviates by more than
    chance from all groups but its own; whether they agree with these, :func:`different` says.
    """
    alignment = groups.alignment
    if alignment is None or not alignment.identified or not in_closed_form(groups.block.members):
        return False
    return fits(len(groups.rows) * len(groups.sizes)) and groups.apart(level)
