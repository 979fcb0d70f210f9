"""Chains of hidden states: sums and maxima over all paths, in log space.

Potentials are logarithms of positive numbers: probabilities, or exponentials of expected log
probabilities, which sum to less than one. Only differences from a maximum are exponentiated, so
long chains and outlying observations do not underflow.
"""

from typing import Any, NamedTuple

import numpy as np

from posterity.arrays.typing import Float, Int, PyTree, Real
from posterity.runtime.lazy import jax, jnp


class Potentials(NamedTuple):
    """Potentials of a chain: initial (K,), transitions from rows to columns (K, K), and observed
    (T, K).
    """

    initial: Float[Real, " k"]
    transitions: Float[Real, "k k"]
    observed: Float[Real, "t k"]


def log_normalizer(chain: Potentials, length: Int[Real, ""] | int) -> Float[Real, ""]:
    """Return ``log Σ_paths exp(potential)``, by the forward pass over the first ``length`` steps.

    Its gradients are the expected counts of initial states, transitions, and states at each step.

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
    """Return the log normaliser, and expected counts of initial states, transitions, and states.

    The last are the marginal probabilities of states at each step: rows sum to one, and are zero
    beyond the end.
    """
    return jax.value_and_grad(log_normalizer)(chain, length)


def best_path(
    initial: Float[np.ndarray, " k"],
    transitions: Float[np.ndarray, "k k"],
    observed: Float[np.ndarray, "t k"],
) -> Int[np.ndarray, " t"]:
    """Return the states of the path of the largest potential; ties go to the lowest states.

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
