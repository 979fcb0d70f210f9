"""The assignment problem; small ones without the import of SciPy's optimisers, which takes longer
than a fusion of some sites.
"""

import math

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int

Array = np.ndarray


def assignment(costs: Float[Array, "n m"], small: int = 256) -> Int[Array, " n"]:
    """Return a different column for each row at the least total of finite costs, ``n <= m``.

    Rows first take their nearest columns; each row whose column is taken then follows the shortest
    augmenting path (jonker1987). Matrices of more than ``small`` entries, for which it would save
    a tenth of a millisecond, are left to `scipy.optimize.linear_sum_assignment`, to which this is
    equal up to ties: the import of SciPy's optimisers takes a tenth of a second.

    >>> assignment(np.array([[0.0, 1.0, 5.0], [0.0, 3.0, 4.0]])).tolist()
    [1, 0]
    """
    if costs.size > small:
        return scipy.optimize.linear_sum_assignment(costs)[1]
    rows = costs.tolist()
    columns = range(costs.shape[1])
    prices = [0.0] * len(columns)  # Costs less prices are least where a row is matched
    row_of: list[int] = [-1] * len(columns)
    column_of = costs.argmin(axis=1).tolist()
    waiting = []
    for row, column in enumerate(column_of):
        if row_of[column] < 0:
            row_of[column] = row
        else:
            waiting.append(row)
    for first in waiting:
        length = [math.inf] * len(columns)
        came_from = [first] * len(columns)
        reached: list[int] = []
        open_ = set(columns)
        row = first
        so_far = 0.0
        own = min(cost - price for cost, price in zip(rows[first], prices, strict=True))
        while True:
            cost_of = rows[row]
            for column in open_:
                path = so_far + (cost_of[column] - prices[column] - own)
                if path < length[column]:
                    length[column], came_from[column] = path, row
            column = min(open_, key=length.__getitem__)
            so_far = length[column]
            if row_of[column] < 0:
                break
            open_.remove(column)
            reached.append(column)
            row = row_of[column]
            own = rows[row][column] - prices[column]
        for other in reached:
            prices[other] += length[other] - so_far
        while True:  # back along the path, each row takes the column it was left for
            row = came_from[column]
            row_of[column], column_of[row], column = row, column, column_of[row]
            if row == first:
                break
    return np.array(column_of)
