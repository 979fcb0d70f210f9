"""The assignment problem, beside SciPy's solver."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from posterity.arrays.assignment import assignment


@pytest.mark.parametrize("scale", [1.0, 1e12])
@given(
    rows=st.integers(1, 9),
    spare=st.integers(0, 9),
    levels=st.sampled_from([2, 5, 10**6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_columns_differ_and_cost_least(
    scale: float, rows: int, spare: int, levels: int, seed: int
) -> None:
    # Few levels make ties; columns that are near to every row make long paths.
    generator = np.random.default_rng(seed)
    costs = generator.integers(levels, size=(rows, rows + spare)) + generator.integers(
        levels, size=rows + spare
    )
    costs = costs * scale
    assert costs.size <= 256
    columns = assignment(costs)
    assert len(set(columns.tolist())) == rows
    assert costs[np.arange(rows), columns].sum() == costs[linear_sum_assignment(costs)].sum()


def test_larger_matrices_are_solved_by_scipy() -> None:
    costs = np.random.default_rng(0).normal(size=(20, 30))
    np.testing.assert_array_equal(assignment(costs), linear_sum_assignment(costs)[1])
