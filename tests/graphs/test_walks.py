import jax
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.gfvl.walks import positions
from posterity.graphs import Network, cover_times, ring, star
from posterity.graphs.walks import (
    NOWHERE,
    STRIDE,
    MetropolisHastings,
    NonBacktracking,
    WalkState,
)

KEY = jax.random.key(0)
LOLLIPOP = nx.lollipop_graph(4, 3)
MANY = {"hops": 6 * STRIDE, "repetitions": 500, "key": KEY}  # one shape: each new one is compiled


@st.composite
def networks(draw, most=9):
    """A random tree with links besides."""
    size = draw(st.integers(1, most))
    graph = nx.empty_graph(size)
    graph.add_edges_from((k, draw(st.integers(0, k - 1))) for k in range(1, size))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    graph.add_edges_from((a, b) for a, b in draw(st.lists(pairs, max_size=12)) if a != b)
    return Network.from_graph(graph)


WALKS = MetropolisHastings(), NonBacktracking()


def test_a_key_is_the_same_walk_in_every_release():
    network = Network.from_graph(ring(40))
    times = cover_times(network, MetropolisHastings(), repetitions=3, key=KEY)
    assert times.tolist() == [729, 258, 514]


# --- theory -----------------------------------------------------------------------------------


@given(networks())
def test_transitions_are_stochastic_and_reversible(network):
    walk = MetropolisHastings()
    matrix, share = walk.transition_matrix(network), walk.stationary(network)
    flow = share[:, None] * matrix
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-14)
    np.testing.assert_allclose(share.sum(), 1, atol=1e-14)
    np.testing.assert_allclose(flow, flow.T, atol=1e-15)


@given(networks())
def test_transitions_follow_the_rule_of_the_paper(network):
    degree = network.degrees.tolist()
    plain = MetropolisHastings().transition_matrix(network)
    linked = np.zeros_like(plain, bool)
    linked[network.links()] = True
    for k, j in np.ndindex(plain.shape):
        if k != j:
            ratio = degree[k] / degree[j] if linked[k, j] else 0
            picked = linked[k, j] / max(degree[k], 1)
            assert plain[k, j] == pytest.approx(picked * min(1, ratio))


def test_stationary_distributions():
    network = Network.from_graph(star(["hub", "a", "b", "c"]))
    assert network.names[3] == "hub"
    plain, onward = (walk.stationary(network) for walk in WALKS)
    np.testing.assert_allclose(plain, [1 / 4] * 4)
    np.testing.assert_allclose(onward, [1 / 6, 1 / 6, 1 / 6, 1 / 2])


@given(networks().filter(lambda network: network.size > 1))
def test_a_walk_that_never_turns_round_uses_all_links_equally(network):
    source, target = network.links()
    leaf = network.degrees[target] == 1
    follows = (target[:, None] == source) & ((source[:, None] != target) | leaf[:, None])
    matrix = follows / follows.sum(1, keepdims=True)  # chances of the next directed link
    np.testing.assert_allclose(matrix.sum(0), 1)
    share = np.bincount(source, minlength=network.size) / len(source)
    np.testing.assert_allclose(NonBacktracking().stationary(network), share)


# --- what is drawn ----------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [star(6), LOLLIPOP], ids=["star", "lollipop"])
def test_hops_are_as_frequent_as_their_probabilities(graph):
    network = Network.from_graph(graph)
    walk = MetropolisHastings()
    walked = np.asarray(positions(network, walk, **MANY))
    counts = np.zeros((network.size, network.size))
    np.add.at(counts, (walked[:, :-1], walked[:, 1:]), 1)
    matrix = walk.transition_matrix(network)
    visits = counts.sum(1, keepdims=True)
    # Given that a chain stands at a site, where it goes next is a draw independent of the rest.
    errors = np.sqrt(matrix * (1 - matrix) / visits)
    assert (counts[matrix == 0] == 0).all()
    assert (np.abs(counts / visits - matrix) <= 4.5 * errors + 1e-12).all()
    assert errors[matrix > 0].max() < 0.03


@pytest.mark.parametrize("graph", [star(6), LOLLIPOP], ids=["star", "lollipop"])
@pytest.mark.parametrize("walk", WALKS)
def test_tokens_move_along_links_only(graph, walk):
    network = Network.from_graph(graph)
    linked = np.zeros((network.size, network.size), bool)
    linked[network.links()] = True
    walked = np.asarray(positions(network, walk, **MANY))
    here, there = walked[:, :-1], walked[:, 1:]
    stayed = here == there
    assert (linked[here, there] | stayed).all()
    if isinstance(walk, NonBacktracking):
        leaf = np.asarray(network.degrees)[here[:, 1:]] == 1
        assert not stayed.any()
        assert np.array_equal(walked[:, :-2] == walked[:, 2:], leaf)


@pytest.mark.parametrize("degree", [pytest.param(40_000, marks=pytest.mark.slow), 70_000])
def test_neighbours_of_hubs_are_picked_evenly(degree):
    network = Network.from_graph(star(degree + 1))
    bits = np.linspace(0, 2**32 - 1, 1_000_003).astype(np.uint32)
    hub = WalkState(np.zeros(len(bits), np.int32), np.full(len(bits), NOWHERE, np.int32))
    move = jax.jit(lambda hub, bits: MetropolisHastings().move(network, hub, bits))
    picked = move(hub, bits).position
    exact = (np.asarray(bits, np.uint64) * np.uint64(degree)) >> np.uint64(32)
    assert np.array_equal(picked, exact + 1)


# --- how it is used ---------------------------------------------------------------------------


# --- size -------------------------------------------------------------------------------------
