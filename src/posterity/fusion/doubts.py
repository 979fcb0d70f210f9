"""What is doubtful in a fusion: one check, and a sentence for each kind of doubt.

Is each site's posterior, each component's part of it and each number, what the others predict? Each
is compared with the posterior from the others alone (:mod:`.deviations`); a doubt is named if as
large a deviation has less than the chance ``level``, corrected for the number of comparisons. What
is about another matching or number of components is named if the evidence for it is within
:data:`.confidence.AMBIGUOUS` nats.
"""

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from posterity.arrays.typing import Bool, Float, Int
from posterity.families import Beta, Dirichlet, Gamma, NormalWishart, Wishart, stack
from posterity.families.marginals import Names
from posterity.families.normal_wishart import NormalPrecision
from posterity.fusion.absorb import Absorbing
from posterity.fusion.alignment import Alignment
from posterity.fusion.block_table import BlockTable
from posterity.fusion.blocks import Block
from posterity.fusion.clustering import sums
from posterity.fusion.confidence import AMBIGUOUS, Confidence, EffectsConfidence
from posterity.fusion.deviations import Deviations, compared, deviate, in_closed_form, nats
from posterity.fusion.geometry import CACHED, chunks, middle, moved
from posterity.fusion.judged_passes import PassConfidence, examinable
from posterity.fusion.passes import Passes
from posterity.fusion.topics import are_topics

Array = np.ndarray
LEVEL = 1e-3
"""Chance that sites of one truth are doubted, for each kind of doubt: one in a thousand, so that
all kinds together stay well below one in a hundred."""
MOST = 2**22  # Largest number of floats for comparing all components with all groups


class Kind(enum.StrEnum):
    """Kinds of doubts."""

    CONTRADICTION = "contradiction"
    DIFFERENCE = "difference"
    NOTHING = "nothing"
    LESS = "less"
    COPY = "copy"
    FEW = "few"
    STRANGER = "stranger"
    APART = "apart"
    SCATTER = "scatter"
    ONE = "one"
    SPLIT = "split"
    OTHER = "other"
    NUMBER = "number"
    MATCH = "match"
    SCALE = "scale"
    FAR = "far"
    UNJUDGED = "unjudged"

    @property
    def of_matching(self) -> bool:
        """True for doubts about which components are one, rather than about what sites say."""
        return self in (Kind.NUMBER, Kind.MATCH, Kind.SCALE, Kind.FAR, Kind.UNJUDGED)


DIFFER = "let numbers differ between sites (personal=True, or --personal)"
SENTENCES = {
    Kind.CONTRADICTION: (
        "site {site!r} contradicts the others{place}: {about} is {sigmas:.1f} of both their "
        "deviations away ({nats:.0f} nats)",
        "look at its units, labels and records",
    ),
    Kind.DIFFERENCE: (
        "sites{place} differ in {about} {times:.2g} times as much as sampling alone would make "
        "them ({nats:.0f} nats)",
        "look at units and records",
    ),
    Kind.NOTHING: (
        "site {site!r}{more} says nothing: its posterior is {nats:.2g} nats from its prior",
        "check its records and its fit, or leave it out",
    ),
    Kind.LESS: (
        "site {site!r}{more} is less sure than its prior, and takes away what other sites know",
        "look whether prior and posterior of its ledger are exchanged, or the prior that was "
        "passed is another than its own",
    ),
    Kind.COPY: (
        "{what} in both {site!r} and {other!r}{more} counts records twice, if they are the same",
        "leave a copy out",
    ),
    Kind.FEW: (
        "{count} of {matched} components{place} are known from fewer records than their {size} "
        "dimensions: of so few a full covariance says nothing, and no number of components is sure",
        "fit diagonal covariances (NormalGamma), or take fewer columns",
    ),
    Kind.STRANGER: (
        "site {site!r} shares {count} of its {size} components{place}, others {share:.0%} of "
        "theirs",
        "look at its units, the order of its columns, and its records",
    ),
    Kind.APART: (
        "no component{place} was matched: sites share nothing, or differ by more than their "
        "posteriors allow",
        "look at their units, or say how many components there are",
    ),
    Kind.SCATTER: (
        "the records of components that site {site!r} alone has{place} scatter {times:.2g} times "
        "as widely in column {column} as those of the others ({nats:.0f} nats)",
        "look at its units, and for outliers",
    ),
    Kind.ONE: (
        "fused components {component} and {other}{more}{place} may be one: no site has both, and "
        "what is known of them is no contradiction",
        "look at the records of both, or compare with one component fewer",
    ),
    Kind.SPLIT: (
        "fused components {component} and {other}{more}{place} may be one that site {site!r}"
        "{sites} has split: its records are {by}",
        "fit it again with fewer components or more starts, or compare with one component fewer",
    ),
    Kind.OTHER: (
        "what site {site!r} has as fused component {component}{more}{place} is {nats:.1f} nats "
        "likelier to be {other}: what is known from few records lies near whatever is known from "
        "few",
        "look at its records, or compare with a matching in which it is",
    ),
    Kind.NUMBER: (
        "the number of components{place} is uncertain: {other} are {by}",
        "look at the evidence for each number, or say how many there are",
    ),
    Kind.MATCH: (
        "the matching{place} is uncertain: less than {least:g} nats better than the next best are "
        "{count} of {matched} matches, component {component} of {site!r} the least ({margin})",
        "look at the margins of matches",
    ),
    Kind.SCALE: (
        "the matching{place} is uncertain: Gaussian posteriors of two sites have no scale by which "
        "to tell components that differ between the sites from components that they do not share",
        "say how many components there are, or fuse posteriors that count records",
    ),
    Kind.FAR: (
        "the matching{place} is uncertain: sites differ by far more than sampling, so that which "
        "components are one is told only by how much more alike they are than others",
        "look at units, or say how many components there are",
    ),
    Kind.UNJUDGED: (
        "the number of components{place} was not compared with others",
        "match by evidence",
    ),
}
"""What is found and what to do, by kind."""


@dataclasses.dataclass(frozen=True)
class Doubt:
    """A reason not to rely on a fusion.

    Attributes:
        kind: a :class:`Kind`.
        site: the site that it is about most, None if about all.
        component: the component that it is about, None if about none: a fused one, but for
            ``match`` the site's own.
        nats: how much speaks for it: the negative logarithm of the chance of what was seen, or, of
            kinds about the matching, how much worse the alternative is.
        finding: what was found, in words.
        advice: what to do, in words.
    """

    kind: Kind
    site: str | None
    component: int | None
    nats: float
    finding: str
    advice: str

    def __str__(self) -> str:
        return f"{self.finding}: {self.advice}"


def doubt(
    kind: Kind,
    nats: float = 0.0,
    site: str | None = None,
    component: int | None = None,
    advice: str = "",
    **facts: Any,
) -> Doubt:
    """Return a doubt whose sentence has these facts, and the kind's advice or this one."""
    finding, usual = SENTENCES[kind]
    known = {"more": "", "place": "", **facts, "nats": nats, "site": site, "component": component}
    return Doubt(kind, site, component, nats, finding.format(**known), advice or usual)


def more(count: int) -> str:
    """Return how many there are besides one, in words; empty if none."""
    return f" (and {count} more)" if count > 0 else ""


def doubts(
    blocks: Mapping[str, Block | BlockTable],
    plates: Mapping[str, Alignment],
    names: Names,
    level: float = LEVEL,
) -> Iterator[Doubt]:
    """Yield doubts about what sites say. Of sites that were matched in passes some are examined
    (:meth:`.PassConfidence.examined`), whose number is said; those that say nothing are then looked
    for only if there is one block. Topics, and mixing weights, are not checked.
    """
    with np.errstate(all="ignore"):
        whole = {path: block for path, block in blocks.items() if isinstance(block, Block)}
        yield from _say_nothing(whole, len(whole) == len(blocks))
        for path, block in blocks.items():
            if are_topics(block):  # these are merged as far as this helps prediction
                continue
            alignment = plates.get(path)
            if isinstance(block, Block):
                yield from _of_block(Groups(block, alignment), names.get(path, ()), level)
                continue
            known = alignment and alignment.confidence
            confidence = known if isinstance(known, PassConfidence) else _of_one_group(block)
            groups = Groups(*_of_sites(confidence, alignment, confidence.examined()))
            if alignment is not None:
                groups.everywhere = block.site, alignment.labels
            few = groups.block
            note = ""
            if len(few.names) < len(block.names):
                note = f" (of {len(block.names)} sites {len(few.names)} were examined)"
            found = [*_say_nothing({path: few}, len(blocks) == 1)]
            found += _of_block(groups, names.get(path, ()), level)
            yield from (dataclasses.replace(own, finding=own.finding + note) for own in found)


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


def _of_block(groups: "Groups", names: tuple[str, ...], level: float) -> Iterator[Doubt]:
    """Yield doubts about one block."""
    yield from _few_records(groups.block)
    yield from different(groups, names, level)
    if groups.alignment is not None and groups.free:
        yield from _strangers(groups, level)
        yield from _may_be_one(groups, level)
        yield from _may_be_split(groups)
        yield from _likelier_elsewhere(groups)


# --- sites that say nothing -----------------------------------------------------------------------


NOTHING = 0.1
"""Nats between a site's posterior and its prior below which it says nothing: records that change
odds by a tenth are none."""


def _say_nothing(blocks: Mapping[str, Block], every: bool) -> Iterator[Doubt]:
    """Yield doubts about sites whose posterior is less sure than their prior in a block, or the
    same in all, if these are ``every`` block.
    """
    names = next((block.names for block in blocks.values()), ())
    if not all(block.priors.exchangeable.all() for block in blocks.values()):
        return
    learnt = np.zeros(len(names))
    lost = np.zeros(len(names))
    for block in blocks.values():
        heaviest = np.lexsort((-block.counts, block.site))[np.cumsum(block.sizes) - block.sizes]
        learnt = learnt + _learnt(block, heaviest)
        lost = np.fmax(lost, _lost(block.members[heaviest], block.priors.at(block.site[heaviest])))
    by_name = np.argsort(np.array(names, str), kind="stable")
    less = by_name[lost[by_name] > NOTHING]
    if len(less):
        yield doubt(Kind.LESS, float(lost[less[0]]), names[less[0]], more=more(len(less) - 1))
    quiet = by_name[((learnt < NOTHING) & (lost <= NOTHING))[by_name]]
    if every and len(quiet):
        nats = float(learnt[quiet[0]])
        yield doubt(Kind.NOTHING, nats, names[quiet[0]], more=more(len(quiet) - 1))


def _learnt(block: Block, heaviest: Int[Array, " sites"]) -> Float[Array, " sites"]:
    """Return the KL of each site's heaviest component from its prior, in nats; if that is nearly
    zero, the sum over the site's components.
    """
    found = block.members[heaviest].kl(block.priors.at(block.site[heaviest]))
    rows = np.flatnonzero((found < NOTHING)[block.site])
    if not len(rows):
        return found
    site = block.site[rows]
    every = np.bincount(site, block.members[rows].kl(block.priors.at(site)), len(found))
    return np.where(found < NOTHING, every, found)


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
        return np.max([_lost(part, others[name]) for name, part in parts.items()], axis=0)
    before = _counted(prior)
    return np.zeros(own.batch_shape) if before is None else np.log(before / _counted(own)) / 2


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


def _few_records(block: Block) -> Iterator[Doubt]:
    """Yield a doubt if more than half of the covariances have fewer records than dimensions."""
    members: Any = block.members
    if not isinstance(members, NormalWishart):
        return
    before = 0.0
    if block.priors.exchangeable.all():
        before = block.priors.at(block.site).observations()
    few = int((members.observations() - before < members.own_size)[block.used].sum())
    matched = int(block.used.sum())
    if 2 * few > matched:
        facts = {"count": few, "matched": matched, "size": members.own_size}
        yield doubt(Kind.FEW, place=block.place, **facts)


# --- sites that differ ----------------------------------------------------------------------------


class Groups:
    """Matched components (n,) in groups, each to be compared with the others of its group. Natural
    parameters are relative to the origin of the search. ``rows`` are places among all components
    of the block, ``labels`` their groups, ``fused`` their numbers in the fusion.
    """

    def __init__(self, block: Block, alignment: Alignment | None):
        laws = block.members
        self.block = block
        self.alignment = alignment
        self.rows = np.arange(len(block.site))
        if alignment is None or alignment.confidence is None:
            origin = middle(laws)
            self.labels = np.zeros(len(self.rows), int)
            self.natural = moved(laws, origin).natural_parameters
        else:
            clustering = alignment.confidence.clustering
            origin = clustering.local.origin
            self.labels = clustering.labels
            self.natural = clustering.local.judged.coordinates
            places = np.concatenate([*alignment.rows.values()])
            found = np.flatnonzero(places >= 0)
            self.rows = np.empty(len(found), int)
            self.rows[places[found]] = found
        self.site = block.site[self.rows]
        self.fused = self.labels if alignment is None else alignment.labels[self.rows]
        self.sizes = np.bincount(self.labels)
        self.everywhere = self.site, self.fused
        self.law = laws[:1].with_natural_parameters
        self.start = np.zeros((len(self.rows), 1))
        self.records = None
        if block.priors.exchangeable.all():
            starts: Any = stack(block.priors.laws)
            own = block.priors.own[self.site]
            self.start = moved(starts, origin).natural_parameters[own]
            whole = Absorbing.of(block, alignment and alignment.into)
            before = starts.observations()
            if before is not None:
                records = np.asarray(whole.members.observations())  # pyright: ignore
                self.records = records[self.rows] - before[own]
            elif block.weighted:
                self.records = whole.counts[self.rows]
        self.learnt = self.natural - self.start
        self.totals = sums(self.learnt, self.labels)

    @property
    def shared(self) -> Bool[Array, " n"]:
        """Whether several sites have each component's group."""
        labels = self.everywhere[1]
        return (np.bincount(labels[labels >= 0]) > 1)[self.fused]

    def of_both(self, one: int, other: int) -> Int[Array, " some"]:
        """Return the sites that have both of two fused components."""
        site, labels = self.everywhere
        return np.intersect1d(site[labels == one], site[labels == other])

    @property
    def free(self) -> bool:
        """True if the evidence chose the number of components."""
        confidence = self.alignment and self.alignment.confidence
        return bool(confidence and confidence.free)

    def within(self) -> tuple[Int[Array, " m"], Deviations]:
        """Return the components that are not alone in their groups, and the deviations of each from
        what the other members say.
        """
        some = np.flatnonzero((self.sizes > 1)[self.labels])
        parts = [self._within(some[part]) for part in self._chunks(len(some))]
        squares, shares, freedom = zip(*parts, strict=True) if parts else ([], [], [])
        if not parts:
            return some, Deviations(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0))
        return some, Deviations(np.concatenate(squares), np.concatenate(shares), freedom[0])

    def _within(self, some: Int[Array, " m"]) -> Deviations:
        labels = self.labels[some]
        learnt = self.learnt[some]
        theirs = self.totals[labels] - learnt
        start = self.start[some]
        alike = None
        # A prior shifts few records the most: it is left out where records alone determine a law;
        # else each law is compared with that of equally many records of the other's kind.
        if self.records is not None and self.block.members.location() is not None:
            start = 0.0
        elif self.records is not None:
            own = self.records[some]
            ratio = own / (np.bincount(self.labels, self.records)[labels] - own)
            ratio = np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)[:, None]
            alike = self.law(ratio * theirs + start), self.law(learnt / ratio + start)
        return compared(self.law(learnt + start), self.law(theirs + start), alike, len(self.rows))

    def elsewhere(self) -> Float[Array, "n g"]:
        """Return the nats by which each component deviates from the posterior of each group."""
        groups = len(self.sizes)
        found = []
        for part in self._chunks(len(self.rows), groups):
            own = np.repeat(np.arange(part.start, part.stop), groups)
            there = np.tile(self.totals, (part.stop - part.start, 1)) + self.start[own]
            found.append(compared(self.law(self.natural[own]), self.law(there)).worst)
        return np.concatenate(found).reshape(-1, groups)

    def _chunks(self, number: int, times: int = 1) -> list[slice]:
        return chunks(number, 8 * times * self.natural.shape[1], CACHED)


def different(groups: Groups, names: tuple[str, ...], level: float = LEVEL) -> Iterator[Doubt]:
    """Yield a doubt about the site that deviates most from the others, or, if none does by more
    than chance, about all sites if they differ in some number.
    """
    if not in_closed_form(groups.block.members):
        return
    some, found = groups.within()
    if not len(some) or not len(found.freedom):
        return
    block = groups.block
    worst = found.worst - np.log(len(some))
    far = np.flatnonzero(worst > -np.log(level))
    personal = "" if block.plate or not block.members.gaussian else f", or {DIFFER}"
    facts = {"place": block.place}
    if len(far):
        # Two sites are equally far from each other: the first by name is reported.
        site = np.array(block.names)[groups.site[some[far]]]
        at = far[np.lexsort((site, -np.round(found.worst[far], 6)))[0]]
        number = int(found.nats[at].argmax())
        row = some[at]
        facts["sigmas"] = float(deviate(found.nats[at, number]))
        facts["about"] = _number(groups, row, number, names)
        component = int(groups.fused[row]) if block.plate else None
        name = block.names[int(groups.site[row])]
        advice = SENTENCES[Kind.CONTRADICTION][1] + personal
        yield doubt(Kind.CONTRADICTION, float(worst[at]), name, component, advice, **facts)
        return
    squares, freedom = found.summed()
    every = nats(squares, freedom) - np.log(len(freedom))
    number = int(every.argmax())
    if every[number] > -np.log(level):
        facts["times"] = float(squares[number] / freedom[number])
        facts["about"] = _number(groups, some[0], number, names)
        advice = SENTENCES[Kind.DIFFERENCE][1] + personal
        yield doubt(Kind.DIFFERENCE, float(every[number]), advice=advice, **facts)


def _number(groups: Groups, row: int, number: int, names: tuple[str, ...]) -> str:
    """Return in words what a number of a component is; the last one may be all together."""
    for table in groups.block.members[[groups.rows[row]]].tables():
        if number < table.law.mean.size:
            own = names if len(names) == table.law.mean.size else table.names
            return " ".join(filter(None, (table.block, table.quantity, own[number]))) or "its value"
        number -= table.law.mean.size
    return "all numbers together"


# --- components that may be others ----------------------------------------------------------------


def _strangers(groups: Groups, level: float) -> Iterator[Doubt]:
    """Yield a doubt about the site that shares the fewest components, if it would not by chance.

    Given how many of their components the other sites share, the number is beta-binomial, with a
    prior of half a component each way.
    """
    block = groups.block
    shared = groups.shared
    number = np.bincount(groups.site, minlength=len(block.names))
    own = np.bincount(groups.site, shared, len(block.names))
    if len(block.names) > 2 and not shared.any():
        yield doubt(Kind.APART, place=block.place)
        return
    if len(block.names) > 2:
        rest = number.sum() - number
        theirs = own.sum() - own
        chance = scipy.stats.betabinom(number, theirs + 0.5, rest - theirs + 0.5).cdf(own)
        evidence = -np.log(chance) - np.log(len(number))
        at = int(np.lexsort((block.names, -np.round(evidence, 6)))[0])
        if evidence[at] > -np.log(level):
            facts = {"count": int(own[at]), "size": int(number[at]), "place": block.place}
            facts["share"] = theirs[at] / rest[at]
            yield doubt(Kind.STRANGER, float(evidence[at]), block.names[at], **facts)
            return
    yield from _scattered(groups, ~shared, level)


def _scattered(groups: Groups, alone: Bool[Array, " n"], level: float) -> Iterator[Doubt]:
    """Yield a doubt about the site whose ``alone`` components are wider or narrower than those of
    the other sites, by Student's test of the logarithms of the records' variances in each column.
    """
    laws: Any = groups.law(groups.learnt)
    moments = None if laws.gaussian else laws.expected_moments()
    if moments is None or not alone.any():
        return
    spread = moments[1]
    spread = np.diagonal(spread, axis1=1, axis2=2) if spread.ndim > 2 else spread
    known = np.isfinite(spread).all(1) & (spread > 0).all(1)
    logs = np.log(np.where(known[:, None], spread, 1.0))
    found = []
    sites = np.unique(groups.site[alone & known])
    for site in sites.tolist():
        mine = logs[alone & known & (groups.site == site)]
        rest = logs[known & (groups.site != site)]
        freedom = len(mine) + len(rest) - 2
        if not len(rest) or freedom < 1:
            continue
        step = mine.mean(0) - rest.mean(0)
        scatter = len(mine) * mine.var(0) + len(rest) * rest.var(0)
        error = np.sqrt(scatter / freedom * (1 / len(mine) + 1 / len(rest)))
        chance = 2 * scipy.special.stdtr(freedom, -np.abs(step) / error)
        evidence = -np.log(chance * len(sites) * logs.shape[1])
        column = int(evidence.argmax())
        found.append((float(evidence[column]), groups.block.names[site], column, step[column]))
    if found and max(found)[0] > -np.log(level):
        evidence, site, column, step = max(found)
        facts = {"times": np.exp(step / 2), "column": column, "place": groups.block.place}
        yield doubt(Kind.SCATTER, evidence, site, **facts)


def _may_be_one(groups: Groups, level: float) -> Iterator[Doubt]:
    """Yield a doubt about two fused components that no site has both of, and that do not deviate
    from each other by more than chance.
    """
    block = groups.block
    number = len(groups.sizes)
    holds = np.zeros((len(block.names), number), np.float32)
    holds[groups.site, groups.labels] = 1.0
    one, other = np.nonzero(np.triu(holds.T @ holds == 0, 1))
    fits = len(one) * groups.natural.shape[1] <= MOST
    if not len(one) or not fits or not in_closed_form(block.members):
        return
    start = groups.start[:1]
    laws = [groups.law(groups.totals[own] + start) for own in (one, other)]
    proper = np.logical_and(*(np.asarray(law.is_proper()) for law in laws))
    evidence = np.where(proper, compared(*laws).worst, np.inf)
    near = np.flatnonzero(evidence < -np.log(level)).tolist()
    pairs = [(evidence[at], *sorted(_fused(groups, [one[at], other[at]]))) for at in near]
    pairs = sorted(pair for pair in pairs if not len(groups.of_both(*pair[1:])))
    if pairs:
        least, first, second = pairs[0]
        facts = {"other": second, "place": block.place, "more": more(len(pairs) - 1)}
        yield doubt(Kind.ONE, max(float(least), 0.0), component=first, **facts)


def _may_be_split(groups: Groups) -> Iterator[Doubt]:
    """Yield a doubt about two fused components that no site with both distinguishes: the records of
    these sites are nearly as likely under one component. Where labels are known, they must be
    likelier.
    """
    block = groups.block
    parts = Absorbing.of(block, groups.alignment and groups.alignment.into)
    if not block.priors.exchangeable.all() and isinstance(block.members, NormalPrecision):
        parts = dataclasses.replace(parts, empty=True)
    rows = parts.counted(np.sort(groups.rows))
    if not len(rows):
        return
    origin = middle(parts.members[rows])
    one, other = parts.pairs(rows, origin)
    fused = np.full(len(block.site), -1)
    fused[groups.rows] = groups.fused
    each = np.sort(np.stack([fused[one], fused[other]]), axis=0)
    pairs, place = np.unique(each, axis=1, return_inverse=True)
    place = place.ravel()
    if not len(place):
        return
    gain = np.bincount(place, parts.evidence(one, other, origin))
    fitted = np.bincount(place, ~parts.known[one]) > 0
    near = np.flatnonzero(gain > np.where(fitted, -AMBIGUOUS, 0.0))
    # Parts that are far apart at some site are not among the pairs there.
    met = np.bincount(place)
    near = [at for at in near.tolist() if len(groups.of_both(*pairs[:, at])) == met[at]]
    if near:
        best = max(near, key=lambda at: gain[at])
        first, second = pairs[:, best].tolist()
        names = [block.names[site] for site in np.unique(block.site[one[place == best]]).tolist()]
        facts = {"other": second, "place": block.place, "more": more(len(near) - 1)}
        facts["sites"] = more(len(names) - 1)
        facts["by"] = f"only {-gain[best]:.1f} nats likelier of two"
        if gain[best] >= 0:
            facts["by"] = f"{gain[best]:.1f} nats likelier of one"
        yield doubt(Kind.SPLIT, -float(gain[best]), names[0], first, **facts)


def _fused(groups: Groups, labels: list[int]) -> list[int]:
    """Return the numbers of groups in the fusion."""
    return [int(groups.fused[np.argmax(groups.labels == own)]) for own in labels]


def _likelier_elsewhere(groups: Groups) -> Iterator[Doubt]:
    """Yield a doubt about components without a location whose records are likelier, given those of
    another group, than given those of their own: components of few records, which lie far from all
    that is known well, are then matched with each other.
    """
    block = groups.block
    number = len(groups.sizes)
    size = groups.natural.shape[1]
    known = block.priors.exchangeable.all() and block.members.location() is None
    if not known or len(groups.rows) * number * size > MOST:
        return

    def evidence(natural):
        return groups.law(natural).log_normalizer()

    start = groups.start
    there = start[:, None] + groups.totals
    gain = evidence(there + groups.learnt[:, None]) - evidence(there)
    here = start + groups.totals[groups.labels]
    gain -= (evidence(here) - evidence(here - groups.learnt))[:, None]
    holds = np.zeros((len(block.names), number), bool)
    holds[groups.site, groups.labels] = True
    gain = np.where(holds[groups.site] | ~np.isfinite(gain), -np.inf, gain)
    best = gain.max(1)
    far = np.flatnonzero(best > AMBIGUOUS)
    if len(far):
        at = int(far[best[far].argmax()])
        (to,) = _fused(groups, [int(gain[at].argmax())])
        facts = {"other": to, "place": block.place, "more": more(len(far) - 1)}
        site = block.names[int(groups.site[at])]
        yield doubt(Kind.OTHER, float(best[at]), site, int(groups.fused[at]), **facts)


# --- matchings ------------------------------------------------------------------------------------


def sampled(block: Block | BlockTable, alignment: Alignment, level: float = LEVEL) -> bool:
    """Return whether sampling alone tells which components are one: matched ones agree, and each
    deviates by more than chance from all other groups.
    """
    if not isinstance(block, Block) or not in_closed_form(block.members):
        return False
    groups = Groups(block, alignment)
    if not alignment.identified or groups.natural.size * len(groups.sizes) > MOST:
        return False
    with np.errstate(all="ignore"):
        if any(different(groups, (), level)):
            return False
        apart = groups.elsewhere()
        apart[np.arange(len(apart)), groups.labels] = np.inf
        return bool((apart > -np.log(level)).all())


def of_matching(alignment: Alignment, place: str = "") -> Iterator[Doubt]:
    """Yield doubts about what is determined by less than :data:`.confidence.AMBIGUOUS` nats; none
    about a known matching.
    """
    confidence = alignment.confidence
    if alignment.known or confidence is None:
        return
    if not alignment.identified:
        yield doubt(Kind.SCALE, place=place)
    if isinstance(confidence, EffectsConfidence):
        yield doubt(Kind.FAR, place=place)
    if not alignment.judged:
        yield doubt(Kind.UNJUDGED, place=place)
    other = confidence.runner_up
    if other and other[1] < AMBIGUOUS:
        by = f"only {other[1]:.1f} nats worse" if other[1] >= 0 else f"{-other[1]:.1f} nats better"
        yield doubt(Kind.NUMBER, other[1], other=other[0], by=by, place=place)
    unsure = alignment.ambiguous()
    if unsure:
        site, component, margin = unsure[0]
        facts = {"count": len(unsure), "matched": int((alignment.labels >= 0).sum())}
        facts |= {"least": AMBIGUOUS, "margin": round(margin, 1) + 0.0}  # no negative zero
        yield doubt(Kind.MATCH, margin, site, component, place=place, **facts)
