"""Partial pooling, as one site sees it: a marginal likelihood, and what it knows of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp
from scipy.stats import chi, multivariate_normal, norm

from posterity.errors import StructureError, UsageError
from posterity.families import DiagonalGaussian, Gamma, Gaussian, Product
from posterity.inference import LocalUpdate
from posterity.inference.cubature import Cubature
from posterity.models import (
    BetaBernoulli,
    LinearRegression,
    LogisticRegression,
    PersonalModel,
    PersonalRegression,
    PredictorModel,
    Records,
    hierarchical,
)
from posterity.models.nodes import cubature
from posterity.models.personal import Law, _columns

COLUMNS = (0, 2)
Z = {
    "coefficients": np.array([0.3, 1.0, -1.0]),
    "log_spread": np.log(np.array([0.5, 0.8])),
}
LINEAR = PersonalRegression(LinearRegression(0.3), COLUMNS)
LOGISTIC = PersonalRegression(LogisticRegression(), COLUMNS)
SIZE = 32
"""Of all data here, so that little is compiled."""


def made(rng, records=12):
    """Inputs, real responses, and labels."""
    x = np.column_stack([np.ones(records), rng.normal(size=(records, 2))])
    y = x @ Z["coefficients"] + rng.normal(size=records)
    return x, y, (rng.random(records) < 1 / (1 + np.exp(-y))).astype(float)


X, Y, LABELS = made(np.random.default_rng(0))


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def total(model, z, *data):
    """Compiled once a model."""
    return float(TOTAL(model, z, Records.of(data).padded(SIZE)))


TOTAL = jax.jit(lambda model, z, records: model.total(z, records), static_argnums=0)
LOCAL = jax.jit(lambda model, z, records: model.local(z, records), static_argnums=0)


class Logistic(PersonalModel):
    """The same as LOGISTIC, as a user would write it."""

    def local_prior(self, z):
        return z["coefficients"][jnp.array(COLUMNS)], jnp.exp(z["log_spread"])

    def local_log_likelihood(self, z, b, data):
        x, y = data
        f = x @ jnp.asarray(z["coefficients"]).at[jnp.array(COLUMNS)].set(b)
        return y * f - jnp.logaddexp(0.0, f)


class Rates(PersonalModel):
    """Counts about a rate of the site's own; ``scale`` of local_prior is a matrix."""

    def local_prior(self, z):
        return z[:1], jnp.exp(z[1:])[:, None]

    def local_log_likelihood(self, z, b, data):
        return data * b[0] - jnp.exp(b[0]) - jax.scipy.special.gammaln(data + 1)


class Robust(PersonalModel):
    """Student's t about a location of the site's own: not log-concave."""

    def local_prior(self, z):
        return z[:1], jnp.exp(z[1:])

    def local_log_likelihood(self, z, b, data):
        return -2 * jnp.log1p((data - b[0]) ** 2)


def evidence_on_a_grid(log_likelihood, mean, spread):
    """``log ∫ p(records | b) N(b | mean, spread²) db`` in one or two dimensions."""
    line = np.linspace(-14, 14, 401)
    v = np.stack(np.meshgrid(*[line] * len(mean), indexing="ij"), -1).reshape(-1, len(mean))
    logs = log_likelihood(mean + spread * v) - (v**2).sum(1) / 2
    return logsumexp(logs) + len(mean) * np.log((line[1] - line[0]) / np.sqrt(2 * np.pi))


def logistic_on_a_grid(z, x, y):
    rest = np.setdiff1d(np.arange(3), COLUMNS)
    at = x[:, rest] @ z["coefficients"][rest]

    def log_likelihood(b):
        f = at + b @ x[:, COLUMNS].T
        return -np.logaddexp(0.0, np.where(y > 0, -f, f)).sum(1)

    return evidence_on_a_grid(
        log_likelihood, z["coefficients"][list(COLUMNS)], np.exp(z["log_spread"])
    )


# --- the marginal likelihood ---------------------------------------------------------------------


@given(st.integers(0, 2**16), st.floats(-4, 3))
@settings(max_examples=25)
def test_linear_regression_has_its_exact_marginal_likelihood(seed, log_spread):
    rng = np.random.default_rng(seed)
    x, y, _ = made(rng, 1 + seed % SIZE)
    z = {"coefficients": rng.normal(size=3), "log_spread": log_spread + rng.normal(size=2)}
    between = np.zeros((3, 3))
    between[COLUMNS, COLUMNS] = np.exp(2 * z["log_spread"])
    covariance = x @ between @ x.T + 0.3 * np.eye(len(y))
    expected = multivariate_normal.logpdf(y, x @ z["coefficients"], covariance)
    assert total(LINEAR, z, x, y) == pytest.approx(expected, rel=1e-9, abs=1e-7)


@pytest.mark.slow
@given(st.integers(0, 2**16), st.floats(-4, 2))
@settings(max_examples=15)
def test_logistic_regression_is_bounded_from_below_and_tightly(seed, log_spread):
    rng = np.random.default_rng(seed)
    x, _, y = made(rng, 1 + seed % SIZE)
    z = {"coefficients": rng.normal(size=3), "log_spread": log_spread + 0.5 * rng.normal(size=2)}
    gap = logistic_on_a_grid(z, x, y) - total(LOGISTIC, z, x, y)
    assert -1e-6 < gap < 0.15


@pytest.mark.parametrize("spread", [-3.0, 0.0, 2.0])
@pytest.mark.parametrize("mean", [-10.0, 2.0, 4.5])
def test_the_bound_holds_wherever_the_search_begins(mean, spread):
    counts = np.array([3.0, 0.0, 5.0, 1.0])
    log_likelihood = lambda b: (counts * b - np.exp(b) - gammaln(counts + 1)).sum(1)
    exact = evidence_on_a_grid(log_likelihood, np.array([mean]), np.exp([spread]))
    z = np.array([mean, spread])
    gap = exact - float(TOTAL(RATES, z, Records.of(counts).padded(SIZE)))
    assert -1e-4 < gap < 0.05


@pytest.mark.parametrize("at", [0.0, 3.0])
def test_the_bound_holds_where_nothing_is_log_concave(at):
    x = np.array([-4.0, 0.5, 4.0])
    log_likelihood = lambda b: -2 * np.log1p((x - b) ** 2).sum(1)
    exact = evidence_on_a_grid(log_likelihood, np.array([at]), np.array([2.0]))
    gap = exact - float(TOTAL(ROBUST, np.array([at, np.log(2.0)]), Records.of(x)))
    assert -1e-3 < gap < 0.5


class Quartic(PersonalModel):
    """So flat in the middle and so steep outside that only the spread of radii tells."""

    size: int

    def local_prior(self, z):
        return jnp.zeros(self.size), jnp.ones(self.size)

    def local_log_likelihood(self, z, b, data):
        return -z * (b @ b) ** 2 * data


@pytest.mark.parametrize("size", [4, 6])
@given(log_steepness=st.floats(-7, -2))
@settings(max_examples=10)
def test_nodes_in_many_dimensions_know_of_more_than_one_radius(size, log_steepness):
    radius, steepness = np.linspace(0, 12, 4001), np.exp(log_steepness)
    exact = np.log(np.trapezoid(np.exp(-steepness * radius**4) * chi(size).pdf(radius), radius))
    model, one = Quartic(size), np.ones(1)
    gap = exact - float(TOTAL(model, steepness, Records.of(one)))
    assert -0.01 < gap < 0.1
    law = model.local(steepness, None)
    assert float(PREDICTIVE(model, steepness, law, one)[0]) == pytest.approx(exact, abs=0.1)


PREDICTIVE = jax.jit(
    lambda model, z, law, data: model.log_predictive(z, law, data), static_argnums=0
)
RATES, ROBUST, OWN = Rates(), Robust(), Logistic()


def test_a_users_own_model_is_the_librarys():
    """Cubature over the site's parameters, or sums along each predictor."""
    ours, theirs = total(LOGISTIC, Z, X, LABELS), total(OWN, Z, X, LABELS)
    assert theirs == pytest.approx(ours, abs=1e-6)


@given(st.permutations(range(len(Y))), st.sampled_from([12, 15, SIZE]))
@settings(max_examples=10)
def test_neither_order_nor_padding_of_records_matter(order, size):
    x, y = X[list(order)], LABELS[list(order)]
    records = Records.of((x, y)).padded(size).padded(SIZE)
    assert float(TOTAL(LOGISTIC, Z, records)) == pytest.approx(
        total(LOGISTIC, Z, X, LABELS), rel=1e-10
    )


def test_a_record_alone_is_a_site_of_one():
    alone = jax.jit(LOGISTIC.log_likelihood)(Z, (X[:2], LABELS[:2]))
    assert alone.shape == (2,)
    assert float(alone[1]) == pytest.approx(total(LOGISTIC, Z, X[1:2], LABELS[1:2]), rel=1e-9)


@pytest.mark.parametrize("model", [LOGISTIC, pytest.param(OWN, marks=pytest.mark.slow)])
def test_derivatives_are_those_of_the_values(model):
    records = Records.of((X, LABELS))

    @jax.jit
    def of(z, along):
        both = jax.value_and_grad(lambda z: model.total(z, records))
        return jax.jvp(both, (z,), (along,))

    for direction in np.random.default_rng(0).normal(size=(3, 5)):
        along = {"coefficients": direction[:3], "log_spread": direction[3:]}
        there = lambda h, along=along: jax.tree.map(lambda z, d: z + h * d, Z, along)
        (_, slope), (risen, bend) = jax.device_get(of(Z, along))
        (high, up), (low, down) = (jax.device_get(of(there(h), along))[0] for h in (1e-4, -1e-4))
        assert (high - low) / 2e-4 == pytest.approx(float(risen), rel=1e-5)
        assert sum(slope[k] @ along[k] for k in along) == pytest.approx(float(risen), rel=1e-9)
        bent = jax.tree.map(lambda a, b: (a - b) / 2e-4, up, down)
        for k, found in bend.items():
            np.testing.assert_allclose(found, bent[k], atol=0.05 * np.abs(bent[k]).max())


# --- between pooled and local --------------------------------------------------------------------


@pytest.mark.parametrize("model", [LINEAR, LOGISTIC, OWN])
def test_without_spread_all_sites_are_one(model):
    y = Y if model is LINEAR else LABELS
    z = {**Z, "log_spread": np.full(2, -30.0)}
    pooled = (LINEAR if model is LINEAR else LOGISTIC).model
    expected = pooled.log_likelihood(z["coefficients"], (X, y)).sum()
    assert total(model, z, X, y) == pytest.approx(float(expected), rel=1e-9)


def test_with_endless_spread_a_site_is_alone():
    everything = PersonalRegression(LinearRegression(0.3), (0, 1, 2))
    z = {"coefficients": np.zeros(3), "log_spread": np.full(3, np.log(1e5))}
    law = LOCAL(everything, z, Records.of((X, Y)))
    alone, *_ = np.linalg.lstsq(X, Y)
    np.testing.assert_allclose(law.mean, alone, rtol=1e-6)
    covariance = 0.3 * np.linalg.inv(X.T @ X)
    np.testing.assert_allclose(law.scale @ law.scale.T, covariance, rtol=1e-6)


@pytest.mark.parametrize("records", [None, Records.of((X[:0], Y[:0]))])
def test_a_site_without_records_has_what_the_others_tell(records):
    law = LOCAL(LINEAR, Z, records)
    np.testing.assert_allclose(law.mean, Z["coefficients"][list(COLUMNS)])
    np.testing.assert_allclose(law.scale, np.exp(Z["log_spread"]))


def test_predictions_average_over_what_is_the_sites_own():
    predict = jax.jit(lambda model, law: model.predict(Z, law, X), static_argnums=0)
    law = jax.device_get(LOCAL(LINEAR, Z, Records.of((X, Y))))
    own = X[:, COLUMNS] @ law.scale
    deviation = np.sqrt(0.3 + (own**2).sum(1))
    coefficients = Z["coefficients"].copy()
    coefficients[list(COLUMNS)] = law.mean
    mean = X @ coefficients
    np.testing.assert_allclose(predict(LINEAR, law), mean)
    expected = -(((Y - mean) / deviation) ** 2) / 2 - np.log(deviation) - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(PREDICTIVE(LINEAR, Z, law, (X, Y)), expected, atol=1e-5)
    law = LOCAL(LOGISTIC, Z, Records.of((X, LABELS)))
    chance = np.asarray(predict(LOGISTIC, law))
    found = np.asarray(PREDICTIVE(LOGISTIC, Z, law, (X, LABELS)))
    np.testing.assert_allclose(found, np.log(np.where(LABELS > 0, chance, 1 - chance)))
    np.testing.assert_allclose(PREDICTIVE(OWN, Z, law, (X, LABELS)), found, atol=1e-8)


class Poisson(PredictorModel):
    """Counts, whose likelihood is as narrow as they are many."""

    def predictor_log_likelihood(self, f, y):
        return y * f - jnp.exp(f) - jax.scipy.special.gammaln(y + 1)


@pytest.mark.slow
@given(st.floats(-1, 2))
@settings(max_examples=15)
def test_a_prediction_may_be_far_wider_than_what_is_seen(log_deviation):
    s, y = np.exp(log_deviation), np.array([0.0, 4.0, 3e3, 1e5])
    x, law = np.ones((4, 1)), Law(np.array([1.0]), np.array([s]))
    z = {"coefficients": np.zeros(1), "log_spread": np.zeros(1)}
    linear, poisson = (
        PersonalRegression(model, (0,)) for model in (LinearRegression(1e-4), Poisson())
    )
    np.testing.assert_allclose(
        PREDICTIVE(linear, z, law, (x, y)), norm(1, np.hypot(s, 1e-2)).logpdf(y)
    )
    f = np.linspace(-40, 40, 400_001)[:, None] * s + 1
    logs = norm(1, s).logpdf(f) + y * f - np.exp(f) - gammaln(y + 1)
    exact = logsumexp(logs, 0) + np.log(f[1] - f[0])
    np.testing.assert_allclose(PREDICTIVE(poisson, z, law, (x, y)), exact, rtol=1e-6)


# --- nodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 7))
def test_nodes_have_the_moments_of_a_normal(size):
    nodes, chances = cubature(size)
    assert (chances > 0).all()
    np.testing.assert_allclose(chances.sum(), 1)
    np.testing.assert_allclose(chances @ nodes, 0, atol=1e-12)
    np.testing.assert_allclose((nodes.T * chances) @ nodes, np.eye(size), atol=1e-12)
    np.testing.assert_allclose(chances @ nodes**3, 0, atol=1e-12)


# --- one argument --------------------------------------------------------------------------------

PRIOR = Gaussian.from_standard([0.0, 1.0], [[4.0, 1.0], [1.0, 9.0]])


@pytest.mark.parametrize(
    ("personal", "columns", "typical"),
    [
        (True, (0, 1), [0.5, 0.75]),
        ([1], (1,), [0.75]),
        ({1: 3.0, 0: 0.1}, (0, 1), [0.1, 3.0]),
    ],
)
def test_one_argument_makes_a_regression_hierarchical(personal, columns, typical):
    model, prior = hierarchical(LogisticRegression(), PRIOR, personal)
    assert model == PersonalRegression(LogisticRegression(), columns)
    assert prior.coefficients == PRIOR
    np.testing.assert_allclose(np.exp(prior.log_spread.mean), typical)


def test_spreads_follow_the_units_of_a_column():
    diagonal = DiagonalGaussian.from_standard([0.0, 0.0], [4.0, 4e-6])
    _, prior = hierarchical(LinearRegression(), diagonal, True)
    np.testing.assert_allclose(np.diff(prior.log_spread.mean), -np.log(1e3))


def test_a_prior_of_the_spread_can_be_given():
    spread = Gaussian.from_standard([-2.0], [[0.1]])
    joint = Product(coefficients=PRIOR, log_spread=spread)
    assert hierarchical(LogisticRegression(), joint, [0])[1] == joint


@pytest.mark.parametrize(
    "personal",
    [
        *([2], [-1], [0, 0], [0.5], [], ["age"], None, 3, "0"),
        *(np.True_, np.array(0), [True, False], np.array([True, False])),
    ],
)
def test_columns_that_are_none_are_refused(personal):
    with pytest.raises(UsageError):  # inside, as the type checker of the tests is stricter
        _columns(personal, 2)


def test_a_spread_to_expect_is_positive():
    with pytest.raises(UsageError):
        hierarchical(LogisticRegression(), PRIOR, {0: -1.0})


@pytest.mark.parametrize(
    ("model", "prior"),
    [
        (BetaBernoulli(), PRIOR),
        (LogisticRegression(), Gamma.from_standard(1.0, 1.0)),
        (LogisticRegression(), Product(coefficients=PRIOR, other=PRIOR)),
        (LogisticRegression(), Product(coefficients=PRIOR, log_spread=PRIOR)),
    ],
)
def test_what_is_no_regression_is_refused(model, prior):
    with pytest.raises(UsageError):
        hierarchical(model, prior, [0])


def test_a_batch_does_not_stand_for_a_site():
    model, prior = hierarchical(LogisticRegression(), PRIOR, True)
    with pytest.raises(UsageError, match="batch_size"):
        LocalUpdate(batch_size=4).resolve(model, prior)


def test_one_log_likelihood_a_record():
    class Sum(Rates):
        def local_log_likelihood(self, z, b, data):
            return super().local_log_likelihood(z, b, data).sum()

    with pytest.raises(StructureError, match="one number a record"):
        jax.eval_shape(Sum().total, np.zeros(2), Records.of(np.ones(3)))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_parameters_of_dependent_records_are_summed_over_as_draws_are(size):
    """Of records that depend on each other the nodes are equally probable, however few they are."""
    x = np.ones((6, size))

    class Curved(PersonalModel):
        def local_prior(self, z):
            return z[:1], jnp.full(1, 0.5)

        def local_log_likelihood(self, z, b, data):
            return -((data @ z - b[0]) ** 2) / 2

    q = Gaussian.from_standard(np.zeros(size), 0.5 * np.eye(size))
    records = Records.of(x)
    found = Cubature(nodes=1024).evaluate(Curved(), q, records)
    draws = q.sample(jax.random.key(0), (4000,))
    values = jax.vmap(lambda z: Curved().total(z, records))(draws)
    assert abs(found.value - values.mean()) < 5 * values.std() / 4000**0.5
