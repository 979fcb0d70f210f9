"""Scores of predictions beside those of R and scikit-learn."""

import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from posterity.tabular.scores import auroc, calibration, concordance

SCRIPT = """
if (!requireNamespace("survival", quietly = TRUE)) quit(status = 3)
library(survival)
t <- read.csv("t.csv")
right <- concordance(Surv(time, event) ~ risk, t, reverse = TRUE)$concordance
late <- concordance(Surv(entry, time, event) ~ risk, t, reverse = TRUE)$concordance
cat(sprintf("[%.15g, %.15g]", right, late))
"""


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
@pytest.mark.parametrize("seed", range(3))
def test_concordance_is_that_of_r(seed, tmp_path):
    """With equal times, equal risks, censoring and delayed entry."""
    rng = np.random.default_rng(seed)
    risk = rng.integers(0, 12, 300) / 4.0
    time = np.ceil(8 * rng.exponential(np.exp(-risk / 2))) + 1
    event = (rng.random(300) < 0.7) * 1.0
    entry = np.floor(rng.uniform(0, 0.9, 300) * time)
    table = pd.DataFrame({"risk": risk, "time": time, "event": event, "entry": entry})
    table.to_csv(tmp_path / "t.csv", index=False)
    command = ["Rscript", "-e", SCRIPT]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if run.returncode == 3:
        pytest.skip("R has no package survival")
    theirs = json.loads(run.stdout)
    ours = [concordance(time, event, start, risk) for start in (0 * entry, entry)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_areas_are_those_of_scikit_learn_with_ties():
    rng = np.random.default_rng(0)
    y = 1 * (rng.random(500) < 0.3)
    p = np.round(rng.random(500) + 0.2 * y, 1)
    assert auroc(y, p) == pytest.approx(roc_auc_score(y, p), rel=1e-12)


@pytest.mark.parametrize("shares", [(0.2, 0.5, 0.6), (0.2, 0.5, 0.6, 0.0, 0.9, 1.0), (0.5,)])
def test_records_of_one_prediction_are_of_one_group_in_any_order(shares):
    """A table that is sorted by the outcome is no worse calibrated."""
    p = np.repeat(shares, 100)
    y = np.concatenate([np.arange(100) < 100 * share for share in shares]) * 1.0
    p *= 1 + np.finfo(float).eps * np.random.default_rng(0).normal(size=len(p))
    for order in (np.arange(len(p)), np.arange(len(p))[::-1]):
        found = calibration(y[order], p[order])
        assert [own["records"] for own in found] == [100] * len(shares)
        assert [own["observed"] for own in found] == pytest.approx(sorted(shares), abs=1e-12)
