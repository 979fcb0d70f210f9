"""The search by shortened steps, Newton's method and L-BFGS, against SciPy's and formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from posterity.arrays.namespace import NUMPY
from posterity.arrays.search import (
    Point,
    lbfgs,
    newton,
    root_of_inverse,
    search,
    step_by_curvature,
)

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(4, 3)) * 10.0 ** RNG.integers(-2, 3, (4, 3))


def cosh_at(z, centres=CENTRES):
    """``Σ log cosh(z - c)``, whose Newton steps overshoot far from ``c``."""
    away = z - centres
    xp = jnp if isinstance(z, jax.Array) else np
    slope, bend = xp.tanh(away), 1 - xp.tanh(away) ** 2 + 1e-3
    value = (xp.abs(away) + xp.log1p(xp.exp(-2 * xp.abs(away)))).sum(-1)
    squared = (slope**2 / bend).sum(-1)
    return Point(z, -slope / bend, value, 1e-13 * (1 + value), squared, xp.isfinite(value))


def test_a_batch_of_searches_ends_at_every_minimum_as_each_does_alone() -> None:
    end = search(cosh_at, np.zeros((4, 3)), most=2000)
    assert end.done.all() and end.looks < 2000
    np.testing.assert_allclose(end.best.at, CENTRES, atol=1e-6)
    alone = [search(lambda z, c=c: cosh_at(z, c), np.zeros(3), most=2000).best.at for c in CENTRES]
    np.testing.assert_array_equal(end.best.at, alone)


def test_jax_and_numpy_search_alike() -> None:
    look = lambda z: cosh_at(z, CENTRES[0])
    with jax.enable_x64(True):
        traced = jax.jit(lambda z: search(look, z, most=2000))(jnp.zeros(3))
    plain = search(look, np.zeros(3), most=2000)
    np.testing.assert_allclose(traced.best.at, plain.best.at, atol=1e-7)


def test_every_point_that_is_taken_is_better() -> None:
    seen = []

    def look(z):
        seen.append(cosh_at(z, CENTRES[1]))
        return seen[-1]

    for most in range(12):
        seen.clear()
        best = search(look, np.zeros(3), most=most).best
        assert len(seen) <= most + 1
        assert best.value == min(point.value for point in seen)


def test_a_start_that_is_not_finite_is_left_as_it_is() -> None:
    def look(z):
        return Point(z, z, np.inf, np.asarray(0.0), np.asarray(np.nan), np.asarray(False))

    end = search(look, np.ones(2), most=10)
    assert end.looks == 0 and not end.best.finite


def test_newton_finds_the_mode_from_where_the_density_bends_upwards() -> None:
    # Student's t about (3, -1): its curvature is negative beyond one unit.
    away = lambda z: z - np.array([3.0, -1.0])
    value = lambda z: -2 * np.log1p(away(z) ** 2).sum()

    def step(z):
        u = away(z)
        return step_by_curvature(-4 * u / (1 + u**2), np.diag(4 * (1 - u**2) / (1 + u**2) ** 2))

    mode = newton(value, step, np.array([-20.0, 15.0]), most=100)
    np.testing.assert_allclose(mode.at, [3, -1], atol=1e-9)
    assert mode.distance < 1e-6


def test_newton_says_how_far_it_is_where_it_may_not_go_on() -> None:
    mode = newton(
        lambda z: -(z**4).sum(), lambda z: step_by_curvature(-4 * z**3, np.diag(12 * z**2)),
        np.array([8.0]), most=2,
    )  # fmt: skip
    # Each step is a third of the way: 8 (2/3)^2 after two, and 4 z^3 / sqrt(12 z^2) left.
    at = 8 * (2 / 3) ** 2
    np.testing.assert_allclose(mode.distance, 4 * at**3 / np.sqrt(12 * at**2))


def test_lbfgs_goes_round_what_is_not_finite() -> None:
    def bounded(z):
        with np.errstate(all="ignore"):
            return (z - np.log(z)).sum(), 1 - 1 / z  # NaN below zero

    at, value, evaluations = lbfgs(bounded, np.array([40.0, 0.01]), most=200)
    np.testing.assert_allclose(at, 1, atol=1e-4)
    assert value < 2 + 1e-8 and evaluations > 2
    assert lbfgs(lambda z: (np.nan, z), np.ones(2), most=10)[1] == np.inf


def test_lbfgs_ends_where_newtons_method_of_scipy_does() -> None:
    rosenbrock = lambda z: (scipy.optimize.rosen(z), scipy.optimize.rosen_der(z))
    at, _, _ = lbfgs(rosenbrock, np.zeros(5), most=500, gain=1e-14)
    exact = scipy.optimize.minimize(
        scipy.optimize.rosen, np.zeros(5), jac=scipy.optimize.rosen_der,
        hess=scipy.optimize.rosen_hess, method="trust-exact",
    )  # fmt: skip
    np.testing.assert_allclose(at, exact.x, atol=1e-5)


def test_the_root_of_an_inverse_is_finite_along_what_does_not_bend() -> None:
    turn = scipy.linalg.qr(RNG.normal(size=(3, 3)))[0]
    root = root_of_inverse(turn @ np.diag([4.0, -9.0, 0.25]) @ turn.T, np.ones(3))
    np.testing.assert_allclose(root @ root.T, turn @ np.diag([1 / 4, 1 / 9, 4.0]) @ turn.T)
    pole = root_of_inverse(np.diag([4.0, 1e300]), np.array([0.5, 1e-170]))
    np.testing.assert_allclose(pole, np.diag([0.5, 1e-165]))
    flat = root_of_inverse(np.diag([1.0, 0.0]), np.ones(2))
    assert np.isfinite(flat).all() and flat[1, 1] > 1e4


def test_a_bisection_of_large_numbers_is_finite() -> None:
    found = NUMPY.bisected(lambda x: x < 1.2e308, np.array([1e308]), np.array([1.7e308]), 60)
    np.testing.assert_allclose(found, 1.2e308)
    found = NUMPY.bisected(lambda x: x < 1.0, np.array([-1.7e308]), np.array([1.7e308]), 1100)
    np.testing.assert_allclose(found, 1.0)


def test_searches_in_step_end_where_each_does_alone() -> None:
    """Also beside one that begins where nothing is finite."""
    starts = np.array([[-1.2, 1.0], [3.0, -4.0], [np.nan, 0.0], [0.9, 0.9]])
    one = lambda z: (scipy.optimize.rosen(z), scipy.optimize.rosen_der(z))
    at, values, _ = lbfgs(
        lambda z: tuple(map(np.stack, zip(*map(one, z), strict=True))), starts, most=200
    )
    np.testing.assert_allclose(at[[0, 1, 3]], 1.0, atol=1e-3)
    assert np.isinf(values[2]) and np.isfinite(values[[0, 1, 3]]).all()
