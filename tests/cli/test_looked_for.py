"""What people look for in a regression's results: ratios, identifiers beside predictions, scores by
site, and the same intercept in `fit` and `federate`."""

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.commands import document, refuse, succeed

import posterity
from posterity.distillation import Head, Student
from posterity.families.layers import Layers


@pytest.fixture(autouse=True)
def tables():
    for seed, site in enumerate(("north", "south")):
        rng = np.random.default_rng(seed)
        data = pd.DataFrame({"x": rng.normal(size=80).round(3)})
        data["sex"] = rng.choice(["f", "m"], 80)
        data["ill"] = 1 * (rng.random(80) < 1 / (1 + np.exp(-data["x"])))
        data["visits"] = rng.poisson(np.exp(data["x"] / 2))
        data["time"] = rng.exponential(size=80).round(3) + 0.01
        data["patient"] = [f"={site}-{k}" for k in range(80)]
        data.to_csv(f"{site}.csv", index=False)


def shell(line):
    return succeed(*shlex.split(line))


MODELS = {
    "logistic": ("--target ill --columns x,sex --category sex=f,m", "odds ratio"),
    "poisson": ("--target visits --columns x,sex --category sex=f,m", "rate ratio"),
    "survival": (
        "--target time --event ill --columns x,sex --category sex=f,m --cuts 1",
        "hazard ratio",
    ),
    "multinomial": ("--target sex --columns x --category sex=f,m", "odds ratio"),
    "gamma": ("--target time --columns x --dispersion 1", "ratio of means"),
}


@pytest.mark.parametrize("model", MODELS)
def test_ratios_are_exponentials_of_coefficients_and_their_limits(model):
    line, name = MODELS[model]
    shell(f"fit north.csv --model {model} {line} -o n.safetensors")
    data = document(*shlex.split("show n.safetensors --ratios"))
    rows = {row["name"]: row for row in data["rows"]}
    printed = shell("show n.safetensors --ratios --csv").stdout.splitlines()
    written = {row["name"]: row for row in csv.DictReader(printed)}
    assert [*written] == [row["name"] for row in data["ratios"]]
    assert any("x" in name for name in written)
    assert not {"intercept", "m:intercept", "hazard[0-1]"} & written.keys()
    for row in data["ratios"]:
        own = rows[row["name"]]
        assert row["what"] == name == written[row["name"]]["what"]
        assert row["level"] == 0.95 == float(written[row["name"]]["level"])
        assert row["unit"] == written[row["name"]]["unit"]
        assert row["unit"].startswith(name)
        for key, at in (("ratio", "mean"), ("low", "low"), ("high", "high")):
            assert row[key] == pytest.approx(np.exp(own[at]), rel=1e-12)
            assert float(written[row["name"]][key]) == pytest.approx(row[key], rel=1e-9)
    assert name in shell("show n.safetensors --ratios").stdout
    assert printed[0].startswith("name,what,ratio")
    shell("report n.safetensors -o n.html")
    assert name in Path("n.html").read_text().lower()


def test_ratios_beyond_what_a_float_holds_are_an_overflow():
    data = pd.read_csv("north.csv")
    data["same"] = 1.0
    data.to_csv("same.csv", index=False)
    line = "fit same.csv --model logistic --target ill --columns x,same --prior-sd 1000"
    shell(f"{line} -o n.safetensors")
    rows = document("show", "n.safetensors", "--ratios")["ratios"]
    assert {row["name"]: row["high"] for row in rows}["same"] is None
    assert "same, per unit" in shell("show n.safetensors --ratios").stdout


def test_printed_ratios_say_what_one_more_is_of():
    """Of a scaled column, of a level, and of the sites that have a coefficient for themselves."""
    line = "federate north.csv south.csv --target ill --model logistic --intercept --columns x,sex"
    line += " --category sex=f,m --scale x=10 --unit x=years --own intercept,sex --prior-sd 2"
    shell(f"{line} -o f.safetensors")
    data = document(*shlex.split("show f.safetensors --ratios"))["ratios"]
    assert [row["name"] for row in data] == ["x", "sex[m]@north", "sex[m]@south"]
    said = shell("show f.safetensors --ratios").stdout
    assert "x, per 10 years" in said and "sex[m]@north, m rather than f" in said
    refuse("show f.safetensors --ratios --site north", 2, "--ratios; --site")


def test_what_has_no_ratios_says_so():
    student = Student(Layers.dense(2, 5, 1), np.zeros(21), Head("bernoulli", 1))
    posterity.save(student, "student.safetensors")
    refuse("show student.safetensors --ratios", 4, "a Student; posterity predict")
    shell("fit north.csv --model linear --target x --columns visits -o n.safetensors")
    refuse("show n.safetensors --ratios", 2, "linear; log or logit")
    line = "fit north.csv --model logistic --target ill --columns sex --category sex=f,m"
    shell(f"{line} --no-intercept -o n.safetensors")
    assert document(*shlex.split("show n.safetensors --ratios"))["ratios"] == []


@pytest.mark.parametrize("ending", ["csv", "json", "npz"])
def test_columns_are_kept_beside_predictions(ending):
    shell("fit north.csv --model logistic --target ill --columns x -o n.safetensors")
    line = f"predict n.safetensors south.csv --keep patient,sex -o p.{ending}"
    data = document(*shlex.split(line))
    assert data["columns"][:3] == ["patient", "sex", "p"]
    south = pd.read_csv("south.csv")
    if ending == "csv":
        found = pd.read_csv("p.csv")
        wanted = ["'" + text for text in south["patient"]]
    elif ending == "json":
        found = json.loads(Path("p.json").read_text())
        wanted = south["patient"]
    else:
        found = np.load("p.npz")
        wanted = south["patient"]
    assert list(found["patient"]) == list(wanted) and list(found["sex"]) == list(south["sex"])
    refuse("predict n.safetensors south.csv --keep nobody -o p.csv", 4, "'nobody'")


@pytest.mark.parametrize("model", ["logistic", "linear", "poisson"])
def test_fit_and_federate_have_the_same_columns_by_default(model):
    target = {"logistic": "ill", "linear": "x", "poisson": "visits"}[model]
    other = "visits" if target == "x" else "x"
    line = f"--model {model} --target {target} --columns {other} --site"
    shell(f"fit north.csv {line} north -o f.safetensors")
    shell(f"federate {line} north=north.csv -o g.safetensors")
    one, two = (posterity.load(f"{name}.safetensors").posterior for name in "fg")
    assert one.names == two.names == ("intercept", other)
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-3, atol=1e-3)
    shell(f"fit north.csv {line} north --no-intercept -o f.safetensors")
    shell(f"federate {line} north=north.csv --no-intercept -o h.safetensors")
    assert posterity.load("h.safetensors").posterior.names == (other,)
    prior = posterity.Gaussian.from_standard([0.0], [[4.0]]).named([other])
    posterity.save(prior, "prior.safetensors")
    shell(f"federate {line} north=north.csv --prior prior.safetensors -o i.safetensors")
    assert posterity.load("i.safetensors").posterior.names == (other,)


@pytest.mark.parametrize("verb", ["fit", "federate"])
def test_successes_of_trials_are_the_labels_of_each_trial(verb):
    rng = np.random.default_rng(3)
    data = pd.DataFrame({"x": rng.normal(size=50).round(2), "n": rng.integers(1, 9, 50)})
    data["won"] = rng.binomial(data["n"], 1 / (1 + np.exp(-data["x"])))
    data.to_csv("t.csv", index=False)
    rows = [(x, 1 * (k < won)) for x, n, won in data.itertuples(index=False) for k in range(n)]
    pd.DataFrame(rows, columns=["x", "won"]).to_csv("u.csv", index=False)
    start = {"fit": "fit {}.csv --site t", "federate": "federate t={}.csv"}[verb]
    line = "--model logistic --target won -o"
    shell(f"{start.format('t')} {line} t.safetensors --trials n")
    shell(f"{start.format('u')} {line} u.safetensors")
    one, other = (posterity.load(f"{name}.safetensors").posterior for name in "tu")
    assert one.names == other.names == ("intercept", "x")
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-6)
    assert "Trials: n." in shell("show t.safetensors").stdout
    shell("predict t.safetensors t.csv -o p.csv")
    scored = [document("evaluate", "t.safetensors", f"{name}.csv") for name in "tu"]
    for one, other in zip(*(own["all"].pop("calibration") for own in scored), strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    assert scored[0]["all"] == pytest.approx(scored[1]["all"], rel=1e-6)
    assert scored[0]["all"]["records"] == len(rows)
    assert f"50 rows of the table count as {len(rows)} records" in scored[0]["notes"][0]
    shell("report t.safetensors --data t.csv -o t.html")
    assert f"On {len(rows)} records of t.csv." in Path("t.html").read_text()
    shell("evaluate t.safetensors t.csv --by n")
    data.assign(won=0, n=0).to_csv("v.csv", index=False)
    refuse("evaluate t.safetensors v.csv", 4, "no trials in 'v.csv'")
    refuse("fit v.csv --like t.safetensors -o v.safetensors", 4, "no trials in 'v.csv'")
    data.assign(won=data["n"] + 1).drop(columns="n").to_csv("v.csv", index=False)
    refuse("evaluate t.safetensors v.csv", 3, "0 or 1")
    data.assign(won=data["n"] + 1).to_csv("t.csv", index=False)
    refuse(f"{start.format('t')} {line} v.safetensors --trials n", 5, "successes; trials in line 2")
    refuse("fit t.csv --model linear --target won --trials n -o v.safetensors", 2, "logistic")
