"""Which local component is which global one."""

import enum
import hashlib
from typing import Literal

import numpy as np

from posterity.arrays.typing import Int
from posterity.errors import UsageError
from posterity.families import ExponentialFamily, concatenate
from posterity.fusion.clustering import Clustering, Problem, assign, polish, refine
from posterity.fusion.geometry import Divergence, Points, middle, moved
from posterity.fusion.kl_fusion.setting import Setting, kl_fusion
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
    sites: list[ExponentialFamily],
    matching: Matching,
    divergence: Divergence,
    components: int | None,
) -> tuple[list[Int[Array, " k"]], Found]:
    """Global labels of every site's components, and how they were found.

    The outcome does not depend on the order of sites, nor on that of a site's components.
    """
    _check_components(sites, matching, components)
    sites = _translate(sites)
    if matching is Matching.IDENTITY:
        problem = _problem(sites, divergence)
        same = np.concatenate([np.arange(size) for size in np.diff(problem.starts)])
        clustering = Clustering(problem, same)
        return _split(same, problem), Found(clustering, [clustering.misfit])
    order = _canonical_order(sites)
    problem = _problem([sites[j][rows] for j, rows in order], divergence)
    found = _find(problem, matching, components)
    labels: list[Array] = [np.empty(0, int)] * len(sites)
    pieces = _split(found.clustering.labels, problem)
    for (site, rows), piece in zip(order, pieces, strict=True):
        labels[site] = np.empty(len(rows), int)
        labels[site][rows] = piece
    return labels, found


def _find(problem: Problem, matching: Matching, components: int | None) -> Found:
    if matching is Matching.KL_FUSION:
        return kl_fusion(problem, Setting(components=components))
    if matching is Matching.HUNGARIAN:
        return _hungarian(problem)
    return search(problem, components)


def _hungarian(problem: Problem) -> Found:
    """Permutations from the first site on, then alternation until nothing changes."""
    size = problem.largest()
    first = problem.points.take(np.arange(size))
    labels = assign(problem.points.divergences(first.centroids(first.coordinates)), problem.starts)
    start = Clustering(problem, labels)
    end = polish(refine(start))
    return Found(end, [start.misfit, end.misfit] if end.misfit < start.misfit else [end.misfit])


def _problem(sites: list[ExponentialFamily], divergence: Divergence) -> Problem:
    starts = np.cumsum([0, *(site.batch_shape[0] for site in sites)])
    return Problem(Points.of(concatenate(sites), divergence), starts)


def _split(labels: Array, problem: Problem) -> list[Array]:
    return np.split(labels, problem.starts[1:-1])


def _translate(sites: list[ExponentialFamily]) -> list[ExponentialFamily]:
    """Move the origin amid the components: divergences stay, and so do their digits."""
    together = concatenate(sites)
    # In an order of their own, so that that of sites cannot show in the last bit.
    keys = content_keys(together)
    origin = middle(together[np.array(sorted(range(len(keys)), key=keys.__getitem__))])
    return [moved(site, origin) for site in sites]


def _canonical_order(sites: list[ExponentialFamily]) -> list[tuple[int, Array]]:
    """Sites by size, then content; components of each by content."""
    keyed = []
    for index, site in enumerate(sites):
        keys = content_keys(site)
        rows = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=int)
        keyed.append(((-len(rows), *(keys[row] for row in rows)), index, rows))
    keyed.sort(key=lambda item: item[0])
    return [(index, rows) for _, index, rows in keyed]


def content_keys(members: ExponentialFamily) -> list[bytes]:
    """A digest of each member: an order that depends on nothing but contents."""
    vectors = np.ascontiguousarray(members.natural_parameters)
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in vectors]


def _check_components(
    sites: list[ExponentialFamily], matching: Matching, components: int | None
) -> None:
    sizes = [site.batch_shape[0] for site in sites]
    same = len(set(sizes)) == 1
    if matching in (Matching.HUNGARIAN, Matching.IDENTITY) and not same:
        raise UsageError(
            found=f"sites with {sorted(set(sizes))} components that have seen data",
            expected=f"the same number at every site for matching={matching.value!r}",
            fix="Use matching='evidence', which allows sites to have different components.",
        )
    if components is None:
        return
    fixed = matching in (Matching.HUNGARIAN, Matching.IDENTITY)
    low, high = max(sizes), max(sizes) if fixed else sum(sizes)
    if not low <= components <= high:
        raise UsageError(
            found=f"components={components}",
            expected=f"between {low} and {high}: a site's own components stay apart, and no "
            "component is made up",
            fix="Pass components=None to have the number found.",
        )
