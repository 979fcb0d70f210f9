"""What is maximised is what the formulas say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from posterity.families import DiagonalGaussian, Gaussian
from posterity.families.free_forms import form_of
from posterity.pursuit import objectives
from posterity.pursuit.objectives import Components, Ratio, maximised
from posterity.pursuit.search import nodes_of
from posterity.pursuit.target import Function

FORM = form_of(DiagonalGaussian.from_standard([0.0], [1.0]))
X = np.linspace(-30, 30, 60_001)
WIDTH = X[1] - X[0]
COMPONENT = jax.jit(objectives.component, static_argnums=0)
TARGET = Function(lambda z: -jnp.log1p(z[0] ** 2))
NODES = 4096


def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``log L`` and ``log q_t``, by NumPy."""
    normal = scipy.stats.norm.logpdf
    log_q = np.logaddexp(np.log(0.3) + normal(x, -2, 1), np.log(0.7) + normal(x, 3, 2))
    return -np.log1p(x**2), log_q


def mixture() -> Components:
    parameters = (jnp.array([[-2.0], [3.0], [9.0]]), jnp.log(jnp.array([[1.0], [2.0], [1.0]])))
    return Components(parameters, jnp.log(jnp.array([0.3, 0.7, 0.0])))


def expected(of: np.ndarray, mean: float, deviation: float) -> float:
    return float((scipy.stats.norm.pdf(X, mean, deviation) * of).sum() * WIDTH)


@pytest.mark.parametrize(("lam", "begun"), [(0.5, 1.0), (2.0, 1.0), (1.0, 0.0)])
def test_the_component_step_is_entropy_and_the_lamed_ratio(lam: float, begun: float) -> None:
    """At the first component the ratio is ``log L``, so the step is the ELBO itself at λ = 1."""
    with jax.enable_x64(True):
        ratio = Ratio(mixture(), jnp.asarray(-1e9), jnp.asarray(begun))
        start = FORM.parameters(DiagonalGaussian.from_standard([1.0], [4.0]))
        nodes = jnp.asarray(nodes_of(FORM, NODES))
        found = float(COMPONENT(FORM, jnp.zeros(2), nodes, None, TARGET, start, ratio, lam))
    log_l, log_q = parts(X)
    wanted = scipy.stats.norm.entropy(1, 2) + lam * expected(log_l - begun * log_q, 1, 2)
    assert found == pytest.approx(wanted, abs=5e-3 * lam)


def test_a_full_covariance_is_solved_for_once() -> None:
    """Two large batches of triangular solves in one program may wait forever on CPUs."""
    form, rng = form_of(Gaussian.from_standard(np.zeros(2), np.eye(2))), np.random.default_rng(0)
    means, below = rng.normal(size=(3, 2)), rng.normal(size=(3, 2, 2))
    factors = np.tril(below, -1) + np.eye(2)
    q, z = Components((means, factors), np.log(np.array([0.2, 0.5, 0.3]))), rng.normal(size=2)
    moves, nodes = np.zeros((3, form.moves + 1)), nodes_of(form, 8)
    with jax.enable_x64(True):
        tangents = objectives.Linear(np.zeros((24, 2)), np.zeros(24), np.zeros((24, 2)))
        slope = jax.grad(objectives.joint, argnums=(1, 2))
        program = jax.make_jaxpr(slope, static_argnums=0)
        traced = program(form, moves, moves, nodes, None, tangents, q)
        logs, down = jax.value_and_grad(lambda z: objectives.log_mixture(form, q, z))(z)
    assert str(traced).count("triangular_solve[") == 1
    laws = [
        scipy.stats.multivariate_normal(m, s @ s.T) for m, s in zip(means, factors, strict=True)
    ]
    shares = np.array([0.2, 0.5, 0.3]) * [law.pdf(z) for law in laws]
    assert float(logs) == pytest.approx(np.log(shares.sum()))
    pulls = [np.linalg.solve(s @ s.T, m - z) for m, s in zip(means, factors, strict=True)]
    np.testing.assert_allclose(down, shares @ pulls / shares.sum(), rtol=1e-9)


def test_the_joint_objective_is_the_bound_of_the_mixture() -> None:
    """By quadrature; places without weight do not count, whatever they hold."""
    with jax.enable_x64(True):
        nodes = jnp.asarray(nodes_of(FORM, NODES))
        joint = lambda v, q: objectives.joint(FORM, v, v, nodes, None, TARGET, q)
        found, slope = jax.jit(jax.value_and_grad(joint))(jnp.zeros((3, 3)), mixture())
    found = float(found)
    log_l, log_q = parts(X)
    assert found == pytest.approx(float((np.exp(log_q) * (log_l - log_q)).sum() * WIDTH), abs=2e-3)
    assert np.isfinite(slope).all()
    np.testing.assert_array_equal(np.asarray(slope)[2], 0.0)


def test_searches_see_the_target_through_its_tangents() -> None:
    """Value and gradient are those of the objective itself; of slots without weight zero."""
    with jax.enable_x64(True):
        nodes, q = nodes_of(FORM, 64), mixture()
        start = FORM.parameters(DiagonalGaussian.from_standard([1.0], [4.0]))
        ratio, v = Ratio(q, jnp.asarray(-1e9), jnp.asarray(1.0)), np.array([0.3, -0.2])
        look = objectives.look_at_component(FORM, nodes, TARGET, start, ratio, 0.7)
        whole = jax.jit(jax.value_and_grad(objectives.component, argnums=1), static_argnums=0)
        expected = whole(FORM, v, nodes, None, TARGET, start, ratio, 0.7)
        for found, wanted in zip(look(v), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9)
        moves = np.zeros((3, 3))
        value, slope = objectives.look_at_joint(FORM, np.split(nodes, 2), TARGET, q)(moves)
        path = jax.jit(jax.value_and_grad(objectives.joint_path, argnums=1), static_argnums=0)
        wanted, along = path(FORM, moves, nodes, None, TARGET, q)
        assert value == pytest.approx(float(wanted), rel=1e-9)
        np.testing.assert_allclose(slope, along, atol=1e-9)


def rosenbrock(v: np.ndarray) -> tuple[float, np.ndarray]:
    value, slope = scipy.optimize.rosen(v), scipy.optimize.rosen_der(v)
    return -value, -slope


def test_searches_end_where_functions_are_most() -> None:
    found = maximised(rosenbrock, np.array([-1.2, 1.0]))
    np.testing.assert_allclose(found.v, [1.0, 1.0], atol=1e-4)
    assert found.value == pytest.approx(0.0, abs=1e-8)
