"""Costs of matching, checked where they come in."""

from collections.abc import Sequence

import numpy as np

from posterity.arrays.typing import Float, Num
from posterity.errors import UsageError

# What comes in is checked by `check_costs`, whose errors name the site: the annotation lets any
# shape through to it. Expected is one (L_j, G) array a site.
Sites = Sequence[Num[np.ndarray, "..."]]

LARGEST_COST = 1e100  # far from overflow in sums and differences


def check_costs(costs: Sites, regularization: float) -> list[Float[np.ndarray, "_ columns"]]:
    """The costs as float64 arrays, or a UsageError that names the site and the way out."""
    sites = [np.asarray(cost, dtype=np.float64) for cost in costs]
    if not sites:
        raise UsageError(
            found="no sites", expected="at least one cost matrix", fix="Pass one a site."
        )
    for j, cost in enumerate(sites):
        _check_shape(j, cost, sites[0].shape[-1] if sites[0].ndim else 0)
        _check_values(j, cost)
    if not (np.isfinite(regularization) and regularization >= 0):
        raise UsageError(
            found=f"regularization {regularization}",
            expected="a finite number >= 0",
            fix="Use 0 for no penalty on the number of columns.",
        )
    return sites


def _check_shape(j: int, cost: np.ndarray, columns: int) -> None:
    if cost.ndim != 2 or 0 in cost.shape:
        raise UsageError(
            found=f"costs of shape {cost.shape} at site {j}",
            expected="(components, globals), both at least one",
            fix="Leave out sites without components.",
        )
    if cost.shape[1] != columns:
        raise UsageError(
            found=f"{cost.shape[1]} columns at site {j} and {columns} at site 0",
            expected="one a global component",
            fix="Use the same global components for every site.",
        )
    if cost.shape[0] > columns:
        raise UsageError(
            found=f"{cost.shape[0]} components at site {j} and {columns} global components",
            expected="at least as many globals",
            fix="Add some, as no two of a site may share one.",
        )


def _check_values(j: int, cost: np.ndarray) -> None:
    usable = np.abs(cost) <= LARGEST_COST  # False for NaN
    if not usable.all():
        raise UsageError(
            found=f"{np.count_nonzero(~usable)} costs that are NaN, infinite or huge at site {j}",
            expected=f"numbers up to {LARGEST_COST}",
            fix="Check its posterior for improper components.",
        )
