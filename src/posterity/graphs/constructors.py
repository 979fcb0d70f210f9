"""Constructors of common networkx graphs over named sites.

In all of them ``sites`` is a list of names, or a number K for the names ``"0"`` to ``"K-1"``,
padded with zeros so that they sort by number. They raise UsageError if there are no names, or they
are not distinct. networkx is imported at the first call only.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posterity.errors import UsageError
from posterity.families.names import some
from posterity.runtime.lazy import networkx

if TYPE_CHECKING:
    Sites = int | Sequence[str]
else:
    Sites = Any  # checked at run time with a readable error


def star(sites: Sites) -> "networkx.Graph":
    """Return a networkx graph in which the first site is the hub, linked to every other.

    >>> sorted(star(["hub", "north", "south"]).edges)
    [('hub', 'north'), ('hub', 'south')]
    """
    return networkx.star_graph(_names(sites))


def ring(sites: Sites) -> "networkx.Graph":
    """Return a networkx graph in which each site is linked to the next, the last to the first.

    >>> sorted(ring(["a", "b", "c", "d"]).edges)
    [('a', 'b'), ('a', 'd'), ('b', 'c'), ('c', 'd')]
    """
    names = _names(sites)  # for one site networkx would make a self-loop
    return networkx.cycle_graph(names) if len(names) > 1 else star(names)


def complete(sites: Sites) -> "networkx.Graph":
    """Return a networkx graph in which every site is linked to every other.

    >>> sorted(complete(3).edges)
    [('0', '1'), ('0', '2'), ('1', '2')]
    """
    return networkx.complete_graph(_names(sites))


def _names(sites: Sites) -> list[str]:
    """Return names of sites, or K names; raise UsageError if there are none or not distinct."""
    if isinstance(sites, int) and not isinstance(sites, bool):
        sites = [f"{k:0{len(str(sites - 1))}}" for k in range(sites)]
    names = [str(name) for name in sites] if isinstance(sites, list | tuple) else []
    if not names or len(set(names)) < len(names):
        raise UsageError(
            found=some(names) if names else repr(sites),
            expected="a positive number of sites, or a list of distinct names",
        )
    return names
