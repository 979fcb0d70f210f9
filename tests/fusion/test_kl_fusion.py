"""KL-fusion's relaxed problem against a conic solver, and the exact descent that follows it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from posterity.fusion.kl_fusion import (
    assign_descent,
    project_balls,
    project_simplex,
    relax,
    round_plan,
)

KINDS = ("uniform", "clustered", "heavy")
LAMBDAS = (0.1, 1.0, 1e3)
seeds = st.integers(0, 2**32 - 1)


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
    local = [means[rng.permutation(columns)[:size]] for size in sizes]
    local = [x + 0.3 * rng.normal(size=x.shape) for x in local]
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


def assert_certified(costs, regularization, result, tolerance=1e-4):
    """Feasible, of the objective as it is defined, ordered, and as tight as it claims."""
    for cost, plan in zip(costs, result.plans, strict=True):
        assert plan.shape == cost.shape and plan.min() >= 0
        np.testing.assert_allclose(plan.sum(axis=1), 1, rtol=0, atol=1e-9)
        assert plan.sum(axis=0).max() <= 1 + 1e-9
    linear = sum((cost * plan).sum() for cost, plan in zip(costs, result.plans, strict=True))
    norms = np.linalg.norm(np.concatenate(result.plans), axis=0).sum()
    value = linear + regularization * norms
    assert result.objective == pytest.approx(value, rel=1e-10, abs=1e-12)
    assert 0 <= result.objective - result.lower_bound <= tolerance * result.objective


def assert_brackets(result, optimum, rounding=0.0):
    """The optimum of the conic solver, itself good to about 1e-8, lies inside."""
    slack = 1e-7 * abs(optimum) + rounding
    assert result.lower_bound <= optimum + slack
    assert result.objective >= optimum - slack


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("regularization", LAMBDAS)
@pytest.mark.parametrize("seed", range(3))
def test_reaches_and_brackets_the_conic_optimum(seed, regularization, kind):
    costs = instance(seed, kind)
    result, optimum = relax(costs, regularization), conic_optimum(costs, regularization)
    assert_certified(costs, regularization, result)
    assert_brackets(result, optimum)
    assert result.objective <= optimum * (1 + 1e-4) + 1e-9 * np.median(np.concatenate(costs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_order_of_sites_components_and_columns_changes_only_rounding(seed, kind):
    costs = instance(seed, kind)
    rng = np.random.default_rng(seed)
    sites, columns = rng.permutation(len(costs)), rng.permutation(costs[0].shape[1])
    rows = [rng.permutation(len(cost)) for cost in costs]
    shuffled, before = [costs[j][rows[j]][:, columns] for j in sites], [c.copy() for c in costs]
    result, other = relax(costs, 0.2), relax(shuffled, 0.2)
    assert all((cost == old).all() for cost, old in zip(costs, before, strict=True))
    assert other.objective == pytest.approx(result.objective, rel=1e-10)
    assert other.lower_bound == pytest.approx(result.lower_bound, rel=1e-10)
    for j, plan in zip(sites, other.plans, strict=True):
        np.testing.assert_allclose(plan, result.plans[j][rows[j]][:, columns], atol=1e-8)


BASE = np.random.default_rng(2).random((4, 6)) * (1 - np.eye(4, 6))
DEGENERATE = {
    "rows": [np.repeat(BASE[:2], 3, axis=0)] * 3,
    "columns": [np.repeat(BASE[:, :3], 2, axis=1)] * 3,
    "sites": [BASE] * 4,
    "constant": [np.ones((4, 6))] * 4,
    "zero": [np.zeros((4, 6))] * 4,
    "matched": [BASE, BASE[::-1], BASE[:1]],
    "one site": [np.random.default_rng(1).random((6, 12))],
    "square": [np.random.default_rng(1).random((6, 6))] * 5,
    "single": [np.ones((1, 1))],
}


@pytest.mark.parametrize("regularization", [0.1, 100.0])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_costs_and_shapes(name, regularization):
    costs = DEGENERATE[name]
    result = relax(costs, regularization)
    assert_certified(costs, regularization, result)
    # Some of these have the optimum zero, where only an absolute error is left to allow.
    assert_brackets(result, conic_optimum(costs, regularization), rounding=1e-9)


@pytest.mark.parametrize("forbidden", [1e4, 1e12])
def test_huge_costs_do_not_drown_the_small_ones(forbidden):
    rng = np.random.default_rng(4)
    costs = [rng.random((4, 10)) for _ in range(6)]
    blocked = [np.where(rng.random(cost.shape) < 0.3, forbidden, cost) for cost in costs]
    result = relax(blocked, 0.2)
    assert_certified(blocked, 0.2, result)
    assert result.objective < 100  # no mass that matters on what is forbidden


def test_a_large_problem_closes_quickly():
    rng = np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(30, 2))
    local = [means[rng.permutation(30)[:8], None] + rng.normal(size=(8, 1, 2)) for _ in range(100)]
    costs = [0.5 * ((x - means) ** 2).sum(-1) for x in local]
    assert_certified(costs, 1.0, relax(costs, 1.0, steps=500))


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 9), st.integers(1, 30), st.floats(1e-8, 1e8))
def test_projections_agree_with_sorting_and_norms(seed, rows, columns, size):
    rng = np.random.default_rng(seed)
    points = size * rng.normal(size=(rows, columns))
    projected = project_simplex(points)
    ordered = -np.sort(-points, axis=1)
    mean = (np.cumsum(ordered, axis=1) - 1) / np.arange(1, columns + 1)
    last = (ordered > mean).sum(axis=1) - 1
    expected = np.take_along_axis(mean, last[:, None], axis=1)
    rounding = 1e-12 + 1e-15 * columns * size
    np.testing.assert_allclose(projected, np.maximum(points - expected, 0), atol=rounding)
    before = np.linalg.norm(points, axis=0)
    ball = project_balls(points, 0.5 * size)
    norms = np.linalg.norm(ball, axis=0)
    np.testing.assert_allclose(norms, np.minimum(before, 0.5 * size), rtol=1e-12)
    np.testing.assert_allclose(ball * before, points * norms, rtol=1e-9, atol=1e-12 * size**2)


@pytest.mark.parametrize("seed", range(4))
def test_rounding_is_the_best_matching(seed):
    plan = np.random.default_rng(seed).random((3, 5))
    (columns,) = round_plan([plan])
    best = max(plan[range(3), at].sum() for at in itertools.permutations(range(5), 3))
    assert len(set(columns.tolist())) == 3 and plan[range(3), columns].sum() == pytest.approx(best)


def uniform(seed, sites=6, components=4, columns=8):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, components + 1, size=sites)
    return [rng.random((size, columns)) for size in sizes]


def random_start(seed, costs):
    rng = np.random.default_rng(seed)
    return [rng.permutation(cost.shape[1])[: len(cost)] for cost in costs]


def choices(cost):
    return [np.array(at) for at in itertools.permutations(range(cost.shape[1]), len(cost))]


def value_of(costs, assignments, regularization):
    """The definition, written out: chosen costs + λ Σ_g √n_g."""
    chosen = sum(c[np.arange(len(c)), at].sum() for c, at in zip(costs, assignments, strict=True))
    return chosen + regularization * np.sqrt(np.bincount(np.concatenate(assignments))).sum()


@pytest.mark.parametrize("regularization", [0.0, 0.1, 500.0])
@pytest.mark.parametrize("seed", range(4))
def test_descent_never_rises_and_no_single_site_can_do_better(seed, regularization):
    costs = uniform(seed, sites=4, components=3, columns=4)
    for start in (random_start(seed, costs), round_plan(relax(costs, 0.5).plans)):
        before = [at.copy() for at in start]
        found = assign_descent(costs, regularization, start)
        assert all((at == old).all() for at, old in zip(start, before, strict=True))
        for cost, at in zip(costs, found, strict=True):
            assert at.shape == (len(cost),) and len(set(at.tolist())) == len(at)
        value = value_of(costs, found, regularization)
        assert value <= value_of(costs, start, regularization) * (1 + 1e-12)
    for j, cost in enumerate(costs):
        for at in choices(cost):
            other = [*found[:j], at, *found[j + 1 :]]
            assert value_of(costs, other, regularization) >= value * (1 - 1e-11)


@pytest.mark.parametrize("regularization", [0.01, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_brute_force_on_tiny_instances(seed, regularization):
    costs = uniform(seed, sites=3, components=2, columns=3)
    every = list(itertools.product(*(choices(cost) for cost in costs)))
    values = [value_of(costs, at, regularization) for at in every]
    optimum = min(values)
    assert relax(costs, regularization).lower_bound <= optimum * (1 + 1e-12)
    # The best of all starts is the optimum, and the optimum is a fixed point.
    found = [assign_descent(costs, regularization, at) for at in every]
    least = min(value_of(costs, at, regularization) for at in found)
    assert least == pytest.approx(optimum, rel=1e-12)
    stays = assign_descent(costs, regularization, every[int(np.argmin(values))])
    assert value_of(costs, stays, regularization) == pytest.approx(optimum, rel=1e-12)
    alone = [assign_descent([cost], 0.7, random_start(0, [cost])) for cost in costs]
    for cost, own in zip(costs, alone, strict=True):
        assert (own[0] == linear_sum_assignment(cost)[1]).all()


@pytest.mark.parametrize("regularization", [0.01, 0.3])
@pytest.mark.parametrize("shape", [(10, 5, 15), (40, 10, 25)], ids=str)
def test_within_two_percent_of_the_certified_bound(shape, regularization):
    """Sites see some well separated components, with noise; costs are KLs."""
    (sites, components, columns), rng = shape, np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(columns, 3))
    local = [means[rng.permutation(columns)[:components]] for _ in range(sites)]
    local = [x + 0.4 * rng.normal(size=x.shape) for x in local]
    costs = [0.5 * ((x[:, None] - means) ** 2).sum(-1) for x in local]
    relaxed = relax(costs, regularization)
    found = assign_descent(costs, regularization, round_plan(relaxed.plans))
    value = value_of(costs, found, regularization)
    assert relaxed.lower_bound <= value <= 1.02 * relaxed.lower_bound
