"""The rule that is natural for sites: a product counts all data once where it can, an average else.

What a site learned is its posterior less its own prior. Where that is known of all sites, of one
prior and of data that no two of them share, the sum of it beside that prior is the posterior of the
pooled records; an average of the same posteriors would be as wide as that of one site.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from posterity.errors import UsageError
from posterity.fusion.blocks import SAME, Block
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Rule
from posterity.fusion.networks.ledgers import of_other_prior
from posterity.fusion.plan import Plan
from posterity.fusion.sites import Sites


class Choice(NamedTuple):
    """A rule, why it is that one, and what is to be warned of data that may count twice."""

    rule: Rule
    why: str
    twice: str = ""


def chosen_rule(sites: Sites, plan: Plan, weights: Mapping[str, float] | None) -> Choice:
    """Return the rule that was asked for, else the one that is natural, and why; a UsageError for a
    product of sites without a prior, or of data that would count twice.
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
    """Whether sites, all of known priors, started from priors that differ beyond rounding, and
    none was named in their place.
    """
    if sites.plan.prior is not None:
        return False
    if sites.networks:
        return bool(of_other_prior({name: site.prior for name, site in sites.loaded.items()}))
    close = lambda own, first: np.allclose(own, first, rtol=1e3 * SAME, atol=1e3 * SAME)
    for block in sites.blocks.values():
        totals = block.concentrations  # zeros without weights
        spreads = [p.spread() for p in block.whole_priors if p] if isinstance(block, Block) else []
        spreads = [own for own in spreads if not np.isnan(own).any()]
        apart = not np.allclose(totals, totals[0], rtol=1e3 * SAME, atol=0.0)
        if block.priors.differ or apart or not all(close(own, spreads[0]) for own in spreads):
            return True
    return False


def check_priors_known(sites: Sites) -> None:
    """Refuse sites of which nobody says what they started from."""
    if names := sites.without_prior:
        raise UsageError(
            found=f"no prior for {names[:3]}" + (" and others" if len(names) > 3 else ""),
            expected="the prior of every site for rule='product', which counts it once",
            fix="Save ledgers made by Ledger.of_site(site, prior=..., posterior=...), or pass "
            "prior=.",
        )


def check_counted_once(sites: Sites) -> str:
    """Refuse data that a product would count twice; return a line on sites that agree to the last
    bit, where ledgers tell them apart, empty if none do.
    """
    if sites.shared is not None:
        contributor, first, second = sites.shared
        raise _counted_twice(f"data of site {contributor!r}", first, second)
    seen: dict[Any, str] = {}
    pairs = []
    for name, content in zip(sites.names, sites.contents(), strict=True):
        if (twin := seen.setdefault(content, name)) == name:
            continue
        first, second = sorted((twin, name))
        if not {first, second} & sites.ledgers:
            raise _counted_twice("the same posterior", first, second)
        pairs.append((first, second))
    if not pairs:
        return ""
    first, second = pairs[0]
    more = f", and so do {len(pairs) - 1} further pairs" if len(pairs) > 1 else ""
    return (
        f"sites {first!r} and {second!r} hold the same posterior to the last bit{more}: if one is "
        "a copy of the other, its data count twice; leave the copy out"
    )


def _counted_twice(what: str, first: str, second: str) -> UsageError:
    return UsageError(
        found=f"{what} in both {first!r} and {second!r}",
        expected="each site's data once: a product would count them twice",
        fix="Merge ledgers that share a site with | first; leave a copy out.",
    )
