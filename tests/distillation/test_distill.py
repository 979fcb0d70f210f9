"""Students against exact predictives; what is said of runs; checkpoints."""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import posterity
from posterity.distillation import (
    SGLD,
    Box,
    Draws,
    Independent,
    Langevin,
    Pool,
    distill,
)
from posterity.distillation.distill import LEAST, PROBE, Distillation, set_up
from posterity.distillation.online import _offered, chunk
from posterity.distillation.sampling.langevin import _burned, _kept
from posterity.distillation.teachers import Health
from posterity.errors import (
    ArtifactError,
    CheckpointWarning,
    ConvergenceWarning,
    ParameterError,
    PosterityError,
    StructureError,
    UsageError,
)
from posterity.families import Gaussian, Network
from posterity.models import FunctionModel, LinearRegression, LogisticRegression, NeuralNetwork
from posterity.networks import Layers, describe
from posterity.status import Progress
from tests.distillation.examples import KEY, LAYERS, LINE, NET, line, network_teacher, points

pytestmark = pytest.mark.filterwarnings("ignore:Draws may not be the posterior's:UserWarning")

BOX = Box([-3.0, -3.0], [3.0, 3.0])
POSTERIOR = Network.from_standard(
    np.random.default_rng(3).normal(size=LAYERS.size), np.full(LAYERS.size, 0.3), LAYERS
)
WIDE = Layers.dense(2, 64, 64, 3)


@pytest.fixture(scope="module")
def split() -> Distillation:
    return distill(POSTERIOR, WIDE, key=KEY, inputs=BOX, split=True, steps=4000, batch_size=128)


@pytest.mark.slow
def test_a_student_predicts_as_its_teacher_and_is_as_unsure(split: Distillation) -> None:
    x = np.random.default_rng(0).uniform(-3, 3, (200, 2))
    truth = describe(POSTERIOR, x, samples=20_000, key=jax.random.key(9))
    found = split.student.predict(x)
    assert split.status.converged
    divergence = (truth.mean * (truth.log_chances - found.log_chances)).sum(1)
    assert divergence.mean() < 0.005
    gap = np.abs(found.mutual_information - truth.mutual_information)
    assert gap.mean() < 0.02 < truth.mutual_information.mean() / 4
    assert np.corrcoef(found.mutual_information, truth.mutual_information)[0, 1] > 0.97


@pytest.mark.slow
def test_the_gap_that_is_said_is_the_gap(split: Distillation) -> None:
    truth = describe(POSTERIOR, split.probe, samples=20_000, key=jax.random.key(9))
    found = split.student.predict(split.probe)
    own = (truth.mean * (truth.log_chances - found.log_chances)).sum(1).mean()
    assert own == pytest.approx(split.status.left, abs=1e-3)
    np.testing.assert_allclose(split.teacher.mean, truth.mean, atol=0.02)
    np.testing.assert_allclose(
        split.teacher.mutual_information, truth.mutual_information, atol=0.02
    )
    assert split.trace[-1].step == split.steps == 4000
    assert split.trace[0].gap > 10 * split.trace[-1].gap
    assert split.probe.shape == (PROBE, 2)


@pytest.mark.slow
def test_a_regression_of_known_predictive() -> None:
    """In raw units: the mean, and the variance of the function far below the noise's."""
    (x, y), prior, exact = line((1.0, 1e-3))
    teacher = Langevin(LINE, prior, (x, y), chains=16)
    found = distill(teacher, Layers.dense(2, 32, 2), key=KEY, steps=8000,
                    inputs=Pool(x))  # fmt: skip
    said = found.student.predict(x)
    covariance = np.linalg.inv(np.asarray(exact.precision))
    sd = np.sqrt(np.einsum("nd,de,ne->n", x, covariance, x))
    assert (np.abs(said.mean[:, 0] - x @ np.asarray(exact.mean)) < sd).all()
    assert np.median(np.abs(said.variance[:, 0] / sd**2 - 1)) < 0.2
    np.testing.assert_array_equal(said.noise_variance, 1.0)


def test_a_variance_far_from_the_teachers_is_not_converged() -> None:
    """After few steps, although large noise keeps the predictive within the tolerance."""
    x = np.random.default_rng(0).normal(size=(300, 3))
    law = Gaussian.from_standard(np.ones(3), np.linalg.inv(x.T @ x))
    model = LinearRegression(noise_variance=1.0)
    with pytest.warns(ConvergenceWarning, match="`variance` is off"):
        found = distill(law, model=model, inputs=Pool(x), steps=300)
    assert found.status.left < 0.01 and not found.status.converged


@pytest.mark.slow
def test_a_student_far_from_its_teacher_at_strange_inputs_is_converged_on_its_own_alone() -> None:
    """Two columns that are always alike: of their difference it was never asked."""
    x = np.random.default_rng(0).normal(size=(200, 1)).repeat(2, 1)
    law = Gaussian.from_standard([2.0, -2.0], np.array([[1.5, -1.0], [-1.0, 1.5]]))
    settings: dict[str, Any] = {"model": LogisticRegression(), "key": KEY, "steps": 2000}
    alike = distill(law, inputs=Pool(x), **settings)
    assert alike.status.converged and alike.beyond is not None and alike.beyond > 0.01
    said = str(alike.status)
    assert said.startswith("converged on inputs like those it learned on: ")
    assert f"{alike.beyond:.2g} nats from its teacher" in said
    apart = distill(law, inputs=Box([-3.0, -3.0], [3.0, 3.0]), tolerance=0.02, **settings)
    assert apart.status.scope == "" and apart.beyond is not None and apart.beyond <= 0.02


def test_a_noise_that_is_not_known() -> None:
    """Two parameters: a mean, and the logarithm of the noise's variance."""
    model = FunctionModel(
        lambda z, d: -((d[1] - z[0]) ** 2) * jnp.exp(-z[1]) / 2 - z[1] / 2,
        predict=lambda z, x: (jnp.full(len(x), z[0]), jnp.full(len(x), jnp.exp(z[1]))),
        likelihood="gaussian",
    )
    law = Gaussian.from_standard(np.array([2.0, 1.0]), np.diag([0.25, 0.01]))
    found = distill(law, Layers.dense(1, 8, 3), model=model, inputs=Box([-1.0], [1.0]), key=KEY,
                    split=True, steps=3000)  # fmt: skip
    said = found.student.predict(np.zeros((1, 1)))
    assert said.mean.item() == pytest.approx(2, abs=0.1)
    assert said.variance.item() == pytest.approx(0.25, rel=0.2)
    assert said.noise_variance.item() == pytest.approx(np.exp(1 + 0.005), rel=0.1)


@pytest.mark.slow
def test_other_networks_optimisers_and_inputs() -> None:
    student = eqx.nn.MLP(2, 2, 16, 1, key=KEY)
    found = distill(
        Draws(NET, np.random.default_rng(0).normal(size=(40, LAYERS.size))), student, key=KEY,
        inputs=BOX, optimiser=optax.sgd(0.05, momentum=0.9), steps=1500,
        reservoir=2, tolerance=0.1,
    )  # fmt: skip
    assert found.status.left < 0.1
    assert found.student.predict(np.zeros((3, 2))).mutual_information is None


# --- what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
def test_a_student_begins_as_the_average_of_networks(count: int) -> None:
    """Of classes and of values whose noise is not known; with as many times the hidden units."""
    (x, y), layers = points(), Layers.dense(2, 5, 4, 2)
    values = NeuralNetwork.regression(layers, 100.0 + np.c_[y, x[:, 0]])
    for net in (NeuralNetwork.of_layers(layers), values):
        rng = np.random.default_rng(0)
        drawn = rng.normal(size=net.size) + 0.1 * rng.normal(size=(count, net.size))
        drawn = drawn.astype(np.float32)
        run = set_up(Draws(net, drawn, x=x))
        assert run.network.widths == (5 * count, 4 * count)
        with jax.enable_x64(False):
            state = eqx.filter_jit(lambda key, run=run: run.start(run.teacher.begin(key=key)))(KEY)
            found = run.plan.apply(state.parameters, x.astype(np.float32))[:, :2]
        outputs = jax.device_get(list(map(jax.jit(lambda z, net=net: net.outputs(z, x)), drawn)))
        wanted = np.mean([own[0] if net is values else own for own in outputs], 0)
        if net is values:
            found = state.scaling.y_shift + state.scaling.y_scale * found
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("count", "scale"), [(1, 1.0), (3, 100.0)])
def test_a_student_of_networks_that_are_no_start_begins_at_random(count: int, scale: float) -> None:
    """No other network judges one alone; those of large weights contradict each other."""
    layers = Layers.dense(2, 5, 4, 2)
    net = NeuralNetwork.of_layers(layers)
    drawn = scale * np.random.default_rng(0).normal(size=(count, net.size))
    run = set_up(Draws(net, drawn.astype(np.float32), x=points()[0]))
    with jax.enable_x64(False):
        state = eqx.filter_jit(lambda key: run.start(run.teacher.begin(key=key)))(KEY)
    for began, random in zip(
        *map(jax.tree.leaves, (state.parameters, run.parameters)), strict=True
    ):
        np.testing.assert_array_equal(began, random)


@pytest.mark.slow
def test_a_student_of_chains_under_a_prior_of_another_family_begins_at_random() -> None:
    """Such chains move in other coordinates, and have no network of weights to begin from."""
    prior = Gaussian.from_standard(np.zeros(NET.size), np.eye(NET.size))
    run = set_up(Langevin(NET, prior, points(), chains=2))
    with jax.enable_x64(False):
        assert run.teacher.networks(run.teacher.blank()) is None
        assert jax.eval_shape(run.start, run.teacher.blank()).step.shape == ()


def _quiet(steps: int, **options: Any) -> Distillation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return distill(POSTERIOR, key=KEY, inputs=BOX, steps=steps, **options)


def test_steps_that_fill_no_whole_chunk() -> None:
    """The last chunk has blocks without steps; of one step, both halves of the run are not there.

    Its loss is that of its last steps, not zero.
    """
    found = _quiet(LEAST + 13)
    assert [row.step for row in found.trace] == [LEAST, LEAST + 13]
    assert found.trace[1].loss > found.trace[0].loss / 2 > 0
    with pytest.warns(ConvergenceWarning, match="too few steps"):
        one = distill(POSTERIOR, key=KEY, inputs=BOX, steps=1)
    assert one.drift == np.inf and one.halves is None and "not converged" in repr(one)
    assert "not asked in both halves" in str(one.status)
    assert one.status.left > one.status.tolerance and not one.status.converged


def test_a_student_that_diverged_at_the_end_is_an_error_again(tmp_path) -> None:
    options: dict[str, Any] = {"optimiser": optax.sgd(1e30), "checkpoint": tmp_path / "run"}
    with pytest.raises(ParameterError, match="learning rate"):
        _quiet(10, **options)
    changed = pytest.warns(CheckpointWarning, match="may have changed")
    with changed, pytest.raises(ParameterError, match="learning rate"):
        _quiet(10, **options)


@pytest.mark.slow
def test_a_temperature_that_is_not_known_is_not_right() -> None:
    """Of a run too short to tell whether its chains sample the posterior."""
    data, prior, _ = line()
    teacher = Langevin(LINE, prior, data, kernel=SGLD(0.01), chains=2, burn_in=250)
    with pytest.warns(ConvergenceWarning, match="temperature of the chains is not known"):
        run = distill(teacher, key=KEY, steps=LEAST, tolerance=1e3)
    assert run.temperature is None and run.status.left < run.status.tolerance
    assert run.status.state == "not converged"
    with pytest.warns(ConvergenceWarning, match="temperature of the chains is not known"):
        drawn = teacher.sample(3)
    assert drawn.count == 6 and drawn.diagnostics.rhat is None


def test_nothing_grows_with_the_number_of_steps() -> None:
    sizes = []
    for steps in (100, 1_000_000):
        run = _set_up(steps=steps, reservoir=4)
        state = jax.eval_shape(run.start, run.constants.teacher.blank())
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(state)))
        assert -(-steps // int(run.sizes(0).sum())) <= 201
    assert sizes[0] == sizes[1]


def test_a_reservoir_holds_every_draw_with_the_same_chance() -> None:
    size, count = 4, 40

    def kept(key: jax.Array) -> jax.Array:
        def offer(reservoir: Any, step: Any) -> Any:
            draw = step.astype(jnp.float32)[None]
            return _offered(size, reservoir, draw, step, jax.random.fold_in(key, step)), None

        return jax.lax.scan(offer, jnp.full((size, 1), -1.0), jnp.arange(count))[0]

    found = np.asarray(jax.jit(jax.vmap(kept))(jax.random.split(KEY, 4000))).ravel().astype(int)
    assert scipy.stats.chisquare(np.bincount(found, minlength=count)).pvalue > 1e-3


class Slow(Draws):
    """A teacher that shows its draws once, one after the other, over so many steps."""

    steps: int = eqx.field(static=True, default=1)

    def begin(self, *, key: jax.Array) -> jax.Array:
        del key
        return jnp.zeros(1, jnp.int32)

    def advance(self, state: jax.Array, *, key: jax.Array) -> jax.Array:
        del key
        return state + 1

    def draws(self, state: jax.Array) -> Any:
        return self.stack[state * self.count // (self.steps + 1)]

    @property
    def population(self) -> float:
        return np.inf

    def traced(self) -> "Slow":
        return self


def test_a_student_of_a_slow_chain_learns_the_average_of_all_its_draws() -> None:
    """Not that of the few that a step can hear: those change until the end."""
    biases = np.tile([-3.0, 3.0], 20)
    layers = Layers.dense(1, 1)
    model = NeuralNetwork.of_layers(layers, likelihood="bernoulli")
    teacher = Slow(model, np.c_[biases, 0 * biases])
    object.__setattr__(teacher, "steps", 3000)
    options: dict[str, Any] = {"inputs": Box([-1.0], [1.0]), "steps": 3000, "tolerance": 1.0}
    for seed in (0, 1):
        found = distill(teacher, layers, key=jax.random.key(seed), **options)
        said = found.student.predict(np.zeros((1, 1))).mean
        np.testing.assert_allclose(said, 0.5, atol=0.1)


@pytest.mark.parametrize(
    ("samples", "options", "expected"),
    [
        (1, {}, (64, 7, 8)),
        (3, {}, (22, 2, 9)),
        (16, {}, (0, 0, 16)),
        (16, {"heard": 20}, (4, 1, 32)),
        (1, {"reservoir": 2}, (2, 2, 3)),
        (1, {"reservoir": 0}, (0, 0, 1)),
    ],
)
def test_whole_states_are_kept_and_heard(samples: int, options: Any, expected: Any) -> None:
    """States that are kept, those that are heard at a step, and their draws with the newest."""
    teacher = Draws(NET, np.zeros((40, LAYERS.size)), samples=samples)
    plan = set_up(teacher, inputs=BOX, **options).plan
    assert (plan.reservoir, plan.picked, plan.heard) == expected


# --- checkpoints ---------------------------------------------------------------------------------


class Stop(Exception):
    """Where a run is cut off."""


@pytest.mark.slow
def test_a_run_that_was_cut_off_ends_as_if_it_had_not_been(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("posterity.artifact.checkpoint.SECONDS", 0.0)
    brief = {"climb": 100, "burn_in": 250}
    path, teacher = tmp_path / "run.safetensors", network_teacher(**brief)
    seen: list[Progress] = []

    def cut(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 7:
            raise Stop

    options: dict[str, Any] = {"key": KEY, "steps": 500, "reservoir": 2, "tolerance": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.raises(Stop):
            distill(teacher, checkpoint=path, progress=cut, **options)
        again: list[Progress] = []
        resumed = distill(teacher, checkpoint=path, progress=again.append, **options)
        watched: list[Distillation] = []
        whole = distill(teacher, progress=lambda now: watched.append(now.result), **options)
        finished = distill(teacher, checkpoint=path, **options)
    assert 0 < len(again) < len(whole.trace)
    # The result so far is all that there is after each chunk, and changes nothing.
    assert [own.trace for own in watched] == [
        whole.trace[:rows] for rows in range(1, len(whole.trace) + 1)
    ]
    assert [own.status.left for own in watched] == [row.gap for row in whole.trace]
    assert [own.steps for own in watched] == [row.step for row in whole.trace]
    first, last = watched[0].student, watched[-1].student
    np.testing.assert_array_equal(last.parameters, whole.student.parameters)
    assert not np.array_equal(first.parameters, last.parameters)
    np.testing.assert_array_equal(watched[-1].teacher.mean, whole.teacher.mean)
    for other in (resumed, finished):
        np.testing.assert_array_equal(other.student.parameters, whole.student.parameters)
        assert other.trace == whole.trace
        assert other.status == whole.status
    with pytest.raises(ArtifactError, match=r"other .*settings"):
        distill(teacher, checkpoint=path, **{**options, "steps": 501})
    with pytest.raises(ArtifactError, match=r"other teacher"):
        distill(network_teacher(**brief, thin=2), checkpoint=path, **options)
    with pytest.raises(ArtifactError, match=r"other .*key"):
        distill(teacher, checkpoint=path, **{**options, "key": jax.random.key(1)})


def test_a_file_that_is_no_checkpoint_is_left_alone(tmp_path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("mine")
    with pytest.raises(ArtifactError):
        distill(POSTERIOR, key=KEY, inputs=BOX, steps=20, checkpoint=path)
    assert path.read_text() == "mine"
    with pytest.raises(ArtifactError):
        distill(POSTERIOR, key=KEY, inputs=BOX, steps=20, checkpoint=tmp_path / "no" / "folder")


# --- programs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numbers_are_no_programs() -> None:
    """Another rate, tolerance, number of steps, step size or temperature compiles nothing anew."""
    _quiet(LEAST)
    programs = chunk.programs
    _quiet(LEAST + 7, learning_rate=1e-2, tolerance=0.5)
    assert chunk.programs == programs
    stack = np.zeros((3, LAYERS.size))
    for rhat in (1.01, 1.02):  # diagnostics of chains are no part of a program either
        teacher = Draws(NET, stack, diagnostics=Health((f"R-hat {rhat}",), None, rhat, 9.0))
        with pytest.warns(ConvergenceWarning, match=f"R-hat {rhat}"):
            distill(teacher, inputs=BOX, steps=LEAST)
        programs = chunk.programs if rhat == 1.01 else programs
    assert chunk.programs == programs
    data, prior, _ = line()

    def drawn(kernel: SGLD, burn_in: int) -> np.ndarray:
        teacher = Langevin(LINE, prior, data, kernel=kernel, chains=2, burn_in=burn_in)
        return np.asarray(teacher.sample(3).stack)

    first = drawn(SGLD(0.01), 250)
    programs = _burned.programs, _kept.programs
    assert not np.array_equal(first, drawn(SGLD(0.02, temperature=0.5), 500))
    assert programs == (_burned.programs, _kept.programs)


# --- the surface ---------------------------------------------------------------------------------


def test_a_teacher_may_be_a_file_and_its_posterior_comes_back(tmp_path) -> None:
    path = tmp_path / "posterior.safetensors"
    posterity.save(POSTERIOR, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        of_file = distill(path, inputs=BOX, steps=10)
    assert of_file.posterior == POSTERIOR
    np.testing.assert_array_equal(of_file.student.parameters, _quiet(10).student.parameters)
    stored = Draws(NET, np.zeros((3, LAYERS.size)))
    assert getattr(stored, "posterior", None) is None


# --- bad input -----------------------------------------------------------------------------------


def _set_up(teacher: Any = POSTERIOR, student: Any = None, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "key": KEY, "inputs": BOX, "model": None, "split": False, "steps": 10, "batch_size": 8,
        "learning_rate": 1e-3, "optimiser": None, "reservoir": 0, "probe": None, "tolerance": 0.01,
    }  # fmt: skip
    return set_up(teacher, student, **{**defaults, **options})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"steps": 0}, UsageError),
        ({"batch_size": 0}, UsageError),
        ({"reservoir": -1}, UsageError),
        ({"reservoir": None}, UsageError),
        ({"heard": 0}, UsageError),
        ({"learning_rate": 0.0}, UsageError),
        ({"tolerance": -1.0}, UsageError),
        ({"optimiser": optax.adam}, UsageError),
        ({"inputs": None}, UsageError),
        ({"inputs": "data.npz"}, UsageError),
        ({"inputs": Box([0.0], [1.0])}, PosterityError),
        ({"inputs": lambda key, n: jnp.full((n, 2), jnp.nan)}, ParameterError),
        ({"inputs": lambda key, n: jnp.zeros(n)}, PosterityError),
        ({"probe": np.zeros((3, 5))}, StructureError),
        ({"probe": np.zeros((0, 2))}, StructureError),
        ({"probe": np.full((3, 2), np.nan)}, ParameterError),
        ({"student": Layers.dense(2, 4, 5)}, StructureError),
        ({"student": "64"}, UsageError),
        ({"teacher": 3}, UsageError),
    ],
)
def test_arguments_that_make_no_sense(options, error) -> None:
    with pytest.raises(error):
        _set_up(**options)


def test_models_whose_outputs_are_not_what_they_say() -> None:
    x, y = points()
    line = NeuralNetwork(lambda p, x: (x @ p["w"])[:, 0], {"w": np.ones((2, 1))})
    with pytest.raises(StructureError, match="logits"):
        _set_up(Independent(line.prior(variance=1.0), line))
    named = FunctionModel(
        lambda z, d: d[1] * 0.0, predict=lambda z, x: {"logits": x}, likelihood="bernoulli"
    )
    with pytest.raises(StructureError, match="logits"):
        _set_up(Independent(Gaussian.from_standard(np.zeros(2), np.eye(2)), named))
    silent = FunctionModel(lambda z, d: d[1] * 0.0)
    with pytest.raises(UsageError, match="predict"):
        _set_up(Independent(Gaussian.from_standard(np.zeros(2), np.eye(2)), silent))
    with pytest.raises(StructureError):
        _set_up(Langevin(LinearRegression(), Gaussian.from_standard(np.zeros(2), np.eye(2)),
                         (x, y * 1.0)), inputs=Box([0.0], [1.0]))  # fmt: skip
