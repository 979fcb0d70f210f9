"""The verb ``fuse``, which merges the posteriors of several sites into one posterior."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.arguments import BETWEEN, FLAG, POSITIVE
from posterity.arrays.linear_algebra import one_thread
from posterity.arrays.typing import Float
from posterity.artifact.aligned import named
from posterity.artifact.checkpoint import of_arguments, opened
from posterity.errors import (
    UsageError,
)
from posterity.families import ExponentialFamily
from posterity.families.checks import check_proper
from posterity.families.names import Names
from posterity.fusion.alignment import Aligner, Alignment
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import assembled
from posterity.fusion.blocks import blocks as blocks_of
from posterity.fusion.check import doubts
from posterity.fusion.combine import add, average, pooled_posterior
from posterity.fusion.counting import chosen_rule
from posterity.fusion.criterion import DescriptionLength
from posterity.fusion.doubts import LEVEL, warn_of
from posterity.fusion.geometry import Divergence, DivergenceName
from posterity.fusion.labels import (
    matching_by_name,
    names_of_components,
    user_labels,
    warn_of_names,
)
from posterity.fusion.matching import Matching, MatchingName, Rule, RuleName
from posterity.fusion.networks.options import Options, without_networks
from posterity.fusion.passes import Stages
from posterity.fusion.plan import Fusible, Plan
from posterity.fusion.reading import read_sites
from posterity.fusion.result import Fusion
from posterity.fusion.scale import scales_of
from posterity.fusion.sites import Sites, given_twice
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
    divergence: Divergence | DivergenceName | str = "reverse",
    matching: Matching | MatchingName | str | Mapping[str, Any] = "evidence",
    prior: ExponentialFamily | None = None,
    personal: bool | Sequence[int | str] | Mapping[Any, float] = False,
    weights: Mapping[str, float] | None = None,
    absorb: bool | None = None,
    budget: int | None = None,
    networks: Options | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
    warn: bool = True,
    level: float = LEVEL,
    criterion: DescriptionLength | None = None,
) -> Fusion:
    """Merge posteriors of separate data sets into one, and match their components.

    Args:
        posteriors: at least two families, ledgers (see :meth:`Ledger.of_site`) or paths of files
            with one, in a collection or an iterator. A folder, or a pattern such as
            ``"sites/*.safetensors"``, stands for its files; a batch of posteriors with plates
            stands for its sites. The keys of a mapping name the sites; otherwise a ledger has its
            own name, a site read from a file is named after the file, and the rest are numbered.
            Plates are matched. If a plate has mixing weights and a known prior, its components
            with less than one observation are left out.
        components: number of fused components of each plate; by default it is chosen. For
            ``matching="kl-fusion"`` an upper bound, as in the paper; for networks, the number of
            hidden units of each layer.
        rule: ``"product"`` or ``"barycenter"``. The product is the prior, counted once, plus each
            site's contribution (its posterior minus its prior): in conjugate models, the posterior
            of the pooled data. The barycentre is the summed-KL mean of matched components, about
            as certain as one site. By default the product if all sites have one known prior
            (ledgers, or ``prior``), share no data, and neither ``weights`` nor another
            ``divergence`` is passed; else the barycentre. ``Fusion.why`` has the reason.
        divergence: divergence that barycentres minimise. ``"reverse"`` is ``KL(global || local)``,
            minimised by the average of natural parameters; ``"forward"`` is
            ``KL(local || global)``, minimised by that of mean parameters.
        matching: ``"evidence"`` (default), ``"hungarian"``, ``"kl-fusion"``, ``"identity"``; see
            :class:`Matching`. Or a known matching, like ``Fusion.matching`` of another fusion: for
            each site, the fused component of each local one, -1 for components to leave out.
            Components of a site that are parts of one have the same fused component.
        prior: prior of the sites that are not ledgers, and the prior that a product counts once,
            whatever the ledgers' priors are; by default their common prior, or the average of
            priors that differ. The members of a plate's prior, in any number, are all alike, with
            equal weights, whose total concentration is kept.
        personal: for sites that truly differ, of Gaussian coefficients: True if all coefficients
            vary normally about those of a population, or those that do, by name or number; a
            mapping gives the prior median of each one's spread between sites, which by default is
            twice the sites' mean standard error, weighed by precision, or what sites' estimates
            tell if that is more. A site may lack coefficients. The result has the population
            (:attr:`Fusion.population`); of what changes a fusion only ``prior`` can be passed
            beside it.
        weights: for the barycentre, a positive weight for each site; by default equal.
        absorb: whether to merge components into which a local fit split one: those that the lower
            bound of the site's fit merges, and unmatched ones, unless other sites contradict; and
            topics whose words are likelier under one. This needs mixing weights or topics, a known
            prior (ledgers or ``prior``), and ``matching="evidence"`` without ``components``. By
            default, wherever these conditions hold.
        budget: bytes of memory to use; by default 512 MiB. If parameters take more than an eighth
            of it, sites are read once and matched in passes that keep only sums: parameters are
            in memory up to a quarter of the budget, and beyond that in a temporary file.
        checkpoint: path of a file that keeps the state of matching in passes. If the process is
            killed, the same call reads the sites again and resumes the passes. Matching in memory
            is not saved.
        networks: options for sites that are :class:`posterity.Network`.
        progress: callback for :class:`posterity.status.Progress`, called after each plate is
            matched (with the objective of the matching) and after each pass over the sites (with
            its number); for networks after each width is tried (with the predictive KL).
        warn: whether doubts are Python warnings as well as in ``Fusion.doubts``.
        level: chance that sites of one truth are doubted, for each kind of doubt.
        criterion: numbers by which the number of components is chosen, each with its reason, as a
            :class:`posterity.fusion.criterion.DescriptionLength`; not for networks.

    Returns:
        A :class:`Fusion`, or a :class:`NetworkFusion` for networks. It does not depend on the
        order of sites or components, nor, in passes, on how many sites were read at a time. In
        passes warnings are about some sites, so they may name others than in memory.

    Warns:
        IdentificationWarning: if the number of components or a match is determined by less than
            3 nats, or cannot be judged, unless sampling alone tells which components are one. This
            is checked for up to 2^20 pairs of a local and a fused component with at most 2^27
            numbers in all.
        FusionWarning: if sites contradict each other, differ by more than sampling explains, share
            fewer components than others do, are uninformative, or have the same data. Of sites that
            are matched in passes, a sample and those that fit worst are checked. All are in
            ``Fusion.doubts``.
        UserWarning: for a product of sites whose priors differ, without ``prior``.

    Raises:
        UsageError: fewer than two sites, two sites with one name, data of one site twice under
            ``product``, or arguments that contradict each other.
        StructureError: sites of different families, blocks or dimensions, a prior whose
            components differ.
        ParameterError: NaN, infinite or improper parameters, by site and block.
        ArtifactError: a file that cannot be read, or a checkpoint of another fusion.

    Source: claici2020; the choice of the number of components is ours (docs/decisions/0021).

    >>> from posterity.families import DiagonalGaussian, Plate
    >>> def site(*means):
    ...     means = np.array(means)[:, None]
    ...     return Plate(DiagonalGaussian.from_standard(means, np.full(means.shape, 0.01)))
    >>> fused = fuse({"a": site(0.0, 5.0), "b": site(5.1, 9.0), "c": site(9.1, 0.1, 5.2)})
    >>> fused.components
    3
    """
    plan = Plan(rule, divergence, matching, components, prior, absorb, budget, networks, criterion)
    FLAG.check(warn=warn)
    BETWEEN.check(level=level)
    if personal is not False and personal is not None:
        from posterity.fusion.differing import fuse_differing  # most fusions need no models

        others = {"weights": weights, "checkpoint": checkpoint}
        fusion = fuse_differing(posteriors, plan, personal, level, **others)
        warn_of(fusion.doubts if warn else ())
        return fusion
    sites = read_sites(posteriors, plan)
    importance = _weights(sites.names, weights, plan.rule)
    choice = chosen_rule(sites, plan, weights, level)
    problem = _Problem(sites, plan, importance, choice.rule)
    # A symmetric matrix has half as many parameters as entries.
    with _kept(checkpoint, sites, plan) as stages, one_thread(np.sqrt(2 * sites.like.dimension)):
        if sites.networks:
            fusion = problem.networks(progress)
        else:
            fusion = problem.combined(*problem.matched(progress, stages))
        searched = plan.matching in (Matching.EVIDENCE, Matching.HUNGARIAN)
        checked = sites.blocks, fusion.plates, sites.coordinates, level
        found = [*choice.twice, *doubts(*checked, searched=searched)]
    warn_of(found if warn else ())
    ledger = None if fusion.ledger is None else sites.remembered(fusion.ledger)
    return dataclasses.replace(fusion, ledger=ledger, why=choice.why, doubts=tuple(found))


@contextlib.contextmanager
def _kept(path: Any, sites: Sites, plan: Plan) -> Iterator[Stages | None]:
    """Open the checkpoint of a search in passes; yield None without a path or without passes."""
    if path is None:
        yield None
        return
    tables = {p: block for p, block in sites.blocks.items() if isinstance(block, BlockTable)}
    how = plan.matching, plan.divergence, plan.components, plan.absorb, plan.bytes, plan.numbers
    parts = {
        "sites": {p: np.sort(table.keys) for p, table in tables.items()},
        "settings": list(map(repr, how)),
        "prior": plan.prior,
    }
    if not tables:
        of_arguments(path, "fuse", parts).load()  # refuses a file of anything else
        yield None
        return
    with opened(path, "fuse", parts) as file:
        yield Stages(file)


class _Problem(NamedTuple):
    """The sites to fuse, the plan, the weight of each site, and the rule."""

    sites: Sites
    plan: Plan
    importance: Float[Array, " sites"]
    rule: Rule

    def networks(self, progress: ProgressCallback | None) -> Fusion:
        """Fuse networks: match their units layer by layer, in memory."""
        sites, plan, importance, rule = self
        from posterity.fusion.networks.fuse import fuse_networks

        return fuse_networks(sites, plan, importance, rule, progress)

    def matched(
        self, progress: ProgressCallback | None, stages: Stages | None
    ) -> tuple[Alignments, Names]:
        """Return the matching of each plate, and the names of its components if sites name them."""
        sites, plan, importance, _ = self
        side = plan.divergence
        how = plan.matching
        labels = plan.matching_by_site
        aligned = Alignments()
        plates = [block for block in sites.blocks.values() if block.plate]
        likes = [block.like for block in sites.blocks.values()]
        number = without_networks(likes, plan.networks, plan.components)
        if all(map(are_topics, plates)):
            plan.refuse("criterion", of="topics, or without plates")
        counted = [plate for plate in plates if plate.weighted or are_topics(plate)]
        if plan.absorb and not any(plate.priors.exchangeable.any() for plate in counted):
            raise UsageError(
                found="absorb=True for posteriors without mixing weights and a known prior",
                expected="ledgers or prior=, of topics or plates with mixing weights",
            )
        by_name = None
        if labels is None and how in (Matching.EVIDENCE, Matching.IDENTITY):
            by_name = matching_by_name(sites.labels, sites.names, [plate.path for plate in plates])
            labels = by_name
            how = how if by_name is None else Matching.IDENTITY
        elif sites.labels:
            warn_of_names(f"matching={how.value!r} goes by what members say")
        own = None if labels is None else user_labels(labels, plates, number)
        options = number, plan.absorb is not False, own, plan.bytes, progress, stages, plan.numbers
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
        """Combine the matched sites into one posterior by the rule; products have a ledger too."""
        sites, plan, importance, rule = self
        side = plan.divergence
        blocks = sites.blocks
        names = {**sites.coordinates, **names}
        sampling = functools.partial(scales_of, blocks, aligned, side)
        if rule is Rule.BARYCENTER:
            fused = average(sites.like, blocks, aligned, side, importance)
            check_proper(fused, "the fused posterior")
            return Fusion(named(fused, names), None, aligned, rule, side, sampling=sampling)
        room = np.inf if sites.in_memory else plan.bytes // 2
        ledger, rebased = add(sites.like, sites.names, blocks, aligned, sites.prior, room)
        ledger = _kept_apart(ledger, sites, aligned)
        pooled = named(pooled_posterior(ledger, rebased), names)
        return Fusion(pooled, named(ledger, names), aligned, rule, side, rebased, sampling=sampling)


def _weights(names: list[str], weights: Any, rule: Rule | None) -> Float[Array, " sites"]:
    """Return a positive weight, at most one, for each site; products take no weights."""
    if weights is None:
        return np.ones(len(names))
    each = isinstance(weights, Mapping) and set(weights) == set(names)
    positive = each and all(map(POSITIVE.allows, weights.values()))
    UsageError.check(
        (rule is Rule.PRODUCT, "weights with rule='product'", "rule='barycenter'"),
        (not positive, f"weights {weights}", f"a positive weight for each of {list(names)}"),
    )
    importance = np.array([weights[name] for name in names], dtype=float)
    return importance / importance.max()  # sums of large ones would be infinite


def _kept_apart(ledger: Ledger, sites: Sites, alignments: Alignments) -> Ledger:
    """Replace each region's factor in the ledger by the factors of the region's contributors.
    Factors that depended on other sites in their own ledger depend on them here.

    All factors of a region have the region's labels and are relabelled with it, so a single site
    can still be forgotten. Fusing regions gives the same ledger as fusing all sites, if the
    matchings agree. Raise a UsageError if a contributor has the name of another site.
    """
    regions = {name: site for name, site in sites.loaded.items() if len(site.contributors) > 1}
    if not regions and not sites.dependent:
        return ledger
    factors = {name: ledger.factor(name) for name in ledger.sites if name not in regions}
    alone = {name for name in factors if ledger.entries[name].independent} - sites.dependent
    alone.intersection_update(sites.names)  # a sum of sites depends on what its parts do
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
            if entry.independent and ledger.entries[region].independent:
                alone.add(name)
    return Ledger(ledger.prior).extend(factors, independent=alone)
