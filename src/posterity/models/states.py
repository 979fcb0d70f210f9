"""States and densities of new sequences under a posterior of a hidden Markov model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.arguments import NATURAL, one_of
from posterity.arrays.typing import Float, Int, KeyArray, PyTree, Real
from posterity.checks import check_proper
from posterity.errors import StructureError, UsageError
from posterity.families import HiddenMarkov, at_rest
from posterity.lazy import jax, jitted
from posterity.models.chains import Potentials, best_path, expected_counts, log_normalizer
from posterity.models.hidden_markov import (
    OVER,
    HiddenMarkovModel,
    check_emissions,
    padded,
    potentials,
)

PARAMETERS = one_of("expected-logs", "means")


def label(
    posterior: HiddenMarkov, sequences: Sequence[Any], *, parameters: str = "expected-logs"
) -> list[Int[np.ndarray, " t"]]:
    """The most likely path of states of each sequence (Viterbi).

    Args:
        posterior: a fused one, or a site's.
        sequences: of vectors (T, d) or symbols (T,).
        parameters: ``"expected-logs"``, as states are inferred while fitting, or ``"means"``, as of
            a model that has the expected parameters.

    Raises:
        StructureError, ParameterError: for sequences that are not of this model.

    >>> from posterity.families import NormalWishart, Plate
    >>> scale, nine = [[[0.1]], [[0.1]]], [9.0, 9.0]
    >>> one = NormalWishart.from_standard([[0.0], [9.0]], nine, scale, nine)
    >>> prior = HiddenMarkov.prior(one[0], states=2)
    >>> q = prior.with_members(one)
    >>> label(q, [np.array([[0.1], [8.8], [9.1]])])[0].tolist()
    [0, 1, 1]
    """
    q, x, lengths = _prepared(posterior, sequences)
    chain = _potentials(q, x, parameters)
    observed = np.asarray(chain.observed)
    initial, rows = np.asarray(chain.initial), np.asarray(chain.transitions)
    return [best_path(initial, rows, own[:n]) for own, n in zip(observed, lengths, strict=True)]


def marginals(
    posterior: HiddenMarkov, sequences: Sequence[Any], *, parameters: str = "expected-logs"
) -> list[Float[np.ndarray, "t k"]]:
    """The probability of each state at each step, given the whole sequence; see :func:`label`."""
    q, x, lengths = _prepared(posterior, sequences)
    chain = _potentials(q, x, parameters)
    with jax.enable_x64(True):
        result = np.asarray(_marginals(chain, lengths))
    return [own[:n] for own, n in zip(result, lengths, strict=True)]


def log_predictive(
    posterior: HiddenMarkov,
    sequences: Sequence[Any],
    *,
    samples: int = 100,
    key: KeyArray | None = None,
) -> Float[np.ndarray, " n"]:
    """``log p(sequence)`` of each new sequence, in nats, the parameters averaged over.

    Args:
        posterior: of the parameters.
        sequences: of vectors (T, d) or symbols (T,).
        samples: draws of the parameters, whose likelihoods are averaged; 0 for the likelihood at
            the expected parameters.
        key: of the draws.

    Raises:
        UsageError: draws without a key.
        StructureError, ParameterError: for sequences that are not of this model.
    """
    NATURAL.check(samples=samples)
    q, x, lengths = _prepared(posterior, sequences)
    if samples and key is None:
        raise UsageError(
            found=f"samples={samples} without a key",
            expected="a key for the draws, or samples=0",
            fix="Pass key=jax.random.key(0), say.",
        )
    if not samples:
        with jax.enable_x64(True):
            return np.asarray(_normalizers(_potentials(q, x, "means"), lengths))
    with jax.enable_x64(True):
        draws = q.sample(key, (samples,))  # type: ignore[arg-type]
        values = np.asarray(_likelihoods(draws, (x, lengths)))
    top = values.max(0)
    return top + np.log(np.mean(np.exp(values - top), axis=0))


_normalizers = jitted(lambda *chains: jax.vmap(log_normalizer, OVER)(*chains))
_marginals = jitted(lambda *chains: jax.vmap(expected_counts, OVER)(*chains)[1].observed)


@jitted
def _likelihoods(draws: PyTree, data: tuple[Real, Real]) -> Real:
    return jax.lax.map(lambda z: HiddenMarkovModel().log_likelihood(z, data), draws)


def _prepared(
    posterior: Any, sequences: Sequence[Any]
) -> tuple[HiddenMarkov, np.ndarray, np.ndarray]:
    """The posterior at rest, and padded sequences that are of its emissions."""
    if not isinstance(posterior, HiddenMarkov) or posterior.batch_shape:
        raise StructureError(
            found=repr(posterior),
            expected="one HiddenMarkov",
            fix="Of a ledger pass ledger.posterior; index a batch.",
        )
    check_proper(posterior, "the posterior")
    members: Any = posterior.emissions.members  # pyright: ignore
    check_emissions(members)
    x, lengths = padded(sequences)
    symbols, size = members.emits_symbols, members.own_size
    if x.ndim != (2 if symbols else 3) or (x.max() >= size if symbols else x.shape[2] != size):
        raise StructureError(
            found=f"sequences of {'symbols' if x.ndim == 2 else f'{x.shape[2]} channels'} for "
            f"emissions {members!r}",
            expected="sequences of what the states emit",
            fix="Use the channels, or the symbols, that the model was fitted to.",
        )
    return at_rest(posterior), x, lengths


def _potentials(q: HiddenMarkov, x: np.ndarray, parameters: str) -> Potentials:
    PARAMETERS.check(parameters=parameters)
    if parameters == "expected-logs":
        with jax.enable_x64(True):
            return jax.device_get(potentials(q, x))
    members = q.emissions.members  # pyright: ignore
    return Potentials(
        np.log(q.expected_initial),
        np.log(q.expected_transitions),
        members.plugged_log_likelihood(x),
    )
