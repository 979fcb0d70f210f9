"""The benchmarks run and say what they should; nothing here looks at how fast anything is."""

import json
import re
import sys
import warnings

import numpy as np
import pytest
from pictures import shows_data

from benchmarks import compare, fusion, peers, stream, threads
from benchmarks.growth import at_most, exponent
from benchmarks.launch import Effort, launch
from benchmarks.problems import Shape, draw

pytestmark = pytest.mark.timeout(900)  # processes start slowly where many tests run at once


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(peers.KLFUSION, raising=False)
        patch.delenv(peers.SPAHM, raising=False)
        return run_quickly(tmp_path_factory)


def run_quickly(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmarks") / "quick.json"
    fusion.main(["--quick", "--output", str(output)])
    return json.loads(output.read_text()), output


@pytest.mark.experiment
def test_quick_run_is_complete_and_every_point_ran(quick):
    result, _ = quick
    measured = [*result["targets"]["points"], result["targets"]["command"]]
    for series in (result["targets"]["ladder"], *result["series"]["series"]):
        measured += series["points"]
    assert {point["status"] for point in (*measured, *result["peers"]["points"])} == {"finished"}
    assert all(1 <= p["found"] <= p["sites"] * p["components"] for p in measured)
    assert result["targets"]["command"]["wall_s"] > 0.05


@pytest.mark.experiment
def test_quick_run_states_times_memory_and_conditions(quick):
    part = quick[0]["series"]
    for point in part["series"][0]["points"]:
        assert point["wall_s"] > 0 and point["cpu_s"] > 0 and point["peak_bytes"] >= 0
        assert point["input_bytes"] == point["sites"] * 10 * 8 * (1 + 1 + 2 + 4)
    assert part["settings"]["environment"]["XLA_FLAGS"] == ""
    assert len(part["settings"]["source_sha256"]) == 64
    assert "3 sites" in part["settings"]["warm_up"]


@pytest.mark.experiment
def test_quick_run_compares_with_peers_and_says_which_are_absent(quick):
    part = quick[0]["peers"]
    assert [row["peer"] for row in part["summary"]] == ["klfusion", "spahm"]
    for row, point in zip(part["summary"], part["points"], strict=True):
        ratio = point["peer"]["cpu_s"] / point["posterity"]["cpu_s"]
        assert row["ratio_cpu"] == pytest.approx(ratio)
        assert "peer absent" in row["code"] and "plain rewrite" in row["code"]
        assert point["peer"]["found"] >= 1


@pytest.mark.experiment
def test_quick_run_judges_goals_and_draws(quick):
    result, output = quick
    judged = {part: len(own["goals"]) for part, own in result.items()}
    assert judged == {"peers": 2, "targets": 5, "series": 2}
    for goal in (goal for part in result.values() for goal in part["goals"]):
        sign, limit = re.findall(r"at (least|most) ([\d.]+)", goal["goal"])[-1]
        number = goal.get("measured", goal.get("wall", goal.get("exponent")))
        if number is None:  # a peer is absent, or a point did not finish
            assert goal["met"] in (None, False), goal
        else:
            slack = goal["standard_error"] if "within a standard error" in goal["goal"] else 0.0
            met = number >= float(limit) if sign == "least" else number - slack <= float(limit)
            assert goal["met"] is met, goal
    assert shows_data(output.with_suffix(".png"))


def test_parts_that_are_not_asked_for_stay_as_they_are(tmp_path, monkeypatch):
    output = tmp_path / "run.json"
    output.write_text('{"series": "as before"}')
    monkeypatch.setitem(fusion.PARTS, "peers", lambda plan: {"goals": []})
    result = fusion.run(fusion.quick(1, 1), output, ["peers"])
    assert result["series"] == "as before" and result["peers"]["settings"]["cores"] >= 1
    assert json.loads(output.read_text()) == result


def test_released_code_is_taken_from_the_folder_that_is_named(tmp_path, monkeypatch):
    (tmp_path / "simulation").mkdir()
    code = "def match_local_atoms(local_atoms, **rest):\n    return [0] * 7, None\n"
    (tmp_path / "simulation" / "gaus_marginal_matching.py").write_text(code)
    monkeypatch.setenv(peers.SPAHM, str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    told, call = peers.match_means(draw(Shape("NormalWishart", 2, 2, 2), 0), 0)
    assert (told, call()) == (peers.RELEASED, 7)
    monkeypatch.setenv(peers.KLFUSION, str(tmp_path))
    assert "does not import" in peers.klfusion([], 2, 0)[0]


@pytest.mark.experiment
def test_what_does_not_finish_or_fails_is_recorded():
    shape = Shape("NormalWishart", 1000, 50, 5)
    late = launch("growth", shape, Effort(runs=1, budget=0.0, limit=1))
    assert late["status"] == "did not finish" and late["limit_s"] == 1 and late["sites"] == 1000
    failed = launch("growth", Shape("Nobody", 2, 2, 2), Effort(runs=1, budget=0.0, limit=60))
    assert failed["status"] == "failed" and "Nobody" in failed["error"][0]


def test_goals_that_were_not_reached_in_time_are_not_met():
    target = fusion.Target(Shape("F", 9, 8, 7), 1.0, memory=2.0)
    late = fusion.seconds(target, {"status": "did not finish"})
    assert late["met"] is False and re.search("9 sites x 8 F", late["goal"])
    assert fusion.memory(target, {"status": "did not finish"})["met"] is None
    compared = fusion.Compared("spahm", target.shape, 1, goal=3.0)
    row = fusion.summary(compared, [{"status": "did not finish"}])
    assert fusion.faster(compared, row)["met"] is None


def test_memory_is_judged_in_multiples_of_the_input():
    target = fusion.Target(Shape("F", 9, 8, 7), 1.0, memory=2.0)
    point = {"status": "finished", "peak_bytes": 21, "input_bytes": 10}
    assert fusion.memory(target, point)["met"] is False
    assert fusion.memory(target, point | {"peak_bytes": 20})["met"] is True


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
    full = fusion.full(limit=1, threads=1)
    aims = {(c.peer, c.shape.sites, c.shape.components): c.goal for c in full.compared if c.goal}
    wanted = {("klfusion-40", 10, 10): 2000, ("klfusion", 10, 10): 700, ("spahm", 10, 10): 4}
    assert aims == wanted
    assert full.targets[0] == fusion.Target(Shape("NormalWishart", 1000, 50, 10), 0.8)
    assert full.ladder.shapes[-1] == full.top.shape
    ranges = {(s.factor, s.base.family): (s.values[0], s.values[-1]) for s in full.series}
    assert ranges["sites", "NormalWishart"] == (5, 5000)
    assert ranges["components", "NormalWishart"] == (3, 200)
    assert ranges["dimension", "DiagonalGaussian"] == (2, 1000)


def test_a_stream_that_did_not_finish_misses_its_goals():
    batches = [{"sites": sites, "status": "did not finish"} for sites in stream.SITES]
    found = stream.goals({"batches": batches, "beside_memory": {"cost_off": 0.0}})
    assert [goal["met"] for goal in found] == [False, False, True]


@pytest.mark.experiment
def test_quick_run_beside_a_busy_process_judges_every_point(tmp_path):
    threads.main(["--quick", "--output", str(tmp_path / "quick.json")])
    result = json.loads((tmp_path / "quick.json").read_text())
    assert {point["status"] for point in result["points"]["points"]} == {"finished"}
    assert len(result["goals"]) == 2 * len(threads.QUICK)
    assert all(goal["met"] == (goal["found"] <= goal["at_most"]) for goal in result["goals"])


def test_a_comparison_tells_what_differs_in_numbers_and_in_warnings(tmp_path, capsys):
    def call(number, text):
        warnings.warn(text, stacklevel=1)
        return {"mean": np.array([1.0, number]), "rule": "product"}

    files = [tmp_path / name for name in ("before.json", "same.json", "after.json")]
    made = [compare.outcome(lambda n=n, t=t: call(n, t)) for n, t in ((2, "x"), (2, "x"), (3, "y"))]
    for file, one in zip(files, made, strict=True):
        file.write_text(json.dumps({"fuse/0": one}))
    assert compare.diff(files[0], files[1]) == 0
    assert compare.diff(files[0], files[2]) == 1
    said = capsys.readouterr().out
    assert "[mean]: by 0.33 of its size" in said and "warns: UserWarning: y" in said
