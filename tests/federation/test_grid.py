import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws.table import NAMES, identical, laws, some

from posterity.errors import ParameterError
from posterity.families import Beta, Gamma
from posterity.federation import Grid
from posterity.federation.grid import DIGITS, REACH, magnitudes

seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("name", NAMES)
@laws
@given(seed=seeds, reach=st.sampled_from([2.0**7, 2.0**20, REACH]))
def test_rounding_is_idempotent_and_within_half_a_step(name, seed, reach):
    prior, factor = some(name, count=2, seed=seed)
    grid = Grid.of(prior, reach)
    once = grid.round(factor)
    assert identical(once, grid.round(once))
    for exponent, was, is_ in zip(
        grid.exponents, jax.tree.leaves(factor), jax.tree.leaves(once), strict=True
    ):
        assert np.abs(was - is_).max() <= np.ldexp(0.5, exponent)


@pytest.mark.parametrize("name", NAMES)
@laws
@given(seed=seeds, order=st.permutations(range(6)))
def test_sums_do_not_depend_on_order_and_subtraction_leaves_nothing(name, seed, order):
    prior, *factors = some(name, count=7, seed=seed)
    grid = Grid.of(prior)
    prior, factors = grid.round(prior), [grid.round(factor) for factor in factors]
    factors[1] = -factors[1]
    forth = sum(factors, start=prior)
    other = sum((factors[k] for k in order), start=prior)
    assert identical(forth, other)
    for k in order[:-1]:
        other = other - factors[k]
    assert identical(other, prior + factors[order[-1]])


def test_without_the_grid_subtraction_leaves_something():
    prior, a, b = Gamma(0.1, 0.1), Gamma(0.2, 0.7), Gamma(0.3, 0.3)
    assert not identical(prior + a + b - a, prior + b)


@given(st.floats(1e-200, 1e200), st.sampled_from([2.0**7, REACH]))
def test_the_grid_is_the_finest_that_holds_the_reach(largest, reach):
    (exponent, _) = Grid.of(Beta(largest, 1.0), reach).exponents
    limit = np.ldexp(1.0, exponent + DIGITS)
    assert limit / 2 < largest * reach <= limit


def test_a_leaf_of_zeros_counts_as_one():
    assert Grid.of(Beta(0.0, 1.0)).exponents == Grid.of(Beta(1.0, 1.0)).exponents


def test_factors_that_cancel_must_fit_in_any_order():
    grid = Grid.of(Beta(1.0, 1.0), reach=4.0)
    unit = np.ldexp(1.0, grid.exponents[0])
    prior, big = grid.round(Beta(1.0, 1.0)), grid.round(Beta(3.0, 0.0))
    odd = Beta(3.0 - unit, 0.0)
    assert identical(grid.round(odd), odd)
    # Their sum is small, and still wrong by way of a partial sum that is rounded.
    assert not identical(prior + big + odd - big, prior + odd)
    grid.check(magnitudes(prior) + magnitudes(big), "here")
    with pytest.raises(ParameterError, match=r"add up to 10 in here.*at most 4.*larger `reach`"):
        grid.check(magnitudes(prior) + magnitudes(big) + magnitudes(odd) + magnitudes(-big), "here")


def test_what_is_not_finite_is_out_of_reach():
    grid = Grid.of(Beta(1.0, 1.0))
    for value in (np.nan, np.inf, 1e308):
        with pytest.raises(ParameterError):
            grid.check(magnitudes(grid.round(Beta(value, 1.0))), "here")


def test_no_zero_has_a_sign():
    rounded = Grid.of(Beta(1.0, 1.0)).round(Beta(-1e-30, -0.0))
    assert not np.signbit([rounded.a_minus_one, rounded.b_minus_one]).any()
