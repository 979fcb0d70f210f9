"""``posterity import`` and ``posterity export``: tables in, tables out."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli.commands import contents, document, fail, refuse, succeed

import posterity
from posterity import Ledger
from posterity.families import DiagonalGaussian, Gaussian, Network
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
        ("import north.csv -o n.safetensors --family t", 2, "--family = 't'; 'gamma'"),
        ("import north.csv -o n.safetensors --family gamma", 3, "'bp'; north.csv"),
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


def test_a_pipe_is_not_waited_for():
    os.mkfifo("pipe.csv")
    assert "pipe" in fail(5, "import", "pipe.csv", "-o", "n.safetensors")["found"]


def test_what_has_no_table_is_refused_and_leaves_nothing_behind():
    from posterity.families import Dirichlet

    posterity.save(Dirichlet.from_standard([1.0, 2.0]), "d.safetensors")
    before = contents()
    assert "Dirichlet" in fail(4, "export", "d.safetensors", "-o", "d.csv")["found"]
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


TABLES = {
    "names that are a number": '{"names": 5, "mean": [1], "sd": [1]}',
    "no names": '{"names": null, "mean": [1], "sd": [1]}',
    "names that are a word": '{"names": "ab", "mean": [1, 2], "sd": [1, 1]}',
    "a number beyond float64": '{"names": ["a"], "mean": [1%s], "sd": [1]}' % ("0" * 400),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_in_json_that_are_none_are_refused(name):
    Path("t.json").write_text(TABLES[name])
    refuse("import t.json -o t.safetensors", 5, "t.json")


def test_names_of_sites_stay_on_one_line():
    posterity.save(DiagonalGaussian.from_standard([0.0], [1.0]), "q.safetensors")
    error = fail(2, "forget", "q.safetensors", "-o", "o.safetensors", "--site", "a\rb")
    assert "on one line" in error["expected"]


def test_a_table_by_the_names_of_r_takes_over_the_recipe_of_the_prior_s_file():
    """And a column that it has in another unit is found by its covariance."""
    rng = np.random.default_rng(0)
    age, male = rng.normal(60, 9, 200).round(), rng.random(200) < 0.5
    ill = rng.random(200) < 1 / (1 + np.exp(-0.05 * (age - 60) - 0.5 * male))
    rows = zip(age, np.where(male, "m", "f"), 1 * ill, strict=True)
    Path("n.csv").write_text("age,sex,ill\n" + "\n".join(f"{a},{b},{c}" for a, b, c in rows))
    units = "--center age=60 --scale age=10 --category sex=f,m"
    succeed(*f"fit n.csv --target ill --model logistic {units} -o n.safetensors".split())
    own = posterity.load("n.safetensors").factor("n")
    mean, covariance = np.asarray(own.mean), np.asarray(own.covariance)
    raw = np.array([[1.0, -6.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 1.0]])  # of years, from 0

    def imported(names, move):
        law = Gaussian.from_standard(move @ mean, move @ covariance @ move.T)
        posterity.save(law.named(names), "r.safetensors")
        succeed("export", "r.safetensors", "-o", "r.csv", "--covariance", "v.csv")
        line = "import r.csv --covariance v.csv --site s --flat-prior --prior n.safetensors"
        return document(*line.split(), "-o", "s.safetensors")["notes"]

    names = ["(Intercept)", "I((age - 60)/10)", "sexm"]
    (note,) = imported(names, np.eye(3))
    assert note.startswith("taken for the model in 'n.safetensors': Predicts ill")
    assert posterity.load("s.safetensors").posterior.names == ("intercept", "age", "sex[m]")
    recipes = [posterity.inspect(f"{k}.safetensors").provenance["recipe"] for k in "ns"]
    assert recipes[0] == recipes[1]
    succeed("predict", "s.safetensors", "n.csv", "-o", "p.csv")
    _, note = imported(["intercept", "age", "sexm"], raw)
    assert re.match(r"'age' is 6\d\d ± \d+ at 's' and (59|60)", note)


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_what_r_writes_is_fused_with_what_fit_writes():
    """By the function that the page has, of glm, coxph and survreg."""
    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text()
    (function,) = re.findall("```r\n(.*?)```", page, re.DOTALL)
    rng = np.random.default_rng(0)
    for site in ("n", "s"):
        x = rng.normal(size=300)
        ill = rng.random(300) < 1 / (1 + np.exp(0.5 - 0.8 * x))
        time = np.round(rng.exponential(size=300) / np.exp(0.5 * x), 3) + 0.001
        lines = [
            f"{a!r},{int(b)},{c!r}" for a, b, c in zip(x.tolist(), ill, time.tolist(), strict=True)
        ]
        Path(f"{site}.csv").write_text("\n".join(["x,ill,time", *lines]) + "\n")
    Path("site.R").write_text(
        function
        + """
        t <- read.csv("s.csv")
        write_site(glm(ill ~ I((x - 1)/2), binomial, t, epsilon = 1e-12), "glm")
        if (!requireNamespace("survival", quietly = TRUE)) quit()
        library(survival)
        write_site(coxph(Surv(time, ill) ~ x, t), "cox")
        write_site(survreg(Surv(time, ill) ~ x, t), "survreg")
        """
    )
    subprocess.run(["Rscript", "site.R"], check=True, capture_output=True)
    options = "--model logistic --target ill --columns x --center x=1 --scale x=2"
    for site in ("n", "s"):
        succeed(*f"fit {site}.csv {options} -o {site}.safetensors".split())
    line = "--covariance glm-covariance.csv --site s --flat-prior --prior n.safetensors"
    succeed(*f"import glm.csv {line} -o r.safetensors".split())
    succeed("fuse", "n.safetensors", "r.safetensors", "-o", "b.safetensors")
    succeed("fuse", "n.safetensors", "s.safetensors", "-o", "c.safetensors")
    ours, theirs = (posterity.load(f"{name}.safetensors").posterior for name in "cb")
    assert float(ours.kl(theirs)) < 0.01
    succeed("predict", "b.safetensors", "s.csv", "-o", "p.csv")
    if Path("cox.csv").exists():
        for name, count in (("cox", 1), ("survreg", 3)):
            covariance = f"{name}-covariance.csv"
            told = document(
                "import", f"{name}.csv", "--covariance", covariance, "-o", "x.safetensors"
            )
            assert len(told["parameters"]) == count
