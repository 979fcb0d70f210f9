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
from posterity.fusion.blocks import SAME, Block
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Rule
from posterity.fusion.plan import Plan
from posterity.fusion.sites import Sites

CLOSE, BY_CHANCE, INFORMED = 0.05, 1e-3, 1.0
"""Deviations below which means are compared further; the chance, over all pairs of sites, below
which they have the same records; and nats by which records must have moved the prior."""
WHOLE = 1e-12  # Relative rounding error of whole numbers
COINCIDENCE = 0.05  # Chance, over all pairs, from which equal counts are taken to be a coincidence


class Choice(NamedTuple):
    """A rule, the reason for it, and a warning about data that may count twice, or ``""``."""

    rule: Rule
    why: str
    twice: str = ""


def chosen_rule(sites: Sites, plan: Plan, weights: Mapping[str, float] | None) -> Choice:
    """Return the rule that was requested, or else the default one, with the reason. Raise a
    UsageError for a requested product of sites without a prior, or of data that would count twice.
    """
    if plan.rule is not None:
        alike = ""
        if plan.rule is Rule.PRODUCT:
            check_priors_known(sites)
            alike = check_counted_once(sites)
        return Choice(plan.rule, "as asked for", alike)
    if plan.divergence is not Divergence.REVERSE or weights is not None:
        what = "weights" if weights is not None else "divergence"
        return Choice(Rule.BARYCENTER, f"since {what}= is about an average")
    if sites.without_prior:
        first = sites.without_prior[0]
        why = f"since the prior of {first!r} is not known (ledgers, or prior=, say it)"
        return Choice(Rule.BARYCENTER, why)
    if _differ(sites):
        why = "since sites started from different priors (prior= says which one to count)"
        return Choice(Rule.BARYCENTER, why)
    try:
        alike = check_counted_once(sites)
    except UsageError as error:
        return Choice(Rule.BARYCENTER, "since a sum would count data twice", str(error))
    return Choice(Rule.PRODUCT, "since all sites started from one prior", alike)


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
            found=f"no prior for {names[:3]}" + (" and others" if len(names) > 3 else ""),
            expected="the prior of every site for rule='product', which counts it once",
            fix="Save ledgers made by Ledger.of_site(site, prior=..., posterior=...), or pass "
            "prior=.",
        )


def check_counted_once(sites: Sites) -> str:
    """Raise a UsageError for data that a product would count twice. Return a warning about ledgers
    of different sites that agree to the last bit, or about sites closer than chance, or ``""``.
    """
    if sites.shared is not None:
        contributor, first, second = sites.shared
        raise _counted_twice(f"data of site {contributor!r}", first, second)
    seen: dict[Any, str] = {}
    pairs = []
    for name, content in zip(sites.names, sites.contents(), strict=True):
        twin = seen.setdefault(content, name)
        if twin == name:
            continue
        if _may_coincide(sites, name):
            continue
        first, second = sorted((twin, name))
        if not {first, second} & sites.ledgers:
            raise _counted_twice("the same posterior", first, second)
        pairs.append((first, second))
    if not pairs:
        return _nearly_same(sites)
    first, second = pairs[0]
    more = f", and so do {len(pairs) - 1} further pairs" if len(pairs) > 1 else ""
    return (
        f"sites {first!r} and {second!r} hold the same posterior to the last bit{more}: if one is "
        "a copy of the other, its data count twice; leave the copy out"
    )


def _may_coincide(sites: Sites, name: str) -> bool:
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
    return bool(chance + np.log(math.comb(len(sites.names), 2)) > np.log(COINCIDENCE))


def _nearly_same(sites: Sites) -> str:
    """Return a warning about two Gaussian posteriors that are closer than those of independent
    records can be, as those of one table in two units, or ``""``.

    Twice their divergence is about chi-squared, with a degree of freedom per coordinate.
    """
    known: dict[str, Any] = {name: site.posterior for name, site in sites.loaded.items()}

    def plain(q):
        return q.gaussian and not (q.batch_shape or q.network_layers)

    shapes = {q.event_shape for q in known.values() if plain(q) and len(list(q.parts())) == 1}
    if len(shapes) != 1 or not all(map(plain, known.values())):
        return ""
    names = sorted(known, key=lambda name: float(known[name].mean[0]))
    size = math.prod(*shapes)
    means = np.stack([known[name].mean for name in names])
    deviations = np.sqrt(np.stack([known[name].marginal_variance for name in names]))
    close = (np.abs(np.diff(means, axis=0)) <= CLOSE * deviations[1:]).all(1)
    for place in np.flatnonzero(close):
        one, other = sorted(names[place : place + 2])
        apart = float(known[one].kl(known[other]))
        prior = sites.loaded[one].prior
        chance = len(names) ** 2 / 2 * scipy.special.gammainc(size / 2, max(apart, 0.0))
        informed = prior is None or float(known[one].kl(prior)) > INFORMED
        if chance < BY_CHANCE and informed:
            return (
                f"sites {one!r} and {other!r} hold nearly the same posterior ({apart:.1g} nats "
                "apart): if they have the same records, as with other units or orders of levels, "
                "these count twice; leave one out"
            )
    return ""


def _counted_twice(what: str, first: str, second: str) -> UsageError:
    return UsageError(
        found=f"{what} in both {first!r} and {second!r}",
        expected="each site's data once: a product would count them twice",
        fix="Merge ledgers that share a site with | first; leave a copy out.",
    )
