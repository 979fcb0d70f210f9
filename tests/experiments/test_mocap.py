"""The experiment of motion capture, on sequences of a few known states."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from experiments.data import mocap6
from experiments.klfusion import mocap
from posterity.errors import IdentificationWarning
from tests.hidden_chains import MEANS, draw


@pytest.mark.experiment
def test_two_people_who_share_movements_are_labelled_alike(tmp_path: Path) -> None:
    """Small and easy: every way to fuse finds the states; without fusion they are counted twice."""
    first, z_first = draw(MEANS[[0, 1, 2]], (60, 50, 40), seed=0)
    second, z_second = draw(MEANS[[1, 2, 3]], (60, 50, 40), seed=1)
    sequences = mocap.standardised(first + second)
    human = np.concatenate([*z_first, *(z + 1 for z in z_second)])
    setting = mocap.Setting(states=4, degrees=5.0, spread=0.1, restarts=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdentificationWarning)
        local = {
            name: mocap.fit(sequences[rows], setting, 0, tmp_path, name)
            for name, rows in mocap.SITES.items()
        }
        pooled = mocap.fit(sequences, setting, 0, tmp_path, "pooled")
        again = mocap.fit(sequences, setting, 0, tmp_path, "pooled")
        found = mocap.labellings(local, pooled, sequences, 0)
    assert again == pooled
    rows = {name: mocap.scores(labels, human) for name, labels in found.items()}
    for name in (mocap.FUSED, mocap.ROUND):
        assert rows[name]["adjusted Rand"] > 0.95 > rows[mocap.ALONE]["adjusted Rand"]
    summary = mocap.summarise([rows, rows])
    assert summary["methods"][mocap.FUSED]["AMI"]["values"] == [rows[mocap.FUSED]["AMI"]] * 2
    assert summary["goal"][mocap.FUSED]["adjusted Rand"][f"above {mocap.ALONE}"]


@pytest.mark.data
def test_motion_capture_is_whole() -> None:
    data = mocap6()
    assert data.X.shape == (2058, 12) and data.labels.shape == (2058,)
    assert [len(x) for x in data.sequences] == [382, 205, 251, 446, 387, 387]
    assert set(data.labels.tolist()) == set(range(12)) and len(data.action_names) == 12
