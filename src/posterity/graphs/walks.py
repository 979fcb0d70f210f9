"""Random walks of tokens over a network, as pure functions of random bits."""

import abc
from typing import NamedTuple

import numpy as np

from posterity.arrays.namespace import namespace
from posterity.arrays.tree import Setting
from posterity.arrays.typing import Int, Real, UInt32
from posterity.graphs.topology import Network, at

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

    ``move`` is pure, and also works under ``jax.vmap`` and in a scan. Subclasses implement
    ``destination``.
    """

    def move(self, network: Network, state: WalkState, bits: Bits) -> WalkState:
        """Return the state after one hop of every token, from 32 random bits per token."""
        if network.size == 1:
            return WalkState(state.position, state.position)
        return WalkState(self.destination(network, state, bits), state.position)

    @abc.abstractmethod
    def destination(self, network: Network, state: WalkState, bits: Bits) -> Sites:
        """Return the next position of each token, on networks of at least two sites."""


class MetropolisHastings(Walk):
    """The walk of gong2021: every site is visited equally often in the long run.

    At ``k`` a neighbour ``j`` is drawn uniformly; the token moves there with probability
    ``min(1, deg k / deg j)``, else it stays for one hop. The stationary distribution is uniform.
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


class NonBacktracking(Walk):
    """A uniform walk over all neighbours but the previous site; not in gong2021.

    It returns only from a site with a single neighbour. On regular expanders it mixes faster than
    a walk that may backtrack (alon2007). It visits sites in proportion to their degree. The next
    site depends on the previous one: the Markov chain is over directed links, not sites.
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
