"""The relaxed matching problem against a conic solver, and its certificate."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from posterity.fusion.kl_fusion import (
    project_balls,
    project_simplex,
    relax,
    round_plan,
)

KINDS = ("uniform", "clustered", "heavy")
LAMBDAS = (0.0, 0.01, 0.1, 1.0, 10.0, 1e3)


def instance(seed, kind="uniform", sites=8, components=6, columns=12):
    """Heterogeneous sites: each has 1..components rows; at least one has a single row."""
    rng = np.random.default_rng(seed)
    sites = int(rng.integers(1, sites + 1))
    sizes = rng.integers(1, components + 1, size=sites)
    sizes[rng.integers(sites)] = 1
    columns = int(rng.integers(sizes.max(), columns + 1))
    if kind == "uniform":
        return [rng.random((size, columns)) for size in sizes]
    if kind == "heavy":
        return [np.exp(3.0 * rng.normal(size=(size, columns))) for size in sizes]
    means = 3.0 * rng.normal(size=(columns, 2))
    local = [means[rng.permutation(columns)[:size]] + 0.3 * rng.normal(size=(size, 2))
             for size in sizes]  # fmt: skip
    return [0.5 * ((x[:, None] - means) ** 2).sum(-1) for x in local]


def conic_optimum(costs, regularization):
    """Equation (9) by an interior-point method, at unit scale so that its tolerances mean it."""
    cp = pytest.importorskip("cvxpy")
    scale = max(np.median(np.concatenate(costs)), regularization) or 1.0
    plans = [cp.Variable(cost.shape, nonneg=True) for cost in costs]
    linear = sum(cp.sum(cp.multiply(c / scale, p)) for c, p in zip(costs, plans, strict=True))
    norms = cp.sum(cp.norm(cp.vstack(plans), 2, axis=0))
    rows = [cp.sum(plan, axis=1) == 1 for plan in plans]
    columns = [cp.sum(plan, axis=0) <= 1 for plan in plans]
    problem = cp.Problem(cp.Minimize(linear + regularization / scale * norms), rows + columns)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return problem.value * scale


def objective_of(costs, plans, regularization):
    linear = sum((cost * plan).sum() for cost, plan in zip(costs, plans, strict=True))
    return linear + regularization * np.linalg.norm(np.concatenate(plans), axis=0).sum()


def assert_certified(costs, regularization, result, tolerance=1e-4):
    """Feasible, honestly valued, ordered, and as tight as it claims."""
    for cost, plan in zip(costs, result.plans, strict=True):
        assert plan.shape == cost.shape
        assert plan.min() >= 0
        np.testing.assert_allclose(plan.sum(axis=1), 1, rtol=0, atol=1e-9)
        assert plan.sum(axis=0).max() <= 1 + 1e-9
    value = objective_of(costs, result.plans, regularization)
    assert result.objective == pytest.approx(value, rel=1e-10, abs=1e-12)
    assert result.lower_bound <= result.objective
    assert result.converged
    assert result.gap <= tolerance


def assert_brackets(result, optimum, rounding=0.0):
    """The optimum of the conic solver, itself good to about 1e-8, lies inside."""
    slack = 1e-7 * abs(optimum) + rounding
    assert result.lower_bound <= optimum + slack
    assert optimum <= result.objective + slack


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("regularization", LAMBDAS)
@pytest.mark.parametrize(
    "seed", [*range(1), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_reaches_and_brackets_the_conic_optimum(seed, regularization, kind):
    costs = instance([seed, int(regularization * 100)], kind)
    regularization *= np.median(np.concatenate(costs))
    result = relax(costs, regularization)
    assert_certified(costs, regularization, result)
    optimum = conic_optimum(costs, regularization)
    assert_brackets(result, optimum)
    assert result.objective <= optimum * (1 + 1e-4) + 1e-9 * np.median(np.concatenate(costs))


@pytest.mark.parametrize("seed", range(6))
def test_tight_tolerance_matches_the_conic_optimum(seed):
    costs = instance(seed, "clustered")
    result = relax(costs, 0.5, tolerance=1e-8)
    assert_certified(costs, 0.5, result, tolerance=1e-8)
    assert result.objective == pytest.approx(conic_optimum(costs, 0.5), rel=1e-7)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("seed", range(3))
def test_scaled_costs(seed, scale):
    costs = instance(seed, KINDS[seed])
    scaled = [scale * cost for cost in costs]
    result = relax(scaled, 0.3 * scale)
    assert_certified(scaled, 0.3 * scale, result)
    assert_brackets(result, scale * conic_optimum(costs, 0.3))


@pytest.mark.parametrize("kind", KINDS)
def test_scaling_by_a_power_of_two_changes_no_bit_of_the_plan(kind):
    costs = instance(3, kind)
    one, two = relax(costs, 0.25), relax([2.0**20 * cost for cost in costs], 2.0**18)
    for plan, other in zip(one.plans, two.plans, strict=True):
        np.testing.assert_array_equal(plan, other)


@pytest.mark.parametrize("seed", range(5))
def test_a_constant_on_a_row_moves_the_objective_by_it(seed):
    costs = instance(seed)
    shifted = [cost + np.arange(len(cost))[:, None] - 2.0 for cost in costs]
    moved = sum(np.arange(len(cost)).sum() - 2.0 * len(cost) for cost in costs)
    plain, result = relax(costs, 0.2, tolerance=1e-7), relax(shifted, 0.2, tolerance=1e-7)
    assert_certified(shifted, 0.2, result, tolerance=1e-7)
    assert result.objective - moved == pytest.approx(plain.objective, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_order_of_sites_components_and_columns_changes_only_rounding(seed, kind):
    costs = instance(seed, kind)
    rng = np.random.default_rng(seed)
    sites, columns = rng.permutation(len(costs)), rng.permutation(costs[0].shape[1])
    rows = [rng.permutation(len(cost)) for cost in costs]
    shuffled = [costs[j][rows[j]][:, columns] for j in sites]
    result, other = relax(costs, 0.2), relax(shuffled, 0.2)
    assert other.objective == pytest.approx(result.objective, rel=1e-10)
    assert other.lower_bound == pytest.approx(result.lower_bound, rel=1e-10)
    for j, plan in zip(sites, other.plans, strict=True):
        np.testing.assert_allclose(plan, result.plans[j][rows[j]][:, columns], atol=1e-8)


@pytest.mark.parametrize("regularization", [0.0, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(
    "shapes",
    [[(6, 12)], [(1, 5)], [(6, 6)] * 5, [(1, 1)] * 3, [(1, 1)], [(6, 6), (1, 6), (3, 6)]],
    ids=["one site", "one row", "G == L", "one by one", "single", "one full site"],
)
def test_edge_shapes(shapes, regularization):
    rng = np.random.default_rng(1)
    costs = [rng.random(shape) for shape in shapes]
    result = relax(costs, regularization)
    assert_certified(costs, regularization, result)
    assert_brackets(result, conic_optimum(costs, regularization))


@pytest.mark.parametrize("regularization", [0.0, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("name", ["rows", "columns", "sites", "constant", "zero", "matched"])
def test_degenerate_costs(name, regularization):
    base = np.random.default_rng(2).random((4, 6))
    np.fill_diagonal(base, 0.0)
    costs = {
        "rows": [np.repeat(base[:2], 3, axis=0)] * 3,
        "columns": [np.repeat(base[:, :3], 2, axis=1)] * 3,
        "sites": [base] * 4,
        "constant": [np.ones((4, 6))] * 4,
        "zero": [np.zeros((4, 6))] * 4,
        "matched": [base, base[::-1], base[:1]],
    }[name]
    result = relax(costs, regularization)
    assert_certified(costs, regularization, result)
    # Three of these have the optimum zero, where only an absolute error is left to allow.
    assert_brackets(result, conic_optimum(costs, regularization), rounding=1e-9)


@pytest.mark.parametrize("forbidden", [1e4, 1e8, 1e12])
def test_huge_costs_do_not_drown_the_small_ones(forbidden):
    rng = np.random.default_rng(4)
    costs = [rng.random((4, 10)) for _ in range(6)]
    blocked = [np.where(rng.random(cost.shape) < 0.3, forbidden, cost) for cost in costs]
    result = relax(blocked, 0.2)
    assert_certified(blocked, 0.2, result)
    assert result.objective < 100  # no mass that matters on what is forbidden


@pytest.mark.parametrize("seed", range(10))
def test_without_regularization_it_is_one_assignment_a_site(seed):
    costs = instance(seed, "heavy")
    optimum = sum(cost[linear_sum_assignment(cost)].sum() for cost in costs)
    assert relax(costs, 0.0).objective == pytest.approx(optimum, rel=1e-4)


@pytest.mark.parametrize("limit", [1, 7, 20, 33])
def test_an_early_stop_says_so_and_still_brackets(limit):
    costs = [np.random.default_rng(j).random((12, 12)) for j in range(8)]
    result = relax(costs, 0.1, tolerance=1e-9, max_iterations=limit)
    assert not result.converged
    assert result.iterations == limit
    assert result.gap > 1e-9
    assert_brackets(result, conic_optimum(costs, 0.1))
    np.testing.assert_allclose(np.concatenate(result.plans).sum(axis=1), 1, atol=1e-9)
    assert max(plan.sum(axis=0).max() for plan in result.plans) <= 1 + 1e-9


def test_deterministic_and_leaves_its_input_alone():
    costs = instance(5, "clustered")
    before = [cost.copy() for cost in costs]
    first, second = relax(costs, 0.3), relax(costs, 0.3)
    for plan, other in zip(first.plans, second.plans, strict=True):
        np.testing.assert_array_equal(plan, other)
    for cost, old in zip(costs, before, strict=True):
        np.testing.assert_array_equal(cost, old)


def test_a_large_problem_closes_quickly():
    rng = np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(30, 2))
    costs = [
        0.5 * ((means[rng.permutation(30)[:8], None] + rng.normal(size=(8, 1, 2)) - means) ** 2)
        .sum(-1) for _ in range(100)
    ]  # fmt: skip
    result = relax(costs, 1.0)
    assert_certified(costs, 1.0, result)
    assert result.iterations <= 500


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 30), st.floats(1e-8, 1e8))
def test_simplex_projection_agrees_with_sorting(seed, rows, columns, size):
    rng = np.random.default_rng(seed)
    points, threshold = size * rng.normal(size=(rows, columns)), size * rng.normal(size=rows)
    projected, found = project_simplex(points, threshold)
    ordered = -np.sort(-points, axis=1)
    mean = (np.cumsum(ordered, axis=1) - 1) / np.arange(1, columns + 1)
    last = (ordered > mean).sum(axis=1) - 1
    expected = np.take_along_axis(mean, last[:, None], axis=1)
    rounding = 1e-12 + 1e-15 * columns * size
    np.testing.assert_allclose(found[:, None], expected, rtol=0, atol=rounding)
    np.testing.assert_allclose(projected, np.maximum(points - expected, 0), atol=rounding)


@pytest.mark.parametrize("radius", [0.0, 0.5, 10.0])
def test_ball_projection(radius):
    points = np.random.default_rng(0).normal(size=(7, 4))
    points[:, 2] = 0
    projected = project_balls(points, radius)
    norms, before = np.linalg.norm(projected, axis=0), np.linalg.norm(points, axis=0)
    np.testing.assert_allclose(norms, np.minimum(before, radius), rtol=1e-14)
    np.testing.assert_allclose(projected * before, points * norms, atol=1e-13)


@pytest.mark.parametrize("seed", range(10))
def test_rounding_is_the_best_matching(seed):
    plan = np.random.default_rng(seed).random((3, 5))
    (columns,) = round_plan([plan])
    best = max(plan[range(3), at].sum() for at in itertools.permutations(range(5), 3))
    assert len(set(columns.tolist())) == 3
    assert plan[range(3), columns].sum() == pytest.approx(best)
