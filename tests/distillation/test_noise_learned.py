"""Regressions that learn their noise, of values of any scale."""

import dataclasses
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import posterity
from posterity.distillation import Langevin
from posterity.distillation.sampling import climbs
from posterity.errors import (
    ConvergenceWarning,
    ParameterError,
    ScaleWarning,
    StructureError,
    UsageError,
)
from posterity.models import NeuralNetwork
from posterity.models.forward import NoisyForward
from posterity.models.likelihoods import log_likelihood
from posterity.networks import GaussianPrior, Layers
from posterity.runtime.interrupts import deferred
from tests.distillation.examples import KEY

pytestmark = pytest.mark.filterwarnings("ignore:Draws may not be the posterior's:UserWarning")

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("scale", [pytest.param(1e-6, marks=pytest.mark.slow), 1e5])
def test_a_constant_noise_is_that_of_least_squares(scale: float) -> None:
    x = RNG.normal(size=(300, 1))
    y = scale * (50 + 3 * x[:, 0] + 2 * RNG.normal(size=300))
    net = NeuralNetwork.regression(Layers.dense(1, 1), y)
    assert net.layers is not None
    teacher = Langevin(net, GaussianPrior(1.0).network(net.layers), (x, y), chains=8, climb=1000)
    found = teacher.sample(400, key=KEY).predict(x[:5])
    design = np.c_[np.ones(300), x]
    best, left = np.linalg.lstsq(design, y, rcond=None)[:2]
    noise = left.item() / 298
    assert found.variance is not None and found.noise_variance is not None
    errors = np.sqrt(
        noise * np.einsum("nd,de,ne->n", design, np.linalg.inv(design.T @ design), design)
    )
    assert (np.abs(found.mean[:, 0] - design[:5] @ best) < errors[:5]).all()
    np.testing.assert_allclose(found.noise_variance, noise, rtol=4 * np.sqrt(2 / 300))
    np.testing.assert_allclose(found.variance[:, 0], errors[:5] ** 2, rtol=0.4)


@pytest.mark.parametrize("deviation", [1e-10, 1.0, 1e10])
def test_the_slope_in_the_noise_has_its_sign_at_any_scale(deviation: float) -> None:
    """In single precision a variance squared would overflow."""
    at = lambda log: log_likelihood(
        np.zeros((1, 1), np.float32), np.full((1, 1), 2 * deviation, np.float32), "gaussian",
        jnp.exp(log),
    )[0]  # fmt: skip
    slope = jax.grad(at)(np.float32(2 * np.log(deviation)))
    np.testing.assert_allclose(slope, 1.5, rtol=1e-4)


def linear_network() -> tuple[np.ndarray, Langevin]:
    """A thousand records, and chains of a network without hidden units."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 2))
    y = (x @ [1.0, -1.0] + rng.normal(size=1000))[:, None]
    line = Layers.dense(2, 1)
    net = NeuralNetwork.of_layers(line, likelihood="gaussian", noise_variance=1.0)
    return x, Langevin(net, GaussianPrior().network(line), (x, y))


@pytest.mark.slow
def test_a_variance_that_is_far_off_is_not_converged() -> None:
    """Of a student without hidden units, whose log variance is a line."""
    _, teacher = linear_network()
    with pytest.warns(ConvergenceWarning, match="`variance` is off"):
        posterity.distill(teacher, Layers.dense(2, 2), key=KEY, split=True)


@pytest.mark.slow
def test_a_default_student_has_the_variance_of_a_linear_model() -> None:
    x, teacher = linear_network()
    default = posterity.distill(teacher, key=KEY, split=True)
    assert default.status.converged and not default.status.reasons
    design = np.c_[np.ones(1000), x]
    exact = np.einsum("nd,de,ne->n", design, np.linalg.inv(design.T @ design + np.eye(3)), design)
    ratio = default.student.predict(x).variance[:, 0] / exact
    assert 0.5 < np.quantile(ratio, 0.1) < np.quantile(ratio, 0.9) < 2


@pytest.mark.slow
@pytest.mark.parametrize(("deviation", "length"), [(0.0, 5000), (1.0, 1000)])
def test_noisy_tables_climb_less(
    monkeypatch: pytest.MonkeyPatch, deviation: float, length: int
) -> None:
    """Records held out choose the climb: what has no noise is learned for long."""
    monkeypatch.setattr(climbs, "LENGTHS", (1000, 5000))
    rng = np.random.default_rng(5)
    x = rng.normal(size=(250, 2))
    y = x.sum(1) + deviation * rng.normal(size=250)
    teacher = noisy(x, y)
    with jax.enable_x64(False):
        assert climbs.length(teacher.target, key=KEY) == length


def test_a_climb_is_chosen_for_hidden_layers_and_learned_noise_alone() -> None:
    x, y = RNG.normal(size=(60, 2)), RNG.normal(size=60)
    known = NeuralNetwork.of_layers(Layers.dense(2, 8, 1), likelihood="gaussian")
    assert noisy(x, y).climb is None
    assert noisy(x, y, climb=30).climb == 30
    assert noisy(x, y, layers=Layers.dense(2, 1)).climb == 2000
    assert Langevin(known, known.prior(), (x, y)).climb == 2000


@pytest.mark.parametrize(
    ("scores", "length"),
    [
        # Better by one and by two standard errors of the difference, of 30 records.
        ([[0.0] * 30, [0.05] * 15 + [0.3] * 15, [0.1] * 30], 6000),
        ([[0.0] * 30, [-0.1] * 30, [3.0] + [-0.01] * 29], 2000),
        ([[0.0] * 30, [1.0] * 30, [climbs.LEAST] * 30], 6000),
        ([[climbs.LEAST] * 30] * 3, 2000),
    ],
)
def test_the_shortest_climb_within_a_standard_error_is_made(
    monkeypatch: pytest.MonkeyPatch, scores: list[list[float]], length: int
) -> None:
    rows = iter(np.array(scores))
    monkeypatch.setattr(climbs, "climb", lambda target, start, steps, key: start)
    monkeypatch.setattr(climbs, "_scores", lambda target, positions, records: next(rows))
    x, y = RNG.normal(size=(150, 2)), RNG.normal(size=150)
    with jax.enable_x64(False):
        assert climbs.length(noisy(x, y).target, key=KEY) == length


@pytest.mark.slow
def test_chains_begin_after_the_chosen_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    made, climb = [], climbs.climb
    monkeypatch.setattr(climbs, "LENGTHS", (10, 300))
    monkeypatch.setattr(
        climbs, "climb", lambda *args, **key: made.append(args[2]) or climb(*args, **key)
    )
    x = RNG.normal(size=(200, 2))
    net = NeuralNetwork.regression(Layers.dense(2, 8, 1), x.sum(1))
    assert net.layers is not None
    teacher = Langevin(net, GaussianPrior().network(net.layers), (x, x.sum(1)), burn_in=250)
    teacher.begin(key=KEY)
    assert made == [10, 300, 300]


def test_equal_records_are_held_out_together_and_few_are_not_compared() -> None:
    """Of a table that is repeated, one copy tells what another was."""
    x, y = RNG.normal(size=(50, 2)), RNG.normal(size=50)
    first, second = (np.resize(part, (150, *part.shape[1:])) for part in (x, y))
    numbers = climbs._distinct((first, second))
    np.testing.assert_array_equal(numbers, np.resize(numbers[:50], 150))
    assert len(np.unique(numbers)) == 50
    assert climbs.length(noisy(x, y).target, key=KEY) == climbs.LENGTHS[0]
    assert climbs.length(noisy(np.ones((200, 2)), np.ones(200)).target, key=KEY) == 2000


def test_chains_that_diverge_score_least() -> None:
    x, y = RNG.normal(size=(5, 2)), RNG.normal(size=5)
    target = noisy(x, y).target
    with jax.enable_x64(False):
        for factor in (np.nan, np.inf, 1e25):
            broken = jax.tree.map(lambda leaf, by=factor: leaf * by, target.start(2, key=KEY))
            scores = climbs._scores(target, broken, target.data)
            np.testing.assert_array_equal(scores, climbs.LEAST)


def test_ctrl_c_ends_a_climb_between_two_calls() -> None:
    target = noisy(RNG.normal(size=(20, 2)), RNG.normal(size=20)).target
    with deferred() as interrupts, jax.enable_x64(False):
        interrupts.came.append(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            climbs.climb(target, target.start(2, key=KEY), 10, key=KEY)


def noisy(
    x: np.ndarray, y: np.ndarray, layers: Layers | None = None, climb: int | None = None
) -> Langevin:
    net = NeuralNetwork.regression(layers or Layers.dense(2, 8, 1), y)
    assert net.layers is not None
    return Langevin(net, GaussianPrior().network(net.layers), (x, y), climb=climb)


@pytest.mark.slow
def test_a_varying_noise_is_found_where_it_is() -> None:
    x = RNG.uniform(-1, 1, (600, 1))
    deviation = 100 * np.exp(x[:, 0])
    y = 2000 + deviation * RNG.normal(size=600)
    net = NeuralNetwork.regression(Layers.dense(1, 8, 1), y, noise="varying")
    assert net.layers is not None
    teacher = Langevin(net, GaussianPrior(1.0).network(net.layers), (x, y), chains=8, climb=1000)
    found = teacher.sample(400, key=KEY).predict(x)
    assert found.variance is not None and found.noise_variance is not None
    np.testing.assert_allclose(
        np.median(np.sqrt(found.noise_variance[:, 0]) / deviation), 1, atol=0.1
    )
    assert np.corrcoef(np.log(found.noise_variance[:, 0]), x[:, 0])[0, 1] > 0.95
    spread = np.sqrt(found.variance + found.noise_variance)[:, 0]
    inside = np.abs(y - found.mean[:, 0]) < 0.6745 * spread
    assert abs(inside.mean() - 0.5) < 4 * 0.5 / 600**0.5


@pytest.mark.slow
def test_noise_that_is_not_normal_is_said() -> None:
    """Chains of a line through records of which a tenth is ten times as noisy as the others."""
    x = RNG.normal(size=(600, 1))
    wide = np.where(np.arange(600) % 10, 0.1, 1.0)
    y = x[:, 0] + wide * RNG.normal(size=600)
    net = NeuralNetwork.regression(Layers.dense(1, 1), y)
    assert net.layers is not None
    teacher = Langevin(net, GaussianPrior(1.0).network(net.layers), (x, y), chains=4, climb=500)
    with pytest.warns(ConvergenceWarning, match="the noise is not normal"):
        draws = teacher.sample(50, key=KEY)
    found = draws.predict(x)
    assert found.degrees == draws.diagnostics.degrees < 3
    normal = dataclasses.replace(found, degrees=np.inf)
    assert found.log_predictive(y).mean() > normal.log_predictive(y).mean() + 0.3


def test_other_values_are_the_same_program() -> None:
    """Means and deviations of the values are arrays of the tree, not part of its structure."""

    def teacher(unit: float) -> Langevin:
        x, y = RNG.normal(size=(20, 1)), unit * RNG.normal(size=20)
        net = NeuralNetwork.regression(Layers.dense(1, 3, 1), y)
        assert net.layers is not None
        return Langevin(net, GaussianPrior().network(net.layers), (x, y))

    assert jax.tree.structure(teacher(1.0)) == jax.tree.structure(teacher(1e6))


def test_columns_far_from_a_scale_of_one_are_named() -> None:
    x, y = RNG.normal(size=(9, 2)) + np.array([0.0, 2000.0]), RNG.normal(size=9)
    net = NeuralNetwork.regression(Layers.dense(2, 1), y)
    with pytest.warns(ScaleWarning, match=r"inputs whose column 1 .* 2e\+03"):
        Langevin(net, net.prior(), (x, y))
    with pytest.warns(ScaleWarning, match=r"units of NeuralNetwork\.regression"):
        Langevin(net, net.prior(), (x - [0.0, 2000.0], 1e3 * y))
    known = NeuralNetwork.of_layers(Layers.dense(2, 1), likelihood="gaussian")
    with pytest.warns(ScaleWarning, match="what was observed"):
        Langevin(known, known.prior(), (x - [0.0, 2000.0], 1e3 * y))


def test_frames_are_records_and_masked_values_are_not() -> None:
    x, y = RNG.normal(size=(9, 2)), np.arange(9) % 2
    net = NeuralNetwork.of_layers(Layers.dense(2, 2))
    frames = pd.DataFrame(x), pd.Series(y)
    teacher = Langevin(net, net.prior(), frames)
    np.testing.assert_array_equal(np.asarray(teacher.inputs()), x.astype(np.float32))
    with pytest.raises(ParameterError, match="masked values"):
        Langevin(net, net.prior(), (np.ma.masked_greater(x, 0), y))


def test_values_and_layers_that_do_not_fit() -> None:
    for y in (np.zeros((3, 2)), np.zeros(0), np.array("a"), 3.0):
        with pytest.raises(StructureError):
            NeuralNetwork.regression(Layers.dense(1, 1), y)
    y = np.stack([np.full(3, 0.1), 1e9 + np.arange(3)], 1)
    net = NeuralNetwork.regression(Layers.dense(1, 2), y)
    assert isinstance(net.apply, NoisyForward)  # the deviation of equal values is not zero
    np.testing.assert_allclose(net.apply.scale, [1.0, (2 / 3) ** 0.5])
    with pytest.raises(ParameterError, match="single precision"):
        Langevin(net, net.prior(), (np.zeros((3, 1)), y))
    Langevin(net, net.prior(), (np.zeros((3, 1)), np.full((3, 2), 0.1)))
    with pytest.raises(UsageError, match="varying"):
        NeuralNetwork.regression(Layers.dense(1, 1), np.zeros(3), noise="both")
