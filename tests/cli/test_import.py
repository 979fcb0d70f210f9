"""``posterity import`` and ``posterity export``: tables in, tables out."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from cli.commands import contents, document, fail, refuse, succeed

import posterity
from posterity import Ledger
from posterity.families import DiagonalGaussian, Network
from posterity.networks import Layers

NORTH = "name;mean;sd\nage;0,5;0,1\nbp;-2;0,3\n"
SOUTH = "term,estimate,std.error,p.value\nbp,-1.0,0.1,0.01\nage,1.5,0.2,0.02\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("north.csv").write_text(NORTH)
    Path("south.csv").write_text(SOUTH)


def test_a_table_in_and_out_again():
    told = document("import", "north.csv", "-o", "north.safetensors")
    assert told["parameters"][0] == {"name": "age", "mean": 0.5, "sd": 0.1}
    assert (told["kind"], told["family"]) == ("DiagonalGaussian", "diagonal")
    assert posterity.load("north.safetensors").names == ("age", "bp")
    succeed("export", "north.safetensors", "-o", "again.csv")
    assert Path("again.csv").read_text() == "name,mean,sd\nage,0.5,0.1\nbp,-2.0,0.3\n"
    succeed("import", "again.csv", "-o", "again.safetensors")
    assert posterity.load("again.safetensors") == posterity.load("north.safetensors")


def test_two_tables_are_pooled_by_name():
    """As by inverse variances, whatever the order of the rows."""
    for site in ("north", "south"):
        line = ("import", f"{site}.csv", "-o", f"{site}.safetensors", "--site", site)
        succeed(*line, "--flat-prior")
    succeed("fuse", "north.safetensors", "south.safetensors", "-o", "b.safetensors",
            "--rule", "product")  # fmt: skip
    both = posterity.load("b.safetensors")
    assert isinstance(both, Ledger)
    pooled = [(0.5 / 0.01 + 1.5 / 0.04) / 125, (-2 / 0.09 - 1 / 0.01) / (1 / 0.09 + 1 / 0.01)]
    np.testing.assert_allclose(both.posterior.mean, pooled, rtol=1e-11)
    succeed("export", "b.safetensors", "-o", "b.json")
    assert json.loads(Path("b.json").read_text())["names"] == ["age", "bp"]


def test_a_prior_is_put_in_the_order_of_the_table_and_taken_off():
    prior = DiagonalGaussian.from_standard([0.0, 1.0], [4.0, 9.0]).named(["bp", "age"])
    posterity.save(prior, "prior.safetensors")
    line = ("import", "north.csv", "-o", "n.safetensors", "--site", "north")
    succeed(*line, "--prior", "prior.safetensors")
    ledger = posterity.load("n.safetensors")
    np.testing.assert_allclose(ledger.prior.variance, [9.0, 4.0])
    np.testing.assert_allclose(ledger.factor("north").precision, [100 - 1 / 9, 1 / 0.09 - 1 / 4])
    posterity.save(prior.named(["bp", "sex"]), "other.safetensors")
    refuse("import north.csv -o m.safetensors --site north --prior other.safetensors", 4, "sex")


def test_a_table_without_a_coefficient_of_its_prior_is_refused():
    prior = posterity.Gaussian.from_standard(np.zeros(2), np.eye(2)).named(["age", "sex"])
    posterity.save(prior, "prior.safetensors")
    Path("t.csv").write_text("name,estimate,se\nage,1,2\n")
    line = "import t.csv --prior prior.safetensors --site a -o a.safetensors"
    refuse(line, 4, "no ['sex'] in 't.csv'; a row for each coefficient; --flat-prior")


def test_a_covariance_by_name():
    Path("v.csv").write_text(",bp,age\nbp,0.09,0.01\nage,0.01,0.01\n")
    succeed("import", "north.csv", "--covariance", "v.csv", "-o", "n.safetensors")
    np.testing.assert_allclose(
        posterity.load("n.safetensors").covariance, [[0.01, 0.01], [0.01, 0.09]], rtol=1e-12
    )
    result = succeed("export", "n.safetensors", "-o", "n.csv")
    assert "correlations are not in the table" in result.stderr
    succeed("export", "n.safetensors", "-o", "n.csv", "--covariance", "w.csv")
    succeed("import", "n.csv", "--covariance", "w.csv", "-o", "m.safetensors")
    one, other = (posterity.load(f"{n}.safetensors") for n in "nm")
    np.testing.assert_allclose(one.precision, other.precision, rtol=1e-12)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("import none.csv -o n.safetensors", 5, "none.csv"),
        ("import . -o n.safetensors", 5, "folder"),
        ("import north.csv -o n.safetensors --prior p", 2, "--prior without --site"),
        ("import north.csv -o n.safetensors --flat-prior", 2, "--flat-prior without --site"),
        ("import north.csv -o n.safetensors --site n", 2, "--flat-prior; neither a prior"),
        ("import north.csv -o n.safetensors --site ''", 2, "--site"),
        ("import north.csv -o n.safetensors --decimal .", 5, "line 2; 'mean'"),
        ("import north.csv -o n.safetensors --decimal x", 2, "--decimal = 'x'"),
        ("import north.csv -o south.csv", 2, "FILE.safetensors"),
        ("import bad.csv -o n.safetensors", 5, "bad.csv; line 2; column 'sd'"),
        ("export north.safetensors -o n.xlsx", 2, ".csv, .json or .onnx"),
        ("export north.safetensors -o n.csv --covariance v.csv", 2, "of a diagonal law"),
    ],
)
def test_lines_that_make_no_sense_leave_nothing_behind(line, code, words):
    Path("bad.csv").write_text("name,mean,sd\na,1,x\n")
    succeed("import", "north.csv", "-o", "north.safetensors")
    refuse(line, code, words)


def test_limits_alone_are_said_to_be_those_of_a_normal_law():
    Path("t.csv").write_text("name,estimate,2.5 %,97.5 %\nage,1,0,2\n")
    notes = document("import", "t.csv", "-o", "n.safetensors")["notes"]
    assert len(notes) == 1 and "normal 95 % intervals" in notes[0]
    Path("v.csv").write_text("name,age\nage,0.2\n")  # of ten degrees of freedom
    assert (
        document("import", "t.csv", "--covariance", "v.csv", "-o", "n.safetensors")["notes"] == []
    )
    assert posterity.load("n.safetensors").marginal_variance == pytest.approx([0.2])


def test_a_pipe_is_not_waited_for():
    os.mkfifo("pipe.csv")
    assert "pipe" in fail(5, "import", "pipe.csv", "-o", "n.safetensors")["found"]


def test_what_has_no_table_is_refused_and_leaves_nothing_behind():
    from posterity.families import Dirichlet

    posterity.save(Dirichlet.from_standard([1.0, 2.0]), "d.safetensors")
    before = contents()
    error = fail(4, "export", "d.safetensors", "-o", "d.csv")
    assert "Dirichlet" in error["found"] and "posterity show FILE --csv" in error["fix"]
    assert "mean" in succeed("show", "d.safetensors", "--csv").stdout
    assert contents() == before


def test_a_network_has_a_table_of_its_weights_by_layer():
    layers = Layers.dense(2, 3, 2)
    network = Network.prior(layers, [1.0, 4.0])
    posterity.save(network, "net.safetensors")
    succeed("export", "net.safetensors", "-o", "net.csv")
    succeed("import", "net.csv", "-o", "again.safetensors")
    read = posterity.load("again.safetensors")
    assert read.names[0] == "layer 0 bias [0]" and read.names[-1] == "layer 1 kernel [2, 1]"
    np.testing.assert_allclose(read.variance, network.variance)
    np.testing.assert_allclose(read.mean, network.mean)


def test_no_cell_of_a_table_is_computed_by_a_spreadsheet():
    """And what was written so is read as it was."""
    names = ["=HYPERLINK(1)", "+a", "-b", "@c", "d", "'e"]
    law = DiagonalGaussian.from_standard(np.zeros(6), np.ones(6)).named(names)
    posterity.save(law, "odd.safetensors")
    succeed("export", "odd.safetensors", "-o", "odd.csv")
    shown = succeed("show", "odd.safetensors", "--csv").stdout
    for line in Path("odd.csv").read_text().splitlines() + shown.splitlines():
        assert not line.strip('"').startswith(("=", "+", "-", "@")), line
        assert '"=' not in line and '"@' not in line, line
    succeed("import", "odd.csv", "-o", "again.safetensors")
    assert posterity.load("again.safetensors").names == law.names
