"""The tests as on other processors: what is imitated, and what is told of failures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import processors
import pytest


@pytest.mark.parametrize("name", ["this-machine", "Prescott", "users-flags"])
def test_variables_reach_the_libraries(name: str) -> None:
    setting = processors.SETTINGS[name]
    if not setting.possible:
        assert "skipped" in processors.line(name, None)
        return
    code = "import os, processors; print(processors.instructions()[1], os.environ['XLA_FLAGS'])"
    given = {**os.environ, "XLA_FLAGS": "", **setting.environment(processors.FAST)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=given, cwd=Path(__file__).parent, text=True,
        stdout=subprocess.PIPE, check=True,
    ).stdout  # fmt: skip
    assert found.startswith("[]") or not setting.without
    assert ("--xla_cpu_max_isa=SSE4_2" in found) == (name == "Prescott")


@pytest.mark.slow
def test_failures_are_named_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processors, "RESULTS", tmp_path / "results")
    (tmp_path / "test_threads.py").write_text(
        "import os\ndef test_threads():\n    assert os.environ['OPENBLAS_NUM_THREADS'] == '1'\n"
    )
    options = f"-q -n 0 -c {tmp_path}/none.ini --rootdir {tmp_path} {tmp_path}/test_threads.py"
    (tmp_path / "none.ini").touch()
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert processors.main(["many-threads", "this-machine", "--options", options]) == 1
    table = json.loads((tmp_path / "results" / "table.json").read_text())
    assert [row["passed"] for row in table.values()] == [False, True]
    (failed,) = table["many-threads"]["failed"]
    assert failed.endswith("test_threads.py::test_threads")
    assert "test_threads.py::test_threads" in capfd.readouterr().out
    assert processors.main(["this-machine", "--options", options]) == 0
    with pytest.raises(SystemExit):
        processors.main(["Pentium"])
