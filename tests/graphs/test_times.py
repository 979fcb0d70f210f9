import jax
import networkx as nx
import numpy as np
import pytest

from experiments.gfvl import theory
from experiments.gfvl.theory import (
    expected_cover_time,
    expected_hitting_time,
    link_transition_matrix,
)
from experiments.gfvl.walks import positions
from posterity.graphs import Network, complete, ring, star, times
from posterity.graphs.times import cover_times, sampled_cover_time
from posterity.graphs.walks import (
    MetropolisHastings,
    NonBacktracking,
    WeightedMetropolisHastings,
)

KEY = jax.random.key(0)
WALK = MetropolisHastings()
WEIGHTED = WeightedMetropolisHastings(range(1, 8))
LOLLIPOP = Network.from_graph(nx.lollipop_graph(4, 3))


def agree(measured, expected):
    """Within four standard errors of a mean that is known to three per cent or better."""
    error = measured.std(ddof=1) / np.sqrt(len(measured))
    assert error < 0.03 * expected
    assert abs(measured.mean() - expected) < 4 * error


# --- theory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [star, ring, complete])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 10])
def test_closed_forms_agree_with_the_programme_over_subsets(build, size):
    network = Network.from_graph(build(size))
    by_start = theory._over_subsets(network, WALK)
    closed = theory._closed_form(network)
    assert closed is not None
    np.testing.assert_allclose(closed, by_start, rtol=1e-10, atol=1e-12)
    assert expected_cover_time(network, WALK) == pytest.approx(by_start.mean(), rel=1e-10)
    last = network.names[-1]
    assert expected_cover_time(network, WALK, start=last) == pytest.approx(by_start[-1], rel=1e-10)


def test_the_hub_of_a_star_may_have_any_name():
    one, other = Network.from_graph(star(list("abcde"))), Network.from_graph(star(list("edcba")))
    assert expected_cover_time(one, WALK, "a") == expected_cover_time(other, WALK, "e")
    assert expected_cover_time(one, WALK, "a") != expected_cover_time(one, WALK, "e")


def test_cover_times_of_the_paper():
    means = [expected_cover_time(Network.from_graph(g(10)), WALK) for g in (complete, ring, star)]
    assert np.round(means, 1).tolist() == [25.5, 45.0, 244.7]


def test_closed_forms_hold_for_large_networks():
    size = 2000
    network = Network.from_graph(ring(size))
    assert expected_cover_time(network, WALK) == size * (size - 1) / 2
    assert expected_cover_time(Network.from_graph(star(size)), WALK, "0000") == pytest.approx(
        (size - 1) * size * np.sum(1 / np.arange(1, size)) - (size - 1)
    )


@pytest.mark.parametrize("size", [1, 2, 10, 25])
def test_first_visit_on_the_complete_graph_takes_the_slots_of_the_paper(size):
    network = Network.from_graph(complete(size))
    slots = expected_hitting_time(network, WALK, network.names[0]) + 1
    assert slots == pytest.approx(1 / size + size - 1)


def test_hitting_times_on_a_ring_are_those_of_a_gambler():
    network = Network.from_graph(ring(9))
    for distance in range(9):
        hops = expected_hitting_time(network, WALK, 0, start=distance)
        assert hops == pytest.approx(distance * (9 - distance))


@pytest.mark.parametrize("walk", [WALK, WEIGHTED])
def test_returns_take_the_inverse_of_the_share(walk):
    """Kac: one hop, and the way back from there, take ``1 / stationary`` on average."""
    matrix = walk.transition_matrix(LOLLIPOP)
    for site, share in enumerate(walk.stationary(LOLLIPOP)):
        back = [expected_hitting_time(LOLLIPOP, walk, site, start) for start in range(7)]
        assert 1 + matrix[site] @ back == pytest.approx(1 / share)


def test_two_sites_are_covered_when_the_other_is_hit():
    network = Network.from_graph(star(2))
    walk = WeightedMetropolisHastings([1, 3])
    for site, other in ("01", "10"):
        hit = expected_hitting_time(network, walk, other, start=site)
        assert expected_cover_time(network, walk, start=site) == pytest.approx(hit)


# --- measurement ------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [star, ring, complete])
def test_measured_cover_times_have_the_expected_mean(build):
    network = Network.from_graph(build(10))
    measured = cover_times(network, WALK, repetitions=2500, key=KEY)
    assert measured.shape == (2500,)
    agree(measured, expected_cover_time(network, WALK))


@pytest.mark.parametrize("walk", [WALK, WEIGHTED])
def test_measured_times_on_an_uneven_network_have_the_expected_mean(walk):
    draw = {"repetitions": 2500, "key": KEY}
    agree(cover_times(LOLLIPOP, walk, **draw), expected_cover_time(LOLLIPOP, walk))
    agree(cover_times(LOLLIPOP, walk, start="6", **draw), expected_cover_time(LOLLIPOP, walk, "6"))
    agree(
        cover_times(LOLLIPOP, walk, sites=["6"], **draw), expected_hitting_time(LOLLIPOP, walk, "6")
    )
    agree(
        cover_times(LOLLIPOP, walk, sites=[6], start="0", **draw),
        expected_hitting_time(LOLLIPOP, walk, 6, "0"),
    )


def test_walks_that_never_turn_round_hit_as_their_links_do():
    """Over directed links: one hop to any neighbour, then the chain until a link ends there."""
    walk, site = NonBacktracking(), 6
    source, target = LOLLIPOP.links()
    matrix, away = link_transition_matrix(LOLLIPOP), target != site
    hops = np.zeros(len(source))
    hops[away] = np.linalg.solve(
        np.eye(away.sum()) - matrix[np.ix_(away, away)], np.ones(away.sum())
    )
    expected = 1 + hops[source == 0].mean()
    agree(cover_times(LOLLIPOP, walk, sites=[site], repetitions=5000, key=KEY, start=0), expected)


def test_a_ring_without_turns_is_covered_in_one_round():
    network = Network.from_graph(ring(40))  # more sites than one word of bits has
    measured = cover_times(network, NonBacktracking(), repetitions=50, key=KEY)
    assert measured.tolist() == [39] * 50


def test_times_are_those_of_the_positions_walked():
    network = Network.from_graph(star(40))
    draw = {"repetitions": 20, "key": KEY}
    cover = cover_times(network, WALK, **draw)
    hit = cover_times(network, WALK, sites=[3], **draw)
    walked = np.asarray(positions(network, WALK, hops=int(cover.max()), **draw))
    for one, covered, met in zip(walked, cover, hit, strict=True):
        assert len(set(one[: covered + 1])) == 40 > len(set(one[:covered]))
        assert np.flatnonzero(one == 3)[0] == met


def test_nothing_to_walk_takes_no_hops():
    alone = Network.from_graph(complete(1))
    assert cover_times(alone, WALK, repetitions=3, key=KEY).tolist() == [0] * 3
    there = cover_times(LOLLIPOP, WALK, sites=["2"], repetitions=3, key=KEY, start="2")
    assert there.tolist() == [0] * 3
    assert expected_hitting_time(LOLLIPOP, WALK, "2", start="2") == 0


def test_measurements_longer_than_a_stretch_go_on(monkeypatch):
    network = Network.from_graph(star(10))
    whole = cover_times(network, WALK, repetitions=20, key=KEY)
    monkeypatch.setattr(times, "STRETCH", 64)
    assert whole.max() > 3 * 64
    assert np.array_equal(cover_times(network, WALK, repetitions=20, key=KEY), whole)


@pytest.mark.slow
def test_double_precision_changes_nothing():
    draw = {"repetitions": 500, "key": KEY}
    whole = cover_times(LOLLIPOP, WEIGHTED, **draw)
    walked = positions(LOLLIPOP, WEIGHTED, hops=64, key=KEY)
    with jax.enable_x64(True):
        assert np.array_equal(cover_times(LOLLIPOP, WEIGHTED, **draw), whole)
        assert np.array_equal(positions(LOLLIPOP, WEIGHTED, hops=64, key=KEY), walked)


def test_a_sparse_network_of_many_sites_is_covered():
    network = Network.from_graph(nx.random_regular_graph(4, 3000, seed=0))
    measured = cover_times(network, WALK, repetitions=4, key=KEY)
    # No walk that moves to uniform neighbours covers in much less than K log K hops.
    assert (measured > 3000 * np.log(3000) * 0.7).all()


def test_times_in_drawn_order_have_the_expected_mean():
    for build in (complete, ring):  # whose sites are all alike: any order takes as long
        network = Network.from_graph(build(20))
        sampled = sampled_cover_time(network, WALK, repetitions=2)
        assert sampled == pytest.approx(expected_cover_time(network, WALK), rel=1e-9)
    for walk in (WALK, WEIGHTED):
        times = [sampled_cover_time(LOLLIPOP, walk, repetitions=1, seed=k) for k in range(500)]
        agree(np.array(times), expected_cover_time(LOLLIPOP, walk))
