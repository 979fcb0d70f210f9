"""KL-fusion in the setting of its paper: the relaxed problem (9) of claici2020 is solved.

Sites j = 1..J have L_j components each, there are G global components, and C_j[l, g] =
KL(global g ‖ component l of site j). Equation (9) at fixed globals is

    minimise  Σ_j ⟨C_j, P_j⟩ + λ Σ_g ‖(P_1[:, g], …, P_J[:, g])‖₂
    over      P_j ≥ 0,  Σ_g P_j[l, g] = 1,  Σ_l P_j[l, g] ≤ 1.

With one dual Y for the norm (a ball of radius λ a column) and one V ≥ 0 for the columns it is
the saddle point

    min_P max_{Y, V}  ⟨C + Y + V, P⟩ − Σ V,      the rows of P on the simplex,

which the primal-dual method of chambolle2011 solves by projections alone. Each pair (Y, V) bounds
the optimum from below by Σ_rows min_g (C + Y + V) − Σ V, and each feasible P bounds it from above,
so the result is certified. All sites are stacked in one (rows, columns) matrix, with
rows = Σ_j L_j and columns = G.

The method serves comparison: its number of components depends on the regularisation, and with the
paper's setting it finds too many if sites differ (``docs/decisions/0021``).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from posterity.arrays.typing import Float, Int
from posterity.fusion.clustering import Clustering, packed
from posterity.fusion.components import LocalComponents
from posterity.fusion.geometry import finite
from posterity.fusion.search import SearchResult, search

Array = np.ndarray


def kl_fusion(
    local: LocalComponents,
    components: int | None = None,
    *,
    iterations: int = 10,
    regularization: float = 0.1,
) -> SearchResult:
    """Alternate the relaxed assignment (9) and relaxed barycentres; then round.

    ``components`` is an upper bound, by default twice the components of the largest site plus two.
    The numbers of ``iterations`` and the ``regularization``, in standard deviations of the costs,
    are the paper's.
    The trace has the objective of (9) in units of the costs' standard deviation; iteration stops
    when it does not fall.
    """
    points = local.points
    ends = local.starts[1:-1]
    bound = components or min(len(points), 2 * local.largest + 2)
    centroids = search(local, components=bound).clustering.centroids
    costs = finite(points.divergences(centroids))
    scale = float(costs.std()) or 1.0
    trace = []
    plans = []
    for _ in range(iterations):
        relaxed = relax(np.split(costs / scale, ends), regularization)
        if trace and relaxed.objective >= trace[-1]:
            break
        trace.append(relaxed.objective)
        plans = relaxed.plans
        plan = np.concatenate(plans)
        coordinates = centroids.coordinates.copy()
        mass = plan.sum(0)
        # A column without mass has no barycentre: it stays unchanged.
        used = mass > 1e-9
        coordinates[used] = (plan.T @ points.coordinates)[used] / mass[used, None]
        centroids = points.centroids(coordinates)
        costs = finite(points.divergences(centroids))
    # Rounding leaves columns that a few exchanges can empty.
    chosen = assign_descent(np.split(costs / scale, ends), regularization, round_plan(plans))
    return SearchResult(Clustering(local, packed(np.concatenate(chosen))), trace)


class Relaxation(NamedTuple):
    """A feasible plan, one (L_j, G) array per site with rows that sum to one and columns to at most
    one, its objective, and a lower bound of the least one.
    """

    plans: list[Float[Array, "_ columns"]]
    objective: float
    lower_bound: float


def relax(
    costs: Sequence[Float[Array, "_ columns"]],
    regularization: float,
    *,
    tolerance: float = 1e-4,
    steps: int = 20_000,
    over_relaxation: float = 1.8,
    every: int = 20,
) -> Relaxation:
    """Solve equation (9) of claici2020 for costs (L_j, G) of each site, L_j ≤ G, by over-relaxed
    primal-dual steps (chambolle2011). The result is deterministic; the order of sites, components
    and columns changes only rounding errors.

    Args:
        costs: by site, of each component at each global one; not negative.
        regularization: factor of the norms, positive.
        tolerance: gap between the objective and its bound, relative to the objective, at which
            steps end.
        steps: largest number of steps; some tens to some hundreds suffice.
        over_relaxation: length of a step, from 0 to 2; 1 takes up to twice the steps.
        every: steps between certificates, each of which costs about three steps.
    """
    program = _Program(costs, regularization)
    # The start is symmetric: the uniform plan, and zero duals.
    shape = program.costs.shape
    uniform = np.full(shape, 1.0 / shape[1])
    point = _Point(uniform, np.zeros(shape), np.zeros((len(costs), shape[1])))
    best = uniform
    upper = np.inf
    lower = -np.inf
    for step in range(1, steps + 1):
        new = program.step(point)
        pairs = zip(point, new, strict=True)
        point = _Point(*(old + over_relaxation * (own - old) for old, own in pairs))
        if step % every:
            continue
        plan = program.feasible(new.plan)
        objective = program.objective(plan)
        if objective < upper:
            best = plan
            upper = objective
        lower = max(lower, program.bound(new))
        if upper - lower <= tolerance * upper:
            break
    return Relaxation(np.split(best, program.starts[1:]), upper, min(lower, upper))


def round_plan(plans: Sequence[Float[Array, "_ columns"]]) -> list[Int[Array, " _"]]:
    """Return the assignment of rows to different columns with most mass, by site (kuhn1955)."""
    return [scipy.optimize.linear_sum_assignment(-np.asarray(plan))[1] for plan in plans]


class _Point(NamedTuple):
    """A primal-dual point: P and Y are (rows, columns), V is (sites, columns)."""

    plan: Array
    group: Array
    column: Array


class _Program:
    """Equation (9), stacked over the sites. The ``weight`` of a step trades the plan for the duals,
    whose sizes are near λ/√sites in a used column, and a part of a cost.
    """

    def __init__(self, sites: Sequence[Array], regularization: float):
        self.costs = np.concatenate(sites)
        self.regularization = regularization
        self.sizes = np.array([len(cost) for cost in sites])
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.site = np.repeat(np.arange(len(sites)), self.sizes)
        self.weight = regularization / np.sqrt(len(sites)) + 0.1 * float(np.median(self.costs))

    def site_sums(self, plan: Array) -> Float[Array, "sites columns"]:
        return np.add.reduceat(plan, self.starts, axis=0)

    def prices(self, point: _Point) -> Float[Array, "rows columns"]:
        """Return C + Y + V, the cost of a unit of each entry of the plan at these duals."""
        return self.costs + point.group + point.column[self.site]

    def feasible(self, plan: Array) -> Float[Array, "rows columns"]:
        """Scale the plan into the columns, and spread the freed mass over their slack, which
        suffices since columns >= components.
        """
        plan = plan / np.maximum(self.site_sums(plan), 1.0)[self.site]
        freed = np.maximum(1.0 - plan.sum(axis=1, keepdims=True), 0.0)
        slack = np.maximum(1.0 - self.site_sums(plan), 0.0)
        slack /= np.maximum(slack.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return plan + freed * slack[self.site]

    def objective(self, plan: Array) -> float:
        """Return the objective of a feasible plan."""
        norms = np.linalg.norm(plan, axis=0).sum()
        return float(np.vdot(self.costs, plan) + self.regularization * norms)

    def bound(self, point: _Point) -> float:
        """Return Σ_rows min_g (C + Y + V) − Σ V: the saddle function minimised over P."""
        return float(self.prices(point).min(axis=1).sum() - point.column.sum())

    def step(self, point: _Point) -> _Point:
        """Make one step of algorithm 1 of chambolle2011, with step sizes for each constraint.

        The operator is P ↦ (P, site sums of P). Steps 1/2 for P, 1 for Y and 1/L_j for V make its
        scaled norm at most one.
        """
        plan = project_simplex(point.plan - (0.5 / self.weight) * self.prices(point))
        ahead = 2.0 * plan - point.plan
        group = project_balls(point.group + self.weight * ahead, self.regularization)
        rise = self.weight / self.sizes[:, None] * (self.site_sums(ahead) - 1.0)
        return _Point(plan, group, np.maximum(point.column + rise, 0.0))


def project_simplex(points: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
    """Return each row's closest point on the simplex: max(x − θ, 0). Where the k largest entries
    are positive, θ is (their sum − 1) / k; no other k has a larger one.
    """
    largest = -np.sort(-points, axis=1)
    thresholds = (largest.cumsum(axis=1) - 1.0) / np.arange(1, points.shape[1] + 1)
    return np.maximum(points - thresholds.max(axis=1, keepdims=True), 0.0)


def project_balls(
    points: Float[Array, "rows columns"], radius: float
) -> Float[Array, "rows columns"]:
    """Return each column's closest point in the Euclidean ball of this radius."""
    return points * (radius / np.maximum(np.linalg.norm(points, axis=0), radius))


def assign_descent(
    costs: Sequence[Float[Array, "_ columns"]],
    regularization: float,
    start: Sequence[Int[Array, " _"]],
    *,
    sweeps: int = 100,
    rounding: float = 1e-12,
) -> list[Int[Array, " _"]]:
    """Optimise one site at a time, exactly, until a whole sweep changes nothing, or after so many
    ``sweeps``; return each site's global component of each local one (L_j,).

    For a binary P the group norm of column g is √n_g, for n_g sites that use g. With the other
    sites fixed, using g costs a site C[l, g] plus λ(√(n_g + 1) − √n_g), with n_g of the others. So
    its optimum is one rectangular linear assignment (kuhn1955). Relative gains below ``rounding``
    are none, as sweeps could cycle.
    """
    chosen = [*start]
    counts = np.bincount(np.concatenate(start), minlength=costs[0].shape[1])
    for _ in range(sweeps):
        moved = False
        for index, cost in enumerate(costs):
            old = chosen[index]
            counts[old] -= 1
            price = cost + regularization * (np.sqrt(counts + 1.0) - np.sqrt(counts))
            rows, new = scipy.optimize.linear_sum_assignment(price)
            before = price[rows, old].sum()
            if price[rows, new].sum() < before - rounding * abs(before):
                chosen[index] = new
                moved = True
            counts[chosen[index]] += 1
        if not moved:
            break
    return chosen
