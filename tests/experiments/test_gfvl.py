"""Parts of figures 3 to 5, small: theory of times, the floor, the fixed point, forgetting."""

import json
from pathlib import Path

import numpy as np
import pytest
from pictures import shows_data
from scipy import integrate
from scipy.special import expit

from experiments.gfvl import conjugate, report, run, waiting
from experiments.gfvl.problem import (
    AGENTS,
    COIN_PRIOR,
    COMMON_WAIT,
    GRAPHS,
    LEAVER,
    LEAVERS_WAIT,
    QUICK,
    WAITING_PRIOR,
    WaitingPosterior,
    coins,
    waiting_times,
    without_leaver,
)
from experiments.gfvl.report import Curve, first_within
from experiments.harness import Place
from posterity import Beta

pytestmark = pytest.mark.experiment


@pytest.fixture(scope="module")
def target() -> WaitingPosterior:
    return WaitingPosterior.of(WAITING_PRIOR, waiting_times(0).values())


def test_figure3_is_written_and_agrees_with_theory(tmp_path: Path) -> None:
    run.run(Place(tmp_path), quick=True, figures=("3",))
    found = json.loads((tmp_path / "expected.json").read_text())
    (goal,) = found["figure 3"]["goals"]
    # Three independent z scores: a chance of one in a thousand, but for fixed keys.
    assert max(map(abs, goal["z scores"].values())) < 3.5
    kl = found["figure 3"]["KL after slots"]["complete"]
    # Against the prototype's 0.29, which had other data: means over data sets spread.
    assert abs(kl["10"]["mean"] - 0.29) < 4 * kl["10"]["standard error"] + 0.03
    assert kl["200"]["mean"] < 1e-9
    assert shows_data(tmp_path / "figure3.png")


def test_divergence_vanishes_once_all_agents_were_met() -> None:
    sites = coins(3)
    flips = np.concatenate(list(sites.values()))
    prior = np.array([COIN_PRIOR.a, COIN_PRIOR.b], float)
    end = Beta(*(prior - 1 + [flips.sum(), flips.size - flips.sum()]))
    trial = type("Trial", (), {"posteriors": end})
    assert conjugate.divergence(trial, sites) == pytest.approx(0.0, abs=1e-10)  # pyright: ignore


def test_reference_is_a_density_and_kl_its_integral(target: WaitingPosterior) -> None:
    a, b = 480.0, 470.0
    peak = target.mode + np.linspace(-1.5, 1.5, 20_001)
    p = np.exp(target.log_density_of_logit(peak) - target.log_evidence)
    assert integrate.trapezoid(p, peak) == pytest.approx(1.0, abs=1e-9)
    q = Beta.from_standard(a, b)
    z = expit(peak)
    log_q = np.asarray(q.log_prob(z)) + np.log(z * (1 - z))
    log_p = target.log_density_of_logit(peak) - target.log_evidence
    direct = integrate.trapezoid(np.exp(log_q) * (log_q - log_p), peak)
    assert float(target.kl(np.array(a), np.array(b))) == pytest.approx(direct, rel=1e-5)


def test_no_beta_is_below_the_floor_and_neighbours_are_above(target: WaitingPosterior) -> None:
    a, b = target.best
    steps = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [5, 5], [-5, -5]], float)
    around = target.kl(a + steps[:, 0], b + steps[:, 1])
    assert (around > target.floor).all() and target.floor > 0
    assert np.isinf(target.kl(np.array(0.9), np.array(2.0)))


def test_iteration_ends_at_the_floor() -> None:
    found = run.fixed_point()
    assert found["KL of the iteration's end"] == pytest.approx(found["floor"], rel=1e-5)
    assert found["its Beta"] == pytest.approx(found["best Beta"], rel=1e-4)


def test_forgetting_needs_refinement_and_two_sweeps_do() -> None:
    sites = waiting_times(0, COMMON_WAIT, LEAVERS_WAIT)
    rest = WaitingPosterior.of(WAITING_PRIOR, without_leaver(sites).values())
    found = waiting.sweeps(sites, rest)
    ratios = [found[f"forget, {n} sweeps"]["KL over floor"] for n in range(3)]
    assert ratios[0] > 100 > 3 > ratios[1] > ratios[2]
    assert ratios[2] == pytest.approx(1.0, abs=0.01)


def test_covers_are_counted_from_when_the_factor_left() -> None:
    order = [k for k in range(10) if k != waiting.LEFT]
    walked = np.array([[waiting.LEFT, *order, order[0], waiting.LEFT]])
    assert waiting.covered(walked, np.array([0])) == [10]
    assert waiting.covered(walked, np.array([3]))[0] > waiting.AFTER
    assert GRAPHS["star"].neighbours_of(LEAVER) == (AGENTS[0],)


def test_curves_and_goals() -> None:
    kl = np.array([[4.0, 2.0, 1.0], [8.0, 1.0, 1.0]])
    curve = Curve(kl, np.array([0, 2, 4]), steps=3)
    assert curve.at([2])["2"] == {
        "mean": 1.5,
        "standard error": 0.5,
        "90 % of repetitions": [1.05, 1.95],
    }
    assert list(curve.at([5, 12], unit="iterations")) == ["5", "12"]
    assert first_within(kl, 1.5, curve.visits).tolist() == [4, 2]
    assert np.isnan(first_within(kl, 0.5, curve.visits)).all()
    assert curve.diverged == 0.0 and Curve(kl * 100, curve.visits).diverged == 1.0
    low = {"mean": 29.0, "standard error": 0.1}
    assert report.few_hops({waiting.DEFAULT: low}, low)["met"]
    assert not report.few_hops({waiting.DEFAULT: low}, {**low, "mean": 30.5})["met"]
    row = {waiting.ONE_COVER: {"mean": 1.4, "standard error": 0.1}, waiting.TWO_COVERS: {}}
    assert not report.forgotten({"case": {"how": row}})["met"]
    assert not report.theory({"ring": {"cover time": {"z": -2.5}}})["met"]


def test_brief_runs_leave_variants_out() -> None:
    assert list(QUICK.some(GRAPHS, "ring")) == ["ring"]
