import functools
import time

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.gfvl.theory import link_transition_matrix
from experiments.gfvl.walks import positions
from posterity.graphs import Network, complete, random_regular, ring, star
from posterity.graphs.walks import (
    NOWHERE,
    STRIDE,
    MetropolisHastings,
    NonBacktracking,
    WalkState,
    WeightedMetropolisHastings,
)

KEY = jax.random.key(0)
LOLLIPOP = nx.lollipop_graph(4, 3)
MANY = {"hops": 6 * STRIDE, "repetitions": 500, "key": KEY}  # one shape: each new one is compiled


@st.composite
def weighted_networks(draw, most=9):
    """A random tree with links besides, and a weight a site."""
    size = draw(st.integers(1, most))
    graph = nx.empty_graph(size)
    graph.add_edges_from((k, draw(st.integers(0, k - 1))) for k in range(1, size))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    graph.add_edges_from((a, b) for a, b in draw(st.lists(pairs, max_size=12)) if a != b)
    weights = draw(st.lists(st.floats(1e-2, 1e2), min_size=size, max_size=size))
    return Network.from_graph(graph), weights


def walks_of(network):
    weights = dict(zip(network.names, range(1, network.size + 1), strict=True))
    return MetropolisHastings(), WeightedMetropolisHastings(weights), NonBacktracking()


# --- theory -----------------------------------------------------------------------------------


@given(weighted_networks())
def test_transitions_are_stochastic_and_reversible(drawn):
    network, weights = drawn
    for walk in (MetropolisHastings(), WeightedMetropolisHastings(weights)):
        matrix, share = walk.transition_matrix(network), walk.stationary(network)
        flow = share[:, None] * matrix
        assert (matrix >= 0).all()
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-14)
        np.testing.assert_allclose(share.sum(), 1, atol=1e-14)
        np.testing.assert_allclose(flow, flow.T, atol=1e-15)


@given(weighted_networks())
def test_transitions_follow_the_rule_of_the_paper(drawn):
    network, weights = drawn
    degree = network.degrees.tolist()
    plain = MetropolisHastings().transition_matrix(network)
    weighted = WeightedMetropolisHastings(weights).transition_matrix(network)
    linked = np.zeros_like(plain, bool)
    linked[network.links()] = True
    for k, j in np.ndindex(plain.shape):
        if k != j:
            ratio = degree[k] / degree[j] if linked[k, j] else 0
            picked = linked[k, j] / max(degree[k], 1)
            assert plain[k, j] == pytest.approx(picked * min(1, ratio))
            by_weight = picked * min(1, ratio * weights[j] / weights[k])
            assert weighted[k, j] == pytest.approx(by_weight)


def test_stationary_distributions():
    network = Network.from_graph(star(["hub", "a", "b", "c"]))
    assert network.names[3] == "hub"
    plain, weighted, onward = (walk.stationary(network) for walk in walks_of(network))
    np.testing.assert_allclose(plain, [1 / 4] * 4)
    np.testing.assert_allclose(weighted, [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(onward, [1 / 6, 1 / 6, 1 / 6, 1 / 2])


@given(weighted_networks().filter(lambda drawn: drawn[0].size > 1))
def test_a_walk_that_never_turns_round_uses_all_links_equally(drawn):
    network, _ = drawn
    matrix = link_transition_matrix(network)
    source, target = network.links()
    np.testing.assert_allclose(matrix.sum(0), 1)
    np.testing.assert_allclose(matrix.sum(1), 1)
    for one, other in np.argwhere(matrix):
        assert target[one] == source[other]
        back = target[other] == source[one]
        assert not back or network.degrees[target[one]] == 1
    share = np.bincount(source, minlength=network.size) / len(source)
    np.testing.assert_allclose(NonBacktracking().stationary(network), share)


# --- what is drawn ----------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [star(6), LOLLIPOP], ids=["star", "lollipop"])
@pytest.mark.parametrize("kind", [0, 1])
def test_hops_are_as_frequent_as_their_probabilities(graph, kind):
    network = Network.from_graph(graph)
    walk = walks_of(network)[kind]
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


def test_hops_onward_are_as_frequent_as_their_probabilities():
    network, walk = Network.from_graph(LOLLIPOP), NonBacktracking()
    walked = np.asarray(positions(network, walk, **MANY))
    number = {link: n for n, link in enumerate(zip(*network.links(), strict=True))}
    links = np.vectorize(lambda a, b: number[a, b])(walked[:, :-1], walked[:, 1:])
    counts = np.zeros((len(number), len(number)))
    np.add.at(counts, (links[:, :-1], links[:, 1:]), 1)
    matrix = link_transition_matrix(network)
    visits = counts.sum(1, keepdims=True)
    errors = np.sqrt(matrix * (1 - matrix) / visits)
    assert (counts[matrix == 0] == 0).all()
    assert (np.abs(counts / visits - matrix) <= 4.5 * errors + 1e-12).all()


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_long_walks_visit_in_the_stationary_proportions(kind):
    network = Network.from_graph(LOLLIPOP)
    walk = walks_of(network)[kind]
    last = np.asarray(positions(network, walk, **MANY))[:, -1]
    share = walk.stationary(network)
    frequency = np.bincount(last, minlength=network.size) / len(last)
    assert (np.abs(frequency - share) < 4 * np.sqrt(share * (1 - share) / len(last))).all()


def test_without_a_start_walks_begin_anywhere():
    network = Network.from_graph(star(5))
    first = positions(network, MetropolisHastings(), hops=0, key=KEY, repetitions=10_000)[:, 0]
    frequency = np.bincount(first, minlength=5) / len(first)
    assert (np.abs(frequency - 0.2) < 4 * np.sqrt(0.2 * 0.8 / len(first))).all()


@pytest.mark.parametrize("graph", [star(6), LOLLIPOP], ids=["star", "lollipop"])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_tokens_move_along_links_only(graph, kind):
    network = Network.from_graph(graph)
    walk = walks_of(network)[kind]
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


def test_on_a_regular_graph_the_walk_of_the_paper_never_stays():
    network = Network.from_graph(random_regular(8, 3, seed=0))
    walked = positions(network, MetropolisHastings(), **MANY)
    assert (walked[:, 1:] != walked[:, :-1]).all()


@pytest.mark.parametrize("degree", [pytest.param(40_000, marks=pytest.mark.slow), 70_000])
def test_neighbours_of_hubs_are_picked_evenly(degree):
    network = Network.from_graph(star(degree + 1))
    bits = jnp.asarray(np.linspace(0, 2**32 - 1, 1_000_003), jnp.uint32)
    hub = WalkState(jnp.zeros(len(bits), jnp.int32), jnp.full(len(bits), NOWHERE))
    picked = MetropolisHastings().move(network, hub, bits).position
    exact = (np.asarray(bits, np.uint64) * np.uint64(degree)) >> np.uint64(32)
    assert np.array_equal(picked, exact + 1)


# --- how it is used ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_loop_a_scan_and_a_map_of_steps_agree(kind):
    network = Network.from_graph(LOLLIPOP)
    walk = walks_of(network)[kind]
    keys = jax.random.split(KEY, 20)

    def scanned(start):
        def hop(state, key):
            state = walk.step(network, state, key=key)
            return state, state.position

        return jax.lax.scan(hop, walk.init(network, start), keys)[1]

    looped, state = [], walk.init(network, "2")
    for key in keys:
        before, state = state, walk.step(network, state, key=key)
        assert state.previous == before.position
        looped.append(int(state.position))
    assert looped == scanned(2).tolist()
    assert jax.vmap(scanned)(jnp.arange(3))[2].tolist() == looped


def test_tokens_of_one_step_draw_their_own_bits():
    network = Network.from_graph(complete(10))
    walk = MetropolisHastings()
    state = walk.step(network, walk.init(network, np.zeros((20, 50), np.int32)), key=KEY)
    assert state.position.shape == (20, 50)
    assert len(np.unique(state.position)) == 9


def test_the_number_of_hops_does_not_change_the_walk():
    network = Network.from_graph(LOLLIPOP)
    walk = functools.partial(positions, network, MetropolisHastings(), key=KEY, repetitions=3)
    long = walk(hops=200)
    assert long.dtype == np.int32
    for hops in (0, 63, 129):
        assert np.array_equal(walk(hops=hops), long[:, : hops + 1])


def test_starts():
    network = Network.from_graph(star(["hub", "a", "b"]))
    walk = functools.partial(positions, network, MetropolisHastings(), hops=5, key=KEY)
    assert walk(start="hub").shape == (6,)
    assert walk(start="hub")[0] == 2
    assert walk(start=1, repetitions=4)[:, 0].tolist() == [1] * 4
    assert walk(start=np.array([0, 2]), repetitions=2)[:, 0].tolist() == [0, 2]


def test_a_site_alone_keeps_the_token():
    network = Network.from_graph(complete(1))
    for walk in walks_of(network):
        assert not positions(network, walk, hops=9, key=KEY).any()
        assert walk.stationary(network).tolist() == [1.0]
    assert MetropolisHastings().transition_matrix(network).tolist() == [[1.0]]


# --- weights ----------------------------------------------------------------------------------


def test_weights_by_name_or_in_order_are_the_same():
    network = Network.from_graph(ring(["c", "a", "b"]))
    named = WeightedMetropolisHastings({"b": 2, "c": 6, "a": 4})
    listed = WeightedMetropolisHastings([4, 2, 6])
    np.testing.assert_allclose(named.stationary(network), [1 / 3, 1 / 6, 1 / 2])
    walked = [positions(network, walk, hops=50, key=KEY) for walk in (named, listed)]
    assert np.array_equal(*walked)


@given(st.floats(1e-300, 1e300))
def test_only_ratios_of_weights_matter(scale):
    network = Network.from_graph(star(3))
    walk = WeightedMetropolisHastings(np.array([1.0, 2.0, 4.0]) * scale)
    np.testing.assert_allclose(walk.stationary(network), np.array([1, 2, 4]) / 7)


# --- size -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hundred_thousand_sites_are_walked():
    network = Network.from_graph(ring(100_000))
    begin = time.process_time()
    walk = MetropolisHastings()
    many = np.asarray(positions(network, walk, hops=15 * STRIDE, key=KEY, repetitions=100))
    assert set(np.unique((many[:, 1:] - many[:, :-1]) % 100_000)) <= {1, 99_999}
    assert positions(network, walk, hops=96_000, key=KEY).shape == (96_001,)
    assert time.process_time() - begin < 20  # about one; anything of sites times hops is hours
