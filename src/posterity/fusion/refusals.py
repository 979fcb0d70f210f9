"""What fusing refuses, and why."""

import warnings
from collections.abc import Sequence

from posterity.errors import StructureError, UsageError
from posterity.families import ExponentialFamily, Plate, Tied
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


def check_family(prior: object) -> None:
    """Raise a StructureError for a prior that is a ledger, a path, or anything else."""
    if prior is not None and not isinstance(prior, ExponentialFamily):
        raise StructureError(
            found=f"prior={prior!r}",
            expected="an exponential family",
            fix="Give that of a ledger as ledger.prior, and that in a file as "
            "posterity.load(path).",
        )


def check_has_plates(components: int | None, like: object, plates: bool) -> None:
    """Raise a UsageError for a number of components where there are none to count."""
    if components is not None and not plates:
        raise UsageError(
            found=f"components={components} for {like!r}",
            expected="components only where there is a Plate",
            fix="Leave components out.",
        )


def check_streams(block: object) -> None:
    """Raise a UsageError for what is only fused in memory: blocks that share labels."""
    if isinstance(block, Tied):
        raise UsageError(
            found=f"a {type(block).__name__} in a stream (budget=, or more than 64 MiB)",
            expected="posteriors whose blocks share labels to be fused in memory",
            fix="Leave budget out, or fuse regions of fewer sites first, and then their ledgers.",
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


def check_streamed(absorb: bool | None, known: bool, side: Divergence | Discrepancy) -> Divergence:
    """The side, which is one of KL; a UsageError for what is not done with streamed sites.

    Sites that are read once are gone by the time it shows which of their components are one; and
    passes keep sums of parameters, which only KL's barycentres are made of.
    """
    held = "sites that are matched in memory: up to 64 MiB of parameters, no budget="
    if absorb:
        raise UsageError(
            found="absorb=True with sites that are streamed",
            expected=held,
            fix="Leave absorb out, or fuse regions of fewer sites first, and then their ledgers.",
        )
    if known:
        raise no_known_matching("sites that are streamed")
    if isinstance(side, Discrepancy):
        raise UsageError(
            found=f"divergence={side.value!r} with sites that are streamed",
            expected=held,
            fix="Choose divergence='reverse' or 'forward', or fuse regions of fewer sites first.",
        )
    return side


def no_known_matching(what: str) -> UsageError:
    """For a matching that is given, where none can be."""
    return UsageError(
        found=f"a matching by site for {what}",
        expected="posteriors with one plate that are matched in memory",
        fix="Leave matching out, or choose one by name.",
    )


def check_defined(divergence: Discrepancy, blocks: Sequence[tuple[str, ExponentialFamily]]) -> None:
    """Raise a StructureError that names the block for which a divergence is not defined."""
    for path, one in blocks:
        try:
            divergence.check(one.members if isinstance(one, Plate) else one)
        except StructureError as error:
            raise error.at(f"block {path!r}") if path else error from error
