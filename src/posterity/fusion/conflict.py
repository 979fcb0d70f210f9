"""Conflicts between sites: what each says of a number beside what the others together say.

Sites whose own posteriors exclude each other are averaged, or added up, to a posterior that is
surer than any of them, however certain the matching is. Two laws are compared by the probability
that each gives to values as far out as the other's (presanis2013).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.errors import CHOOSE
from posterity.families import Distribution, ExponentialFamily, stack
from posterity.families.marginals import Marginal, Names
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.blocks import Block
from posterity.fusion.clustering import sums
from posterity.fusion.geometry import CACHED, chunks, middle, moved

Array = np.ndarray
CONTRADICTION = 6.0
"""Deviations, of both laws together, from which two of them contradict each other."""
ROUGHLY = 1.5
"""The same of their means, below which, or half of what is of interest, tails are not computed."""
CONTRADICTS = "contradicts the others"
"""The words by which warnings on such a site are known."""
MOST = 2**27
"""Multiplications that a joint comparison may take."""


def contradiction(block: Block, alignment: Alignment | None, names: Names) -> str:
    """A line on the site that is furthest from what all others say; empty if none is far."""
    if not in_closed_form(block.members):
        return ""
    groups = _Groups(block, alignment)
    some = chunks(len(groups.labels), 8 * block.members.dimension, CACHED)
    away = np.concatenate([groups.away(part) for part in some])
    far = np.flatnonzero(away > CONTRADICTION)
    if not len(far):
        return ""
    # Of two sites either is as far from the other: the first in the order of names.
    worst = int(far[np.lexsort((groups.rows[far], -np.round(away[far], 6)))[0]])
    what, most, at_worst = "all numbers together", CONTRADICTION, np.array([worst])
    tails = ""
    for mine, theirs, here, there in _tables(*groups.compared(at_worst)):
        z = apart(mine.law, theirs.law, here.law.mean, there.law.mean).reshape(-1)
        if z.max(initial=0.0) > most:
            most, at = float(z.max()), int(z.argmax())
            own = names.get(block.path, ()) if len(names.get(block.path, ())) == len(z) else ()
            what = f"{mine.quantity} {(own or mine.names)[at]}".strip()
            tails = " (or its records have heavier tails)" * (mine.quantity == "variance")
    row = int(groups.rows[worst])
    where = "" if alignment is None else f", component {alignment.labels[row]}"
    return (
        f"site {block.names[int(block.site[row])]!r} {CONTRADICTS}{block.place}: "
        f"{what}{where} is {min(away[worst], 99):.0f} of both their deviations away{tails}. One "
        "posterior of all is surer than it should be: federate instead, with parameters of each "
        f"site's own (personal=True), or look at that site's units and records{CHOOSE}"
    )


def deviations(
    members: Any,
    others: Any,
    alike: tuple[Any, Any] | None = None,
    among: int = 0,
    least: float = 0.0,
) -> Float[Array, " n"]:
    """Deviations between laws (n,) and others: of the number of which it is most, or of all.

    ``alike`` are the laws that either would be if its records were as those of the other. Joint
    comparisons are left out where those of all laws, ``among`` which these are, take too long. Up
    to the ``least`` that is of interest deviations may be more than they are.
    """
    tables = _tables(members, others, alike)
    away = _most(((t.law for t in four) for four in tables), members.batch_shape[0], least)
    full = members.gaussian and not members.diagonal
    if full and max(among, len(away)) * members.own_size**3 <= MOST:
        away = np.maximum(away, jointly(members, others))
    return away


def _most(pairs: Iterable[Any], number: int, least: float = CONTRADICTION) -> Float[Array, " n"]:
    """The deviations (n,) of the numbers in which laws are furthest :func:`apart`."""
    away = np.zeros(number)
    for mine, theirs, here, there in pairs:
        z = apart(mine, theirs, here.mean, there.mean, least).reshape(number, -1)
        away = np.maximum(away, z.max(1, initial=0.0))
    return away


def _tables(
    members: Any, others: Any, alike: tuple[Any, Any] | None = None
) -> Iterator[tuple[Any, ...]]:
    """The marginals of four laws side by side, the last two those of ``alike``."""
    mine, theirs = members.tables(), others.tables()
    here, there = (law.tables() for law in alike) if alike else (theirs, mine)
    return zip(mine, theirs, here, there, strict=True)


def in_closed_form(law: ExponentialFamily) -> bool:
    """Whether marginals take no draws and no quadrature."""
    parts = law.independent_blocks()
    if parts:
        return all(map(in_closed_form, parts.values()))
    return type(law).marginals is not Distribution.marginals


class _Groups:
    """Components (n,) that were matched, in groups, beside what the others of each group say:
    natural parameters as the search has them, about the middle of all. ``rows`` are their places
    among all components of the block.
    """

    def __init__(self, block: Block, alignment: Alignment | None):
        laws, self.rows = block.members, np.arange(len(block.site))
        if alignment is None or alignment.confidence is None:
            origin, self.labels = middle(laws), np.zeros(len(self.rows), int)
            self.natural = moved(laws, origin).natural_parameters
        else:
            clustering = alignment.confidence.clustering
            origin, self.labels = clustering.local.origin, clustering.labels
            self.natural = clustering.local.judged.coordinates
            places = np.concatenate([*alignment.rows.values()])
            found = np.flatnonzero(places >= 0)
            self.rows = np.empty(len(found), int)
            self.rows[places[found]] = found
        self.like, self.records, self.own = laws[:1], None, np.zeros(0, int)
        self.start, self.among = np.zeros((1, 1)), len(self.labels)
        self.totals, size = sums(self.natural, self.labels), np.bincount(self.labels)
        self.several = size > 1
        if block.priors.exchangeable.all():
            start: Any = stack(block.priors.laws)
            self.start, self.own = _natural(start, origin), block.priors.own[block.site[self.rows]]
            shape = len(size), len(self.start)
            many = np.bincount(self.labels * shape[1] + self.own, minlength=shape[0] * shape[1])
            self.totals -= many.reshape(shape) @ self.start
            if (before := start.observations()) is not None:
                whole = Absorbing.of(block, alignment and alignment.into).members
                self.records = np.asarray(whole.observations())[self.rows] - before[self.own]
                self.counts = np.bincount(self.labels, self.records)

    def compared(self, some: Any) -> tuple[Any, Any, tuple[Any, Any] | None]:
        """Return members, what all others of each one's group say, beside its own prior where that
        is known, and the laws that a member and these others would be if their records were as the
        other's.

        A prior that is far from all records pulls most at a site of few, which is no contradiction:
        each is compared with what as many records of the other's kind would make of the same prior;
        there is None where records are not counted, or the prior is not known.
        """
        natural, labels, law = (
            self.natural[some],
            self.labels[some],
            self.like.with_natural_parameters,
        )
        prior = self.start[self.own[some]] if len(self.own) else 0.0
        learnt = natural - prior
        theirs = self.totals[labels] - learnt
        if self.records is None:
            return law(natural), law(theirs + prior), None
        own = self.records[some]
        rest = self.counts[labels] - own
        ratio = np.where((own > 0) & (rest > 0), own / rest, np.nan)[:, None]
        known = np.isfinite(ratio)
        here = law(np.where(known, ratio * theirs, theirs) + prior)
        there = law(np.where(known, learnt / ratio, learnt) + prior)
        return law(natural), law(theirs + prior), (here, there)

    def away(self, part: slice) -> Float[Array, " n"]:
        """The deviations between members of a part and the others of each one's group, up to
        :data:`CONTRADICTION` perhaps more than they are; zero of those that are alone.
        """
        members, others, alike = self.compared(part)
        several = self.several[self.labels[part]]
        try:  # nearly none are far from each other: of which of these are proper laws is asked then
            laws = [_marginals(law) for law in (members, others, *(alike or ()))]
            four = zip(*laws, *(() if alike else laws[::-1]), strict=True)
            rows = several & (_most(four, len(several)) > CONTRADICTION)
        except np.linalg.LinAlgError:
            rows = several
        if members.gaussian and not members.diagonal and self.among * members.own_size**3 <= MOST:
            rows = several
        away, rows = np.zeros(len(several)), np.flatnonzero(rows)
        if len(rows):
            away[rows] = deviations(*self.compared(part.start + rows), self.among, CONTRADICTION)
        return away


def _marginals(law: Any) -> list[Marginal]:
    """The marginals of a law and its blocks, proper or not."""
    if not (parts := law.independent_blocks()):
        return law.marginals()
    return [own for part in parts.values() for own in _marginals(part)]


def _natural(laws: Any, origin: Any) -> Float[Array, "n dim"]:
    """Natural parameters (n, dim) of laws, as they are seen from an origin."""
    return moved(laws, origin).natural_parameters


def starts_of(block: Block, rows: Int[Array, " n"], origin: Any) -> Any:
    """Natural parameters (n, dim) of what these rows started from; zero where that is not known."""
    if not block.priors.exchangeable.all():
        return 0.0
    return _natural(stack(block.priors.laws), origin)[block.priors.own[block.site[rows]]]


def apart(
    one: Marginal, other: Marginal, here: Any = None, there: Any = None, least: float = 0.0
) -> Float[Array, "..."]:
    """Return the deviations between the numbers of two laws, as if both were normal: the difference
    over the root of both variances.

    Of laws that are not, each counts by the deviate of the probability that it gives to values
    beyond the mean that it should have, ``here`` and ``there``, the other's unless passed. Zero
    where nothing is known; up to the ``least`` that is of interest it may be more than it is.
    """
    here, there = other.mean if here is None else here, one.mean if there is None else there
    either = np.abs(one.mean - here) / one.sd, np.abs(other.mean - there) / other.sd
    rough = 1 / np.hypot(1 / either[0], 1 / either[1])
    enough = max(ROUGHLY, least / 2)
    found = np.where(np.isfinite(rough) & (rough <= enough), rough, 0.0)
    look = np.nonzero(rough > enough)
    if len(look[0]):
        deviate = lambda law, x: np.abs(scipy.special.ndtri(law.picked(look).cdf(x[look])))
        first = deviate(one, here)
        found[look] = np.minimum(first, least)
        far = ~(first <= least)  # both together are no more than either
        first, look = first[far], tuple(axis[far] for axis in look)
        z = 1 / np.hypot(1 / first, 1 / deviate(other, there))
        z = np.where(np.isnan(z) | (np.isinf(z) & (rough[look] < 1)), 0.0, z)
        found[look] = np.where(np.isinf(z), np.maximum(rough[look], CONTRADICTION), z)
    return found


def jointly(members: Any, others: Any) -> Float[Array, " n"]:
    """The same of the means of Gaussians (n,), in all directions at once: the normal deviate of a
    chi-squared of as many degrees of freedom as directions.
    """
    size = members.own_size
    one, other = np.asarray(members.precision), np.asarray(others.precision)
    gap = np.asarray(members.mean - others.mean)[..., None]
    scale = np.sqrt(np.diagonal(one + other, axis1=-2, axis2=-1))[..., None]
    both = (one + other) / scale / np.swapaxes(scale, -1, -2)
    proper = np.isfinite(both).all((-2, -1))
    both[~proper] = np.eye(size)
    solved = np.linalg.solve(both, other @ gap / scale)
    chi = ((one @ gap / scale) * solved).sum((-2, -1))
    deviate = -scipy.special.ndtri(scipy.special.gammaincc(size / 2, np.maximum(chi, 0) / 2) / 2)
    return np.where(proper & np.isfinite(chi), np.minimum(deviate, np.sqrt(np.maximum(chi, 0))), 0)
