"""The local rule: its fixed points, its domain, and what its settings mean."""

import warnings
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.estimators import BonnetPrice, Reinforce
from posterity.errors import ConvergenceWarning, UsageError
from posterity.families import Beta, Categorical, DiagonalGaussian, Dirichlet, Gamma, Gaussian
from posterity.federation import federate
from posterity.inference.descent import HALVINGS
from posterity.inference.estimators import (
    ClosedForm,
    Estimator,
    Exact,
    PredictorQuadrature,
    Quadrature,
    Reparameterization,
    VariationalOnlineNewton,
)
from posterity.inference.update import Decaying, LocalUpdate, decaying
from posterity.models import (
    BetaBernoulli,
    BetaExponential,
    FunctionModel,
    GammaPoisson,
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    Records,
)
from posterity.models.nodes import normal_pairs

few = settings(max_examples=settings().max_examples // 2)
RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
X = RNG.normal(size=(10, 2))
LABELS = (RNG.uniform(size=10) < scipy.special.expit(X @ [2.0, -1.0])).astype(float)
FLIPS = Records.of(np.array([1, 0, 0, 1, 1, 1]))
COINS = Beta.from_standard(2.0, 3.0)


class Given(Estimator):
    """Says the same wherever it is asked: an estimator of one's own."""

    gradient: Any
    fitting: ClassVar[str] = "everything"

    def fits(self, model, q):
        return True

    def __call__(self, model, q, records, *, key):
        return self.gradient


@eqx.filter_jit
def jitted(update, model, q, factor, records, count, key):
    return update(model, q, factor, records, count, key=key)


def visit(update, model, q, factor, records, count=0):
    """One visit in float64, as NumPy arrays."""
    with jax.enable_x64(True):
        q, factor, records = jax.tree.map(jax.device_put, (q, factor, records))
        count, key = jax.device_put(np.asarray(count)), jax.random.key(0)
        return jax.tree.map(np.asarray, jitted(update, model, q, factor, records, count, key))


def assert_close(left, right, tolerance=1e-9):
    np.testing.assert_allclose(
        left.natural_parameters, right.natural_parameters, rtol=tolerance, atol=tolerance
    )


# --- fixed points ---------------------------------------------------------------------------

REGRESSION = LinearRegression(0.5)
CONJUGATE = {
    "Beta, quadrature": (
        BetaBernoulli(),
        LocalUpdate("quadrature", steps=40, temperature=4.0),
        COINS,
        Beta(np.array(3.0), np.array(-0.4)),
        FLIPS,
    ),
    "Gaussian, Bonnet-Price": (
        REGRESSION,
        LocalUpdate(BonnetPrice(), steps=40, rate=0.5),
        Gaussian.from_standard([1.0, 0.0], [[1.0, 0.3], [0.3, 2.0]]),
        Gaussian(np.array([1.0, -1.0]), np.eye(2)),
        Records.of((X, X @ [1.0, 2.0])),
    ),
}


@pytest.mark.parametrize("name", CONJUGATE)
def test_the_fixed_point_is_the_exact_factor(name):
    """From a wrong start, in the company of another site, by an estimator that is not Exact."""
    model, update, cavity, start, records = CONJUGATE[name]
    update = update.resolve(model, cavity)
    factor, info = visit(update, model, cavity + start, start, records)
    assert_close(factor, model.factor(records) / update.temperature)
    assert info.finite
    assert info.residual < 1e-8


def test_steps_of_a_rate_end_where_the_gradient_vanishes():
    prior = Gaussian.from_standard([0.0, 0.0], 4 * np.eye(2))
    model, records = LogisticRegression(), Records.of((X, LABELS))
    update = LocalUpdate(steps=60, rate=0.8).resolve(model, prior)
    found, info = visit(update, model, prior, prior.zero(), records)
    assert info.residual < 1e-8
    again, _ = visit(update, model, prior + found, found, records)
    assert_close(again, found)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_one_visit_to_a_conjugate_site(temperature):
    """Generalised Bayes: the likelihood to the power of 1/α."""
    update = LocalUpdate(temperature=temperature).resolve(BetaBernoulli(), COINS)
    assert update.conjugate and update.steps == 1
    start = Beta(np.array(0.3), np.array(7.0))
    factor, info = visit(update, BetaBernoulli(), COINS + start, start, FLIPS)
    posterior = COINS + factor
    assert posterior.a == pytest.approx(2 + 4 / temperature, rel=1e-13)
    assert posterior.b == pytest.approx(3 + 2 / temperature, rel=1e-13)
    assert info.halvings == 0


# --- rates, steps and counts ----------------------------------------------------------------


def contraction(rate, *, steps, count=0):
    """By how much the distance to the exact factor has shrunk."""
    update = LocalUpdate("exact", steps=steps, rate=rate).resolve(BetaBernoulli(), COINS)
    start = Beta(np.array(1.0), np.array(5.0))
    factor, info = visit(update, BetaBernoulli(), COINS + start, start, FLIPS, count)
    goal = BetaBernoulli().factor(FLIPS)
    left = (factor - goal).natural_parameters / (start - goal).natural_parameters
    assert left[0] == pytest.approx(left[1], rel=1e-9)
    assert info.halvings == 0
    return left[0]


def test_a_constant_rate():
    assert contraction(0.25, steps=3) == pytest.approx(0.75**3, rel=1e-9)


def test_a_rate_sees_how_many_steps_the_site_has_taken():
    ours = contraction(lambda t: 1 / (t + 2), steps=3, count=4)
    assert ours == pytest.approx(5 / 6 * 6 / 7 * 7 / 8, rel=1e-9)


def test_a_schedule_of_optax():
    schedule = optax.cosine_decay_schedule(0.9, decay_steps=8)
    expected = np.prod([1 - float(schedule(t)) for t in (2, 3, 4, 5)])
    assert contraction(schedule, steps=4, count=2) == pytest.approx(expected, rel=1e-5)


def test_the_default_of_noisy_gradients_decays():
    rates = np.array([decaying(t) for t in range(2000)])
    assert rates[0] == 0.5 and (np.diff(rates) < 0).all()
    # Robbins and Monro: the sum diverges, that of squares does not, for powers in (1/2, 1].
    slope = np.log(rates[1999] / rates[1000]) / np.log(2019 / 1020)
    assert slope == pytest.approx(-0.75, abs=1e-9)


DECAYING = Decaying(decaying)


@pytest.mark.parametrize(
    "update, model, q, kind, steps, rate",
    [
        (LocalUpdate(), BetaBernoulli(), COINS, Exact, 1, 1.0),
        (LocalUpdate(), BetaExponential(), COINS, ClosedForm, 100, None),
        (LocalUpdate("quadrature"), BetaBernoulli(), COINS, Quadrature, 100, None),
        (LocalUpdate(Reinforce()), BetaBernoulli(), COINS, Reinforce, 20, DECAYING),
        (LocalUpdate(batch_size=2), BetaBernoulli(), COINS, Exact, 20, DECAYING),
        (LocalUpdate(steps=7, rate=0.1), BetaBernoulli(), COINS, Exact, 7, 0.1),
        (LocalUpdate(rate=1), BetaExponential(), COINS, ClosedForm, 20, 1.0),
    ],
)
def test_defaults(update, model, q, kind, steps, rate):
    resolved = update.resolve(model, q)
    assert type(resolved.estimator) is kind
    assert (resolved.steps, resolved.rate) == (steps, rate)
    assert resolved.resolve(model, q) == resolved
    assert resolved.conjugate == (kind is Exact and rate == 1.0)


# --- minibatches ----------------------------------------------------------------------------


def test_batches_are_unbiased():
    """Weighted records, among them padding of no weight."""
    records = Records(np.array([1, 0, 0, 1, 1, 1, 1]), np.array([1, 2, 1, 0.5, 3, 0, 0]))
    model, update = BetaBernoulli(), LocalUpdate("exact", batch_size=3)
    with jax.enable_x64(True):
        factor = Beta(COINS.a_minus_one / 7, COINS.b_minus_one)

        def direction(key):
            return update.direction(model, COINS, factor, records, key=key).natural_parameters

        keys = jax.random.split(jax.random.key(1), 1000)
        found = np.asarray(jax.jit(jax.vmap(direction))(keys))
        expected = (model.factor(records) - factor).natural_parameters
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - expected) < 4 * error).all() and (error > 0).all()


def test_padding_is_never_in_a_batch():
    """However much of it there is."""
    records = Records(np.arange(64), np.where(np.arange(64) < 3, 2.0, 0.0))
    drawn = jax.jit(lambda key: records.batch(2, key=key))
    for seed in range(50):
        batch = drawn(jax.random.key(seed))
        assert (np.asarray(batch.data) < 3).all()
        np.testing.assert_allclose(batch.weights, 3.0)  # three records' weight, on two
    few = jax.jit(lambda key: records.batch(8, key=key))(jax.random.key(0))
    assert float(np.asarray(few.weights).sum()) == 6.0


def test_a_batch_of_all_records_is_all_records():
    full, batched = LocalUpdate("exact"), LocalUpdate("exact", batch_size=6)
    key = jax.random.key(0)
    left, right = (
        update.direction(BetaBernoulli(), COINS, COINS.zero(), FLIPS, key=key)
        for update in (full, batched)
    )
    assert_close(left, right, 0.0)


# --- the domain -----------------------------------------------------------------------------

numbers = st.floats(-1, 1).flatmap(
    lambda x: st.sampled_from([1.0, 1e2, 1e5, 1e9]).map(lambda scale: x * scale)
)
symmetric = st.tuples(numbers, numbers, numbers).map(
    lambda t: np.array([[t[0], t[1]], [t[1], t[2]]])
)
vectors = st.tuples(numbers, numbers).map(np.array)


def check_step(model, q, gradient):
    """One step of rate one from a factor of zero leads to a proper posterior, or nowhere."""
    update = LocalUpdate(Given(gradient), steps=1, rate=1.0)
    factor, info = visit(update, model, q, q.zero(), Records.of(np.array([0.5])))
    posterior = q + factor
    assert info.finite and posterior.is_proper() and model.admits(posterior)
    if not factor.natural_parameters.any():
        assert_close(factor, q.zero(), 0.0)
        assert info.halvings == 0
    else:
        assert info.halvings <= HALVINGS
        scale = 2.0**-info.halvings
        assert_close(posterior, q + gradient * scale, 1e-12)
        if info.halvings:  # twice that step would have left
            twice = q + gradient * (2 * scale)
            assert not (twice.is_proper() and model.admits(twice))


@few
@given(a=numbers, b=numbers)
def test_halving_keeps_a_beta_where_expectations_are_finite(a, b):
    q = Beta.from_standard(3.0, 0.5)
    check_step(BetaExponential(), q, Beta(np.array(a), np.array(b)))


ANY = FunctionModel(lambda z, x: x)
GAUSSIAN = Gaussian.from_standard([1.0, -2.0], [[1.0, 0.3], [0.3, 0.5]])
DIAGONAL = DiagonalGaussian.from_standard([1.0, -2.0], [1.0, 0.5])


@few
@given(h=vectors, d=symmetric)
def test_halving_keeps_a_gaussian_proper(h, d):
    check_step(ANY, GAUSSIAN, Gaussian(h, d))


def test_a_step_that_no_halving_mends_is_refused():
    """The posterior is proper by a margin that forty halvings do not reach."""
    q = Beta.from_standard(1e-10, 2.0)
    update = LocalUpdate(Given(Beta(np.array(-1e9), np.array(0.0))), steps=3, rate=1.0)
    factor, info = visit(update, ANY, q, q.zero(), Records.of(np.array([0.5])))
    assert info.halvings == 0 and info.finite
    assert_close(factor, q.zero(), 0.0)


def test_a_gradient_of_nan_is_noted_and_not_taken():
    nan = FunctionModel(lambda z, x: x * jnp.where(z > 2, 0.0, jnp.nan))
    prior = Gamma.from_standard(2.0, 2.0)
    start = Gamma(np.array(0.5), np.array(0.1))
    update = LocalUpdate(steps=2).resolve(nan, prior)
    factor, info = visit(update, nan, prior + start, start, Records.of(np.ones(3)))
    assert not info.finite
    assert_close(factor, start, 1e-12)


def test_infinite_expectations_are_noted():
    """E[1/z] diverges for a <= 1; what is computed there has no meaning."""
    model, records = BetaExponential(), Records.of(np.array([0.3, 0.5]))
    for a in (0.5, 1.0):
        q = Beta.from_standard(a, 2.0)
        update = LocalUpdate(ClosedForm(), steps=1, rate=0.5)
        assert not visit(update, model, q, q.zero(), records)[1].finite


class Precise(Estimator):
    """Says how many bits the numbers have that it is given."""

    stochastic: ClassVar[bool] = True
    fitting: ClassVar[str] = "everything"

    def __call__(self, model, q, records, *, key):
        numbers = jax.tree.leaves((q, records))
        bits = 8 * max(leaf.dtype.itemsize for leaf in numbers)
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, bits), q)


@pytest.mark.parametrize(("dtype", "bits"), [("float64", 64), ("float32", 32)])
def test_steps_have_the_precision_asked_for_and_factors_are_wide(dtype, bits):
    prior = DiagonalGaussian.from_standard(np.zeros(2), np.ones(2))
    model = FunctionModel(lambda z, x: -((x - z[0]) ** 2))
    update = LocalUpdate(Precise(), steps=1, rate=1 / 64, dtype=dtype)
    update = update.resolve(model, prior)
    records = Records.of(np.ones(3))
    with jax.enable_x64(True):
        factor, _ = jitted(update, model, prior, prior.zero(), records, np.asarray(0), KEY)
    for leaf in jax.tree.leaves(factor):
        assert leaf.dtype == np.float64
        np.testing.assert_array_equal(leaf, bits / 64)


class Noisy(Given):
    """The same, said to be noisy."""

    stochastic: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("options", "nats", "halvings"),
    [({}, 5.9, 0), ({}, 10.0, 1), ({"trust": 1}, 5.9, 1), ({"trust": 16}, 10.0, 0)],
)
def test_a_noisy_step_goes_no_further_than_it_is_trusted(options, nats, halvings):
    """A mean's move has as many nats in both directions; each half has a quarter of them."""
    prior = DiagonalGaussian.from_standard(np.zeros(2), np.ones(2))
    move = DiagonalGaussian(np.array([nats**0.5, 0.0]), np.zeros(2))
    update = LocalUpdate(Noisy(move), steps=1, rate=1.0, **options).resolve(ANY, prior)
    factor, info = visit(update, ANY, prior, prior.zero(), Records.of(np.ones(3)))
    after = prior + factor
    assert info.halvings == halvings
    assert after.kl(prior) + prior.kl(after) == pytest.approx(nats / 4**halvings)


def test_float32_is_for_noise_alone():
    prior = Gaussian.from_standard(np.zeros(2), np.eye(2))
    with pytest.raises(UsageError, match="float32"):
        LocalUpdate(dtype="float32").resolve(LogisticRegression(), prior)


@pytest.mark.parametrize(
    "estimator",
    [BonnetPrice(), pytest.param("variational-online-newton", marks=pytest.mark.slow)],
)
def test_float32_ends_where_float64_does(estimator):
    prior = DiagonalGaussian.from_standard(np.zeros(2), np.ones(2))
    ends = []
    for dtype in ("float64", "float32"):
        update = LocalUpdate(estimator, steps=400, dtype=dtype)
        update = update.resolve(LogisticRegression(), prior)
        with jax.enable_x64(True):
            arguments = (prior, prior.zero(), Records.of((X, LABELS)), np.asarray(0))
            ends.append(jitted(update, LogisticRegression(), *arguments, KEY)[0])
    wide, narrow = (prior + jax.tree.map(np.asarray, end) for end in ends)
    assert 0 < wide.kl(narrow) < 1e-9  # of draws that are the same


@pytest.mark.slow
def test_a_network_in_float32_ends_at_the_optimum_that_scipy_finds_in_float64():
    rng = np.random.default_rng(0)

    def site():
        x = rng.normal(size=(100, 2))
        f = 2 * np.tanh(x[:, 0] - x[:, 1]) + 1.5 * np.tanh(x.sum(1) - 0.5)
        return x, (rng.random(100) < scipy.special.expit(f)).astype(float)

    sites = {name: site() for name in ("north", "south", "west")}
    shapes = [np.zeros((2, 4)), np.zeros(4), np.zeros((4, 1)), np.zeros(1)]
    apply = lambda w, x: jnp.tanh(x @ w[0] + w[1]) @ w[2] + w[3]
    network = NeuralNetwork(apply, shapes, likelihood="bernoulli")
    prior = network.prior(variance=1.0, key=KEY)
    update = LocalUpdate("variational-online-newton", dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # noise is left after all rounds
        q = federate(sites, network, prior, update=update, key=KEY).posterior

    data = tuple(np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    noise = normal_pairs(q.event_size, 512)

    @jax.jit
    @jax.value_and_grad
    def energy(free):
        mean, log = jnp.split(free, 2)
        draws = mean + jnp.exp(log) * noise
        expected = jax.vmap(lambda z: network.log_likelihood(z, data).sum())(draws).mean()
        squares = prior.precision * ((mean - prior.mean) ** 2 + jnp.exp(2 * log))
        return squares.sum() / 2 - log.sum() - expected

    with jax.enable_x64(True):
        start = np.concatenate([q.mean, -np.log(q.precision) / 2])
        found = scipy.optimize.minimize(energy, start, jac=True, method="L-BFGS-B")
    mean, log = np.split(found.x, 2)
    best = DiagonalGaussian.from_standard(mean, np.exp(2 * log))
    # By default the noise of the last rounds leaves some hundredths of a deviation.
    assert (np.abs(q.mean - best.mean) < 0.3 * np.exp(log)).all()
    assert best.kl(q) < 0.1


@pytest.mark.slow
def test_what_float32_displaces_is_said():
    """Means of a million deviations, of which 32 bits hold seven digits."""
    rng = np.random.default_rng(0)
    sites = {site: 1e4 + 1e-2 * rng.normal(size=(50, 2)) for site in "abc"}
    flat = lambda z, x: -0.5 * (((x - z) / 1e-2) ** 2).sum(-1)
    precision, total = 1 + 150 * 1e4, 1e4 + 1e4 * sum(x.sum(0) for x in sites.values())
    exact = DiagonalGaussian.from_standard(total / precision, np.full(2, 1 / precision))
    prior = DiagonalGaussian.from_standard(np.full(2, 1e4), np.ones(2))
    update = LocalUpdate("variational-online-newton", dtype="float32")
    with pytest.warns(ConvergenceWarning, match="nats left"):
        run = federate(sites, flat, prior, steps=20, update=update)
    off = float(exact.kl(run.posterior))
    assert off > 1 and not run.status.converged
    assert off / 2 < run.status.left < off * 2


# --- what is refused ------------------------------------------------------------------------

SETTINGS = {
    "one sample": (lambda: Reinforce(1), "samples=1; .* at least 2"),
    "no sample": (lambda: Reinforce(0, baseline=0.0), "samples=0; .* at least 1"),
    "baseline": (lambda: Reinforce(8, baseline="mean"), "baseline='mean'.*'leave-one-out'"),
    "no draws": (lambda: Reparameterization(0), "samples=0"),
    "one draw": (lambda: BonnetPrice(1), "samples=1"),
    "one draw of Newton's": (lambda: VariationalOnlineNewton(1), "samples=1"),
    "steps": (lambda: LocalUpdate(steps=0), "steps=0"),
    "rate of 0": (lambda: LocalUpdate(rate=0.0), "rate=0.0"),
    "rate above 1": (lambda: LocalUpdate(rate=1.5), "rate=1.5"),
    "rate of NaN": (lambda: LocalUpdate(rate=float("nan")), "rate=nan"),
    "temperature of 0": (lambda: LocalUpdate(temperature=0.0), "temperature=0"),
    "temperature below 0": (lambda: LocalUpdate(temperature=-1.0), "temperature=-1"),
    "infinite temperature": (lambda: LocalUpdate(temperature=float("inf")), "temperature=inf"),
    "batch size": (lambda: LocalUpdate(batch_size=0), "batch_size=0"),
    "estimator": (lambda: LocalUpdate("newton"), "'newton'.*'cubature'"),
}


@pytest.mark.parametrize("make, says", SETTINGS.values(), ids=list(SETTINGS))
def test_settings_that_make_no_sense(make, says):
    with pytest.raises(UsageError, match=says):
        make()


BETA, RATE = Beta.from_standard(2.0, 3.0), Gamma.from_standard(3.0, 2.0)
LINE = DiagonalGaussian.from_standard([0.0], [1.0])
PLANE = Gaussian.from_standard([1.0, -2.0], [[1.0, 0.3], [0.3, 0.5]])
SIMPLEX = Dirichlet.from_standard([3.0, 0.8, 2.0])
COIN = Categorical.from_standard([0.5, 0.5])
UNBOUNDED = "under which the log likelihood of BetaExponential"
MISFITS = {
    "exact": (Exact(), ANY, LINE, "conjugate models. .* default here is Quadrature"),
    "by name": ("exact", BetaExponential(), BETA, "default here is ClosedForm"),
    "closed form": (ClosedForm(), BetaBernoulli(), BETA, "E_q.* default here is Exact"),
    "two dimensions": (Quadrature(), ANY, PLANE, "one-dimensional .* Cubature"),
    "a simplex": (Quadrature(), ANY, SIMPLEX, "found estimator Quadrature for FunctionModel"),
    "no predictor": (PredictorQuadrature(), ANY, LINE, "linear predictor"),
    "no Gaussian": (BonnetPrice(), ANY, RATE, "Gaussian posteriors"),
    "not diagonal": (VariationalOnlineNewton(), ANY, PLANE, "diagonal Gaussians"),
    "discrete": (Reparameterization(), ANY, COIN, "differentiable"),
    "family": (None, BetaBernoulli(), PLANE, "prior Gaussian .*expected Beta"),
    "families": (None, LogisticRegression(), BETA, "expected Gaussian or DiagonalGaussian"),
    "batch": (None, GammaPoisson(), Gamma.from_standard([1.0], [1.0]), r"batch shape \(1,\)"),
    "infinite": (None, BetaExponential(), Beta.from_standard(0.5, 2.0), UNBOUNDED),
    "infinite at the edge": (None, BetaExponential(), Beta.from_standard(1.0, 2.0), UNBOUNDED),
}


@pytest.mark.parametrize("estimator, model, q, says", MISFITS.values(), ids=list(MISFITS))
def test_what_does_not_fit_the_model_or_the_family(estimator, model, q, says):
    with pytest.raises(UsageError, match=says):
        LocalUpdate(estimator).resolve(model, q)
