"""Heads against sums and integrals by hand, at their minimum, and where digits would be lost."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from posterity.distillation import Draws, Independent
from posterity.distillation.heads import FLOOR, Head
from posterity.distillation.scaling import Scaling
from posterity.errors import StructureError, UsageError
from posterity.families import Network
from posterity.networks.predictive import expectations_of, merge, mutual_information
from tests.distillation.examples import LAYERS, NET

RNG = np.random.default_rng(0)
CLASSES = [Head("categorical", 4), Head("categorical", 4, split=True), Head("bernoulli", 1),
           Head("bernoulli", 1, split=True)]  # fmt: skip
VALUES = [Head("gaussian", 2), Head("gaussian", 2, split=True),
          Head("gaussian", 2, noise_variance=0.3), Head("gaussian", 2, True, 0.3)]  # fmt: skip
SCALING = Scaling(y_shift=np.array([3.0, -1.0]), y_scale=np.array([10.0, 0.1]))
WITHOUT_SPLIT = [head for head in CLASSES + VALUES if not head.split]
"""Of which alone what is averaged over draws depends."""


def at_rest(function: Any, **static: Any) -> Any:
    """Compiled as a whole, not operation by operation; what it gives as NumPy's arrays."""
    program = jax.jit(function, static_argnums=0, **static)
    return lambda *args, **kwargs: jax.tree.map(np.asarray, program(*args, **kwargs))


loss, divergence = at_rest(Head.loss), at_rest(Head.divergence)
averages = at_rest(expectations_of)
merged = jax.jit(merge)


@pytest.fixture(autouse=True)
def _double() -> Any:
    """Most of what is here is looked at in double precision; what is not, says so."""
    with jax.enable_x64(True):
        yield


def drawn(head: Head, draws: int = 7, n: int = 5) -> Any:
    """What a teacher's draws say, in the units of ``y``, noise of each input beside it."""
    found = 2 * RNG.normal(size=(draws, n, head.targets))
    if head.likelihood == "gaussian":
        known = head.noise_variance is not None
        found = 3 + found
        return found if known else (found, RNG.gamma(2.0, 0.5, size=found.shape))
    return found


def expected(head: Head, draws: Any) -> dict[str, Any]:
    return averages(head.likelihood, draws, head.noise_variance)


def chances(head: Head, logits: np.ndarray) -> np.ndarray:
    if head.likelihood == "bernoulli":
        p = scipy.special.expit(logits[..., 0])
        return np.stack([1 - p, p], -1)
    return scipy.special.softmax(logits, -1)


@pytest.mark.parametrize("head", [head for head in CLASSES if not head.split])
def test_expectations_of_classes_by_hand(head: Head) -> None:
    logits = drawn(head)
    found = expected(head, logits)
    p = chances(head, logits)
    np.testing.assert_allclose(np.exp(found["log_chances"]), p.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["entropy"], scipy.stats.entropy(p, axis=-1).mean(0))
    if head.likelihood == "bernoulli":
        flat = averages("bernoulli", logits[..., 0])
        np.testing.assert_array_equal(flat["log_chances"], found["log_chances"])


def test_expectations_of_values_by_hand() -> None:
    values, noise = drawn(Head("gaussian", 2))
    for given, beside in (((values, noise), None), (values, noise)):
        found = averages("gaussian", given, beside)
        np.testing.assert_allclose(found["mean"], values.mean(0))
        np.testing.assert_allclose(found["variance"], values.var(0))
        np.testing.assert_allclose(found["noise"], noise.mean(0))
    one = averages("gaussian", values[..., 0], np.arange(7.0)[:, None])
    assert one["mean"].shape == one["noise"].shape == (5, 1)
    np.testing.assert_allclose(one["noise"], 3.0)
    assert "noise" not in averages("gaussian", values)


@pytest.mark.parametrize("head", WITHOUT_SPLIT)
def test_merging_parts_is_averaging_all(head: Head) -> None:
    draws = drawn(head, 21)
    cut = lambda part: jax.tree.map(lambda x: x[part], draws)
    parts = [expected(head, cut(slice(at, at + 7))) for at in (0, 7, 14)]
    whole = expected(head, draws)
    for kind in (jnp.asarray, np.asarray):  # in JAX, and at rest
        found = {name: kind(np.zeros_like(value)) for name, value in whole.items()}
        for so_far, part in zip((0, 7, 14), parts, strict=True):
            part = {name: kind(value) for name, value in part.items()}
            found = (merged if kind is jnp.asarray else merge)(found, part, (so_far, 7))
        for name in whole:
            assert isinstance(found[name], type(kind(np.zeros(1))))
            np.testing.assert_allclose(found[name], whole[name], rtol=1e-12, atol=1e-14)


def test_a_few_draws_at_a_time_show_all_the_mutual_information() -> None:
    """Of a finite population, and nearly so of one without end, whose draws differ moderately."""
    head, rng = Head("categorical", 4, split=True), np.random.default_rng(1)
    draws = rng.normal(size=(40, 1, 4))
    whole = mutual_information(expected(head, draws))
    for heard, population in ((2, 40), (8, 40), (8, 10**9)):
        some = np.stack(
            [
                rng.permutation(draws)[:heard]
                if population == 40
                else draws[rng.integers(40, size=heard)]
                for _ in range(2000)
            ],
            1,
        )
        found = mutual_information(expected(head, some[:, :, 0]))
        correction = Draws(NET, np.zeros((40, NET.size))).correction(heard)
        if population > 40:
            correction = Independent(Network.prior(LAYERS), NET).correction(heard)
        error = correction * found.std() / len(found) ** 0.5
        assert abs(correction * found.mean() - whole[0]) < 4 * error + 0.05 * whole[0]
    assert Draws(NET, np.zeros((3, NET.size))).correction(3) == 1


@pytest.mark.parametrize("head", [*WITHOUT_SPLIT[:2], *VALUES])
def test_single_draws_are_right_in_expectation(head: Head) -> None:
    """Mean losses of single draws differ from the loss of all by a constant of the student."""
    draws = drawn(head)
    scaling = SCALING if head.likelihood == "gaussian" else None
    one = lambda i: expected(head, jax.tree.map(lambda x: x[i : i + 1], draws))
    constants = []
    for _ in range(3):
        outputs = RNG.normal(size=(5, head.size))
        single = [loss(head, outputs, one(i), scaling) for i in range(7)]
        together = loss(head, outputs, expected(head, draws), scaling)
        constants.append(np.mean(single, 0) - together)
    np.testing.assert_allclose(constants[0], constants[1], atol=1e-10)
    np.testing.assert_allclose(constants[0], constants[2], atol=1e-10)


@pytest.mark.parametrize("head", CLASSES + VALUES[:2])
def test_plain_loss_is_divergence_but_for_a_constant(head: Head) -> None:
    plain = Head(head.likelihood, head.targets, noise_variance=head.noise_variance)
    teacher, gaussian = expected(plain, drawn(plain)), head.likelihood == "gaussian"
    scaling = SCALING if gaussian else None
    both = [RNG.normal(size=(5, plain.size)) for _ in range(2)]
    losses, divergences = (
        np.subtract(*[of(plain, outputs, teacher, scaling) for outputs in both])
        for of in (loss, divergence)
    )
    np.testing.assert_allclose(losses, divergences, atol=1e-12)


def test_divergences_by_library() -> None:
    head = Head("categorical", 4)
    teacher = expected(head, drawn(head))
    outputs = RNG.normal(size=(5, 4))
    p, q = np.exp(teacher["log_chances"]), scipy.special.softmax(outputs, -1)
    np.testing.assert_allclose(
        divergence(head, outputs, teacher), scipy.stats.entropy(p, q, axis=1)
    )
    head = Head("gaussian", 1, True, 0.3)
    teacher = expected(head, drawn(head))
    outputs = RNG.normal(size=(5, 2))
    sd = np.sqrt(np.asarray(teacher["variance"] + 0.3)).ravel()
    mean = np.asarray(teacher["mean"]).ravel()
    found = scipy.stats.norm(outputs[:, 0], np.sqrt(np.exp(outputs[:, 1]) + 0.3))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    at = mean + sd * nodes[:, None]
    gap = scipy.stats.norm(mean, sd).logpdf(at) - found.logpdf(at)
    integral = weights @ gap / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(divergence(head, outputs, teacher), integral, rtol=1e-9)


@pytest.mark.parametrize("split", [False, True])
def test_loss_of_a_variance_is_an_expected_density_of_draws(split: bool) -> None:
    """Beside the divergence of the predictive, both but for constants of the student."""
    head = Head("gaussian", 2, split, 0.3)
    values, both = drawn(head), [RNG.normal(size=(5, 4)) for _ in range(2)]
    teacher = expected(head, values)
    losses, gaps = (np.subtract(*[of(head, x, teacher) for x in both]) for of in (loss, divergence))
    density = lambda x: scipy.stats.norm(x[:, :2], np.exp(x[:, 2:] / 2)).logpdf(values)
    direct = np.subtract(*[-density(x).sum(-1).mean(0) for x in both])
    np.testing.assert_allclose(losses - gaps, direct, rtol=1e-9)


def outputs_of(head: Head, teacher: Any, scaling: Scaling | None = None) -> np.ndarray:
    """What a student gives that is its teacher."""
    if head.likelihood != "gaussian":
        logs = np.asarray(teacher["log_chances"])
        logits = logs if head.likelihood == "categorical" else logs[:, 1:] - logs[:, :1]
        share = (
            1 - np.asarray(teacher["entropy"] / scipy.stats.entropy(np.exp(logs), axis=1))[:, None]
        )
        return np.concatenate([logits, scipy.special.logit(share)], 1)[:, : head.size]
    shift, scale = (0, 1) if scaling is None else (scaling.y_shift, scaling.y_scale)
    mean, own, noise = (np.asarray(teacher[name]) for name in ("mean", "variance", "noise"))
    both = [own, noise] if head.split else [own + noise if head.noise_variance is None else own]
    logs = [np.log(part / scale**2) for part in both]
    return np.concatenate([(mean - shift) / scale, *logs], 1)[:, : head.size]


@pytest.mark.parametrize(
    ("head", "scaling"),
    [(head, None) for head in CLASSES] + [(head, SCALING) for head in VALUES],
)
def test_the_best_student_is_its_teacher(head: Head, scaling: Scaling | None) -> None:
    teacher = expected(head, drawn(head))
    outputs = outputs_of(head, teacher, scaling)
    np.testing.assert_allclose(divergence(head, outputs, teacher, scaling), 0, atol=1e-13)
    if head.split:
        shares = at_rest(Head.share_divergence)
        np.testing.assert_allclose(shares(head, outputs, teacher, scaling), 0, atol=1e-12)
        place = np.arange(head.size)
        other = outputs + 0.5 * ((place >= head.targets) & (place < 2 * head.targets))
        assert (shares(head, other, teacher, scaling) > 1e-4).all()
    slope = jax.jit(jax.grad(lambda x: head.loss(x, teacher, scaling).sum()))(outputs)
    np.testing.assert_allclose(slope, 0, atol=1e-8)
    least = np.asarray(loss(head, outputs, teacher, scaling))
    for size in (1e-2, 1.0, 10.0):
        other = outputs + size * RNG.normal(size=outputs.shape)
        assert (loss(head, other, teacher, scaling) > least).all()

    found = head.prediction(outputs, scaling)
    if head.likelihood == "gaussian":
        np.testing.assert_allclose(found.mean, teacher["mean"], rtol=1e-9)
        noise = teacher["noise"]
        if head.noise_variance is None and not head.split:
            assert found.variance is None
            noise = noise + teacher["variance"]
        else:
            np.testing.assert_allclose(found.variance, teacher["variance"], rtol=1e-9)
        np.testing.assert_allclose(found.noise_variance, noise, rtol=1e-9)
        return
    assert found.log_chances is not None and found.entropy is not None
    np.testing.assert_allclose(found.log_chances, teacher["log_chances"], rtol=1e-9, atol=1e-12)
    total = scipy.stats.entropy(np.exp(teacher["log_chances"]), axis=1)
    np.testing.assert_allclose(found.entropy, total)
    assert (found.mutual_information is None) == (not head.split)
    if found.mutual_information is not None:
        np.testing.assert_allclose(found.mutual_information, total - teacher["entropy"], rtol=1e-9)


def test_a_variance_far_below_the_noise_has_a_slope() -> None:
    """In single precision, where the predictive alone no longer depends on it."""
    values = np.array([1.0, 1.002])[:, None, None]  # variance 1e-6 beside noise of one
    head = Head("gaussian", 1, noise_variance=1.0)
    with jax.enable_x64(False):
        teacher = expected(head, values)
        slopes = [
            jax.jit(jax.grad(lambda v, of=of: of(jnp.stack([1.001, v])[None], teacher)[0]))
            for of in (head.divergence, head.loss)
        ]
        at = np.log(1e-6) + np.log(4)  # four times as much as there is
        assert abs(float(slopes[0](np.float32(at)))) < 1e-5
        assert float(slopes[1](np.float32(at))) == pytest.approx(0.375, abs=1e-3)


def test_chances_below_what_a_float32_holds() -> None:
    head = Head("categorical", 2)
    with jax.enable_x64(False):
        teacher = expected(head, np.array([[[0.0, -200.0]], [[0.0, -300.0]]], np.float32))
        assert float(teacher["log_chances"][0, 1]) == pytest.approx(-200 - np.log(2), rel=1e-6)
        for outputs in ([[0.0, -200.0]], [[0.0, -1e5]], [[3e38, -3e38]]):
            array = np.array(outputs, np.float32)
            found = divergence(head, array, teacher), loss(head, array, teacher)
            np.testing.assert_allclose(found, 0, atol=1e-30)
            slope = jax.jit(jax.grad(lambda x: head.loss(x, teacher).sum()))(array)
            assert np.isfinite(slope).all()
        # The other way round it costs what it should.
        worst = np.array([[-1e5, 0.0]], np.float32)
        assert float(divergence(head, worst, teacher)[0]) == pytest.approx(1e5, rel=1e-6)
    found = head.prediction(np.array([[0.0, -80.0]]))
    np.testing.assert_allclose(found.log_predictive([1]), -80)


def test_a_small_divergence_keeps_its_digits_in_single_precision() -> None:
    """Second order: ``½ Σ p δ²`` less the square of the mean change."""
    shift = np.array([[1e-3, -1e-3, 0.0, 2e-3]])
    p = scipy.special.softmax(np.array([[0.0, 1.0, -1.0, 0.5]]), -1)
    q = scipy.special.softmax(np.log(p) + shift, -1)
    truth = np.sum(p * (np.log(p) - np.log(q)))
    with jax.enable_x64(False):
        teacher = {"log_chances": np.log(p).astype(np.float32)}
        outputs = (np.log(p) + shift).astype(np.float32)
        found = float(Head("categorical", 4).divergence(outputs, teacher)[0])
    assert found == pytest.approx(truth, rel=2e-3)


def test_values_near_a_thousand_keep_their_variance_in_single_precision() -> None:
    values = 1000 + 0.01 * RNG.normal(size=(50, 3, 1))
    with jax.enable_x64(False):
        found = averages("gaussian", values.astype(np.float32))
    np.testing.assert_allclose(found["variance"], values.var(0), rtol=0.02)
    np.testing.assert_allclose(found["mean"], values.mean(0), rtol=1e-7)


def test_a_teacher_without_uncertainty_leaves_finite_losses() -> None:
    head = Head("gaussian", 1, True, 1.0)
    with jax.enable_x64(False):
        teacher = expected(head, np.ones((1, 2, 1), np.float32))
        for log_v in (-200.0, -1e30, 80.0, 1e30):
            outputs = np.array([[1.5, log_v], [1.0, log_v]], np.float32)
            both = jax.jit(jax.value_and_grad(lambda x: head.loss(x, teacher).sum()))
            value, slope = both(outputs)
            assert np.isfinite([value, *np.ravel(slope)]).all() and (np.square(slope) < 1e30).all()
    found = head.prediction(np.array([[1.0, -200.0]]), None).variance
    assert found is not None
    np.testing.assert_allclose(found, FLOOR)


def test_densities_of_values() -> None:
    head = Head("gaussian", 2, True, 0.3)
    outputs, y = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 2))
    found = head.prediction(outputs, SCALING)
    variance = np.exp(outputs[:, 2:]) * [100, 0.01] + 0.3
    mean = outputs[:, :2] * [10, 0.1] + [3, -1]
    direct = scipy.stats.norm(mean, np.sqrt(variance)).logpdf(y).sum(1)
    np.testing.assert_allclose(found.log_predictive(y), direct, rtol=1e-9)


def test_units_may_be_found_while_training_runs() -> None:
    """A scaling whose arrays are traced, as a run that learns them has it, in single precision."""
    head = VALUES[-1]
    teacher = expected(head, drawn(head))
    outputs = RNG.normal(size=(5, head.size))

    @jax.jit
    def both(shift: Any, scale: Any, outputs: Any, teacher: Any) -> Any:
        scaling = Scaling(y_shift=shift, y_scale=scale)
        return head.loss(outputs, teacher, scaling), head.divergence(outputs, teacher, scaling)

    direct = loss(head, outputs, teacher, SCALING), divergence(head, outputs, teacher, SCALING)
    with jax.enable_x64(False):
        single = lambda x: np.asarray(x, np.float32)
        arguments = SCALING.y_shift, SCALING.y_scale, outputs, teacher
        found = both(*jax.tree.map(single, arguments))
    np.testing.assert_allclose(found, direct, rtol=1e-3)


@pytest.mark.parametrize(
    "arguments",
    [("poisson", 2), ("categorical", 1), ("bernoulli", 2), ("gaussian", 0),
     ("categorical", 3, False, 0.1), ("gaussian", 1, False, -1.0)],
)  # fmt: skip
def test_heads_that_there_are_none_of(arguments: Any) -> None:
    with pytest.raises(UsageError):
        Head(*arguments)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(StructureError, match=r"outputs of shape \(5, 3\)"):
        Head("categorical", 3, split=True).prediction(np.zeros((5, 3)))
    fields = types.SimpleNamespace(likelihood="categorical", targets=3, split=1e-320)
    with pytest.raises(UsageError, match="split=1e-320"):
        Head.__post_init__(fields)  # which no check of annotations comes before
