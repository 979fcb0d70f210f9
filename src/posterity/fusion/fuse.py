"""The verb: posteriors of several sites in, one posterior out."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.arrays.typing import Int
from posterity.checks import check_proper
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.fusion.alignment import Alignment, align
from posterity.fusion.blocks import Plates, side_by_side
from posterity.fusion.combine import add, average
from posterity.fusion.geometry import Divergence, DivergenceName
from posterity.fusion.matching import Matching, MatchingName
from posterity.fusion.rules import Rule, RuleName
from posterity.fusion.sites import Fusible, check_counted_once, read_sites, site_weights
from posterity.ledger import Ledger


@dataclasses.dataclass(frozen=True)
class Fusion:
    """What :func:`fuse` found.

    Attributes:
        posterior: the fused posterior, of the sites' family.
        ledger: with ``rule="product"``, the same as prior plus one aligned factor a site, so
            that a site can be taken out again; else None.
        plates: for each plate (by the path of its block, ``""`` for the whole posterior) the
            matching, its cost and the trace of the objective.
        rule: how matched components became one.
        divergence: the side on which KL was taken.
    """

    posterior: ExponentialFamily
    ledger: Ledger | None
    plates: dict[str, Alignment]
    rule: Rule
    divergence: Divergence

    @property
    def plate(self) -> Alignment:
        """The only plate.

        Raises:
            UsageError: if there are several, or none.
        """
        if len(self.plates) != 1:
            raise UsageError(
                found=f"{len(self.plates)} plates {sorted(self.plates)}",
                expected="one plate",
                fix="Look at .plates[name] instead.",
            )
        return next(iter(self.plates.values()))

    @property
    def matching(self) -> dict[str, Int[np.ndarray, " k"]]:
        """For each site, the fused component of each local one; -1 if it held no data."""
        return self.plate.matching

    @property
    def components(self) -> int:
        """Number of fused components."""
        return self.plate.components

    @property
    def cost(self) -> float:
        """Summed divergence of matched components to their centroid, in nats."""
        return self.plate.cost

    @property
    def trace(self) -> list[float]:
        """The objective of the matching after each accepted change; it never rises."""
        return self.plate.trace


def fuse(
    posteriors: Sequence[Fusible] | Mapping[str, Fusible] | Fusible,
    *,
    components: int | None = None,
    rule: Rule | RuleName | str = "barycenter",
    divergence: Divergence | DivergenceName | str = "reverse",
    matching: Matching | MatchingName | str = "evidence",
    prior: ExponentialFamily | None = None,
    weights: Mapping[str, float] | None = None,
) -> Fusion:
    """Merge posteriors of separate data into one, finding which components correspond.

    Args:
        posteriors: families, ledgers (see :meth:`Ledger.of_site`) or paths of files that hold
            one, at least two; a mapping names the sites, else a ledger names its own, a file
            goes by its stem and the rest are numbered. Plates are matched; a plate that has
            mixing weights and a known prior leaves out components that hold less than one
            observation.
        components: number of fused components of each plate; None finds it. For
            ``matching="kl-fusion"`` an upper bound, as in the paper.
        rule: ``"barycenter"``, the summed-KL mean of matched components, or ``"product"``, the
            prior once plus every site's contribution, which in conjugate models is the
            posterior of the pooled data.
        divergence: ``"reverse"`` for ``KL(global || local)``, ``"forward"`` for
            ``KL(local || global)``.
        matching: ``"evidence"`` (default), ``"hungarian"``, ``"kl-fusion"``, ``"identity"``; see
            :class:`Matching`.
        prior: what sites that are not ledgers started from; a plate's prior has members that
            are all alike, in any number, and equal weights.
        weights: for the barycentre, a positive weight for each site; equal if None.

    Returns:
        A :class:`Fusion`. It does not depend on the order of sites or of components.

    Raises:
        UsageError: fewer than two sites, two of one name, data of one site twice under
            ``product``, or arguments that contradict each other.
        StructureError: sites of different families, blocks or dimensions, or priors that differ.
        ParameterError: NaN, infinite or improper parameters, by site and block.
        ArtifactError: a file that cannot be read.

    Source: claici2020; the choice of the number of components is ours (docs/decisions.md).

    >>> from posterity.families import DiagonalGaussian, Plate
    >>> def site(*means):
    ...     means = np.array(means)[:, None]
    ...     return Plate(DiagonalGaussian.from_standard(means, np.full(means.shape, 0.01)))
    >>> fused = fuse({"a": site(0.0, 5.0), "b": site(5.1, 9.0), "c": site(9.1, 0.1, 5.2)})
    >>> fused.components
    3
    """
    by: Rule = _choice(Rule, rule, "rule")
    side: Divergence = _choice(Divergence, divergence, "divergence")
    how: Matching = _choice(Matching, matching, "matching")
    sites = read_sites(posteriors, prior)
    importance = site_weights(list(sites), weights, by)
    if by is Rule.PRODUCT:
        check_counted_once(sites)
    like, blocks = next(iter(sites.values())).posterior, side_by_side(sites)
    plates = [block for block in blocks if isinstance(block, Plates)]
    if components is not None and not plates:
        raise UsageError(
            found=f"components={components} for {like!r}",
            expected="components only where there is a Plate",
            fix="Leave components out.",
        )
    aligned = {p.path: align(p, how, side, components, importance) for p in plates}
    if by is Rule.PRODUCT:
        ledger = add(like, list(sites), blocks, aligned)
        return Fusion(ledger.posterior, ledger, aligned, by, side)
    fused = average(like, blocks, aligned, side, importance)
    check_proper(fused, "the fused posterior")
    return Fusion(fused, None, aligned, by, side)


def _choice(kind: Any, value: Any, argument: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(
            found=f"{argument}={value!r}",
            expected=f"one of {[member.value for member in kind]}",
            fix=f"Choose one of these for {argument}.",
        ) from None
