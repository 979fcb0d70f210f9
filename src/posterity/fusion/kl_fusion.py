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
from posterity.fusion.clustering import Clustering
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
    descent = assign_descent(np.split(costs / scale, ends), regularization, round_plan(plans))
    labels = np.unique(np.concatenate(descent.assignments), return_inverse=True)[1]
    return SearchResult(Clustering(local, labels), trace)


class Relaxation(NamedTuple):
    """A feasible plan, one (L_j, G) array per site with rows that sum to one and columns to at most
    one, and its certificate: the objective, a dual lower bound, and their gap relative to the
    objective (at least 1e-7 typical margins per row). ``converged`` is whether the gap is within
    the tolerance.
    """

    plans: list[Float[Array, "_ columns"]]
    objective: float
    lower_bound: float
    gap: float
    iterations: int
    converged: bool


def relax(
    costs: Sequence[Float[Array, "_ columns"]],
    regularization: float,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 20_000,
) -> Relaxation:
    """Solve equation (9) of claici2020 for costs (L_j, G) of each site, L_j ≤ G, to a certified
    relative gap, or return the best plan after ``max_iterations``.

    The steps are over-relaxed primal-dual steps (chambolle2011), restarted from the better of the
    last and the average iterate as the gap closes. The result is deterministic; the order of sites,
    components and columns changes only rounding errors.
    """
    program = _Program(costs, regularization)
    iterations = _solve(program, tolerance, max_iterations)
    lower = min(program.lower, program.upper)  # they cross only by rounding
    gap = program.gap()
    lower, upper = (program.offset + program.scale * bound for bound in (lower, program.upper))
    plans = np.split(program.best, program.starts[1:])
    return Relaxation(plans, upper, lower, gap, iterations, gap <= tolerance)


def round_plan(plans: Sequence[Float[Array, "_ columns"]]) -> list[Int[Array, " _"]]:
    """Return the assignment of rows to different columns with most mass, by site (kuhn1955)."""
    return [scipy.optimize.linear_sum_assignment(-np.asarray(plan))[1] for plan in plans]


class _Point(NamedTuple):
    """A primal-dual point: P and Y are (rows, columns), V is (sites, columns)."""

    plan: Array
    group: Array
    column: Array


class _Program:
    """Equation (9) stacked over the sites, in units with typical costs near one, and without each
    row's least cost (their sum is ``offset``); the best feasible plan so far, its objective
    ``upper``, and the best ``lower`` bound.
    """

    def __init__(self, sites: Sequence[Array], regularization: float):
        stacked = np.concatenate(sites)
        least = stacked.min(axis=1, keepdims=True)
        reduced = stacked - least
        margin = _typical_margin(reduced)
        # A power of two, so that scaling is exact.
        self.scale = float(2.0 ** np.round(np.log2(margin + regularization or 1.0)))
        self.costs = reduced / self.scale
        self.margin = margin / self.scale
        self.regularization, self.offset = regularization / self.scale, float(least.sum())
        self.sizes = np.array([len(cost) for cost in sites])
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.site = np.repeat(np.arange(len(sites)), self.sizes)
        self.best = reduced
        self.upper = np.inf
        self.lower = -np.inf

    def site_sums(self, plan: Array) -> Float[Array, "sites columns"]:
        return np.add.reduceat(plan, self.starts, axis=0)

    def prices(self, point: _Point) -> Float[Array, "rows columns"]:
        """Return C + Y + V, the cost of a unit of each entry of the plan at these duals."""
        prices = point.column[self.site]
        prices += point.group
        prices += self.costs
        return prices

    def feasible(self, plan: Array) -> Float[Array, "rows columns"]:
        """Scale the plan into the columns, and spread the freed mass over their slack, which
        suffices since columns >= components.
        """
        plan = plan / np.maximum(self.site_sums(plan), 1.0)[self.site]
        freed = np.maximum(1.0 - plan.sum(axis=1, keepdims=True), 0.0)
        slack = np.maximum(1.0 - self.site_sums(plan), 0.0)
        slack /= np.maximum(slack.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return plan + freed * slack[self.site]

    def offer(self, point: _Point) -> float:
        """Update the bounds with a point; return the gap of this point."""
        plan = self.feasible(point.plan)
        norms = np.sqrt(np.einsum("rg,rg->g", plan, plan))
        upper = float(np.vdot(self.costs, plan) + self.regularization * norms.sum())
        # Σ_rows min_g (C + Y + V) − Σ V: the saddle function minimised over P.
        lower = float(self.prices(point).min(axis=1).sum() - point.column.sum())
        if upper < self.upper:
            self.best = plan
            self.upper = upper
        self.lower = max(self.lower, lower)
        return upper - lower

    def gap(self, *, negligible: float = 1e-7) -> float:
        """Return the relative gap in the caller's units, with row constants. Objectives below a
        ``negligible`` number of typical margins a row count as zero.
        """
        shift = self.offset / self.scale
        floor = negligible * len(self.costs) * (self.margin + self.regularization)
        magnitude = max(abs(shift + self.upper), abs(shift + self.lower), floor)
        return max(self.upper - self.lower, 0.0) / magnitude if magnitude > 0 else 0.0


def _typical_margin(reduced: Float[Array, "rows columns"]) -> float:
    """Return the median over rows of the cost of the second choice; robust to huge costs."""
    if reduced.shape[1] == 1:
        return 0.0
    for sample in (np.partition(reduced, 1, axis=1)[:, 1], reduced):
        if (sample > 0).any():
            return float(np.median(sample[sample > 0]))
    return 0.0


def _solve(
    program: _Program,
    tolerance: float,
    max_iterations: int,
    *,
    over_relaxation: float = 1.8,
    check_every: int = 20,
    longest_run: float = 0.2,
    smoothing: float = 0.8,
) -> int:
    """Iterate, with restarts, until the gap is within the tolerance; return the iterations.

    The defaults were measured on random, clustered, heavy-tailed, tight and duplicated instances:
    numbers of iterations are flat about them.

    Args:
        program: what is minimised.
        tolerance: relative gap at which to stop.
        max_iterations: largest number of iterations.
        over_relaxation: length of a step, from 0 to 2; 1 takes twice the iterations.
        check_every: iterations between certificates, which cost about three iterations.
        longest_run: share of all iterations so far after which a run is restarted at the latest.
        smoothing: share of the new primal weight at a restart, on the log scale.
    """
    (rows, columns), sites = program.costs.shape, len(program.sizes)
    # The start is symmetric: the uniform plan, and zero duals.
    plan = np.full((rows, columns), 1.0 / columns)
    origin = point = _Point(plan, np.zeros_like(plan), np.zeros((sites, columns)))
    # The size of the duals: Y is near λ/√sites in a used column, V near a margin.
    weight = program.regularization / np.sqrt(sites) + 0.5 * program.margin or 1.0
    # gaps of this run
    threshold = np.zeros(rows)
    begun = np.inf
    previous = np.inf
    total = [np.zeros_like(x) for x in point]
    length = 0
    for iteration in range(1, max_iterations + 1):
        new, threshold = _step(program, point, weight, threshold)
        length += 1
        for own, x in zip(total, new, strict=True):
            own += x
        point = _Point(*(x + over_relaxation * (y - x) for x, y in zip(point, new, strict=True)))
        if iteration % check_every and iteration < max_iterations:
            continue
        candidates = (new, _Point(*(own / length for own in total)))
        gaps = [program.offer(candidate) for candidate in candidates]
        if program.gap() <= tolerance:
            return iteration
        gap = min(gaps)
        stalled = min(gaps) <= 0.8 * begun and min(gaps) > previous
        previous = gap
        # Restart after a large gain, after some gain that has stopped, or after a long run.
        if gap <= 0.2 * begun or stalled or length >= longest_run * iteration:
            point = candidates[int(np.argmin(gaps))]
            # Move the weight to the ratio of the distances of duals and plan in this run.
            pairs = zip(point, origin, strict=True)
            travelled, group, column = (float(np.linalg.norm(x - y)) for x, y in pairs)
            dual = np.hypot(group, column)
            if min(travelled, dual) > 1e-10:
                ratio = (dual / travelled) ** smoothing
                weight = float(ratio * weight ** (1.0 - smoothing))
            origin = point
            begun = gap
            previous = np.inf
            total = [np.zeros_like(x) for x in point]
            length = 0
    return max_iterations


def _step(
    program: _Program, point: _Point, weight: float, threshold: Array
) -> tuple[_Point, Array]:
    """Make one step of algorithm 1 of chambolle2011, with step sizes for each constraint.

    The operator is P ↦ (P, site sums of P). Steps 1/2 for P, 1 for Y and 1/L_j for V make its
    scaled norm at most one; `weight` trades the primal step for the dual ones.
    """
    tried = point.plan - (0.5 / weight) * program.prices(point)
    plan, threshold = project_simplex(tried, threshold)
    ahead = 2.0 * plan - point.plan
    group = project_balls(point.group + weight * ahead, program.regularization)
    step = weight / program.sizes[:, None]
    column = np.maximum(point.column + step * (program.site_sums(ahead) - 1.0), 0.0)
    return _Point(plan, group, column), threshold


def project_simplex(
    points: Float[Array, "rows columns"], threshold: Float[Array, " rows"], *, error: float = 1e-13
) -> tuple[Float[Array, "rows columns"], Float[Array, " rows"]]:
    """Return each row's closest point on the simplex, max(x − θ, 0), and the θ of each row.

    Newton's method solves Σ max(x − θ, 0) = 1, which is convex and piecewise linear in θ: starting
    from the previous step's θ it is exact after a few passes, faster than sorting. It ends when
    sums of rows are within ``error`` of one.
    """
    ones = np.ones(points.shape[1])
    projected = points
    for _ in range(100):
        projected = np.maximum(points - threshold[:, None], 0.0)
        excess = projected @ ones - 1.0
        if np.abs(excess).max() <= error:
            break
        active = (projected > 0).astype(float) @ ones
        threshold = threshold + excess / np.maximum(active, 1.0)
        if not active.all():  # θ is above the row's maximum: restart left of the root
            lost = active == 0
            threshold[lost] = points[lost].max(axis=1) - 1.0
    return projected, threshold


def project_balls(
    points: Float[Array, "rows columns"], radius: float
) -> Float[Array, "rows columns"]:
    """Return each column's closest point in the Euclidean ball of this radius."""
    norms = np.sqrt(np.einsum("rg,rg->g", points, points))
    return points * (radius / np.maximum(norms, max(radius, np.finfo(float).tiny)))


class Descent(NamedTuple):
    """A binary assignment that no single site can improve: for each site the global component of
    each local one (L_j,); its objective; and the objectives at the start and after each sweep.
    """

    assignments: list[Int[Array, " _"]]
    objective: float
    trace: list[float]


def assign_descent(
    costs: Sequence[Float[Array, "_ columns"]],
    regularization: float,
    start: Sequence[Int[Array, " _"]],
    max_sweeps: int = 100,
    *,
    rounding: float = 1e-12,
) -> Descent:
    """Optimise one site at a time, exactly, until a whole sweep changes nothing.

    For a binary P the group norm of column g is √n_g, for n_g sites that use g. With the other
    sites fixed, using g costs a site C[l, g] plus λ(√(n_g + 1) − √n_g), with n_g of the others. So
    its optimum is one rectangular linear assignment (kuhn1955). Relative gains below ``rounding``
    are none, as sweeps could cycle.
    """
    chosen = [*start]
    trace = [binary_objective(costs, start, regularization)]
    counts = np.bincount(np.concatenate(start), minlength=costs[0].shape[1])
    # Sites are processed in an order by their costs, independent of their input order.
    held = [np.take_along_axis(c, at[:, None], 1) for c, at in zip(costs, start, strict=True)]
    keys = [
        np.sort(c, axis=None).tobytes() + np.sort(own, axis=None).tobytes()
        for c, own in zip(costs, held, strict=True)
    ]
    for _ in range(max_sweeps):
        smallest = rounding * abs(trace[-1])
        moved = False
        for index in sorted(range(len(keys)), key=keys.__getitem__):
            old = chosen[index]
            cost = costs[index]
            counts[old] -= 1
            price = cost + regularization * (np.sqrt(counts + 1.0) - np.sqrt(counts))
            rows, new = scipy.optimize.linear_sum_assignment(price)
            if price[rows, new].sum() < price[rows, old].sum() - smallest:
                chosen[index], moved = new, True
            counts[chosen[index]] += 1
        trace.append(binary_objective(costs, chosen, regularization))
        if not moved:
            break
    return Descent(chosen, trace[-1], trace)


def binary_objective(
    costs: Sequence[Float[Array, "_ columns"]],
    assignments: Sequence[Int[Array, " _"]],
    regularization: float,
) -> float:
    """Return equation (9) of claici2020 at a binary plan: Σ chosen costs + λ Σ_g √n_g."""
    chosen = [cost[np.arange(len(at)), at] for cost, at in zip(costs, assignments, strict=True)]
    counts = np.bincount(np.concatenate(assignments))
    return float(np.concatenate(chosen).sum() + regularization * np.sqrt(counts).sum())
