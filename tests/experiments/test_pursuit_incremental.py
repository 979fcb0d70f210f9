"""A small version of the experiment on tasks in a row: drawn bars for digits, a tiny network."""

import json

import numpy as np
import pytest

from experiments.data import Digits
from experiments.pursuit import incremental
from experiments.pursuit.incremental import Job, Runner, Setting, measured
from posterity.networks import Layers

SIDE, CLASSES = 12, 10
SETTING = Setting(
    layers=Layers.dense(SIDE * SIDE, 16, CLASSES), network_images=400, network_tests=150,
    steps=30, batch=40, variance=0.05, draws=1, coreset=20, copies=1, width=60, cells=4, epochs=3,
)  # fmt: skip


METHODS = [name for name in incremental.METHODS if name != "fine-tuning"]
"""What is left out is EWC without its penalty."""


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bars, a direction a class, somewhere near the middle, with noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=count)
    places = np.stack(np.meshgrid(*[np.arange(SIDE) - (SIDE - 1) / 2] * 2), -1)
    angle = np.pi * y / CLASSES
    across = places @ np.stack([np.sin(angle), -np.cos(angle)]) + rng.normal(size=count)
    x = np.exp(-(across**2)) + 0.05 * rng.uniform(size=across.shape)
    return np.moveaxis(x, -1, 0).astype(np.float32), y


def images() -> Digits:
    """In place of MNIST."""
    return Digits(*drawn(800, 0), *drawn(300, 1))


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """All methods on one set, some of them twice."""
    cache = tmp_path_factory.mktemp("cache")
    runner = Runner(SETTING, cache, {"mnist": images})
    for job in incremental.jobs(METHODS, ["mnist"], [0], ["forth"]):
        runner.run(job)
    for order in ("back", "forth"):  # the second from its file
        runner.run(Job("conjugate", "mnist", 0, order))
    found = incremental.report(SETTING, cache, cache / "results")
    assert (cache / "results" / "incremental.png").exists()
    written = json.loads((cache / "results" / "incremental.json").read_text())
    assert found.items() <= written.items()
    return found


@pytest.mark.experiment
def test_every_method_has_a_curve_and_the_rules_win(summary: dict) -> None:
    table = summary["after each task"]["mnist"]
    assert table.keys() == set(METHODS)
    last = {method: own["forth"]["accuracy"][-1] for method, own in table.items()}
    # 300 tests: a standard error of at most 3 points; chance is 10 %.
    assert last["conjugate"] > 85
    assert last["conjugate"] > last["EWC"] + 20
    assert last["gated"] > last["mixture, even"]
    assert all(len(own["forth"]["accuracy"]) in (1, 5) for own in table.values())


@pytest.mark.experiment
def test_the_order_of_tasks_does_not_matter_at_the_end(summary: dict) -> None:
    own = summary["after each task"]["mnist"]["conjugate"]
    for kind in ("accuracy", "log loss"):
        assert own["forth"][kind][-1] == own["back"][kind][-1]
    assert own["forth"]["seeds"] == [0]
    assert {row["goal"].split(":")[0] for row in summary["goals"]} == {
        "mnist, gated", "mnist, conjugate", "mnist, coreset, deformed"
    }  # fmt: skip


def test_forgetting_is_checked_bit_by_bit() -> None:
    found = incremental.forgetting(SETTING, images())
    assert set(found.popitem()[1].values()) == {True}


def test_losses_are_among_the_classes_seen() -> None:
    logs = np.log([[0.2, 0.2, 0.6], [0.1, 0.3, 0.6]])
    found = measured(logs, np.array([0, 1]), [0, 1])
    assert found["accuracy"] == 100.0 or found["accuracy"] == 50.0
    assert found["log loss"] == pytest.approx(-np.log([0.5, 0.75]).mean(), abs=1e-4)


def test_the_joint_regression_is_the_best_there_is() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2)).astype(np.float32)
    y = (rng.uniform(size=2000) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(int)
    logs = incremental.peers.softmax_regression(x, y, x, 2, epochs=40, rate=0.02)
    np.testing.assert_allclose(np.exp(logs).sum(1), 1, atol=1e-6)
    slope = np.polyfit(x[:, 0], logs[:, 1] - logs[:, 0], 1)[0]
    # The information of a record on the slope is E[p (1 - p) x²], about 0.1.
    assert abs(slope - 2) < 4 / (2000 * 0.1) ** 0.5
