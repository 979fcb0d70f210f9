"""Linear predictors that users' own log likelihoods say, and sums over them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from posterity import federate
from posterity.errors import StructureError, UsageError
from posterity.families import DiagonalGaussian, Gaussian, Product
from posterity.inference import Cubature, PredictorQuadrature, estimators
from posterity.inference.cubature import AXES, along, grids, nodes_for, predictors_said, seen
from posterity.inference.estimators import BLOCK
from posterity.inference.joint import joint_mean, moved_to
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


def logits(z, data):
    return data[0] @ z[:, None]


def logistic(f, data):
    return data[1] * f[:, 0] - jnp.logaddexp(0.0, f[:, 0])


def with_intercept(z, data):
    x, _ = data
    return (z[0] + (x * z[1:]).sum(-1))[:, None]


def of_classes(z, data):
    return data[0] @ z.reshape(SIZE, 2)


def softmax(f, data):
    every = jnp.concatenate([jnp.zeros((len(f), 1)), f], 1)
    return jnp.take_along_axis(jax.nn.log_softmax(every), data[1].astype(int)[:, None], 1)[:, 0]


def mean_and_last(z, data):
    x, _ = data
    return jnp.stack([x @ z[:-1], jnp.full(len(x), z[-1])], 1)


def with_scale(f, data):
    return jax.scipy.stats.norm.logpdf(data[1], f[:, 0], jnp.exp(f[:, 1]))


def excess_of_zeros(f, data):
    f, zeros = f.T
    chance, other = jax.nn.log_sigmoid(zeros), jax.nn.log_sigmoid(-zeros)
    return jnp.logaddexp(chance, other - jnp.tanh(f)) - jnp.cos(zeros - f) * data[1]


def of_blocks(z, data):
    return logits(jnp.concatenate([z["a"], z["b"]]), data)


def interacting(z, data):
    x, y = data
    return -((y - jnp.tanh(x * z).sum(-1)) ** 2)


def dependent(z, data):
    """Two predictors of which one is twice the other."""
    return logits(z, data) * jnp.array([1.0, 2.0])


def both_half(f, data):
    return logistic(f.mean(1, keepdims=True) / 1.5, data)


BLOCKS = Product(a=gaussian(1), b=full(SIZE - 1))
SAID = [
    (logits, logistic, gaussian(SIZE), 1),
    (logits, logistic, full(SIZE), 1),
    (with_intercept, logistic, gaussian(SIZE + 1), 1),
    (of_classes, softmax, gaussian(2 * SIZE), 2),
    (of_classes, softmax, full(2 * SIZE), 2),
    (mean_and_last, with_scale, full(SIZE + 1), 2),
    (mean_and_last, excess_of_zeros, full(SIZE + 1), 2),
    (of_blocks, logistic, BLOCKS, 1),
    (dependent, both_half, full(SIZE), 2),
]


@pytest.mark.parametrize(
    "predictors, function, q, number",
    [SAID[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in SAID[1:])],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_sums_over_predictors_are_the_expectation(predictors, function, q, number):
    model = FunctionModel(function, predictors=predictors)
    assert predictors_said(model, q, RECORDS) == number
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
    assert curvature.shape == (q.event_size, q.event_size)
    assert np.allclose(curvature, curvature.T)


LOGISTIC = FunctionModel(logistic, predictors=logits)


def test_one_predictor_gives_what_a_predictor_model_does():
    for q in (gaussian(SIZE), full(SIZE)):
        own = compiled(Cubature().curved, LOGISTIC, q, RECORDS)
        known = PredictorQuadrature().curved(LogisticRegression(), q, RECORDS)
        assert np.allclose(own[0].value, known[0].value, rtol=1e-12)
        ours, theirs = (each[0].gradient.natural_parameters for each in (own, known))
        assert np.allclose(ours, theirs, rtol=1e-9) and np.allclose(own[2], known[2], rtol=1e-9)


def test_more_predictors_than_parameters_or_than_can_be_summed_are_not_summed():
    wide = lambda z, data: data[0] @ z[:, None] * jnp.ones(SIZE)
    assert not predictors_said(FunctionModel(softmax, predictors=wide), gaussian(SIZE), RECORDS)
    for number, summed in ((16, 16), (17, 0)):
        each = functools.partial(lambda number, z, data: data[0] @ z.reshape(SIZE, number), number)
        model = FunctionModel(softmax, predictors=each)
        assert predictors_said(model, gaussian(SIZE * number), RECORDS) == summed
    assert not predictors_said(FunctionModel(interacting), gaussian(SIZE), RECORDS)


def test_predictors_that_are_not_one_row_a_record_or_not_affine_are_refused():
    flat = FunctionModel(logistic, predictors=lambda z, data: data[0] @ z)
    with pytest.raises(StructureError, match=r"predictors of shape \(9,\) for 9 records"):
        federate({"a": (X, Y)}, flat, gaussian(SIZE))
    squared = lambda z, data: jnp.stack([data[0] @ z, (data[0] * z**2).sum(1)], 1)
    with pytest.raises(UsageError, match="number 1 is no affine function"):
        federate({"a": (X, Y)}, FunctionModel(logistic, predictors=squared), gaussian(SIZE))
    shifted = lambda z, data: logits(z, data) + 1e6
    federate({"a": (X, Y)}, FunctionModel(logistic, predictors=shifted), gaussian(SIZE), steps=0)


@pytest.mark.parametrize(("number", "error"), [(2, 0.05), (3, 0.1)])
def test_a_kink_across_an_axis_does_not_meet_rows_of_nodes_at_once(number, error):
    """The mean sign of ``t - u``; with rows of nodes errors are twice these and more."""
    places = np.linspace(-2, 2, 101)[:, None]
    for nodes, chances in grids(number, AXES[number]):
        for axis in nodes.T:
            off = np.sign(places - axis) @ chances - (2 * ndtr(places[:, 0]) - 1)
            assert np.sqrt((off**2).mean()) < error


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_tails_beyond_the_nodes_are_told(number):
    """Of ``exp(s u)`` at ``s = 10``, of which nodes miss half and more; not at ``s = 2``."""
    size = number + 1
    q = DiagonalGaussian.from_standard(np.zeros(size), np.ones(size))
    records = Records.of((np.eye(number, size)[None], np.ones(1)))
    for steep, exact in ((2.0, np.exp(2.0)), (10.0, np.exp(50.0))):

        def steeply(u, data, steep=steep):
            return jnp.exp(steep * u[:, 0]) + jnp.sin(u[:, 1:]).sum(1)

        model = FunctionModel(steeply, predictors=lambda z, data: data[0] @ z)
        assert predictors_said(model, q, records) == number
        found = compiled(Cubature().evaluate, model, q, records, otherwise=True)
        if steep == 2:
            assert found.tail < (1e-6 if number < 4 else 1e-2)
        else:
            assert 0.1 * exact < found.tail < 10 * exact and found.value < 0.7 * exact


def test_kinks_are_not_taken_for_jumps():
    """Other nodes differ by what is not yet summed, from slopes again."""
    x = RNG.normal(size=(5, 2))
    records = Records.of((x, x.sum(1) + 0.3 * RNG.standard_t(3, size=5)))
    model = FunctionModel(
        lambda f, d: -jnp.abs(d[1] - f[:, 0]) * jnp.exp(-f[:, 1]) - f[:, 1],
        predictors=mean_and_last,
    )
    q = Gaussian.from_standard([1.0, 1.0, -1.0], np.diag([0.04, 0.04, 0.16]))
    estimator = Cubature(2048)

    def both(q, records):
        nodes = nodes_for(2, estimator.nodes, True, np.dtype(float))
        by_slopes, _ = seen(along(model, q, records), q, *nodes, True)
        other = estimator.evaluate(model, q, records, otherwise=True)
        return by_slopes.curved(q).expected.gradient, other.gradient

    slopes, other = jax.jit(both)(q, records)
    np.testing.assert_array_equal(slopes.precision, other.precision)


def test_a_record_of_zeros_beside_others_changes_nothing():
    q = gaussian(SIZE)
    wide = Records.of((np.r_[X, np.zeros((2, SIZE))], np.r_[Y, 0.0, 0.0]))
    estimator, model = Cubature(), LOGISTIC
    intercept = FunctionModel(logistic, predictors=with_intercept)
    one = compiled(estimator.evaluate, intercept, gaussian(SIZE + 1), wide)
    two = compiled(estimator.curved, model, q, wide)
    less = compiled(estimator.curved, model, q, Records.of((X, Y)))
    assert np.isfinite(one.gradient.natural_parameters).all()
    assert np.allclose(two[2], less[2]) and np.isclose(
        float(two[0].value), float(less[0].value) - 2 * np.log(2)
    )


def test_curvatures_of_nodes_are_those_of_slopes_beside_each_other():
    """By Stein's lemma, for a likelihood that says no predictors."""
    q = Product(a=gaussian(2), b=full(2))
    model = FunctionModel(lambda z, data: interacting(jnp.concatenate([z["a"], z["b"]]), data))
    fine = Cubature(4096)
    curvature = compiled(fine.curved, model, q, RECORDS)[2]
    value = lambda mean: fine.evaluate(model, moved_to(q, mean), RECORDS).value
    exact = -jax.jit(jax.hessian(value))(jnp.asarray(joint_mean(q)))
    assert np.abs(curvature - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.slow
@pytest.mark.parametrize("function", ["predictors", "parameters"])
def test_sums_over_blocks_of_records_are_sums_over_records(function, monkeypatch):
    curved = lambda z, d: -((d[1] - jnp.tanh(z[0] * d[0][:, 0]) * z[1] * z[2] * z[3]) ** 2)
    through = lambda f, d: -((d[1] - jnp.tanh(f[:, 0])) ** 2)
    said = FunctionModel(through, predictors=logits)
    model = said if function == "predictors" else FunctionModel(curved)
    number, q = 2 * BLOCK + 5, gaussian(4)
    x, weights = RNG.normal(size=(number, 4)), np.r_[0.0, RNG.uniform(0.5, 2, number - 1)]
    records = Records((x, RNG.normal(size=number)), weights)
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
