"""The one prior that a product counts once, where sites started from priors that differ.

A site's contribution, its posterior less its own prior, no longer holds that prior and can be added
to any other. Where none is given it is the average of the sites' natural parameters: the opinion
pool that commutes with learning from data (genest1986), as sure as one site's prior is on average.
"""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posterity.arrays.canonical import canonical_mean
from posterity.arrays.tree import leaves, map_leaves
from posterity.arrays.typing import Bool, Float
from posterity.errors import ParameterError
from posterity.families import ExponentialFamily
from posterity.families.mixing import MixingWeights
from posterity.ledger import Ledger

Array = np.ndarray
SAME = 1e-12
"""Priors that agree to so many digits were meant to be one."""


class Common(NamedTuple):
    """The prior that is counted once, and which sites started from another."""

    prior: ExponentialFamily
    others: Bool[Array, " sites"]


class CommonTotal(NamedTuple):
    """The concentration of mixing weights over all components together, and who had another."""

    total: float
    others: Bool[Array, " sites"]


def common_prior(priors: ExponentialFamily, given: ExponentialFamily | None = None) -> Common:
    """What is ``given``, else the average of the natural parameters of all sites' priors (J,).

    It is proper where they are, since natural parameters of distributions form a convex set, and
    does not depend on the order of sites.
    """
    prior = map_leaves(_average, priors) if given is None else given
    return Common(prior, unlike(priors, prior))


def unlike(priors: ExponentialFamily, common: ExponentialFamily) -> Bool[Array, " sites"]:
    """Which of a batch are another prior than the common one, by more than rounding."""
    others = np.zeros(priors.batch_shape, bool)
    for leaf, mine in zip(leaves(priors), leaves(common), strict=True):
        close = np.isclose(leaf, mine, rtol=SAME, atol=SAME * float(np.abs(mine).max(initial=0.0)))
        others |= ~close.reshape(len(others), -1).all(1)
    return others


def common_total(
    totals: Float[Array, " sites"],
    given: MixingWeights | None = None,
    importance: Float[Array, " sites"] | None = None,
) -> CommonTotal:
    """That of what is ``given``, over as many components as it has, else the sites' average.

    ``importance`` is the weight of each site in the average; equal if None.
    """
    share = np.ones(len(totals)) if importance is None else importance
    alike = bool((totals == totals[0]).all())
    average = float(totals[0]) if alike else math.fsum(share * totals) / math.fsum(share)
    total = average if given is None else given.total(given)
    return CommonTotal(total, ~np.isclose(totals, total, rtol=1e3 * SAME, atol=0.0))


def _average(leaf: Float[Array, "sites *shape"]) -> Float[Array, "*shape"]:
    """The mean, and to the last bit what all agree on."""
    return np.where((leaf == leaf[:1]).all(0), leaf[0], canonical_mean(leaf))


def pooled_posterior(ledger: Ledger, rebased: Sequence[str]) -> ExponentialFamily:
    """The common prior and all contributions.

    Raises:
        ParameterError: if their sum is not a distribution.
    """
    try:
        return ledger.posterior
    except ParameterError as error:
        if not rebased:
            raise
        raise ParameterError(
            found=f"{error.found}: contributions of {_some(rebased)} beside another prior than "
            "their own",
            expected="contributions that the common prior makes a distribution, as it does those "
            "of conjugate models",
            fix="Pass a prior= as sharp as the sites' own, fit all sites with one prior, or use "
            "rule='barycenter'.",
        ) from error


def part_of(members: Bool[Array, " sites"]) -> str:
    """What differs, where these sites' priors do in more than the mixing weights."""
    return "priors" if members.any() else "priors over mixing weights"


def warn_of_priors(rebased: Sequence[str], part: str, stacklevel: int = 3) -> None:
    """Say that priors differ, and what became of them."""
    warnings.warn(
        f"{part} differ: those of {_some(rebased)} are not the common one (ledger.prior of the "
        "result), which is the average of all sites': of natural parameters, and of the "
        "total concentration of mixing weights. Contributions, posterior "
        "less own prior, were added to it. Pass prior= to choose another, and to silence this",
        stacklevel=stacklevel,
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(map(repr, names[:3])) + (f" and {more} more" if more > 0 else "")
