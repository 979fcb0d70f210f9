"""The page on deployment: its commands run as they stand there, agents and all."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import posterity
from posterity import load
from tests.test_docs import ROOT, answers, blocks, like, script

PAGE = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
TESTED = PAGE.partition("## On three machines")[0]
SECONDS = 840


def lines_of(page: str) -> list[str]:
    """What is typed in the console blocks of a page, a command each."""
    lines = []
    for _, code in blocks(page, "console"):
        lines += [x[2:] for x in code.replace("\\\n", " ").splitlines() if x.startswith("$ ")]
    return lines


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
def test_the_commands_of_the_page_deploy_three_hospitals(tmp_path):
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, arguments in {"python": "", "posterity": " -m posterity"}.items():
        program = bin_ / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{arguments} "$@"\n')
        program.chmod(0o755)
    folder = tmp_path / "reader"
    folder.mkdir()
    source = str(Path(posterity.__file__).parents[1])
    environment = os.environ | {
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": source,
        "COLUMNS": "112",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),  # by one process for all
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    subprocess.run(["python", "-c", script(TESTED)], cwd=folder, env=environment, check=True)
    ending = "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"
    steps = tmp_path / "steps"
    steps.write_text("\n".join(["set -e", ending, *lines_of(TESTED)]) + "\n")
    with open(tmp_path / "told", "w+") as told:  # a pipe would be kept open by who runs on
        done = subprocess.run(
            ["bash", steps], cwd=folder, env=environment, stdout=told, stderr=told,
            timeout=SECONDS, start_new_session=True,
        )  # fmt: skip
        told.seek(0)
        printed = told.read().splitlines()
    logs = "".join(f"\n{log.name}:\n{log.read_text()[-1500:]}" for log in folder.glob("*.log"))
    assert done.returncode == 0, "\n".join(printed[-40:]) + logs
    assert [line for line in answers(TESTED) if not any(map(like(line), printed))] == []
    shared, without = (load(folder / f"{n}.safetensors") for n in ("shared", "without"))
    assert shared.names == without.names == ("intercept", "age", "dose")
    assert shared.precision[0, 0] > without.precision[0, 0]
