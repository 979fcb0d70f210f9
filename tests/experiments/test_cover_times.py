import jax
import networkx as nx
import numpy as np
import pytest

from experiments.gfvl.walks import cover_times, expected_cover_time, expected_hitting_time
from posterity.graphs import Network, complete, ring, star
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
    found = [expected_cover_time(network, start=name) for name in network.names]
    np.testing.assert_allclose(found, CLOSED[build](size), rtol=1e-10)
    assert expected_cover_time(network) == pytest.approx(np.mean(found), rel=1e-12)


def test_cover_times_of_the_paper():
    means = [expected_cover_time(Network.from_graph(g(10))) for g in (complete, ring, star)]
    assert np.round(means, 1).tolist() == [25.5, 45.0, 244.7]


# --- measurement ------------------------------------------------------------------------------


def test_measured_times_on_an_uneven_network_have_the_expected_mean():
    walk = WALK
    draw = {"repetitions": 2500, "key": KEY}
    agree(cover_times(LOLLIPOP, walk, **draw), expected_cover_time(LOLLIPOP))
    agree(cover_times(LOLLIPOP, walk, start="6", **draw), expected_cover_time(LOLLIPOP, "6"))
    agree(cover_times(LOLLIPOP, walk, sites=["6"], **draw), expected_hitting_time(LOLLIPOP, "6"))
    agree(
        cover_times(LOLLIPOP, walk, sites=["6"], start="0", **draw),
        expected_hitting_time(LOLLIPOP, "6", "0"),
    )
