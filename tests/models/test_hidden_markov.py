"""Hidden Markov models: bounds, gradients, states, densities, and what is refused."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from posterity import federate
from posterity.arrays.namespace import namespace
from posterity.errors import ParameterError, StructureError, UsageError
from posterity.families import (
    Dirichlet,
    ExponentialFamily,
    Gamma,
    HiddenMarkov,
    NormalGamma,
    NormalWishart,
    Plate,
)
from posterity.families.emitting import Emitting
from posterity.inference import ClosedForm
from posterity.models import (
    HiddenMarkovModel,
    Records,
    hidden_markov,
    label,
    log_predictive,
    marginals,
    padded,
)
from posterity.models.chains import Potentials, best_path, expected_counts, log_normalizer
from posterity.models.hidden_markov import counted

MODEL = HiddenMarkovModel()
BOUND = jax.jit(MODEL.expected_log_likelihood)
EMISSIONS: dict[str, ExponentialFamily] = {
    "NormalWishart": NormalWishart.from_standard(
        [[0.0, 0.0], [3.0, 1.0]], [5.0, 4.0], [np.eye(2) / 5, np.eye(2) / 9], [6.0, 7.0]
    ),
    "NormalGamma": NormalGamma.from_standard(
        [[0.0, 0.0], [3.0, 1.0]], np.full((2, 2), 5.0), np.full((2, 2), 4.0), np.full((2, 2), 6.0)
    ),
    "Dirichlet": Dirichlet.from_standard([[8.0, 1.0, 2.0], [1.0, 3.0, 9.0]]),
}


def families(*slow: str) -> pytest.MarkDecorator:
    """Every kind of emissions; those named are not tried quickly."""
    marked = lambda name: pytest.param(name, marks=pytest.mark.slow) if name in slow else name
    return pytest.mark.parametrize("family", [marked(name) for name in EMISSIONS])


def posterior(family: str) -> HiddenMarkov:
    return HiddenMarkov(
        emissions=Plate(EMISSIONS[family]),
        initial=Dirichlet.from_standard([2.0, 1.0]),
        transitions=Plate(Dirichlet.from_standard([[9.0, 1.0], [2.0, 7.0]])),
    )


def sequences(family: str, *lengths: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    if family == "Dirichlet":
        return [rng.integers(3, size=n) for n in lengths]
    return [rng.normal(size=(n, 2)) * 2 for n in lengths]


@pytest.mark.slow
@families("NormalGamma")
def test_expected_counts_are_the_natural_gradient(family: str) -> None:
    """What hidden states add up to is ``F⁻¹ ∇_η`` of the bound, which needs no Fisher matrix."""
    q, records = posterior(family), Records.of(padded(sequences(family, 7, 4, 1)))
    means = lambda eta: q.with_natural_parameters(eta).mean_parameters

    def bound(eta: jax.Array) -> jax.Array:
        law = q.with_natural_parameters(eta)
        return (records.weights * MODEL.expected_log_likelihood(law, records.data)).sum()

    with jax.enable_x64(True):
        found = jax.device_get(jax.jit(lambda q: ClosedForm().evaluate(MODEL, q, records))(q))
        eta = jax.numpy.asarray(q.natural_parameters)
        value, slope = jax.jit(jax.value_and_grad(bound))(eta)
        moved = jax.jit(lambda eta, along: jax.jvp(means, (eta,), (along,))[1])
        along = moved(eta, found.gradient.natural_parameters)
        value, slope, along = map(np.asarray, (value, slope, along))
    np.testing.assert_allclose(found.value, value, rtol=1e-12)
    np.testing.assert_allclose(along, slope, atol=1e-10 * np.abs(slope).max())


@pytest.mark.slow
@families("NormalWishart", "NormalGamma")
def test_the_bound_is_below_the_evidence_of_draws(family: str) -> None:
    """``E_q[log p(x | z)]`` is no larger than ``log E_q[p(x | z)]``: Jensen's inequality."""
    q, data = posterior(family), sequences(family, 5, 3)
    draws = 4000
    with jax.enable_x64(True):
        bound = np.asarray(BOUND(q, padded(data)))
        z = q.sample(jax.random.key(1), (draws,))
        logs = jax.jit(jax.vmap(lambda one: MODEL.log_likelihood(one, padded(data))))(z)
    evidence = log_predictive(q, data, samples=draws, key=jax.random.key(0))
    assert (bound < evidence).all()
    # The bound is above the average of log likelihoods only by what paths add: never below it.
    logs = np.asarray(logs)
    error = logs.std(0) / draws**0.5
    assert (bound <= logs.mean(0) + 4 * error).all()


@families("NormalGamma")
def test_states_are_found_and_padding_says_nothing(family: str) -> None:
    q, data = posterior(family), sequences(family, 40, 3)
    paths, shares = label(q, data), marginals(q, data)
    assert [len(path) for path in paths] == [40, 3]
    for path, share in zip(paths, shares, strict=True):
        np.testing.assert_allclose(share.sum(1), 1.0, rtol=1e-12)
        assert (share.argmax(1) == path).mean() >= 0.8
    alone = marginals(q, data[1:])[0]
    np.testing.assert_allclose(shares[1], alone, rtol=1e-10)
    one, other = padded(data), padded(data, 77)
    with jax.enable_x64(True):
        same = [np.asarray(BOUND(q, some)) for some in (one, other)]
    np.testing.assert_allclose(*same, rtol=1e-12)


@pytest.mark.slow
def test_refinement_finds_what_coordinate_ascent_does() -> None:
    """Two sites, visited until nothing changes, are the fit of all sequences."""
    q = posterior("Dirichlet")
    data = [np.repeat([0, 2, 0, 2], 12), np.repeat([2, 0, 1, 2], 10), np.repeat([1, 0], 9)]
    run = federate({"a": padded(data[:2]), "b": padded(data[2:])}, MODEL, q)
    assert run.status.converged
    records, found = Records.of(padded(data)), q
    with jax.enable_x64(True):
        for _ in range(200):
            found = q + jax.device_get(counted(found, records)[1])
    np.testing.assert_allclose(
        run.posterior.natural_parameters, found.natural_parameters, rtol=1e-3, atol=1e-2
    )


@pytest.mark.slow
def test_states_never_visited_and_a_constant_channel_are_harmless() -> None:
    one = NormalWishart.from_standard(np.zeros(2), 1.0, np.eye(2), 4.0)
    q = HiddenMarkov.prior(one, states=5, concentration=1e-3, initial=1e-3)
    x = np.column_stack([np.repeat([0.0, 8.0], 20), np.zeros(40)])
    named = log_predictive(q, [x], samples=2, key=jax.random.key(0))
    assert np.isfinite(named).all() and named == log_predictive(q, [x], samples=2)
    assert np.isfinite(marginals(q, [x])[0]).all()


BAD = {
    "no sequence": [],
    "an empty one": [np.zeros((0, 2))],
    "other channels": [np.zeros((3, 3))],
    "mixed": [np.zeros((3, 2)), np.zeros((3, 1))],
    "NaN": [np.array([[0.0, np.nan]])],
    "symbols": [np.array([0, 1])],
    "text": [np.array([["a", "b"]])],
    "uneven": [[[1.0, 2.0], [3.0]]],
    "unwrapped": [*np.array([[0.5, 2.0], [3.0, 1.0]])],
}


@pytest.mark.parametrize("name", list(BAD))
def test_sequences_that_are_none_are_refused(name: str) -> None:
    with pytest.raises((StructureError, ParameterError)):
        label(posterior("NormalWishart"), BAD[name])


def test_other_misuse_is_refused() -> None:
    q, data = posterior("Dirichlet"), sequences("Dirichlet", 4)
    with pytest.raises(StructureError, match="symbols"):
        label(q, [np.array([0, 3])])
    with pytest.raises(ParameterError, match="whole numbers"):
        label(q, [np.array([0.5, 1.0])])
    with pytest.raises(UsageError, match="samples=0"):
        log_predictive(q, data, samples=0, key=jax.random.key(0))
    with pytest.raises(UsageError, match="length=2; expected a whole number, at least 4"):
        padded(data, 2)
    for length in (0, 5, 1.5):
        with pytest.raises(ParameterError, match=f"to {length}"):
            MODEL.check((np.zeros((1, 4, 2)), np.array([length])))
    with pytest.raises(StructureError, match=r"0 sequences.*at least one sequence"):
        padded(3)
    with pytest.raises(StructureError, match=r"shapes \[\(\), \(\)\]"):
        padded([1, 2])
    with pytest.raises(StructureError, match="padded"):
        MODEL.check((np.zeros((2, 4, 2)), np.array([1])))


# --- sums and maxima over paths, against all paths one by one ---------------------------------


def chain(seed: int, steps: int, states: int) -> Potentials:
    rng = np.random.default_rng(seed)
    shapes = (states,), (states, states), (steps, states)
    return Potentials(*(3 * rng.normal(size=shape) for shape in shapes))


def every_path(own: Potentials, steps: int) -> dict[tuple[int, ...], float]:
    """The potential of each."""
    found = {}
    for path in itertools.product(range(len(own.initial)), repeat=steps):
        moves = sum(own.transitions[i, j] for i, j in itertools.pairwise(path))
        seen = sum(own.observed[t, k] for t, k in enumerate(path))
        found[path] = float(own.initial[path[0]] + moves + seen)
    return found


chains = given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 3))


@chains
def test_the_normalizer_and_its_counts_are_those_of_all_paths(
    seed: int, steps: int, states: int
) -> None:
    own = chain(seed, 5, states)  # one step or more is padding
    paths = every_path(own, steps)
    weights = np.exp(np.array(list(paths.values())))
    with jax.enable_x64(True):
        value, counts = jax.device_get(jax.jit(expected_counts)(own, steps))
    np.testing.assert_allclose(value, np.log(weights.sum()), rtol=1e-12)
    visits, moves = np.zeros((5, states)), np.zeros((states, states))
    for path, weight in zip(paths, weights / weights.sum(), strict=True):
        for t, k in enumerate(path):
            visits[t, k] += weight
        for i, j in itertools.pairwise(path):
            moves[i, j] += weight
    np.testing.assert_allclose(counts.observed, visits, atol=1e-12)
    np.testing.assert_allclose(counts.transitions, moves, atol=1e-12)
    np.testing.assert_allclose(counts.initial, visits[0], atol=1e-12)


@chains
def test_the_best_path_is_the_best_of_all(seed: int, steps: int, states: int) -> None:
    own = chain(seed, steps, states)
    paths = every_path(own, steps)
    assert tuple(best_path(*own).tolist()) == max(paths, key=paths.__getitem__)


def test_a_long_chain_far_off_neither_overflows_nor_vanishes() -> None:
    """Probabilities of 20,000 steps are far below the smallest number, and so are dead moves."""
    steps = 20_000
    own = Potentials(np.zeros(2), np.full((2, 2), -1e4), np.full((steps, 2), -1e3))
    with jax.enable_x64(True):
        value, counts = jax.jit(expected_counts)(own, steps)
    expected = steps * -1e3 + (steps - 1) * -1e4 + steps * np.log(2)
    assert float(value) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(np.asarray(counts.observed).sum(1), 1.0, rtol=1e-9)


def test_single_precision_is_single_precision() -> None:
    own = Potentials(*(np.asarray(leaf, np.float32) for leaf in chain(0, 4, 2)))
    assert jax.eval_shape(log_normalizer, own, 4).dtype == np.float32


# --- a user's own family as what the states of a chain emit -----------------------------------


class PoissonRate(Gamma, Emitting):
    """Of counts, one a step: vectors of one channel."""

    def expected_log_likelihood(self, x: Any) -> Any:
        log, mean = self.xp.digamma(self.shape) - self.xp.np.log(self.rate), self.mean
        return x * log - mean - namespace(x).special.gammaln(x + 1)

    def observed(self, x: Any, weights: Any) -> Any:
        return type(self)(weights.T @ x[:, 0], weights.sum(0))


RATES = PoissonRate.from_standard([20.0, 400.0], [10.0, 10.0])
Q = HiddenMarkov(
    emissions=Plate(RATES),
    initial=Dirichlet.from_standard([1.0, 1.0]),
    transitions=Plate(Dirichlet.from_standard([[9.0, 1.0], [1.0, 9.0]])),
)


def test_states_are_told_by_a_familys_own_formulas() -> None:
    truth = np.repeat([0, 1, 0], 20)
    x = np.random.default_rng(0).poisson(np.array([2.0, 40.0])[truth])[:, None]
    (found,) = label(Q, [x])
    np.testing.assert_array_equal(found, truth)


def test_counts_are_what_it_adds() -> None:
    """With rates so far apart, each step adds to its own state, with certainty."""
    x = np.array([[1.0], [2.0], [41.0], [39.0], [0.0]])
    with jax.enable_x64(True):
        bound, factor = counted(Q, Records.of(padded([x])))
    members: Any = factor.emissions.members
    np.testing.assert_allclose(members.shape_minus_one, [3.0, 80.0], atol=1e-6)
    np.testing.assert_allclose(members.rate, [3.0, 2.0], atol=1e-6)
    path = [0, 0, 1, 1, 0]
    emitted = RATES.expected_log_likelihood(x)[np.arange(5), path].sum()
    logs = scipy.special.psi([9.0, 1.0]) - scipy.special.psi(10.0)
    start = scipy.special.psi(1.0) - scipy.special.psi(2.0)
    assert float(bound) == pytest.approx(emitted + start + 2 * logs.sum(), abs=1e-6)


def test_what_does_not_say_what_it_emits_is_refused() -> None:
    hidden_markov.EMISSIONS.check(emissions=RATES)
    assert not RATES.emits_symbols and Dirichlet.emits_symbols
    with pytest.raises(StructureError, match="Emitting"):
        hidden_markov.EMISSIONS.check(emissions=Gamma.from_standard(1.0, 1.0))
