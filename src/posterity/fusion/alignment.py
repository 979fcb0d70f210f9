"""Which component of which site is which fused one, for one plate."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from posterity.arrays.canonical import canonical_sums
from posterity.arrays.typing import Bool, Float, Int
from posterity.errors import UsageError
from posterity.fusion.absorb import Absorbing
from posterity.fusion.blocks import Plates
from posterity.fusion.confidence import DOUBTFUL, Confidence
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.geometry import Divergence
from posterity.fusion.matching import Matched, Matching, match, member_hashes

Array = np.ndarray
NO_SCALE = (
    "Gaussian posteriors of two sites have no scale by which to tell components that differ "
    "between the sites from components that they do not share"
)


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The matching of one plate.

    ``matching`` has, by site, the fused component of each local one, -1 where the local one
    held no data; ``cost`` is the summed divergence to the centroids in nats, ``trace`` the
    objective after each accepted change; ``known`` says whether labels were given and not found;
    ``confidence`` is how sure the matching is, of components in an order in which ``rows`` has
    their places, by site. ``into`` has, by site, the local component that
    each one is part of: its own index, but where it was absorbed.
    """

    matching: Mapping[str, Int[Array, " k"]]
    components: int
    cost: float
    trace: tuple[float, ...]
    known: bool = False
    confidence: Confidence | None = dataclasses.field(default=None, repr=False)
    rows: dict[str, Int[Array, " k"]] = dataclasses.field(default_factory=dict, repr=False)
    into: dict[str, Int[Array, " k"]] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def labels(self) -> Int[Array, " n"]:
        """The matching of all sites in a row."""
        return np.concatenate(list(self.matching.values()))

    @property
    def absorbed(self) -> dict[str, tuple[int, ...]]:
        """The local components of each site that were found to be part of another of its own.

        Sites without any are left out.
        """
        found = {
            site: tuple(np.flatnonzero(into != np.arange(len(into))).tolist())
            for site, into in self.into.items()
        }
        return {site: parts for site, parts in found.items() if parts}

    @functools.cached_property
    def margins(self) -> dict[str, Float[Array, " k"]]:
        """By site, the nats that speak for each component's place against the next best one.

        What the description length would rise by if this one component were in another group,
        changing places with its own site's where that holds one, or in a group of its own;
        infinite where it can be nowhere else, NaN where it is matched with nothing or absorbed.
        """
        if self.confidence is None:
            return {site: np.full(len(labels), np.nan) for site, labels in self.matching.items()}
        found = np.append(self.confidence.margins, np.nan)
        return {site: found[rows] for site, rows in self.rows.items()}

    @functools.cached_property
    def components_evidence(self) -> dict[int, float]:
        """By number of components, the nats by which the best matching found is worse.

        Zero for the number found; empty unless the evidence decided it.
        """
        return {} if self.confidence is None else self.confidence.components

    @property
    def identified(self) -> bool:
        """False where nothing can tell sites that differ from sites that share nothing.

        So it is for Gaussian posteriors, which carry no scale, at two sites whose matched
        components differ by more than they are uncertain.
        """
        return self.confidence is None or self.confidence.identified

    @property
    def left(self) -> float:
        """Nats by which the description would be shorter if one component were elsewhere.

        Zero where none should be, and infinite where that is not known.
        """
        if self.known:
            return 0.0
        if self.confidence is None:
            return np.inf
        return max(0.0, -float(self.confidence.margins.min(initial=0.0)))

    def doubtful(self) -> list[tuple[str, int, float]]:
        """Site, local component and margin of each match below 3 nats, the least sure first."""
        rows = [
            (site, int(k), float(own[k]))
            for site, own in self.margins.items()
            for k in np.flatnonzero(own < DOUBTFUL)
        ]
        return sorted(rows, key=lambda row: row[2])

    def doubts(self) -> list[str]:
        """In words, what the matching hangs on by less than 3 nats; nothing if it was given."""
        if self.known:
            return []
        if self.confidence is None:
            return ["how sure the matches are was not looked for"]
        said = [] if self.identified else [NO_SCALE]
        other = self.confidence.runner_up
        if other and other[1] < DOUBTFUL:
            said.append(f"{other[0]} components are only {other[1]:.1f} nats worse")
        if doubtful := self.doubtful():
            (site, component, margin), matched = doubtful[0], (self.labels >= 0).sum()
            said.append(
                f"less than {DOUBTFUL:g} nats better than the next best are {len(doubtful)} of "
                f"{matched} matches, component {component} of {site!r} the least ({margin:.1f})"
            )
        return said


def align(
    plates: Plates,
    matching: Matching,
    divergence: Divergence | Discrepancy,
    components: int | None,
    importance: Float[Array, " sites"],
    absorb: bool = False,
    given: Int[Array, " n"] | None = None,
) -> Alignment:
    """Match the components of all sites' plates, and number them by weight.

    With ``absorb``, a site's components that are one (:mod:`.absorb`) are matched as one. Labels
    that are ``given`` for ``Matching.IDENTITY`` stay as they are.

    Raises:
        UsageError: a site without data, or a number of components that cannot be.
    """
    identity = matching is Matching.IDENTITY
    used = np.ones(len(plates.site), bool) if identity else plates.used
    used = used if given is None else given >= 0
    free = matching is Matching.EVIDENCE and components is None
    parts, left = Absorbing.of(plates), np.flatnonzero(used)
    matched = _match(parts, left, matching, divergence, components, given)
    while absorb and free and (more := parts.more(matched, left)) is not None:
        parts, left = more, np.flatnonzero(used & more.whole)
        matched = _match(parts, left, matching, divergence, components)
    return _aligned(parts, left, matched, used, importance, matching, free)


def _match(
    parts: Absorbing,
    rows: Int[Array, " m"],
    matching: Matching,
    divergence: Divergence | Discrepancy,
    size: Any,
    given: Int[Array, " n"] | None = None,
) -> Matched:
    starts = np.cumsum([0, *_held(parts.plates, rows)])
    known = None if given is None else given[rows]
    return match(parts.members[rows], starts, matching, divergence, size, parts.counts[rows], known)


def _aligned(
    parts: Absorbing,
    left: Int[Array, " m"],
    matched: Matched,
    used: Bool[Array, " n"],
    importance: Float[Array, " sites"],
    matching: Matching,
    free: bool,
) -> Alignment:
    plates, found = parts.plates, matched.found
    labels, rows = np.full(len(used), -1), np.full(len(used), -1)
    labels[left], rows[left] = matched.labels, matched.rows
    labels[used] = labels[parts.into[used]]
    if matching is not Matching.IDENTITY:
        labels[used] = _by_weight(plates, used, labels[used], importance)
    return Alignment(
        matching=plates.by_site(labels),
        components=int(labels.max()) + 1,
        cost=found.clustering.misfit if found.cost is None else found.cost,
        trace=tuple(found.trace),
        known=matching is Matching.IDENTITY,
        confidence=Confidence(found.clustering, found.levels, free and not found.joined),
        rows=plates.by_site(rows),
        into=parts.by_site(),
    )


def _held(plates: Plates, rows: Int[Array, " m"]) -> Int[Array, " sites"]:
    """How many of these components each site has, which is at least one."""
    held = np.bincount(plates.site[rows], minlength=len(plates.names))
    if (held == 0).any():
        empty = [plates.names[index] for index in np.flatnonzero(held == 0)]
        raise UsageError(
            found=f"no component with at least one observation at {empty}{plates.place}",
            expected="at least one component that has seen data at every site",
            fix="Leave the site out, or check its fit.",
        )
    return held


def _by_weight(plates: Plates, used: Array, labels: Array, importance: Array) -> Array:
    """Numbered so that the heaviest component comes first; ties by content."""
    groups = int(labels.max()) + 1
    own = (importance[plates.site] * plates.counts)[used, None]
    weight = canonical_sums(own, labels, groups)[:, 0]
    content = np.zeros(groups, np.uint64)
    if len(np.unique(weight)) < groups:
        # A sum of hashes is one of what a group holds, in whatever order.
        np.add.at(content, labels, member_hashes(plates.members)[used])
    rank = np.empty(groups, dtype=int)
    rank[np.lexsort((content, -weight))] = np.arange(groups)
    return rank[labels]
