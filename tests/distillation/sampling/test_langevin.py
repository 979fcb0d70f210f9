"""Chains sample what they should: against exact posteriors; and say when they do not."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from sklearn.datasets import load_digits

from posterity.distillation import SGHMC, SGLD, Langevin
from posterity.distillation.sampling import health, langevin, tuning
from posterity.distillation.sampling.target import _single
from posterity.distillation.sampling.tuning import heat, warmth
from posterity.errors import (
    ConvergenceWarning,
    FitWarning,
    ParameterError,
    StructureError,
    UsageError,
)
from posterity.families import Beta, DiagonalGaussian, Dirichlet, Gamma, Gaussian, NormalWishart
from posterity.models import (
    BetaBernoulli,
    DirichletCategorical,
    FunctionModel,
    GammaPoisson,
    GaussianMeanCovariance,
    LogisticRegression,
    Model,
    NeuralNetwork,
    Records,
)
from posterity.networks import GaussianPrior, Layers
from tests.distillation.examples import KEY, LINE, NET, line, network_teacher, points

pytestmark = pytest.mark.filterwarnings("ignore:Draws may not be the posterior's:UserWarning")

DRAWS = 1500
HEAT = 0.06
"""A chain at the step that is found is so much too warm, by design."""


def quietly(teacher: Langevin, draws: int = DRAWS) -> np.ndarray:
    """Draws (chains, draws, ...) of a teacher that has nothing to complain of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = np.asarray(teacher.sample(draws, key=KEY).stack, np.float64)
    return samples.reshape(draws, teacher.chains, *samples.shape[1:]).swapaxes(0, 1)


def agree(draws: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> None:
    """Means and variances over independent chains, within five standard errors."""
    chains = len(draws)
    own = draws.mean(1)
    error = own.std(0, ddof=1) / chains**0.5
    assert (np.abs(own.mean(0) - mean) < 5 * error + 1e-3 * sd).all()
    spread = ((draws - mean) ** 2).mean(1) / sd**2
    error = spread.std(0, ddof=1) / chains**0.5
    assert (np.abs(spread.mean(0) - 1) < 5 * error + HEAT).all()


@pytest.mark.parametrize("scale", [(1e3, 1e-4), pytest.param((1.0, 1.0), marks=pytest.mark.slow)])
def test_linear_regression_in_any_units(scale) -> None:
    data, prior, exact = line(scale)
    draws = quietly(Langevin(LINE, prior, data, chains=32))
    covariance = np.linalg.inv(np.asarray(exact.precision))
    agree(draws, np.asarray(exact.mean), np.diagonal(covariance) ** 0.5)


@pytest.mark.parametrize("thin", [1, 10, 300])
def test_burn_in_counts_steps_whatever_the_thinning(thin: int) -> None:
    data, prior, _ = line()
    teacher = Langevin(LINE, prior, data, kernel=SGLD(0.01), chains=2, burn_in=500, thin=thin)
    assert int(teacher.begin(key=KEY).kernel.step) == 500


@pytest.mark.slow
def test_minibatches_and_momentum_leave_the_posterior_what_it_is() -> None:
    data, prior, exact = line(count=400)
    sd = np.diagonal(np.linalg.inv(np.asarray(exact.precision))) ** 0.5
    for kernel in (SGLD(0.01), SGHMC(0.02, friction=0.2), SGLD(0.01, noise="normal")):
        teacher = Langevin(LINE, prior, data, chains=32, kernel=kernel, batch_size=100,
                           burn_in=1000, thin=10)  # fmt: skip
        draws = np.asarray(teacher.sample(300, key=KEY).stack, np.float64)
        agree(draws.reshape(300, 32, 2).swapaxes(0, 1), np.asarray(exact.mean), sd)


@pytest.mark.parametrize(
    ("model", "prior", "data", "law"),
    [
        pytest.param(
            BetaBernoulli(),
            Beta.from_standard(1.0, 1.0),
            np.array([1.0] * 30 + [0.0] * 3),
            scipy.stats.beta(31, 4),
            marks=pytest.mark.slow,
        ),
        (
            GammaPoisson(),
            Gamma.from_standard(2.0, 1.0),
            np.array([3.0, 900.0, 1200.0]),
            scipy.stats.gamma(2105, scale=1 / 4),
        ),
        pytest.param(
            DirichletCategorical(3),
            Dirichlet.from_standard(np.ones(3)),
            np.array([0] * 20 + [1] * 5 + [2]),
            scipy.stats.dirichlet([21, 6, 2]),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_constrained_parameters(model: Model, prior, data, law) -> None:
    """Conjugate pairs, whose posterior is known."""
    draws = quietly(Langevin(model, prior, data, chains=32))
    agree(draws, law.mean(), np.sqrt(law.var()))


@pytest.mark.slow
def test_trees_of_parameters() -> None:
    """A mean and a precision matrix together."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2)) * [1.0, 3.0]
    prior = NormalWishart.from_standard(np.zeros(2), 1.0, np.eye(2), 4.0)
    model = GaussianMeanCovariance()
    exact = prior + model.factor(Records.of(x))
    teacher = Langevin(model, prior, x, chains=16)
    mean, precision = teacher.sample(500, key=KEY).stack
    reference = exact.sample(jax.random.key(1), (50_000,))
    for own, known in zip((mean, precision), reference, strict=True):
        own = np.asarray(own, np.float64).reshape(500, 16, -1).swapaxes(0, 1)
        known = np.asarray(known, np.float64).reshape(50_000, -1)
        agree(own, known.mean(0), known.std(0))


@pytest.mark.slow
def test_a_network_of_no_hidden_units_is_a_logistic_regression() -> None:
    """Two roads to one posterior: chains over a tree of weights, and over a flat vector."""
    x, y = points(100)
    single = NeuralNetwork.of_layers(Layers.dense(2, 1), likelihood="bernoulli")
    prior = single.prior(variance=4.0)
    roads = [
        Langevin(single, prior, (x, y), chains=32, burn_in=2000, climb=500, thin=40),
        Langevin(
            LogisticRegression(),
            Gaussian.from_standard(np.zeros(3), 4.0 * np.eye(3)),
            (np.c_[np.ones(100), x], y),
            chains=32,
        ),
    ]
    one, other = (quietly(road, 800) for road in roads)
    sd = other.std((0, 1))
    error = np.hypot(*(road.mean(1).std(0, ddof=1) / 32**0.5 for road in (one, other)))
    assert (np.abs(one.mean((0, 1)) - other.mean((0, 1))) < 5 * error).all()
    np.testing.assert_allclose(one.std((0, 1)), sd, rtol=2 * HEAT)


def test_minibatches_estimate_the_density_without_bias() -> None:
    data, prior, _ = line()
    whole = Langevin(LINE, prior, data, chains=4, batch_size=60).target
    part = Langevin(LINE, prior, data, chains=4, batch_size=10).target
    at = whole.start(4, key=KEY)
    batch = jax.jit(lambda key: whole.minibatch(4, key=key))(KEY)
    exact = np.asarray(jax.jit(lambda *own: whole.log_densities(*own))(at, batch))
    drawn = jax.jit(jax.vmap(lambda key: part.minibatch(4, key=key)))
    batches = drawn(jax.random.split(KEY, 400))
    found = np.asarray(jax.jit(jax.vmap(lambda batch: part.log_densities(at, batch)))(batches))
    error = found.std(0, ddof=1) / 400**0.5
    assert (np.abs(found.mean(0) - exact) < 4 * error).all()
    # Each record is as likely as any other.
    seen = np.asarray(batches[1]).ravel()
    counts = np.unique(seen, return_counts=True)[1]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


# --- what is said --------------------------------------------------------------------------------


def test_a_step_that_is_too_large_is_said() -> None:
    data, prior, _ = line()
    teacher = Langevin(LINE, prior, data, kernel=SGLD(1.5), chains=32)
    with pytest.warns(ConvergenceWarning, match="too warm"):
        teacher.sample(2000, key=KEY)


@pytest.mark.slow
def test_a_direction_that_is_too_warm_is_said() -> None:
    """Of eleven weights one has steps that double its variance, or minibatches that heat it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 10)) * np.where(np.arange(10) == 3, 9.5, 1.0)
    y = x[:, 0] + rng.normal(size=400)
    net = NeuralNetwork.of_layers(Layers.dense(10, 1), likelihood="gaussian", noise_variance=1.0)
    design = np.c_[x, np.ones(400)]
    size = 2 / np.linalg.eigvalsh(design.T @ design + np.eye(11))[-1]
    whole, part = (
        Langevin(net, net.prior(variance=1.0), (x, y), kernel=SGLD(size), chains=4, climb=250,
                 burn_in=250, batch_size=batch_size)
        for batch_size in (400, 40)
    )  # fmt: skip
    with pytest.warns(
        ConvergenceWarning, match=r"along some direction \(temperature 2.*smaller step"
    ):
        found = whole.sample(300, key=KEY)
    assert not any("too warm (" in reason for reason in found.diagnostics.reasons)
    at = jax.tree.map(jnp.zeros_like, part.target.start(4, key=KEY))
    scale = jax.tree.map(lambda leaf: np.full((1,) * leaf.ndim, size), at)
    assert warmth(whole.target, at, scale, 1.0, key=KEY) == (pytest.approx(1, rel=0.01), 0)
    noise = warmth(part.target, at, scale, 1.0, key=KEY)[1]
    wanted = size / 4 * np.linalg.eigvalsh(400**2 / 40 * np.cov(design.T * y))[-1]
    assert noise == pytest.approx(wanted, rel=4 * (2 / 31 / 4) ** 0.5)


@pytest.mark.slow
def test_steps_are_tuned_where_chains_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a wide prior minibatches of digits differ far more there than where the climb ends."""
    x, y = load_digits(return_X_y=True)
    layers = Layers.dense(64, 30, 10)
    network, prior = NeuralNetwork.of_layers(layers), GaussianPrior(10.0).network(layers)
    data = np.asarray(x, np.float32)[:1000] / 16, np.asarray(y)[:1000]
    teacher = Langevin(network, prior, data, chains=2, burn_in=1000)

    def warmest() -> float:
        kernel = teacher.begin(key=KEY).kernel
        with jax.enable_x64(False):
            return heat(teacher.target, kernel.position, kernel.scale, key=KEY)

    after = warmest()
    monkeypatch.setattr(langevin, "LOOKS", ())
    assert warmest() > 2 * langevin.HOT > 2 * after


@pytest.mark.slow
def test_chains_that_have_not_spread_are_said() -> None:
    data, prior, _ = line()
    teacher = Langevin(LINE, prior, data, kernel=SGLD(1e-5), chains=16, burn_in=0)
    with pytest.warns(ConvergenceWarning, match="disagree"):
        teacher.sample(300, key=KEY)
    single = NeuralNetwork.of_layers(Layers.dense(2, 5, 2))
    teacher = Langevin(single, single.prior(variance=1.0), points(), chains=16, burn_in=0,
                       kernel=SGLD(1e-6))  # fmt: skip
    with pytest.warns(ConvergenceWarning, match="still spread"):
        teacher.sample(600, key=KEY)


PRODUCT = FunctionModel(
    lambda z, d: -((d[1] - z[0] * z[1]) ** 2) / 2,
    predict=lambda z, x: (z[0] * np.ones(len(x)), np.ones(len(x))),
    likelihood="gaussian",
)
"""The product of two numbers is seen, which has a saddle at zero and two modes."""


@pytest.mark.slow
def test_chains_leave_a_saddle_and_say_that_they_are_in_two_modes() -> None:
    prior = Gaussian.from_standard(np.zeros(2), np.eye(2))
    teacher = Langevin(PRODUCT, prior, (np.zeros((20, 1)), np.full(20, 4.0)), chains=8)
    with pytest.warns(ConvergenceWarning, match="disagree"):
        found = teacher.sample(300, key=KEY)
    stack = np.asarray(found.stack)
    assert abs(stack.prod(1).mean() - 4) < 0.2
    assert 0 < (stack[:, 0] > 0).mean() < 1
    assert found.diagnostics.rhat is not None and found.diagnostics.rhat > 1.1


@pytest.mark.slow
def test_modes_of_the_same_height_are_found_and_said() -> None:
    """The log density is distributed alike in both, so that only positions tell them apart."""

    def log_likelihood(z: Any, data: Any) -> Any:
        modes = jnp.logaddexp(-2 * (z[0] - 3) ** 2, -8 * (z[0] + 3) ** 2)
        return jnp.full(len(data), modes + z[0] ** 2 / 200)

    prior = Gaussian.from_standard(np.zeros(1), np.full((1, 1), 100.0))
    teacher = Langevin(FunctionModel(log_likelihood), prior, np.zeros((1, 1)), burn_in=250)
    with pytest.warns(ConvergenceWarning, match="disagree in coordinates"):
        found = teacher.sample(250, key=KEY)
    assert 0 < (np.asarray(found.stack) > 0).mean() < 1


def test_a_light_mode_and_a_narrow_one_are_started_at() -> None:
    """One has a twentieth of the mass, three nats below; a climb in forty leads to the other."""

    def log_likelihood(z: Any, data: Any) -> Any:
        squares = jnp.stack([z @ z, ((z - 6) ** 2).sum(), 16 * ((z + 5) ** 2).sum()])
        logs = jnp.log(jnp.array([0.5, 0.05, 0.45 * 16])) - squares / 2
        return jnp.full(len(data), jax.nn.logsumexp(logs) + z @ z / 32)

    prior = Gaussian.from_standard(np.zeros(2), 16 * np.eye(2))
    own: Any = Langevin(FunctionModel(log_likelihood), prior, np.zeros((1, 1))).target
    places = np.asarray(jax.vmap(own.event)(own.modes))
    np.testing.assert_allclose(np.sort(places[:, 0]), [-5, 0, 6], atol=0.01)
    np.testing.assert_allclose(own.spreads[np.argsort(places[:, 0]), 0], [1, 1, 1])
    assert own.searched[1] == 3 and own.searched[2] > 1000


@pytest.mark.slow
def test_a_pole_is_no_centre() -> None:
    """A spread near zero has the highest density, and no width that single precision resolves."""

    def log_likelihood(z: Any, y: Any) -> Any:
        means = z[1:]
        spread = -((means / jnp.exp(z[0])) ** 2) / 2 - z[0] + means**2 / 50
        return -((y - means) ** 2) / 2 + spread

    prior = DiagonalGaussian.from_standard(np.zeros(31), np.r_[1.0, np.full(30, 25.0)])
    model = FunctionModel(lambda z, y: log_likelihood(z, y[0])[None].sum(1))
    teacher = Langevin(model, prior, np.ones((1, 30)), burn_in=0)
    with pytest.warns(ConvergenceWarning, match="disagree"):
        found = teacher.sample(50, key=KEY)
    assert "no optimum" in found.diagnostics.searched


@pytest.mark.slow
def test_steps_too_long_for_the_curvature_are_shortened_during_burn_in() -> None:
    """Also where every step uses all records, so that no noise of minibatches heats the chains."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (100, 1))
    y = rng.choice([-1, 1], 100) * (2 + x[:, 0])
    net = NeuralNetwork.regression(Layers.dense(1, 5, 1), y)
    prior = GaussianPrior().network(net.layers)
    teacher = Langevin(net, prior, (x, y), climb=250, burn_in=250, chains=2)
    with jax.enable_x64(False):
        state = teacher.begin(key=KEY)
        long = jax.tree.map(lambda size: 100 * size, state.kernel.scale)
        state = state._replace(kernel=state.kernel._replace(scale=long))
        shorter = teacher._cooled(state, KEY).kernel.scale
    ratios = jax.tree.leaves(jax.tree.map(lambda one, other: np.ravel(one / other), shorter, long))
    assert np.median(np.concatenate(ratios)) < 0.1 and np.concatenate(ratios).max() <= 1


def test_one_chain_with_unstable_steps_is_enough_to_shorten_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    curvature = np.array([0.1, 0.1, 0.1, 9.0])  # of steps that are stable below four
    monkeypatch.setattr(tuning, "_curvature", lambda *args: (curvature, 0 * curvature))
    at = jax.tree.map(lambda leaf: np.ones((4, *leaf.shape)), NET.prior(variance=1.0).mean)
    assert np.isinf(tuning.excess(None, at, np.ones((1, 1)), 1.0, key=KEY))
    curvature[-1] = 0.1
    assert tuning.excess(None, at, np.ones((1, 1)), 1.0, key=KEY) == pytest.approx(1 / 39)


@pytest.mark.slow
def test_all_coordinates_are_watched() -> None:
    """Two modes in the second of many parameters, and white noise, which hides them."""
    rng = np.random.default_rng(0)
    chains = rng.normal(size=(4, 100, 150))
    chains[:2, :, 1] += 5
    noise = rng.normal(size=(4, 100, 1))
    reasons, rhat, effective = health.agreement(noise, chains)
    assert "disagree in coordinates" in reasons[0]
    assert rhat is not None and rhat > 1.5 and effective is not None and effective < 20
    model = FunctionModel(lambda z, x: -((x - z) ** 2).sum(1) / 2)
    prior = DiagonalGaussian.from_standard(np.zeros(260), np.ones(260))
    teacher = Langevin(model, prior, np.zeros((1, 260)), chains=260)
    state = teacher._counted(teacher.kernel.init(jnp.eye(260)))
    assert (np.abs(teacher._coordinates(state)).sum(1) == 1).all()


def test_tails_in_which_chains_stay_for_long_are_reasons() -> None:
    """Each chain of white noise stays once beyond four deviations, of 6 % of its draws."""
    chains = np.random.default_rng(0).normal(size=(8, 1000, 2))
    assert not health.agreement(chains, chains)[0]
    for number, own in enumerate(chains[..., 1]):
        own[100 * number :][:60] = 4 + abs(own[:60])
    reasons, rhat, effective = health.agreement(chains[..., :1], chains)
    assert "tails" in reasons[0] and len(reasons) == 1
    assert rhat is not None and rhat < 1.1 and effective is not None and effective > 50


def test_a_density_that_is_not_a_number_below_zero_is_said() -> None:
    model = FunctionModel(lambda z, x: (jnp.log(z[0]) - z[0]) * jnp.ones(len(x)))
    prior = DiagonalGaussian.from_standard(np.zeros(1), np.array([100.0]))
    with pytest.raises(ParameterError, match="Transformed"):
        Langevin(model, prior, np.zeros((1, 1)), burn_in=1000).sample(500, key=KEY)


def test_what_was_searched_is_said() -> None:
    assert not health.searched(np.array([1, 1, 0]), 16)  # known to have one mode
    assert "no chain reached" in health.searched(None, 16)
    words = health.searched(np.array([20, 2, 4096]), 16)
    assert "ended in 2 optima" in words and "0.073 %" in words


def test_a_temperature_of_a_large_error_is_not_known() -> None:
    """Two chains, of which one hardly moved and one is far too warm, in turn."""
    series = np.zeros((2, 32, 1))
    series[1, ::2] = 1e6
    reasons = health.temperature(series, 1.0)[1]
    assert "not known" in reasons[0]
    # A group that is known to be too warm is named by its own temperature.
    sure = 1.3 + 1e-3 * np.random.default_rng(0).normal(size=(2, 32, 1))
    reasons = health.temperature(np.concatenate([series, sure], 2), 1.0)[1]
    assert any("too warm (temperature 1.30" in reason for reason in reasons)


def test_a_chain_that_diverges_is_an_error() -> None:
    data, prior, _ = line()
    with pytest.raises(ParameterError, match="diverged"):
        Langevin(LINE, prior, data, kernel=SGLD(100.0), chains=32).sample(10, key=KEY)


def test_the_same_key_gives_the_same_draws() -> None:
    data, prior, _ = line()
    teacher = Langevin(LINE, prior, data, chains=1, kernel=SGLD(0.01), burn_in=250)
    with pytest.warns(ConvergenceWarning, match="run two at least"):
        one, other = (teacher.sample(50, key=KEY).stack for _ in range(2))
        np.testing.assert_array_equal(one, other)
        assert not np.array_equal(one, teacher.sample(50, key=jax.random.key(1)).stack)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kernel": 0.1}, UsageError),
        ({"chains": 0}, UsageError),
        ({"thin": 0}, UsageError),
        ({"batch_size": 0}, UsageError),
        ({"burn_in": -1}, UsageError),
    ],
)
def test_options_that_make_no_sense(options, error) -> None:
    with pytest.raises(error):
        network_teacher(**options)


def test_priors_and_data_that_do_not_fit() -> None:
    x, y = points()
    with pytest.raises(UsageError, match="prior"):
        Langevin(NET, GaussianPrior(), (x, y))
    with pytest.raises(UsageError, match="improper"):
        Langevin(NET, DiagonalGaussian(np.zeros(NET.size), -np.ones(NET.size)), (x, y))
    with pytest.raises(StructureError, match="weights"):
        Langevin(NET, DiagonalGaussian.from_standard(np.zeros(3), np.ones(3)), (x, y))
    with pytest.raises(ParameterError):
        Langevin(NET, NET.prior(variance=1.0), (x * np.nan, y))
    with pytest.raises(StructureError):
        Langevin(NET, NET.prior(variance=1.0), (x[:0], y[:0]))


def test_classes_of_hardly_any_records_are_named() -> None:
    x, y = points(20)[0], np.repeat([0, 1, 3], [10, 8, 2])
    net = NeuralNetwork.of_layers(Layers.dense(2, 4))
    with pytest.warns(FitWarning, match="found 0 of class 2, 2 of class 3 among 20 records"):
        Langevin(net, net.prior(), (x, y))
    net = NeuralNetwork.of_layers(Layers.dense(2, 1), likelihood="bernoulli")
    with pytest.warns(FitWarning, match="0 of class 1"):
        Langevin(net, net.prior(), (x, np.zeros(20)))


def test_whole_numbers_that_an_int32_does_not_hold_stay_what_they_are() -> None:
    when = np.array([[1, 3_000_000_000], [2, 3_000_001_000]])
    np.testing.assert_allclose(_single(when), when, rtol=1e-6)
    assert _single(when % 10).dtype == np.int32


@pytest.mark.parametrize(
    ("beside", "noise"),
    [
        pytest.param(lambda y: y, None, id="noise that the model has inside"),
        pytest.param(lambda y: np.stack([y, 0 * y], 1), 1.0, id="values and a column"),
        pytest.param(lambda y: {"y": y}, 1.0, id="values by name"),
    ],
)
def test_a_users_model_is_sampled_whatever_its_data_hold(beside, noise) -> None:
    (x, y), prior, _ = line()
    value = lambda own: own["y"] if isinstance(own, dict) else own.reshape(len(x), -1)[:, 0]
    model = FunctionModel(
        lambda z, data: -((value(data[1]) - data[0] @ z) ** 2) / 2,
        predict=lambda z, x: x @ z,
        likelihood="gaussian",
        noise_variance=noise,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = Langevin(model, prior, (x, beside(y)), chains=2, burn_in=0).sample(20, key=KEY)
    assert not any("records lie" in reason for reason in found.diagnostics.reasons)


def test_a_likelihood_without_predictions_is_refused() -> None:
    data, prior, _ = line()
    model = FunctionModel(lambda z, d: -((d[1] - d[0] @ z) ** 2) / 2, likelihood="gaussian")
    with pytest.raises(UsageError, match="no predict"):
        Langevin(model, prior, data, chains=2, burn_in=0).sample(20, key=KEY)


def test_a_model_that_does_not_predict_can_be_sampled_but_does_not_teach() -> None:
    model = FunctionModel(lambda z, x: -((x - z[0]) ** 2) / 2)
    prior = DiagonalGaussian.from_standard(np.zeros(1), np.array([100.0]))
    teacher = Langevin(model, prior, np.array([1.0, 2.0, 3.0]), chains=32)
    agree(quietly(teacher), np.array([2.0 * 3 / 3.01]), np.array([3.01**-0.5]))
    with pytest.raises(UsageError, match="predict"):
        teacher.head(np.zeros((1, 1)))


@pytest.mark.parametrize(
    ("degrees", "low", "high"), [(3.0, 2.6, 3.6), (8.0, 6, 11), (1e9, 30, 1000)]
)
def test_degrees_of_freedom_of_records_left_out(degrees: float, low: float, high: float) -> None:
    """Least squares through 3,000 records of a t law, whose own influence draws of it hold."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 20))
    y = scipy.stats.t(degrees).rvs(3000, random_state=rng) * (1 - 2 / degrees) ** 0.5
    centre = np.linalg.lstsq(x, y)[0]
    away = centre + rng.multivariate_normal(np.zeros(20), np.linalg.inv(x.T @ x), 16)
    outputs = (away @ x.T)[..., None]
    found = health.degrees(*health.residuals(outputs, y, 1.0))
    assert low < found < high
    for unit in (100, 1e20):  # squares of the latter overflow in float32, in which networks answer
        large = (unit * outputs).astype(np.float32)
        there = health.degrees(*health.residuals(large, unit * y, unit**2))
        assert found == pytest.approx(there, rel=1e-3)


def test_few_records_of_a_table_hardly_tell_their_law() -> None:
    away = np.full((4, 3, 1), 1.0)
    assert 5 < health.degrees(away, np.ones_like(away)) < 20
    assert health.residuals(np.zeros((4, 3, 1)), np.zeros(3), None) is None
