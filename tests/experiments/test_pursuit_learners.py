"""The peers of the conjugate rule: networks of tasks and kept records."""

import functools
from typing import Any

import numpy as np
import pytest

from experiments.pursuit.image_features import ImageFeatures, oriented_gradients
from experiments.pursuit.learners import Learner
from experiments.pursuit.replay import ReplayLearner, deformed
from experiments.pursuit.task_mixtures import GatedLearner, MixtureLearner
from posterity.networks import Layers
from posterity.pursuit.learning import ConjugateLearner
from tests.pursuit.learning.tasks import CLASSES, FEATURES, records, tasks

LAYERS = Layers.dense(2, 12, CLASSES)
NETWORK: dict[str, Any] = {
    "layers": LAYERS, "prior_variance": 1.0, "steps": 150, "batch": 40, "draws": 4
}  # fmt: skip
START: dict[str, Learner] = {
    "gated": GatedLearner(**NETWORK, gate=ConjugateLearner(CLASSES, FEATURES)),
    "even": MixtureLearner(**NETWORK),
    "kl": MixtureLearner(**NETWORK, weights="kl"),
    "coreset": MixtureLearner(**NETWORK, weights="coreset", coreset=10),
    "replay": ReplayLearner(CLASSES, features=FEATURES),
}
X, Y = records(200, seed=9)


@functools.cache
def learned(name: str) -> Learner:
    """After all three tasks."""
    learner = START[name]
    for task, (x, y) in tasks().items():
        learner = learner.observe(task, x, y)
    return learner


def same(one: Learner, other: Learner) -> bool:
    """Whether two predict the same, bit for bit."""
    return np.array_equal(one.predict(X).log_chances, other.predict(X).log_chances)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.experiment] * (name in ("even", "kl")))
        for name in START
    ],
)
def test_order_and_forgetting_leave_no_trace(name: str) -> None:
    given = tasks()
    other = START[name]
    for task in ("mixed", "low"):
        other = other.observe(task, *given[task])
    left = learned(name).forget("high")
    assert same(left, other)
    assert left.tasks == ("low", "mixed")
    assert np.array_equal(left.counts, other.counts)


def test_weights_that_depend_on_the_input_beat_constant_ones() -> None:
    pairs = {k: tasks(400)[k] for k in ("low", "high")}
    loss = {}
    for name in ("gated", "even", "kl", "coreset"):
        found = START[name]
        for task, (x, y) in pairs.items():
            found = found.observe(task, x, y)
        loss[name] = -found.predict(X).log_predictive(Y).mean()
    # A constant weight of one half costs log 2 on every record, but for what networks leave open.
    assert loss["gated"] < 0.4
    assert min(loss["even"], loss["coreset"], loss["kl"]) > loss["gated"] + 0.2


def test_the_divergence_gives_all_weight_to_one_task() -> None:
    kl = learned("kl")
    assert isinstance(kl, MixtureLearner)
    assert kl.constant_weights.max() > 0.99
    even = learned("even")
    assert isinstance(even, MixtureLearner)
    np.testing.assert_allclose(even.constant_weights, 1 / 3)


def test_replay_keeps_few_records_and_all_classes() -> None:
    replay = learned("replay")
    assert isinstance(replay, ReplayLearner)
    assert max(len(y) for _, y in replay.kept.values()) <= 20 * CLASSES
    assert (replay.predict(X).mean.argmax(1) == Y).mean() > 0.9


@pytest.mark.experiment
def test_images_are_replayed_deformed() -> None:
    x, y = bars()
    found = ReplayLearner(2, features=ImageFeatures((16, 16)), copies=2).observe(
        "bars", x[:40], y[:40]
    )
    assert (found.predict(x[40:]).mean.argmax(1) == y[40:]).mean() > 0.9
    again = deformed(x[:3], 2, seed=1)
    assert again.shape == (9, 16, 16)
    assert np.array_equal(again, deformed(x[:3], 2, seed=1))
    assert again.min() >= 0 and again.max() <= 1


def bars() -> tuple[np.ndarray, np.ndarray]:
    """Images of one line, and which way it goes."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=60)
    x = np.zeros((60, 16, 16))
    for image, label, place in zip(x, y, rng.integers(2, 14, 60), strict=True):
        image[(place, slice(2, 14)) if label else (slice(2, 14), place)] = 1.0
    return x, y


@pytest.mark.experiment
def test_images_are_learned_from_gradients() -> None:
    x, y = bars()
    found = ConjugateLearner(2, ImageFeatures((16, 16))).observe("bars", x[:40], y[:40])
    assert (found.predict(x[40:]).mean.argmax(1) == y[40:]).mean() > 0.9


def test_gradients_turn_with_their_image() -> None:
    x, _ = bars()
    # Turned by a quarter, strengths are those of directions a quarter on.
    upright = oriented_gradients(x[:3], 4, 8).reshape(3, 8, 4, 4)
    turned = oriented_gradients(np.rot90(x[:3], axes=(1, 2)), 4, 8).reshape(3, 8, 4, 4)
    np.testing.assert_allclose(
        np.roll(np.rot90(upright, axes=(2, 3)), -2, axis=1), turned, atol=1e-4
    )
