"""Small matrices of costs are assigned as SciPy assigns them."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import linear_sum_assignment

from posterity.arrays.assignment import SMALL, assignment

SHAPES = st.tuples(st.integers(1, 8), st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1]))
COSTS = st.floats(-1e6, 1e6) | st.integers(0, 3).map(float)  # the integers tie


def total(costs, columns):
    return costs[np.arange(len(costs)), columns].sum()


@given(SHAPES.flatmap(lambda shape: arrays.arrays(float, shape, elements=COSTS)))
def test_columns_differ_and_cost_as_little_as_they_can(costs):
    columns = assignment(costs)
    assert costs.size <= SMALL and len(set(columns.tolist())) == len(costs)
    least = total(costs, linear_sum_assignment(costs)[1])
    assert abs(total(costs, columns) - least) <= 1e-9 * max(1.0, np.abs(costs).max())


def test_large_matrices_are_scipys():
    costs = np.random.default_rng(0).random((20, 30))
    assert costs.size > SMALL
    assert (assignment(costs) == linear_sum_assignment(costs)[1]).all()


def test_fusing_a_few_components_does_not_import_the_optimisers():
    code = """
import sys
import numpy as np
from posterity import DiagonalGaussian, Plate, fuse
mean = np.array([[0.0], [0.1], [9.0]])
sites = [Plate(DiagonalGaussian.from_standard(mean + s, np.ones((3, 1)))) for s in (0, 0.01, 0.02)]
fuse(sites)
print("scipy.optimize" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
