"""Descent of the free energy: it never rises, ends at the optimum, and starts where it can."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.robustness import problems
from experiments.robustness.reference import gap_of
from posterity.families import DiagonalGaussian, Gaussian, Product
from posterity.inference.cubature import Cubature
from posterity.inference.estimators import PredictorQuadrature
from posterity.inference.update import LocalUpdate
from posterity.models import FunctionModel, LogisticRegression, PoissonRegression, Records
from posterity.models.nodes import normal_pairs

few = settings(max_examples=settings().max_examples // 4)
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(24), RNG.normal(130, 15, 24)])
Y = (RNG.random(24) < 0.3).astype(float)
RECORDS = Records.of((X, Y))
PRIOR = Gaussian.from_standard(np.zeros(2), 4 * np.eye(2))
DIAGONAL = DiagonalGaussian.from_standard(np.zeros(2), np.full(2, 4.0))


@functools.cache
def compiled(model, steps, diagonal):
    update = LocalUpdate(steps=steps).resolve(model, DIAGONAL if diagonal else PRIOR)
    return jax.jit(lambda q, factor, records: update(
        model, q, factor, records, 0, key=jax.random.key(0)))  # fmt: skip


def visit(model, q, factor, records, steps=100):
    with jax.enable_x64(True):
        given = jax.tree.map(jax.device_put, (q, factor, records))
        run = compiled(model, steps, isinstance(q, DiagonalGaussian))
        return jax.tree.map(np.asarray, run(*given))


LOGISTIC = LogisticRegression()
EXPECTED = jax.jit(lambda q: PredictorQuadrature(2000).evaluate(LOGISTIC, q, RECORDS).value)
"""By nodes that are far too many."""


def energy(q, cavity):
    """``KL(q || cavity) - E_q[log likelihood]``."""
    with jax.enable_x64(True):
        return float(q.kl(cavity)) - float(EXPECTED(q))


@pytest.mark.slow
@few
@given(
    mean=st.tuples(st.floats(-30, 30), st.floats(-3, 3)),
    deviation=st.floats(-4, 4).map(lambda x: 10.0**x),
    diagonal=st.booleans(),
)
def test_no_visit_raises_the_free_energy(mean, deviation, diagonal):
    """From wherever it starts, however few points it looks at."""
    prior, shape = (DIAGONAL, np.ones(2)) if diagonal else (PRIOR, np.eye(2))
    q = type(prior).from_standard(np.array(mean), deviation**2 * shape)
    before = energy(q, prior)
    for steps in (3, 100):
        factor, info = visit(LOGISTIC, q, q - prior, RECORDS, steps)
        assert info.finite
        after = energy(prior + factor, prior)
        assert after <= before + 1e-9 * abs(before) + 1e-9


def test_raw_columns_end_at_the_optimum_of_another_optimiser():
    factor, info = visit(LOGISTIC, PRIOR, PRIOR.zero(), RECORDS)
    problem = problems.Problem("logistic, full", LOGISTIC, {"one": (X, Y)}, PRIOR, {})
    assert info.residual < 1e-6
    assert abs(gap_of(problem)(PRIOR + factor)) < 1e-7


def test_a_start_that_overflows_is_made_narrower():
    """Counts with a log link, seen through a prior under which their mean is e^5000."""
    x, y = np.full((5, 2), 10.0) + RNG.normal(size=(5, 2)), np.array([0.0, 2.0, 1.0, 3.0, 1.0])
    wide = Gaussian.from_standard(np.zeros(2), 100 * np.eye(2))
    factor, info = visit(FunctionModel(problems.poisson), wide, wide.zero(), Records.of((x, y)))
    assert info.finite and info.residual < 1e-4
    assert (wide + factor).is_proper()


def test_a_start_at_which_naive_code_fails_is_left():
    """Two cut points that are equal at the mean: the logarithm of a difference of zero."""

    def cuts(z, y):
        below, above = jax.nn.sigmoid(z[0]), jax.nn.sigmoid(z[1])
        chances = jnp.stack([below, above - below, 1 - above])
        return jnp.log(chances[y.astype(int)])

    y = np.array([0.0, 1.0, 2.0, 1.0, 1.0, 0.0, 2.0, 2.0] * 4)
    factor, info = visit(FunctionModel(cuts), PRIOR, PRIOR.zero(), Records.of(y))
    assert info.finite
    q = PRIOR + factor
    assert q.mean[0] < q.mean[1]


def test_starts_are_had_in_many_dimensions():
    q = Product(a=Gaussian.from_standard(np.zeros(30), np.eye(30)), b=PRIOR)
    update = LocalUpdate(steps=1).resolve(SUM, q)
    with jax.enable_x64(True):
        given = jax.tree.map(jax.device_put, (q, q.zero(), Records.of(np.ones(3))))
        _, info = jax.jit(lambda *given: update(SUM, *given, 0, key=jax.random.key(0)))(*given)
    assert info.finite


SUM = FunctionModel(lambda z, x: x * z["a"].sum())


def test_no_start_at_all_is_told():
    model = FunctionModel(lambda z, x: jnp.nan * x * z[0])
    assert not visit(model, PRIOR, PRIOR.zero(), Records.of(np.ones(3)))[1].finite


def test_narrow_integers_are_widened():
    """``x**2`` of eight bits is not what it says."""
    model = FunctionModel(lambda z, x: -((z[0] - x / 10) ** 2) * x**2 / 1e4 - z[1] ** 2)
    pixels = np.array([3, 90, 200, 255], np.uint8)
    ours, expected = (
        visit(model, PRIOR, PRIOR.zero(), Records.of(kind))[0]
        for kind in (pixels, pixels.astype(float))
    )
    assert ours == expected


@pytest.mark.parametrize("moved, more", [(3.0, 1e-3), (1.0, 1e-4)])
def test_a_quick_coordinate_does_not_hide_a_slow_one(moved, more):
    """The steps that end a visit early are those of all coordinates, however stiff some are."""
    model, prior = PoissonRegression(), Gaussian.from_standard(np.zeros(2), np.diag([100.0, 9.0]))
    records = Records((np.eye(2), np.array([1.0, 0.0])), np.array([1e6, 1.0]))
    update = LocalUpdate().resolve(model, prior)

    def improved(factor, times):
        for _ in range(times):
            factor, info = update(model, prior + factor, factor, records, 0, key=None)
        return factor, info

    optimum = prior + improved(prior.zero(), 6)[0]
    variance = optimum.marginal_variance
    mean = optimum.mean + np.array([moved * np.sqrt(variance[0]), 0.0])
    start = Gaussian.from_standard(mean, np.diag(variance / [1.0, 1 + more]))
    factor, info = improved(start - prior, 1)
    # Weights of a million leave some 1e-9 nats to rounding.
    assert float((prior + factor).kl(optimum)) < 3e-9 + float(info.residual) ** 2


# --- cubature ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size, pairs", [(1, 64), (2, 64), (7, 64), (40, 80)])
def test_nodes_have_the_moments_of_a_normal(size, pairs):
    nodes = normal_pairs(size, pairs)
    assert nodes.shape == (2 * pairs, size)
    np.testing.assert_allclose(nodes.mean(0), 0, atol=1e-13)
    np.testing.assert_allclose(nodes.T @ nodes / len(nodes), np.eye(size), atol=1e-12)
    others = normal_pairs(size, pairs, 1)
    assert not np.allclose(nodes, others)


def cubic(z, data):
    """Of third order: what the nodes integrate exactly."""
    z = jnp.concatenate([z["a"], z["b"]]) if isinstance(z, dict) else z
    return -((data @ z) ** 2) / 2 + 0.01 * (data @ z) ** 3 + data @ z


def test_a_likelihood_of_third_order_is_exact_and_a_product_is_its_blocks():
    q = Gaussian.from_standard([0.4, -0.3], [[0.5, 0.2], [0.2, 0.7]])
    data = RNG.normal(size=(6, 2))
    mean, covariance = q.mean, q.covariance
    along, spread = data @ mean, np.einsum("ni,ij,nj->n", data, covariance, data)
    second = -1 + 0.06 * along
    slope = data.T @ (1 - along + 0.03 * (along**2 + spread))
    precision = -(data.T * second) @ data
    with jax.enable_x64(True):
        model, records = FunctionModel(cubic), Records.of(data)
        evaluate = jax.jit(lambda q: Cubature().evaluate(model, q, records))
        found = evaluate(q)
        blocks = Product(a=DiagonalGaussian.from_standard([0.4], [0.5]),
                         b=DiagonalGaussian.from_standard([-0.3], [0.7]))  # fmt: skip
        one = DiagonalGaussian.from_standard([0.4, -0.3], [0.5, 0.7])
        left, right = evaluate(blocks), evaluate(one)
    np.testing.assert_allclose(found.gradient.precision, precision, atol=1e-10)
    np.testing.assert_allclose(found.gradient.precision_mean, slope + precision @ mean, atol=1e-10)
    joined = np.concatenate([left.gradient.a.precision, left.gradient.b.precision])
    np.testing.assert_allclose(joined, right.gradient.precision, atol=1e-12)
    np.testing.assert_allclose(left.value, right.value, rtol=1e-13)


def test_kinks_are_seen():
    """The second derivative of an absolute value is zero wherever there is one."""
    x, y = np.column_stack([np.ones(200), RNG.normal(size=200)]), RNG.laplace(size=200)
    factor, info = visit(FunctionModel(problems.laplace), PRIOR, PRIOR.zero(), Records.of((x, y)))
    assert info.residual**2 / 2 < 1e-3  # the sum over nodes has kinks too
    # Of Laplace's errors each tells as much as a normal one of variance one (the scale is one).
    ratio = np.linalg.eigvalsh(np.linalg.solve(x.T @ x, factor.precision)).round(3)
    assert (ratio > 0.7).all() and (ratio < 1.3).all()


@pytest.mark.slow
def test_a_curved_valley_is_followed_to_its_end():
    """Steps are as long as secants say: doubled and halved ones leave 5e-4 nats to gain here."""
    x = np.column_stack([np.ones(50), RNG.normal(size=50)])
    records = Records.of((x, 2 * x[:, 1] + 0.3 + RNG.normal(size=50)))
    prior = Gaussian.from_standard([0.1, 0.0], np.eye(2))
    _, info = visit(FunctionModel(problems.bilinear), prior, prior.zero(), records)
    assert info.residual < 1e-5


@pytest.mark.parametrize(
    "family", [Gaussian, pytest.param(DiagonalGaussian, marks=pytest.mark.slow)]
)
def test_there_may_be_more_coordinates_than_starts(family):
    x, d = RNG.normal(size=(30, 20)), 20
    y = (RNG.random(30) < 0.5).astype(float)
    shape = np.eye(d) if family is Gaussian else np.ones(d)
    prior = family.from_standard(np.zeros(d), shape)
    factor, info = visit(LOGISTIC, prior, prior.zero(), Records.of((x, y)))
    assert info.finite
    assert info.residual < 1e-4
    assert (prior + factor).is_proper()
