"""Diagnostics of a fusion: lines on what is doubtful about it, each with what to do.

A matching may be certain and what comes of it wrong all the same: sites are in conflict, say
nothing, have split what is one, or differ by more than sampling would make them.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from posterity.arrays.typing import Bool, Float, Int
from posterity.families import NormalWishart, stack
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.blocks import Block
from posterity.fusion.clustering import sums
from posterity.fusion.conflict import contradiction, deviations, in_closed_form, starts_of
from posterity.fusion.geometry import middle, moved
from posterity.fusion.other_units import in_other_units
from posterity.fusion.result import Fusion
from posterity.fusion.scale import Scale
from posterity.fusion.sites import Sites
from posterity.fusion.topics import are_topics

Array = np.ndarray
AGREEMENT = 3.5
"""Deviations, of both laws together, below which two components are no further apart than chance
puts halves of one."""
BESIDE = 3.0
"""Deviations of a record within which two components of different sites overlap."""
UNDECIDED = 6.0
"""Nats by which a site's own fit of two components is better than of one, up to which they may be
one all the same where no site that has both tells them apart."""
FEW = 3
"""Sites that have a component, up to which it may be part of another that these have split."""
READ = 40
"""Components up to which a warning spells out the matching in which two are one."""
NOTHING = 0.1
"""Nats beyond its prior below which a site has nothing to say."""
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


def diagnostics(sites: Sites, fusion: Fusion) -> Iterator[str]:
    """Lines on what is doubtful, each with what to do; nothing of sites matched in passes."""
    kept = {path: block for path, block in sites.blocks.items() if isinstance(block, Block)}
    with np.errstate(all="ignore"):
        yield from _say_nothing(kept)
        for path, block in kept.items():
            alignment = fusion.plates.get(path)
            if are_topics(block):  # which are merged as far as it helps to predict
                continue
            yield from _few_records(block)
            line = contradiction(block, alignment, sites.coordinates)
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
    yield from in_other_units(parts, rows, labels[rows])
    one, other = np.nonzero(np.triu(holds.T.astype(int) @ holds == 0, 1))
    if not len(one) or len(one) > MOST_PAIRS or not in_closed_form(block.members):
        return
    members = parts.members[rows]
    origin = middle(members)
    members, prior = moved(members, origin), starts_of(block, rows, origin)
    learnt, away = sums(members.natural_parameters - prior, labels[rows]), np.full(len(one), np.inf)
    fused: Any = members
    # Beside one prior of all: a prior that is far from the records pulls only its own sites.
    for start in np.unique(prior, axis=0)[:PRIORS] if np.ndim(prior) else [0.0]:
        fused = members.with_natural_parameters(learnt + start)
        proper = np.asarray(fused.is_proper())
        gap = np.where(proper[one] & proper[other], deviations(fused[one], fused[other]), np.inf)
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
    # Labels that are known leave nothing open.
    fitted = np.bincount(place.ravel(), ~parts.known[one], pairs.shape[1]) > 0
    near = np.flatnonzero(both & (gain > np.where(fitted, -UNDECIDED, 0.0)))
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
