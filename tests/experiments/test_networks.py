"""A small version of the networks' experiment, on digits that come with scikit-learn."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from pictures import shows_data
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from experiments.data import Digits
from experiments.harness import Place
from experiments.klfusion.networks import apart, deep, methods
from experiments.klfusion.networks.local_fits import HORSESHOE, Case, partition
from experiments.klfusion.networks.methods import (
    class_weights,
    fisher_information,
    matched_average,
)
from experiments.klfusion.networks.predictions import (
    alone,
    auroc,
    calibration_error,
    concatenation,
    drawn,
    entropy,
    logits,
    scores,
)
from experiments.klfusion.networks.run import HORSESHOE_ROW, MAIN, Effort, Study, every_study, run
from posterity.families import Network
from posterity.networks import Conv, Dense, Layers

pytestmark = pytest.mark.experiment

PARTS = ("locals", "together", "fused", "capped", "rounds", "options", "averages")


@pytest.fixture(scope="module")
def digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8)
    labels = labels.astype(np.int64)
    return Digits(images[:1300], labels[:1300], images[1300:], labels[1300:])


# --- partitions ------------------------------------------------------------------------------


def test_every_image_is_at_one_site(digits: Digits) -> None:
    rows = partition(digits.y_train, 4, 0.5, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(1300))
    assert min(map(len, rows)) >= 50


def test_concentration_decides_how_much_sites_differ() -> None:
    labels = np.repeat(np.arange(10), 1000)

    def largest(concentration: float) -> float:
        rows = partition(labels, 5, concentration, np.random.default_rng(1))
        return max(np.bincount(labels[own]).max() / len(own) for own in rows)

    assert largest(100.0) < 0.15 < largest(0.1)


# --- metrics ---------------------------------------------------------------------------------


def test_scores_of_a_fair_coin() -> None:
    p, labels = np.full((400, 2), 0.5), np.arange(400) % 2
    found = scores(p, labels)
    assert found.accuracy == 50 and found.calibration == 0
    assert found.log_likelihood == pytest.approx(-np.log(2), rel=1e-12)
    assert found.entropy == pytest.approx(np.log(2), rel=1e-12)


def test_calibration_error_of_who_is_too_sure() -> None:
    p = np.tile([0.9, 0.1], (100, 1))
    labels = (np.arange(100) >= 60).astype(int)  # right in 60 of 100
    assert calibration_error(p, labels) == pytest.approx(0.3, rel=1e-12)


def test_area_is_scikit_learns_and_its_error_that_of_repetitions() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(100):
        usual, strange = rng.normal(size=80), np.round(1 + rng.normal(size=50), 1)
        truth = np.repeat([0, 1], (80, 50))
        area = roc_auc_score(truth, np.concatenate([usual, strange]))
        found.append(auroc(usual, strange))
        assert found[-1].area == pytest.approx(area, abs=1e-12)
    areas, errors = np.array(found).T
    # the deviation of 100 repetitions is known to 1 / sqrt(200)
    assert abs(areas.std() / np.sqrt((errors**2).mean()) - 1) < 4 / np.sqrt(200)


# --- baselines -------------------------------------------------------------------------------


def _network(layers: Layers, seed: int) -> Network:
    rng = np.random.default_rng(seed)
    variance = rng.uniform(0.01, 0.02, layers.size)
    return Network.from_standard(rng.normal(size=layers.size) / 3, variance, layers)


@pytest.mark.parametrize(
    "layers",
    [
        Layers.dense(5, 7, 6, 3),
        Layers(
            (Conv((3, 3), 1, 4, pool=2), Dense(36, 6), Dense(6, 3, "identity")), image=(8, 8, 1)
        ),
    ],
)
def test_matched_average_of_a_network_and_itself_reordered(layers: Layers) -> None:
    q, rng = _network(layers, 0), np.random.default_rng(1)
    other = q
    for index, width in enumerate(layers.widths):
        other = other.relabel(rng.permutation(width), width, axes=(index,))
    found = matched_average([q, other])
    np.testing.assert_allclose(found.mean, q.mean, atol=1e-12)
    np.testing.assert_allclose(found.variance, q.variance, rtol=1e-12)


def test_class_weights_follow_what_was_gained() -> None:
    layers = Layers.dense(4, 3, 2)
    prior = Network.prior(layers, 1.0)
    variance = [np.ones(layers.size), np.ones(layers.size)]
    for own, gained in zip(variance, (3.0, 1.0), strict=True):
        layers.unravel(own)[1]["kernel"][:, 0] = 1 / (1 + gained)
        layers.unravel(own)[1]["kernel"][:, 1] = 1 / 2
    sites = [Network.from_standard(np.zeros(layers.size), v, layers) for v in variance]
    np.testing.assert_allclose(class_weights(sites, [prior, prior]), [[1.5, 1.0], [0.5, 1.0]])


def test_fisher_information_is_that_of_a_softmax() -> None:
    layers = Layers.dense(3, 2)
    q = _network(layers, 0)
    x = np.tile(np.array([[1.0, -2.0, 0.5]], np.float32), (4000, 1))
    found = layers.unravel(fisher_information(q, x, jax.random.key(0)))[0]
    p = alone(q)(x[:1])[0]
    expected = p[0] * p[1]  # of either logit; a mean of 4000 draws
    error = np.sqrt(p[0] * p[1] * (p[0] - p[1]) ** 2 / 4000) + 1e-6
    np.testing.assert_allclose(found["bias"], expected, atol=4 * error)
    np.testing.assert_allclose(found["kernel"], np.outer(x[0] ** 2, found["bias"]), rtol=1e-4)


# --- predictions -----------------------------------------------------------------------------


def test_concatenation_is_the_mean_of_logits() -> None:
    sites = [_network(Layers.dense(4, 6, 3), seed) for seed in range(3)]
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    mean = np.mean([logits(site, x) for site in sites], axis=0)
    p = concatenation(sites)(x)
    np.testing.assert_allclose(np.log(p[:, 1:] / p[:, :1]), mean[:, 1:] - mean[:, :1], atol=1e-5)


def test_draws_agree_with_draws_of_all_weights() -> None:
    q = _network(Layers.dense(4, 6, 3), 0)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    noise = np.random.default_rng(1).normal(size=(1000, q.layers.size))
    first, last = q.layers.unravel(q.mean + np.sqrt(q.variance) * noise)
    hidden = np.maximum(x @ first["kernel"] + first["bias"][:, None], 0)
    each = softmax(hidden @ last["kernel"] + last["bias"][:, None], axis=-1)
    found = drawn(q, jax.random.key(0), 1000)(x)
    assert (np.abs(found - each.mean(0)) < 4.5 * each.std(0) * np.sqrt(2 / 1000)).all()


# --- the run ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> tuple[Path, Path, dict]:
    """Two partitions over two sites, and one under a horseshoe."""
    folder = tmp_path_factory.mktemp("networks")
    own = {"sites": 2, "widths": (16,), "steps": 300}
    chosen = {
        MAIN: Study(Case(**own), 2, PARTS, rare=2),
        HORSESHOE_ROW: Study(Case(setting=HORSESHOE, **own), 1, ("together", "fused")),
    }
    found = _run(chosen, digits, folder)
    return folder / "cache", folder / "results", found


def _run(chosen: dict[str, Study], digits: Digits, folder: Path, study: str = "") -> dict:
    strange = (digits.x_test.transpose(0, 2, 1), digits.y_test)
    small = {"_chosen": chosen, "_digits": digits, "_strange": strange}
    place = Place(folder / "results", folder / "cache")
    return run(place, study=study, **small, _effort=Effort(samples=5, steps=50))


def test_results_are_written_by_the_run(small: tuple[Path, Path, dict]) -> None:
    _, results, found = small
    assert found.items() <= json.loads((results / "networks.json").read_text()).items()
    for figure in (1, 5):
        assert shows_data(results / f"networks-figure{figure}.png")
    assert len(found["goals"]) == 6
    assert all(isinstance(goal["met"], bool) for goal in found["goals"])
    assert found["goals"][0]["measured"]["most"] <= 32  # no more units than sites have


def test_fused_is_near_the_concatenation_and_above_the_sites(
    small: tuple[Path, Path, dict],
) -> None:
    table = small[2]["studies"][MAIN]
    accuracy = {
        name: row["at means"]["accuracy"]["mean"]
        for name, row in table.items()
        if isinstance(row, dict)
    }
    assert accuracy[methods.FUSED] > accuracy["local networks"]
    assert accuracy[methods.FUSED] > accuracy[methods.PLAIN] + 10
    # of 497 images, in two partitions; a difference of one point has an error near one half
    assert accuracy[methods.FUSED] > accuracy[methods.WEIGHTED] - 3


def test_stopped_run_goes_on(small: tuple[Path, Path, dict], digits: Digits) -> None:
    cache, _, found = small
    site = next(cache.glob(f"{Case(sites=2, widths=(16,), steps=300).name}/site0.safetensors"))
    before = site.stat().st_mtime_ns
    own = Case(sites=2, widths=(16,), steps=300)
    chosen = {MAIN: Study(own, 2, PARTS, rare=2)}
    again = _run(chosen, digits, cache.parent)
    assert again["by partition"] == found["by partition"]
    assert site.stat().st_mtime_ns == before


def test_one_study_leaves_the_others_as_they_are(
    small: tuple[Path, Path, dict], digits: Digits
) -> None:
    cache, _, found = small
    own = Case(sites=2, widths=(16,), steps=300, setting=HORSESHOE)
    chosen = {HORSESHOE_ROW: Study(own, 1, ("together", "fused"))}
    again = _run(chosen, digits, cache.parent, HORSESHOE_ROW)
    assert again["studies"] == found["studies"] and again["goals"] == found["goals"]
    assert again["by partition"] == found["by partition"]
    assert f"CPU minutes of {HORSESHOE_ROW} alone" in again


def test_all_studies_have_names_of_their_own_fits() -> None:
    found = every_study()
    assert found[MAIN].partitions == 10 and HORSESHOE_ROW in found
    cases = [study.case.name for study in found.values()]
    assert len(set(cases)) == len(cases)


def test_entropy_has_its_bounds() -> None:
    p = np.array([[1.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(entropy(p), [0, np.log(2)], atol=1e-12)


# --- deep ------------------------------------------------------------------------------------


def test_lenet_has_its_sizes() -> None:
    layers = deep.lenet()
    assert layers.widths == (6, 16, 120, 84)
    assert layers.size == 61_706


def test_deep_networks_are_fused_and_compared(tmp_path: Path, digits: Digits) -> None:
    small = Layers(
        (Conv((3, 3), 1, 4, padding="same", pool=2), Dense(64, 12), Dense(12, 10, "identity")),
        image=(8, 8, 1),
    )
    chosen = {"small": deep.Deep(small, 1300, 100)}
    small = {"networks": ("small",), "sites": (2,), "_chosen": chosen, "_digits": digits}
    found = deep.run(Place(tmp_path, tmp_path), **small)
    assert found.items() <= json.loads((tmp_path / "deep.json").read_text()).items()
    rows = found["networks"]["small, 2 sites"]
    assert rows[deep.RAISED]["widths"] == [8, 24]
    assert rows[deep.RAISED]["accuracy"] > rows[methods.PLAIN]["accuracy"]


# --- sites that disagree ---------------------------------------------------------------------


def test_predictions_of_sites_that_disagree_are_measured_and_go_on(
    tmp_path: Path, digits: Digits
) -> None:
    chosen = {"Dirichlet(0.5)": [Case(0.5, n, 2, widths=(16,), steps=300) for n in range(2)]}
    strange = {"noise": np.random.default_rng(0).random((200, 8, 8), np.float32)}
    small = {"_chosen": chosen, "_digits": digits, "_strange": strange}
    place = Place(tmp_path, tmp_path / "cache")
    found = apart.run(place, **small)
    assert found.items() <= json.loads((tmp_path / "apart.json").read_text()).items()
    rows = found["studies"]["Dirichlet(0.5)"]["by partition"]
    assert len(rows) == 2 and set(rows[0]) == {
        apart.ENSEMBLE, apart.AT_MEAN, apart.DRAWS, apart.OURS
    }  # fmt: skip
    assert all(row[apart.OURS]["accuracy"] > row[apart.DRAWS]["accuracy"] - 5 for row in rows)
    assert len(found["goals"]) == 3
    assert apart.run(place, **small) == found
