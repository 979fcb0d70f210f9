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

from collections.abc import Iterable, Sequence
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
    stacked, pairs = np.concatenate(costs), list(zip(costs, start, strict=True))
    uses = np.bincount(np.concatenate(start), minlength=stacked.shape[1])
    begin = [cost[np.arange(len(cost)), at] for cost, at in pairs]
    sites = _ranked(
        [np.hstack([np.sort(c.ravel()), np.sort(own)]) for c, own in zip(costs, begin, strict=True)]
    )
    rows = [_ranked(_sorted(c, own[:, None])) for c, own in zip(costs, begin, strict=True)]
    columns = np.array(_ranked(_sorted(stacked.T, uses[:, None])))
    place = np.argsort(columns)
    copies = [costs[site][rows[site]][:, columns] for site in sites]
    chosen = [place[start[site][rows[site]]] for site in sites]
    counts, trace = uses[columns], [binary_objective(copies, chosen, regularization)]
    for _ in range(max_sweeps):
        smallest, moved = SMALLEST_GAIN * abs(trace[-1]), False
        for index, cost in enumerate(copies):
            old = chosen[index]
            counts[old] -= 1
            price = cost + regularization * (np.sqrt(counts + 1.0) - np.sqrt(counts))
            all_rows, new = scipy.optimize.linear_sum_assignment(price)
            if price[all_rows, new].sum() < price[all_rows, old].sum() - smallest:
                chosen[index], moved = new, True
            counts[chosen[index]] += 1
        trace.append(binary_objective(copies, chosen, regularization))
        if not moved:
            break
    found = {
        site: columns[at[np.argsort(rows[site])]] for site, at in zip(sites, chosen, strict=True)
    }
    return Descent([found[site] for site in range(len(costs))], trace[-1], trace)


def _sorted(values: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Every row sorted, then the row's tie breaker."""
    return np.hstack([np.sort(values, axis=1), tie])


def _ranked(keys: Iterable[np.ndarray]) -> list[int]:
    """The order of keys by their bytes; adding 0.0 makes -0.0 and 0.0 the same."""
    contents = [(key + 0.0).tobytes() for key in keys]
    return sorted(range(len(contents)), key=contents.__getitem__)


def binary_objective(
    costs: Sequence[Float[np.ndarray, "_ columns"]],
    assignments: Sequence[Int[np.ndarray, " _"]],
    regularization: float,
) -> float:
    """Equation (9) of claici2020 at a binary plan: Σ chosen costs + λ Σ_g √n_g."""
    chosen = [cost[np.arange(len(at)), at] for cost, at in zip(costs, assignments, strict=True)]
    counts = np.bincount(np.concatenate(assignments))
    return float(np.concatenate(chosen).sum() + regularization * np.sqrt(counts).sum())
