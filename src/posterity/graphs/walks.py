"""Random walks of tokens over a network, as pure functions of a few random bits."""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import Setting, static
from posterity.arrays.typing import Float, Int, KeyArray, Real, UInt32
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.graphs.topology import Network, Site, at, check_sites
from posterity.lazy import jax, jnp

STRIDE = 64
"""Hops for which random bits are drawn at once."""
DENSE = 4096
"""States of the largest chain whose transition matrix is written out (128 MiB)."""
WEIGHT_RANGE = 1e6
"""The largest weight in units of the smallest: acceptances below it drown in 32 random bits."""
NOWHERE = -1
"""The previous site of a token that has not moved yet."""
Sites = Int[Real, "*tokens"]
Bits = UInt32[Real, "*tokens"]


class WalkState(NamedTuple):
    """The position of each token, and that of one hop before (``NOWHERE`` at the start).

    Numbers of sites in the network's order. Any number of tokens of any batch shape; those on
    the last axis move fastest.
    """

    position: Sites
    previous: Sites


class Walk(Setting):
    """A rule by which a token at a site picks the site that it visits next.

    ``init`` and ``move`` are pure and work one by one, under ``jax.vmap`` and in a scan. Authors
    of a kind write ``destination``, ``transition_matrix`` and ``stationary``.
    """

    def init(self, network: Network, start: Site) -> WalkState:
        """Tokens at ``start``: the name of a site, its number, or an array of numbers.

        A UsageError if there is no such site, a StructureError for a walk of another network.
        """
        self.checked(network)
        position = jnp.asarray(network.number(start), jnp.int32)
        return WalkState(position, jnp.full_like(position, NOWHERE))

    def move(self, network: Network, state: WalkState, bits: Bits) -> WalkState:
        """One hop of every token, on 32 random bits a token."""
        if network.size == 1:
            return WalkState(state.position, state.position)
        return WalkState(self.destination(network, state, bits), state.position)

    @abc.abstractmethod
    def destination(self, network: Network, state: WalkState, bits: Bits) -> Sites:
        """The next position of each token, on networks of two sites or more."""

    @abc.abstractmethod
    def transition_matrix(self, network: Network) -> Float[np.ndarray, "K K"]:
        """Probability of going from the site of a row to that of a column. A UsageError if the
        chain has more than ``DENSE`` states, or is not one over sites.
        """

    @abc.abstractmethod
    def stationary(self, network: Network) -> Float[np.ndarray, " K"]:
        """The share of hops that a long walk spends at each site."""

    def checked(self, network: Network) -> "Walk":
        """The walk as compiled code takes it; a StructureError if it fits another network."""
        return self


class MetropolisHastings(Walk):
    """The walk of gong2021: every site is visited equally often in the long run.

    From ``k`` a neighbour ``j`` is picked uniformly; the token moves there with probability
    ``min(1, deg k / deg j)`` and else stays for one hop. The stationary distribution is uniform.

    >>> from posterity.graphs import Network, star
    >>> network = Network.from_graph(star(4))
    >>> MetropolisHastings().transition_matrix(network)[1].round(3).tolist()
    [0.333, 0.667, 0.0, 0.0]
    """

    def destination(self, network: Network, state: WalkState, bits: Bits) -> Sites:
        """The proposal where accepted, else the same site.

        One word of random bits serves both draws: of the product ``bits * degree`` the high word is
        the neighbour's place and the low word, independent of it to within ``degree / 2**32``,
        decides on acceptance.
        """
        here = state.position
        low, degree = network.row(here)
        there = at(network.neighbours, low + _high_word(bits, degree))
        ratio = self._ratio(there, here, network.row(there)[1], degree)
        uniform = (bits * degree.astype(np.uint32)).astype(np.float32) * np.float32(2.0**-32)
        # Rounding may turn the uniform into one: certain moves do not depend on it.
        return namespace(bits, here).np.where((ratio >= 1) | (uniform < ratio), there, here)

    def transition_matrix(self, network: Network) -> Float[np.ndarray, "K K"]:
        """Probabilities of one hop between sites."""
        if network.size > DENSE:
            raise UsageError(
                found=f"a network of {network.size} sites",
                expected=f"at most {DENSE}",
                fix="Measure with cover_times.",
            )
        source, target = network.links()
        share = self.stationary(network)
        rate = share / np.maximum(network.degrees, 1)
        matrix = np.zeros((network.size, network.size))
        matrix[source, target] = np.minimum(rate[source], rate[target]) / share[source]
        np.fill_diagonal(matrix, np.maximum(1.0 - matrix.sum(1), 0.0))
        return matrix

    def stationary(self, network: Network) -> Float[np.ndarray, " K"]:
        """The share of hops that a long walk spends at each site."""
        return np.full(network.size, 1.0 / network.size)

    def _ratio(self, there: Sites, here: Sites, degree_there: Sites, degree_here: Sites) -> Real:
        """The odds of acceptance."""
        return degree_here.astype(np.float32) / degree_there.astype(np.float32)


class WeightedMetropolisHastings(MetropolisHastings):
    """Metropolis-Hastings with visits in proportion to weights; beyond gong2021.

    For sites that should be visited more often, because they hold more data or answer faster.
    ``weights`` is a mapping from names to weights, or one weight a site in the network's order.
    The acceptance is ``min(1, (w_j deg k) / (w_k deg j))``. Weights that are not positive and
    finite, or further apart than ``WEIGHT_RANGE``, are a ParameterError, a network of other sites
    is a StructureError.
    """

    names: tuple[str, ...] | None = static()
    weights: Float[Real, " K"]

    def __init__(self, weights: Any):
        named = isinstance(weights, Mapping)
        self.names = tuple(sorted(weights)) if named else None
        values = np.asarray([weights[n] for n in self.names or ()] if named else weights, float)
        found = "" if values.ndim == 1 and values.size else f"weights of shape {values.shape}"
        wrong = () if found else np.flatnonzero(~(np.isfinite(values) & (values > 0))).tolist()
        if wrong:
            labels = self.names or range(values.size)
            own = [f"{values[k]:g} of {labels[k]}" for k in wrong[:3]]
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            found = f"weights {', '.join(own)}{more}"
        elif not found and values.max() > WEIGHT_RANGE * values.min():
            found = f"weights from {values.min():g} to {values.max():g}"
        if found:
            raise ParameterError(
                found=found,
                expected=f"a positive, finite weight a site, all within a factor {WEIGHT_RANGE:g}",
                fix="Bring them closer together; leave out sites that are not to be visited.",
            )
        self.weights = values / values.max()

    def checked(self, network: Network) -> "WeightedMetropolisHastings":
        """Return the walk with its weights by number, once they are known to be the network's."""
        size = np.shape(self.weights)[0]
        if self.names is not None and network.names:
            check_sites(self.names, network.names, "weights for")
        if size != network.size:
            raise StructureError(
                found=f"{size} weights for {network.size} sites",
                expected="one weight a site",
                fix="Weigh each of the sites.",
            )
        return WeightedMetropolisHastings(self.weights) if self.names else self

    def stationary(self, network: Network) -> Float[np.ndarray, " K"]:
        """The weights, as shares."""
        weights = np.asarray(self.checked(network).weights, np.float64)
        return weights / weights.sum()

    def _ratio(self, there: Sites, here: Sites, degree_there: Sites, degree_here: Sites) -> Real:
        weights = self.weights.astype(np.float32)
        here, there = at(weights, here), at(weights, there)
        return there * degree_here.astype(np.float32) / (here * degree_there.astype(np.float32))


class NonBacktracking(Walk):
    """Uniform among the neighbours other than the one it came from; beyond gong2021.

    Goes back only from a site with a single neighbour. It mixes faster than a walk that may
    turn round on regular expanders (alon2007), and visits sites in proportion to their degree.
    Where it goes depends on where it came from: a Markov chain over directed links, not sites.
    """

    def destination(self, network: Network, state: WalkState, bits: Bits) -> Sites:
        """A neighbour other than the previous site, where there is one."""
        low, degree = network.row(state.position)
        avoids = (state.previous != NOWHERE) & (degree > 1)
        place = low + _high_word(bits, degree - avoids)
        candidate = at(network.neighbours, place)
        # Neighbours ascend: those from the previous site on make room by moving up one place.
        passed = avoids & (candidate >= state.previous)
        next_one = at(network.neighbours, place + passed)
        return namespace(candidate).np.where(passed, next_one, candidate)

    def transition_matrix(self, network: Network) -> Float[np.ndarray, "K K"]:
        """Not defined over sites: raises a UsageError."""
        raise UsageError(
            found="a non-backtracking walk, whose next site depends on the previous one too",
            expected="a walk that is a Markov chain over sites",
            fix="Measure with cover_times.",
        )

    def stationary(self, network: Network) -> Float[np.ndarray, " K"]:
        """The stationary distribution, in proportion to degree."""
        degrees = network.degrees.astype(np.float64)
        return degrees / degrees.sum() if network.size > 1 else np.ones(1)


def begin(
    network: Network, walk: Walk, key: KeyArray, start: Site | None, repetitions: int
) -> tuple[KeyArray, WalkState]:
    """The key of the hops, and ``repetitions`` tokens at ``start``, or uniformly where ``None``."""
    shape = () if start is None or isinstance(start, str) else np.shape(start)
    if repetitions < 1 or shape not in ((), (repetitions,)):
        found, fix = f"{repetitions} repetitions", "Give as many starts as repetitions."
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
    """Random bits of the hops that follow ``stride * STRIDE``, one axis before the tokens'."""
    shape = (STRIDE, *state.position.shape)
    words = jax.random.key_data(jax.random.fold_in(key, stride)).astype(jnp.uint32).ravel()
    # Both halves of each block are used, as jax.random.bits does not: a quarter of its time.
    seed = jnp.resize(words, (4,)).at[2:].set(0)
    kind = jax.lax.RandomAlgorithm.RNG_THREE_FRY
    return jax.lax.rng_bit_generator(seed, shape, jnp.uint32, algorithm=kind)[1]


def _high_word(bits: Bits, count: Sites) -> Sites:
    """``floor(bits * count / 2**32)``: uniform below ``count``, from halves without 64 bits."""
    count = count.astype(np.uint32)
    high, low = bits >> 16, bits & 0xFFFF
    count_high, count_low = count >> 16, count & 0xFFFF
    middle = high * count_low + (low * count_low >> 16)
    carried = low * count_high + (middle & 0xFFFF)
    return (high * count_high + (middle >> 16) + (carried >> 16)).astype(np.int32)
