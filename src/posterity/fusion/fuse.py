"""The verb: posteriors of several sites in, one posterior out."""

import functools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posterity.arguments import COUNT
from posterity.artifact.aligned import named
from posterity.checks import check_proper
from posterity.errors import IdentificationWarning, UsageError
from posterity.families import ExponentialFamily
from posterity.fusion.alignment import Alignment, align
from posterity.fusion.blocks import Plates, side_by_side
from posterity.fusion.combine import add, average
from posterity.fusion.common_prior import pooled_posterior, warn_of_priors
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.divergences.names import Name, divergence_of
from posterity.fusion.geometry import Divergence
from posterity.fusion.given import (
    given_labels,
    matching_by_name,
    names_of_components,
    warn_of_names,
)
from posterity.fusion.matching import Matching, MatchingName
from posterity.fusion.networks.fuse import fuse_networks
from posterity.fusion.networks.intake import has_units, in_memory, without_networks
from posterity.fusion.networks.options import Options
from posterity.fusion.refusals import (
    check_defined,
    check_family,
    check_has_plates,
    check_streamed,
    check_together,
    no_known_matching,
)
from posterity.fusion.regions import kept_apart
from posterity.fusion.result import Fusion
from posterity.fusion.rules import Rule, RuleName
from posterity.fusion.scale import scales_of
from posterity.fusion.sites import Fusible, check_counted_once, read_named, site_weights
from posterity.fusion.sources import BUDGET, IN_MEMORY, items, small
from posterity.fusion.stream import stream
from posterity.status import Progress, ProgressCallback


def fuse(
    posteriors: Iterable[Fusible] | Mapping[str, Fusible] | Fusible,
    *,
    components: int | tuple[int, ...] | None = None,
    rule: Rule | RuleName | str = "barycenter",
    divergence: Divergence | Discrepancy | Name | str = "reverse",
    matching: Matching | MatchingName | str | Mapping[str, Any] = "evidence",
    prior: ExponentialFamily | None = None,
    weights: Mapping[str, float] | None = None,
    absorb: bool | None = None,
    budget: int | None = None,
    networks: Options | None = None,
    progress: ProgressCallback | None = None,
) -> Fusion:
    """Merge posteriors of separate data into one, finding which components correspond.

    Args:
        posteriors: families, ledgers (see :meth:`Ledger.of_site`) or paths of files that hold
            one, at least two, in a collection or one by one from an iterator; a folder or a
            pattern like ``"sites/*.safetensors"`` stands for its files, a batch of posteriors with
            plates for its sites. A mapping names the sites, else a ledger names its own, a file
            goes by its stem and the rest are numbered. Plates are matched; a plate that has
            mixing weights and a known prior leaves out components that hold less than one
            observation.
        components: number of fused components of each plate; None finds it. For
            ``matching="kl-fusion"`` an upper bound, as in the paper. Of networks, the hidden
            units of each layer.
        rule: ``"barycenter"``, the summed-KL mean of matched components, or ``"product"``, the
            prior once plus every site's contribution (its posterior less its own prior), which
            in conjugate models is the posterior of the pooled data.
        divergence: what barycentres are the middle in. ``"reverse"`` for ``KL(global || local)``,
            the average of natural parameters; ``"forward"`` for ``KL(local || global)``, its twin
            in mean parameters; ``"jeffreys"``, both added up; ``"renyi"``, between the two, of
            order 1/2 or another as ``"renyi:0.3"``; or an object of
            :mod:`posterity.fusion.divergences`. But for KL's two directions the matching begins
            where the evidence found it, number of components included, and is alternated with
            barycentres.
        matching: ``"evidence"`` (default), ``"hungarian"``, ``"kl-fusion"``, ``"identity"``; see
            :class:`Matching`. Or a matching that is known, by site the fused component of each
            local one and -1 for what is left out, as ``Fusion.matching`` of another fusion has it.
        prior: what sites that are not ledgers started from, and the prior that a product counts
            once, whatever ledgers started from; without it, their common prior, or the average of
            priors that differ. A plate's has members that are all alike, in any number, and
            equal weights, whose total concentration is kept.
        weights: for the barycentre, a positive weight for each site; equal if None.
        absorb: whether components that a local fit split are put together: what is alone is
            absorbed by one of its own site's, where the two are one by the site's own data and
            the other sites do not contradict. It takes mixing weights and a known prior, so
            ledgers or ``prior``, and ``matching="evidence"`` that finds the number. None absorbs
            wherever sites are matched in memory.
        budget: bytes of memory to work in. If there are more parameters than 64 MiB, or a budget
            is given, sites are read once and matched in passes that keep only sums: parameters
            are in memory up to the budget (512 MiB if None), beyond it in a temporary file.
        networks: how networks are fused, if sites are :class:`posterity.Network`.
        progress: called with a :class:`posterity.status.Progress` once each plate is matched, which
            has the objective of its matching.

    Returns:
        A :class:`Fusion`; of networks a :class:`NetworkFusion`. It does not depend on the order
        of sites or of components, nor on how many sites came at a time.

    Warns:
        IdentificationWarning: if the number of components or a match hangs on less than 3 nats,
            or nothing can tell; looked for unasked up to a million pairs of a local and a fused
            component, which have no more than 2^27 numbers in all.
        UserWarning: a product of sites whose priors differ, and no ``prior``; or of two that hold
            the same to the last bit.

    Raises:
        UsageError: fewer than two sites, two of one name, data of one site twice under
            ``product``, or arguments that contradict each other.
        StructureError: sites of different families, blocks or dimensions, a prior that tells
            components apart, or a family for which the divergence is not defined.
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
    side = divergence_of(divergence)
    known = matching if isinstance(matching, Mapping) else None
    how: Matching = _choice(Matching, "identity" if known is not None else matching, "matching")
    COUNT.or_none().check(budget=budget)
    check_family(prior)
    check_together(how, side, components, absorb)
    limit = None if how is Matching.KL_FUSION else IN_MEMORY
    held, rest = small(posteriors, limit) if budget is None else ([], items(posteriors))
    if rest is not None:
        held, rest = in_memory(rest)
    if rest is not None:
        number = without_networks([], networks, components)
        direction = check_streamed(absorb, known is not None, side)
        found = stream(
            rest,
            components=number,
            rule=by,
            divergence=direction,
            matching=how,
            prior=prior,
            weights=weights,
            budget=BUDGET if budget is None else budget,
        )
        return Fusion(found.posterior, found.ledger, found.plates, by, side, found.rebased)
    sites, prior, names, labels = read_named(held, prior)
    importance = site_weights(list(sites), weights, by)
    if any(has_units(site.posterior) for site in sites.values()):
        if known is not None:
            raise no_known_matching("networks, which have one a layer")
        return fuse_networks(
            sites,
            components=components,
            rule=by,
            divergence=side,
            matching=how,
            prior=prior,
            importance=importance,
            absorb=absorb,
            budget=budget,
            options=networks,
        )
    if by is Rule.PRODUCT:
        check_counted_once(sites)
    like, blocks = next(iter(sites.values())).posterior, side_by_side(sites)
    number = without_networks([block.posteriors[0] for block in blocks], networks, components)
    plates = [block for block in blocks if isinstance(block, Plates)]
    check_has_plates(number, like, bool(plates))
    if isinstance(side, Discrepancy):
        apart = plates if by is Rule.PRODUCT else blocks
        check_defined(side, [(block.path, block.posteriors[0]) for block in apart])
    by_name = None
    if known is None and how in (Matching.EVIDENCE, Matching.IDENTITY):
        known = by_name = matching_by_name(labels, [plate.path for plate in plates])
        how = how if known is None else Matching.IDENTITY
    elif any(labels.values()):
        warn_of_names(f"matching={how.value!r} goes by what members say")
    given = None if known is None else given_labels(known, plates, number)
    aligned: dict[str, Alignment] = {}
    for plate in plates:
        found = align(plate, how, side, number, importance, absorb is not False, given)
        aligned[plate.path] = found
        if progress is not None:
            progress(Progress(len(aligned), len(plates), found.trace[-1]))
    if by_name is not None:
        (path,) = aligned
        names = {**names, **names_of_components(labels, path, aligned[path].matching)}
    if how in (Matching.EVIDENCE, Matching.HUNGARIAN):
        _warn_of_doubts(plates, aligned)
    sampling = functools.partial(scales_of, plates, aligned, side)
    if by is Rule.PRODUCT:
        ledger, rebased, part = add(like, list(sites), blocks, aligned, prior)
        if rebased and prior is None:
            warn_of_priors(rebased, part)
        ledger = kept_apart(ledger, sites, aligned)
        pooled = pooled_posterior(ledger, rebased)
        ledger, pooled = named(ledger, names), named(pooled, names)
        return Fusion(pooled, ledger, aligned, by, side, rebased, sampling)
    fused = average(like, blocks, aligned, side, importance)
    check_proper(fused, "the fused posterior")
    return Fusion(named(fused, names), None, aligned, by, side, sampling=sampling)


def _warn_of_doubts(plates: Sequence[Plates], aligned: Mapping[str, Alignment]) -> None:
    for plate in plates:
        alignment = aligned[plate.path]
        suspect = alignment.confidence is not None and alignment.confidence.suspect
        if suspect and (doubts := alignment.doubts()):
            warnings.warn(
                f"The matching{plate.place} hangs on little: {'; '.join(doubts)}. All is in "
                ".margins and .components_evidence.",
                IdentificationWarning,
                stacklevel=3,
            )


def _choice(kind: Any, value: Any, argument: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(
            found=f"{argument}={value!r}",
            expected=f"one of {[member.value for member in kind]}",
            fix=f"Choose one of these for {argument}.",
        ) from None
