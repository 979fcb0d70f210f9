"""What a table's fit knows less well than its numbers say: in words at `fit`, in the file, and by
every verb that reads it; and sandwich covariances against statsmodels."""

import datetime
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.commands import document, fail, refuse, succeed

import posterity
from posterity.tabular import Recipe, fit

WEIGHTED = "--target y --model {} --columns x --record-weights wt --weights sampling"
MODELS = ("logistic", "linear", "poisson", "gamma")


def put(name, **columns):
    pd.DataFrame(columns).to_csv(f"{name}.csv", index=False)


def notes(line):
    return document(*shlex.split(line))["notes"]


def told(line, words):
    return [note for note in notes(line) if words in note]


def draw(rng, model, f):
    mean = {"linear": f, "logistic": 1 / (1 + np.exp(-f))}.get(model, np.exp(f))
    draws = {
        "linear": lambda: f + rng.normal(size=len(f)),
        "logistic": lambda: 1 * (rng.random(len(f)) < mean),
        "poisson": lambda: rng.poisson(mean),
        "gamma": lambda: rng.gamma(2, mean / 2),
    }
    return draws[model]()


def families(api):
    log = api.families.links.Log()
    known = (api.families.Binomial(), api.families.Gaussian(), api.families.Poisson())
    return dict(zip(MODELS, (*known, api.families.Gamma(log)), strict=True))


def clustered(model, seed, count=60, each=6):
    rng = np.random.default_rng(seed)
    ward = np.repeat(np.arange(count), each)
    x = rng.normal(size=count)[ward].round(2)
    f = 0.5 * x + 0.8 * rng.normal(size=count)[ward]
    order = rng.permutation(count * each)
    weights = rng.lognormal(3, 0.8, count * each).round(2)
    return {"y": draw(rng, model, f)[order], "x": x[order], "ward": ward[order], "wt": weights}


@pytest.mark.parametrize("model", MODELS)
def test_clusters_and_weights_of_sampling_have_sandwich_covariances(model):
    """As statsmodels has them, whose covariance of clusters has a factor for its coefficients."""
    api = pytest.importorskip("statsmodels.api")
    data = clustered(model, 3)
    put("t", **data)
    size = len(data["y"])
    spread = {"gamma": {"dispersion": 0.5}, "linear": {"noise_variance": 1.0}}.get(model, {})
    recipe = Recipe(model, "y", ("x",), prior_sd={"": 1e4}, **spread)
    x = api.add_constant(data["x"])
    family = families(api)[model]
    robust = {"cov_type": "cluster", "cov_kwds": {"groups": data["ward"]}}
    known = api.GLM(data["y"], x, family=family).fit(**robust)
    own = fit("t.csv", recipe.replaced(cluster="ward")).ledger.posterior
    away = (own.mean - known.params) / known.bse
    np.testing.assert_allclose(away, 0, atol=0.1)
    factor = np.sqrt((size - 1) / (size - 2))
    np.testing.assert_allclose(np.sqrt(own.marginal_variance), known.bse / factor, rtol=0.05)
    weights = data["wt"]
    share = weights * (weights.sum() / (weights**2).sum())
    known = api.GLM(data["y"], x, family=family, freq_weights=share).fit()
    slope = x * (share * known.resid_response * (1 if model != "gamma" else 1 / known.mu))[:, None]
    curve = {"logistic": known.mu * (1 - known.mu), "poisson": known.mu}
    bend = curve.get(model, data["y"] / known.mu if model == "gamma" else np.ones(size))
    bread = np.linalg.inv((x * (share * bend)[:, None]).T @ x)
    wanted = np.sqrt(np.diagonal(bread @ (slope.T @ slope) @ bread) * size / (size - 1))
    weighted = recipe.replaced(weights="wt", weighting="sampling")
    own = fit("t.csv", weighted).ledger.posterior
    np.testing.assert_allclose(np.sqrt(own.marginal_variance), wanted, rtol=0.05)
    heavier = {**data, "wt": weights * 1000}
    put("u", **heavier)
    other = fit("u.csv", weighted).ledger.posterior
    np.testing.assert_allclose(other.covariance, own.covariance, rtol=1e-6)


@pytest.mark.parametrize("model", ["logistic", "poisson"])
def test_a_federation_of_clusters_is_the_fit_of_all_records(model):
    """Also of sites with fewer clusters than coefficients, and after its records are forgotten."""
    data = pd.DataFrame(clustered(model, 5))
    few = data["ward"] < 2
    data[few].to_csv("a.csv", index=False)
    data[~few].to_csv("b.csv", index=False)
    data.to_csv("all.csv", index=False)
    line = f"--target y --model {model} --columns x --cluster ward"
    document(*shlex.split(f"fit all.csv {line} -o all.safetensors"))
    sites = "--site a=a.csv --site b=b.csv"
    document(*shlex.split(f"federate {sites} {line} --intercept -o both.safetensors"))
    whole = posterity.load("all.safetensors").posterior
    both = posterity.load("both.safetensors")
    sd = np.sqrt(whole.marginal_variance)
    np.testing.assert_allclose((both.posterior.mean - whole.mean) / sd, 0, atol=0.02)
    np.testing.assert_allclose(np.sqrt(both.posterior.marginal_variance), sd, rtol=0.02)
    assert not both.independent
    assert (
        "2 clusters for 2 coefficients"
        in fail(3, *shlex.split(f"fit a.csv {line} -o a.safetensors"))["found"]
    )
    refused = f"federate {sites} {line} --intercept --personal x -o p.safetensors"
    assert "--personal" in fail(2, *shlex.split(refused))["found"]
    assert "sandwich covariances, within: ward" in succeed("show", "both.safetensors").stdout


def test_clusters_of_a_site_that_lacks_a_column():
    """It can be fitted, and stay alone when the other site is forgotten."""
    data = pd.DataFrame(clustered("logistic", 5))
    other = data["ward"] < 30
    data.assign(z=np.arange(len(data)) % 7)[other].to_csv("a.csv", index=False)
    data[~other].to_csv("b.csv", index=False)
    line = "--model logistic --cluster ward -o"
    document(*shlex.split(f"fit b.csv {line} plain.safetensors --target y --columns x"))
    plain = posterity.load("plain.safetensors").posterior
    formula = f"{line} both.safetensors --formula 'y ~ x + z + missing(z)'"
    document(*shlex.split(f"federate a.csv b.csv {formula}"))
    document("fit", "b.csv", "--like", "both.safetensors", "-o", "b.safetensors")
    line = "forget both.safetensors --site a -o left.safetensors --receipt r.json"
    assert "--config FILE" in fail(3, *line.split())["fix"]
    Path("stay.toml").write_text(
        '[data]\nlike = "both.safetensors"\n[sites]\nb = "b.csv"\n', encoding="utf-8"
    )
    assert document(*line.split(), "--config", "stay.toml")["status"]["state"] == "converged"
    for name in ("b", "left"):
        law = posterity.load(f"{name}.safetensors").posterior
        mean, covariance = (law.mean, law.covariance)
        place = law.names.index("x")
        sd = np.sqrt(plain.marginal_variance[1])
        np.testing.assert_allclose(mean[place], plain.mean[1], atol=0.01 * sd)
        np.testing.assert_allclose(np.sqrt(covariance[place, place]), sd, rtol=0.01)
        assert mean[law.names.index("z")] == 0


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0.5, 2.5], ""),
        ([1.0, 1.25], "--weights counts"),
        ([1e-3, 4.0], ""),
    ],
)
def test_fractional_weights_are_refused_with_both_ways_on(values, line):
    put("t", y=[0, 1] * 20, x=np.arange(40) / 7, wt=values * 20)
    shell = f"fit t.csv --target y --model logistic --record-weights wt {line} -o t.safetensors"
    error = fail(5, *shlex.split(shell))
    assert "--weights sampling" in error["fix"] and "whole numbers" in error["expected"]
    assert "line" in error["found"] and "'wt'" in error["found"]
    error = fail(2, *shlex.split("fit t.csv --target y --model logistic --weights sampling -o t.s"))
    assert "--record-weights" in error["expected"]


def test_whole_weights_are_counts_and_are_said_to_be():
    put("t", y=[0, 1, 1, 0] * 10, x=np.arange(40) % 7, wt=[1, 2, 3, 4] * 10)
    line = "fit t.csv --target y --model logistic --record-weights wt -o t.safetensors"
    (note,) = told(line, "numbers of equal records")
    assert "40 rows count as 100" in note
    assert not told(f"{line} --weights counts", "numbers of equal records")
    assert "40 rows count as 100" not in succeed("show", "t.safetensors").stdout
    document(*shlex.split(line))
    assert "40 rows count as 100" in " ".join(succeed("show", "t.safetensors").stdout.split())


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("sorted numbers", True),
        ("shuffled numbers", True),
        ("texts left out", True),
        ("numbers used", True),
        ("a name", True),
        ("age", False),
        ("a row for each number of records", False),
        ("few", False),
    ],
)
def test_columns_that_look_like_clusters_are_named(kind, said):
    data = pd.DataFrame(clustered("linear", 2)).drop(columns="wt")
    rng = np.random.default_rng(0)
    if kind in ("sorted numbers", "numbers used"):
        data = data.sort_values("ward")
    if kind == "texts left out":
        data["ward"] = "w" + data["ward"].astype(str)
    if kind == "a name":
        data["patient_id"] = rng.integers(0, 50, len(data))
    if kind in ("a name", "age", "few"):
        data = data.drop(columns="ward").assign(y=data["x"] + rng.normal(size=len(data)))
    if kind == "age":
        data["age"] = rng.integers(30, 80, len(data))
    if kind == "a row for each number of records":
        data = data.sort_values("ward").rename(columns={"ward": "age"}).assign(n=2)
    if kind == "few":
        data["visit"] = np.arange(len(data)) % 6
    data.to_csv("t.csv", index=False)
    without = {"numbers used": "", "a name": "", "age": "", "few": ""}.get(kind, "--without ward")
    without = "--record-weights n" if "row" in kind else without
    line = f"fit t.csv --target y --model linear {without} -o t.safetensors"
    found = told(line, "pass --cluster")
    assert bool(found) == said
    shown = "pass --cluster" in " ".join(succeed("show", "t.safetensors").stdout.split())
    assert shown == said


def test_dates_are_no_clusters_and_several_columns_that_are_make_one_note():
    rng = np.random.default_rng(4)
    ward = np.repeat(np.arange(30), 5)
    days = [f"2020-01-{day:02}" for day in ward % 28 + 1]
    put("t", y=rng.normal(size=150), ward=ward, clinic=ward // 2, seen=days)
    line = "fit t.csv --model linear --target y --without seen -o t.safetensors"
    (note,) = told(line, "pass --cluster")
    assert "--cluster ward or --cluster clinic at every site" in note and "seen" not in note
    put("t", y=rng.normal(size=150), seen=days)
    error = fail(5, *shlex.split("fit t.csv --model linear --target y -o t.safetensors"))
    assert "--without seen" in error["fix"] and "--cluster" not in error["fix"]
    put("t", y=rng.normal(size=150), subject=[f"01-02-{own:04}" for own in ward])  # no dates
    error = fail(5, *shlex.split("fit t.csv --model linear --target y -o t.safetensors"))
    assert "--cluster subject" in error["fix"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Family", True),
        ("famille", True),
        ("household", True),
        ("Station", True),
        ("hôpital", True),
        ("clinic", True),
        ("days_in_hospital", False),
    ],
)
def test_usual_words_for_clusters_are_known(name, said):
    rng = np.random.default_rng(4)
    put("t", y=rng.normal(size=150), **{name: np.repeat(np.arange(30), 5)})
    way = f"pass --cluster {shlex.quote(name)}"
    note = told("fit t.csv --model linear --target y -o t.safetensors", way)
    assert bool(note) == said


@pytest.mark.parametrize("spread", [0.0, 3.0])
@pytest.mark.parametrize("trials", [1, 12])
def test_numbers_that_tables_are_sorted_by_are_clusters_where_records_of_one_are_alike(
    trials, spread
):
    rng = np.random.default_rng(4)
    dose = np.sort(rng.integers(30, 60, 300))
    x = rng.normal(size=300)
    f = 0.5 * x + spread * rng.normal(size=60)[dose]
    won = rng.binomial(trials, 1 / (1 + np.exp(-f)))
    put("t", won=won, of=np.full(300, trials), x=x.round(3), dose=dose)
    line = "fit t.csv --model logistic --target won --trials of -o t.safetensors"
    assert len(told(line, "pass --cluster dose")) == (spread > 0)
    (note,) = told(f"{line} --columns x", "pass --cluster dose")  # by their order
    assert ("times as large" in note) == (spread > 0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic", "poisson"])
def test_values_of_covariates_recur_by_chance(model):
    """Where records are independent, whatever the law of their targets."""
    said = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        los = rng.poisson(rng.gamma(2, 2, 150))
        x = rng.normal(size=150).round(2)
        y = draw(rng, model, 0.3 * x - 0.5)
        y = rng.poisson(np.exp(0.3 * x) * rng.gamma(0.5, 2, 150)) if model == "poisson" else y
        put("t", y=y, x=x, los=los, score=rng.integers(0, 21, 150), visits=rng.poisson(4, 150))
        said += [note for note in fit("t.csv", Recipe(model, "y")).notes if "recur" in note]
    assert not said


def test_columns_that_are_asked_for_are_clusters_by_name_alone():
    """And then in no other role, which would be refused."""
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(30), 5)
    y = 2 * rng.normal(size=30)[group] + rng.normal(size=150)
    put("t", y=y, x=group // 2 % 7, dose=rng.permutation(30)[group], ward=group)
    line = "fit t.csv --model linear --target y -o t.safetensors --columns"
    assert told(
        "fit t.csv --model linear --target y -o t.safetensors",
        "--cluster dose or --cluster ward at every site, and",
    )
    assert not told(f"{line} x,dose", "pass --cluster dose")
    (note,) = told(f"{line} x,dose,ward", "pass --cluster")
    assert note.endswith("pass --cluster ward at every site, and name it in no other option")


@pytest.mark.parametrize("weights", ["", " --record-weights n"])
@pytest.mark.parametrize(("shape", "said"), [(1.0, True), (1e6, False)])
def test_counts_that_vary_more_than_poissons_are_told(shape, said, weights):
    rng = np.random.default_rng(2)
    x = rng.normal(size=200).round(2)
    time = rng.uniform(0.1, 3, 200).round(2)
    y = rng.poisson(time * np.exp(0.5 * x) * rng.gamma(shape, 1 / shape, 200))
    put("t", y=y, x=x, time=time, n=np.arange(200) % 2 + 1)
    line = f"--target y --exposure time --model poisson --columns x{weights}"
    words = "counts vary more than Poisson's"
    found = told(f"fit t.csv {line} -o t.safetensors", words)
    assert bool(found) == said
    assert told(f"federate --site t=t.csv {line} --intercept -o f.safetensors", words) == found
    assert (words in " ".join(succeed("show", "t.safetensors").stdout.split())) == said
    line = line.replace("poisson", "negative-binomial")
    assert not told(f"fit t.csv {line} -o t.safetensors", words)


def separated(kind, count=200):
    rng = np.random.default_rng(1)
    x = rng.normal(size=count).round(3)
    drug = 1 * (rng.random(count) < 0.5)
    y = 1 * (rng.random(count) < 0.3)
    if kind == "level without an event":
        return {"y": np.where(drug, y, 0), "x": x, "drug": drug}, "logistic", "drug"
    if kind == "level with events alone":
        return {"y": np.where(drug, y, 1), "x": x, "drug": drug}, "logistic", "drug"
    if kind == "a threshold":
        return {"y": 1 * (x > 0.2), "x": x, "drug": drug}, "logistic", "x"
    if kind == "a category":
        part = np.array(["a", "b", "c"])[rng.integers(0, 3, count)]
        return {"y": np.where(part == "c", 0, y), "x": x, "part": part}, "logistic", "part[c]"
    if kind == "counts":
        return {"y": np.where(drug, rng.poisson(2, count), 0), "x": x, "drug": drug}, "poisson", \
            "drug"  # fmt: skip
    if kind == "times":
        event = np.where(drug, 0, y)
        time = rng.exponential(size=count) + 0.1
        return {"y": time, "event": event, "x": x, "drug": drug}, "survival", "drug"
    return {"y": y, "x": x, "drug": drug}, "logistic", ""


SEPARATED = (
    *("level without an event", "level with events alone", "a threshold"),
    *("a category", "counts", "times", "none"),
)


@pytest.mark.parametrize("kind", SEPARATED)
def test_separation_in_part_is_noted_and_named(kind):
    """By `fit`, by `federate`, and by whoever reads the files."""
    data, model, column = separated(kind)
    put("t", **data)
    line = f"--target y --model {model} {'--event event' if model == 'survival' else ''}"
    line += " --category part=a,b,c" if "part" in data else ""
    found = told(f"fit t.csv {line} -o t.safetensors", "the prior keeps coefficients finite")
    assert len(found) == bool(column)
    federated = f"federate --site t=t.csv {line} --intercept -o f.safetensors"
    words = "the prior keeps coefficients finite"
    assert len(told(federated, words)) == bool(column)
    for file in ("t", "f"):
        shown = " ".join(succeed("show", f"{file}.safetensors").stdout.split())
        assert (words in shown) == bool(column)
    if kind != "a threshold":
        assert all(f"['{column}']" in note for note in found)
    skewed = told(f"fit t.csv {line} -o t.safetensors", "is skewed")
    assert bool(skewed) == bool(column)


def test_notes_of_a_file_travel_through_every_verb(tmp_path):
    for number, site in enumerate("ab"):
        data, _, _ = separated("level without an event" if site == "a" else "none", 200 + number)
        put(site, **data)
        succeed(*shlex.split(f"fit {site}.csv --target y --model logistic -o {site}.safetensors"))
    words = "a: ['drug'] tell the target's classes apart"
    assert told("fuse a.safetensors b.safetensors -o ab.safetensors", words)
    for line in ("show ab.safetensors", "inspect ab.safetensors"):
        assert words in " ".join(succeed(*line.split()).stdout.split())
    succeed("report", "ab.safetensors", "-o", "ab.html")
    assert "classes apart" in Path("ab.html").read_text()
    forgotten = "forget ab.safetensors --site b -o a2.safetensors --receipt r.json"
    succeed(*forgotten.split())
    assert "classes apart" in succeed("show", "a2.safetensors").stdout.replace("\n", " ")


DAY = datetime.date(2023, 1, 30)
IDENTIFIERS = {
    "row": lambda rng, n: np.arange(n) + 500001,
    "case_no": lambda rng, n: rng.choice(10**7, n, replace=False),
    "text": lambda rng, n: [f"P{k:04d}" for k in rng.permutation(n)],
    "as floats": lambda rng, n: np.arange(n) * 1.0,
    "patient_id": lambda rng, n: np.r_[np.arange(n - 5), np.arange(5)],
    "date number": lambda rng, n: [
        int((DAY + datetime.timedelta(int(k))).strftime("%Y%m%d")) for k in rng.integers(0, 99, n)
    ],
    "visit_date": lambda rng, n: rng.integers(44000, 45000, n),
}
COVARIATES = {
    "age": lambda rng, n: rng.normal(60, 9, n).round(),
    "year": lambda rng, n: rng.integers(1990, 2020, n),
    "paid": lambda rng, n: rng.integers(0, 60, n),
    "platelets": lambda rng, n: rng.choice(np.arange(150000, 400000), n, replace=False),
    "weight": lambda rng, n: rng.normal(70, 9, n).round(1),
    "comma": lambda rng, n: [f"{v:.2f}".replace(".", ",") for v in rng.normal(70, 9, n)],
}


@pytest.mark.parametrize("name", [*IDENTIFIERS, *COVARIATES])
def test_identifiers_and_dates_are_no_covariates_by_default(name):
    rng = np.random.default_rng(4)
    made = (IDENTIFIERS | COVARIATES)[name](rng, 120)
    put("t", **{name: made, "dose": rng.integers(0, 9, 120), "y": rng.integers(0, 9, 120)})
    line = "--target y --model linear"
    words = f"left out, as no covariates: {name!r}"
    data = document(*shlex.split(f"fit t.csv {line} -o t.safetensors"))
    identifier = name in IDENTIFIERS
    assert any(words in note for note in data["notes"]) == identifier
    doubt = any(f"used as a covariate: {name!r}" in note for note in data["notes"])
    assert doubt == (name == "platelets")
    assert ("dose" in data["columns"], name in data["columns"]) == (True, not identifier)
    assert (words in " ".join(succeed("show", "t.safetensors").stdout.split())) == identifier
    sites = f"federate --site t=t.csv {line} --intercept -o f.safetensors"
    document(*shlex.split(sites))
    assert posterity.load("f.safetensors").posterior.names == tuple(["intercept", *data["columns"]])
    if identifier and name != "text":
        data = document(*shlex.split(f"fit t.csv {line} --columns '{name},dose' -o u.safetensors"))
        assert data["columns"] == [name, "dose"]


def test_dates_in_texts_are_to_be_left_out():
    days = [str(DAY + datetime.timedelta(days=k % 9)) for k in range(60)]
    put("t", day=days, x=np.arange(60) % 7, y=np.arange(60) % 5)
    refuse("fit t.csv --target y --model linear -o t.safetensors", 5, "'day'; --without day")


def test_an_identifier_at_one_site_is_one_at_all():
    rng = np.random.default_rng(4)
    put("a", code=np.arange(30), x=rng.normal(size=30), y=rng.normal(size=30))
    put("b", x=rng.normal(size=30), y=rng.normal(size=30), code=[1, 2] * 15)
    line = "federate --site a=a.csv --site b=b.csv --target y --model linear --intercept -o f.x"
    assert told(line, "'code'")
    assert posterity.load("f.x").posterior.names == ("intercept", "x")


def test_without_an_intercept_the_levels_have_means_of_their_own():
    """As `0 + C(x)`; in files of several sites, with their columns in any order."""
    smf = pytest.importorskip("statsmodels.formula.api")
    rng = np.random.default_rng(3)
    count = 200
    data = pd.DataFrame({"sex": rng.choice(["f", "m"], count), "age": rng.normal(size=count)})
    data["part"] = rng.choice(["a", "b", "c"], count)
    data["y"] = np.where(data["sex"] == "m", 5, 3) + data["age"] + rng.normal(size=count)
    data.to_csv("t.csv", index=False)
    data[["part", "y", "age", "sex"]].to_csv("u.csv", index=False)
    levels = "--category sex=f,m --category part=a,b,c --noise-variance 1"
    line = f"--target y --model linear --no-intercept {levels}"
    for site in "tu":
        succeed(*shlex.split(f"fit {site}.csv {line} -o {site}.safetensors"))
    found = posterity.load("t.safetensors").posterior
    names = {"part[a]": "C(part)[a]", "part[b]": "C(part)[b]", "part[c]": "C(part)[c]"}
    names |= {"sex[m]": "C(sex)[T.m]", "age": "age"}
    known = smf.ols("y ~ 0 + C(part) + C(sex) + age", data).fit().params
    assert set(found.names) == set(names)
    for name, mean in zip(found.names, found.mean, strict=True):
        assert mean == pytest.approx(known[names[name]], rel=1e-5)
    succeed("fuse", "t.safetensors", "u.safetensors", "-o", "tu.safetensors")
    twice = posterity.load("tu.safetensors").posterior
    np.testing.assert_allclose(twice.mean, found.mean, rtol=1e-5)
    written = "fit t.csv --model linear --formula 'y ~ 0 + C(sex)' --category sex=f,m"
    succeed(*shlex.split(f"{written} --noise-variance 1 -o v.safetensors"))
    alone = "fit t.csv --target y --model linear --no-intercept --columns sex"
    more = "--category sex=f,m --noise-variance 1 -o w.safetensors"
    succeed(*shlex.split(f"{alone} {more}"))
    one, other = (posterity.load(f"{name}.safetensors").posterior for name in "vw")
    assert one.names == other.names == ("sex[f]", "sex[m]")
    np.testing.assert_allclose(one.mean, other.mean)


@pytest.mark.parametrize(
    "model", ["survival", "ordinal", "proportional-odds", "multinomial", "negative-binomial"]
)
def test_records_of_several_rows_are_in_one_cluster(model):
    """A cluster of records, and of the rows that intervals and levels make of each."""
    rng = np.random.default_rng(1)
    ward = np.repeat(np.arange(50), 6)
    x = rng.normal(size=50)[ward].round(2)
    f = x + rng.normal(size=50)[ward]
    target = {
        "survival": rng.exponential(np.exp(-f)).round(4) + 0.001,
        "negative-binomial": rng.poisson(np.exp(f / 2)),
    }.get(model, np.digitize(f + rng.logistic(size=300), [-1, 1]))
    put("t", y=target, x=x, ward=ward, event=1, wt=np.full(300, 7.5), one=1)
    more = {
        "survival": "--event event --cuts 0.5,1",
        "ordinal": "--category y=0,1,2",
        "proportional-odds": "--category y=0,1,2",
        "multinomial": "--category y=0,1,2",
    }.get(model, "--dispersion 0.1")
    line = f"fit t.csv --target y --model {model} {more} --columns x"
    laws = []
    for flag in ("", "--cluster ward"):
        succeed(*shlex.split(f"{line} {flag} -o t.safetensors"))
        laws.append(posterity.load("t.safetensors").posterior)
    plain, robust = (np.sqrt(law.marginal_variance) for law in laws)
    np.testing.assert_allclose((laws[1].mean - laws[0].mean) / plain, 0, atol=0.05)
    assert (robust / plain).max() > 1.3 and (robust / plain).min() > 0.8
    if model == "multinomial":
        return
    found = []
    for column in ("wt", "one"):  # the unit of weights is of no matter
        weighted = f"{line} --record-weights {column} --weights sampling -o w.safetensors"
        succeed(*shlex.split(weighted))
        found.append(posterity.load("w.safetensors").posterior.covariance)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("count", [6, 39, 40])
def test_few_clusters_are_noted_beside_all_that_is_noted_without_clusters(count):
    """In the file of a fit and of a federation, whose clusters are those of all sites."""
    data = clustered("logistic", 1, count)
    data["drug"] = np.where(data["y"] == 1, 1, np.arange(len(data["y"])) % 2)
    put("t", **data)
    half = data["ward"] % 2 == 0
    for site, rows in (("a", half), ("b", ~half)):
        put(site, **{name: own[rows] for name, own in data.items()})
    line = "--target y --model logistic --columns x,drug -o"
    for command in (
        f"fit t.csv {line} t.safetensors",
        f"federate a.csv b.csv {line} t.safetensors --intercept",
    ):
        before = [note for note in notes(command) if "pass --cluster" not in note]
        after = notes(f"{command} --cluster ward")
        assert {*before} <= {*after} and any("tell the target's" in note for note in before)
        assert any("is skewed" in note for note in before)
        assert sum(f"{count} clusters of 'ward'" in note for note in after) == (count < 40)
        shown = " ".join(succeed("show", "t.safetensors").stdout.split())
        assert ("clusters of 'ward'" in shown) == (count < 40)


def test_what_has_no_sandwich_says_so():
    put("t", **clustered("logistic", 1))
    line = "--model logistic --target y --columns x --cluster ward"
    error = fail(2, *shlex.split(f"fit t.csv {line} --family diagonal -o t.safetensors"))
    assert "sandwich" in error["found"]
    pursue = f"pursue --data t.csv {line} --prior-variance 10 -o t.safetensors"
    assert "fit or federate" in fail(2, *shlex.split(pursue))["expected"]
