"""What is found by computing only what changed, against the same made anew."""

import functools
from itertools import combinations, pairwise

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import DiagonalGaussian, NormalWishart
from posterity.fusion import clustering as of_clustering
from posterity.fusion.agglomeration import agglomerate, ward
from posterity.fusion.clustering import Clustering, assign, judge, packed, sums
from posterity.fusion.components import LocalComponents
from posterity.fusion.geometry import Points
from posterity.fusion.search import drop, search

seeds = st.integers(0, 2**32 - 1)


def local_components(seed: int, sites: int = 5, size: int = 4) -> LocalComponents:
    """Sharp components of some sites on a plane, all of one precision."""
    mean = 3 * np.random.default_rng(seed).normal(size=(sites * size, 2))
    members = DiagonalGaussian.from_standard(mean, np.full(mean.shape, 0.25))
    return LocalComponents(Points.of(members), np.arange(sites + 1) * size)


def clustering(seed: int, groups: int = 6) -> Clustering:
    """Any clustering that keeps a site's components apart."""
    rng, local = np.random.default_rng(seed), local_components(seed)
    labels = [rng.permutation(groups)[:4] for _ in range(local.sites)]
    return Clustering(local, packed(np.concatenate(labels)))


@given(seed=seeds)
def test_paired_divergences_are_entries_of_all(seed: int) -> None:
    points = local_components(seed).points
    centroids, groups = points.centroids(points.coordinates[::-1]), np.arange(20) // 2
    everything = points.divergences(centroids)[np.arange(20), groups]
    own = points.paired_divergences(centroids, groups)
    np.testing.assert_allclose(own, everything, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(seed=seeds, priced=st.booleans())
def test_assignment_is_the_best_of_each_site(seed: int, priced: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, 6)
    starts, costs = np.cumsum([0, *sizes]), rng.integers(0, 9, (sizes.sum(), 5)).astype(float)
    price = 3.5 if priced else np.inf
    labels = assign(costs, starts, price)
    alone = np.full((len(costs), 1), 3.5 if priced else 1e9)
    paid = np.hstack([costs, alone])[np.arange(len(costs)), labels]
    for first, last in pairwise(starts):
        known = labels[first:last][labels[first:last] < 5]
        assert len(set(known.tolist())) == len(known)
        padded = np.hstack([costs[first:last], np.repeat(alone[first:last], last - first, axis=1)])
        best = padded[scipy.optimize.linear_sum_assignment(padded)].sum()
        assert paid[first:last].sum() == best


@given(seed=seeds)
def test_sums_are_those_of_a_loop_dense_or_sparse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, labels = rng.normal(size=(30, 3)), packed(rng.integers(0, 7, 30))
    expected = np.stack([rows[labels == g].sum(0) for g in range(labels.max() + 1)])
    with pytest.MonkeyPatch.context() as patch:
        for small in (0, 2**14):
            patch.setattr(of_clustering, "SMALL", small)
            np.testing.assert_allclose(sums(rows, labels), expected, rtol=1e-12, atol=1e-12)


@given(labels=st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_packed_labels_are_the_same_partition_without_gaps(labels: list[int]) -> None:
    before, after = np.array(labels), packed(np.array(labels))
    used = np.unique(before)
    assert (np.unique(after) == np.arange(len(used))).all()
    assert len({*zip(before.tolist(), after.tolist(), strict=True)}) == len(used)
    assert (np.diff(after[np.argsort(before, kind="stable")]) >= 0).all()


@settings(max_examples=25)
@given(seed=seeds)
def test_only_sites_that_have_a_dissolved_group_change(seed: int) -> None:
    before = clustering(seed)
    fewer = drop(before)
    if fewer is None:
        return
    assert len(fewer.counts) == len(before.counts) - 1
    gone = np.bincount(before.labels, before.rivals().more).argmin()
    site = before.local.site
    rest = ~np.isin(site, site[before.labels == gone])
    moved = before.labels - (before.labels > gone)
    np.testing.assert_array_equal(fewer.labels[rest], moved[rest])
    for own in np.split(fewer.labels, before.local.starts[1:-1]):
        assert len(np.unique(own)) == len(own)


@settings(max_examples=25)
@given(seed=seeds, sites=st.integers(2, 9))
def test_merging_all_nearest_pairs_at_once_is_merging_one_after_the_other(
    seed: int, sites: int
) -> None:
    """Of components of one precision, for which Ward's distances are exact."""
    local = local_components(seed, sites, 3)
    places = local.points.template.with_natural_parameters(local.points.coordinates).location()
    groups = [[row] for row in range(3 * sites)]
    merging = agglomerate(local)
    while len(groups) >= merging.fewest:
        labels = np.empty(3 * sites, int)
        for number, group in enumerate(groups):
            labels[group] = number
        level = merging.level(len(groups))
        anew = Clustering(local, labels)
        assert level is not None
        together = labels[:, None] == labels
        np.testing.assert_array_equal(level.labels[:, None] == level.labels, together)
        assert level.objective == pytest.approx(anew.objective)
        assert merging.objective[3 * sites - len(groups)] == pytest.approx(anew.objective)
        _known_is_found_anew(level)
        rise = np.full((len(groups), len(groups)), np.inf)
        for one, other in combinations(range(len(groups)), 2):
            held = local.site[groups[one] + groups[other]]
            if len(set(held.tolist())) == len(held):
                a, b = len(groups[one]), len(groups[other])
                gap = places[groups[one]].mean(0) - places[groups[other]].mean(0)
                rise[one, other] = a * b / (a + b) * (gap @ gap)
        if not np.isfinite(rise).any():
            break
        one, other = divmod(int(rise.argmin()), len(groups))
        groups[one] += groups.pop(other)
    assert len(groups) == merging.fewest


def _known_is_found_anew(known: Clustering) -> None:
    anew = Clustering(known.local, known.labels)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    close(known.totals, anew.totals)
    close(known.centroids.potential, anew.centroids.potential)
    close(known.centroids.gradient, anew.centroids.gradient)
    close(known.costs(), anew.costs())
    assert (known.nearest == anew.nearest).all()


@settings(max_examples=25)
@given(seed=seeds)
def test_clusterings_that_are_judged_together_are_judged_as_each_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    members = NormalWishart.from_standard(
        4 * rng.normal(size=(20, 2)),
        rng.uniform(5, 50, 20),
        rng.uniform(0.5, 2, (20, 1, 1)) * np.eye(2),
        rng.uniform(8, 60, 20),
    )
    local = LocalComponents(Points.of(members), np.arange(6) * 4)
    labels = [clustering(seed + n, groups).labels for n, groups in enumerate((5, 6, 9))]
    together = [Clustering(local, own) for own in labels]
    judge(together)
    for own in together:
        alone = Clustering(local, own.labels)
        assert own.objective == pytest.approx(alone.objective, rel=1e-12)
        for known, anew in zip(own.judged.evidence, alone.judged.evidence, strict=True):
            np.testing.assert_allclose(known, anew, rtol=1e-9, atol=1e-9)


@given(seed=seeds)
def test_clusterings_are_the_same_whatever_groups_are_called(seed: int) -> None:
    rng, one = np.random.default_rng(seed), clustering(seed)
    names = rng.permutation(len(one.counts))
    assert one.same(Clustering(one.local, names[one.labels]))
    other = clustering(seed + 1)
    pairs = zip(one.labels.tolist(), other.labels.tolist(), strict=True)
    alike = len({*pairs}) == len(one.counts) == len(other.counts)
    assert one.same(other) == alike


@settings(max_examples=25)
@given(seed=seeds, spread=st.sampled_from([1.0, 10.0, 100.0]))
def test_polishing_without_a_look_first_finds_the_same(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(4), 5)
    mean = spread * rng.normal(size=(4, 2))[labels] + 0.5 * rng.normal(size=(20, 2))
    members = DiagonalGaussian.from_standard(mean, rng.uniform(0.2, 0.4, mean.shape))
    local = LocalComponents(Points.of(members), np.arange(6) * 4)
    found = Clustering(local, labels)
    at_once = of_clustering._leave_one_out(found)
    np.testing.assert_array_equal(at_once, of_clustering._leave_one_out(found, far=np.inf))


@settings(max_examples=25)
@given(seed=seeds)
def test_costs_of_groups_follow_what_moves(seed: int) -> None:
    rng, before = np.random.default_rng(seed), clustering(seed)
    labels, site = before.labels.copy(), int(rng.integers(before.local.sites))
    rows = slice(*before.local.starts[[site, site + 1]].tolist())
    labels[rows] = rng.permutation(len(before.counts))[:4]
    assert before.nearest.shape == labels.shape
    _known_is_found_anew(before.relabelled(labels))


@settings(max_examples=10)
@given(seed=seeds)
def test_a_search_is_the_same_where_memory_is_scarce(seed: int) -> None:
    found = [search(local_components(seed, 6, 3)).clustering]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_clustering, "PIECE", 64)
        found.append(search(local_components(seed, 6, 3)).clustering)
    assert (found[0].labels == found[1].labels).all()


@pytest.mark.parametrize("unit", [1e-300, 1.0, 1e306])
def test_costs_of_any_size_have_one_tree(unit: float) -> None:
    costs = unit * np.array([[0, 1, 9, 4], [1, 0, np.inf, 9], [9, np.inf, 0, 2], [4, 9, 2, 0]])
    assert ward(costs).merged.tolist() == [[0, 1], [2, 3]]
