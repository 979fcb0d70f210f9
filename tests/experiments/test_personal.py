"""The parts of the experiment on partial pooling, without fitting anything."""

import json

import numpy as np
import pytest

from experiments.personal.run import PLACE, STUDIES, summarise
from experiments.personal.studies import SPREADS, made, writers


def test_sites_are_the_same_at_every_spread_but_for_their_coefficients():
    first, second = made(SPREADS[0], 3), made(SPREADS[-1], 3)
    assert all((first[site].x_test == second[site].x_test).all() for site in first)
    assert any((first[site].y_test != second[site].y_test).any() for site in first)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_image_trains_or_is_held_out(seed):
    study = writers(seed)
    assert len(study) == 35
    for split in study.values():
        assert split.x_train.shape == split.x_test.shape == (25, 7)
        together = np.concatenate([split.x_train, split.x_test])
        assert len(np.unique(together, axis=0)) == 50


def test_a_verdict_compares_with_the_better_by_seed():
    scores = [
        {"pooled": -0.5, "local": -0.7, "partial pooling": -0.49},
        {"pooled": -0.6, "local": -0.8, "partial pooling": -0.58},
    ]
    found = summarise({"study": [{"log likelihood": seed} for seed in scores]})["study"]
    assert found["better of pooled and local"] == "pooled"
    gain = found["partial pooling less the better"]
    assert (gain["mean"], gain["standard error"]) == pytest.approx((0.015, 0.005))
    assert found["better, by more than one standard error of the difference"]
    assert found["at least as good, within one standard error of the log likelihood"]


def test_results_are_of_all_studies():
    expected = json.loads((PLACE.results / "expected.json").read_text())
    assert set(expected["results"]) == set(STUDIES)
