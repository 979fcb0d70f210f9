"""The description length: what it must prefer, whatever its constants."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import posterity
from benchmarks.problems import Shape, draw
from posterity import Beta, Dirichlet, Gamma, NormalWishart, Product, fuse
from posterity.errors import UsageError
from posterity.fusion.agglomeration import agglomerate
from posterity.fusion.clustering import Clustering, polish, refine
from posterity.fusion.components import LocalComponents
from posterity.fusion.criterion import Criterion, DescriptionLength, buffet
from posterity.fusion.effects import differ
from posterity.fusion.geometry import Points
from posterity.fusion.search import drop, search, split
from tests.fusion.made import conjugate_site


def local_components(
    seed: int, sites: int = 8, groups: int = 5, noise: float = 0.1
) -> tuple[LocalComponents, np.ndarray]:
    """Components of several sites, each with most of the groups, and the true labels."""
    rng = np.random.default_rng(seed)
    centres = 5 * rng.normal(size=(groups, 2))
    labels = [rng.choice(groups, groups - 1, replace=False) for _ in range(sites)]
    rows = np.concatenate(labels)
    n = rng.integers(80, 120, len(rows)).astype(float)
    spread = np.stack([np.cov(rng.normal(size=(2, 100))) for _ in rows])
    members = NormalWishart.from_inverse_scale(
        centres[rows] + noise * rng.normal(size=(len(rows), 2)), n, spread * n[:, None, None], n + 2
    )
    return LocalComponents(Points.of(members), np.arange(sites + 1) * (groups - 1)), rows


@pytest.mark.parametrize("seed", range(8))
def test_truth_is_found_and_beats_splitting_and_dropping(seed: int) -> None:
    given, truth = local_components(seed)
    best = Clustering(given, truth)
    found = search(given).clustering
    assert found.objective <= best.objective + 1e-9
    assert {frozenset(np.flatnonzero(found.labels == g)) for g in range(5)} == {
        frozenset(np.flatnonzero(truth == g)) for g in range(5)
    }
    assert split(best).objective > best.objective
    dropped = drop(best)
    assert dropped is not None and dropped.objective > best.objective


@pytest.mark.parametrize("seed", range(8))
def test_refining_and_polishing_never_raise_the_misfit(seed: int) -> None:
    given, truth = local_components(seed, noise=2.0)
    rng = np.random.default_rng(seed)
    start = Clustering(given, np.concatenate([rng.permutation(5)[:4] for _ in range(8)]))
    refined = refine(start)
    assert refined.misfit <= start.misfit
    assert polish(refined).misfit <= refined.misfit
    assert len(truth) == len(refined.labels)


def test_objectives_of_levels_are_those_of_their_clusterings() -> None:
    given, _ = local_components(0, noise=1.0)
    merging = agglomerate(given)
    for groups in range(merging.fewest, len(given.points) + 1):
        level = merging.level(groups)
        assert level is not None and len(level.counts) == groups
        expected = merging.objective[len(given.points) - groups]
        np.testing.assert_allclose(level.objective, expected, rtol=1e-9)


@pytest.mark.parametrize("located", [0, 2])
@pytest.mark.parametrize("expected", [1.0, 40.0])
def test_more_misfit_never_shortens_the_description(located: int, expected: float) -> None:
    counts, surprise = np.array([4.0, 5.0, 2.0]), np.array([30.0, 50.0, 20.0])
    criterion = Criterion(sites=6, total=11, located=located, shaped=5, expected=expected)
    misfits = np.geomspace(0.01, 1e6, 60)
    for shape in (0.0, misfits / 2, misfits):
        lengths = criterion.length_of_sums(
            misfits,
            shape,
            criterion.prices(surprise, surprise / 9, counts, 2.0).sum(),
            3,
        )
        assert (np.diff(lengths) >= -1e-9).all()


def test_the_buffet_is_a_distribution_over_presence() -> None:
    """With one column, the sites that may have it, in all ways, share the Poisson's mass."""
    sites = 6
    harmonic = sum(1 / j for j in range(1, sites + 1))
    ways = np.array(
        [
            np.prod(np.arange(sites, sites - n, -1)) / np.prod(np.arange(1, n + 1))
            for n in range(1, sites + 1)
        ]
    )
    columns = [np.exp(-buffet(np.array([float(n)]), sites)) for n in range(1, sites + 1)]
    # exp(-rate H) rate^K / K! with rate = K / H, and each column's own probability.
    rate = 1 / harmonic
    np.testing.assert_allclose((ways * columns).sum(), np.exp(-1) * rate * harmonic, rtol=1e-9)


HELD = {
    "nine single components of three": [[k % 3] for k in range(9)],
    "two sites, one of three shared": [[0, 1], [1, 2]],
    "four sites with two of three": [[0, 1], [1, 2], [2, 0], [0, 1]],
    "one cluster": [[0]] * 6,
}


def normal_clusters(
    held: list[list[int]], size: int, records: Any, apart: float, seed: int, shift: Any = 0.0
) -> tuple[LocalComponents, list[int]]:
    """Exact posteriors of clusters that are equally far apart, and which cluster each is of, of as
    many records each or of one number for each component in turn.
    """
    rng, rows = np.random.default_rng(seed), [g for own in held for g in own]
    angles = np.arange(3) * 2 * np.pi / 3
    flat = np.stack([np.cos(angles), np.sin(angles)], axis=1) * apart / np.sqrt(3)
    centres = flat @ np.linalg.qr(rng.normal(size=(size, size)))[0][:2]
    counts = np.broadcast_to(records, (len(rows),))
    data = [
        centres[g] + shift * rng.normal(size=size) + rng.normal(size=(n, size))
        for g, n in zip(rows, counts, strict=True)
    ]
    scatter = np.stack([(x - x.mean(0)).T @ (x - x.mean(0)) for x in data])
    members = NormalWishart.from_inverse_scale(
        np.stack([x.mean(0) for x in data]),
        counts + 0.001,
        np.eye(size) * (size + 2) + scatter,
        counts + size + 2.0,
    )
    return LocalComponents(Points.of(members), np.cumsum([0, *map(len, held)])), rows


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
@pytest.mark.parametrize(
    ("size", "records"),
    [(2, 50), (10, 50), (10, 500), (20, 100), pytest.param(50, 1000, marks=pytest.mark.slow)],
)
def test_clusters_four_deviations_apart_are_found_in_any_dimension(
    held: list[list[int]], size: int, records: int
) -> None:
    for seed in range(3):
        local, truth = normal_clusters(held, size, records, 4.0, seed)
        found = search(local).clustering.labels.tolist()
        pairs = set(zip(found, truth, strict=True))
        assert len(pairs) == len(set(found)) == len(set(truth))


@pytest.mark.parametrize("size", [2, 10])
def test_sites_that_differ_a_little_still_share_their_clusters(size: int) -> None:
    local, truth = normal_clusters([[0, 1, 2]] * 6, size, 100, 6.0, 0, shift=0.3)
    found = search(local).clustering.labels.tolist()
    assert len(set(zip(found, truth, strict=True))) == len(set(found)) == 3


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("held", [1, 2])
@pytest.mark.parametrize("sites", [100, 300])
def test_many_sites_that_differ_in_one_direction_share_their_clusters(
    size: int, held: int, sites: int
) -> None:
    """A dispersion of all directions describes each cluster shorter as many slices."""
    shift, own = np.eye(size)[0], [[(k + i) % 3 for i in range(held)] for k in range(sites)]
    local, truth = normal_clusters(own, size, 100, 8.0, 0, shift)
    found = search(local).clustering.labels.tolist()
    assert len(set(zip(found, truth, strict=True))) == len(set(found)) == 3


def test_clusters_on_a_line_stay_apart_where_sites_differ_along_it() -> None:
    """Eight deviations apart, as many as those by which sites differ."""
    rng, rows = np.random.default_rng(0), np.arange(200) % 2
    data = 8.0 * rows[:, None] * [1.0, 0.0] + rng.normal(size=(200, 1)) * [1.0, 0.0]
    members = NormalWishart.from_inverse_scale(
        data + rng.normal(size=(200, 2)) / 10,
        np.full(200, 100.0),
        np.tile(100 * np.eye(2), (200, 1, 1)),
        np.full(200, 104.0),
    )
    found = search(LocalComponents(Points.of(members), np.arange(201))).clustering
    assert len(set(zip(found.labels.tolist(), rows.tolist(), strict=True))) == 2


def test_a_column_that_never_varies_is_no_direction_to_differ_in() -> None:
    """Components are products, one block of which has no location."""
    rng, rows = np.random.default_rng(0), np.array([[k % 3, (k + 1) % 3] for k in range(150)])
    means = np.stack([10.0 * rows.ravel() + rng.normal(size=300), np.full(300, 3.0)], axis=1)
    members = Product(
        z=NormalWishart.from_inverse_scale(
            means, np.full(300, 100.0), np.tile(100 * np.eye(2), (300, 1, 1)), np.full(300, 104.0)
        ),
        rate=Gamma.from_standard(np.full(300, 50.0), np.full(300, 10.0)),
    )
    found = search(LocalComponents(Points.of(members), 2 * np.arange(151))).clustering
    assert len(found.counts) == 3


def test_many_sites_whose_covariances_scatter_share_their_clusters() -> None:
    """Two of fifteen components are described shorter as halves that differ in shape."""
    members = [plate.members for plate in draw(Shape("NormalWishart", 400, 10, 5), 0)]
    natural = np.concatenate([own.natural_parameters for own in members])
    points = Points.of(members[0].with_natural_parameters(natural))
    assert len(search(LocalComponents(points, 10 * np.arange(401))).clustering.counts) == 15


@pytest.mark.parametrize("size", [2, 10])
def test_sites_of_very_unequal_records_share_their_clusters(size: int) -> None:
    held = [[k % 3, (k + 1) % 3] for k in range(10)]
    for few, many in ((20, 50_000), (200, 20_000)):
        local, truth = normal_clusters(held, size, [few, many] * 10, 10.0, 0)
        found = search(local).clustering.labels.tolist()
        assert len(set(zip(found, truth, strict=True))) == len(set(found)) == 3


def test_numbers_of_records_alone_are_no_misfit() -> None:
    """Components that are one but for their numbers of records have no misfit of shape."""
    counts = np.geomspace(20, 50_000, 6)
    members = NormalWishart.from_inverse_scale(
        np.zeros((6, 3)), counts, np.eye(3) * (counts + 5)[:, None, None], counts + 5
    )
    one = Clustering(LocalComponents(Points.of(members), np.arange(7)), np.zeros(6, int)).judged
    assert one.misfit < 0.05 and one.shape < 0.05


def two_sites(seed: int) -> dict[str, Any]:
    """Two of three clusters each, three deviations apart: the evidence of how many is slight."""
    rng = np.random.default_rng([77, seed, 2, 50])
    corners = 3.0 * np.array([[0, 0], [1, 0], [0, 1]])
    held = {"a": corners[:2], "b": corners[1:]}
    base = Dirichlet.from_standard(np.ones(2))
    return {
        name: conjugate_site(name, base, [x + rng.normal(size=(50, 2)) for x in own])
        for name, own in held.items()
    }


@pytest.mark.parametrize("budget", [None, 1])
@pytest.mark.filterwarnings("ignore:a factor for each of 2 sites")
def test_the_numbers_of_the_criterion_are_the_users(budget: int | None) -> None:
    sites = two_sites(0)
    few, many = (
        fuse(sites, criterion=DescriptionLength(new=new), budget=budget, warn=False).components
        for new in (20.0, 0.0)
    )
    assert (few, many) == (2, 3)


def test_how_far_sites_differ_before_effects_match_them_is_the_users() -> None:
    """Components are matched as well as may be, but lie many deviations apart."""
    local, truth = local_components(0, noise=30.0)
    found = Clustering(local, truth)
    assert differ(found)
    never = dataclasses.replace(local, numbers=DescriptionLength(far=1e9))
    assert not differ(Clustering(never, truth))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(DescriptionLength)])
def test_numbers_of_the_criterion_are_checked(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        DescriptionLength(**{name: -1.0})


@pytest.mark.parametrize("components", ["3", [3], (3,), 3.0, 0, True])
def test_a_number_of_components_is_a_whole_number(components: Any) -> None:
    with pytest.raises(UsageError, match="whole number of components"):
        fuse(two_sites(0), components=components)


def test_a_criterion_is_refused_where_nothing_is_chosen_by_it() -> None:
    sites = two_sites(0)
    refused: list[dict[str, Any]] = [{"components": 3}, {"matching": "hungarian"}]
    for options in refused:
        with pytest.raises(UsageError, match="criterion= for"):
            fuse(sites, criterion=DescriptionLength(), **options)
    law = posterity.Gaussian.from_standard(np.zeros(2), np.eye(2))
    with pytest.raises(UsageError, match="criterion= for"):
        fuse([law, law], criterion=DescriptionLength())
    with pytest.raises(UsageError, match="DescriptionLength"):
        fuse(sites, criterion="short")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["shares", "categories"])
def test_a_rare_component_without_a_location_is_matched(kind: str) -> None:
    """Each site's first component has a hundredth of the records of its others."""
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.full(4, 0.5), (3, 6)) * 0.9 + 0.025
    held = np.array([rng.permutation(3)[:2] for _ in range(12)]).ravel()
    records = np.tile([5, 500], 12)

    def law(column: int) -> Any:
        shares = truth[held, column]
        if kind == "shares":
            ones = rng.binomial(records, shares[:, 0])
            return Beta.from_standard(1.0 + ones, 1.0 + records - ones)
        return Dirichlet.from_standard(1.0 + rng.multinomial(records, shares))

    members = Product({f"x{column}": law(column) for column in range(6)})
    found = search(LocalComponents(Points.of(members), 2 * np.arange(13))).clustering
    assert (
        len(set(zip(found.labels.tolist(), held.tolist(), strict=True))) == len(found.counts) == 3
    )


def test_what_groups_cost_is_least_where_their_shapes_are_spread_as_they_are() -> None:
    criterion = Criterion(sites=6, total=12, located=4, shaped=40, expected=3.0)
    counts = np.full((3, 1), 4.0)
    for spread in (0.3, 5.0, 200.0):
        typical = np.full((3, 1), 20 * (spread + 1 / 4))  # half a direction of so much variance
        prices = criterion.prices(0.0, typical, counts, criterion.spreads).sum(0)
        _, best = criterion.shortest(prices)
        assert spread / 1.6 < best < spread * 1.6


def test_partitions_of_single_components_have_probabilities() -> None:
    """Summed over all partitions of four, those of each number of blocks as at its own rate."""
    criterion = Criterion(sites=4, total=4, located=0, shaped=0, expected=1.0)
    blocks = {1: [[4]], 2: [[3, 1]] * 4 + [[2, 2]] * 3, 3: [[2, 1, 1]] * 6, 4: [[1, 1, 1, 1]]}
    for groups, partitions in blocks.items():
        prices = [criterion.prices(0.0, 0.0, np.array(n, float), 0.0).sum() for n in partitions]
        mass = np.exp(-criterion.columns(groups) - np.array(prices)).sum()
        assert 0.1 < mass < 1.0
