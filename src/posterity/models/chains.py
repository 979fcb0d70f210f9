"""Chains of hidden states: sums and maxima over all their paths, in log space.

Potentials are logarithms of anything positive: probabilities, or the exponentials of expected log
probabilities, which sum to less than one. Nothing is exponentiated but differences from a maximum,
so chains may be as long and observations as far off as they like.
"""

from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.typing import Float, Int, PyTree, Real
from posterity.lazy import jax, jnp


class Potentials(NamedTuple):
    """Potentials of one chain: start (K,), moves from rows to columns (K, K), records (T, K)."""

    initial: Float[Real, " k"]
    transitions: Float[Real, "k k"]
    observed: Float[Real, "t k"]


def log_normalizer(chain: Potentials, length: Int[Real, ""] | int) -> Float[Real, ""]:
    """``log Σ_paths exp(potential)``, by the forward pass over the first ``length`` steps.

    Its gradients are the expected counts: of starts, of moves, and of states at each step.

    Source: rabiner1989; beal2003, section 3.4.
    """

    def step(forward: Real, at: PyTree) -> Any:
        index, observed = at
        moved = jax.nn.logsumexp(forward[:, None] + chain.transitions, axis=0) + observed
        return jnp.where(index < length, moved, forward), None

    steps = jnp.arange(1, chain.observed.shape[0])
    end, _ = jax.lax.scan(step, chain.initial + chain.observed[0], (steps, chain.observed[1:]))
    return jax.nn.logsumexp(end)


def expected_counts(
    chain: Potentials, length: Int[Real, ""] | int
) -> tuple[Float[Real, ""], Potentials]:
    """The log normaliser, and the expected number of starts, moves and observations a state.

    The last are the marginal probabilities of states at each step (rows sum to one, zero beyond
    the end).
    """
    return jax.value_and_grad(log_normalizer)(chain, length)


def best_path(
    initial: Float[np.ndarray, " k"],
    transitions: Float[np.ndarray, "k k"],
    observed: Float[np.ndarray, "t k"],
) -> Int[np.ndarray, " t"]:
    """The states of the path of the largest potential; of equals that of the lowest states.

    Source: viterbi1967.
    """
    best, back = initial + observed[0], np.zeros(observed.shape, np.int32)
    for t in range(1, len(observed)):
        scores = best[:, None] + transitions
        back[t] = scores.argmax(0)
        best = scores.max(0) + observed[t]
    path = np.empty(len(observed), int)
    path[-1] = int(best.argmax())
    for t in range(len(observed) - 1, 0, -1):
        path[t - 1] = back[t, path[t]]
    return path
