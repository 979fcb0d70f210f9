import jax
import networkx as nx
import numpy as np
import pytest

from experiments.gfvl.walks import expected_cover_time, expected_hitting_time
from posterity.graphs import Network, complete, ring, star
from posterity.graphs.times import cover_times, sampled_cover_time
from posterity.graphs.walks import MetropolisHastings

KEY = jax.random.key(0)
WALK = MetropolisHastings()
LOLLIPOP = Network.from_graph(nx.lollipop_graph(4, 3))


def agree(measured, expected):
    """Within four standard errors of a mean that is known to three per cent or better."""
    error = measured.std(ddof=1) / np.sqrt(len(measured))
    assert error < 0.03 * expected
    assert abs(measured.mean() - expected) < 4 * error


# --- theory -----------------------------------------------------------------------------------


def harmonic(n):
    return sum(1 / k for k in range(1, n + 1))


CLOSED = {  # from each site in turn; the hub of a star is its first
    complete: lambda k: [(k - 1) * harmonic(k - 1)] * k,
    ring: lambda k: [k * (k - 1) / 2] * k,  # with n visited, gambler's ruin from a border: n hops
    star: lambda k: [
        (k - 1) * (k * harmonic(k - 1) - 1),
        *[(k - 1) * k * harmonic(k - 2)] * (k - 1),
    ],
}
"""Mean cover times under Metropolis-Hastings, by coupon collectors."""


@pytest.mark.parametrize("build", CLOSED)
@pytest.mark.parametrize("size", [3, 4, 7, 10])
def test_cover_times_over_subsets_are_the_closed_forms(build, size):
    network = Network.from_graph(build(size))
    found = [expected_cover_time(network, WALK, start=name) for name in network.names]
    np.testing.assert_allclose(found, CLOSED[build](size), rtol=1e-10)
    assert expected_cover_time(network, WALK) == pytest.approx(np.mean(found), rel=1e-12)


def test_cover_times_of_the_paper():
    means = [expected_cover_time(Network.from_graph(g(10)), WALK) for g in (complete, ring, star)]
    assert np.round(means, 1).tolist() == [25.5, 45.0, 244.7]


# --- measurement ------------------------------------------------------------------------------


def test_measured_times_on_an_uneven_network_have_the_expected_mean():
    walk = WALK
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


def test_times_in_drawn_order_have_the_expected_mean():
    for build in (complete, ring):  # whose sites are all alike: any order takes as long
        network = Network.from_graph(build(20))
        sampled = sampled_cover_time(network, WALK, repetitions=2)
        assert sampled == pytest.approx(CLOSED[build](20)[0], rel=1e-9)
    times = [sampled_cover_time(LOLLIPOP, WALK, repetitions=1, seed=k) for k in range(500)]
    agree(np.array(times), expected_cover_time(LOLLIPOP, WALK))
