"""Cover times of walks, in hops.

The site where a token starts is visited at hop 0. In gong2021 slots are counted from one, and
the site of hop ``h`` updates in slot ``h + 1``: a time in slots is the time in hops plus one.
"""

import math
from collections.abc import Sequence

import numpy as np

from posterity.arrays.typing import Int, KeyArray
from posterity.errors import UsageError
from posterity.graphs.topology import Network, Site
from posterity.graphs.walks import STRIDE, Walk, WalkState, begin, bits_of_stride


def cover_times(
    network: Network,
    walk: Walk,
    *,
    repetitions: int,
    key: KeyArray,
    start: Site | None = None,
    limit: int | None = None,
    sites: Sequence[Site] | None = None,
) -> Int[np.ndarray, " repetitions"]:
    """Simulate the number of hops until a token has visited every site, for each repetition.

    ``start`` is the name of a site, its number, or one number per repetition; ``None`` draws it
    uniformly. With ``sites``, count hops until these have been visited: for one site, the time that
    it waits for the token. Memory is one byte per site and repetition. Raises UsageError if a
    repetition takes more than ``limit`` hops, by default a hundred times an upper bound of the mean
    cover time, or if a site is unknown.

    >>> import jax
    >>> from posterity.graphs import MetropolisHastings, complete
    >>> network = Network.from_graph(complete(3))
    >>> walk, key = MetropolisHastings(), jax.random.key(0)
    >>> int(cover_times(network, walk, repetitions=50, key=key).min())
    2
    """
    limit = _default_limit(network, walk) if limit is None else limit
    key, state = begin(network, walk, key, start, repetitions)
    state = WalkState(*map(np.asarray, state))
    hop = 0
    numbers = range(network.size) if sites is None else [network.number(site) for site in sites]
    visited = np.ones((repetitions, network.size), bool)
    visited[:, np.asarray(numbers)] = False
    tokens = np.arange(repetitions)
    times = np.full(repetitions, -1)
    visited[tokens, state.position] = True
    left = (~visited).sum(1)
    times[left == 0] = 0
    while (times < 0).any():
        for drawn in np.asarray(bits_of_stride(key, hop // STRIDE, state)):
            state = walk.move(network, state, drawn)
            hop = hop + 1
            left -= ~visited[tokens, state.position]
            visited[tokens, state.position] = True
            times[(left == 0) & (times < 0)] = hop
        late = int(((times < 0) | (times > limit)).sum()) if hop >= limit else 0
        if late:
            raise UsageError(
                found=f"{late} of {len(times)} repetitions that were not done after {limit} hops",
                expected="all within the limit",
            )
    return times


def _default_limit(network: Network, walk: Walk) -> int:
    """Return a hundred times an upper bound of mean cover times.

    For a reversible walk, hitting times between neighbours are at most one over the flow of
    their link. The degrees along a shortest path add up to at most 3 K, so all hitting times
    are at most ``6 K / min stationary`` (nonaka2010). Cover times are at most that times the
    K-th harmonic number (Matthews; levin2017, chapter 11).
    """
    hitting = 6 * network.size / float(walk.stationary(network).min())
    return math.ceil(100 * hitting * (1 + math.log(network.size)))


def sampled_cover_time(network: Network, walk: Walk, *, repetitions: int, seed: int = 0) -> float:
    """Estimate the mean number of hops until a token has visited every site, from a uniform start.

    Only the order of first visits is sampled; the time until each new site is replaced by its
    expectation. For the visited sites ``S`` a repetition maintains ``(I - P_SS)^-1``, the mean
    numbers of stays at each before a new site (levin2017, chapter 10), and borders it with each
    new site. The cost is that of ``K`` updates of a matrix per repetition, also for slow walks.
    Raises UsageError if the network is too large for a matrix, or the walk is not a Markov chain
    over sites.
    """
    matrix = walk.transition_matrix(network)
    draw = np.random.default_rng(seed)
    size = len(matrix)
    times = []
    for _ in range(repetitions):
        order = [int(draw.integers(size))]
        hops = 0.0
        stays = np.zeros((size, size))
        stays[0, 0] = 1.0 / (1.0 - matrix[order[0], order[0]])
        for count in range(1, size):
            known = stays[:count, :count]
            from_last = stays[count - 1, :count]
            hops += from_last.sum()
            ends = from_last @ matrix[order]
            ends[order] = 0.0
            ends = np.maximum(ends, 0.0)
            new = int(draw.choice(size, p=ends / ends.sum()))
            into = known @ matrix[order, new]
            out = matrix[new, order] @ known
            escape = 1.0 - matrix[new, new] - matrix[new, order] @ into
            if count < size - 1:
                known += np.outer(into, out / escape)
                stays[:count, count], stays[count, :count] = into / escape, out / escape
                stays[count, count] = 1.0 / escape
            order.append(new)
        times.append(hops)
    return float(np.mean(times))
