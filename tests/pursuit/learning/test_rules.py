"""The other rules: what they share with the conjugate one, and what each is for."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posterity
from posterity.errors import LedgerError, ParameterError, PosterityError, StructureError, UsageError
from posterity.networks import Layers
from posterity.pursuit.learning import (
    ConjugateLearner,
    Learner,
    MixtureLearner,
    ReplayLearner,
    learner,
)
from posterity.pursuit.learning.deformations import deformed
from posterity.pursuit.learning.gradients import oriented_gradients
from tests.pursuit.learning.tasks import CLASSES, FEATURES, records, tasks

LAYERS = Layers.dense(2, 12, CLASSES)
NETWORK: dict[str, Any] = {
    "layers": LAYERS, "prior_variance": 1.0, "steps": 150, "batch": 40, "draws": 4
}  # fmt: skip
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gated": ("gated", NETWORK | {"gate": ConjugateLearner(CLASSES, FEATURES)}),
    "even": ("mixture", NETWORK),
    "kl": ("mixture", NETWORK | {"weights": "kl"}),
    "coreset": ("mixture", NETWORK | {"weights": "coreset", "coreset": 10}),
    "replay": ("replay", {"classes": CLASSES, "features": FEATURES}),
}
X, Y = records(200, seed=9)


@functools.cache
def learned(name: str) -> Learner:
    """After all three tasks."""
    rule, options = OPTIONS[name]
    found = learner(rule, **options)
    for task, (x, y) in tasks().items():
        found = found.observe(task, x, y)
    return found


def same(one: Learner, other: Learner) -> bool:
    """Whether two predict the same, bit for bit."""
    return np.array_equal(one.predict(X).log_chances, other.predict(X).log_chances)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("even", "kl"))) for name in OPTIONS],
)
def test_order_and_forgetting_leave_no_trace(name: str, tmp_path: Path) -> None:
    rule, options = OPTIONS[name]
    given = tasks()
    other = learner(rule, **options)
    for task in ("mixed", "low"):
        other = other.observe(task, *given[task])
    left = learned(name).forget("high")
    assert same(left, other)
    assert left.tasks == ("low", "mixed")
    assert np.array_equal(left.counts, other.counts)
    posterity.save(left, tmp_path / "learner.safetensors")
    back = posterity.load(tmp_path / "learner.safetensors")
    assert back.tasks == left.tasks
    assert same(back, left)


@pytest.mark.parametrize("name", OPTIONS)
def test_bad_input_is_refused(name: str) -> None:
    rule, options = OPTIONS[name]
    found, zeros = learned(name), np.zeros(len(X), int)
    with pytest.raises(UsageError, match="knows no task"):
        learner(rule, **options).predict(X)
    with pytest.raises(LedgerError, match="second task"):
        found.observe("low", X, zeros)
    with pytest.raises(LedgerError, match="does not know"):
        found.forget("lower")
    with pytest.raises(ParameterError):
        found.observe("new", X, zeros + CLASSES)
    with pytest.raises(ParameterError):
        found.observe("new", X * np.nan, zeros)
    with pytest.raises(StructureError):
        found.observe("new", X[:, :1], zeros)
    with pytest.raises(StructureError):
        found.predict(X[:, :1])
    with pytest.raises(ParameterError):
        found.predict(X * np.inf)


def test_weights_that_depend_on_the_input_beat_constant_ones() -> None:
    pairs = {k: tasks(400)[k] for k in ("low", "high")}
    loss = {}
    for name in ("gated", "even", "kl", "coreset"):
        rule, options = OPTIONS[name]
        found = learner(rule, **options)
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


def test_rules_are_named_and_options_checked() -> None:
    assert isinstance(learner(classes=3), ConjugateLearner)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("best", {"classes": 3}),
        ("conjugate", {"layers": LAYERS}),
        ("mixture", NETWORK | {"weights": "best"}),
        ("mixture", NETWORK | {"coreset": 3}),
        ("mixture", NETWORK | {"weights": "coreset"}),
        ("mixture", NETWORK | {"layers": Layers.dense(2, 1)}),
        ("mixture", NETWORK | {"steps": 0}),
        ("gated", NETWORK | {"gate": ConjugateLearner(CLASSES + 1)}),
        ("replay", {"classes": CLASSES, "coreset": 0}),
    ]
    for rule, options in wrong:
        with pytest.raises(PosterityError):
            learner(rule, **options)


def test_images_are_learned_from_gradients_and_replayed_deformed() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=60)
    x = np.zeros((60, 16, 16))
    for image, label, place in zip(x, y, rng.integers(2, 14, 60), strict=True):
        image[(place, slice(2, 14)) if label else (slice(2, 14), place)] = 1.0
    for rule in ("conjugate", "replay"):
        found = learner(rule, classes=2, **({"copies": 2} if rule == "replay" else {}))
        found = found.observe("bars", x[:40], y[:40])
        assert (found.predict(x[40:]).mean.argmax(1) == y[40:]).mean() > 0.9
    again = deformed(x[:3], 2, seed=1)
    assert again.shape == (9, 16, 16)
    assert np.array_equal(again, deformed(x[:3], 2, seed=1))
    assert again.min() >= 0 and again.max() <= 1
    # Turned by a quarter, strengths are those of directions a quarter on.
    upright = oriented_gradients(x[:3], 4, 8).reshape(3, 8, 4, 4)
    turned = oriented_gradients(np.rot90(x[:3], axes=(1, 2)), 4, 8).reshape(3, 8, 4, 4)
    np.testing.assert_allclose(
        np.roll(np.rot90(upright, axes=(2, 3)), -2, axis=1), turned, atol=1e-4
    )
