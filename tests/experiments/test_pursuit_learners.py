"""Features and deformations of images, and classes in pairs on optical digits."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import harness
from experiments.continual import run as continual
from experiments.pursuit.image_features import (
    ImageFeatures,
    deformed,
    kept_records,
    oriented_gradients,
)
from posterity.pursuit.learning import ConjugateLearner


def test_few_records_of_each_class_are_kept_and_deformed_alike() -> None:
    x, y = bars()
    few, labels = kept_records(x, y, 10)
    assert np.bincount(labels).tolist() == [10, 10]
    again = deformed(few[:3], 2, seed=1)
    assert again.shape == (9, 16, 16)
    assert np.array_equal(again, deformed(few[:3], 2, seed=1))
    assert np.array_equal(again[:3], few[:3].astype(np.float32)) and again.min() >= 0


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


def test_pairs_of_optical_digits_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By fewer random units than in the results that are kept, in the same form."""
    monkeypatch.setattr(continual, "WIDTH", 200)
    arguments = ["--seeds", "0", "--data", "optical digits"]
    harness.command(continual.run, [*arguments, "--results", str(tmp_path)])
    written, ours = (
        json.loads((folder / "unseen.json").read_text())["after five tasks"]["optical digits"]
        for folder in (continual.PLACE.results, tmp_path)
    )
    assert ours.keys() == written.keys()
    accuracy = {name: row["accuracy"]["mean"] for name, row in ours.items()}
    peers = accuracy["ridge, pixels"], accuracy["streaming LDA, pixels"]
    assert accuracy["conjugate learner"] > max(peers) + 1 > 90  # of 359 test records
    assert ours["conjugate learner"]["log loss"]["mean"] < 0.2


def test_gradients_turn_with_their_image() -> None:
    x, _ = bars()
    # Turned by a quarter, strengths are those of directions a quarter on.
    upright = oriented_gradients(x[:3], 4, 8).reshape(3, 8, 4, 4)
    turned = oriented_gradients(np.rot90(x[:3], axes=(1, 2)), 4, 8).reshape(3, 8, 4, 4)
    np.testing.assert_allclose(
        np.roll(np.rot90(upright, axes=(2, 3)), -2, axis=1), turned, atol=1e-4
    )
