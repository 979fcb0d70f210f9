import jax
import networkx as nx
import numpy as np
import pytest

from experiments.gfvl import theory
from experiments.gfvl.theory import (
    expected_cover_time,
    expected_hitting_time,
)
from posterity.graphs import Network, complete, ring, star
from posterity.graphs.times import cover_times, sampled_cover_time
from posterity.graphs.walks import MetropolisHastings, WeightedMetropolisHastings

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


def test_cover_times_of_the_paper():
    means = [expected_cover_time(Network.from_graph(g(10)), WALK) for g in (complete, ring, star)]
    assert np.round(means, 1).tolist() == [25.5, 45.0, 244.7]


# --- measurement ------------------------------------------------------------------------------


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


def test_times_in_drawn_order_have_the_expected_mean():
    for build in (complete, ring):  # whose sites are all alike: any order takes as long
        network = Network.from_graph(build(20))
        sampled = sampled_cover_time(network, WALK, repetitions=2)
        assert sampled == pytest.approx(expected_cover_time(network, WALK), rel=1e-9)
    for walk in (WALK, WEIGHTED):
        times = [sampled_cover_time(LOLLIPOP, walk, repetitions=1, seed=k) for k in range(500)]
        agree(np.array(times), expected_cover_time(LOLLIPOP, walk))
