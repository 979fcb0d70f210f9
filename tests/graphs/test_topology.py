import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.errors import StructureError, UsageError
from posterity.graphs import Network, ring, star
from posterity.graphs.topology import check_sites


@st.composite
def connected_graphs(draw, most=9):
    """A random tree, and random links besides; labels in no order."""
    size = draw(st.integers(2, most))
    labels = draw(st.permutations(range(size)))
    graph = nx.Graph([(labels[k], labels[draw(st.integers(0, k - 1))]) for k in range(1, size)])
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    graph.add_edges_from((a, b) for a, b in draw(st.lists(pairs, max_size=12)) if a != b)
    return graph


@given(connected_graphs(most=15))
def test_a_network_holds_the_links_of_its_graph(graph):
    network = Network.from_graph(graph)
    assert network.names == tuple(sorted(str(node) for node in graph))
    assert network.degrees.tolist() == [graph.degree[int(name)] for name in network.names]
    for node in graph:
        assert network.neighbours_of(str(node)) == tuple(sorted(map(str, graph[node])))


@given(connected_graphs(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_links_does_not_matter(graph, random):
    nodes, links = list(graph), [random.sample(edge, 2) for edge in graph.edges]
    random.shuffle(nodes)
    random.shuffle(links)
    shuffled = nx.Graph()
    shuffled.add_nodes_from(nodes)
    shuffled.add_edges_from(links)
    one, other = Network.from_graph(graph), Network.from_graph(shuffled)
    assert one.names == other.names
    assert np.array_equal(one.offsets, other.offsets)
    assert np.array_equal(one.neighbours, other.neighbours)


def test_arrays_are_int32_and_links_run_both_ways():
    network = Network.from_graph(star(["hub", "b", "a"]))
    assert network.offsets.dtype == network.neighbours.dtype == np.int32
    assert network.size == 3
    source, target = network.links()
    assert {(network.names[s], network.names[t]) for s, t in zip(source, target, strict=True)} == {
        ("a", "hub"),
        ("b", "hub"),
        ("hub", "a"),
        ("hub", "b"),
    }


def test_one_site_alone_is_a_network():
    graph = nx.Graph()
    graph.add_node("only")
    network = Network.from_graph(graph)
    assert network.size == 1
    assert network.degrees.tolist() == [0]
    assert network.neighbours_of("only") == ()


def two_triangles():
    graph = nx.disjoint_union(nx.complete_graph(4), nx.complete_graph(3))
    return nx.relabel_nodes(graph, dict(enumerate("abcdxyz")))


def with_link(graph, *link):
    graph.add_edge(*link)
    return graph


def with_site(graph, name):
    graph.add_node(name)
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.DiGraph([(0, 1)]), "a directed graph.*to_undirected"),
        (nx.MultiGraph([(0, 1), (0, 1)]), r"a multigraph.*networkx.Graph\(graph\)"),
        (nx.Graph(), "without nodes.*Add a node"),
        ({"a": ["b"]}, "a dict.*Build a networkx.Graph"),
        (with_link(ring(4), "2", "2"), "to itself.*'2'.*selfloop_edges"),
        (with_site(ring(4), "far"), "1 of 5 sites without links.*'far'.*leave them out"),
        (two_triangles(), "2 parts.*smallest of 3 of 7 sites.*'x', 'y', 'z'.*Link the parts"),
        (nx.Graph([(1, "1")]), "nodes 1 and '1', both called '1'.*relabel_nodes"),
    ],
)
def test_what_is_not_a_network_says_so(graph, message):
    with pytest.raises(StructureError, match=message):
        Network.from_graph(graph)


def test_long_lists_of_sites_are_shortened():
    graph = nx.disjoint_union(nx.path_graph(30), nx.path_graph(30))
    with pytest.raises(StructureError, match=r"smallest of 30 of 60 sites.* and 25 more"):
        Network.from_graph(graph)


def test_names_on_both_sides_must_be_the_same():
    check_sites("abc", iter("cab"), "nodes for")
    with pytest.raises(StructureError, match=r"no nodes for sites 'd' and .*'b', 'c', which are"):
        check_sites("abc", "ad", "nodes for")
    with pytest.raises(StructureError, match=r"no nodes for sites 'd'; expected"):
        check_sites("abc", "abcd", "nodes for")


def test_sites_are_found_by_name():
    network = Network.from_graph(ring(12))
    assert [network.index(name) for name in network.names] == list(range(12))
    for name in ("12", "", "zebra"):
        with pytest.raises(UsageError, match=f"site '{name}'.*and 7 more"):
            network.index(name)


@pytest.mark.slow
def test_a_hundred_thousand_sites():
    size = 100_000
    ends = np.random.default_rng(0).integers(0, size, (2 * size, 2))
    graph = ring(size)
    nodes = list(graph)
    graph.add_edges_from((nodes[a], nodes[b]) for a, b in ends if a != b)
    begin = time.process_time()
    network = Network.from_graph(graph)
    seconds = time.process_time() - begin
    assert network.size == size
    assert len(network.neighbours) == 2 * graph.number_of_edges()
    assert seconds < 20  # about one; anything quadratic would take hours
