"""What fusing refuses, and why."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.arguments import Constraint
from posterity.checks import check_proper
from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily, Network
from posterity.families.layers import Dense
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching


def twice(name: str) -> UsageError:
    """For two posteriors of one site."""
    return UsageError(
        found=f"two posteriors of site {name!r}",
        expected="each site once",
        fix="Leave one out, or pass a mapping that names each site differently.",
    )


def check_enough(count: int) -> None:
    """Raise a UsageError for fewer than two sites."""
    if count < 2:
        raise UsageError(
            found=f"{count} site" + ("s" if not count else ""),
            expected="at least two sites to fuse",
            fix="Pass the posteriors of all sites together.",
        )


def check_held(empty: Sequence[str], place: str) -> None:
    """Raise a UsageError if there are sites none of whose components has seen data."""
    if len(empty):
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        raise UsageError(
            found=f"no component with at least one observation at {list(empty[:3])}{more}{place}",
            expected="at least one component that has seen data at every site",
            fix="Leave the site out, or check its fit.",
        )


def check_structure(
    first: str,
    like: ExponentialFamily,
    posteriors: Mapping[str, ExponentialFamily],
    prior: ExponentialFamily | None,
) -> None:
    """Raise a StructureError unless posteriors, and the prior, have the structure of the first."""
    if like.batch_shape:
        raise StructureError(
            found=f"a batch of shape {like.batch_shape} at site {first!r}",
            expected="one posterior a site, or a batch (sites,) of posteriors with plates",
            fix="If the batch is of exchangeable components, wrap it: posterity.Plate(batch).",
        )
    networks: dict[str, Any] = {n: q for n, q in posteriors.items() if q.network_layers is not None}
    if len(networks) == len(posteriors):
        _check_layers(networks)  # which says of which layer
    outline = like.outline(plates=False)
    alike = f"the family, blocks and dimensions of site {first!r}: {like!r} (plates may differ in "
    for name, posterior in posteriors.items():
        if posterior.batch_shape or posterior.outline(plates=False) != outline:
            raise StructureError(
                found=f"{posterior!r} at site {name!r}",
                expected=f"{alike}size)",
                fix="Fit the same model at every site.",
            )
    if prior is not None and (prior.batch_shape or prior.outline(plates=False) != outline):
        raise StructureError(
            found=f"prior {prior!r}",
            expected=f"{alike}size)",
            fix="Give one of the posteriors' family; wrap that of one component "
            "as posterity.Plate(stack([member])).",
        )
    if prior is not None:
        check_proper(prior, "the prior")


def _check_layers(networks: Mapping[str, Network]) -> None:
    """Refuse networks of other depths, inputs, outputs or kinds of layers, by site and layer."""
    (first, like), *others = networks.items()
    if not isinstance(like.layers[-1], Dense):
        raise StructureError(
            found=f"a last layer {like.layers[-1]}",
            expected="a dense one, whose outputs mean the same at every site",
            fix="End the network with a Dense layer.",
        )
    for name, network in others:
        if (difference := network.layers.difference(like.layers)) is not None:
            raise StructureError(
                found=f"{difference[0]} at site {name!r}",
                expected=f"{difference[1]}, as at site {first!r}; numbers of hidden units may "
                "differ",
                fix="Fuse networks of one depth, with the same inputs, outputs, windows and "
                "activations.",
            )


def check_has_plates(components: int | None, like: object, plates: bool) -> None:
    """Raise a UsageError for a number of components where there are none to count."""
    if components is not None and not plates:
        raise UsageError(
            found=f"components={components} for {like!r}",
            expected="components only where there is a Plate",
            fix="Leave components out.",
        )


def check_priors_known(bare: Sequence[str]) -> None:
    """Raise a UsageError if there are sites without a prior, which a product counts once."""
    if bare:
        raise UsageError(
            found=f"no prior for {list(bare[:3])}" + (" and others" if len(bare) > 3 else ""),
            expected="the prior of every site for rule='product', which counts it once",
            fix="Save ledgers made by Ledger.of_site(site, prior=..., posterior=...), or pass "
            "prior=.",
        )


def counted_twice(what: str, first: str, second: str) -> UsageError:
    """For data that a product would count twice."""
    return UsageError(
        found=f"{what} in both {first!r} and {second!r}",
        expected="each site's data once: a product would count them twice",
        fix="Merge ledgers that share a site with | first; leave a copy out.",
    )


def warn_of_copies(first: str, second: str, stacklevel: int = 4) -> None:
    """Warn of sites of different names that agree to the last bit, as they may of counts."""
    warnings.warn(
        f"sites {first!r} and {second!r} hold the same posterior to the last bit: if one is a "
        "copy of the other, its data count twice",
        stacklevel=stacklevel,
    )


# --- options of fuse that do not go together -----------------------------------------------------

PRIOR = Constraint(
    "an exponential family; that of a ledger is ledger.prior, that in a file posterity.load(path)",
    lambda value: value is None or isinstance(value, ExponentialFamily),
    StructureError,
)


def check_together(
    how: Matching, side: Divergence | Discrepancy, components: object, absorb: bool | None
) -> None:
    """Raise a UsageError for a matching that does not do what else is asked for."""
    if absorb and (how is not Matching.EVIDENCE or components is not None):
        raise UsageError(
            found="absorb=True with a matching that does not find the number of components",
            expected="matching='evidence' and components=None",
            fix="Leave absorb out.",
        )
    if isinstance(side, Discrepancy) and how is Matching.KL_FUSION:
        raise UsageError(
            found=f"divergence={side.value!r} with matching='kl-fusion'",
            expected="a direction of KL, which the paper's problem (9) is about",
            fix="Leave matching out, or choose divergence='reverse' or 'forward'.",
        )


def beyond_memory(what: str, budget: int) -> UsageError:
    """The error for what is only done in memory, of sites that take more than it may."""
    return UsageError(
        found=f"{what} of sites whose parameters take more than an eighth of budget={budget}",
        expected="parameters that fit: sums of them, all that passes keep, do not suffice",
        fix="Pass a larger budget, or none; or fuse regions of fewer sites, and their ledgers.",
    )


def check_defined(divergence: Discrepancy, blocks: Sequence[tuple[str, Any]]) -> None:
    """Raise a StructureError that names the block for which a divergence is not defined."""
    for path, one in blocks:
        try:
            divergence.check(one.members if one.is_plate else one)
        except StructureError as error:
            raise error.at(f"block {path!r}") if path else error from error
