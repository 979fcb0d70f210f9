import jax
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.gfvl.walks import STRIDE, cover_times, positions, transitions
from posterity.graphs import Network, ring, star
from posterity.graphs.walks import (
    NOWHERE,
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


def linked(network):
    """Whether sites are linked."""
    names = network.names
    return np.array([[other in network.neighbours_of(name) for other in names] for name in names])


def test_a_key_is_the_same_walk_in_every_release():
    network = Network.from_graph(ring(40))
    times = cover_times(network, MetropolisHastings(), repetitions=3, key=KEY)
    assert times.tolist() == [729, 258, 514]


# --- theory -----------------------------------------------------------------------------------


@given(networks())
def test_transitions_follow_the_rule_of_the_paper(network):
    plain = transitions(network)
    links = linked(network)
    degree = links.sum(1).tolist()
    np.testing.assert_allclose(plain.sum(1), 1, atol=1e-14)
    for k, j in np.ndindex(plain.shape):
        if k != j:
            ratio = degree[k] / degree[j] if links[k, j] else 0
            picked = links[k, j] / max(degree[k], 1)
            assert plain[k, j] == pytest.approx(picked * min(1, ratio))


# --- what is drawn ----------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [star(6), LOLLIPOP], ids=["star", "lollipop"])
def test_hops_are_as_frequent_as_their_probabilities(graph):
    network = Network.from_graph(graph)
    walk = MetropolisHastings()
    walked = np.asarray(positions(network, walk, **MANY))
    counts = np.zeros((network.size, network.size))
    np.add.at(counts, (walked[:, :-1], walked[:, 1:]), 1)
    matrix = transitions(network)
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
    links = linked(network)
    walked = np.asarray(positions(network, walk, **MANY))
    here, there = walked[:, :-1], walked[:, 1:]
    stayed = here == there
    assert (links[here, there] | stayed).all()
    if isinstance(walk, NonBacktracking):
        leaf = links.sum(1)[here[:, 1:]] == 1
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
