"""Cover times of walks, in hops.

The site where a token starts is visited at hop 0. In gong2021 slots are counted from one and
the site of hop ``h`` updates in slot ``h + 1``: a time in slots is the time in hops plus one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posterity.arrays.typing import Bool, Int, KeyArray, Real
from posterity.errors import UsageError
from posterity.graphs.topology import Network, Site
from posterity.graphs.walks import STRIDE, Walk, WalkState, begin, bits_of_stride
from posterity.lazy import jax, jnp, program

STRETCH = 1 << 16
"""Hops after which a measurement returns to Python, where it can be interrupted."""

# The hop counter is 32 bits wide, and may pass the limit by one stride.
LARGEST = np.iinfo(np.int32).max - STRIDE


def cover_times(
    network: Network,
    walk: Walk,
    *,
    repetitions: int,
    key: KeyArray,
    start: Site | None = None,
    limit: int = LARGEST,
    sites: Sequence[Site] | None = None,
) -> Int[np.ndarray, " repetitions"]:
    """Measured: hops until a token has visited every site, one time a repetition.

    ``start`` is the name of a site, its number, or one number a repetition; ``None`` draws it
    uniformly. With ``sites``, hops until these have been visited: of the one that asks to be
    forgotten, how long it waits for the token. Memory: a byte a site and repetition. A UsageError
    if a repetition takes more than ``limit`` hops, by default what 32 bits can count, or if there
    is no such site.
    """
    limit = min(limit, LARGEST)
    key, state = begin(network, walk, key, start, repetitions)
    asked = np.zeros(network.size, bool)
    numbers = range(network.size) if sites is None else [network.number(site) for site in sites]
    asked[np.asarray(numbers)] = True
    here, visited = np.asarray(state.position), np.tile(~asked, (repetitions, 1))
    left = (asked.sum() - asked[here]).astype(np.int32)
    visited[np.arange(repetitions), here] = True
    tokens = _Tokens(state, visited, left, np.where(left == 0, 0, -1).astype(np.int32))
    hop, plain, rule = 0, network.unnamed(), walk.checked(network)
    while hop < limit and (np.asarray(tokens.first) < 0).any():
        until = min(hop + STRETCH, limit)
        tokens, now = _advance(plain, rule, key, tokens, np.int32(hop), np.int32(until))
        hop = int(now)
    times = np.asarray(tokens.first)
    if late := int(((times < 0) | (times > limit)).sum()):
        found = f"{late} of {len(times)} repetitions that were not done after {limit} hops"
        fix = "Raise limit, or choose a walk or a network that is covered faster."
        raise UsageError(found=found, expected="all within the limit", fix=fix)
    return times


def sampled_cover_time(network: Network, walk: Walk, *, repetitions: int, seed: int = 0) -> float:
    """Mean hops until a token has visited every site, from a uniform start; in part sampled.

    Only the order in which sites are first visited is drawn; how long each new one takes is its
    expectation: of the visited sites ``S`` a repetition keeps ``(I - P_SS)^-1``, the mean numbers
    of stays at each before a new one (levin2017, chapter 10), and borders it with each new site.
    The cost is that of ``K`` updates of a matrix a repetition, however slow the walk. A UsageError
    if the network is too large for a matrix, or the walk is not a Markov chain over sites.
    """
    matrix, draw = walk.transition_matrix(network), np.random.default_rng(seed)
    size, times = len(matrix), []
    for _ in range(repetitions):
        order, hops = [int(draw.integers(size))], 0.0
        stays = np.zeros((size, size))
        stays[0, 0] = 1.0 / (1.0 - matrix[order[0], order[0]])
        for count in range(1, size):
            known, from_last = stays[:count, :count], stays[count - 1, :count]
            hops += from_last.sum()
            ends = from_last @ matrix[order]
            ends[order] = 0.0
            ends = np.maximum(ends, 0.0)
            new = int(draw.choice(size, p=ends / ends.sum()))
            into, out = known @ matrix[order, new], matrix[new, order] @ known
            escape = 1.0 - matrix[new, new] - matrix[new, order] @ into
            if count < size - 1:
                known += np.outer(into, out / escape)
                stays[:count, count], stays[count, :count] = into / escape, out / escape
                stays[count, count] = 1.0 / escape
            order.append(new)
        times.append(hops)
    return float(np.mean(times))


class _Tokens(NamedTuple):
    """Tokens on their way, and the sites that each has visited, or that nobody asks for.

    ``left`` counts the others; ``first`` is the hop at which there were none any more, or -1.
    """

    state: WalkState
    visited: Bool[Real, "tokens K"]
    left: Int[Real, " tokens"]
    first: Int[Real, " tokens"]


@program
def _advance(
    network: Network,
    walk: Walk,
    key: KeyArray,
    tokens: _Tokens,
    hop: Int[Real, ""],
    until: Int[Real, ""],
) -> tuple[_Tokens, Int[Real, ""]]:
    """Walk by strides to hop ``until`` or a little beyond, or until every token is done."""

    def one(tokens: _Tokens, drawn: tuple[Real, Real]) -> tuple[_Tokens, None]:
        bits, now = drawn
        state = walk.move(network, tokens.state, bits)
        here = (jnp.arange(bits.shape[0]), state.position)
        left = tokens.left - ~tokens.visited[here]
        first = jnp.where((left == 0) & (tokens.first < 0), now, tokens.first)
        visited = tokens.visited.at[here].set(True, unique_indices=True)
        return _Tokens(state, visited, left, first), None

    def stride(carry: tuple[_Tokens, Real]) -> tuple[_Tokens, Real]:
        tokens, hop = carry
        bits = bits_of_stride(key, hop // STRIDE, tokens.state)
        drawn = (bits, hop + 1 + jnp.arange(STRIDE, dtype=jnp.int32))
        return jax.lax.scan(one, tokens, drawn)[0], hop + STRIDE

    pending = lambda carry: (carry[1] < until) & (carry[0].first < 0).any()
    return jax.lax.while_loop(pending, stride, (tokens, hop))
