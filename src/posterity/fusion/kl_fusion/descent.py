"""Exact descent on binary assignments at fixed costs.

For a binary P the group norm of column g in equation (9) of claici2020 is √n_g, n_g the
number of sites that use g. With the other sites fixed, using g costs one site C[l, g] plus
λ(√(n_g + 1) − √n_g), n_g counted over the others: its best answer is ONE rectangular linear
assignment kuhn1955, exact, so visiting the sites in turn never raises the objective.

**Why the order of the input is irrelevant.** The whole descent runs on a canonical copy of the
costs. Sites, the rows of a site and the columns are each sorted by their content only: the
bytes of their *sorted* costs, which no permutation changes and no sum rounds. Equal contents are
told apart by their costs or uses at the start; what is then still equal keeps its given order.
So two inputs that differ by the order of sites, components and globals become the same arrays,
bit for bit, ties between assignments are broken alike, and the answer is carried back. The one
exception: two sites, two rows of a site or two columns whose sets of costs are equal, bit for
bit, without being interchangeable. Costs that come from data do not do that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from posterity.arrays.typing import Float, Int
from posterity.errors import UsageError
from posterity.fusion.kl_fusion.costs import Sites, check_costs

# Smaller gains, relative to the objective, are rounding and would let a sweep cycle.
SMALLEST_GAIN = 1e-12


class Descent(NamedTuple):
    """A binary assignment that no site can improve on its own.

    Attributes:
        assignments: one (L_j,) array a site: the global component of each local one.
        objective: Σ costs of the chosen entries + λ Σ_g √n_g.
        trace: objective at the start (after the first, greedy sweep if none was given) and
            after every sweep; never rises.
    """

    assignments: list[Int[np.ndarray, " _"]]
    objective: float
    trace: list[float]


def assign_descent(
    costs: Sites,
    regularization: float,
    start: Sites | None = None,
    max_sweeps: int = 100,
) -> Descent:
    """Improves one site at a time, each exactly, until a whole sweep changes nothing.

    Args:
        costs: one (L_j, G) array a site, L_j ≤ G.
        regularization: λ ≥ 0, in the units of the costs.
        start: one (L_j,) array a site, columns all different within it, for example
            `round_plan(relax(costs, λ).plans)`; by default the sites enter one by one.
        max_sweeps: sweeps after which to stop; few are ever needed.

    Raises:
        UsageError: costs or λ that `relax` refuses; a start that does not fit the costs; no sweeps.

    Example:
        >>> costs = [np.array([[0.0, 0.3], [5.0, 0.0]]), np.array([[0.4, 0.3]])]
        >>> found = assign_descent(costs, 0.5)
        >>> [site.tolist() for site in found.assignments], round(found.objective, 6)
        ([[0, 1], [1]], 1.507107)
    """
    sites = check_costs(costs, regularization)
    if max_sweeps < 1:
        raise UsageError(
            found=f"max_sweeps {max_sweeps}", expected="at least 1", fix="100 is plenty."
        )
    given = None if start is None else _check_start(start, sites)
    order = _Order.of(sites, given)
    descent = _Sites(order.apply(sites), float(regularization), order.translate(given))
    trace = [descent.objective()] if given is not None else []
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
    """Equation (9) of claici2020 at a binary plan: Σ chosen costs + λ Σ_g √n_g.

    Example:
        >>> first = np.array([0])
        >>> costs = [np.array([[1.0, 9.0]]), np.array([[2.0, 9.0]])]
        >>> round(binary_objective(costs, [first, first], 1.0), 6)
        4.414214
    """
    chosen = [cost[np.arange(len(at)), at] for cost, at in zip(costs, assignments, strict=True)]
    counts = np.bincount(np.concatenate(assignments))
    return float(np.concatenate(chosen).sum() + regularization * np.sqrt(counts).sum())


class _Sites:
    """The state of the descent: each site's columns and how many sites use each column."""

    def __init__(
        self, costs: list[np.ndarray], regularization: float, chosen: list[np.ndarray] | None
    ) -> None:
        self.costs, self.regularization = costs, regularization
        self.chosen: list = [None] * len(costs) if chosen is None else list(chosen)
        self.counts = np.zeros(costs[0].shape[1], dtype=np.int64)
        for columns in chosen or []:
            self.counts[columns] += 1

    def sweep(self) -> bool:
        """Visits every site once; says whether any of them moved."""
        complete = all(columns is not None for columns in self.chosen)
        smallest = SMALLEST_GAIN * abs(self.objective()) if complete else 0.0
        moved = [self._improve(j, smallest) for j in range(len(self.costs))]
        return any(moved)

    def _improve(self, j: int, smallest: float) -> bool:
        old = self.chosen[j]
        if old is not None:
            self.counts[old] -= 1
        joining = np.sqrt(self.counts + 1.0) - np.sqrt(self.counts)
        cost = self.costs[j] + self.regularization * joining
        rows, new = linear_sum_assignment(cost)
        if old is not None and cost[rows, new].sum() >= cost[rows, old].sum() - smallest:
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
    def of(cls, costs: list[np.ndarray], start: list[np.ndarray] | None) -> _Order:
        stacked = np.concatenate(costs)
        uses = np.zeros(stacked.shape[1], dtype=np.int64)
        for at in start or []:
            uses[at] += 1
        begin = [_at(cost, start, j) for j, cost in enumerate(costs)]
        return cls(
            sites=_ranked(
                [_content(c.ravel()) + _content(x) for c, x in zip(costs, begin, strict=True)]
            ),
            rows=[_ranked(_contents(c, x[:, None])) for c, x in zip(costs, begin, strict=True)],
            columns=_ranked(_contents(stacked.T, uses[:, None])),
        )

    def apply(self, costs: list[np.ndarray]) -> list[np.ndarray]:
        return [costs[j][self.rows[j]][:, self.columns] for j in self.sites]

    def translate(self, start: list[np.ndarray] | None) -> list[np.ndarray] | None:
        """Assignments of the input in terms of the canonical copy."""
        position = np.argsort(self.columns)
        return start and [position[start[j][self.rows[j]]] for j in self.sites]

    def undo(self, chosen: list[np.ndarray]) -> list[np.ndarray]:
        """Assignments of the canonical copy in terms of the input."""
        columns, restored = np.asarray(self.columns), [np.empty(0, dtype=np.int64)] * len(chosen)
        for j, at in zip(self.sites, chosen, strict=True):
            restored[j] = columns[at[np.argsort(self.rows[j])]]
        return restored


def _at(cost: np.ndarray, start: list[np.ndarray] | None, j: int) -> np.ndarray:
    """Costs of a site's rows where they start; zeros without a start."""
    return np.zeros(len(cost)) if start is None else cost[np.arange(len(cost)), start[j]]


def _content(values: np.ndarray) -> bytes:
    """A key of the values, whatever their order; adding 0.0 makes -0.0 and 0.0 the same."""
    return np.sort(values + 0.0).tobytes()


def _contents(values: np.ndarray, tie: np.ndarray) -> list[bytes]:
    """`_content` of every row, then the row's tie breaker."""
    return [row.tobytes() for row in np.hstack([np.sort(values + 0.0, axis=1), tie + 0.0])]


def _ranked(keys: list[bytes]) -> list[int]:
    return sorted(range(len(keys)), key=keys.__getitem__)


def _check_start(start: Sites, costs: list[np.ndarray]) -> list[np.ndarray]:
    if len(start) != len(costs):
        raise UsageError(
            found=f"a start for {len(start)} sites",
            expected=f"{len(costs)}",
            fix="Give one array a site.",
        )
    return [_check_columns(j, np.asarray(at), costs[j]) for j, at in enumerate(start)]


def _check_columns(j: int, at: np.ndarray, cost: np.ndarray) -> np.ndarray:
    rows, columns = cost.shape
    fits = at.shape == (rows,) and np.issubdtype(at.dtype, np.integer)
    if not fits or len(set(at.tolist())) < rows or at.min() < 0 or at.max() >= columns:
        raise UsageError(
            found=f"start {at.tolist()} at site {j}",
            expected=f"{rows} different integers in 0..{columns - 1}",
            fix="round_plan makes one from a relaxed plan.",
        )
    return at
