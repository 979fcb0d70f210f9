"""What is maximised is what the formulas say."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.stats

from posterity.families import DiagonalGaussian, Gaussian
from posterity.families.free_forms import form_of
from posterity.pursuit import objectives
from posterity.pursuit.objectives import Components, Ratio, maximised
from posterity.pursuit.search import nodes_of
from posterity.pursuit.target import Traced, as_target, traced_at

FORM: Any = form_of(DiagonalGaussian.from_standard([0.0], [1.0]))
X = np.linspace(-30, 30, 60_001)
WIDTH = X[1] - X[0]


def traced(density: Any) -> Traced:
    """The target of one number, in double precision."""
    with jax.enable_x64(True):
        return traced_at(as_target(density), jax.ShapeDtypeStruct((1,), np.float64), None)


TARGET = traced(lambda z: -jnp.log1p(z[0] ** 2))
NODES = 4096


def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``log L`` and ``log q_t``, by NumPy."""
    normal = scipy.stats.norm.logpdf
    log_q = np.logaddexp(np.log(0.3) + normal(x, -2, 1), np.log(0.7) + normal(x, 3, 2))
    return -np.log1p(x**2), log_q


def mixture() -> Components:
    parameters = (np.array([[-2.0], [3.0], [9.0]]), np.log([[1.0], [2.0], [1.0]]))
    with np.errstate(divide="ignore"):
        return Components(parameters, np.log([0.3, 0.7, 0.0]))


def expected(of: np.ndarray, mean: float, deviation: float) -> float:
    return float((scipy.stats.norm.pdf(X, mean, deviation) * of).sum() * WIDTH)


@pytest.mark.parametrize(("lam", "begun"), [(0.5, 1.0), (2.0, 1.0), (1.0, 0.0)])
def test_the_component_step_is_entropy_and_the_lamed_ratio(lam: float, begun: float) -> None:
    """At the first component the ratio is ``log L``, so the step is the ELBO itself at λ = 1."""
    with jax.enable_x64(True):
        ratio = Ratio(mixture() if begun else None, -1e9)
        start = FORM.parameters(DiagonalGaussian.from_standard([1.0], [4.0]))
        nodes = nodes_of(FORM, NODES)
        found, _ = objectives.component(FORM, nodes, TARGET, start, ratio, lam)(np.zeros(2))
    log_l, log_q = parts(X)
    wanted = scipy.stats.norm.entropy(1, 2) + lam * expected(log_l - begun * log_q, 1, 2)
    assert found == pytest.approx(wanted, abs=5e-3 * lam)


def test_closed_forms_of_full_covariances_are_those_of_differences() -> None:
    form: Any = form_of(Gaussian.from_standard(np.zeros(2), np.eye(2)))
    rng = np.random.default_rng(0)
    means, below = rng.normal(size=(3, 2)), rng.normal(size=(3, 2, 2))
    factors = np.tril(below, -1) + np.eye(2)
    q = Components((means, factors), np.log(np.array([0.2, 0.5, 0.3])))
    z, shares = rng.normal(size=(128, 2)), rng.random(128)
    moves = 0.3 * rng.normal(size=(3, form.moves + 1))
    total = lambda v: shares @ objectives.mixture(form, v.reshape(moves.shape), q, shares, z)[0]
    slope = objectives.mixture(form, moves, q, shares, z)[2]
    wanted: Any = scipy.optimize.approx_fprime(moves.ravel(), total, 1e-7)
    np.testing.assert_allclose(slope.ravel(), wanted, atol=1e-4)
    own = means[0], factors[0]
    drawn = lambda v: (objectives.drawn(form, own, z, v) * -z).sum()
    wanted = scipy.optimize.approx_fprime(moves[0, :-1], drawn, 1e-7)
    np.testing.assert_allclose(form.pull(own, moves[0, :-1], z, -z), wanted, atol=1e-4)
    logs, down, _ = objectives.mixture(form, 0 * moves, q, np.ones(128), z)
    laws = [
        scipy.stats.multivariate_normal(m, s @ s.T) for m, s in zip(means, factors, strict=True)
    ]
    weighted = np.array([[0.2], [0.5], [0.3]]) * [law.pdf(z) for law in laws]
    np.testing.assert_allclose(logs, np.log(weighted.sum(0)), rtol=1e-9)
    pulls = [np.linalg.solve(s @ s.T, (m - z).T).T for m, s in zip(means, factors, strict=True)]
    wanted = (weighted[..., None] * pulls).sum(0) / weighted.sum(0)[:, None]
    np.testing.assert_allclose(down, wanted, rtol=1e-9)


def test_badly_scaled_triangles_are_inverted_to_rounding() -> None:
    """Below a diagonal of a millionth to a million, and a hundred thousand times as large."""
    form: Any = form_of(Gaussian.from_standard(np.zeros(5), np.eye(5)))
    rng = np.random.default_rng(0)
    factor = np.logspace(-6, 6, 5)[:, None] * (
        1e5 * np.tril(rng.normal(size=(5, 5)), -1) + np.eye(5)
    )
    wanted = scipy.linalg.solve_triangular(factor, np.eye(5), lower=True)
    found = form.standardised((np.zeros(5), factor), np.eye(5)).T
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=0)


def test_the_joint_objective_is_the_bound_of_the_mixture() -> None:
    """By quadrature; places without weight do not count, whatever they hold."""
    with jax.enable_x64(True):
        look = objectives.joint(FORM, nodes_of(FORM, NODES), TARGET, mixture())
        found, slope = look(np.zeros((3, 3)))
    log_l, log_q = parts(X)
    assert found == pytest.approx(float((np.exp(log_q) * (log_l - log_q)).sum() * WIDTH), abs=2e-3)
    assert np.isfinite(slope).all()
    np.testing.assert_array_equal(slope[2], 0.0)


def test_gradients_are_those_of_the_values() -> None:
    """Of any number of nodes, by differences."""
    with jax.enable_x64(True):
        nodes, q = nodes_of(FORM, 150), mixture()
        start = FORM.parameters(DiagonalGaussian.from_standard([1.0], [4.0]))
        moves = 0.1 * np.arange(9.0).reshape(3, 3) * [[1], [1], [0]]
        joint = objectives.joint(FORM, nodes, TARGET, q)
        joint(np.zeros((3, 3)))
        looks = (
            (objectives.component(FORM, nodes, TARGET, start, Ratio(q, -9.0), 0.7), moves[1, :2]),
            (joint, moves),
        )
        for look, v in looks:
            value = lambda flat, look=look, v=v: look(flat.reshape(v.shape))[0]
            wanted: Any = scipy.optimize.approx_fprime(v.ravel(), value, 1e-7)
            np.testing.assert_allclose(look(v)[1].ravel(), wanted, atol=1e-5)


def rosenbrock(v: np.ndarray) -> tuple[float, np.ndarray]:
    value, slope = scipy.optimize.rosen(v), scipy.optimize.rosen_der(v)
    return -value, -slope


def test_searches_end_where_functions_are_most() -> None:
    found = maximised(rosenbrock, np.array([-1.2, 1.0]))
    np.testing.assert_allclose(found.v, [1.0, 1.0], atol=1e-4)
    assert rosenbrock(found.v)[0] == pytest.approx(0.0, abs=1e-8)
