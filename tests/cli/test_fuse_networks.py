"""``posterity fuse``, ``inspect`` and ``diff`` of networks."""

from pathlib import Path

import numpy as np
import pytest

import posterity
import posterity.fusion.networks.fuse
from posterity.families.layers import Layers
from tests.cli.commands import document, refuse, succeed
from tests.fusion.nets import as_site, random_network, shuffled


@pytest.fixture
def files():
    rng = np.random.default_rng(0)
    network = random_network(Layers.dense(4, 5, 3), rng)
    posterity.save(as_site("north", network), "n.safetensors")
    posterity.save(as_site("south", shuffled(network, rng)), "s.safetensors")
    posterity.save(random_network(Layers.dense(4, 5, 2), rng), "other.safetensors")


def test_the_report_tells_widths_and_the_predictive_kl(files):
    line = ["fuse", "n.safetensors", "s.safetensors", "-o", "out.safetensors"]
    told = document(*line)
    assert told["network"]["widths"] == [5]
    assert told["network"]["predictive_kl"] < 1e-12
    assert told["kind"] == "Ledger"
    assert set(told["plates"]) == {"0"}
    words = " ".join(succeed(*line).stdout.split())
    assert "A network of 5 hidden units" in words
    fused = posterity.load("out.safetensors")
    assert fused.forget("south").sites == ("north",)
    wide = document(*line, "--components", "8")
    assert wide["network"]["widths"] == [8]
    assert len(wide["network"]["tried"]) == 1


def test_a_fused_network_is_shown_exported_and_predicts(files):
    succeed("fuse", "n.safetensors", "s.safetensors", "-o", "out.safetensors")
    assert "Dense 4 to 5" in succeed("show", "out.safetensors").stdout
    succeed("export", "out.safetensors", "--output", "out.csv")
    name, mean, _ = Path("out.csv").read_text().splitlines()[1].rsplit(",", 2)
    fused = posterity.load("out.safetensors").posterior.plain
    assert "layer 0" in name and float(mean) == pytest.approx(fused.mean[0], rel=1e-6)
    assert len(Path("out.csv").read_text().splitlines()) == 1 + len(fused.mean)
    Path("x.csv").write_text("a,b,c,d\n1,2,3,4\n0,1,0,-1\n")
    succeed("predict", "out.safetensors", "x.csv", "--output", "p.csv")
    rows = np.loadtxt("p.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(rows[:, :3].sum(1), 1.0, atol=1e-6)


def test_networks_are_inspected_and_compared(files):
    assert "Network" in succeed("inspect", "n.safetensors").stdout
    told = document("diff", "n.safetensors", "s.safetensors")
    assert told["kl_ab"] == told["kl_ba"] == 0.0


def test_networks_that_do_not_fit_write_nothing(files):
    refuse("fuse n.safetensors other.safetensors -o x.safetensors", 4, "layer 1")
    refuse("fuse n.safetensors s.safetensors -o x.safetensors --budget 64", 2, "budget")
    assert not Path("x.safetensors").exists()
