"""Small versions of the MNIST table and of the pipeline, on digits that come with scikit-learn."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from pictures import shows_data
from sklearn.datasets import load_digits

import posterity
from experiments.dark_knowledge import mnist, pipeline
from experiments.dark_knowledge.mnist_run import Between, Falling, Flat, Seed, Setting
from experiments.dark_knowledge.moved import Moved
from experiments.data import Digits
from experiments.harness import Place
from experiments.klfusion.networks.local_fits import Case

pytestmark = pytest.mark.experiment  # a run of each, in minutes

SMALL = Setting(
    hidden=(40, 40), variances=(0.1, 0.1, 0.2), first=1e-3, last=5e-4, fall=500, climb=200,
    burn_in=500, thin=2, draws=1000, plug_in=700,
)  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> Digits:
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32).reshape(-1, 8, 8), y.astype(np.int64)
    return Digits(x[:1300], y[:1300], x[1300:], y[1300:])


@pytest.fixture(scope="module")
def flat(digits: Digits) -> Flat:
    """The digits, and as strange images others with their pixels in disorder."""
    x_train, x_test = (x.reshape(len(x), -1) for x in (digits.x_train, digits.x_test))
    shuffled = np.random.default_rng(0).permuted(x_test[:200], axis=1)
    return Flat(x_train, digits.y_train, x_test, digits.y_test, {"disorder": shuffled})


@pytest.fixture(scope="module")
def run(flat: Flat, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp("mnist")
    small = {"_setting": SMALL, "_images": flat}
    summary = mnist.run(Place(folder, folder / "cache"), seeds=(0,), **small)
    return summary, folder


# --- the table -------------------------------------------------------------------------------


def test_student_is_as_good_as_its_chain(run: tuple[dict, Path], flat: Flat) -> None:
    table = run[0]["test"]
    errors = {method: own["error"]["mean"] / 100 for method, own in table.items()}
    # 497 images: two proportions near 5 % differ by chance by up to three standard errors of 1 %.
    assert len(flat.y_test) == 497
    assert errors["SGLD"] < 0.09
    assert abs(errors["distilled"] - errors["SGLD"]) < 0.03
    levels = {method: own["log likelihood"]["mean"] for method, own in table.items()}
    assert levels["distilled"] > -0.35 and levels["SGLD"] > -0.35


def test_strange_images_are_told(run: tuple[dict, Path]) -> None:
    for method in ("SGLD", "distilled"):
        areas = run[0]["strange"][method]
        assert areas["AUROC by entropy"]["disorder"]["mean"] > 0.8
        assert areas["AUROC by mutual information"]["disorder"]["mean"] > 0.8


def test_results_say_what_was_done(run: tuple[dict, Path]) -> None:
    summary, folder = run
    assert summary.items() <= json.loads((folder / "mnist.json").read_text()).items()
    row = summary["runs"][0]
    assert row["chain steps"] == row["of"] == 500 + 2 * 1000
    assert row["curve"][-1]["SGLD"] == row["SGLD"]["error"]
    steps = [point["chain steps"] for point in row["curve"]]
    assert steps == sorted(steps) and len(steps) >= 10
    assert summary["seeds finished"] == 1
    assert {own["met"] for own in summary["goals"]} <= {True, False}
    assert shows_data(folder / "mnist-curve.png")
    assert shows_data(folder / "mnist-strange.png")


def test_a_run_that_is_there_is_read(run: tuple[dict, Path], flat: Flat) -> None:
    summary, folder = run
    small = {"_setting": SMALL, "_images": flat}
    again = Place(folder / "again", folder / "cache")
    assert mnist.run(again, seeds=(0,), **small) == summary
    known = mnist.run(dataclasses.replace(again, only_kept=True), seeds=(0, 7), **small)
    assert [row["seed"] for row in known["runs"]] == [0]


class Stopped(Exception):
    pass


def test_a_run_that_was_stopped_comes_to_the_same(
    run: tuple[dict, Path], flat: Flat, tmp_path: Path
) -> None:
    whole = run[0]["runs"][0]
    said = []

    def stop(text: str) -> None:
        said.append(text)
        if len(said) == 5:
            raise Stopped

    with pytest.raises(Stopped):
        Seed(0, SMALL, flat, tmp_path).run(stop)
    row = Seed(0, SMALL, flat, tmp_path).run(said.append)
    for method in ("plug-in", "SGLD", "distilled"):
        for kind in ("error", "log likelihood"):
            assert row[method][kind] == whole[method][kind]
    assert [p["chain steps"] for p in row["curve"]] == [p["chain steps"] for p in whole["curve"]]


def test_student_file_predicts_what_was_measured(run: tuple[dict, Path], flat: Flat) -> None:
    student = posterity.load(run[1] / "cache" / "seed0-student.safetensors")
    wrong = student.predict(flat.x_test).mean.argmax(1) != flat.y_test
    assert 100 * wrong.mean() == pytest.approx(run[0]["runs"][0]["distilled"]["error"], abs=5e-4)


def test_sizes_fall_and_stay() -> None:
    sizes = Falling(1.0, 0.25, over=100)
    assert [float(sizes(step)) for step in (0, 50, 100, 1000)] == pytest.approx(
        [1, 0.5, 0.25, 0.25]
    )


def test_half_of_inputs_are_between_two() -> None:
    x = np.eye(50, dtype=np.float32)
    found = np.asarray(Between(x, noise=0.0).sample(200, key=jax.random.key(0)))
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    assert (found[:100].max(1) == 1).all()
    assert (found[100:].max(1) < 1).mean() > 0.9
    squares = np.eye(49, dtype=np.float32)
    found = np.asarray(Between(squares, noise=0.0, bent=0.5).sample(200, key=jax.random.key(0)))
    assert (found[:50].max(1) == 1).all() and (found[100:].max(1) < 1).mean() > 0.9


# --- the pipeline ----------------------------------------------------------------------------


def test_moved_images_are_moved_a_little(digits: Digits) -> None:
    inputs = Moved(digits.x_train[:1], move=0.0, turn=0.0, slant=0.0, stretch=0.0)
    same = np.asarray(inputs.sample(3, key=jax.random.key(0)))
    np.testing.assert_allclose(same, digits.x_train[:1].reshape(1, -1).repeat(3, 0), atol=1e-6)
    inputs = Moved(digits.x_train[:1], move=1.0)
    bent = np.asarray(inputs.sample(50, key=jax.random.key(0)))
    assert bent.min() >= 0 and bent.max() <= 1 and bent.std(0).max() > 0.1


def test_a_fused_network_is_distilled_without_the_sites_images(
    digits: Digits, tmp_path: Path
) -> None:
    # What is public here: a part of the images that no site has, without labels.
    sites = dataclasses.replace(digits, x_train=digits.x_train[300:], y_train=digits.y_train[300:])
    effort = pipeline.Effort(steps=1500, rate=3e-3)
    case = Case(sites=3, widths=(20,), steps=400)
    arguments = {
        **{"fits": tmp_path, "place": Place(tmp_path, tmp_path / "rows")},
        **{"_case": case, "_effort": effort, "_digits": sites, "_public": digits.x_train[:300]},
        "inputs": ("uniform noise", "fonts, perturbed"),
    }
    summary = pipeline.run(partitions=(0,), **arguments)
    table = summary["table"]
    assert table["concatenation"]["units"] == 60
    student = table["fonts, perturbed"]
    assert student["units"] <= 60
    fused = table[pipeline.FUSED]["accuracy"]["mean"]
    # 497 test images: the standard error of a proportion of 10 % is 1.4 %.
    assert student["accuracy"]["mean"] > fused - 4
    assert table["uniform noise"]["accuracy"]["mean"] > 10
    assert pipeline.run(partitions=(0,), **arguments)["table"] == table
