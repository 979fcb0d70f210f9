"""Matching of local components to global ones."""

import enum
from typing import Literal, NamedTuple

import numpy as np

from posterity.arrays.canonical import content_hashes, set_hashes
from posterity.arrays.tree import map_leaves
from posterity.arrays.typing import Float, Int
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import Clustering, assign, polish, refine
from posterity.fusion.components import LocalComponents
from posterity.fusion.criterion import USUAL, DescriptionLength
from posterity.fusion.effects import Effects, differ
from posterity.fusion.geometry import Divergence, Points, moved
from posterity.fusion.search import SearchResult, search

Array = np.ndarray


class Matched(NamedTuple):
    """The global label of each component, the search's result, and each component's row in it."""

    labels: Int[Array, " n"]
    result: SearchResult
    rows: Int[Array, " n"]


class Matching(enum.StrEnum):
    """The ways to match components of different sites, which have no common order. Each can be
    passed to :func:`posterity.fuse` by its name, such as ``"hungarian"``.

    >>> [str(matching) for matching in Matching]
    ['evidence', 'hungarian', 'kl-fusion', 'identity']
    """

    EVIDENCE = "evidence"
    """The clustering with the shortest description, which chooses the number of components."""
    HUNGARIAN = "hungarian"
    """One permutation per site: all sites have the same components (homogeneous)."""
    KL_FUSION = "kl-fusion"
    """The relaxed problem (9) of claici2020 in the paper's setting, regularisation 0.1."""
    IDENTITY = "identity"
    """No matching: component ``k`` of each site is component ``k`` of the others."""


MatchingName = Literal["evidence", "hungarian", "kl-fusion", "identity"]


class Rule(enum.StrEnum):
    """The rules that combine matched posteriors into one. Each can be passed to
    :func:`posterity.fuse` by its name, such as ``"product"``.
    """

    BARYCENTER = "barycenter"
    """The member with the least summed KL to all: about as certain as one site on average."""
    PRODUCT = "product"
    """The prior, counted once, plus each site's contribution: as certain as the pooled data."""


RuleName = Literal["barycenter", "product"]


def match(
    members: ExponentialFamily,
    starts: Int[Array, " bounds"],
    matching: Matching,
    divergence: Divergence,
    components: int | None,
    counts: Float[Array, " n"] | None = None,
    given: Int[Array, " n"] | None = None,
    numbers: DescriptionLength = USUAL,
) -> Matched:
    """Find the global label of each of N components; those of site ``j`` begin at ``starts[j]``.

    The result does not depend on the order of sites or of a site's components, which are ordered by
    their contents and ``counts``. ``Matching.IDENTITY`` takes the labels
    ``given``, and ``Matching.EVIDENCE`` starts from them. ``numbers`` are those of the criterion.
    """
    begun = given is not None
    if given is None:
        check_components(np.diff(starts), matching, components)
        given = np.concatenate([np.arange(size) for size in np.diff(starts)])
    order, bounds = canonical_order(members, starts, counts)
    # The origin is moved to the members' mean: divergences are unchanged, and lose no digits.
    origin = map_leaves(lambda place: place[order].mean(0), members.location())
    points = Points.of(moved(members[order], origin), divergence)
    local = LocalComponents(points, bounds, origin, numbers)
    rows = np.empty(len(order), int)
    rows[order] = np.arange(len(order))
    fixed = matching is Matching.IDENTITY
    if fixed or begun:
        same = Clustering(local, given[order])
        result = SearchResult(same, [same.misfit])
    elif matching is Matching.KL_FUSION:
        from posterity.fusion.kl_fusion import kl_fusion

        result = kl_fusion(local, components)
    elif matching is Matching.HUNGARIAN:
        # Permutations from the first site on, then alternation until nothing changes.
        first = local.points.take(slice(*local.starts[:2]))
        costs = local.points.divergences(first.centroids(first.coordinates))
        start = Clustering(local, assign(costs, local.starts))
        end = polish(refine(start))
        result = SearchResult(end, [start.misfit, end.misfit])
    else:
        result = search(local, components)
        if components is None and differ(result.clustering):
            effects = Effects.of(result.clustering)
            result = SearchResult(Clustering(local, effects.labels), result.trace, effects=effects)
    return Matched(given if fixed else result.clustering.labels[rows], result, rows)


def canonical_order(
    members: ExponentialFamily, starts: Int[Array, " bounds"], counts: Float[Array, " n"] | None
) -> tuple[Int[Array, " n"], Int[Array, " bounds"]]:
    """Return the order of components, and the sites' starts in it: sites by size, then content,
    and components by content. Hashes of contents make the first sites a fair sample of all.
    """
    sizes = np.diff(starts)
    site = np.repeat(np.arange(len(sizes)), sizes)
    natural = members.natural_parameters
    keys = content_hashes(natural if counts is None else np.column_stack([natural, counts]))
    contents = set_hashes(keys, starts[:-1])
    order = np.lexsort((keys, site, contents[site], -sizes[site]))
    return order, np.concatenate([[0], np.sort(sizes)[::-1].cumsum()])


def check_components(
    sizes: Int[Array, " sites"], matching: Matching, components: int | None
) -> None:
    """Raise a UsageError for a number of components that these sites cannot have."""
    fixed = matching in (Matching.HUNGARIAN, Matching.IDENTITY)
    low = int(sizes.max())
    high = int(sizes.max() if fixed else sizes.sum())
    if fixed and sizes.min() != low:
        raise UsageError(
            found=f"sites with {np.unique(sizes).tolist()} components that have seen data",
            expected=f"the same number for matching={matching.value!r}, or matching='evidence'",
        )
    if components is not None and not low <= components <= high:
        raise UsageError(
            found=f"components={components}",
            expected=f"between {low} and {high}: a site's own components stay apart, and no "
            "component is made up; None to have the number found",
        )
