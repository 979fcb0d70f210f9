"""Exact descent on binary assignments at fixed costs.

For a binary P the group norm of column g in equation (9) of claici2020 is √n_g, n_g the
number of sites that use g. With the other sites fixed, using g costs one site C[l, g] plus
λ(√(n_g + 1) − √n_g), n_g counted over the others: its best answer is ONE rectangular linear
assignment kuhn1955, exact, so visiting the sites in turn never raises the objective.

The order of sites, components and globals changes nothing, not even a bit: the descent runs on a
canonical copy, where sites, rows and columns are sorted by the bytes of their *sorted* costs, which
no permutation changes and no sum rounds. Equal contents are told apart by their costs or uses at
the start; what is then still equal, without being interchangeable, does not come from data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int

# Smaller gains, relative to the objective, are rounding and would let a sweep cycle.
SMALLEST_GAIN = 1e-12


class Descent(NamedTuple):
    """A binary assignment that no site can improve on its own.

    Attributes:
        assignments: one (L_j,) array a site: the global component of each local one.
        objective: Σ costs of the chosen entries + λ Σ_g √n_g.
        trace: objective at the start and after every sweep; never rises.
    """

    assignments: list[Int[np.ndarray, " _"]]
    objective: float
    trace: list[float]


def assign_descent(
    costs: Sequence[Float[np.ndarray, "_ columns"]],
    regularization: float,
    start: Sequence[Int[np.ndarray, " _"]],
    max_sweeps: int = 100,
) -> Descent:
    """Improves one site at a time, each exactly, until a whole sweep changes nothing.

    Args:
        costs: one (L_j, G) array a site, L_j ≤ G, finite.
        regularization: λ ≥ 0, in the units of the costs.
        start: one (L_j,) array a site, columns all different within it, as `round_plan` makes.
        max_sweeps: sweeps after which to stop; few are ever needed.

    Example:
        >>> costs = [np.array([[0.0, 0.3], [5.0, 0.0]]), np.array([[0.4, 0.3]])]
        >>> found = assign_descent(costs, 0.5, [np.array([0, 1]), np.array([0])])
        >>> [site.tolist() for site in found.assignments], round(found.objective, 6)
        ([[0, 1], [1]], 1.507107)
    """
    order = _Order.of(costs, start)
    descent = _Sites(order.apply(costs), regularization, order.translate(start))
    trace = [descent.objective()]
    for _ in range(max_sweeps):
        changed = descent.sweep()
        trace.append(descent.objective())
        if not changed:
            break
    return Descent(order.undo(descent.chosen), trace[-1], trace)


def binary_objective(
    costs: Sequence[Float[np.ndarray, "_ columns"]],
    assignments: Sequence[Int[np.ndarray, " _"]],
    regularization: float,
) -> float:
    """Equation (9) of claici2020 at a binary plan: Σ chosen costs + λ Σ_g √n_g."""
    chosen = [cost[np.arange(len(at)), at] for cost, at in zip(costs, assignments, strict=True)]
    counts = np.bincount(np.concatenate(assignments))
    return float(np.concatenate(chosen).sum() + regularization * np.sqrt(counts).sum())


class _Sites:
    """The state of the descent: each site's columns and how many sites use each column."""

    def __init__(
        self, costs: list[np.ndarray], regularization: float, chosen: list[np.ndarray]
    ) -> None:
        self.costs, self.regularization, self.chosen = costs, regularization, chosen
        self.counts = np.bincount(np.concatenate(chosen), minlength=costs[0].shape[1])

    def sweep(self) -> bool:
        """Visits every site once; says whether any of them moved."""
        smallest = SMALLEST_GAIN * abs(self.objective())
        moved = [self._improve(j, smallest) for j in range(len(self.costs))]
        return any(moved)

    def _improve(self, j: int, smallest: float) -> bool:
        old = self.chosen[j]
        self.counts[old] -= 1
        joining = np.sqrt(self.counts + 1.0) - np.sqrt(self.counts)
        cost = self.costs[j] + self.regularization * joining
        rows, new = scipy.optimize.linear_sum_assignment(cost)
        if cost[rows, new].sum() >= cost[rows, old].sum() - smallest:
            new = old
        self.counts[new] += 1
        self.chosen[j] = new
        return new is not old

    def objective(self) -> float:
        return binary_objective(self.costs, self.chosen, self.regularization)


class _Order(NamedTuple):
    """Canonical orders: position in the canonical copy -> position in the input."""

    sites: list[int]
    rows: list[list[int]]
    columns: list[int]

    @classmethod
    def of(cls, costs: Sequence[np.ndarray], start: Sequence[np.ndarray]) -> _Order:
        stacked = np.concatenate(costs)
        uses = np.bincount(np.concatenate(start), minlength=stacked.shape[1])
        begin = [cost[np.arange(len(cost)), at] for cost, at in zip(costs, start, strict=True)]
        pairs = list(zip(costs, begin, strict=True))
        return cls(
            sites=_ranked([_content(cost.ravel()) + _content(at) for cost, at in pairs]),
            rows=[_ranked(_contents(cost, at[:, None])) for cost, at in pairs],
            columns=_ranked(_contents(stacked.T, uses[:, None])),
        )

    def apply(self, costs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [costs[j][self.rows[j]][:, self.columns] for j in self.sites]

    def translate(self, start: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Assignments of the input in terms of the canonical copy."""
        position = np.argsort(self.columns)
        return [position[start[j][self.rows[j]]] for j in self.sites]

    def undo(self, chosen: list[np.ndarray]) -> list[np.ndarray]:
        """Assignments of the canonical copy in terms of the input."""
        columns, restored = np.asarray(self.columns), [np.empty(0, dtype=np.int64)] * len(chosen)
        for j, at in zip(self.sites, chosen, strict=True):
            restored[j] = columns[at[np.argsort(self.rows[j])]]
        return restored


def _content(values: np.ndarray) -> bytes:
    """A key of the values, whatever their order; adding 0.0 makes -0.0 and 0.0 the same."""
    return np.sort(values + 0.0).tobytes()


def _contents(values: np.ndarray, tie: np.ndarray) -> list[bytes]:
    """`_content` of every row, then the row's tie breaker."""
    return [row.tobytes() for row in np.hstack([np.sort(values + 0.0, axis=1), tie + 0.0])]


def _ranked(keys: list[bytes]) -> list[int]:
    return sorted(range(len(keys)), key=keys.__getitem__)
