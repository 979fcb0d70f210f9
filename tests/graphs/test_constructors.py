import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.errors import UsageError
from posterity.graphs import Network, complete, ring, star


def links(graph):
    return {frozenset(link) for link in graph.edges}


@given(st.integers(1, 12))
def test_graphs_by_name_have_the_links_they_are_called_after(size):
    names = [f"{k:0{len(str(size - 1))}}" for k in range(size)]
    expected = {
        star: [(0, k) for k in range(1, size)],
        ring: [(k, (k + 1) % size) for k in range(size) if size > 1],
        complete: itertools.combinations(range(size), 2),
    }
    for build, pairs in expected.items():
        assert list(build(size)) == names
        assert links(build(size)) == {frozenset(names[k] for k in pair) for pair in pairs}
        assert Network.from_graph(build(names)).names == tuple(names)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ring(0),
        lambda: star(-2),
        lambda: complete(["a", "a"]),
        lambda: ring([]),
        lambda: ring("abc"),
        lambda: ring(True),
        lambda: ring(2.5),
    ],
)
def test_arguments_that_make_no_graph_are_refused(build):
    with pytest.raises(UsageError):
        build()
