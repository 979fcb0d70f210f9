"""How long a walk takes to reach one site, or all: measured and in theory, in hops.

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
from jaxtyping import Float, Int, Key

from posterity.errors import UsageError
from posterity.graphs.topology import Network
from posterity.graphs.walks import (
    STRIDE,
    MetropolisHastings,
    Walk,
    WalkState,
    begin,
    bits_of_stride,
)

SUBSET_SITES = 16
"""Sites of the largest network whose cover time is found over all subsets of visited sites."""

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


# --- theory -----------------------------------------------------------------------------------


def _closed_form(network: Network) -> Float[np.ndarray, " K"] | None:
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


def _over_subsets(network: Network, walk: Walk) -> Float[np.ndarray, " K"]:
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
