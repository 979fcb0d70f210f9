"""Baseline hazards of survival, and their integrals over time."""

import functools

import numpy as np

from posterity.tabular.options import HAZARDS, SPLINE
from posterity.tabular.recipe import Recipe

NODES = 11
"""Gauss-Radau nodes of a hazard's integral over time; the last one is at the end, the time of an
event."""
POWER = {"weibull": 6, "gompertz": 1, SPLINE: 6}
"""Root of time in which nodes are placed, for intervals whose end exceeds twice their start: a
hazard that is linear in log time may be infinite at 0."""


def hazard_nodes(
    recipe: Recipe, entry: np.ndarray, time: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature times (n, intervals, nodes) and weights for hazards from entry to time.

    The last node of an interval is its end. Weights are 0 in intervals without time at risk.
    """
    ends = np.array([0.0, *recipe.cuts, np.inf])
    nodes, weights = _radau() if recipe.hazard else (np.ones(1), np.ones(1))
    low, high = (np.clip(own[:, None], ends[:-1], ends[1:]) for own in (entry, time))
    power = np.where(high > 2 * low, POWER.get(recipe.hazard or "", 1), 1)[..., None]
    start, end = (own[..., None] ** (1 / power) for own in (low, high))
    root = start + (end - start) * nodes
    at = root**power
    spent = power * root ** (power - 1) * (end - start) * weights
    at[..., -1] = high
    return np.maximum(at, np.finfo(float).tiny), spent


@functools.cache
def _radau() -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Radau nodes of [0, 1], ascending up to 1, and their weights."""
    from scipy.special import roots_jacobi

    inner, weights = roots_jacobi(NODES - 1, 1, 0)
    nodes = np.append(inner, 1.0)
    return (nodes + 1) / 2, np.append(weights / (1 - inner), 2 / NODES**2) / 2


def baseline_at(recipe: Recipe, time: np.ndarray) -> np.ndarray:
    """Return the columns (n, b) of the log baseline hazard at times (n,), none if constant."""
    if recipe.hazard == SPLINE:
        from scipy.interpolate import CubicSpline

        knots = np.log(recipe.cuts)
        at = np.log(time)
        spline = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
        inside = np.clip(at, knots[0], knots[-1])
        return spline(inside) + (at - inside)[:, None] * spline(inside, 1)
    if recipe.hazard in HAZARDS:
        own = np.log(time) if recipe.hazard == "weibull" else time
        return np.column_stack([np.ones(len(time)), own])
    interval = np.searchsorted(np.array(recipe.cuts), time)
    return np.eye(len(recipe.cuts) + 1)[interval][:, : len(recipe.baseline)]
