"""The verb: posteriors of several sites in, one posterior out."""

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.arguments import POSITIVE
from posterity.arrays.typing import Float
from posterity.artifact.aligned import named
from posterity.checkpoint import Checkpoint, opened
from posterity.checks import check_proper
from posterity.errors import (
    FusionWarning,
    IdentificationWarning,
    StructureError,
    UsageError,
)
from posterity.families import ExponentialFamily
from posterity.families.names import Names
from posterity.fingerprint import digests
from posterity.fusion.alignment import (
    Aligner,
    Alignment,
    matching_by_name,
    names_of_components,
    user_labels,
    warn_of_names,
)
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import assembled
from posterity.fusion.blocks import blocks as blocks_of
from posterity.fusion.combine import add, average, pooled_posterior
from posterity.fusion.counting import chosen_rule
from posterity.fusion.diagnostics import diagnostics
from posterity.fusion.divergences import Discrepancy, Name
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matching, MatchingName, Rule, RuleName
from posterity.fusion.networks.fuse import NetworkFusion, fuse_networks
from posterity.fusion.networks.options import Options, without_networks
from posterity.fusion.passes import Stages
from posterity.fusion.plan import Fusible, Plan
from posterity.fusion.result import Fusion
from posterity.fusion.scale import scales_of
from posterity.fusion.sites import Site, Sites, given_twice, read_sites
from posterity.fusion.topics import are_topics
from posterity.ledger import Ledger
from posterity.status import Progress, ProgressCallback

Array = np.ndarray
Alignments = dict[str, Alignment]


def fuse(
    posteriors: Iterable[Fusible] | Mapping[str, Fusible] | Fusible,
    *,
    components: int | tuple[int, ...] | None = None,
    rule: Rule | RuleName | str | None = None,
    divergence: Divergence | Discrepancy | Name | str = "reverse",
    matching: Matching | MatchingName | str | Mapping[str, Any] = "evidence",
    prior: ExponentialFamily | None = None,
    weights: Mapping[str, float] | None = None,
    absorb: bool | None = None,
    budget: int | None = None,
    networks: Options | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
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
        rule: ``"product"``, the prior once plus every site's contribution (its posterior less its
            own prior), which in conjugate models is the posterior of the pooled data, or
            ``"barycenter"``, the summed-KL mean of matched components, as sure as one site. None
            takes the product where all sites are of one known prior (ledgers, or ``prior``) and
            share no data, else the barycentre, as it does for ``weights`` and a ``divergence``;
            ``Fusion.why`` says which and why.
        divergence: what barycentres are the middle in. ``"reverse"`` for ``KL(global || local)``,
            the average of natural parameters; ``"forward"`` for ``KL(local || global)``, its twin
            in mean parameters; ``"jeffreys"``, both added up; ``"renyi"``, between the two, of
            order 1/2 or another as ``"renyi:0.3"``; or an object of
            :mod:`posterity.fusion.divergences`. But for KL's two directions the matching begins
            where the evidence found it, number of components included, and is alternated with
            barycentres.
        matching: ``"evidence"`` (default), ``"hungarian"``, ``"kl-fusion"``, ``"identity"``; see
            :class:`Matching`. Or a matching that is known, by site the fused component of each
            local one and -1 for what is left out, as ``Fusion.matching`` of another fusion has it;
            several of a site have the same one where they are parts of it.
        prior: what sites that are not ledgers started from, and the prior that a product counts
            once, whatever ledgers started from; without it, their common prior, or the average of
            priors that differ. A plate's has members that are all alike, in any number, and
            equal weights, whose total concentration is kept.
        weights: for the barycentre, a positive weight for each site; equal if None.
        absorb: whether components that a local fit split are put together: those that are one by
            the lower bound of the site's own fit, and what is alone, where the other sites do not
            contradict; topics, where their words are likelier of one. It takes mixing weights or
            topics, and a known prior, so ledgers or ``prior``, and ``matching="evidence"`` that
            finds the number. None absorbs wherever there are these.
        budget: bytes of memory to work in. If there are more parameters than 64 MiB, or a budget
            is given, sites are read once and matched in passes that keep only sums: parameters
            are in memory up to the budget (512 MiB if None), beyond it in a temporary file.
        checkpoint: a file that keeps where matching in passes stands: if the process is killed, the
            same call reads the sites again and goes on with the passes where it was. Nothing is
            kept of what is matched in memory.
        networks: how networks are fused, if sites are :class:`posterity.Network`.
        progress: called with a :class:`posterity.status.Progress` once each plate is matched, which
            has the objective of its matching, and after each pass over sites that are gone through
            in passes, whose number it has; of networks once each width is tried, with the
            predictive KL as the objective.

    Returns:
        A :class:`Fusion`; of networks a :class:`NetworkFusion`. It does not depend on the order
        of sites or of components, nor on how many sites came at a time.

    Warns:
        IdentificationWarning: if the number of components or a match hangs on less than 3 nats,
            or nothing can tell; looked for unasked up to a million pairs of a local and a fused
            component, which have no more than 2^27 numbers in all.
        FusionWarning: if sites contradict each other, differ by more than sampling would make them,
            say nothing, or hold the same data; all lines are in ``Fusion.warnings``.
        UserWarning: a product of sites whose priors differ, and no ``prior``.

    Raises:
        UsageError: fewer than two sites, two of one name, data of one site twice under
            ``product``, or arguments that contradict each other.
        StructureError: sites of different families, blocks or dimensions, a prior that tells
            components apart, or a family for which the divergence is not defined.
        ParameterError: NaN, infinite or improper parameters, by site and block.
        ArtifactError: a file that cannot be read, or a checkpoint of another fusion.

    Source: claici2020; the choice of the number of components is ours (docs/decisions.md).

    >>> from posterity.families import DiagonalGaussian, Plate
    >>> def site(*means):
    ...     means = np.array(means)[:, None]
    ...     return Plate(DiagonalGaussian.from_standard(means, np.full(means.shape, 0.01)))
    >>> fused = fuse({"a": site(0.0, 5.0), "b": site(5.1, 9.0), "c": site(9.1, 0.1, 5.2)})
    >>> fused.components
    3
    """
    plan = Plan(rule, divergence, matching, components, prior, absorb, budget, networks)
    sites = read_sites(posteriors, plan)
    importance = _weights(sites.names, weights, plan.rule)
    choice = chosen_rule(sites, plan, weights)
    problem = _Problem(sites, plan, importance, choice.rule)
    with _kept(checkpoint, sites, plan) as stages:
        if sites.networks:
            fusion = problem.networks(progress)
        else:
            fusion = problem.combined(*problem.matched(progress, stages))
    lines: dict[str, type[Warning]] = dict.fromkeys(
        _ambiguities(fusion, plan), IdentificationWarning
    )
    doubtful = [choice.twice] * bool(choice.twice) + [*diagnostics(sites, fusion)]
    lines |= dict.fromkeys(doubtful, FusionWarning)
    for line, kind in lines.items():
        warnings.warn(line, kind, stacklevel=2)
    return dataclasses.replace(fusion, why=choice.why, warnings=tuple(lines))


@contextlib.contextmanager
def _kept(path: Any, sites: Sites, plan: Plan) -> Iterator[Stages | None]:
    """The progress of a search in passes that is kept at the path; None if there is none."""
    if path is None:
        yield None
        return
    tables = {p: block for p, block in sites.blocks.items() if isinstance(block, BlockTable)}
    how = plan.matching, str(plan.divergence), plan.components, plan.absorb, plan.bytes
    parts = {
        "sites": {p: np.sort(table.keys) for p, table in tables.items()},
        "settings": list(map(repr, how)),
        "prior": plan.prior,
    }
    if not tables:
        Checkpoint(Path(path), "fuse", digests(parts)).load()  # refuses a file of anything else
        yield None
        return
    with opened(path, "fuse", digests(parts)) as file:
        yield Stages(file)


class _Problem(NamedTuple):
    """Sites to be fused, by a plan and a rule, each with its weight."""

    sites: Sites
    plan: Plan
    importance: Float[Array, " sites"]
    rule: Rule

    def networks(self, progress: ProgressCallback | None) -> NetworkFusion:
        """The fusion of networks, whose units are matched layer by layer, in memory."""
        sites, plan, importance, rule = self
        if plan.labels is not None:
            raise UsageError(
                found="a matching by site for networks, which have one a layer",
                expected="posteriors with one plate",
                fix="Leave matching out, or choose one by name.",
            )
        return fuse_networks(sites, plan, importance, rule, progress)

    def matched(
        self, progress: ProgressCallback | None, stages: Stages | None
    ) -> tuple[Alignments, Names]:
        """The matching of each plate, and the names of its components where sites give some."""
        sites, plan, importance, rule = self
        side, how, labels, aligned = plan.divergence, plan.matching, plan.labels, Alignments()
        laws = {path: block.like for path, block in sites.blocks.items()}
        plates = [block for block in sites.blocks.values() if block.plate]
        number = without_networks(laws.values(), plan.networks, plan.components)
        if number is not None and not plates:
            raise UsageError(
                found=f"components={number} for {sites.like!r}",
                expected="components only where there is a Plate",
                fix="Leave components out.",
            )
        counted = [plate for plate in plates if plate.weighted or are_topics(plate)]
        if plan.absorb and not any(plate.priors.exchangeable.any() for plate in counted):
            raise UsageError(
                found="absorb=True for posteriors without mixing weights and a known prior",
                expected="ledgers or prior=, of topics or plates with mixing weights, which say "
                "what each component has seen",
                fix="Leave absorb out, or fuse ledgers of plates with weights.",
            )
        for path, law in laws.items() if isinstance(side, Discrepancy) else ():
            if not law.is_plate and rule is not Rule.BARYCENTER:
                continue
            try:
                side.check(law.members if law.is_plate else law)  # pyright: ignore
            except StructureError as error:
                raise error.at(f"block {path!r}") if path else error from error
        by_name = None
        if labels is None and how in (Matching.EVIDENCE, Matching.IDENTITY):
            by_name = matching_by_name(sites.labels, sites.names, [plate.path for plate in plates])
            labels, how = by_name, how if by_name is None else Matching.IDENTITY
        elif sites.labels:
            warn_of_names(f"matching={how.value!r} goes by what members say")
        own = None if labels is None else user_labels(labels, plates, number)
        options = number, plan.absorb is not False, own, plan.bytes, progress, stages
        aligner = Aligner(how, side, *options)
        for plate in plates:
            aligned[plate.path] = alignment = aligner.align(plate, importance)
            if progress is not None:
                progress(Progress(len(aligned), len(plates), alignment.trace[-1]))
        if by_name is None:
            return aligned, {}
        ((path, alignment),) = aligned.items()
        return aligned, names_of_components(sites.labels, path, alignment.matching)

    def combined(self, aligned: Alignments, names: Names) -> Fusion:
        """One posterior, by the rule; of products with a ledger."""
        sites, plan, importance, rule = self
        side, blocks, names = plan.divergence, sites.blocks, {**sites.coordinates, **names}
        sampling = functools.partial(scales_of, blocks, aligned, side)
        if rule is Rule.BARYCENTER:
            fused = average(sites.like, blocks, aligned, side, importance)
            check_proper(fused, "the fused posterior")
            return Fusion(named(fused, names), None, aligned, rule, side, sampling=sampling)
        room = np.inf if sites.in_memory else plan.bytes // 2
        ledger, rebased = add(sites.like, sites.names, blocks, aligned, sites.prior, room)
        ledger = _kept_apart(ledger, sites.loaded, aligned)
        pooled = named(pooled_posterior(ledger, rebased), names)
        return Fusion(pooled, named(ledger, names), aligned, rule, side, rebased, sampling=sampling)


def _ambiguities(fusion: Fusion, plan: Plan) -> Iterator[str]:
    """A line on each plate whose matching hangs on little, where it was searched for."""
    searched = plan.matching in (Matching.EVIDENCE, Matching.HUNGARIAN)
    for path, plate in fusion.plates.items() if searched else ():
        suspect = plate.confidence is not None and plate.confidence.suspect
        if suspect and (reasons := plate.reasons()):
            yield (
                f"The matching{f' in block {path!r}' * bool(path)} hangs on little: "
                f"{'; '.join(reasons)}. All is in .margins and .components_evidence."
            )


def _weights(names: list[str], weights: Any, rule: Rule | None) -> Float[Array, " sites"]:
    """A positive weight a site, at most one; ones if None, as it must be for a product."""
    if weights is None:
        return np.ones(len(names))
    if rule is Rule.PRODUCT:
        raise UsageError(
            found="weights with rule='product'",
            expected="weights for rule='barycenter' only",
            fix="Leave weights out: a product counts every observation once.",
        )
    all_named = isinstance(weights, Mapping) and set(weights) == set(names)
    if not all_named or not all(map(POSITIVE.allows, weights.values())):
        raise UsageError(
            found=f"weights {weights}",
            expected=f"a positive weight for each of {list(names)}",
            fix="Name every site once, with a finite positive weight.",
        )
    importance = np.array([weights[name] for name in names], dtype=float)
    return importance / importance.max()  # sums of large ones would be infinite


def _kept_apart(ledger: Ledger, sites: Mapping[str, Site], alignments: Alignments) -> Ledger:
    """Return the ledger with a factor for each whose data a region's ledger holds, not one a
    region.

    All factors of a region have its labels, and move to the fused ones as it does: a site can still
    be forgotten, and fusing regions gives the ledger of fusing all sites, wherever the matching
    agrees. A UsageError if one has the name of another site.
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
                raise given_twice(name)
            entry = site.ledger.entries[name]
            factor = site.ledger.factor(name)
            parts = blocks_of(factor)
            for path, own in alignments.items():
                parts[path] = parts[path].relabel(own.matching[region], own.components)
            factors[name] = assembled(factor, parts)
            independent[name] = entry.independent and ledger.entries[region].independent
    merged = Ledger(ledger.prior)
    for flag in (True, False):
        some = {name: f for name, f in factors.items() if independent[name] is flag}
        merged = merged.extend(some, independent=flag) if some else merged
    return merged
