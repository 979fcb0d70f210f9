"""``python -m examples.story``: its commands and its Python do the same, and a page shows both."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import posterity
from examples import story
from posterity.errors import MissingExtraError, UsageError

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/cookbook/story.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What the commands wrote, and what their Python did."""
    commands, python = tmp_path_factory.mktemp("commands"), tmp_path_factory.mktemp("python")
    for stale in story.STAYING:  # as an earlier run leaves them
        (commands / stale).write_text("{}")
    (commands / story.CONFIGURATION).write_text(story.FEDERATION)
    told = story.tell(commands, print)
    assert [step["command"] for step in told] == [step.command for step in story.STEPS]
    # What the page says of them: of the first model it is not known how far one shot is.
    heart, lives = [step["printed"] for step in told if step["command"][:4] == "fuse"][:2]
    assert "the distance of the fusion from the posterior of all records is unknown" in " ".join(
        heart.split()
    )
    (nats,) = re.findall(r"In one shot: about ([\d.]+) nats", lives)
    assert 0.03 < float(nats) < 0.3
    story.write_tables(python)
    code = "\n".join([story.SETUP, *(step.python for step in story.STEPS)])
    subprocess.run([sys.executable, "-c", code], cwd=python, check=True, capture_output=True)
    return commands, python


def law(value):
    return value.posterior if isinstance(value, posterity.Ledger) else value


@pytest.mark.slow
def test_the_python_of_each_step_writes_the_same_files(folders):
    commands, python = folders
    names = {path.name for path in python.glob("*.safetensors")}
    assert {path.name for path in commands.glob("*.safetensors")} == names
    assert len(names) == 18 and (python / "student.onnx").stat().st_size > 1000
    pages = [(folder / "report.html").read_text(encoding="utf-8") for folder in folders]
    assert all("long-beach" in page for page in pages)
    asked = np.load(python / "inputs.npy")
    for name in sorted(names):
        ours, theirs = (law(posterity.load(folder / name)) for folder in folders)
        if name == "student.safetensors":
            ours, theirs = (each.predict(asked).mean for each in (ours, theirs))
            np.testing.assert_allclose(ours, theirs, atol=1e-3)
        else:
            assert abs(ours.kl(theirs)) < 1e-9, name
    heart, fused = (law(posterity.load(commands / f"{n}.safetensors")) for n in ("heart", "fused"))
    assert 2.9 < fused.kl(heart) < 3.95 and 2.9 < heart.kl(fused) < 3.95  # as the page says


@pytest.mark.slow
def test_the_receipt_holds_and_a_changed_one_does_not(folders):
    commands, _ = folders
    files = [commands / f"{name}.safetensors" for name in ("heart", "without-long-beach")]
    receipt = posterity.Receipt.load(commands / "receipt.json")
    before, after = map(posterity.load, files)
    assert posterity.verify(receipt, before, after).passed
    assert not posterity.verify(receipt, after, before).passed


def test_tables_hold_every_patient_of_the_published_table(tmp_path):
    story.write_tables(tmp_path)
    lines = [(tmp_path / f"{name}.csv").read_text().splitlines()[1:] for name in story.HOSPITALS]
    assert [len(each) for each in lines] == [303, 294, 123, 200]
    assert sum(line.endswith("yes") for each in lines for line in each) == 509
    lives = [(tmp_path / f"{name}-transplants.csv").read_text() for name in story.HOSPITALS]
    assert sum(text.count("\n") - 1 for text in lives) == 69


def test_the_page_shows_the_commands_and_the_python_that_run():
    shown = [line[2:] for line in PAGE.splitlines() if line.startswith("$ posterity")]
    asked = [f"posterity {step.command}" for step in story.STEPS if step.command]
    assert shown == asked
    assert "$ python -m examples.story" in PAGE
    for step in story.STEPS:
        assert f"```python\n{step.python}\n```" in PAGE
    assert f"```python\n{story.SETUP}```" in PAGE
    assert f"```toml\n{story.FEDERATION.lstrip()}```" in PAGE


@pytest.mark.parametrize("name", ["receipt.json", "cleveland.csv", "heart.toml"])
def test_files_of_somebody_else_stay(name, tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: posterity[demo]")
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=name):
        story.tell(tmp_path, print)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("module", ["onnx", "statsmodels.datasets"])
def test_a_missing_library_is_named(module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"posterity\[demo\]"):
        story.tell(tmp_path, print)
