"""Posteriors whose blocks share labels, put together once the labels are matched."""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posterity.arrays.tree import leaves
from posterity.arrays.typing import Bool, Float
from posterity.errors import StructureError
from posterity.families import ExponentialFamily, Tied
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.blocks import TiedBlock, one_member, resized
from posterity.fusion.common_prior import SAME, common_prior
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.geometry import Divergence
from posterity.fusion.rules import barycenter

Array = np.ndarray


class TiedTerms(NamedTuple):
    """The prior of as many labels as were found, what each site adds, and who had another prior."""

    prior: Tied
    added: list[Tied]
    others: Bool[Array, " sites"]


def average_tied(
    tied: TiedBlock,
    alignment: Alignment,
    divergence: Divergence | Discrepancy,
    importance: Array,
) -> Tied:
    """Members by the barycentre; what is counted, averaged over all sites, beside the prior.

    Raises:
        StructureError: without priors, where no site has seen what some concentration counts.
    """
    parts, labels = Absorbing.of(tied, alignment.into), alignment.labels
    whole = (labels >= 0) & parts.whole
    weights, kind = importance[tied.site[whole]], type(tied.whole[0])
    members = barycenter(parts.members[whole], labels[whole], divergence, weights)
    spread = _spread(tied.whole_priors, importance, alignment.components, kind.concentrations)
    found = kind.exchangeable(members[0], spread, alignment.components)
    share = importance / math.fsum(importance)
    for factor, own in zip(contributions(tied, alignment), share.tolist(), strict=True):
        found = found + factor * own
    found = found.with_members(members)
    if not np.all(found.is_proper()):
        raise StructureError(
            found=f"{alignment.components} fused states of which no site has seen all pairs"
            f"{tied.place}, and no prior",
            expected="priors, which say what transitions are worth that nobody has seen",
            fix="Fuse ledgers (Ledger.of_site(site, prior=..., posterior=...)), or pass prior=.",
        )
    return found


def tied_terms(tied: TiedBlock, alignment: Alignment, given: ExponentialFamily | None) -> TiedTerms:
    """What a product adds up.

    Raises:
        StructureError: priors that tell labels apart.
    """
    own = [prior for prior in tied.whole_priors if prior is not None]  # all: it was checked
    members = tied.priors.each(tied.names)
    if given is None:
        kind = type(own[0])
        spread = _spread(own, np.ones(len(own)), alignment.components, kind.concentrations)
        member = common_prior(members).prior
    else:
        given = resized(given, alignment.components)  # pyright: ignore[reportArgumentType]
        spread, member = given.spread(), one_member(given.as_plate(given))
    make = type(own[0]).exchangeable
    others = [_unlike(prior, make(member, spread, prior.labels)) for prior in own]
    prior = make(member, spread, alignment.components)
    return TiedTerms(prior, contributions(tied, alignment), np.array(others, bool))


def contributions(tied: TiedBlock, alignment: Alignment) -> list[Tied]:
    """What each site adds to its prior, under the fused labels."""
    sites = zip(tied.names, tied.whole, tied.whole_priors, strict=True)
    return [
        q.contribution(prior).relabel(alignment.matching[name], alignment.components)
        for name, q, prior in sites
    ]


def _spread(
    priors: Sequence[Tied | None], importance: Float[Array, " sites"], labels: int, width: int
) -> Float[Array, " s"]:
    """The average of the sites' concentrations, of those whose labels tell all of them.

    Priors that are not known count as none.
    """
    nothing = np.zeros(width)
    rows = np.array([nothing if p is None else p.spread() for p in priors])
    told = ~np.isnan(rows).any(1)
    if not told.any():
        if labels > 1:
            warnings.warn(
                "priors of one state do not tell staying from moving: all of their concentration "
                "counts as moving. Pass prior= of two states or more to say otherwise",
                stacklevel=6,
            )
        told = ~told
    kept, rows = importance[told], rows[told]
    if (rows == rows[:1]).all():
        return rows[0]
    return np.array([math.fsum(column) for column in (kept[:, None] * rows).T]) / math.fsum(kept)


def _unlike(own: Tied, common: Tied) -> bool:
    pairs = zip(leaves(own), leaves(common), strict=True)
    return not all(np.allclose(a, b, rtol=1e3 * SAME, atol=1e3 * SAME) for a, b in pairs)
