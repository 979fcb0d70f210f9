"""The benchmarks run and say what they should; nothing here looks at how fast anything is."""

import json
import re

import numpy as np
import pytest

from benchmarks import fusion, plan
from benchmarks.goals import judge
from benchmarks.growth import at_most, exponent
from benchmarks.launch import Effort, launch
from benchmarks.problems import Shape, draw

pytestmark = pytest.mark.timeout(900)  # processes start slowly where many tests run at once


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmarks") / "quick.json"
    fusion.main(["--quick", "--output", str(output)])
    return json.loads(output.read_text()), output


def test_quick_run_is_complete_and_every_point_ran(quick):
    result, _ = quick
    points = [result["large"], *result["comparison"]["points"]]
    points += [point for series in result["series"] for point in series["points"]]
    assert result["complete"]
    assert {point["status"] for point in points} == {"finished"}
    assert all(1 <= p["found"] <= p["sites"] * p["components"] for p in points if "found" in p)


def test_quick_run_states_times_memory_and_conditions(quick):
    result, _ = quick
    for point in result["series"][0]["points"]:
        assert point["wall_s"] > 0 and point["cpu_s"] > 0 and point["peak_bytes"] >= 0
        assert point["input_bytes"] == point["sites"] * 10 * 8 * (1 + 1 + 2 + 4)
    assert "concurrency_optimized" in result["settings"]["environment"]["XLA_FLAGS"]
    assert len(result["settings"]["source_sha256"]) == 64
    assert "3 sites" in result["settings"]["warm_up"]


def test_quick_run_compares_with_the_reference_on_the_same_inputs(quick):
    (row,) = quick[0]["comparison"]["summary"]
    (point,) = quick[0]["comparison"]["points"]
    ratio = point["reference"]["cpu_s"] / point["posterity"]["cpu_s"]
    assert row["ratio_cpu"] == pytest.approx(ratio)
    assert point["reference"]["allowed"] >= point["globals"]


def test_quick_run_judges_goals_and_draws(quick):
    result, output = quick
    assert len(result["goals"]) == 4
    assert all(goal["met"] in (True, False, None) for goal in result["goals"])
    assert output.with_suffix(".png").stat().st_size > 10_000


def test_what_does_not_finish_or_fails_is_recorded():
    shape = Shape("NormalWishart", 50, 50, 5)
    late = launch("growth", shape, Effort(runs=1, budget=0.0, limit=1))
    assert late["status"] == "did not finish" and late["limit_s"] == 1 and late["sites"] == 50
    failed = launch("growth", Shape("Nobody", 2, 2, 2), Effort(runs=1, budget=0.0, limit=60))
    assert failed["status"] == "failed" and "Nobody" in failed["error"][0]


def test_goals_that_were_not_reached_in_time_are_not_met():
    late = {"status": "did not finish", "sites": 9, "components": 8, "family": "F", "dimension": 7}
    comparison, large = judge([], [], late)
    assert comparison["met"] is None
    assert large["met"] is False and re.search("9 sites x 8 F", large["goal"])


def test_exponent_is_that_of_a_power_law_over_the_upper_half():
    x = np.array([1, 2, 4, 8, 16, 32, 64, 128], float)
    y = np.where(x < 16, 5.0, x**1.5)
    fit = exponent(x, y)
    assert fit["points"] == 4
    assert fit["exponent"] == pytest.approx(1.5) and fit["standard_error"] < 1e-9
    assert at_most(fit, 1.5 + 1e-9) and not at_most(fit, 1.4)
    assert exponent([1, 2], [1, 2])["exponent"] is None


@pytest.mark.parametrize("family", ["NormalWishart", "DiagonalGaussian"])
def test_problems_are_what_their_shape_says(family):
    sites = draw(Shape(family, 4, 6, 3), seed=0)
    assert [site.size for site in sites] == [6] * 4
    assert all(site.members.is_proper().all() for site in sites)
    again = draw(Shape(family, 4, 6, 3), seed=0)
    assert np.array_equal(sites[3].members.natural_parameters, again[3].members.natural_parameters)


def test_full_plan_covers_the_goals():
    full = plan.full(limit=1, threads=1)
    assert Shape("NormalWishart", 10, 10, 2) in full.compared
    assert full.large == Shape("NormalWishart", 1000, 50, 10)
    ranges = {(s.factor, s.base.family): (s.values[0], s.values[-1]) for s in full.series}
    assert ranges["sites", "NormalWishart"] == (5, 5000)
    assert ranges["components", "NormalWishart"] == (3, 200)
    assert ranges["dimension", "DiagonalGaussian"] == (2, 1000)
