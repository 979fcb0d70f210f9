"""How long a walk takes to reach one site, or all, in hops.

The site where a token starts is visited at hop 0. In gong2021 slots are counted from one and
the site of hop ``h`` updates in slot ``h + 1``: a time in slots is the time in hops plus one.
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Key

from posterity.errors import UsageError
from posterity.graphs.topology import Network
from posterity.graphs.walks import STRIDE, Walk, WalkState, begin, bits_of_stride

STRETCH = 1 << 16
"""Hops after which a measurement returns to Python, where it can be interrupted."""

# The hop counter is 32 bits wide, and may pass the limit by one stride.
LARGEST = np.iinfo(np.int32).max - STRIDE


def cover_times(
    network: Network,
    walk: Walk,
    *,
    repetitions: int,
    key: Key[jax.Array, ""],
    start: Any = None,
    limit: int | None = None,
) -> Int[np.ndarray, " repetitions"]:
    """Measured: hops until a token has visited every site, one time a repetition.

    ``start`` is as in ``positions``: a site, or ``None`` for a uniform draw. Memory: one bit a
    site and repetition.

    Raises:
        UsageError: if a repetition takes more than ``limit`` hops; by default a hundred times a
            bound on what any connected network takes on average, or what 32 bits can count.
    """
    return _first_times(network, walk, _AllSites(network.size), repetitions, key, start, limit)


def hitting_times(
    network: Network,
    walk: Walk,
    site: Any,
    *,
    repetitions: int,
    key: Key[jax.Array, ""],
    start: Any = None,
    limit: int | None = None,
) -> Int[np.ndarray, " repetitions"]:
    """Measured: hops until a token first stands at ``site``, one time a repetition.

    This is how long a site that asks to be forgotten waits for the token. ``start`` and
    ``limit`` are as in ``cover_times``.

    Raises:
        UsageError: if a repetition takes more than ``limit`` hops, or there is no such site.
    """
    at = jnp.asarray(network.number(site), jnp.int32)
    return _first_times(network, walk, _OneSite(at), repetitions, key, start, limit)


def sampled_cover_time(network: Network, walk: Walk, *, repetitions: int, seed: int = 0) -> float:
    """Mean hops until a token has visited every site, from a uniform start; in part sampled.

    Only the order in which sites are first visited is drawn; how long each new one takes is its
    expectation. The cost is that of ``K`` updates of a matrix a repetition, however slow the walk.

    Raises:
        UsageError: if the network is too large for a matrix, or the walk is not a Markov chain
            over sites.
    """
    matrix, draw = walk.transition_matrix(network), np.random.default_rng(seed)
    return float(np.mean([_cover_in_drawn_order(matrix, draw) for _ in range(repetitions)]))


def _cover_in_drawn_order(matrix: np.ndarray, draw: np.random.Generator) -> float:
    """Expected hops of one walk, given the drawn order of its new sites.

    Of the visited sites ``S`` it keeps ``(I - P_SS)^-1``, the mean numbers of stays at each before
    a new one (levin2017, chapter 10), and borders it with each new site.
    """
    size = len(matrix)
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
    return hops


# --- measurement ------------------------------------------------------------------------------


class _OneSite(eqx.Module):
    """Done once a token stands at ``site``; nothing to remember."""

    site: Int[jax.Array, ""]

    def start(self, position: jax.Array) -> Any:
        return ()

    def see(self, seen: Any, position: jax.Array) -> tuple[Any, jax.Array]:
        return (), position == self.site


class _AllSites(eqx.Module):
    """Done once a token has stood at each of ``size`` sites; remembers a bit a site and token."""

    size: int = eqx.field(static=True)

    def start(self, position: jax.Array) -> Any:
        words = -(-self.size // 32)
        tokens = position.shape[0]
        return jnp.zeros((words, tokens), jnp.uint32), jnp.full(tokens, self.size, jnp.int32)

    def see(self, seen: Any, position: jax.Array) -> tuple[Any, jax.Array]:
        bits, left = seen
        index = (position >> 5, jnp.arange(position.shape[0]))
        word = bits[index]
        marked = word | (jnp.uint32(1) << (position & 31).astype(jnp.uint32))
        left = left - (marked != word)
        return (bits.at[index].set(marked, unique_indices=True), left), left == 0


def _first_times(
    network: Network,
    walk: Walk,
    aim: Any,
    repetitions: int,
    key: Key[jax.Array, ""],
    start: Any,
    limit: int | None,
) -> Int[np.ndarray, " repetitions"]:
    """The hop at which each token first meets ``aim``."""
    limit = _default_limit(network, walk) if limit is None else min(limit, LARGEST)
    key, state = begin(network, walk, key, start, repetitions)
    seen, first = _at_start(aim, state.position)
    advance = functools.partial(_advance, network.unnamed(), walk.checked(network), aim, key)
    hop = 0
    while hop < limit and (np.asarray(first) < 0).any():
        until = min(hop + STRETCH, limit)
        state, seen, first, now = advance(state, seen, first, np.int32(hop), np.int32(until))
        hop = int(now)
    times = np.asarray(first)
    _check_done(times, limit)
    return times


@eqx.filter_jit
def _at_start(aim: Any, position: jax.Array) -> tuple[Any, jax.Array]:
    seen, done = aim.see(aim.start(position), position)
    return seen, jnp.where(done, 0, -1).astype(jnp.int32)


@eqx.filter_jit
def _advance(
    network: Network,
    walk: Walk,
    aim: Any,
    key: Key[jax.Array, ""],
    state: WalkState,
    seen: Any,
    first: jax.Array,
    hop: Any,
    until: Any,
) -> tuple[WalkState, Any, jax.Array, Any]:
    """Walk by strides to hop ``until`` or a little beyond, or until every token is done."""

    def one(carry: Any, drawn: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        state, seen, first = carry
        bits, now = drawn
        state = walk.move(network, state, bits)
        seen, done = aim.see(seen, state.position)
        return (state, seen, jnp.where(done & (first < 0), now, first)), None

    def stride(carry: Any) -> Any:
        state, seen, first, hop = carry
        bits = bits_of_stride(key, hop // STRIDE, state)
        drawn = (bits, hop + 1 + jnp.arange(STRIDE, dtype=jnp.int32))
        return *jax.lax.scan(one, (state, seen, first), drawn)[0], hop + STRIDE

    def pending(carry: Any) -> Any:
        return (carry[3] < until) & (carry[2] < 0).any()

    return jax.lax.while_loop(pending, stride, (state, seen, first, hop))


def _default_limit(network: Network, walk: Walk) -> int:
    """A hundred times a bound on mean cover times, or what the counter holds.

    Of a reversible walk, hitting times between neighbours are at most one over the flow of
    their link; the degrees along a shortest path add up to at most 3 K; so all hitting times
    are at most ``6 K / min stationary`` (nonaka2010), and cover times at most that times the
    K-th harmonic number (Matthews; levin2017, chapter 11).
    """
    hitting = 6 * network.size / float(walk.stationary(network).min())
    return int(min(100 * hitting * (1 + math.log(network.size)), LARGEST))


def _check_done(times: np.ndarray, limit: int) -> None:
    late = int(((times < 0) | (times > limit)).sum())
    if late:
        raise UsageError(
            found=f"{late} of {len(times)} repetitions that were not done after {limit} hops",
            expected="every repetition to be done within the limit",
            fix="Raise limit, or choose a walk or a network that is covered faster.",
        )
