"""Conflicts between sites: each site's posterior is compared with that of the other sites.

If sites contradict each other, their average or product is more certain than any of them, however
certain the matching is. Two laws are compared by the tail probability that each has beyond the
other's mean (presanis2013).
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
CONTRADICTION = 6.0  # Combined standard deviations above which two laws contradict each other
ROUGHLY = 1.5
"""Deviations of the means below which (or below half the ``least``) tails are not computed."""
CONTRADICTS, DIFFER = CONFLICTS = "contradicts the others", "sites truly differ"
"""Words that identify warnings about a conflict, of one site or of all."""
MOST = 2**27  # Largest number of multiplications for a joint comparison


def contradiction(block: Block, alignment: Alignment | None, names: Names) -> str:
    """Return a line on the site that is furthest from all others; empty if none is far."""
    if not in_closed_form(block.members):
        return ""
    groups = _Groups(block, alignment)
    some = chunks(len(groups.labels), 8 * block.members.dimension, CACHED)
    away = np.concatenate([groups.away(part) for part in some])
    far = np.flatnonzero(away > CONTRADICTION)
    if not len(far):
        return ""
    # Two sites are equally far from each other: the first by name is reported.
    worst = int(far[np.lexsort((groups.rows[far], -np.round(away[far], 6)))[0]])
    what = "all numbers together"
    most = CONTRADICTION
    at_worst = np.array([worst])
    tails = ""
    for mine, theirs, here, there in _tables(*groups.compared(at_worst)):
        z = apart(mine.law, theirs.law, here.law.mean, there.law.mean).reshape(-1)
        if z.max(initial=0.0) > most:
            most = float(z.max())
            at = int(z.argmax())
            own = names.get(block.path, ()) if len(names.get(block.path, ())) == len(z) else ()
            what = f"{mine.quantity} {(own or mine.names)[at]}".strip() or "its value"
            tails = " (or its records have heavier tails)" * (mine.quantity == "variance")
    row = int(groups.rows[worst])
    where = f", component {alignment.labels[row]}" if alignment and block.plate else ""
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
    """Return the deviations between laws (n,) and others: the largest of any number, or jointly.

    ``alike`` are the laws that each would be if its records were like those of the other. Joint
    comparisons are skipped if they take too long for all ``among`` laws. Deviations up to
    ``least`` may be overestimated.
    """
    tables = _tables(members, others, alike)
    away = _most(((t.law for t in four) for four in tables), members.batch_shape[0], least)
    full = members.gaussian and not members.diagonal
    if full and max(among, len(away)) * members.own_size**3 <= MOST:
        away = np.maximum(away, jointly(members, others))
    return away


def _most(pairs: Iterable[Any], number: int, least: float = CONTRADICTION) -> Float[Array, " n"]:
    """Return the largest deviation (n,) of any number between laws (:func:`apart`)."""
    away = np.zeros(number)
    for mine, theirs, here, there in pairs:
        z = apart(mine, theirs, here.mean, there.mean, least).reshape(number, -1)
        away = np.maximum(away, z.max(1, initial=0.0))
    return away


def _tables(
    members: Any, others: Any, alike: tuple[Any, Any] | None = None
) -> Iterator[tuple[Any, ...]]:
    """Return the marginals of members, others, and the two laws of ``alike``, zipped."""
    mine = members.tables()
    theirs = others.tables()
    here, there = (law.tables() for law in alike) if alike else (theirs, mine)
    return zip(mine, theirs, here, there, strict=True)


def in_closed_form(law: ExponentialFamily) -> bool:
    """Return whether marginals need neither draws nor quadrature."""
    parts = law.independent_blocks()
    if parts:
        return all(map(in_closed_form, parts.values()))
    return type(law).marginals is not Distribution.marginals


class _Groups:
    """Matched components (n,) in groups, each to be compared with the others of its group. Natural
    parameters are relative to the origin of the search. ``rows`` are places among all components
    of the block.
    """

    def __init__(self, block: Block, alignment: Alignment | None):
        laws = block.members
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
            self.start = moved(start, origin).natural_parameters
            self.own = block.priors.own[block.site[self.rows]]
            shape = len(size), len(self.start)
            many = np.bincount(self.labels * shape[1] + self.own, minlength=shape[0] * shape[1])
            self.totals -= many.reshape(shape) @ self.start
            whole = Absorbing.of(block, alignment and alignment.into)
            before = start.observations()
            if before is not None:
                records = np.asarray(whole.members.observations())  # pyright: ignore
                self.records = records[self.rows] - before[self.own]
            elif block.weighted:
                self.records = whole.counts[self.rows]
            if self.records is not None:
                self.counts = np.bincount(self.labels, self.records)

    def compared(self, some: Any) -> tuple[Any, Any, tuple[Any, Any] | None]:
        """Return members, the posteriors from the other members of each group (with the member's
        prior, if known), and the laws that both would be if their records were like the other's.

        A prior far from all records shifts sites with few records most, which is no contradiction.
        So each law is compared with the posterior from equally many records of the other's kind and
        the same prior; these laws are None if numbers of records or priors are unknown.
        """
        natural = self.natural[some]
        labels = self.labels[some]
        law = self.like.with_natural_parameters
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
        """Return deviations between members of a part and the others of their groups. Values up to
        :data:`CONTRADICTION` may be overestimated; single members have zero.
        """
        members, others, alike = self.compared(part)
        several = self.several[self.labels[part]]
        try:  # few are far from each other: only these are checked for proper laws
            laws = [_marginals(law) for law in (members, others, *(alike or ()))]
            four = zip(*laws, *(() if alike else laws[::-1]), strict=True)
            rows = several & (_most(four, len(several)) > CONTRADICTION)
        except np.linalg.LinAlgError:
            rows = several
        if members.gaussian and not members.diagonal and self.among * members.own_size**3 <= MOST:
            rows = several
        away = np.zeros(len(several))
        rows = np.flatnonzero(rows)
        if len(rows):
            away[rows] = deviations(*self.compared(part.start + rows), self.among, CONTRADICTION)
        return away


def _marginals(law: Any) -> list[Marginal]:
    """Return the marginals of a law or its blocks, without checking that it is proper."""
    parts = law.independent_blocks()
    if not parts:
        return law.marginals()
    return [own for part in parts.values() for own in _marginals(part)]


def starts_of(block: Block, rows: Int[Array, " n"], origin: Any) -> Any:
    """Return natural parameters (n, dim) of these rows' priors; zero if they are unknown."""
    if not block.priors.exchangeable.all():
        return 0.0
    starts = moved(stack(block.priors.laws), origin).natural_parameters
    return starts[block.priors.own[block.site[rows]]]


def apart(
    one: Marginal, other: Marginal, here: Any = None, there: Any = None, least: float = 0.0
) -> Float[Array, "..."]:
    """Return the deviations between the numbers of two laws; for normal laws, the difference of
    means over the root of the summed variances.

    Other laws count by the normal deviate of their tail probability beyond the expected mean,
    ``here`` and ``there``, by default the other's mean. Deviations are zero if nothing is known,
    and may be overestimated up to ``least``.
    """
    here = other.mean if here is None else here
    there = one.mean if there is None else there
    either = np.abs(one.mean - here) / one.sd, np.abs(other.mean - there) / other.sd
    rough = 1 / np.hypot(1 / either[0], 1 / either[1])
    enough = max(ROUGHLY, least / 2)
    found = np.where(np.isfinite(rough) & (rough <= enough), rough, 0.0)
    look = np.nonzero(rough > enough)
    if len(look[0]):

        def deviate(law, x):
            return np.abs(scipy.special.ndtri(law.picked(look).cdf(x[look])))

        first = deviate(one, here)
        found[look] = np.minimum(first, least)
        far = ~(first <= least)  # the combined deviation is at most either one
        first = first[far]
        look = tuple(axis[far] for axis in look)
        z = 1 / np.hypot(1 / first, 1 / deviate(other, there))
        z = np.where(np.isnan(z) | (np.isinf(z) & (rough[look] < 1)), 0.0, z)
        found[look] = np.where(np.isinf(z), np.maximum(rough[look], CONTRADICTION), z)
    return found


def jointly(members: Any, others: Any) -> Float[Array, " n"]:
    """Return the joint deviations of the means of Gaussians (n,): the normal deviate of a
    chi-squared variable with one degree of freedom per direction.
    """
    size = members.own_size
    one = np.asarray(members.precision)
    other = np.asarray(others.precision)
    gap = np.asarray(members.mean - others.mean)[..., None]
    scale = np.sqrt(np.diagonal(one + other, axis1=-2, axis2=-1))[..., None]
    both = (one + other) / scale / np.swapaxes(scale, -1, -2)
    proper = np.isfinite(both).all((-2, -1))
    both[~proper] = np.eye(size)
    solved = np.linalg.solve(both, other @ gap / scale)
    chi = ((one @ gap / scale) * solved).sum((-2, -1))
    deviate = -scipy.special.ndtri(scipy.special.gammaincc(size / 2, np.maximum(chi, 0) / 2) / 2)
    return np.where(proper & np.isfinite(chi), np.minimum(deviate, np.sqrt(np.maximum(chi, 0))), 0)
