"""The benchmark of chains runs and says what it should; nothing here looks at how fast it is."""

import json

import pytest

from benchmarks import distillation, distillation_point

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmarks") / "quick.json"
    distillation.main(["--quick", "--output", str(output)])
    return json.loads(output.read_text())


@pytest.mark.experiment
def test_quick_run_is_complete(quick):
    large, small, student, memory = (quick[part]["points"] for part in distillation.PARTS)
    points = [*large, *small, *student, *memory]
    assert [point.get("error") for point in points if point["status"] != "finished"] == []
    for point in (*small, *large):
        ratios = point["over_langevin_wall"]
        assert ratios["Langevin"] == 1 and ratios.keys() == point["over_langevin_cpu"].keys()
        assert {"gradient", "SGLD in a scan", "SGHMC in a scan"} <= ratios.keys()
    assert student[0]["turns"] == 2 and student[0]["ratio_wall"] > 0
    assert memory[1]["samples"] == 10 * memory[0]["samples"]


@pytest.mark.experiment
def test_quick_run_has_every_peer_or_says_that_it_is_absent(quick):
    for point in quick["small"]["points"]:
        named = (*point["over_langevin_wall"], *point["absent"])
        for peer in ("BlackJAX", "PyTorch", "posteriors"):
            assert any(name.startswith(peer) for name in named) or "PyTorch" in point["absent"]
        assert all("peer absent: no package" in line for line in point["absent"].values())


@pytest.mark.experiment
def test_quick_run_judges_every_goal(quick):
    assert [goal.get("at_least", goal.get("at_most")) for goal in quick["goals"]] == [
        2.5, 1.5, 4.0, 200.0, 2.3, 1.1,
    ]  # fmt: skip
    for goal in quick["goals"]:
        numbers = [goal[clock] for clock in ("wall", "cpu") if clock in goal]
        least, most = goal.get("at_least", 0.0), goal.get("at_most", float("inf"))
        met = None if None in numbers else all(least <= number <= most for number in numbers)
        assert goal["met"] is met, goal
    *_, student, memory = quick["goals"]  # those that need no peer
    assert student["met"] is not None and memory["met"] is not None


def test_goals_need_both_clocks_and_a_peer():
    judged = distillation.judged
    assert judged("a", [3.0, 2.6], at_least=2.5)["met"] is True
    assert judged("a", [3.0, 2.4], at_least=2.5)["met"] is False
    assert judged("a", [1.4, 1.6], at_most=1.5)["met"] is False
    assert judged("a", [None, None], at_most=1.5)["met"] is None
    late = {"status": "did not finish"}
    assert distillation.peers(late) == distillation.inverse(late, "gradient") == [None, None]


def test_fastest_peer_is_a_sampler_of_someone_else():
    ratios = {"Langevin": 1.0, "gradient": 0.8, "SGLD in a scan": 0.9, "BlackJAX in a scan": 5.0,
              "PyTorch loop without noise, 1 thread": 2.0, "posteriors, 1 thread, one chain": 9.0,
              "PyTorch, torch.func.vmap": 7.0}  # fmt: skip
    point = {"over_langevin_wall": ratios, "over_langevin_cpu": ratios}
    assert distillation.peers(point) == [5.0, 5.0]
    assert distillation.peers(point, distillation.ONE_BY_ONE) == [9.0, 9.0]
    assert distillation.inverse(point, "gradient") == [1.25, 1.25]


def test_parts_that_are_not_asked_for_stay_as_they_are(tmp_path, monkeypatch):
    output = tmp_path / "run.json"
    output.write_text('{"small": {"points": [{"chains": 7}]}}')
    monkeypatch.setattr(distillation, "point", lambda *own: {"status": "did not finish"})
    result = distillation.run(distillation.quick(1), output, ["large"])
    assert result["small"] == {"points": [{"chains": 7}]}
    assert {goal["met"] for goal in result["goals"]} == {None}
    assert json.loads(output.read_text()) == result


def test_peers_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setattr(distillation_point.importlib.util, "find_spec", lambda name: None)
    problem = distillation.SMALL
    found = [
        *distillation_point.jax_peers(problem, 0), *distillation_point.torch_peers(problem, 0)
    ]  # fmt: skip
    assert [name for name, _ in found] == ["BlackJAX", "PyTorch"]
    assert all("peer absent" in said for _, said in found)
    assert "peer absent" in distillation_point.posteriors_peer([], None, None)
