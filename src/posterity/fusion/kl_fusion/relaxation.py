"""The relaxed matching problem of KL-fusion, solved with a certificate.

Sites j = 1..J hold L_j components each, G global components are given, and C_j[l, g] =
KL(global g ‖ component l of site j). Equation (9) of claici2020 at fixed globals is

    minimise  Σ_j ⟨C_j, P_j⟩ + λ Σ_g ‖(P_1[:, g], …, P_J[:, g])‖₂
    over      P_j ≥ 0,  Σ_g P_j[l, g] = 1,  Σ_l P_j[l, g] ≤ 1.

With one dual Y for the norm (a ball of radius λ a column) and one V ≥ 0 for the columns it is
the saddle point

    min_P max_{Y, V}  ⟨C + Y + V, P⟩ − Σ V,      the rows of P on the simplex,

which the primal-dual method of chambolle2011 solves with nothing but projections. Every pair
(Y, V) bounds the optimum from below by Σ_rows min_g (C + Y + V) − Σ V and every feasible P
bounds it from above, so the result carries its own proof and no conic solver is needed.

All sites are stacked in one (rows, columns) matrix, rows = Σ_j L_j and columns = G: memory is a
dozen such matrices, never sites x components x globals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int

# Measured on random, clustered, heavy-tailed, tight and duplicated instances; the counts of
# iterations are flat around these values, so none of them is an argument.
OVER_RELAXATION = 1.8  # in (0, 2): half the iterations of the plain method
CHECK_EVERY = 20  # iterations between certificates, which cost about three iterations
LONGEST_RUN = 0.2  # restart at the latest after this share of all the iterations so far
WEIGHT_SMOOTHING = 0.8  # share of the newly seen primal weight, on the log scale
NEGLIGIBLE = 1e-7  # objectives below this many typical margins a row count as zero
ROW_ERROR = 1e-13  # Newton's tolerance on the sum of a row


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A feasible plan and a proof of how far it is from optimal.

    Attributes:
        plans: one (L_j, G) array a site: non-negative, rows sum to one, columns to at most one.
        objective: value of the problem at `plans`, an upper bound on the optimum.
        lower_bound: value of a dual feasible point, a lower bound on the optimum.
        gap: (objective − lower_bound) / |objective|; for an objective within rounding of zero
            the denominator is 1e-7 times the typical margin between columns, a row.
        iterations: primal-dual steps taken.
        converged: whether `gap` is within the tolerance that was asked for.
    """

    plans: list[Float[np.ndarray, "_ columns"]]
    objective: float
    lower_bound: float
    gap: float
    iterations: int
    converged: bool


def relax(
    costs: Sequence[Float[np.ndarray, "_ columns"]],
    regularization: float,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 20_000,
) -> Relaxation:
    """Solves equation (9) of claici2020 to a certified relative gap.

    Over-relaxed primal-dual steps chambolle2011, restarted from the better of the last and
    the average iterate as the gap closes. Deterministic; the order of sites, of components and
    of columns changes nothing but rounding.

    Args:
        costs: one (L_j, G) array a site, L_j ≤ G. Any values up to 1e100 in size; scaled inside.
        regularization: λ ≥ 0, in the units of the costs.
        tolerance: relative gap to stop at.
        max_iterations: steps after which the best certificate so far is returned.

    Example:
        >>> result = relax([np.array([[0.0, 2.0], [2.0, 0.0]]), np.array([[0.1, 2.0]])], 0.5)
        >>> [plan.argmax(1).tolist() for plan in result.plans], result.converged
        ([[0, 1], [0]], True)
    """
    program = _Program(costs, regularization)
    best, iterations = _solve(program, tolerance, max_iterations)
    return Relaxation(
        plans=np.split(best.plan, program.starts[1:]),
        objective=program.offset + program.scale * best.upper,
        # The two ends may cross by rounding only; the certificate stays ordered.
        lower_bound=program.offset + program.scale * min(best.lower, best.upper),
        gap=best.gap(program),
        iterations=iterations,
        converged=best.gap(program) <= tolerance,
    )


def round_plan(plans: Sequence[Float[np.ndarray, "_ columns"]]) -> list[Int[np.ndarray, " _"]]:
    """The column of each row, all different, that is closest to each plan (kuhn1955).

    Example:
        >>> round_plan([np.array([[0.6, 0.4], [0.9, 0.1]])])[0].tolist()
        [1, 0]
    """
    return [scipy.optimize.linear_sum_assignment(-np.asarray(plan))[1] for plan in plans]


class _Point(NamedTuple):
    """A primal-dual point: P and Y are (rows, columns), V is (sites, columns)."""

    plan: Float[np.ndarray, "rows columns"]
    group: Float[np.ndarray, "rows columns"]
    column: Float[np.ndarray, "sites columns"]


class _Program:
    """Equation (9) stacked over the sites, in units where typical costs are near one.

    A constant added to a row changes the objective by that constant, so each row's smallest
    cost is taken out (into `offset`): what is left is exact and free of large common terms.
    """

    def __init__(self, sites: Sequence[np.ndarray], regularization: float):
        stacked = np.concatenate(sites)
        least = stacked.min(axis=1, keepdims=True)
        reduced = stacked - least
        margin = _typical_margin(reduced)
        # A power of two: scaling rounds nothing.
        self.scale = float(2.0 ** np.round(np.log2(margin + regularization or 1.0)))
        self.costs, self.margin = reduced / self.scale, margin / self.scale
        self.regularization, self.offset = regularization / self.scale, float(least.sum())
        self.sizes = np.array([len(cost) for cost in sites])
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.site = np.repeat(np.arange(len(sites)), self.sizes)

    def site_sums(self, plan: np.ndarray) -> Float[np.ndarray, "sites columns"]:
        return np.add.reduceat(plan, self.starts, axis=0)

    def prices(self, point: _Point) -> Float[np.ndarray, "rows columns"]:
        """C + Y + V, what a unit of each entry of the plan costs at these duals."""
        prices = point.column[self.site]
        prices += point.group
        prices += self.costs
        return prices

    def objective(self, plan: np.ndarray) -> float:
        norms = np.sqrt(np.einsum("rg,rg->g", plan, plan))
        return float(np.vdot(self.costs, plan) + self.regularization * norms.sum())

    def feasible(self, plan: np.ndarray) -> Float[np.ndarray, "rows columns"]:
        """The plan scaled into the columns, the mass this frees spread over their slack.

        As columns >= components, the slack of a site is never less than its freed mass, so the
        result meets every constraint to rounding.
        """
        plan = plan / np.maximum(self.site_sums(plan), 1.0)[self.site]
        freed = np.maximum(1.0 - plan.sum(axis=1, keepdims=True), 0.0)
        slack = np.maximum(1.0 - self.site_sums(plan), 0.0)
        slack /= np.maximum(slack.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return plan + freed * slack[self.site]


def _typical_margin(reduced: Float[np.ndarray, "rows columns"]) -> float:
    """Median over the rows of the cost of a row's second choice; robust to huge costs."""
    if reduced.shape[1] == 1:
        return 0.0
    second = np.partition(reduced, 1, axis=1)[:, 1]
    for sample in (second, reduced):
        if (sample > 0).any():
            return float(np.median(sample[sample > 0]))
    return 0.0


class _Certificate:
    """The best feasible plan and the best lower bound seen, from any two points."""

    def __init__(self) -> None:
        self.plan, self.upper, self.lower = np.empty((0, 0)), np.inf, -np.inf

    def offer(self, program: _Program, point: _Point) -> float:
        """Keeps what improves the certificate and returns the gap of this point alone."""
        plan = program.feasible(point.plan)
        upper = program.objective(plan)
        # Σ_rows min_g (C + Y + V) − Σ V: the saddle function minimised over P.
        lower = float(program.prices(point).min(axis=1).sum() - point.column.sum())
        if upper < self.upper:
            self.plan, self.upper = plan, upper
        self.lower = max(self.lower, lower)
        return upper - lower

    def gap(self, program: _Program) -> float:
        """Relative gap in the caller's units, row constants included."""
        shift = program.offset / program.scale
        floor = NEGLIGIBLE * len(program.costs) * (program.margin + program.regularization)
        magnitude = max(abs(shift + self.upper), abs(shift + self.lower), floor)
        return max(self.upper - self.lower, 0.0) / magnitude if magnitude > 0 else 0.0


class _Run:
    """A run between restarts: its start, the sum of its iterates, and its gaps."""

    def __init__(self, origin: _Point, gap: float) -> None:
        self.origin, self.gap, self.previous, self.length = origin, gap, np.inf, 0
        self.total = _Point(*(np.zeros_like(x) for x in origin))

    def add(self, point: _Point) -> None:
        self.length += 1
        for total, x in zip(self.total, point, strict=True):
            total += x

    def ended(self, gap: float, iteration: int) -> bool:
        """Enough gained, or some gained and no longer gaining, or too long."""
        stalled = gap <= 0.8 * self.gap and gap > self.previous
        self.previous = gap
        return gap <= 0.2 * self.gap or stalled or self.length >= LONGEST_RUN * iteration


def _solve(program: _Program, tolerance: float, max_iterations: int) -> tuple[_Certificate, int]:
    best, (rows, columns), sites = _Certificate(), program.costs.shape, len(program.sizes)
    # The uniform plan and no duals: the one start that knows no order.
    plan = np.full((rows, columns), 1.0 / columns)
    point = _Point(plan, np.zeros_like(plan), np.zeros((sites, columns)))
    # The size of the duals: Y is near λ/√sites in a used column, V near a margin.
    weight = program.regularization / np.sqrt(sites) + 0.5 * program.margin or 1.0
    run, threshold, iteration = _Run(point, np.inf), np.zeros(rows), 0
    for iteration in range(1, max_iterations + 1):
        new, threshold = _step(program, point, weight, threshold)
        run.add(new)
        point = _Point(*(x + OVER_RELAXATION * (y - x) for x, y in zip(point, new, strict=True)))
        if iteration % CHECK_EVERY and iteration < max_iterations:
            continue
        candidates = (new, _Point(*(total / run.length for total in run.total)))
        gaps = [best.offer(program, candidate) for candidate in candidates]
        if best.gap(program) <= tolerance:
            break
        if run.ended(min(gaps), iteration):
            point = candidates[int(np.argmin(gaps))]
            # Towards the ratio of the distances that duals and plan travelled in the run.
            pairs = zip(point, run.origin, strict=True)
            travelled, group, column = (float(np.linalg.norm(x - y)) for x, y in pairs)
            dual = np.hypot(group, column)
            if min(travelled, dual) > 1e-10:
                ratio = (dual / travelled) ** WEIGHT_SMOOTHING
                weight = float(ratio * weight ** (1.0 - WEIGHT_SMOOTHING))
            run = _Run(point, min(gaps))
    return best, iteration


def _step(
    program: _Program, point: _Point, weight: float, threshold: np.ndarray
) -> tuple[_Point, np.ndarray]:
    """One step of algorithm 1 of chambolle2011, its steps fitted to each constraint.

    The operator is P ↦ (P, site sums of P). Steps 1/2 for P, 1 for Y and 1/L_j for V make its
    scaled norm at most one; `weight` trades the primal step for the dual ones.
    """
    plan, threshold = project_simplex(
        point.plan - (0.5 / weight) * program.prices(point), threshold
    )
    ahead = 2.0 * plan - point.plan
    group = project_balls(point.group + weight * ahead, program.regularization)
    step = weight / program.sizes[:, None]
    column = np.maximum(point.column + step * (program.site_sums(ahead) - 1.0), 0.0)
    return _Point(plan, group, column), threshold


def project_simplex(
    points: Float[np.ndarray, "rows columns"], threshold: Float[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "rows columns"], Float[np.ndarray, " rows"]]:
    """Each row's closest point on the simplex, max(x − θ, 0), and the θ of each row.

    Newton on Σ max(x − θ, 0) = 1, convex and piecewise linear in θ: it ends exactly after a few
    passes from the θ of the step before, where a sort would look at everything.
    """
    ones = np.ones(points.shape[1])
    projected = points
    for _ in range(100):
        projected = np.maximum(points - threshold[:, None], 0.0)
        excess = projected @ ones - 1.0
        if np.abs(excess).max() <= ROW_ERROR:
            break
        active = (projected > 0).astype(float) @ ones
        threshold = threshold + excess / np.maximum(active, 1.0)
        if not active.all():  # θ beyond the row: start left of the root
            lost = active == 0
            threshold[lost] = points[lost].max(axis=1) - 1.0
    return projected, threshold


def project_balls(
    points: Float[np.ndarray, "rows columns"], radius: float
) -> Float[np.ndarray, "rows columns"]:
    """Each column's closest point in the Euclidean ball of this radius."""
    norms = np.sqrt(np.einsum("rg,rg->g", points, points))
    return points * (radius / np.maximum(norms, max(radius, np.finfo(float).tiny)))
