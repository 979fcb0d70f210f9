"""Whether a student's uncertainty is of use: the parts, and a run of a few rounds."""

import json
import warnings

import jax
import numpy as np
import pytest
from pictures import shows_data

from experiments.dark_knowledge import utility, utility_report
from experiments.dark_knowledge import utility_bandit as bandit
from experiments.dark_knowledge import utility_labels as labels
from experiments.dark_knowledge import utility_networks as networks


def test_rows_of_zeros_say_nothing():
    own = labels.problem(0, utility.QUICK.labels)
    x, y = networks.filled(own.x[:20], own.y[:20], (16, 64, 128))
    assert x.shape == (64, 65) and y.dtype == np.int32
    z = np.random.default_rng(0).normal(size=labels.NET.size).astype(np.float32)
    with jax.enable_x64(False):
        total = lambda z, n: labels.NET.log_likelihood(z, (x[:n], y[:n])).sum()
        both = jax.jit(jax.value_and_grad(total), static_argnums=1)
        (less, first), (more, second) = both(z, 20), both(z, 64)
        slopes, constant = [np.asarray(first), np.asarray(second)], float(more - less)
    assert np.abs(slopes[0]).max() > 1
    np.testing.assert_allclose(slopes[1], slopes[0], atol=1e-4)
    assert constant == pytest.approx(-44 * np.log(10), rel=1e-5)


def test_information_is_what_draws_disagree_about():
    sure, torn = 50 * np.eye(3)[:2], np.zeros((2, 3))
    found = labels.informed(
        np.stack([np.stack([s, t, sure[0]]) for s, t in zip(sure, torn, strict=True)])
    )
    # Draws that are sure of different classes; that are torn alike; that agree.
    np.testing.assert_allclose(found, [np.log(2), 0, 0], atol=1e-6)


def test_the_wheel_pays_where_it_says():
    x = np.array([[0.1, 0.1], [0.7, 0.7], [-0.7, 0.7], [0.7, -0.7], [-0.7, -0.7]])
    assert bandit.pays(x).argmax(1).tolist() == [0, 1, 2, 3, 4]
    assert bandit.pays(x)[1:].max(1).tolist() == [bandit.FAR] * 4
    rng = np.random.default_rng(0)
    some = bandit.contexts(4000, rng)
    far = np.linalg.norm(some, axis=1) > bandit.RADIUS
    chance = 1 - bandit.RADIUS**2
    assert abs(far.mean() - chance) < 4 * (chance * (1 - chance) / 4000) ** 0.5
    # What a student hears has the columns that decisions have.
    heard = np.asarray(bandit.anywhere(jax.random.key(0), 500)).reshape(500, bandit.ARMS, 3)
    arms = heard[:, :, 2].argmax(1)
    context = heard[np.arange(500), arms, :2]
    np.testing.assert_allclose(bandit.features(context, arms), heard.reshape(500, -1), atol=1e-6)
    assert (np.bincount(arms, minlength=5) > 60).all() and np.linalg.norm(context, axis=1).max() < 1


def test_verdicts_can_fail():
    scores = {"s": [0.5, 0.6, 0.7], "t": [0.9, 0.95, 0.99], "o": [0.4, 0.7, 0.7]}
    behind, better = utility_report.verdicts("accuracy", scores, "s", "t", ("o",))
    assert not behind["met"] and not better["met"]
    behind, better = utility_report.verdicts("regret", scores, "s", "t", ("o",), -1)
    assert behind["met"] and not better["by more than two standard errors"]


@pytest.mark.experiment
def test_a_few_rounds_run_and_are_kept(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = utility.run(utility.QUICK, tmp_path, tmp_path)
    assert json.loads((tmp_path / "utility.json").read_text())["goals"] == found["goals"]
    assert shows_data(tmp_path / "utility.png")
    asks, decides = found["active learning"], found["bandit"]
    assert asks["labels"] == [20, 30, 40]
    first = [own["mean"][0] for own in asks["accuracy"].values()]
    assert len(set(first)) == 1  # all begin with the same labels, and are judged by the same model
    for own in asks["accuracy"].values():
        assert own["mean"][-1] > 0.3  # chance is 0.1
    # The student says of images what its own teacher says of them, as far as so few steps go.
    own = asks["student against its own teacher, on images of the pool"]
    assert own["correlation"] > 0.3
    assert asks["time"]["ratio"] > 3
    share = {m: own["mean"] for m, own in decides["regret at the end, % of uniform's"].items()}
    assert share[bandit.STUDENT] < 90 and share[bandit.TEACHER] < 90
    # Nothing is run twice.
    monkeypatch.setattr(labels, "run", None)
    monkeypatch.setattr(bandit, "run", None)
    assert len(utility.rows("labels", utility.QUICK, tmp_path)) == len(labels.METHODS)
