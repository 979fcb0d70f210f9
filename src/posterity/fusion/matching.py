"""Which local component is which global one."""

import enum
import hashlib
from itertools import pairwise
from typing import Literal

import numpy as np

from posterity.arrays.typing import Int
from posterity.errors import UsageError
from posterity.families import ExponentialFamily
from posterity.fusion.clustering import Clustering, LocalComponents, assign, polish, refine
from posterity.fusion.geometry import Divergence, Points, moved, of_places
from posterity.fusion.search import Found, search

Array = np.ndarray


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
    divergence: Divergence,
    components: int | None,
) -> tuple[Int[Array, " n"], Found]:
    """The global label of every component, and how they were found.

    ``members`` (N,) are grouped by site; ``starts`` (J + 1,) has the first of each site, and the
    end. The outcome does not depend on the order of sites, nor on that of a site's components.
    """
    _check_components(np.diff(starts), matching, components)
    members = _centred(members)
    if matching is Matching.IDENTITY:
        local = LocalComponents(Points.of(members, divergence), starts)
        same = Clustering(local, np.arange(len(local.points)) - starts[local.site])
        return same.labels, Found(same, [same.misfit])
    order, starts = _canonical_order(members, starts)
    found = _find(
        LocalComponents(Points.of(members[order], divergence), starts), matching, components
    )
    labels = np.empty(len(order), int)
    labels[order] = found.clustering.labels
    return labels, found


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


def _centred(members: ExponentialFamily) -> ExponentialFamily:
    """The origin moved amid the components: divergences stay, and so do their digits."""
    # Sorted, so that the order of sites cannot show in the last bit.
    origin = of_places(lambda place: np.sort(place, axis=0).mean(0), members.location())
    return moved(members, origin)


def _canonical_order(
    members: ExponentialFamily, starts: Int[Array, " bounds"]
) -> tuple[Int[Array, " n"], Int[Array, " bounds"]]:
    """Sites by size, then content, with the components of each by content; and their starts."""
    keys = content_keys(members)
    sites = [sorted(range(*span), key=keys.__getitem__) for span in pairwise(starts.tolist())]
    sites.sort(key=lambda rows: (-len(rows), *(keys[row] for row in rows)))
    return np.concatenate(sites), np.cumsum([0, *map(len, sites)])


def content_keys(members: ExponentialFamily) -> list[bytes]:
    """A digest of each member: an order that depends on nothing but contents."""
    vectors = np.ascontiguousarray(members.natural_parameters)
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in vectors]


def _check_components(
    sizes: Int[Array, " sites"], matching: Matching, components: int | None
) -> None:
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
