"""Hidden Markov models: sequences with latent states."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from posterity.arguments import COUNT, Constraint, at_least
from posterity.arrays.typing import ArrayLike, Float, Int, KeyArray, PyTree, Real
from posterity.errors import ParameterError, StructureError
from posterity.families import Dirichlet, HiddenMarkov, Plate, at_rest
from posterity.families.checks import check_proper
from posterity.families.emitting import Emitting
from posterity.families.gaussian import LOG_2PI, log_normal
from posterity.models.base import ExpectedModel
from posterity.models.chains import Potentials, best_path, expected_counts, log_normalizer
from posterity.models.data import pair
from posterity.models.records import Records
from posterity.models.tables import array, check_numbers
from posterity.runtime.lazy import jax, jnp
from posterity.runtime.programs import jitted

OVER: Any = (Potentials(None, None, 0), 0)  # pyright: ignore[reportArgumentType]
"""Mapped axes of chains that share initial and transition potentials, and of their lengths."""
ONE = Constraint(
    "one HiddenMarkov",
    lambda law: isinstance(law, HiddenMarkov) and not law.batch_shape,
    StructureError,
)
EMISSIONS = Constraint(
    "NormalWishart or NormalGamma for vectors, Dirichlet for symbols, or your own kind of "
    "posterity.families.emitting.Emitting",
    lambda members: isinstance(members, Emitting),
    StructureError,
)
_marginals = jitted(lambda *chains: jax.vmap(expected_counts, OVER)(*chains)[1].observed)


def padded(sequences: Any, length: int | None = None) -> tuple[np.ndarray, Int[np.ndarray, " n"]]:
    """Pad sequences to one length, so that they are records, and return them with their lengths.

    Args:
        sequences: sequences of vectors (T, d), or of symbols (T,), which are whole numbers.
        length: padded length; by default the multiple of 64 that fits the longest, or of 16 if that
            is shorter than 64, so that few programs are compiled.

    Returns:
        ``x`` (n, length, d) or (n, length), and the lengths (n,).

    Raises:
        UsageError: for a ``length`` below that of a sequence.
        StructureError: if there is no sequence, an empty one, one that is no array of numbers, such
            as a data frame, whose names of columns are not known, or dimensions differ.
        ParameterError: for NaN, infinity, or symbols that are not whole numbers from zero.

    >>> x, lengths = padded([np.zeros((3, 2)), np.ones((5, 2))])
    >>> x.shape, lengths.tolist()
    ((2, 16, 2), [3, 5])
    """
    rows = [_checked(sequence) for sequence in sequences] if np.iterable(sequences) else []
    shapes = [own.shape for own in rows]
    whole = len({shape[1:] for shape in shapes}) == 1 and len(shapes[0]) in (1, 2)
    if not whole or not all(map(len, rows)):
        raise StructureError(
            found=f"{len(rows)} sequences of shapes {shapes[:4]}",
            expected="at least one sequence, all of vectors (T, d) or all of symbols (T,)",
        )
    lengths = np.array([len(own) for own in rows])
    longest = int(lengths.max())
    if length is None:
        step = 16 if longest < 64 else 64
        length = -(-longest // step) * step
    at_least(longest).check(length=length)
    x = np.zeros((len(rows), length, *rows[0].shape[1:]), rows[0].dtype)
    for row, own in zip(x, rows, strict=True):
        row[: len(own)] = own
    return x, lengths


def _checked(sequence: ArrayLike) -> np.ndarray:
    made = array(sequence, None, "steps of a sequence")
    check_numbers(
        made, "the steps of a sequence", "Impute missing values, or cut the sequence there."
    )
    symbols = (made >= 0) & (made % 1 == 0)
    if made.ndim == 1 and not symbols.all():
        raise ParameterError(
            found=f"{made[~symbols][0]} among the symbols",
            expected="whole numbers 0, 1, 2, …; others as (T, 1), and one sequence in a list",
        )
    return made.astype(np.int64 if made.ndim == 1 else np.float64)


class HiddenMarkovModel(ExpectedModel[HiddenMarkov]):
    """A hidden Markov model of sequences of vectors or symbols; data as from :func:`padded`, with
    one sequence per record.

    States are summed out. ``E_q[log p(x | z)]`` is replaced by its tightest lower bound over laws
    of the states: the log normaliser with expected log probabilities in place of log
    probabilities. Its natural gradient is the expected counts.

    Source: beal2003, chapter 3; johnson2014.

    >>> from posterity.families import NormalWishart
    >>> one = NormalWishart.from_standard(np.zeros(1), 1.0, np.eye(1), 3.0)
    >>> q = HiddenMarkov.prior(one, states=2)
    >>> with jax.enable_x64(True):
    ...     bounds = HiddenMarkovModel().expected_log_likelihood(q, padded([np.zeros((3, 1))]))
    >>> bounds.shape
    (1,)
    """

    families = (HiddenMarkov,)
    optima = "several"

    def check(self, data: PyTree) -> None:
        super().check(data)
        x, lengths = (np.asarray(part) for part in pair(data))
        if x.ndim not in (2, 3) or lengths.shape != x.shape[:1]:
            raise StructureError(
                found=f"arrays of shapes {x.shape} and {lengths.shape}",
                expected="padded(sequences): x of shape (n, T, d) or (n, T), and n lengths",
            )
        whole = (lengths % 1 == 0) & (lengths >= 1) & (lengths <= x.shape[1])
        symbols = x.ndim == 3 or ((x >= 0) & (x % 1 == 0)).all()
        if not whole.all() or not symbols:
            raise ParameterError(
                found=f"lengths from {lengths.min()} to {lengths.max()}, or symbols, for {x.shape}",
                expected="padded(sequences): whole lengths from 1 on, and symbols 0, 1, 2, …",
            )

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return ``log p(x | z)`` of each sequence in nats; ``z`` as the family samples it."""
        x, lengths = data
        observed = _emitted(z["emissions"][0], jnp.asarray(x))
        chain = Potentials(jnp.log(z["initial"]), jnp.log(z["transitions"][0]), observed)
        return jax.vmap(log_normalizer, OVER)(chain, lengths)  # type: ignore

    def expected_log_likelihood(self, q: HiddenMarkov, data: PyTree) -> Float[Real, " n"]:
        x, lengths = data
        return jax.vmap(log_normalizer, OVER)(potentials(q, x), lengths)  # type: ignore

    def expected_factor(
        self, q: HiddenMarkov, records: Records
    ) -> tuple[Float[Real, ""], HiddenMarkov]:
        (x, lengths), weights = records.data, records.weights
        counts = jax.vmap(expected_counts, OVER)  # type: ignore
        values, result = counts(potentials(q, x), lengths)
        shares = (weights[:, None, None] * result.observed).reshape(-1, q.states)
        flat = jnp.asarray(x).reshape(len(shares), *x.shape[2:])
        like: Any = q.emissions
        blocks = {
            "emissions": Plate(like.members.observed(flat, shares)),
            "initial": Dirichlet(weights @ result.initial),
            "transitions": Plate(Dirichlet(jnp.tensordot(weights, result.transitions, 1))),
        }
        return weights @ values, type(q).of_children([blocks])


@functools.partial(jitted, inline=True)
def potentials(q: HiddenMarkov, x: Real) -> Potentials:
    """Return expected log probabilities; those of observations have the leading axes of ``x``."""
    emissions, rows, initial = (q.blocks[n] for n in ("emissions", "transitions", "initial"))

    def logs(law):
        return jnp.asarray(law.mean_parameters)

    members = jax.tree.map(jnp.asarray, emissions.members)  # pyright: ignore
    observed = members.expected_log_likelihood(jnp.asarray(x))
    return Potentials(logs(initial), logs(rows.members), observed)  # pyright: ignore


def _emitted(z: PyTree, x: Real) -> Float[Real, "*shape k"]:
    """Return ``log p(x | state)`` for an event of the emissions; its first axis counts states."""
    if not isinstance(z, tuple):
        return jnp.log(jnp.moveaxis(z, -1, 0))[x]
    mean, precision = z
    gap = x[..., None, :] - mean
    if precision.ndim == mean.ndim:
        return (jnp.log(precision) - precision * gap**2 - LOG_2PI).sum(-1) / 2
    return log_normal(gap, precision)


@jitted
def counted(q: HiddenMarkov, records: Records) -> tuple[Float[Real, ""], HiddenMarkov]:
    """Return :meth:`HiddenMarkovModel.expected_factor`, compiled."""
    return HiddenMarkovModel().expected_factor(q, records)


def label(posterior: HiddenMarkov, sequences: Sequence[Any]) -> list[Int[np.ndarray, " t"]]:
    """Return the most likely path of states of each sequence (Viterbi), by expected log
    probabilities, as in fitting.

    Args:
        posterior: posterior of the parameters, fused or of one site.
        sequences: sequences of vectors (T, d) or symbols (T,).

    Raises:
        StructureError, ParameterError: for sequences that do not suit the model.

    >>> from posterity.families import NormalWishart, Plate
    >>> scale, nine = [[[0.1]], [[0.1]]], [9.0, 9.0]
    >>> one = NormalWishart.from_standard([[0.0], [9.0]], nine, scale, nine)
    >>> prior = HiddenMarkov.prior(one[0], states=2)
    >>> q = prior.with_members(one)
    >>> label(q, [np.array([[0.1], [8.8], [9.1]])])[0].tolist()
    [0, 1, 1]
    """
    q, x, lengths = _prepared(posterior, sequences)
    initial, rows, observed = _potentials(q, x)
    return [best_path(initial, rows, own[:n]) for own, n in zip(observed, lengths, strict=True)]


def marginals(posterior: HiddenMarkov, sequences: Sequence[Any]) -> list[Float[np.ndarray, "t k"]]:
    """Return state probabilities (t, K) at each step of each sequence; see :func:`label`."""
    q, x, lengths = _prepared(posterior, sequences)
    chain = _potentials(q, x)
    with jax.enable_x64(True):
        result = np.asarray(_marginals(chain, lengths))
    return [own[:n] for own, n in zip(result, lengths, strict=True)]


def log_predictive(
    posterior: HiddenMarkov,
    sequences: Sequence[Any],
    *,
    key: KeyArray | None = None,
    samples: int = 100,
) -> Float[np.ndarray, " n"]:
    """Return ``log p(sequence)`` of each new sequence in nats, averaged over the parameters.

    Args:
        posterior: posterior of the parameters.
        sequences: sequences of vectors (T, d) or symbols (T,).
        key: random key of the draws, ``jax.random.key(0)`` by default.
        samples: number of draws of the parameters over which likelihoods are averaged.

    Raises:
        StructureError, ParameterError: for sequences that do not suit the model.
    """
    COUNT.check(samples=samples)
    q, x, lengths = _prepared(posterior, sequences)
    with jax.enable_x64(True):
        draws = q.sample(jax.random.key(0) if key is None else key, (samples,))
        values = np.asarray(_likelihoods(draws, (x, lengths)))
    top = values.max(0)
    return top + np.log(np.mean(np.exp(values - top), axis=0))


@jitted
def _likelihoods(draws: PyTree, data: tuple[Real, Real]) -> Real:
    return jax.lax.map(lambda z: HiddenMarkovModel().log_likelihood(z, data), draws)


def _prepared(
    posterior: Any, sequences: Sequence[Any]
) -> tuple[HiddenMarkov, np.ndarray, np.ndarray]:
    ONE.check(posterior=posterior)
    check_proper(posterior, "the posterior")
    members: Any = posterior.emissions.members  # pyright: ignore
    EMISSIONS.check(emissions=members)
    x, lengths = padded(sequences)
    symbols = members.emits_symbols
    size = members.own_size
    if x.ndim != (2 if symbols else 3) or (x.max() >= size if symbols else x.shape[2] != size):
        raise StructureError(
            found=f"sequences of {'symbols' if x.ndim == 2 else f'{x.shape[2]} channels'} for "
            f"emissions {members!r}",
            expected="sequences of what the states emit",
        )
    return at_rest(posterior), x, lengths


def _potentials(q: HiddenMarkov, x: np.ndarray) -> Potentials:
    with jax.enable_x64(True):
        return jax.device_get(potentials(q, x))
