"""Couriers of engines, without an engine: what they import, and how they find an agent."""

import subprocess
import sys

import pytest

from posterity.engine.transports.unix import SITE, agent_here, no_agent


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_process_of_a_job_takes_no_memory_for_what_only_agents_need():
    code = (
        "import sys, posterity.engine.transports.unix;"
        "heavy = ('jax', 'numpy', 'scipy', 'networkx', 'cryptography');"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run(code).stdout.strip() == "[]"


@pytest.mark.parametrize(("engine", "package"), [("nvflare", "nvflare"), ("flower", "flwr")])
def test_without_an_engine_its_extra_is_named(engine, package):
    code = (
        f"import sys; sys.modules[{package!r}] = None; import posterity.engine.transports.{engine}"
    )
    assert f"pip install 'posterity[{engine}]'" in run(code).stderr


def test_a_courier_finds_the_agent_by_the_environment_and_says_so_where_there_is_none(
    monkeypatch, tmp_path
):
    monkeypatch.delenv(SITE, raising=False)
    assert agent_here() is None
    assert "POSTERITY_SITE=FOLDER" in str(no_agent("north"))
    monkeypatch.setenv(SITE, str(tmp_path))
    assert agent_here() == tmp_path / "site.sock"
