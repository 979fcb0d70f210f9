"""The default rule: a product if it counts all data once, otherwise a barycentre.

A site's contribution is its posterior minus its prior. If all sites have one known prior and no two
share data, the prior plus all contributions is the posterior of the pooled records. The barycentre
of the same posteriors would be about as wide as that of one site.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy

from posterity.errors import UsageError
from posterity.families.names import some
from posterity.fusion.blocks import SAME, Block
from posterity.fusion.doubts import Doubt, Kind, doubt, more
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Rule
from posterity.fusion.plan import Plan
from posterity.fusion.sites import Sites

WHOLE = 1e-12  # Relative rounding error of whole numbers
SAME_POSTERIOR = "the same posterior"


class Choice(NamedTuple):
    """A rule, the reason for it, and doubts about data that may count twice."""

    rule: Rule
    why: str
    twice: tuple[Doubt, ...] = ()


def chosen_rule(
    sites: Sites, plan: Plan, weights: Mapping[str, float] | None, level: float
) -> Choice:
    """Return the rule that was requested, or else the default one, with the reason. Raise a
    UsageError for a requested product of sites without a prior, or of data that would count twice.
    """
    if plan.rule is Rule.BARYCENTER:
        return Choice(plan.rule, "as asked for")
    if plan.rule is Rule.PRODUCT:
        check_priors_known(sites)
    elif plan.divergence is not Divergence.REVERSE or weights is not None:
        what = "weights" if weights is not None else "divergence"
        return Choice(Rule.BARYCENTER, f"since {what}= is about an average")
    elif sites.without_prior:
        first = sites.without_prior[0]
        why = f"since the prior of {first!r} is not known (ledgers, or prior=, say it)"
        return Choice(Rule.BARYCENTER, why)
    elif _differ(sites):
        why = "since sites started from different priors (prior= says which one to count)"
        return Choice(Rule.BARYCENTER, why)
    twice = counted_twice(sites, level)
    found = () if twice is None else (twice.doubt,)
    if plan.rule is None and twice is not None and twice.certain:
        return Choice(Rule.BARYCENTER, "since a sum would count data twice", found)
    if twice is not None and twice.certain:
        raise UsageError(
            found=f"{twice.what} in both {twice.first!r} and {twice.second!r}",
            expected="each site's data once: a product would count them twice",
            fix="Merge ledgers that share a site with | first; leave a copy out.",
        )
    why = "since all sites started from one prior" if plan.rule is None else "as asked for"
    return Choice(Rule.PRODUCT, why, found)


def _differ(sites: Sites) -> bool:
    """Return whether known priors of sites differ by more than rounding, and no ``prior`` was
    passed in their place.
    """
    if sites.plan.prior is not None:
        return False
    if sites.networks:
        from posterity.fusion.networks.ledgers import of_other_prior

        return bool(of_other_prior({name: site.prior for name, site in sites.loaded.items()}))

    def close(own, first):
        return np.allclose(own, first, rtol=1e3 * SAME, atol=1e3 * SAME)

    for block in sites.blocks.values():
        totals = block.concentrations  # zeros without weights
        spreads = [p.spread() for p in block.whole_priors if p] if isinstance(block, Block) else []
        spreads = [own for own in spreads if not np.isnan(own).any()]
        apart = not np.allclose(totals, totals[0], rtol=1e3 * SAME, atol=0.0)
        if block.priors.differ or apart or not all(close(own, spreads[0]) for own in spreads):
            return True
    return False


def check_priors_known(sites: Sites) -> None:
    """Raise a UsageError if the prior of a site is unknown."""
    names = sites.without_prior
    if names:
        raise UsageError(
            found=f"no prior for {some(names, 3)}",
            expected="prior=, or ledgers by Ledger.of_site: rule='product' counts the prior once",
        )


class _Twice(NamedTuple):
    """What may be in two sites, their names, how many further pairs there are, and whether it is
    ``certain`` that records would count twice.
    """

    what: str
    first: str
    second: str
    further: int = 0
    certain: bool = False

    @property
    def doubt(self) -> Doubt:
        further = more(self.further)
        return doubt(Kind.COPY, 0.0, self.first, other=self.second, what=self.what, more=further)


def counted_twice(sites: Sites, level: float) -> _Twice | None:
    """Return what is in two sites: data of one site; the same posterior, to the last bit or closer
    than by a chance of ``level``; or None.
    """
    if sites.shared is not None:
        contributor, first, second = sites.shared
        return _Twice(f"data of site {contributor!r}", first, second, certain=True)
    seen: dict[Any, str] = {}
    pairs = []
    for name, content in zip(sites.names, sites.contents(), strict=True):
        twin = seen.setdefault(content, name)
        if twin == name or _may_coincide(sites, name, level):
            continue
        pairs.append(_Twice(SAME_POSTERIOR, min(twin, name), max(twin, name)))
        if sites.ledgers.isdisjoint((twin, name)):
            return pairs[-1]._replace(certain=True)
    if pairs:
        return pairs[0]._replace(further=len(pairs) - 1)
    return _nearly_same(sites, level)


def _may_coincide(sites: Sites, name: str, level: float) -> bool:
    """Return whether another site may have the same posterior as this one by chance, since it holds
    nothing but a few small counts.

    Two equal Poisson counts about ``c`` have probability ``(4 π c)^-½``; the largest count is that
    of all records, or an exposure, which may be the same everywhere.
    """
    site = sites.loaded.get(name)
    if site is None or site.prior is None:
        return False
    own = site.posterior.natural_parameters
    start = site.prior.natural_parameters
    if np.shape(own) != np.shape(start):
        return False
    counts = np.abs(np.ravel(own - start))
    if np.abs(counts - np.round(counts)).max(initial=0.0) > WHOLE * max(counts.max(initial=0), 1.0):
        return False
    chance = -np.log(4 * np.pi * np.maximum(np.sort(counts)[:-1], 1 / (4 * np.pi))).sum() / 2
    return bool(chance + np.log(math.comb(len(sites.names), 2)) > np.log(level))


def _nearly_same(
    sites: Sites, level: float, *, near: float = 0.05, learnt: float = 1.0
) -> _Twice | None:
    """Return two Gaussian posteriors that are closer than those of independent records can be, as
    those of one table in two units, or None.

    They are compared if their means are ``near`` each other, in deviations, and if records moved
    the prior by more than the nats ``learnt``: what is left of it would be common to both. Twice
    their divergence is about chi-squared, with a degree of freedom per coordinate.
    """
    block: Any = next(iter(sites.blocks.values()), None)
    single = len(sites.blocks) == 1 and isinstance(block, Block) and not block.plate
    if not single or not block.members.gaussian:
        return None
    laws: Any = block.members
    names = np.array(block.names)
    order = np.lexsort((names, laws.mean[:, 0]))
    deviations = np.sqrt(laws.marginal_variance)[order[1:]]
    close = (np.abs(np.diff(laws.mean[order], axis=0)) <= near * deviations).all(1)
    for place in np.flatnonzero(close):
        one, other = np.sort(order[place : place + 2])
        apart = float(laws[one].kl(laws[other]))
        chance = len(order) ** 2 / 2 * scipy.special.gammainc(laws.own_size / 2, max(apart, 0.0))
        known = block.priors.own[one] >= 0
        informed = not known or float(laws[one].kl(block.priors.at(np.array([one]))[0])) > learnt
        if chance < level and informed:
            what = f"nearly the same posterior ({apart:.1g} nats apart)"
            return _Twice(what, *np.sort(names[[one, other]]).tolist())
    return None
