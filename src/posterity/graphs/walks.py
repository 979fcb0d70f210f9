"""Random walks of tokens over a network, as pure functions of random bits."""

import abc
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import Setting
from posterity.arrays.typing import Float, Int, KeyArray, Real, UInt32
from posterity.errors import UsageError
from posterity.graphs.topology import Network, Site, at
from posterity.runtime.lazy import jax, jnp

STRIDE = 64
"""Number of hops for which random bits are drawn at once."""
NOWHERE = -1
"""The previous site of a token that has not moved yet."""
Sites = Int[Real, "*tokens"]
Bits = UInt32[Real, "*tokens"]


class WalkState(NamedTuple):
    """The position of each token, and its previous position (``NOWHERE`` at the start).

    Positions are numbers of sites in the network's order. Tokens may have any batch shape; hops
    are fastest with the tokens on the last axis.
    """

    position: Sites
    previous: Sites


class Walk(Setting):
    """A rule by which a token at a site picks the site that it visits next.

    ``init`` and ``move`` are pure, and also work under ``jax.vmap`` and in a scan. Subclasses
    implement ``destination``, ``transition_matrix`` and ``stationary``.
    """

    most_states: ClassVar[int] = 4096
    """Largest number of states of a dense transition matrix, which then takes 128 MiB."""

    def init(self, network: Network, start: Site) -> WalkState:
        """Return the state of tokens at ``start``: a site's name, number, or an array of numbers.

        Raises UsageError if there is no such site.
        """
        position = jnp.asarray(network.number(start), jnp.int32)
        return WalkState(position, jnp.full_like(position, NOWHERE))

    def move(self, network: Network, state: WalkState, bits: Bits) -> WalkState:
        """Return the state after one hop of every token, from 32 random bits per token."""
        if network.size == 1:
            return WalkState(state.position, state.position)
        return WalkState(self.destination(network, state, bits), state.position)

    @abc.abstractmethod
    def destination(self, network: Network, state: WalkState, bits: Bits) -> Sites:
        """Return the next position of each token, on networks of at least two sites."""

    @abc.abstractmethod
    def transition_matrix(self, network: Network) -> Float[np.ndarray, "K K"]:
        """Return the probabilities of a hop from the site of a row to that of a column. Raises
        UsageError if there are more than ``most_states``, or no Markov chain over sites.
        """

    @abc.abstractmethod
    def stationary(self, network: Network) -> Float[np.ndarray, " K"]:
        """Return the share of hops that a long walk spends at each site."""


class MetropolisHastings(Walk):
    """The walk of gong2021: every site is visited equally often in the long run.

    At ``k`` a neighbour ``j`` is drawn uniformly; the token moves there with probability
    ``min(1, deg k / deg j)``, else it stays for one hop. The stationary distribution is uniform.

    >>> from posterity.graphs import Network, star
    >>> network = Network.from_graph(star(4))
    >>> MetropolisHastings().transition_matrix(network)[1].round(3).tolist()
    [0.333, 0.667, 0.0, 0.0]
    """

    def destination(self, network: Network, state: WalkState, bits: Bits) -> Sites:
        """Return the proposal if it is accepted, else the same site.

        One word of random bits gives both draws. The high word of the product ``bits * degree`` is
        the neighbour's index; the low word, independent of it to within ``degree / 2**32``, decides
        on acceptance.
        """
        here = state.position
        low, degree = network.row(here)
        there = at(network.neighbours, low + _high_word(bits, degree))
        ratio = degree.astype(np.float32) / network.row(there)[1].astype(np.float32)
        uniform = (bits * degree.astype(np.uint32)).astype(np.float32) * np.float32(2.0**-32)
        # Rounding may turn the uniform number into 1, so moves of ratio 1 do not depend on it.
        return namespace(bits, here).np.where((ratio >= 1) | (uniform < ratio), there, here)

    def transition_matrix(self, network: Network) -> Float[np.ndarray, "K K"]:
        """Return the probabilities of one hop between sites."""
        if network.size > self.most_states:
            raise UsageError(
                found=f"a network of {network.size} sites", expected=f"at most {self.most_states}"
            )
        source, target = network.links()
        share = self.stationary(network)
        rate = share / np.maximum(network.degrees, 1)
        matrix = np.zeros((network.size, network.size))
        matrix[source, target] = np.minimum(rate[source], rate[target]) / share[source]
        np.fill_diagonal(matrix, np.maximum(1.0 - matrix.sum(1), 0.0))
        return matrix

    def stationary(self, network: Network) -> Float[np.ndarray, " K"]:
        """Return the share of hops that a long walk spends at each site."""
        return np.full(network.size, 1.0 / network.size)


class NonBacktracking(Walk):
    """A uniform walk over all neighbours but the previous site; not in gong2021.

    It returns only from a site with a single neighbour. On regular expanders it mixes faster than
    a walk that may backtrack (alon2007). It visits sites in proportion to their degree. The next
    site depends on the previous one: the Markov chain is over directed links, not sites.

    >>> from posterity.graphs import Network, star
    >>> NonBacktracking().stationary(Network.from_graph(star(4))).round(3)
    array([0.5  , 0.167, 0.167, 0.167])
    """

    def destination(self, network: Network, state: WalkState, bits: Bits) -> Sites:
        """Return a neighbour other than the previous site, if there is one."""
        low, degree = network.row(state.position)
        avoids = (state.previous != NOWHERE) & (degree > 1)
        place = low + _high_word(bits, degree - avoids)
        candidate = at(network.neighbours, place)
        # Neighbours are sorted: skip the previous site by adding one from its index on.
        passed = avoids & (candidate >= state.previous)
        next_one = at(network.neighbours, place + passed)
        return namespace(candidate).np.where(passed, next_one, candidate)

    def transition_matrix(self, network: Network) -> Float[np.ndarray, "K K"]:
        """Raise a UsageError, since this walk is not a Markov chain over sites."""
        raise UsageError(
            found="a non-backtracking walk, whose next site depends on the previous one too",
            expected="a walk that is a Markov chain over sites",
            fix="Measure with cover_times.",
        )

    def stationary(self, network: Network) -> Float[np.ndarray, " K"]:
        """Return the stationary distribution, in proportion to degree."""
        degrees = network.degrees.astype(np.float64)
        return degrees / degrees.sum() if network.size > 1 else np.ones(1)


def begin(
    network: Network, walk: Walk, key: KeyArray, start: Site | None, repetitions: int
) -> tuple[KeyArray, WalkState]:
    """Return the key of the hops, and ``repetitions`` tokens at ``start`` (None: uniform)."""
    shape = () if start is None or isinstance(start, str) else np.shape(start)
    if repetitions < 1 or shape not in ((), (repetitions,)):
        found = f"{repetitions} repetitions"
        fix = "Give as many starts as repetitions."
        raise UsageError(
            found=f"{found} and starts of shape {shape}",
            expected="one repetition or more, and one start, or one a repetition",
            fix=fix,
        )
    key, key_start = jax.random.split(key)
    if start is None:
        start = jax.random.randint(key_start, (repetitions,), 0, network.size, jnp.int32)
    return key, walk.init(network, np.broadcast_to(network.number(start), (repetitions,)))


def bits_of_stride(key: KeyArray, stride: Any, state: WalkState) -> Real:
    """Return random bits of the hops after ``stride * STRIDE``, on an axis before the tokens'."""
    shape = (STRIDE, *state.position.shape)
    words = jax.random.key_data(jax.random.fold_in(key, stride)).astype(jnp.uint32).ravel()
    # Uses both halves of each block, unlike jax.random.bits, and takes a quarter of its time.
    seed = jnp.resize(words, (4,)).at[2:].set(0)
    kind = jax.lax.RandomAlgorithm.RNG_THREE_FRY
    return jax.lax.rng_bit_generator(seed, shape, jnp.uint32, algorithm=kind)[1]


def _high_word(bits: Bits, count: Sites) -> Sites:
    """Return ``floor(bits * count / 2**32)``, uniform below ``count``, in 32-bit arithmetic."""
    count = count.astype(np.uint32)
    high = bits >> 16
    low = bits & 0xFFFF
    count_high = count >> 16
    count_low = count & 0xFFFF
    middle = high * count_low + (low * count_low >> 16)
    carried = low * count_high + (middle & 0xFFFF)
    return (high * count_high + (middle >> 16) + (carried >> 16)).astype(np.int32)
