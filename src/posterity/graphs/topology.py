"""Networks: connected graphs over named sites, stored as flat arrays."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from posterity.arrays.tree import Setting, static
from posterity.arrays.typing import ArrayLike, Int, Real
from posterity.errors import StructureError, UsageError
from posterity.families.names import some
from posterity.runtime.jax_loaded import is_jax
from posterity.runtime.lazy import jax, networkx


class Network(Setting):
    """Sites and the links between them: a connected, undirected, simple graph.

    Sites are numbered in the order of their sorted names. The neighbours of site ``k`` are
    ``neighbours[offsets[k]:offsets[k + 1]]``, ascending (compressed sparse rows), so memory
    is linear in the number of links.

    >>> from posterity.graphs import ring
    >>> network = Network.from_graph(ring(["east", "north", "south", "west"]))
    >>> network.size, network.names[0], network.neighbours_of("east")
    (4, 'east', ('north', 'west'))
    """

    names: tuple[str, ...] = static()
    offsets: Int[Real, " K_and_end"]
    neighbours: Int[Real, " links"]

    @classmethod
    def from_graph(cls, graph: Any) -> "Network":
        """Make a network from a networkx graph whose nodes are sites; a node's name is its label as
        ``str``.

        Attributes of nodes and links, such as weights, are not used. A single site without links is
        a network on which a walk stays. Raises StructureError if the graph is empty, directed, a
        multigraph or not connected; if a site is linked to itself; or if two labels have the same
        name.
        """
        names, labels = _named(graph)
        rank = {label: n for n, label in enumerate(labels)}
        ends = np.fromiter((rank[node] for edge in graph.edges() for node in edge), np.int64)
        links = ends.reshape(-1, 2)
        sources, targets = np.concatenate([links, links[:, ::-1]]).T
        counts = np.bincount(sources, minlength=len(names))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        neighbours = targets[np.lexsort((targets, sources))]
        return cls(names, *(own.astype(np.int32) for own in (offsets, neighbours)))

    @property
    def size(self) -> int:
        """The number K of sites."""
        return self.offsets.shape[0] - 1

    def index(self, name: str) -> int:
        """Return the number of the site called ``name``. Raises UsageError if there is none."""
        # Bisection is fast enough for 100,000 names, without a dictionary.
        place = bisect_left(self.names, name)
        if place == len(self.names) or self.names[place] != name:
            raise UsageError(found=f"site {name!r}", expected=f"one of {some(self.names)}")
        return place

    def row(self, site: Int[Real, "*tokens"]) -> tuple[Real, Real]:
        """Return the start and the number of the neighbours of numbered sites; traceable."""
        low = at(self.offsets, site)
        return low, at(self.offsets, site + 1) - low

    def neighbours_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the sites linked to the site called ``name``."""
        place = self.index(name)
        low, high = np.asarray(self.offsets)[place : place + 2]
        return tuple(self.names[j] for j in np.asarray(self.neighbours)[low:high])


def at(array: Real, index: ArrayLike) -> Real:
    """Return entries of an array at indices that are known to be in range; traceable."""
    if not (is_jax(array) or is_jax(index)):
        return array[index]
    return jax.numpy.asarray(array).at[index].get(mode="promise_in_bounds")


def _named(graph: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Return sorted names of sites, and their nodes; raise StructureError for invalid graphs."""
    plain = isinstance(graph, networkx.Graph)
    plain = plain and not (graph.is_directed() or graph.is_multigraph())
    labels = sorted(graph, key=str) if plain else []
    names = tuple(map(str, labels))
    twice = [name for name, other in pairwise(names) if name == other]
    loops = [one for one, _ in networkx.selfloop_edges(graph)] if names else []
    found = ""
    if not names:
        found = f"a {type(graph).__name__}" + " without nodes" * plain
    elif twice:
        found = f"nodes that are both called {twice[0]!r}"
    elif loops:
        found = f"links of a site to itself ({some(loops)})"
    elif not networkx.is_connected(graph):
        parts = list(networkx.connected_components(graph))
        few = sorted(min(parts, key=len), key=str)
        found = f"{len(parts)} parts without a link between them, the smallest of {len(few)} of "
        found += f"{len(names)} sites ({some(few)})"
    if found:
        raise StructureError(
            found=found,
            expected="an undirected, connected networkx.Graph of sites whose names differ",
            fix="Where links run both ways, pass networkx.Graph(graph).",
        )
    return names, labels


def check_sites(nodes: Iterable[str], sites: Iterable[str]) -> None:
    """Raise a StructureError unless the nodes of a graph are the sites."""
    differing = sorted({*nodes} ^ {*sites})
    if differing:
        raise StructureError(
            found=f"{some(differing)}, each a site without a node, or a node without a site",
            expected="a node for each site, by the same name, as networkx.relabel_nodes gives",
        )
