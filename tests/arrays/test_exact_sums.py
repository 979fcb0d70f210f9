"""Sums of floats against rational arithmetic, over all magnitudes that float64 has."""

import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from posterity.arrays.exact_sums import LARGE, condensed, exact_sum
from posterity.errors import ParameterError

MAX, TINY = sys.float_info.max, 5e-324

mantissas = st.integers(-(2**53), 2**53)
near = st.builds(lambda m, e: float(np.ldexp(m, e)), mantissas, st.integers(-8, 8))
ties = st.builds(lambda e, s: s * 2.0**e, st.integers(-110, 110), st.sampled_from([-1, 1]))
anything = st.floats(allow_nan=False, allow_infinity=False, width=64)
numbers = st.one_of(near, ties, anything)


def greedy(terms):
    """The definition: the sum rounded to nearest, then what is left, until nothing is."""
    layers, rest = [], sum(map(Fraction, terms))
    while rest or not layers:
        layers.append(rest.numerator / rest.denominator)  # Python rounds this to nearest
        rest -= Fraction(layers[-1])
    return layers


def bits(layers):
    return [np.float64(layer).tobytes() for layer in layers]


def layers_of(terms):
    return exact_sum(np.array(terms)[:, None])[:, 0].tolist()


@pytest.mark.slow
@given(st.lists(numbers, min_size=1, max_size=24))
@example([-0.0, -0.0])
@example([TINY, -1.0, TINY, 1.0])
@example([1.0, 2.0**-53, 2.0**-120])
@example([1.0, 2.0**-53, -(2.0**-120)])
@example([MAX, MAX, -MAX])
@example([MAX, 2.0**969, TINY])
@example([MAX, -(2.0**970)])
@example([float(2.0**k) for k in range(-1000, 900, 60)])
def test_layers_are_the_sum_rounded_to_nearest_again_and_again(terms):
    try:
        expected = greedy(terms)
    except OverflowError:
        with pytest.raises(ParameterError, match="beyond the range"):
            layers_of(terms)
    else:
        assert bits(layers_of(terms)) == bits(expected)


@given(st.data(), st.lists(near | ties, min_size=1, max_size=12))
def test_whatever_comes_and_goes_leaves_no_trace(data, terms):
    order = data.draw(st.permutations(terms))
    held = []
    for term in order:
        held = layers_of([*held, term])
    assert bits(held) == bits(layers_of(terms))
    gone = data.draw(st.integers(0, len(order)))
    for term in order[:gone]:
        held = layers_of([*held, -term])
    assert bits(held) == bits(layers_of([0.0, *order[gone:]]))


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 8, 9, 300]))
def test_columns_do_not_know_of_each_other(seed, count):
    rng = np.random.default_rng(seed)
    terms = np.ldexp(rng.normal(size=(count, 5)), rng.integers(-40, 40, (count, 5)))
    terms[:, 1] = np.ldexp(terms[:, 1], 900)
    terms[: count // 2, 2] = -terms[count // 2 : 2 * (count // 2), 2]
    terms[:, 3] = np.resize([1.0, 2.0**-53, 2.0**-120], count)
    layers = exact_sum(terms)
    assert not layers.flags.writeable
    for column, own in zip(terms.T, layers.T, strict=True):
        alone = greedy(column)
        assert bits(own[: len(alone)]) == bits(alone)
        assert not own[len(alone) :].any()


@given(st.lists(anything.filter(lambda x: abs(x) <= LARGE), min_size=1, max_size=50))
def test_condensing_keeps_sums(terms):
    rows = condensed(np.array(terms), few=1)
    assert sum(map(Fraction, rows.tolist())) == sum(map(Fraction, terms))


def test_condensing_makes_few_of_many():
    terms = np.random.default_rng(0).normal(size=(100_000, 3))
    assert len(condensed(terms)) <= 3
    for count in range(1, 9):  # quicker one by one
        assert len(condensed(terms[:count])) == count
    assert len(condensed(np.ones((9, 3)))) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [2, 24])
def test_what_is_not_finite_is_refused(value, count):
    terms = np.ones((count, 2))
    terms[-1, 1] = value
    with pytest.raises(ParameterError, match="NaN or infinity"):
        exact_sum(terms)


def test_nothing_sums_to_one_layer_of_zeros():
    assert exact_sum(np.zeros((3, 0))).shape == (1, 0)
    assert exact_sum(np.zeros((0, 3))).tolist() == [[0.0, 0.0, 0.0]]


def test_narrow_numbers_are_summed_as_wide_ones():
    terms = np.array([[1e8], [1.0], [2.0**-60]], np.float32)
    with warnings.catch_warnings(action="error"):
        assert exact_sum(terms).tolist() == [[1e8 + 1], [2.0**-60]]
