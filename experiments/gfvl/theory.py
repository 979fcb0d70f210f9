"""How long walks take in theory, in hops: closed forms, and exact sums over sets of visited sites.

The site where a token starts is visited at hop 0; a time in the slots of gong2021 is one more.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from posterity.errors import UsageError
from posterity.graphs import MetropolisHastings, Network, Walk

SUBSET_SITES = 16
"""Sites of the largest network whose cover time is found over all subsets of visited sites."""


def expected_hitting_time(network: Network, walk: Walk, site: Any, start: Any = None) -> float:
    """Theory: mean hops until a token first stands at ``site``; a uniform start where ``None``.

    Solves ``h = 1 + P h`` with ``h(site) = 0`` (levin2017, chapter 10). On the complete graph
    with K sites this is ``K - 2 + 1/K``, one hop less than the ``1/K + K - 1`` slots of gong2021.

    Raises:
        UsageError: if there is no such site, the network is too large for a matrix, or the walk
            is not a Markov chain over sites.

    >>> from posterity.graphs import Network, complete
    >>> network = Network.from_graph(complete(10))
    >>> round(expected_hitting_time(network, MetropolisHastings(), "3") + 1, 6)
    9.1
    """
    matrix = walk.transition_matrix(network)
    others = np.arange(network.size) != network.number(site)
    hops = np.zeros(network.size)
    waiting = np.eye(others.sum()) - matrix[np.ix_(others, others)]
    hops[others] = np.linalg.solve(waiting, np.ones(others.sum()))
    return _from_start(network, hops, start)


def expected_cover_time(network: Network, walk: Walk, start: Any = None) -> float:
    """Theory: mean hops until a token has visited every site; a uniform start where ``None``.

    Closed forms for complete graphs, rings and stars under Metropolis-Hastings; else exact
    dynamic programming over the sets of visited sites.

    Raises:
        UsageError: for another network of more than ``SUBSET_SITES`` sites, or if the walk is
            not a Markov chain over sites.

    >>> from posterity.graphs import Network, star
    >>> round(expected_cover_time(Network.from_graph(star(10)), MetropolisHastings()), 1)
    244.7
    """
    hops = _closed_form(network) if isinstance(walk, MetropolisHastings) else None
    return _from_start(network, _over_subsets(network, walk) if hops is None else hops, start)


def _closed_form(network: Network) -> np.ndarray | None:
    """Mean cover times by start under Metropolis-Hastings, where a formula is known."""
    size, degree = network.size, np.diff(np.asarray(network.offsets))
    if (degree == size - 1).all():
        # With n sites left to visit the next hop finds one with probability n / (K - 1).
        return np.full(size, (size - 1) * _harmonic(size - 1))
    if (degree == 2).all():
        # With n visited, an arc is left at one end: gambler's ruin from its border, n hops.
        return np.full(size, size * (size - 1) / 2)
    if degree.sum() == 2 * (size - 1) and degree.max() == size - 1:
        return np.where(degree == 1, *_of_star(size - 1))
    return None


def _of_star(leaves: int) -> tuple[float, float]:
    """Mean cover times of a star under Metropolis-Hastings, from a leaf and from the hub.

    A leaf keeps the token for ``n`` hops on average, n the number of leaves; the hub passes it
    on to any leaf, in one. Collecting all of n coupons takes ``n H_n`` excursions from the hub,
    each one hop out and, but for the last, n hops back. From a leaf, one is already collected,
    and n more hops lead to the hub.
    """
    from_leaf = leaves * _harmonic(leaves - 1) * (leaves + 1)
    from_hub = leaves * _harmonic(leaves) * (leaves + 1) - leaves
    return from_leaf, from_hub


def _harmonic(number: int) -> float:
    return math.fsum(1 / n for n in range(1, number + 1))


def _over_subsets(network: Network, walk: Walk) -> np.ndarray:
    """Mean cover times by start: from the full set of visited sites down to single sites.

    With ``S`` visited, the times from its sites solve
    ``(I - P_SS) x = 1 + sum over w outside S of P_Sw x(S + w, w)``, one small system a set; all
    sets of one size are solved at once.
    """
    matrix = walk.transition_matrix(network)
    size = network.size
    if size > SUBSET_SITES:
        raise UsageError(
            found=f"a network of {size} sites, neither complete nor a ring nor a star, or a walk "
            f"other than MetropolisHastings ({type(walk).__name__})",
            expected=f"at most {SUBSET_SITES} sites, whose {1 << SUBSET_SITES} subsets are solved",
            fix="Measure it with cover_times.",
        )
    hops = np.zeros((1 << size, size))
    sets = np.arange(1 << size)
    counts = (sets[:, None] >> np.arange(size) & 1).sum(1)
    for count in range(size - 1, 0, -1):
        _solve_sets(matrix, sets[counts == count], hops)
    return hops[1 << np.arange(size), np.arange(size)]


def _solve_sets(matrix: np.ndarray, sets: np.ndarray, hops: np.ndarray) -> None:
    """Fill in ``hops`` for ``sets`` of one size, those of larger sets being known."""
    sites = np.arange(len(matrix))
    inside = (sets[:, None] >> sites & 1).astype(bool)
    found = np.where(inside, 0.0, hops[sets[:, None] | 1 << sites, sites])
    known = 1.0 + found @ matrix.T
    members = np.nonzero(inside)[1].reshape(len(sets), -1)
    within = matrix[members[:, :, None], members[:, None, :]]
    right = np.take_along_axis(known, members, 1)[..., None]
    solved = np.linalg.solve(np.eye(members.shape[1]) - within, right)[..., 0]
    hops[sets[:, None], members] = solved


def _from_start(network: Network, hops: np.ndarray, start: Any) -> float:
    return float(hops.mean() if start is None else hops[network.number(start)])


def link_transition_matrix(network: Network) -> np.ndarray:
    """Chances (links, links) that a walk which does not turn back goes on by the column's link.

    Rows and columns are directed links, in the order of ``network.links()``. Each column sums to
    one as well: in the long run all links are used equally often.
    """
    source, target = network.links()
    follows = target[:, None] == source
    leaf = np.diff(np.asarray(network.offsets))[target] == 1
    allowed = follows & ((source[:, None] != target) | leaf[:, None])
    return allowed / allowed.sum(1, keepdims=True)
