"""A wheel, installed into an empty environment away from the repository: `make test-wheel`."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITTEN = {"fused.safetensors", "matching.png", "report.json"} | {
    f"site-{letter}.safetensors" for letter in "abcdef"
}
# Building and installing fetch packages, which takes minutes where none is cached.
pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(Path(sys.executable), "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def run(*command: str | Path, folder: Path | None = None) -> str:
    """What the command prints, run in ``folder`` without this environment's paths."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    source = ROOT / "src"
    code = [p for ending in ("*.py", "*.css", "*.js", "py.typed") for p in source.rglob(ending)]
    data = (source / "posterity/cli/data").iterdir()  # of `posterity demo --full`
    package = {str(p.relative_to(source)) for p in (*code, *data)}
    assert {name for name in names if ".dist-info/" not in name} == package


def test_installed_wheel_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    bin = tmp_path / "env" / "bin"
    run(bin / "python", "-m", "pip", "install", f"posterity[demo] @ {wheel.as_uri()}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    printed = run(bin / "posterity", "demo", "--output", "found", folder=elsewhere)
    assert "mutual information" in printed
    assert {path.name for path in (elsewhere / "found").iterdir()} == WRITTEN
