"""Positions of tokens, hop after hop, and how long walks take in theory, in hops.

The site where a token starts is visited at hop 0; a time in the slots of gong2021 is one more.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import COUNT, NATURAL
from posterity.graphs.topology import Network
from posterity.graphs.walks import NOWHERE, Walk, WalkState
from posterity.runtime.programs import program

STRIDE = 64
"""Number of hops for which random bits are drawn at once."""


def positions(
    network: Network,
    walk: Walk,
    *,
    hops: int,
    key: Any,
    start: str | None = None,
    repetitions: int | None = None,
) -> Any:
    """Positions (repetitions, hops + 1) of independent tokens from hop 0 on, as numbers of sites.

    ``start`` is the name of a site; ``None`` draws it uniformly. Without ``repetitions`` a single
    walk is made, and the result has one axis. Walks of the same key agree on the hops that they
    share, whatever ``hops`` is.

    Raises a UsageError if ``hops`` is negative, ``repetitions`` not positive, or ``start`` no site.
    """
    NATURAL.check(hops=hops)
    key, state = begin(network, key, start, 1 if repetitions is None else repetitions)
    walked = _record(Network((), network.offsets, network.neighbours), walk, state, key, hops)
    return walked[0] if repetitions is None else walked


@program
def _record(network: Network, walk: Walk, state: WalkState, key: Any, hops: int) -> Any:
    # Written by strides, hops last: a scan over hops would hold the result twice to transpose it.
    def hop(state: WalkState, bits: Any) -> Any:
        state = walk.move(network, state, bits)
        return state, state.position

    def stride(n: Any, carry: Any, length: int = STRIDE) -> Any:
        state, walked = carry
        state, part = jax.lax.scan(hop, state, bits_of_stride(key, n, state)[:length])
        return state, jax.lax.dynamic_update_slice(walked, part.T, (0, n * STRIDE + 1))

    walked = jnp.zeros((state.position.shape[0], hops + 1), jnp.int32)
    carry = (state, walked.at[:, 0].set(state.position))
    full, rest = divmod(hops, STRIDE)
    carry = jax.lax.fori_loop(0, full, stride, carry) if full else carry
    return (stride(full, carry, rest) if rest else carry)[1]


def expected_hitting_time(network: Network, site: str, start: str | None = None) -> float:
    """Mean hops until a token of the paper's walk first stands at ``site``; a uniform start where
    ``None``.

    Solves ``h = 1 + P h`` with ``h(site) = 0`` (levin2017, chapter 10). On the complete graph
    with K sites this is ``K - 2 + 1/K``, one hop less than the ``1/K + K - 1`` slots of gong2021.
    """
    matrix = transitions(network)
    others = np.arange(network.size) != network.index(site)
    hops = np.zeros(network.size)
    waiting = np.eye(others.sum()) - matrix[np.ix_(others, others)]
    hops[others] = np.linalg.solve(waiting, np.ones(others.sum()))
    return float(hops.mean() if start is None else hops[network.index(start)])


def expected_cover_time(network: Network, start: str | None = None) -> float:
    """Mean hops until a token of the paper's walk has visited every site; a uniform start where
    ``None``.

    From the full set of visited sites down to single ones: with ``S`` visited, the times from its
    sites solve ``(I - P_SS) x = 1 + sum over w outside S of P_Sw x(S + w, w)``. All sets of one
    size are solved at once; there are 2^K of them, of K sites.
    """
    matrix, size = transitions(network), network.size
    hops, every = np.zeros((1 << size, size)), np.arange(1 << size)
    member = (every[:, None] >> np.arange(size) & 1).astype(bool)
    for count in range(size - 1, 0, -1):
        sets = every[member.sum(1) == count]
        inside = member[sets]
        found = np.where(inside, 0.0, hops[sets[:, None] | 1 << np.arange(size), np.arange(size)])
        members = np.nonzero(inside)[1].reshape(len(sets), count)
        within = matrix[members[:, :, None], members[:, None, :]]
        right = np.take_along_axis(1.0 + found @ matrix.T, members, 1)[..., None]
        hops[sets[:, None], members] = np.linalg.solve(np.eye(count) - within, right)[..., 0]
    single = hops[1 << np.arange(size), np.arange(size)]
    return float(single.mean() if start is None else single[network.index(start)])


def transitions(network: Network) -> np.ndarray:
    """Chances of a hop of the paper's walk, from the site of a row to that of a column."""
    degrees = np.diff(network.offsets)
    source, target = np.repeat(np.arange(network.size), degrees), np.asarray(network.neighbours)
    matrix = np.zeros((network.size, network.size))
    matrix[source, target] = np.minimum(1 / degrees[source], 1 / degrees[target])
    np.fill_diagonal(matrix, np.maximum(1.0 - matrix.sum(1), 0.0))
    return matrix


def cover_times(
    network: Network,
    walk: Walk,
    *,
    repetitions: int,
    key: Any,
    start: str | None = None,
    sites: Any = None,
) -> np.ndarray:
    """Hops (repetitions,) until a token has visited every site or, with ``sites``, these: for one
    site the time that it waits for the token.
    """
    key, state = begin(network, key, start, repetitions)
    state = WalkState(*map(np.asarray, state))
    visited = np.ones((repetitions, network.size), bool)
    visited[:, [network.index(site) for site in (network.names if sites is None else sites)]] = 0
    tokens = np.arange(repetitions)
    times = np.full(repetitions, -1)
    visited[tokens, state.position] = True
    left = (~visited).sum(1)
    times[left == 0] = 0
    hop = 0
    while (times < 0).any():
        for drawn in np.asarray(bits_of_stride(key, hop // STRIDE, state)):
            state = walk.move(network, state, drawn)
            hop = hop + 1
            left -= ~visited[tokens, state.position]
            visited[tokens, state.position] = True
            times[(left == 0) & (times < 0)] = hop
    return times


def begin(network: Network, key: Any, start: str | None, repetitions: int) -> tuple[Any, WalkState]:
    """Return the key of the hops, and ``repetitions`` tokens at ``start`` (None: uniform)."""
    COUNT.check(repetitions=repetitions)
    key, key_start = jax.random.split(key)
    if start is None:
        position = jax.random.randint(key_start, (repetitions,), 0, network.size, jnp.int32)
    else:
        position = jnp.full(repetitions, network.index(start), jnp.int32)
    return key, WalkState(position, jnp.full_like(position, NOWHERE))


def bits_of_stride(key: Any, stride: Any, state: WalkState) -> Any:
    """Return random bits of the hops after ``stride * STRIDE``, on an axis before the tokens'."""
    shape = (STRIDE, *state.position.shape)
    words = jax.random.key_data(jax.random.fold_in(key, stride)).astype(jnp.uint32).ravel()
    # Uses both halves of each block, unlike jax.random.bits, and takes a quarter of its time.
    seed = jnp.resize(words, (4,)).at[2:].set(0)
    kind = jax.lax.RandomAlgorithm.RNG_THREE_FRY
    return jax.lax.rng_bit_generator(seed, shape, jnp.uint32, algorithm=kind)[1]
