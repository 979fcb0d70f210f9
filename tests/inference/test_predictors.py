"""Linear predictors in users' own log likelihoods: what is found, and sums over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from posterity.families import DiagonalGaussian, Gaussian, Product
from posterity.inference import Cubature, PredictorQuadrature, estimators
from posterity.inference.cubature import AXES, grids, nodes_for, seen
from posterity.inference.estimators import BLOCK
from posterity.inference.joint import joint_mean, moved_to, pieces
from posterity.inference.predictors import predictors_of
from posterity.models import FunctionModel, LogisticRegression, Records

SIZE = 4
RNG = np.random.default_rng(5)
X = RNG.normal(size=(9, SIZE)) + 3
Y = (RNG.random(9) < 0.5).astype(float)
RECORDS = Records.of((X, Y), 0.7)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def compiled(method, model, q, records, **options):
    """A method of an estimator in one program: by itself each operation would be one."""
    program = jax.jit(lambda q, records: method(model, q, records, **options))
    return jax.device_get(program(q, records))


def gaussian(size):
    return DiagonalGaussian.from_standard(0.2 * RNG.normal(size=size), 0.01 + RNG.random(size) / 9)


def full(size):
    root = 0.3 * RNG.normal(size=(size, size)) / np.sqrt(size)
    return Gaussian.from_standard(0.2 * RNG.normal(size=size), root @ root.T + 0.01 * np.eye(size))


def logistic(z, data):
    x, y = data
    return y * (x @ z) - jnp.logaddexp(0.0, x @ z)


def with_intercept(z, data):
    x, y = data
    f = z[0] + (x * z[1:]).sum(-1)
    return y * f - jax.nn.softplus(f)


def softmax(z, data):
    x, y = data
    logits = jnp.concatenate([jnp.zeros((len(x), 1)), x @ z.reshape(SIZE, 2)], 1)
    return jnp.take_along_axis(jax.nn.log_softmax(logits), y.astype(int)[:, None], 1)[:, 0]


def with_scale(z, data):
    x, y = data
    return jax.scipy.stats.norm.logpdf(y, x @ z[:-1], jnp.exp(z[-1]))


def excess_of_zeros(z, data):
    """With the last parameter, its opposite, and its difference from a sum."""
    x, y = data
    f = x @ z[:-1]
    chance, other = jax.nn.log_sigmoid(z[-1]), jax.nn.log_sigmoid(-z[-1])
    return jnp.logaddexp(chance, other - jnp.tanh(f)) - jnp.cos(z[-1] - f) * y


def row_by_row(z, data):
    return jax.vmap(lambda x, y: logistic(z, (x[None], y[None]))[0])(*data)


def of_blocks(z, data):
    x, y = data
    return logistic(jnp.concatenate([z["a"], z["b"]]), (x, y))


def interacting(z, data):
    x, y = data
    return -((y - jnp.tanh(x * z).sum(-1)) ** 2)


def summed(z, data):
    return logistic(z, data).sum()


BLOCKS = Product(a=gaussian(1), b=full(SIZE - 1))
FOUND = [
    (logistic, gaussian(SIZE), 1),
    (logistic, full(SIZE), 1),
    (with_intercept, gaussian(SIZE + 1), 2),
    (softmax, gaussian(2 * SIZE), 2),
    (softmax, full(2 * SIZE), 2),
    (with_scale, full(SIZE + 1), 2),
    (excess_of_zeros, full(SIZE + 1), 2),
    (row_by_row, gaussian(SIZE), 1),
    (of_blocks, BLOCKS, 1),
]


@pytest.mark.parametrize(
    "function, q, number",
    [FOUND[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in FOUND[1:])],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_predictors_are_found_and_sums_over_them_are_the_expectation(function, q, number):
    model = FunctionModel(function)
    found = predictors_of(model, q, RECORDS)
    assert found is not None

    def both(z, data):
        each = jax.vmap(lambda *own: found.log_likelihood(found.linear(z, own), own))
        return each(*data), function(q.join_event(pieces(q, z)), data)

    assert np.allclose(*jax.jit(both)(np.asarray(joint_mean(q)), (X, Y)), atol=1e-12)
    expected, _, curvature = compiled(Cubature().curved, model, q, RECORDS)
    other = compiled(Cubature().evaluate, model, q, RECORDS, otherwise=True)
    key, draws = jax.random.key(0), 100_000
    values = jax.jit(jax.vmap(lambda z: model.total(z, RECORDS)))(q.sample(key, (draws,)))
    values = np.asarray(values)
    assert abs(expected.value - values.mean()) < 5 * values.std() / np.sqrt(draws)
    assert abs(other.value - expected.value) < 2e-3
    # The gradient is that of the sum, in means and precisions alike, and so is the curvature's.
    value = lambda eta: Cubature().evaluate(model, q.with_natural_parameters(eta), RECORDS).value
    slope = jax.jit(jax.grad(value))(q.natural_parameters)
    natural = q.inverse_fisher_product(np.asarray(slope))
    assert np.allclose(expected.gradient.natural_parameters, natural, rtol=1e-6, atol=1e-8)
    assert found.number <= number and curvature.shape == (q.event_size, q.event_size)
    assert np.allclose(curvature, curvature.T)


def test_one_predictor_gives_what_a_predictor_model_does():
    for q in (gaussian(SIZE), full(SIZE)):
        own = compiled(Cubature().curved, FunctionModel(logistic), q, RECORDS)
        known = PredictorQuadrature().curved(LogisticRegression(), q, RECORDS)
        assert np.allclose(own[0].value, known[0].value, rtol=1e-12)
        ours, theirs = (each[0].gradient.natural_parameters for each in (own, known))
        assert np.allclose(ours, theirs, rtol=1e-9) and np.allclose(own[2], known[2], rtol=1e-9)


@pytest.mark.parametrize("function", [interacting, summed])
def test_what_has_too_many_predictors_or_is_no_value_a_record_has_none(function):
    assert predictors_of(FunctionModel(function), gaussian(SIZE), RECORDS) is None


def test_a_product_of_two_parameters_is_summed_exactly():
    """Its moments are Isserlis' in closed form."""
    q, x = full(2), X[:, -1]
    model = FunctionModel(lambda z, data: -((data[1] - z[0] * z[1] * data[0][:, -1]) ** 2) / 2)
    (a, b), c = q.mean, q.covariance
    first, shared = a * b + c[0, 1], 4 * a * b * c[0, 1] + 2 * c[0, 1] ** 2
    second = (a**2 + c[0, 0]) * (b**2 + c[1, 1]) + shared
    exact = -0.35 * (Y**2 - 2 * Y * x * first + x**2 * second).sum()
    for otherwise in (False, True):
        found = compiled(Cubature().evaluate, model, q, RECORDS, otherwise=otherwise)
        assert np.isclose(found.value, exact, rtol=1e-12)


@pytest.mark.parametrize(("number", "error"), [(2, 0.05), (3, 0.1)])
def test_a_kink_across_an_axis_does_not_meet_rows_of_nodes_at_once(number, error):
    """The mean sign of ``t - u``; with rows of nodes errors are twice these and more."""
    places = np.linspace(-2, 2, 101)[:, None]
    for nodes, chances in grids(number, AXES[number]):
        for along in nodes.T:
            off = np.sign(places - along) @ chances - (2 * ndtr(places[:, 0]) - 1)
            assert np.sqrt((off**2).mean()) < error


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_tails_beyond_the_nodes_are_told(number):
    """Of ``exp(s u)`` at ``s = 10``, of which nodes miss half and more; not at ``s = 2``."""
    size = number + 1
    q = DiagonalGaussian.from_standard(np.zeros(size), np.ones(size))
    records = Records.of((np.eye(number, size)[None], np.ones(1)))
    for steep, exact in ((2.0, np.exp(2.0)), (10.0, np.exp(50.0))):

        def steeply(z, data, steep=steep):
            u = data[0] @ z
            return jnp.exp(steep * u[:, 0]) + jnp.sin(u[:, 1:]).sum(1)

        model = FunctionModel(steeply)
        assert predictors_of(model, q, records).number == number
        found = compiled(Cubature().evaluate, model, q, records, otherwise=True)
        if steep == 2:
            assert found.tail < (1e-6 if number < 4 else 1e-2)
        else:
            assert 0.1 * exact < found.tail < 10 * exact and found.value < 0.7 * exact


def test_kinks_are_not_taken_for_jumps():
    """Other nodes differ by what is not yet summed, from slopes again."""
    x = RNG.normal(size=(5, 2))
    records = Records.of((x, x.sum(1) + 0.3 * RNG.standard_t(3, size=5)))
    model = FunctionModel(lambda z, d: -jnp.abs(d[1] - d[0] @ z[:2]) * jnp.exp(-z[2]) - z[2])
    q = Gaussian.from_standard([1.0, 1.0, -1.0], np.diag([0.04, 0.04, 0.16]))
    estimator = Cubature(2048)

    def both(q, records):
        found = predictors_of(model, q, records)
        nodes = nodes_for(found.number, estimator.nodes, True, np.dtype(float))
        by_slopes, _ = seen(found, q, records, *nodes, True)
        other = estimator.evaluate(model, q, records, otherwise=True)
        return by_slopes.curved(q).expected.gradient, other.gradient

    slopes, other = jax.jit(both)(q, records)
    np.testing.assert_array_equal(slopes.precision, other.precision)


def test_a_record_of_zeros_beside_others_changes_nothing():
    q = gaussian(SIZE)
    wide = Records.of((np.r_[X, np.zeros((2, SIZE))], np.r_[Y, 0.0, 0.0]))
    estimator, model = Cubature(), FunctionModel(logistic)
    intercept = FunctionModel(with_intercept)
    one = compiled(estimator.evaluate, intercept, gaussian(SIZE + 1), wide)
    two = compiled(estimator.curved, model, q, wide)
    less = compiled(estimator.curved, model, q, Records.of((X, Y)))
    assert np.isfinite(one.gradient.natural_parameters).all()
    assert np.allclose(two[2], less[2]) and np.isclose(
        float(two[0].value), float(less[0].value) - 2 * np.log(2)
    )


def test_curvatures_of_nodes_are_those_of_slopes_beside_each_other():
    """By Stein's lemma, for a likelihood that has no few predictors."""
    q = Product(a=gaussian(2), b=full(2))
    model = FunctionModel(lambda z, data: interacting(jnp.concatenate([z["a"], z["b"]]), data))
    fine = Cubature(4096)
    curvature = compiled(fine.curved, model, q, RECORDS)[2]
    value = lambda mean: fine.evaluate(model, moved_to(q, mean), RECORDS).value
    exact = -jax.jit(jax.hessian(value))(jnp.asarray(joint_mean(q)))
    assert np.abs(curvature - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("function", ["predictors", "parameters"])
def test_sums_over_blocks_of_records_are_sums_over_records(function, monkeypatch):
    """The function of all parameters has no predictors."""
    curved = lambda z, d: -((d[1] - jnp.tanh(z[0] * d[0][:, 0]) * z[1] * z[2] * z[3]) ** 2)
    through = lambda z, d: -((d[1] - jnp.tanh(d[0] @ z)) ** 2)
    model = FunctionModel(through if function == "predictors" else curved)
    number, q = 2 * BLOCK + 5, gaussian(4)
    x, weights = RNG.normal(size=(number, 4)), np.r_[0.0, RNG.uniform(0.5, 2, number - 1)]
    records = Records((x, RNG.normal(size=number)), weights)
    assert (predictors_of(model, q, records) is None) == (function == "parameters")
    blocks = [compiled(Cubature().evaluate, model, q, r) for r in (records, records.padded(256))]
    monkeypatch.setattr(estimators, "BLOCK", number)
    whole = compiled(Cubature().evaluate, model, q, records)
    for found in blocks:
        np.testing.assert_allclose(found.value, whole.value, rtol=1e-12)
        own, all_ = (one.gradient.natural_parameters for one in (found, whole))
        np.testing.assert_allclose(own, all_, rtol=1e-9, atol=1e-12)


def test_a_likelihood_with_jumps_in_all_records_of_a_block_alone_has_a_value():
    """Derivatives that are zero in a block say nothing if they are not in another one."""
    steps = lambda z, d: jnp.where(d[1] > 0, -((d[0] - z[0] * z[1]) ** 2), 1.0 * (z[0] > d[0]))
    x, smooth = RNG.normal(size=2 * BLOCK), np.repeat([0.0, 1.0], BLOCK)
    records, q = Records.of((x, smooth)), gaussian(2)
    assert np.isfinite(compiled(Cubature().evaluate, FunctionModel(steps), q, records).value)
    every = Records.of((x, 0 * smooth))
    assert np.isnan(compiled(Cubature().evaluate, FunctionModel(steps), q, every).value)
