"""A tree of fusions: what is fused from ledgers of several sites keeps these sites apart."""

from collections.abc import Mapping

from posterity.families import ExponentialFamily
from posterity.fusion.alignment import Alignment
from posterity.fusion.paths import assembled, blocks
from posterity.fusion.refusals import twice
from posterity.fusion.sites import Site
from posterity.ledger import Ledger


def kept_apart(
    ledger: Ledger, sites: Mapping[str, Site], alignments: Mapping[str, Alignment]
) -> Ledger:
    """The ledger with a factor for each whose data a region's ledger holds, not one a region.

    A region's components were matched, so all its sites' factors have its labels, and move to the
    fused ones as it does. So a site can still be forgotten, and fusing regions gives the ledger of
    fusing all their sites, wherever the matching agrees.

    Raises:
        UsageError: if one of them has the name of another site.
    """
    regions = {name: site for name, site in sites.items() if len(site.contributors) > 1}
    if not regions:
        return ledger
    factors = {name: ledger.factor(name) for name in ledger.sites if name not in regions}
    independent = {name: ledger.entries[name].independent for name in factors}
    for region, site in regions.items():
        assert site.ledger is not None  # it names contributors
        for name in site.contributors:
            if name in factors:
                raise twice(name)
            entry = site.ledger.entries[name]
            factors[name] = _relabelled(site.ledger.factor(name), region, alignments)
            independent[name] = entry.independent and ledger.entries[region].independent
    merged = Ledger(ledger.prior)
    for flag in (True, False):
        some = {name: f for name, f in factors.items() if independent[name] is flag}
        merged = merged.extend(some, independent=flag) if some else merged
    return merged


def _relabelled(
    factor: ExponentialFamily, region: str, alignments: Mapping[str, Alignment]
) -> ExponentialFamily:
    """A factor under a region's labels, under the fused ones."""
    moved = {
        path: block.relabel(alignments[path].matching[region], alignments[path].components)
        if path in alignments
        else block
        for path, block in blocks(factor).items()
    }
    return assembled(factor, moved)
