import os
from pathlib import Path

import numpy as np
import pytest
from cli.commands import ledger, plate
from cli.configurations import CONJUGATE, COUNTS, LOGISTIC

import posterity
from posterity import cli
from posterity.families import Gamma, Mixture, NormalWishart, Plate


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder of its own, in which the test runs: tests see what a command leaves behind."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Posteriors of some sites, where the test runs."""
    monkeypatch.delenv(cli.DEBUG, raising=False)
    posterity.save(ledger("north", 0.0, 5.0), "n.safetensors")
    posterity.save(ledger("south", 5.1, 0.1), "s.safetensors")
    posterity.save(ledger("east", 9.0, 5.2, 0.2, 20.0, 30.0), "e.safetensors")
    posterity.save(plate([0.0, 5.0], 50.0, 0.5), "plain.safetensors")
    return tmp_path


@pytest.fixture
def strange(files):
    """The same folder, and in it what commands must not take."""
    members = NormalWishart.from_standard(np.zeros((1, 3)), [1.0], np.eye(3)[None], [5.0])
    Path("sub").mkdir()
    for name, posterior in {
        "other": plate([0.1, 5.1], 50.0, 0.5),
        "sub/plain": plate([1.0], 50.0, 1.0),
        "improper": -plate([0.0, 5.0], 50.0, 0.5),
        "gamma": Gamma.from_standard(1.0, 1.0),
        "solid": Plate(members),
        "mixture": Mixture.from_standard([1.0], members),
    }.items():
        posterity.save(posterior, f"{name}.safetensors")
    content = Path("s.safetensors").read_bytes()
    Path("truncated.safetensors").write_bytes(content[:-9])
    Path("altered.safetensors").write_bytes(content[:-1] + b"\x7f")
    Path("text.safetensors").write_text("no posterior")
    Path("link.safetensors").symlink_to("s.safetensors")
    os.mkfifo("pipe")
    return files


@pytest.fixture
def folder(tmp_path):
    """The data of two federations, where the test runs."""
    for name in ("north", "south"):
        np.savez(f"{name}.npz", x=np.array(COUNTS[name]))
    Path("east.csv").write_text("\n".join(["count", *map(str, COUNTS["east"])]) + "\n")
    rng = np.random.default_rng(0)
    for name in "abc":
        x, y = rng.normal(size=(30, 2)), rng.integers(0, 2, 30)
        rows = [f"{u},{label},{v}" for (u, v), label in zip(x, y, strict=True)]
        Path(f"{name}.csv").write_text("\n".join(["u, y, v", *rows]))
    prior = posterity.Gaussian.from_standard(mean=np.zeros(2), covariance=4 * np.eye(2))
    posterity.save(prior, "prior.safetensors")
    Path("gossip.toml").write_text(CONJUGATE)
    Path("logistic.toml").write_text(LOGISTIC)
    return tmp_path
