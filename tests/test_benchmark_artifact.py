"""The benchmark of files runs and says what it should; nothing here looks at how fast it is."""

import json

import pytest

from benchmarks import artifact

pytestmark = pytest.mark.timeout(900)


@pytest.mark.experiment
def test_quick_run_is_complete_and_judges_every_goal(tmp_path):
    artifact.main(["--quick", "--output", str(tmp_path / "quick.json")])
    result = json.loads((tmp_path / "quick.json").read_text())
    points = [result["package"], result["memory"], *result["ledgers"]]
    assert {point["status"] for point in points} == {"finished"}
    assert len(result["goals"]) == 10
    assert all(goal["met"] == (goal["found"] <= goal["at_most"]) for goal in result["goals"])
