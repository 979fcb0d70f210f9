import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.errors import StructureError, UsageError
from posterity.graphs import Network, ring


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
    for node in graph:
        assert network.neighbours_of(str(node)) == tuple(sorted(map(str, graph[node])))


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
        (nx.DiGraph([(0, 1)]), r"a DiGraph.*networkx.Graph\(graph\)"),
        (nx.MultiGraph([(0, 1), (0, 1)]), r"a MultiGraph.*networkx.Graph\(graph\)"),
        (nx.Graph(), "without nodes"),
        ({"a": ["b"]}, "a dict; expected .* networkx.Graph"),
        (with_link(ring(4), "2", "2"), "to itself.*'2'"),
        (with_site(ring(4), "far"), "2 parts.*smallest of 1 of 5 sites.*'far'"),
        (two_triangles(), "2 parts.*smallest of 3 of 7 sites.*'x', 'y', 'z'"),
        (nx.Graph([(1, "1")]), "nodes that are both called '1'"),
    ],
)
def test_what_is_not_a_network_says_so(graph, message):
    with pytest.raises(StructureError, match=message):
        Network.from_graph(graph)


def test_sites_are_found_by_name():
    network = Network.from_graph(ring(12))
    assert [network.index(name) for name in network.names] == list(range(12))
    for name in ("12", "", "zebra"):
        with pytest.raises(UsageError, match=f"site '{name}'.*and 2 more"):
            network.index(name)
