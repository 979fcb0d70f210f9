"""Which local component is which global one."""

import enum
from typing import Literal, NamedTuple

import numpy as np

from posterity.arrays.canonical import content_hashes
from posterity.arrays.typing import Float, Int
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import Clustering, LocalComponents, assign, polish, refine
from posterity.fusion.divergences.alternation import alternate
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.geometry import Divergence, Points, moved, of_places, parts
from posterity.fusion.search import Found, search

Array = np.ndarray


class Matched(NamedTuple):
    """The global label of every component, how they were found, and its row in what was found."""

    labels: Int[Array, " n"]
    found: Found
    rows: Int[Array, " n"]


class Matching(enum.StrEnum):
    """How components of different sites are matched."""

    EVIDENCE = "evidence"
    """The clustering with the shortest description; finds the number of components."""
    HUNGARIAN = "hungarian"
    """A permutation a site: all sites have the same components (homogeneous)."""
    KL_FUSION = "kl-fusion"
    """The paper's relaxed problem (9) in the paper's setting, regularisation 0.1."""
    IDENTITY = "identity"
    """Labels already mean the same everywhere."""


MatchingName = Literal["evidence", "hungarian", "kl-fusion", "identity"]


def match(
    members: ExponentialFamily,
    starts: Int[Array, " bounds"],
    matching: Matching,
    divergence: Divergence | Discrepancy,
    components: int | None,
    counts: Float[Array, " n"] | None = None,
    given: Int[Array, " n"] | None = None,
) -> Matched:
    """Find the global label of every component.

    ``members`` (N,) are grouped by site; ``starts`` (J + 1,) has the first of each site, and the
    end. The outcome does not depend on the order of sites, nor on that of a site's components:
    those that are the same, to the last bit, are told apart by their ``counts``. With
    ``Matching.IDENTITY`` labels are those ``given``, or else a component's place in its site.
    """
    if given is None:
        check_components(np.diff(starts), matching, components)
        given = np.concatenate([np.arange(size) for size in np.diff(starts)])
    order, bounds = _canonical_order(members, starts, counts)
    other = divergence if isinstance(divergence, Discrepancy) else None
    side = Divergence.REVERSE if isinstance(divergence, Discrepancy) else divergence
    local = LocalComponents(_centred(members, order, side), bounds)
    rows = np.empty(len(order), int)
    rows[order] = np.arange(len(order))
    if matching is Matching.IDENTITY:
        same = Clustering(local, given[order])
        found = Found(same, [same.misfit])
    else:
        found = _find(local, matching, components)
    if other is not None:
        masses = np.ones(len(order)) if counts is None else counts[order]
        fixed = matching is Matching.IDENTITY
        found = alternate(found, members[order], masses, other, fixed=fixed)
    if matching is Matching.IDENTITY:
        return Matched(given, found, rows)
    return Matched(found.clustering.labels[rows], found, rows)


def _find(local: LocalComponents, matching: Matching, components: int | None) -> Found:
    if matching is Matching.KL_FUSION:
        from posterity.fusion.kl_fusion import Setting, kl_fusion

        return kl_fusion(local, Setting(components=components))
    return _permuted(local) if matching is Matching.HUNGARIAN else search(local, components)


def _permuted(local: LocalComponents) -> Found:
    """Permutations from the first site on, then alternation until nothing changes."""
    first = local.points.take(local.span(0))
    labels = assign(local.points.divergences(first.centroids(first.coordinates)), local.starts)
    start = Clustering(local, labels)
    end = polish(refine(start))
    return Found(end, [start.misfit, end.misfit] if end.misfit < start.misfit else [end.misfit])


def _centred(members: ExponentialFamily, order: Int[Array, " n"], divergence: Divergence) -> Points:
    """In this order, the origin moved amid them: divergences stay, and so do their digits."""
    origin = of_places(lambda place: place[order].mean(0), members.location())
    return Points.of_parts(lambda rows: moved(members[order[rows]], origin), len(order), divergence)


def _canonical_order(
    members: ExponentialFamily, starts: Int[Array, " bounds"], counts: Float[Array, " n"] | None
) -> tuple[Int[Array, " n"], Int[Array, " bounds"]]:
    """Sites by size, then content, with the components of each by content; and their starts.

    Contents are compared by hashes, which also makes the first sites a fair sample of all.
    """
    sizes, keys = np.diff(starts), member_hashes(members)
    site = np.repeat(np.arange(len(sizes)), sizes)
    ties = np.zeros(len(keys)) if counts is None else counts
    whole = keys if counts is None else content_hashes(np.stack([keys.view(float), ties], axis=1))
    contents = np.add.reduceat(scrambled(whole), starts[:-1])
    order = np.lexsort((ties, keys, site, contents[site], -sizes[site]))
    return order, np.concatenate([[0], np.sort(sizes)[::-1].cumsum()])


def member_hashes(members: ExponentialFamily) -> np.ndarray:
    """64 bits (n,) of the contents of each member."""
    some = parts(members.batch_shape[0], members[:1])
    return np.concatenate([content_hashes(members[rows].natural_parameters) for rows in some])


def scrambled(keys: np.ndarray) -> np.ndarray:
    """64 bits of which sums tell sets of keys apart (steele2014's finalizer)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return keys ^ (keys >> np.uint64(31))


def check_components(
    sizes: Int[Array, " sites"], matching: Matching, components: int | None
) -> None:
    """Raise a UsageError for a number of components that these sites cannot have."""
    fixed = matching in (Matching.HUNGARIAN, Matching.IDENTITY)
    low, high = int(sizes.max()), int(sizes.max() if fixed else sizes.sum())
    if fixed and sizes.min() != low:
        raise UsageError(
            found=f"sites with {np.unique(sizes).tolist()} components that have seen data",
            expected=f"the same number at every site for matching={matching.value!r}",
            fix="Use matching='evidence', which allows sites to have different components.",
        )
    if components is not None and not low <= components <= high:
        raise UsageError(
            found=f"components={components}",
            expected=f"between {low} and {high}: a site's own components stay apart, and no "
            "component is made up",
            fix="Pass components=None to have the number found.",
        )
