"""A few of the random problems, and what is made of their figures."""

import json
import math

import numpy as np
import pytest

from experiments.robustness import mixtures, problems, processors, run, situations
from experiments.robustness.problems import Problem
from experiments.robustness.unfinished import unfinished
from posterity.families import DiagonalGaussian, Gaussian
from posterity.models import LogisticRegression


def raw(diagonal, mean, scale, separable):
    """Three sites of 12 records with an intercept: one program for all."""
    rng = np.random.default_rng(7)
    sites = {}
    for name in "abc":
        x = mean + scale * rng.normal(size=12)
        y = x > mean if separable else rng.random(12) < 0.5
        sites[name] = np.column_stack([np.ones(12), x]), y.astype(float)
    family = DiagonalGaussian if diagonal else Gaussian
    prior = family.from_standard(np.zeros(2), np.full(2, 4.0) if diagonal else 4 * np.eye(2))
    kind = f"logistic, {'diagonal' if diagonal else 'full'}"
    return Problem(kind, LogisticRegression(), sites, prior, {})


@pytest.mark.parametrize("diagonal", [False, True])
def test_raw_columns(diagonal):
    """Findings: every visit "updated", and the mean off by a factor of ten thousand."""
    for mean, scale, separable in [(130.0, 15.0, False), (1e4, 0.01, True)]:
        row = run.judged(raw(diagonal, mean, scale, separable))
        assert row["status"] == "converged", row
        assert abs(row["gap"]) < 1e-3, row


ALIKE = {"Poisson": 70, "negative binomial": 11, "Student": 7, "ordinal": 8, "Laplace": 24}
"""Seeds of problems whose sites are of one or two sizes: few programs each."""


@pytest.mark.experiment
@pytest.mark.parametrize("kind", ALIKE)
def test_naive_likelihoods(kind):
    assert set(ALIKE) == set(problems.NAIVE)
    seed = ALIKE[kind]
    row = run.judged(problems.naive(seed))
    assert row["kind"] == kind
    assert row["status"] == "converged" and abs(row["gap"]) < 0.02, row


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.experiment if seed in (5, 8) else pytest.mark.slow)
        for seed in range(5, 11)
    ],
)
def test_what_users_write(seed):
    """Softmax, zero-inflated, Weibull, a product of parameters, a mixture, and NumPy alone."""
    row = run.judged(problems.users(seed))
    if row["kind"].startswith("NumPy"):
        assert row["status"] == "SiteError" and "jax.numpy" in row["why"]
    else:
        several = row["kind"].startswith(("bilinear", "mixture"))
        # Second starts may end early, within their budget: the status says so.
        expected = ["converged", "converged to one of several"] if several else ["converged"]
        assert row["status"] in expected
        assert abs(row["gap"]) < run.WRONG, row


def test_a_run_goes_on_where_it_ended_and_counts(tmp_path, monkeypatch):
    seen = []

    def judged(problem):
        seen.append(problem.kind)
        return {"kind": "some", "about": {}, "status": "converged", "why": "", "gap": 0.2}

    monkeypatch.setattr(run, "judged", judged)
    run.run(count=2, results=tmp_path, group="naive")
    found = run.run(count=3, results=tmp_path, group="naive")
    assert len(seen) == 3
    assert found["counts"]["all"] == {"converged, wrong": 3, "problems": 3}
    assert found.items() <= json.loads((tmp_path / "naive.json").read_text()).items()


def test_situations_are_judged_by_their_truth() -> None:
    """A regression's pooled posterior is exact; what differs and is not warned of is silent."""
    rows = [{"seed": seed, **situations.judged(situations.situation(seed))} for seed in (1, 8, 9)]
    assert [situations.verdict(row) for row in rows] == ["right"] * 3
    made = mixtures.columns(np.random.default_rng(0)), mixtures.moved(np.random.default_rng(1))
    assert [situations.verdict(situations.judged(one)) for one in made] == [
        "right", "right, warned of sites that differ"
    ]  # fmt: skip
    apart = {**rows[0], "differs": 20.0}
    assert situations.verdict(apart) == "right, not told of"
    missed = {**apart, "wrong": ["sites differ"]}
    warned = {**missed, "heard": ["a site contradicts the others"]}
    found = situations.summary([*rows, missed, warned], "1, 8, 9")
    assert found["counts"]["all"] == {
        "right": 3, "wrong, silent": 1, "right, warned of sites that differ": 1
    }  # fmt: skip
    assert found["silent"] == [1] and not found["goals"][0]["met"]


@pytest.mark.experiment
def test_how_far_a_run_is_astray_may_not_be_known_but_is_no_error():
    row = unfinished(320)  # whose way to the optimum leads where rates overflow
    assert row["state"] == "not converged" and row["said"] == math.inf


@pytest.mark.experiment
def test_results_of_two_processors_are_compared(tmp_path):
    """In settings that any machine can run."""
    where = {"results": tmp_path, "cache": tmp_path / "cache"}
    kinds = {"verbs": ("fuse", "federate", "pursue", "distill"), "count": 1}
    found = processors.run(settings=("this-machine", "many-threads"), **kinds, **where)
    assert [own["problems"] for own in found["verbs"].values()] == [1, 1, 1, 1]
    assert all(goal["met"] for goal in found["goals"])
    one, other = {"components": {"": 2}}, {"components": {"": 3}}
    none = [tmp_path / "none", tmp_path / "nor"]
    assert processors.compared("fuse", one, other, none) == (["components"], 0.0)
    far = {"gap": 0.5, "tolerance": 0.01}
    near = {"gap": 0.1, "tolerance": 0.01}
    assert processors.compared("distill", near, far, none)[0] == ["posterior"]
