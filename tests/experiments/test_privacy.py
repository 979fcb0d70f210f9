"""The experiment on noise: that it runs, and that what is written down was found so."""

import json

import numpy as np
import pytest

from experiments.data import heart_disease
from experiments.heart.preparation import prepare
from experiments.privacy import run as experiment


@pytest.mark.experiment
def test_one_seed_orders_methods_as_they_must_be():
    noise = dict.fromkeys(experiment.EPSILONS, 50.0) | {8.0: 1e-6}
    found = experiment.one_seed(0, heart_disease(), noise, 1)
    auroc = {name: each["AUROC"] for name, each in found["scores"].items()}
    assert auroc["federated"] > 0.85 and 0.4 < auroc["prior"] < 0.6
    assert auroc["record, each, 8"] == pytest.approx(auroc["record, clip 0.2, no noise"], abs=1e-3)
    assert auroc["record, each, 1"] < auroc["record, each, 8"]
    assert found["attack"]["8"] > 0.9 > 0.7 > found["attack"]["1"]


def test_a_hospital_releases_no_more_than_its_patients_contributions():
    splits = prepare(heart_disease(), seed=0)
    made = experiment.mechanism("record", 0.05)
    rows = np.random.default_rng(0).normal(size=(81, experiment.PRIOR.dimension))
    assert len(splits[experiment.SMALL].y_train) + len(splits[experiment.SMALL].y_test) < 189
    (total,) = np.atleast_2d(made.release(rows).natural_parameters) @ made.root
    assert np.linalg.norm(total) <= 81 * 0.05


def test_what_is_written_down_has_every_method_and_says_what_it_cost():
    found = json.loads((experiment.PLACE.results / "expected.json").read_text())
    scores = found["results"]["scores"]
    for unit in experiment.CLIPS:
        for shares in ("each", "shared"):
            for epsilon in experiment.EPSILONS:
                each = scores[f"{unit}, {shares}, {epsilon:g}"]["AUROC"]
                assert each["count"] == experiment.SEEDS and 0.3 < each["mean"] < 1
    assert scores["federated"]["AUROC"]["mean"] > scores["record, shared, 1"]["AUROC"]["mean"]
    assert found["results"]["attack"]["no noise"]["mean"] > 0.9
    assert {goal["met"] for goal in found["goals"]} <= {True, False}
