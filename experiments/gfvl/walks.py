"""The positions of tokens on their way, hop after hop, which experiments and tests look at."""

from typing import Any

import jax
import jax.numpy as jnp

from posterity.arguments import NATURAL
from posterity.graphs.topology import Network, Site
from posterity.graphs.walks import STRIDE, Walk, WalkState, begin, bits_of_stride
from posterity.lazy import program


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
    walked = _record(network.unnamed(), walk.checked(network), state, key, hops)
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
