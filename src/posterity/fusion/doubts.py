"""Doubts about a fusion: sites that contradict each other, add nothing, or differ too much.

A matching may be certain and what comes of it wrong all the same: sites whose own posteriors
exclude each other are averaged, or added up, to a posterior that is surer than any of them. What
every site says of a number is compared with what the others together say, by the probability that
each gives to values as far out as the other's (presanis2013).
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import CHOOSE
from posterity.families import Distribution, ExponentialFamily, NormalWishart, stack
from posterity.families.marginals import Marginal, Names
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.blocks import Block
from posterity.fusion.clustering import sums
from posterity.fusion.geometry import CACHED, chunks, middle, moved
from posterity.fusion.result import Fusion
from posterity.fusion.scale import Scale
from posterity.fusion.sites import Sites
from posterity.fusion.topics import are_topics

Array = np.ndarray
CONTRADICTION = 6.0
"""Deviations, of both laws together, from which two of them contradict each other."""
AGREEMENT = 3.5
"""The same below which two components are no further apart than chance puts halves of one."""
BESIDE = 3.0
"""Deviations of a record within which two components of different sites overlap."""
ROUGHLY = 1.5
"""The same of their means, below which, or half of what is of interest, tails are not computed."""
UNDECIDED = 6.0
"""Nats by which a site's own fit of two components is better than of one, up to which they may be
one all the same where no site that has both tells them apart."""
FEW = 3
"""Sites that have a component, up to which it may be part of another that these have split."""
SCATTER = 30.0
"""The factor by which records scatter more or less at a site that is likely in other units."""
READ = 40
"""Components up to which a warning spells out the matching in which two are one."""
NOTHING = 0.1
"""Nats beyond its prior below which a site has nothing to say."""
CONTRADICTS = "contradicts the others"
"""The words by which warnings on such a site are known."""
TIMES = 2.0
"""A residual so many times what sampling gives is of sites that differ, or of a wrong match: right
ones have .7 to 1.7."""
SPREADS = 3.0
"""Deviations by which it also has to be above that."""
GLANCE = 1.5
"""Half nats a direction of each match from which the residual is compared with sampling's."""
PRIORS = 4
"""Different priors of sites that are looked at."""
MOST_PAIRS = 2**12
"""Pairs of fused components that are compared."""
MOST = 2**27
"""Multiplications that a joint comparison may take."""


def doubts_of(sites: Sites, fusion: Fusion) -> Iterator[str]:
    """Lines on what is doubtful, each with what to do; nothing of sites matched in passes."""
    kept = {path: block for path, block in sites.blocks.items() if isinstance(block, Block)}
    with np.errstate(all="ignore"):
        yield from _say_nothing(kept)
        for path, block in kept.items():
            alignment = fusion.plates.get(path)
            if are_topics(block):  # which are merged as far as it helps to predict
                continue
            yield from _few_records(block)
            line = _contradiction(block, alignment, sites.coordinates)
            if line:
                yield line
            elif alignment is not None and _glance(block, alignment) > GLANCE:
                yield from _residual(fusion.scales[path], block)
            if alignment is not None and alignment.confidence and alignment.confidence.free:
                yield from _apart_for_nothing(block, alignment, len(fusion.plates) == 1)


# --- sites without anything to say ----------------------------------------------------------------


def _say_nothing(blocks: Mapping[str, Block]) -> Iterator[str]:
    """A line on sites whose posterior is their prior, give or take a tenth of a nat."""
    nats: Any = 0.0
    for block in blocks.values():
        if not block.priors.exchangeable.all():
            return
        nats = nats + _learnt(block)
    names = next((block.names for block in blocks.values()), ())
    quiet = [(name, n) for name, n in zip(names, np.atleast_1d(nats), strict=False) if n < NOTHING]
    if quiet:
        name, least = quiet[0]
        yield (
            f"site {name!r}{_more(len(quiet) - 1)} says nothing: its posterior is {least:.2g} "
            "nats from its prior. Check its records and its fit, or leave it out"
        )


def _learnt(block: Block) -> Float[Array, " sites"]:
    """Nats of a site's posterior beyond its prior, from its heaviest component unless that has
    learnt next to nothing.
    """
    starts = np.cumsum([0, *block.sizes[:-1]])
    heaviest = np.array(
        [
            start + int(block.counts[start : start + size].argmax())
            for start, size in zip(starts.tolist(), block.sizes.tolist(), strict=True)
        ]
    )
    beyond = lambda rows: block.members[rows].kl(block.priors.at(block.site[rows]))
    nats = beyond(heaviest)
    for site in np.flatnonzero(nats < NOTHING).tolist():
        nats[site] = beyond(np.flatnonzero(block.site == site)).sum()
    return nats


def _few_records(block: Block) -> Iterator[str]:
    """A line on covariances of which half are known from fewer records than directions."""
    members: Any = block.members
    if not isinstance(members, NormalWishart):
        return
    known, before = bool(block.priors.exchangeable.all()), np.zeros(1)
    if known:
        start: Any = stack(block.priors.laws)
        before = start.observations()[block.priors.own[block.site]]
    records, size = members.observations() - before, members.own_size
    few = int((records[block.used] < size).sum())
    if 2 * few > block.used.sum():
        yield (
            f"{few} of {block.used.sum()} components{block.place} are known from fewer records "
            f"than their {size} dimensions: of so few a full covariance says nothing, and no "
            "number of components is sure. Fit diagonal ones (NormalGamma), or take fewer columns"
        )


# --- sites that exclude each other ----------------------------------------------------------------


def _contradiction(block: Block, alignment: Alignment | None, names: Names) -> str:
    """A line on the site that is furthest from what all others say; empty if none is far."""
    if not _in_closed_form(block.members):
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
    for mine, theirs, here, there in _tables(*groups.compared(at_worst)):
        z = apart(mine.law, theirs.law, here.law.mean, there.law.mean).reshape(-1)
        if z.max(initial=0.0) > most:
            most, at = float(z.max()), int(z.argmax())
            own = names.get(block.path, ()) if len(names.get(block.path, ())) == len(z) else ()
            what = f"{mine.quantity} {(own or mine.names)[at]}".strip()
    row = int(groups.rows[worst])
    where = "" if alignment is None else f", component {alignment.labels[row]}"
    return (
        f"site {block.names[int(block.site[row])]!r} {CONTRADICTS}{block.place}: "
        f"{what}{where} is {min(away[worst], 99):.0f} of both their deviations away. One "
        "posterior of all is surer than it should be: federate instead, with parameters of each "
        f"site's own (personal=True), or look at that site's units and records{CHOOSE}"
    )


def _away(
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


def _in_closed_form(law: ExponentialFamily) -> bool:
    """Whether marginals take no draws and no quadrature."""
    parts = law.independent_blocks()
    if parts:
        return all(map(_in_closed_form, parts.values()))
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
            away[rows] = _away(*self.compared(part.start + rows), self.among, CONTRADICTION)
        return away


def _marginals(law: Any) -> list[Marginal]:
    """The marginals of a law and its blocks, proper or not."""
    if not (parts := law.independent_blocks()):
        return law.marginals()
    return [own for part in parts.values() for own in _marginals(part)]


def _natural(laws: Any, origin: Any) -> Float[Array, "n dim"]:
    """Natural parameters (n, dim) of laws, as they are seen from an origin."""
    return moved(laws, origin).natural_parameters


def _priors(block: Block, rows: Int[Array, " n"], origin: Any) -> Any:
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


# --- components that may be one -------------------------------------------------------------------


def _apart_for_nothing(block: Block, alignment: Alignment, only: bool) -> Iterator[str]:
    """Lines on fused components that no site tells apart, and on sites that share none.

    An argument under which two are one is named where this is the ``only`` plate, as numbers of
    components and matchings go for all plates.
    """
    labels, parts = alignment.labels, Absorbing.of(block, alignment.into)
    rows = np.flatnonzero((labels >= 0) & parts.whole)
    sizes = np.bincount(labels[rows])
    if sizes.max() == 1 and len(block.names) > 2:
        yield (
            f"no component{block.place} was matched: sites share nothing, or differ by more than "
            "their posteriors allow. Look at their units, or say components="
        )
        return
    holds = np.zeros((len(block.names), alignment.components), bool)
    holds[block.site[rows], labels[rows]] = True
    compare = functools.partial(_compared, block, alignment) if only else lambda pair: ""
    yield from _undecided(parts, rows, labels, holds, compare)
    one, other = np.nonzero(np.triu(holds.T.astype(int) @ holds == 0, 1))
    if not len(one) or len(one) > MOST_PAIRS or not _in_closed_form(block.members):
        return
    members = parts.members[rows]
    origin = middle(members)
    members, prior = moved(members, origin), _priors(block, rows, origin)
    learnt, away = sums(members.natural_parameters - prior, labels[rows]), np.full(len(one), np.inf)
    fused: Any = members
    # Beside one prior of all: a prior that is far from the records pulls only its own sites.
    for start in np.unique(prior, axis=0)[:PRIORS] if np.ndim(prior) else [0.0]:
        fused = members.with_natural_parameters(learnt + start)
        proper = np.asarray(fused.is_proper())
        gap = np.where(proper[one] & proper[other], _away(fused[one], fused[other]), np.inf)
        away = np.minimum(away, gap)
    near = np.flatnonzero(away < AGREEMENT)
    if len(near):
        least = near[away[near].argmin()]
        yield (
            f"fused components {one[least]} and {other[least]}{_more(len(near) - 1)}{block.place} "
            "may be one: no site has both, and what is known of them is no contradiction. Look at "
            f"the records of both{compare((int(one[least]), int(other[least])))}"
        )
    elif len(beside := np.flatnonzero(_beside(fused, holds, np.stack([one, other])))):
        pair = np.array([one[beside[0]], other[beside[0]]])
        own, rest = pair[np.argsort(holds.sum(0)[pair], kind="stable")]
        yield (
            f"fused component {own}{_more(len(beside) - 1)}{block.place}, which site "
            f"{block.names[int(holds[:, own].argmax())]!r} alone has, lies beside {rest}, "
            "which it lacks: it may be the same, of a site that is shifted or has outliers. Look "
            f"at its records{compare((int(rest), int(own)))}"
        )
    yield from _other_units(block, fused, holds)


def _other_units(block: Block, fused: Any, holds: Bool[Array, "sites g"]) -> Iterator[str]:
    """A line on a site that shares nothing with the others, and whose records scatter otherwise.

    Sites that share components with each other in units of their own are not seen by it.
    """
    lonely, moments = holds.sum(0) == 1, fused.expected_moments()
    if lonely.all() or fused.gaussian or moments is None:
        return
    spread = moments[1]
    spread = np.diagonal(spread, axis1=1, axis2=2) if spread.ndim > 2 else spread
    known = np.isfinite(spread).all(1)  # not of components of too few records
    for site in np.flatnonzero((holds <= lonely).all(1)).tolist():
        groups = holds[site] & known, ~holds[site] & known
        if not all(group.any() for group in groups):
            continue
        own, rest = (np.log(np.median(spread[group], axis=0)) / 2 for group in groups)
        times = np.exp(np.abs(own - rest).max(initial=0.0))
        if times > SCATTER:
            yield (
                f"site {block.names[site]!r} shares no component with the others{block.place}, and "
                f"its records scatter {times:.2g} times more or less than theirs in some column. "
                "Look at its units"
            )
            return


def _compared(block: Block, alignment: Alignment, pair: tuple[int, int]) -> str:
    """The argument of a fusion in which these two fused components are one, as the end of a
    sentence; nothing where it is too long to spell out.

    A site's own components stay apart where their number is chosen, so that it can be no less than
    those of the largest site; a matching can have several of a site as one, whose prior is known.
    """
    size, least = alignment.components - 1, np.bincount(block.site[block.used]).max()
    if size >= least:
        return f", or compare with components={size}"
    if size >= READ:
        return ""
    kept, gone = sorted(pair)
    to = [kept if g == gone else g - (g > gone) for g in range(size + 1)]
    one = f"np.array({[*to, -1]})[g] for s, g in fused.matching.items()"
    return f", or compare with matching={{s: {one}}}"


def _undecided(
    parts: Absorbing,
    rows: Int[Array, " n"],
    labels: Int[Array, " all"],
    holds: Bool[Array, "sites g"],
    compare: Callable[[tuple[int, int]], str],
) -> Iterator[str]:
    """A line on two components, one of which few sites have, that no site which has both tells
    apart: their records, of all these sites, are nearly as likely of one.
    """
    sizes, block = holds.sum(0), parts.block
    few = (labels >= 0) & (sizes[labels] <= FEW)
    if not len(rows := parts.counted(rows)) or not few.any():
        return
    origin = middle(parts.members[rows])
    one, other = parts.beside(few, rows, origin)
    groups = np.sort(np.stack([labels[one], labels[other]]), axis=0)
    pairs, place = np.unique(groups, axis=1, return_inverse=True)
    gain = np.bincount(place.ravel(), parts.evidence(one, other, origin), pairs.shape[1])
    # Parts that are far from each other at some site are none of the pairs there.
    both = (holds[:, pairs[0]] & holds[:, pairs[1]]).sum(0) == np.bincount(place.ravel())
    near = np.flatnonzero(both & (gain > -UNDECIDED))
    if not len(near):
        return
    best = int(near[gain[near].argmax()])
    first, second = pairs[:, best].tolist()
    sites = [block.names[j] for j in np.flatnonzero(holds[:, first] & holds[:, second]).tolist()]
    likelier = f"only {-gain[best]:.1f} nats likelier of two"
    if gain[best] >= 0:
        likelier = f"{gain[best]:.1f} nats likelier of one"
    yield (
        f"fused components {first} and {second}{_more(len(near) - 1)}{block.place} may be one that "
        f"site {sites[0]!r}{_more(len(sites) - 1)} has split: its records are {likelier}. Fit it "
        f"again with fewer components or more starts{compare((first, second))}"
    )


def _beside(
    fused: Any, holds: Bool[Array, "sites g"], pairs: Int[Array, "2 n"]
) -> Bool[Array, " n"]:
    """Which pairs of components, of which one site alone has one, lie closer than two would.

    That is within :data:`BESIDE` deviations of a record of the wider one; of Gaussians, of which
    nothing says how wide records scatter, within half of the least distance of any two of one site.
    """
    lonely = (holds.sum(0) == 1)[pairs].any(0)
    if (moments := fused.expected_moments()) is None or not lonely.any():
        return np.zeros_like(lonely)
    mean, spread = moments
    spread = spread[..., None] * np.eye(mean.shape[-1]) if spread.ndim == mean.ndim else spread
    finite = np.isfinite(spread).all((-2, -1))

    def squares(one: Array, other: Array, own: Array) -> Array:
        gap = (mean[one] - mean[other])[..., None]
        known = np.where(finite[own][:, None, None], spread[own], np.eye(mean.shape[-1]))
        away = (gap * np.linalg.solve(known, gap)).sum((-2, -1))
        return np.where(finite[own], away, np.inf)

    first, second = pairs
    if not fused.gaussian:
        away = np.minimum(squares(first, second, first), squares(first, second, second))
        return lonely & (away < BESIDE**2)
    spread = np.broadcast_to(spread[finite].mean(0), spread.shape)
    one, other = np.nonzero(np.triu(holds.T.astype(int) @ holds, 1))
    least = squares(one, other, one).min(initial=np.inf)
    return lonely & (squares(first, second, first) < least / 4) & (len(holds) > 2)


# --- residuals ------------------------------------------------------------------------------------


def _glance(block: Block, alignment: Alignment) -> float:
    """The cost, in half nats a direction of each match but one a component."""
    labels = alignment.labels
    sizes = np.bincount(labels[labels >= 0])
    spare = int((sizes - 1).sum())
    return 2 * alignment.cost / max(spare * block.members.degrees_of_variation, 1)


def _residual(scale: Scale, block: Block) -> Iterator[str]:
    """A line on matched components that differ by more than sampling."""
    if scale.expected and scale.residual is not None and (scale.deviations or 0.0) > SPREADS:
        times = scale.residual / scale.expected
        if times > TIMES:
            yield (
                f"matched components{block.place} differ {times:.2g} times as much as sampling "
                f"alone would make them ({scale.residual:.2g} nats a component): sites truly "
                "differ, or components that are not one were matched. Federate instead, or compare "
                "with components= one more"
            )


def _more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""
