"""Detection of sites whose records are likely in other units or columns than others', or shifted.

A factor or an offset for each column maps a component of such a site to a component of another
site: the ratio of standard deviations, or the difference of means; or both do in one column, as
where columns were centred before the fit. It is accepted if it also maps
further components, and more components then agree with the other sites' than before. If components
lie regularly, many offsets map some to others: one is accepted only if it maps at least twice as
many as any other one, and as agree without it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.typing import Float, Int
from posterity.fusion.absorb import Absorbing
from posterity.fusion.blocks import Block
from posterity.fusion.geometry import middle, moved

Array = np.ndarray
ERRORS = 4.0  # Standard errors within which means and deviations agree
INEXACT = 0.05  # Relative error of deviations, in addition to that of finite samples
LEAST = 1.8  # Ratio of typical deviations in some column above which units may differ
CHANCE = 2.0  # Nats by which agreement must exceed chance, after counting all pairs
SCATTER = 30.0
"""Ratio above which units of a site that shares nothing differ, even if no factor is found."""
SITES = 16  # Largest number of sites with few shared components that are examined
COINCIDENCES = 2  # Pairs of components that may agree in a column, more than chance would have it
WIDEST = 40  # Largest number of columns that are exchanged
# Largest components of a site, and of all others, that are compared
MINE = 6
OTHERS = 32


class Records(NamedTuple):
    """Means, standard deviations and numbers of the records of components."""

    mean: Float[Array, "n d"]
    deviation: Float[Array, "n d"]
    number: Float[Array, " n"]

    def take(self, rows: Int[Array, " k"]) -> "Records":
        """Return the records of some components."""
        return Records(self.mean[rows], self.deviation[rows], self.number[rows])


def in_other_units(
    parts: Absorbing, rows: Int[Array, " n"], labels: Int[Array, " n"]
) -> Iterator[str]:
    """Yield a line on the first site whose records are likely in other units, or shifted;
    ``labels`` has the group of each row.
    """
    block: Block = parts.block
    laws: Any = parts.members[rows]
    if laws.gaussian or (moments := laws.expected_moments()) is None:
        return
    site = block.site[rows]
    origin = 0.0
    if block.priors.exchangeable.all():  # the prior is removed: it has the units of the others
        origin = middle(laws)
        there, prior = (moved(own, origin) for own in (laws, block.priors.at(site)))
        laws = there.with_natural_parameters(there.natural_parameters - prior.natural_parameters)
        moments = laws.expected_moments()
    mean, spread = moments
    spread = np.diagonal(spread, axis1=1, axis2=2) if spread.ndim > 2 else spread
    number = np.asarray(laws.observations(), float)
    known = (np.isfinite(spread) & (spread > 0)).all(1) & (number >= 1)
    every = Records(mean + origin, np.sqrt(np.where(known[:, None], spread, 1.0)), number)
    sites = np.unique(site[known])
    held = np.bincount(labels)[labels] > 1
    most = np.bincount(site[known], held[known]) <= np.bincount(site[known]) / 2
    few = sites[most[sites]].tolist()
    # Components with most records first.
    ranked = np.argsort(-every.number, kind="stable")
    ranked = ranked[known[ranked]]
    for own in few if len(few) <= SITES else ():
        mine = ranked[site[ranked] == own][:MINE]
        rest = ranked[site[ranked] != own]
        rest = rest[np.sort(np.unique(labels[rest], return_index=True)[1])][:OTHERS]
        shared = held[mine]
        if not len(rest):
            continue
        one = every.take(mine)
        other = every.take(rest)
        name = f"site {block.names[own]!r}"
        agreed = 0
        times = np.median(np.log(other.deviation), axis=0) - np.median(np.log(one.deviation), 0)
        column = int(np.abs(times).argmax())
        times = np.exp(np.abs(times).max())
        # Factors, a factor and an offset in one column, or offsets.
        for scaled, place in [(True, None), (True, column), (False, None)][2 * (times <= LEAST) :]:
            step, agreed = _step(one, other, scaled, place)
            if agreed > shared.sum() and (scaled or agreed >= 2 * shared.sum()):
                at = int(np.abs(np.log(step) if scaled else step / one.deviation[0]).argmax())
                how = f"{step[at]:.3g} added to column {at}"
                if scaled:
                    how = f"column {at} times {step[at]:.3g}{', and shifted' * (place is not None)}"
                yield (
                    f"{name} is likely {'in other units' if scaled else 'shifted'}"
                    f"{block.place}: with {how}, {agreed} of its "
                    f"{len(mine)} components are those of the others. Look at its units, "
                    "convert its records, and fit it again"
                )
                return
        how = _rearranged(one, other, int(shared.sum()))
        if how:
            yield (
                f"{name} likely has its columns in another order, or one with another sign"
                f"{block.place}: with {how} of its {len(mine)} components are those of the others. "
                "Look at its columns, and fit it again"
            )
            return
        if times > SCATTER and not shared.any() and len(sites) > 2:
            yield (
                f"{name} shares no component with the others{block.place}, and its records scatter "
                f"{times:.2g} times more or less than theirs in column {column}. Look at its units"
            )
            return


def _rearranged(mine: Records, rest: Records, shared: int) -> str:
    """Return which two columns exchanged, or which column with its sign changed, make at least
    twice as many of a site's components agree with others' as now and as any other such change,
    and how many; empty if none does by more than chance.
    """
    size = mine.mean.shape[1]
    ways = [(a, b) for a in range(size) for b in range(a, size)] if size <= WIDEST else []
    error = 1 / mine.number[:, None, None] + 1 / rest.number[:, None]
    allowed = ERRORS * rest.deviation * np.sqrt(error)
    exact = ERRORS * np.hypot(np.sqrt(error / 2), INEXACT)
    told = np.log(np.maximum(np.ptp(rest.mean, axis=0) / (2 * allowed), 1.0))
    # Where components lie regularly, as on a grid, agreement in a column says nothing.
    one, other = np.triu_indices(len(rest.mean), 1)
    alike = np.abs(rest.mean[one] - rest.mean[other]) <= np.median(allowed, axis=(0, 1))
    by_chance = np.exp(-np.median(told, axis=(0, 1))) * len(one)
    told[..., alike.sum(0) > np.maximum(2 * by_chance, COINCIDENCES)] = 0.0
    agreed = np.zeros(len(ways), int)
    nats = np.zeros(len(ways))
    for way, (a, b) in enumerate(ways):
        order = np.arange(size)
        order[[a, b]] = b, a
        there = mine.mean[:, None, order]
        wide = mine.deviation[:, None, order]
        if a == b:
            there = np.where(order == a, -there, there)
        pairs = np.all(np.abs(there - rest.mean) <= allowed, axis=2)
        pairs &= np.all(np.abs(np.log(wide / rest.deviation)) <= exact, axis=2)
        agreed[way] = min(pairs.any(1).sum(), pairs.any(0).sum())
        changed = told[..., np.unique([a, b])].sum(2)
        # Which of the others agrees is known from the columns that stay, as far as these tell.
        chance = np.maximum(np.log(len(rest.mean)) - (told.sum(2) - changed), 0.0)
        nats[way] = (changed - chance)[pairs].sum()
    best = int(np.argmax(agreed)) if ways else 0
    if not ways or agreed[best] < max(2, 2 * shared) or nats[best] < CHANCE + np.log(len(ways)):
        return ""
    if 2 * np.delete(agreed, best).max(initial=0) > agreed[best]:
        return ""
    a, b = ways[best]
    how = f"columns {a} and {b} exchanged" if a != b else f"the sign of column {a} changed"
    return f"{how}, {agreed[best]}"


def _step(
    mine: Records, rest: Records, scaled: bool, place: int | None
) -> tuple[Float[Array, " d"], int]:
    """Return the factor, or the offset, of each column with which most of a site's components agree
    with others', and their number; zero if as many would agree by chance. With ``place``, that
    column alone has a factor, and an offset.
    """
    alone = np.arange(mine.mean.shape[1]) == place
    best = np.zeros(mine.mean.shape[1])
    number = 0
    size = mine.mean.shape[1]
    found = np.zeros((len(mine.mean), len(rest.mean)), bool)
    met = []
    others = (len(mine.mean) - 1) * (len(rest.mean) - 1)
    about_zero = scaled and place is None
    spread = 12 * (rest.mean**2).mean(0) if about_zero else np.ptp(rest.mean, axis=0) ** 2
    error = 1 / mine.number[:, None, None] + 1 / rest.number[:, None]
    for one, other in np.ndindex(len(mine.mean), len(rest.mean)):
        factor = 1.0
        offset = rest.mean[other] - mine.mean[one]
        loose = 0.0
        if scaled:
            factor = rest.deviation[other] / mine.deviation[one]
            offset = 0.0
            loose = np.hypot(np.sqrt(error[one, other] / 2), INEXACT)
        if place is not None:
            factor = np.where(alone, factor, 1.0)
            offset = np.where(alone, rest.mean[other] - factor * mine.mean[one], 0.0)
            loose = np.where(alone, loose, 0.0)
        there = factor * mine.mean[:, None] + offset
        both = error + error[one, other] * (alone if place is not None else not scaled)
        lever = (there - rest.mean[other] * (place is not None)) * loose
        allowed = ERRORS * np.hypot(rest.deviation * np.sqrt(both), lever)
        near = np.abs(there - rest.mean) <= allowed
        wide = np.abs(np.log(factor * mine.deviation[:, None] / rest.deviation))
        exact = ERRORS * np.hypot(np.sqrt(error / 2), np.hypot(loose, INEXACT))
        pairs: Any = near.all(2) & (wide <= exact).all(2)
        agreed = min(int(pairs.any(1).sum()), int(pairs.any(0).sum()))
        means = np.log(np.maximum(np.sqrt(spread) / (2 * allowed), 1.0)).sum(2)
        shapes = -np.log(np.minimum(exact, 1.0)).sum(2) * size / exact.shape[2] * scaled
        told = means + shapes
        # The pair that determines the step agrees by construction.
        told[one, other] -= shapes[one, other] if scaled else means[one, other]
        told[one, other] -= means[one, other] * (place is not None)
        met.append((agreed, pairs))
        chances = np.log(3 * pairs.size) + (agreed - 1) * np.log(max(others, 1))
        if agreed > max(number, place is not None) and told[pairs].sum() > CHANCE + chances:
            a, b = np.nonzero(pairs)
            weight = 1 / error[a, b]
            number = agreed
            found = pairs
            steps = rest.mean[b] - mine.mean[a]
            if scaled:
                steps = np.log(rest.deviation[b] / mine.deviation[a])
            best = (weight * steps).sum(0) / weight.sum()
    # Offsets that map other pairs of components are other ones.
    rivals = [agreed for agreed, pairs in met if not (pairs & found).any()]
    if not about_zero and 2 * max(rivals, default=0) > number:
        return best, 0
    if place is not None:
        best = np.where(alone, best, 0.0)
    return np.exp(best) if scaled else best, number
