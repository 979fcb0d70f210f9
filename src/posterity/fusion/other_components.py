"""Components that may be others: sites that share few, and fused ones that may be one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Bool, Float, Int
from posterity.fusion.confidence import AMBIGUOUS
from posterity.fusion.deviations import compared, in_closed_form
from posterity.fusion.doubts import Doubt, Kind, doubt, more
from posterity.fusion.groups import Groups, fits

Array = np.ndarray


def strangers(groups: Groups, level: float) -> Iterator[Doubt]:
    """Yield a doubt about the site that shares fewest components, if it would not by chance, or
    about all if none is shared. That a site shares none needs less evidence, as units that differ
    or a shift let it share none.
    """
    block = groups.block
    shared = (groups.holders > 1)[groups.fused]
    sites = len(block.names)
    number = np.bincount(groups.site, minlength=sites)
    own = np.bincount(groups.site, shared, sites)
    has = np.zeros((sites, len(groups.holders)), bool)
    has[groups.site, groups.fused] = True
    many = max(sites, len(np.unique(groups.everywhere[0])))
    evidence = of_presence(has, groups.holders, many) - np.log(sites)
    at = int(np.lexsort((np.array(block.names), -np.round(evidence, 6)))[0])
    strange = evidence[at] > (-np.log(level) if own[at] else AMBIGUOUS)
    if not own.any() and (strange or sites > 2):
        yield doubt(Kind.APART, place=block.place)
    elif strange and sites > 2:  # of two, either is as strange
        rest = (own.sum() - own[at]) / (number.sum() - number[at])
        facts: Any = {"count": int(own[at]), "size": int(number[at]), "share": rest}
        yield doubt(Kind.STRANGER, float(evidence[at]), block.names[at], place=block.place, **facts)


def of_presence(
    has: Bool[Array, "sites fused"], holders: Int[Array, " fused"], many: int
) -> Float[Array, " sites"]:
    """Return the nats of each site's having so few of the components that others have, and so many
    that none has.

    A site has a component with the share of the others that have it, half a site more each way;
    the number of its own is Poisson, with the others' mean. Both chances are combined as Fisher
    does.

    Args:
        has: whether a site has a component.
        holders: number of sites that have each component, these among them.
        many: number of all sites.
    """
    others = holders - has
    common = others > 0
    chance = np.where(common, np.minimum(others + 0.5, many - 0.5) / many, 0.0)
    shared = (has & common).sum(1)
    ways = np.zeros((len(has), shared.max(initial=0) + 1))
    ways[:, 0] = 1.0
    for share in chance.T[:, :, None]:
        one_more = ways[:, :-1] * share
        ways *= 1 - share
        ways[:, 1:] += one_more
    few = np.where(np.arange(ways.shape[1]) <= shared[:, None], ways, 0.0).sum(1)
    own = (has & ~common).sum(1)
    rate = ((holders == 1).sum() - own + 0.5) / max(many - 1, 1)
    product = few * np.where(own > 0, scipy.special.pdtrc(own - 1, rate), 1.0)
    product = np.clip(product, np.finfo(float).tiny, 1.0)
    return -np.log(product * (1 - np.log(product)))


def may_be_one(groups: Groups, level: float) -> Iterator[Doubt]:
    """Yield a doubt about two fused components that no site has both of, and that do not deviate
    from each other by more than chance.
    """
    block = groups.block
    number = len(groups.sizes)
    holds = np.zeros((len(block.names), number), np.float32)
    holds[groups.site, groups.labels] = 1.0
    apart: Any = holds.T @ holds == 0
    one, other = np.nonzero(np.triu(apart, 1))
    few = fits(len(one) * groups.natural.shape[1])
    if not len(one) or not few or not in_closed_form(block.members):
        return
    start = groups.start[:1]
    first, second = (groups.law(groups.totals[own] + start) for own in (one, other))
    proper = np.asarray(first.is_proper()) & np.asarray(second.is_proper())
    evidence = np.where(proper, compared(first, second).worst, np.inf)
    near = np.flatnonzero(evidence < -np.log(level)).tolist()
    pairs = [(evidence[at], *sorted(_fused(groups, [one[at], other[at]]))) for at in near]
    pairs = sorted(pair for pair in pairs if not len(groups.of_both(*pair[1:])))
    if pairs:
        least, a, b = pairs[0]
        facts: Any = {"other": b, "place": block.place, "more": more(len(pairs) - 1)}
        yield doubt(Kind.ONE, max(float(least), 0.0), component=a, **facts)


def _fused(groups: Groups, labels: list[int]) -> list[int]:
    """Return the numbers of groups in the fusion."""
    return [int(groups.fused[np.argmax(groups.labels == own)]) for own in labels]


def likelier_elsewhere(groups: Groups) -> Iterator[Doubt]:
    """Yield a doubt about components without a location whose records are likelier, given those of
    another group, than given those of their own: components of few records, which lie far from all
    that is known well, are then matched with each other.
    """
    block = groups.block
    number = len(groups.sizes)
    size = groups.natural.shape[1]
    known = block.priors.exchangeable.all() and block.members.location() is None
    if not known or not fits(len(groups.rows) * number * size):
        return

    def evidence(natural):
        return groups.law(natural).log_normalizer()

    start = groups.start
    there = start[:, None] + groups.totals
    gain = evidence(there + groups.learnt[:, None]) - evidence(there)
    here = start + groups.totals[groups.labels]
    gain -= (evidence(here) - evidence(here - groups.learnt))[:, None]
    holds = np.zeros((len(block.names), number), bool)
    holds[groups.site, groups.labels] = True
    gain = np.where(holds[groups.site] | ~np.isfinite(gain), -np.inf, gain)
    best = gain.max(1)
    far = np.flatnonzero(best > AMBIGUOUS)
    if len(far):
        at = int(far[best[far].argmax()])
        (to,) = _fused(groups, [int(gain[at].argmax())])
        facts: Any = {"other": to, "place": block.place, "more": more(len(far) - 1)}
        site = block.names[int(groups.site[at])]
        yield doubt(Kind.OTHER, float(best[at]), site, int(groups.fused[at]), **facts)
