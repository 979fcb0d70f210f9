"""Sums and maxima over paths, against all paths one by one."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.models.chains import Potentials, best_path, expected_counts, log_normalizer


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
    assert log_normalizer(own, 4).dtype == np.float32
