"""Diagnostics of fused components: those that may be one, and matches that may be others."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from posterity.arrays.typing import Bool, Int
from posterity.families.normal_wishart import NormalPrecision
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.blocks import Block
from posterity.fusion.clustering import sums
from posterity.fusion.conflict import deviations, in_closed_form, starts_of
from posterity.fusion.geometry import middle, moved

Array = np.ndarray
AGREEMENT = 3.5
"""Combined standard deviations below which two components are no further apart than halves of one
are by chance."""
UNDECIDED = 6.0
"""Two components may be one if the fits of the sites with both are better than with one by at most
so many nats."""
FEW = 3
"""Largest number of sites with a component that may be part of another, split by these sites."""
READ = 40  # Largest number of components for which a warning has the matching that merges two
PRIORS = 4  # Largest number of sites' priors with which components are compared
MOST_NUMBERS = 2**22  # Largest number of floats for comparing all components with all groups
MOST_PAIRS = 2**12  # Largest number of pairs of fused components that are compared


def apart_for_nothing(
    block: Block,
    alignment: Alignment,
    apart: Callable[[Any], Bool[Array, " n"]],
    holders: Int[Array, " g"] | None,
    only: bool,
) -> Iterator[str]:
    """Yield lines on fused components that no site distinguishes, and on sites that share none.

    If the block has only some sites, ``apart`` says of which pairs no site has both, and
    ``holders`` how many sites have each component. If this is the ``only`` plate, a line names the
    argument of a fusion that merges them; numbers of components and matchings apply to all plates.
    """
    labels = alignment.labels
    parts = Absorbing.of(block, alignment.into)
    rows = np.flatnonzero((labels >= 0) & parts.whole)
    holds = np.zeros((len(block.names), alignment.components), bool)
    holds[block.site[rows], labels[rows]] = True
    sizes = holds.sum(0) if holders is None else holders
    if sizes.max() == 1 and len(block.names) > 2:
        yield (
            f"no component{block.place} was matched: sites share nothing, or differ by more than "
            "their posteriors allow. Look at their units, or say components="
        )
        return
    compare = functools.partial(_compared, block, alignment) if only else lambda pair: ""
    yield from _undecided(parts, rows, labels, holds, sizes, compare)
    yield from _likelier_elsewhere(parts, rows, labels, holds, only)
    each = holds.sum(1)
    groups = np.flatnonzero(holds.any(0))
    # As many pairs at least are at no site.
    least = len(groups) * (len(groups) - 1) - (each * (each - 1)).sum()
    if least > 2 * MOST_PAIRS or not in_closed_form(block.members):
        return
    alone = holds[:, groups].astype(np.float32)
    one, other = (groups[at] for at in np.nonzero(np.triu(alone.T @ alone == 0, 1)))
    if not len(one) or len(one) > MOST_PAIRS:
        return
    members = parts.members[rows]
    origin = middle(members)
    members = moved(members, origin)
    prior = starts_of(block, rows, origin)
    learnt = sums(members.natural_parameters - prior, labels[rows])
    away = np.full(len(one), np.inf)
    fused: Any = members
    # With each prior for all: a prior that is far from the records shifts only its own sites.
    for start in np.unique(prior, axis=0)[:PRIORS] if np.ndim(prior) else [0.0]:
        fused = members.with_natural_parameters(learnt + start)
        proper = np.asarray(fused.is_proper())
        gap = np.where(proper[one] & proper[other], deviations(fused[one], fused[other]), np.inf)
        away = np.minimum(away, gap)
    near = np.flatnonzero(away < AGREEMENT)
    near = near[apart((one[near], other[near]))]
    if len(near):
        least = near[away[near].argmin()]
        yield (
            f"fused components {one[least]} and {other[least]}{more(len(near) - 1)}{block.place} "
            "may be one: no site has both, and what is known of them is no contradiction. Look at "
            f"the records of both{compare((int(one[least]), int(other[least])))}"
        )


def _compared(block: Block, alignment: Alignment, pair: tuple[int, int]) -> str:
    """Return, as the end of a sentence, the argument of a fusion that merges two fused components;
    empty if it is too long.

    ``components`` cannot be less than the number of the largest site, since components of one site
    stay apart. A ``matching`` can merge components of a site whose prior is known.
    """
    size = alignment.components - 1
    least = np.bincount(block.site[block.used]).max()
    if size >= least:
        return f", or compare with components={size}"
    if size >= READ or not block.priors.exchangeable.all():
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
    sizes: Int[Array, " g"],
    compare: Callable[[tuple[int, int]], str],
) -> Iterator[str]:
    """Yield a line on two components, one of them at few sites, that no site with both
    distinguishes: the records of these sites are nearly as likely under one component.
    """
    block = parts.block
    known = bool(block.priors.exchangeable.all())
    if not known and isinstance(block.members, NormalPrecision):
        parts = dataclasses.replace(parts, empty=True)
    # If these are only some sites, they have to include all with the component.
    few = (labels >= 0) & ((sizes <= FEW) & (holds.sum(0) == sizes))[labels]
    rows = parts.counted(rows)
    if not len(rows) or not few.any():
        return
    origin = middle(parts.members[rows])
    one, other = parts.beside(few, rows, origin)
    groups = np.sort(np.stack([labels[one], labels[other]]), axis=0)
    pairs, place = np.unique(groups, axis=1, return_inverse=True)
    gain = np.bincount(place.ravel(), parts.evidence(one, other, origin), pairs.shape[1])
    # Parts that are far apart at some site are not among the pairs there.
    both = (holds[:, pairs[0]] & holds[:, pairs[1]]).sum(0) == np.bincount(place.ravel())
    # Known labels have no uncertainty.
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
        f"fused components {first} and {second}{more(len(near) - 1)}{block.place} may be one that "
        f"site {sites[0]!r}{more(len(sites) - 1)} has split: its records are {likelier}. "
        f"{'' if known else 'Fuse ledgers, whose parts are merged as the prior is known, or fit'}"
        f"{'Fit' * known} it again with fewer components or more starts{compare((first, second))}"
    )


def _likelier_elsewhere(
    parts: Absorbing,
    rows: Int[Array, " n"],
    labels: Int[Array, " all"],
    holds: Bool[Array, "sites g"],
    only: bool,
) -> Iterator[str]:
    """Yield a line on components without a location whose records are likelier, given those of
    another group, than given those of their own: components of few records, which lie far from all
    that is known well, are then matched with each other.
    """
    block = parts.block
    members = parts.members[rows]
    size = members.natural_parameters.shape[1]
    groups = holds.shape[1]
    known = block.priors.exchangeable.all() and members.location() is None
    if not known or len(rows) * groups * size > MOST_NUMBERS:
        return
    prior: Any = starts_of(block, rows, None)
    learnt = members.natural_parameters - prior
    own = labels[rows]
    site = block.site[rows]
    totals = sums(learnt, own, groups)

    def evidence(natural):
        return members[:1].with_natural_parameters(natural).log_normalizer()

    there = prior[:, None] + totals
    gain = evidence(there + learnt[:, None]) - evidence(there)
    here = prior + totals[own]
    gain -= (evidence(here) - evidence(here - learnt))[:, None]
    alone = np.bincount(own, minlength=groups)[own] == 1
    gain = np.where(holds[site] | alone[:, None] | ~np.isfinite(gain), -np.inf, gain)
    best = gain.max(1)
    far = np.flatnonzero(best > UNDECIDED)
    if not len(far):
        return
    at = int(far[best[far].argmax()])
    name = block.names[site[at]]
    to = int(gain[at].argmax())
    advice = ""
    if only:
        mine = f"fused.matching[{name!r}]"
        changed = f"np.where({mine} == {own[at]}, {to}, {mine})"
        advice = f", or compare with matching={{**fused.matching, {name!r}: {changed}}}"
    yield (
        f"what site {name!r}{more(len(far) - 1)}{block.place} has as fused component {own[at]} is "
        f"{best[at]:.1f} nats likelier to be {to}: what is known from few records lies near "
        f"whatever is known from few. Look at its records{advice}"
    )


def at_no_site(table: Any, alignment: Alignment | None, pairs: Any) -> Bool[Array, " n"]:
    """Return whether no site of a table has both fused components of each pair."""
    labels = np.zeros(0, int) if alignment is None else alignment.labels

    def have(g):
        return np.unique(table.site[labels == g])

    sites = {g: have(g) for g in np.unique(pairs).tolist()}
    both = [np.isin(sites[a], sites[b]).any() for a, b in np.transpose(pairs).tolist()]
    return ~np.array(both, bool)


def more(count: int) -> str:
    """Return how many there are besides one, in words; empty if none."""
    return f" (and {count} more)" if count > 0 else ""
