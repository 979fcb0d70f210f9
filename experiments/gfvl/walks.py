"""Positions of tokens, hop after hop, and how long walks take in theory, in hops.

The site where a token starts is visited at hop 0; a time in the slots of gong2021 is one more.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.arguments import NATURAL
from posterity.graphs.topology import Network, Site
from posterity.graphs.walks import STRIDE, Walk, WalkState, begin, bits_of_stride
from posterity.runtime.programs import program


def positions(
    network: Network,
    walk: Walk,
    *,
    hops: int,
    key: Any,
    start: Site | None = None,
    repetitions: int | None = None,
) -> Any:
    """Positions (repetitions, hops + 1) of independent tokens from hop 0 on, as numbers of sites.

    ``start`` is the name of a site, its number, or one number a repetition; ``None`` draws it
    uniformly. Without ``repetitions`` a single walk is made, and the result has one axis. Walks
    of the same key agree on the hops that they share, whatever ``hops`` is.

    Raises:
        UsageError: if ``hops`` is negative, ``repetitions`` not positive, or ``start`` no site.
        StructureError: if the walk belongs to another network.
    """
    NATURAL.check(hops=hops)
    key, state = begin(network, walk, key, start, 1 if repetitions is None else repetitions)
    walked = _record(network.unnamed(), walk, state, key, hops)
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


def expected_hitting_time(network: Network, walk: Walk, site: Any, start: Any = None) -> float:
    """Mean hops until a token first stands at ``site``; a uniform start where ``None``.

    Solves ``h = 1 + P h`` with ``h(site) = 0`` (levin2017, chapter 10). On the complete graph
    with K sites this is ``K - 2 + 1/K``, one hop less than the ``1/K + K - 1`` slots of gong2021.
    """
    matrix = walk.transition_matrix(network)
    others = np.arange(network.size) != network.number(site)
    hops = np.zeros(network.size)
    waiting = np.eye(others.sum()) - matrix[np.ix_(others, others)]
    hops[others] = np.linalg.solve(waiting, np.ones(others.sum()))
    return float(hops.mean() if start is None else hops[network.number(start)])


def expected_cover_time(network: Network, walk: Walk, start: Any = None) -> float:
    """Mean hops until a token has visited every site; a uniform start where ``None``.

    From the full set of visited sites down to single ones: with ``S`` visited, the times from its
    sites solve ``(I - P_SS) x = 1 + sum over w outside S of P_Sw x(S + w, w)``. All sets of one
    size are solved at once; there are 2^K of them, of K sites.
    """
    matrix, size = walk.transition_matrix(network), network.size
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
    return float(single.mean() if start is None else single[network.number(start)])
