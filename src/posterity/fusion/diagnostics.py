"""Diagnostics of a fusion: warnings about doubtful results, each with advice.

Even with a certain matching the result may be wrong: sites may be in conflict, be uninformative,
have split one component, or differ by more than sampling explains.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.errors import CHOOSE
from posterity.families import Beta, Dirichlet, Gamma, NormalWishart, Wishart
from posterity.families.marginals import Names
from posterity.fusion.alignment import Alignment
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block
from posterity.fusion.components_in_doubt import apart_for_nothing, at_no_site, more
from posterity.fusion.confidence import Confidence
from posterity.fusion.conflict import DIFFER, contradiction
from posterity.fusion.geometry import middle, moved
from posterity.fusion.judged_passes import PassConfidence, examinable
from posterity.fusion.passes import Passes
from posterity.fusion.result import Fusion
from posterity.fusion.scale import Scale, scales_by_number, scales_of
from posterity.fusion.sites import Sites
from posterity.fusion.topics import are_topics

Array = np.ndarray
NOTHING = 0.1  # Nats of a site's posterior from its prior below which the site is uninformative
TIMES = 2.0
"""Ratio of a residual to its expectation above which sites differ, or matches are wrong; for right
matches it is 0.7 to 1.7."""
LESS, BY_CHANCE = 1.5, 3e-5
"""The ratio where nothing had to be matched, and the probability of such an excess by chance, from
which sites differ. Twice the cost is about chi-squared."""
SPREADS = 3.0  # Standard deviations by which a residual must exceed its expectation for a warning
MOST = 2**31  # Largest number of multiplications for the residual of sites with one law each
GLANCE = 1.5
"""Cost, in half nats per direction and match, above which the residual's scale is computed."""


def diagnostics(sites: Sites, fusion: Fusion) -> Iterator[str]:
    """Yield warnings with advice. Of sites that were matched in passes only some are examined
    (:meth:`.PassConfidence.examined`), of which lines have the number; those that say nothing are
    looked for only if there is one block. Topics in passes, and mixing weights, are not checked.
    """
    with np.errstate(all="ignore"):
        whole = {path: b for path, b in sites.blocks.items() if isinstance(b, Block)}
        yield from _say_nothing(whole, len(whole) == len(sites.blocks))
        for path, block in sites.blocks.items():
            alignment = fusion.plates.get(path)

            def scales():
                return fusion.scales

            def apart(pairs: Any) -> Any:
                return np.ones(len(pairs[0]), bool)

            lines: list[str] = []
            note = ""
            holders = None
            if are_topics(block):  # topics are merged as far as this helps prediction
                continue
            if isinstance(block, Block):
                sample = block
                matching = alignment
            else:
                total = len(block.names)
                known = alignment and alignment.confidence
                confidence = known if isinstance(known, PassConfidence) else _of_one_group(block)
                apart = functools.partial(at_no_site, block, alignment)
                if alignment is not None:
                    own = alignment.labels[block.used]
                    holders = np.bincount(own[own >= 0], minlength=alignment.components)
                sample, matching = _of_sites(confidence, alignment, confidence.sample())
                block, alignment = _of_sites(confidence, alignment, confidence.examined())
                own = {path: sample}, {path: matching}, fusion.divergence
                scales = functools.partial(scales_of, *own)
                if len(block.names) < total:
                    note = f". Of {total} sites {len(block.names)} were examined"
                lines += _say_nothing({path: block}, len(sites.blocks) == 1)
            lines += _few_records(block)
            line = contradiction(block, alignment, sites.coordinates)
            if line:
                lines.append(line)
            elif not block.plate:
                with contextlib.suppress(np.linalg.LinAlgError):  # nearly singular precisions
                    lines += _unlike(sample, fusion.divergence, sites.coordinates)
            elif matching is not None and _glance(sample, matching) > GLANCE:
                lines += _residual(scales()[path], sample)
            if alignment is not None and alignment.confidence and alignment.confidence.free:
                only = len(fusion.plates) == 1
                lines += apart_for_nothing(block, alignment, apart, holders, only)
            yield from (line + note for line in lines)


def _of_one_group(table: BlockTable) -> PassConfidence:
    """Return the confidence in that all sites of a table, with one law each, are alike."""
    passes = Passes(table, examinable(table))
    return PassConfidence(passes, passes.as_labelled(None)[0], {}, free=False)


def _of_sites(
    confidence: PassConfidence, alignment: Alignment | None, sites: Int[Array, " some"]
) -> tuple[Block, Alignment]:
    """Return some sites of a table, and their matching, as if they were all."""
    block, clustering, places = confidence.of_sites(sites)
    labels = clustering.labels
    if alignment is not None:
        used = confidence.passes.table.used
        labels = alignment.labels[places if used.all() else np.flatnonzero(used)[places]]
    own = Alignment(
        matching=block.by_site(labels),
        components=len(confidence.result.counts),
        cost=clustering.misfit,
        trace=(),
        confidence=Confidence(clustering, {}, confidence.free),
        rows=block.by_site(np.arange(len(labels))),
    )
    return block, own


# --- uninformative sites --------------------------------------------------------------------------


def _say_nothing(blocks: Mapping[str, Block], every: bool) -> Iterator[str]:
    """Yield lines on sites whose posterior is less sure than their prior in a block, or within a
    tenth of a nat of it in all, if these are ``every`` block.
    """
    names = next((block.names for block in blocks.values()), ())
    nats, lost = np.zeros((2, len(names)))
    for block in blocks.values():
        if not block.priors.exchangeable.all():
            return
        kl, less = _learnt(block)
        nats = nats + kl
        lost = np.fmax(lost, less)
    by_name = np.argsort(np.array(names, str), kind="stable")
    unsure, quiet = (by_name[own[by_name]] for own in (lost > NOTHING, nats < NOTHING))
    if len(unsure):
        yield (
            f"site {names[unsure[0]]!r}{more(len(unsure) - 1)} is less sure than its prior, and "
            "takes away what other sites know. Look whether prior and posterior of its ledger are "
            "exchanged, or prior= is another than its own"
        )
    if every and len(quiet := quiet[~np.isin(quiet, unsure)]):
        yield (
            f"site {names[quiet[0]]!r}{more(len(quiet) - 1)} says nothing: its posterior is "
            f"{nats[quiet[0]]:.2g} nats from its prior. Check its records and its fit, or leave it "
            "out"
        )


def _learnt(block: Block) -> tuple[Float[Array, " sites"], Any]:
    """Return the KL of each site's heaviest component from its prior, in nats; if that is nearly
    zero, the sum over the site's components. And how much less sure it is (:func:`_lost`).
    """
    heaviest = np.lexsort((-block.counts, block.site))[np.cumsum(block.sizes) - block.sizes]
    own = block.members[heaviest]
    prior = block.priors.at(block.site[heaviest])
    nats = own.kl(prior)
    for site in np.flatnonzero(nats < NOTHING).tolist():
        rows = np.flatnonzero(block.site == site)
        nats[site] = block.members[rows].kl(block.priors.at(block.site[rows])).sum()
    return nats, _lost(own, prior)


def _lost(own: Any, prior: Any) -> Any:
    """Return how much less sure laws are than their priors, in nats: the entropy that Gaussians
    gained, or half the log ratio of numbers that no records of a conjugate likelihood reduce; of
    several blocks the most. Zero for families without such a number.
    """
    if own.gaussian:
        return own.entropy() - prior.entropy()
    parts = own.independent_blocks()
    if parts:
        others = prior.independent_blocks()
        return functools.reduce(np.fmax, [_lost(parts[name], others[name]) for name in parts])
    counts = [_counted(law) for law in (prior, own)]
    if counts[0] is None:
        return 0.0
    return np.log(np.divide(*counts)) / 2


def _counted(law: Any) -> Any:
    """Return the number of observations that a law amounts to, up to a factor; None if none."""
    match law:
        case Beta():
            return np.asarray(law.a + law.b)
        case Dirichlet():
            return np.asarray(law.concentration).sum(-1)
        case Gamma():
            return np.asarray(law.shape)
        case Wishart():
            return np.asarray(law.degrees_of_freedom)
    return law.observations()


def _few_records(block: Block) -> Iterator[str]:
    """Yield a line if more than half of the covariances have fewer records than dimensions."""
    members: Any = block.members
    if not isinstance(members, NormalWishart):
        return
    known = bool(block.priors.exchangeable.all())
    before = np.zeros(1)
    if known:
        before = block.priors.at(block.site).observations()
    records = members.observations() - before
    size = members.own_size
    few = int((records[block.used] < size).sum())
    if 2 * few > block.used.sum():
        yield (
            f"{few} of {block.used.sum()} components{block.place} are known from fewer records "
            f"than their {size} dimensions: of so few a full covariance says nothing, and no "
            "number of components is sure. Fit diagonal ones (NormalGamma), or take fewer columns"
        )


# --- residuals ------------------------------------------------------------------------------------


def _glance(block: Block, alignment: Alignment) -> float:
    """Return the cost in half nats per direction and match, less one match per component."""
    labels = alignment.labels
    sizes = np.bincount(labels[labels >= 0])
    spare = int((sizes - 1).sum())
    return 2 * alignment.cost / max(spare * block.members.degrees_of_variation, 1)


def _residual(scale: Scale, block: Block) -> Iterator[str]:
    """Yield a line if matched components differ by more than sampling explains."""
    if scale.expected and scale.residual is not None and (scale.deviations or 0.0) > SPREADS:
        times = scale.residual / scale.expected
        if times > TIMES:
            yield (
                f"matched components{block.place} differ {times:.2g} times as much as sampling "
                f"alone would make them ({scale.residual:.2g} nats a component): {DIFFER}, or "
                "components that are not one were matched. Federate instead, or compare with "
                "components= one more"
            )


def _unlike(block: Block, divergence: Any, names: Names) -> Iterator[str]:
    """Yield a line if sites with one law each differ by more than sampling explains, in one number
    of a Gaussian or in all together.
    """
    members: Any = block.members
    large = (
        members.gaussian and not members.diagonal and members.own_size**3 * len(block.site) > MOST
    )
    if members.network_layers or large:
        return
    members = moved(members, middle(members))
    one = divergence.family(members, divergence.coordinates(members).mean(0, keepdims=True))
    cost = float(divergence.between(one, members).sum())
    alike = Alignment(block.by_site(np.zeros(len(block.site), int)), 1, cost, ())
    scales = [*enumerate(scales_by_number(block))]
    scales.sort(key=lambda pair: -(pair[1].deviations or 0.0))
    numbers = max(len(scales), 1)
    if _glance(block, alike) > GLANCE:
        scales.append((-1, scales_of({"": block}, {"": alike}, divergence)[""]))
    for number, scale in scales:
        if not scale.expected or scale.residual is None or not scale.spread:
            continue
        times = scale.residual / scale.expected
        above = scale.residual - scale.expected
        freedom = 2 * (scale.spread * scale.matched) ** 2
        chance = scipy.special.chdtrc(freedom, freedom + 2 * above * scale.matched)
        if times > LESS and chance * numbers < BY_CHANCE:
            own = names.get(block.path, ())
            what = f" in {own[number] if own else number}" if number >= 0 else ""
            yield (
                f"sites{block.place} differ {times:.2g} times as much{what} as sampling alone "
                f"would make them ({scale.residual:.2g} nats a site): {DIFFER}. Federate instead, "
                f"with parameters of each site's own (personal=True){CHOOSE}"
            )
            return
