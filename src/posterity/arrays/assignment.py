"""Different columns for the rows of a matrix of costs, at the least total cost.

SciPy's solver serves large matrices. Importing it takes longer than ``posterity fuse`` of a few
files does otherwise, so small ones, the usual case, are solved here.
"""

import numpy as np

from posterity.arrays.typing import Float, Int

SMALL = 128
"""Entries up to which a matrix is solved here, in at most a few times SciPy's microseconds."""


def assignment(costs: Float[np.ndarray, "n m"]) -> Int[np.ndarray, " n"]:
    """Each row's column, of finite costs with at least as many columns as rows."""
    if costs.size > SMALL:
        from scipy.optimize import linear_sum_assignment

        return linear_sum_assignment(costs)[1]
    paths = _Paths(costs)
    for row in paths.free:
        paths.augment(row)
    return np.array(paths.column, dtype=np.intp)


class _Paths:
    """Shortest augmenting paths (crouse2016), from the rows whose cheapest column is not taken.

    ``due`` and ``price`` are the dual prices of rows and columns: no cost is below their sum, and
    assigned ones equal it. ``owner`` has each column's row, ``column`` each row's column.
    """

    def __init__(self, costs: Float[np.ndarray, "n m"]) -> None:
        self.costs = costs.tolist()
        self.due = [min(row) for row in self.costs]
        self.price = [0.0] * costs.shape[1]
        self.column: list[int] = [-1] * len(costs)
        self.owner: list[int] = [-1] * costs.shape[1]
        for row, (own, least) in enumerate(zip(self.costs, self.due, strict=True)):
            self._take(row, own.index(least))
        self.free = [row for row, column in enumerate(self.column) if column < 0]

    def augment(self, row: int) -> None:
        """Assign one more row: owners along the shortest path move on by a column each."""
        distance, before, settled = self._shortest(row)
        length = distance[settled[-1]]
        self.due[row] += length
        for column in settled[:-1]:
            self.due[self.owner[column]] += length - distance[column]
            self.price[column] -= length - distance[column]
        column = settled[-1]
        while column >= 0:
            self.owner[column] = mover = before[column]
            self.column[mover], column = column, self.column[mover]

    def _shortest(self, row: int) -> tuple[list[float], list[int], list[int]]:
        """Distances of columns, the rows before them, and columns settled, the last one free."""
        price, owner, length = self.price, self.owner, 0.0
        distance, before = [np.inf] * len(price), [row] * len(price)
        left, settled = list(range(len(price))), []
        while row >= 0:
            own, base = self.costs[row], length - self.due[row]
            for column in left:
                reach = base + own[column] - price[column]
                if reach < distance[column]:
                    distance[column], before[column] = reach, row
            nearest = min(left, key=distance.__getitem__)
            left.remove(nearest)
            settled.append(nearest)
            length, row = distance[nearest], owner[nearest]
        return distance, before, settled

    def _take(self, row: int, column: int) -> None:
        if self.owner[column] < 0:
            self.owner[column], self.column[row] = row, column
