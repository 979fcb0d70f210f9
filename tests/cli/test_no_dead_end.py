"""What a site lacks is no dead end: covariates it never recorded, classes it never saw, patients
who withdraw, and names that other programs give to coefficients."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.commands import document, fail, refuse, succeed

import posterity
from posterity.errors import UsageError
from posterity.families import Gaussian
from posterity.tabular import Recipe
from posterity.tabular.reading import names_in_r
from posterity.tabular.sites import sites_in

FORMULA = "--model logistic --formula 'ill ~ age + bmi + missing(bmi)'"


def shell(line):
    return succeed(*shlex.split(line))


def same(one, other):
    one, other = (posterity.load(f"{name}.safetensors").posterior for name in (one, other))
    assert one.names == other.names
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-9, atol=1e-12)


@pytest.fixture
def sites():
    pytest.importorskip("formulaic")
    for seed, site in enumerate(("north", "south")):
        rng = np.random.default_rng(seed)
        data = pd.DataFrame({"age": rng.normal(60, 9, 200).round(), "bmi": rng.normal(27, 4, 200)})
        chance = 1 / (1 + np.exp(-0.06 * (data["age"] - 60) - 0.1 * (data["bmi"] - 27)))
        data["ill"] = 1 * (rng.random(200) < chance)
        data.drop(columns="bmi" if seed else []).to_csv(f"{site}.csv", index=False)


def test_a_covariate_that_a_site_never_recorded(sites):
    for site in ("north", "south"):
        shell(f"fit {site}.csv --target ill --model logistic -o {site}.safetensors")
    refuse("fuse north.safetensors south.safetensors -o b.safetensors", 4, "missing(bmi)")
    refuse("fit south.csv --like north.safetensors -o s.safetensors", 4, "missing(bmi)")
    shell(f"fit north.csv {FORMULA} -o north.safetensors")
    line = "fit south.csv --like north.safetensors -o south.safetensors"
    notes = document(*shlex.split(line))["notes"]
    assert any("no column ['bmi']: missing in every record" in note for note in notes)
    shell("fuse north.safetensors south.safetensors -o b.safetensors")
    both = f"federate north.csv south.csv {FORMULA} -o f.safetensors"
    shell(both)
    one, other = (posterity.load(f"{name}.safetensors").posterior for name in "bf")
    sd = np.sqrt(other.marginal_variance)
    np.testing.assert_allclose((one.mean - other.mean) / sd, 0, atol=0.1)
    south = pd.read_csv("south.csv")
    south.assign(bmi=None).to_csv("south.csv", index=False)
    shell("fit south.csv --like north.safetensors -o empty.safetensors")
    same("south", "empty")
    shell("predict b.safetensors south.csv -o p.csv")
    south[["ill"]].to_csv("bare.csv", index=False)
    refuse("predict b.safetensors bare.csv -o q.csv", 4, "no column 'age' in 'bare.csv'")
    wrong = "fit south.csv --model logistic --target ill --columns agee,bmy -o q.safetensors"
    refuse(wrong, 4, "no columns ['agee', 'bmy'] in 'south.csv'; Write age")
    refuse("forget b.safetensors south -o e.safetensors", 2, "b.safetensors, south; one file")
    shell("forget b.safetensors --site north --site south -o e.safetensors --receipt r.json")
    notes = document("predict", "e.safetensors", "south.csv", "-o", "q.csv")["notes"]
    assert any("the ledger has no sites" in note for note in notes)


def test_what_a_site_keeps_back_is_kept_back_when_a_record_leaves():
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"ill": 1 * (rng.random(57) < 0.4), "age": rng.normal(40, 5, 57)})
    data["patient"] = [f"P{k}" for k in range(57)]
    data.to_csv("a.csv", index=False)
    line = "fit a.csv --target ill --model logistic --columns age -o a.safetensors"
    shell(f"{line} --rounded 50 --no-one-shot")
    shell("forget a.safetensors --site a --data a.csv -o left.safetensors --record patient=P3")
    facts = sites_in(posterity.inspect("left.safetensors").provenance)["a"]
    assert (facts["records"], facts["rounded"]) == (50, 50)
    assert "third" not in facts


CLASSES = ("a", "b", "c")


@pytest.mark.parametrize("absent", CLASSES)
def test_a_scikit_learn_site_without_a_class(absent):
    linear = pytest.importorskip("sklearn.linear_model")
    from posterity.adapters.sklearn import to_ledger

    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 2))
    odds = np.exp(x @ np.array([[0, 0], [1, 0.5], [-1, 1]]).T)
    share = odds / odds.sum(1, keepdims=True)
    y = np.array(CLASSES)[(share.cumsum(1) > rng.random((900, 1))).argmax(1)]
    keep = y != absent
    x, y = x[keep], y[keep]
    model = linear.LogisticRegression(C=1e6, tol=1e-10).fit(x, y)
    names = [f"{label}:{name}" for label in "bc" for name in ("intercept", "x0", "x1")]
    prior = Gaussian.from_standard(np.zeros(6), 100 * np.eye(6)).named(names)
    with pytest.raises(UsageError, match="classes="):
        to_ledger(model, "south", x, y, prior=prior)
    ledger = to_ledger(model, "south", x, y, prior=prior, classes=CLASSES)
    mean = dict(zip(ledger.posterior.names, ledger.posterior.mean, strict=True))
    level = {label: [mean.get(f"{label}:{name}", 0.0) for name in ("intercept", "x0", "x1")]
             for label in CLASSES}  # fmt: skip
    first, second = (label for label in CLASSES if label != absent)
    found = np.array(level[second]) - level[first]
    np.testing.assert_allclose(found, [*model.intercept_, *model.coef_[0]], atol=0.03)
    spread = dict(zip(names, np.sqrt(ledger.posterior.marginal_variance), strict=True))
    if absent != "a":
        assert spread[f"{absent}:x0"] == pytest.approx(10)
    with pytest.raises(UsageError, match="different classes"):
        to_ledger(model, "south", x, y, prior=prior, classes=("a", "z"))


@pytest.mark.parametrize(
    ("value", "left"), [("patient=P003", 2), ("patient=P003 --record age=61", 1), ("age=61", 2)]
)
def test_one_patient_withdraws(value, left):
    """The ledger is that of fits without the records, to the last bit."""
    for seed, site in enumerate("ab"):
        rng = np.random.default_rng(seed)
        data = pd.DataFrame(
            {"ill": 1 * (rng.random(60) < 0.4), "age": rng.normal(40, 5, 60).round()}
        )
        data["patient"] = [f"P{k // 2:03d}" for k in range(60)]
        data.loc[[6, 20], "age"] = 61.0
        data.to_csv(f"{site}.csv", index=False)
        shell(f"fit {site}.csv --target ill --model logistic --columns age -o {site}.safetensors")
    shell("fuse a.safetensors b.safetensors -o ab.safetensors")
    line = "forget ab.safetensors --site a --data a.csv -o left.safetensors"
    found = document(*shlex.split(f"{line} --record {value}"))
    assert (found["withdrawn"], found["exact"]) == (left, True)
    data = pd.read_csv("a.csv")
    gone = data["patient"] == "P003" if "P003" in value else data["age"] == 61
    if left == 1:
        gone &= data["age"] == 61
    data[~gone].to_csv("a.csv", index=False)
    shell("fit a.csv --target ill --model logistic --columns age -o a.safetensors")
    shell("fuse a.safetensors b.safetensors -o never.safetensors")
    one, other = (posterity.load(f"{name}.safetensors") for name in ("left", "never"))
    assert one.posterior == other.posterior
    assert f"Of {120 - left} records" in shell("show left.safetensors").stdout
    Path("left.safetensors").unlink()
    refuse(f"{line} --record {value}", 2, "which no record in 'a.csv' has")
    assert not Path("left.safetensors").exists()


def test_texts_that_recur_may_be_clusters():
    data = pd.DataFrame({"y": np.arange(80) % 7, "x": np.arange(80) % 5})
    data["Patient"] = [f"P{k % 30:03d}" for k in range(80)]
    data["sex"] = ["m", "M", "f", "f  m", "f m"] * 16
    data.to_csv("t.csv", index=False)
    line = "fit t.csv --target y --model linear -o t.safetensors"
    refuse(line, 5, "--without Patient,sex or if a value; --cluster Patient.")
    line = f"{line} --without sex"
    refuse(line, 5, "--cluster Patient.")
    shell(f"{line} --cluster Patient")


def test_what_a_target_is_or_a_code_means_has_an_option():
    data = pd.DataFrame({"dead": [3, 0, 2, 1] * 10, "of": [9, 8, 7, 6] * 10, "x": range(40)})
    data["rate"] = data["dead"] / data["of"]
    data["lab"] = [999, 3, 4, 5, 6] * 8
    data.to_csv("t.csv", index=False)
    line = "fit t.csv --columns lab -o t.safetensors --target"
    refuse(f"{line} dead --model logistic", 3, "--trials")
    refuse(f"{line} rate --model poisson", 3, "--exposure")
    notes = document(*shlex.split(f"{line} dead --model logistic --trials of"))["notes"]
    assert any("--missing 999" in note for note in notes)


def test_a_table_that_is_not_that_of_the_factor_is_refused():
    """Neither does one who withdrew come back, nor is a site fitted to another's records."""
    for seed, site in enumerate("ab"):
        rng = np.random.default_rng(seed)
        data = pd.DataFrame({"ill": 1 * (rng.random(60) < 0.4), "age": rng.normal(40, 5, 60)})
        data["Patient"] = [f"P{k // 2:03d}" for k in range(60)]
        data.loc[[9, 30], "age"] = None
        data.to_csv(f"{site}.csv", index=False)
        line = f"fit {site}.csv --target ill --model logistic --columns age --drop-missing"
        shell(f"{line} -o {site}.safetensors")
    shell("fuse a.safetensors b.safetensors -o ab.safetensors")
    forget = "forget {} --site {} --record {} --data {} -o {}.safetensors"
    shell(forget.format("ab.safetensors", "a", "Patient=P007", "a.csv", "one"))
    other = "which is not what the factor of site 'a' was fitted to"
    refuse(forget.format("one.safetensors", "a", "Patient=P008", "a.csv", "two"), 2, other)
    refuse(forget.format("ab.safetensors", "a", "Patient=P008", "b.csv", "two"), 2, other)
    refuse(forget.format("ab.safetensors", "b", "Patient=P008", "a.csv", "two"), 2, "site 'b'")
    refuse(forget.format("ab.safetensors", "a", "Patient=P008,P0", "a.csv", "two"), 2, "P0, which")
    line = forget.format("ab.safetensors", "a", "Patient=P007", "a.csv", "two")
    refuse(f"{line} --receipt r.json", 2, "--receipt beside --record")
    assert not [*Path().glob("two*"), *Path().glob("r.json")]
    data = pd.read_csv("a.csv")
    data[data["Patient"] != "P007"].to_csv("now.csv", index=False)
    keep = "predict one.safetensors now.csv --keep Patient -o p.csv"
    shell(keep)
    assert pd.read_csv("p.csv")["Patient"].equals(pd.read_csv("now.csv")["Patient"])
    refuse(keep.replace("Patient", "person"), 4, "no column 'person'")
    shell(forget.format("one.safetensors", "a", "Patient=P008", "now.csv", "two"))
    shell(forget.format("ab.safetensors", "a", "Patient=P007,P008", "a.csv", "both"))
    same("two", "both")
    shell("fuse a.safetensors b.safetensors --personal true -o p.safetensors")
    line = forget.format("p.safetensors", "a", "Patient=P008", "a.csv", "two")
    refuse(line, 4, "coefficients differ by site; fit")


def test_what_cannot_withdraw_says_so():
    data = pd.DataFrame({"ill": [0, 1] * 20, "age": np.arange(40) % 9, "patient": range(40)})
    for site in "ab":
        data.to_csv(f"{site}.csv", index=False)
        data = data.assign(age=data["age"] + 1)
    more = "--target ill --model logistic --columns age"
    shell(f"federate a.csv b.csv {more} --intercept -o ab.safetensors")
    line = "forget ab.safetensors --site a --record patient=3 -o left.safetensors"
    refuse(f"{line} --data a.csv", 4, "federate again")
    refuse(line, 2, "--data FILE")
    shell(f"fit a.csv {more} -o a.safetensors")
    line = "forget a.safetensors --site a --data a.csv -o left.safetensors"
    refuse(f"{line} --record person=3", 4, "'patient'; a column of the table")
    refuse(f"{line} --record patient=3 --site c", 2, "one --site")
    line = line.replace("--site a", "--site c")
    refuse(f"{line} --record patient=3", 4, "without site 'c'")


def test_names_of_statsmodels_stata_and_spss_are_those_of_the_shell():
    smf = pytest.importorskip("statsmodels.formula.api")
    rng = np.random.default_rng(1)
    data = pd.DataFrame({"sex": rng.choice(["f", "male"], 150), "age": rng.normal(size=150)})
    data["y"] = 1 + data["age"] + (data["sex"] == "male") + rng.normal(size=150)
    data.to_csv("t.csv", index=False)
    line = "fit t.csv --target y --model linear --category sex=f,male --noise-variance 1"
    shell(f"{line} -o t.safetensors --site t")
    known = smf.ols("y ~ C(sex) + age", data).fit()
    pd.DataFrame({"name": known.params.index, "coef": known.params, "se": known.bse}).to_csv(
        "c.csv", index=False
    )
    known.cov_params().to_csv("v.csv")
    line = "import c.csv --covariance v.csv --site u --flat-prior --prior t.safetensors"
    shell(f"{line} -o u.safetensors")
    assert set(posterity.load("u.safetensors").posterior.names) == {"intercept", "age", "sex[male]"}
    shell("fuse t.safetensors u.safetensors -o tu.safetensors")
    recipe = Recipe("linear", "y", ("sex",), categories={"sex": ("f", "male")})
    names = names_in_r(recipe)
    for other in ("sexmale", "C(sex)[T.male]", "sex[T.male]"):
        assert names[other] == "sex[male]"
    for other in ("(Intercept)", "Intercept", "const", "_cons", "(Constant)"):
        assert names[other] == "intercept"
    own = names_in_r(Recipe("linear", "y", ("smoker",)))
    assert own["smokerTRUE"] == own["smoker[T.True]"] == "smoker"
    for more in ("", " --flat-prior"):
        line = f"import c.csv --site u --prior t.safetensors -o w.safetensors{more}"
        refuse(line, 4, "'c.csv'; 't.safetensors', which has a covariance; Pass --covariance FILE")


def test_the_recipe_page_of_a_withdrawal_is_there():
    page = Path(__file__).parents[2] / "docs" / "forget.md"
    assert "--record patient=" in page.read_text()


ORDERED = "--target pain --category pain=none,mild,severe"


@pytest.fixture
def levels():
    rng = np.random.default_rng(2)
    for site in ("north", "south", "west"):
        x = rng.normal(size=250)
        own = np.digitize(x + rng.logistic(size=250), [-0.5, 1.5])
        data = pd.DataFrame({"x": x, "pain": np.array(["none", "mild", "severe"])[own]})
        data[(site != "south") | (own < 2)].to_csv(f"{site}.csv", index=False)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ordinal", "proportional-odds"])
def test_a_level_that_one_site_lacks_is_said_beside_what_differs(levels, model):
    line = f"federate north.csv south.csv west.csv {ORDERED} --model {model} -o all.safetensors"
    notes = document(*shlex.split(line))["notes"]
    lacks = "south: no record has the level ['severe']: this alone may be why"
    assert any(note.startswith(lacks) for note in notes)
    assert any("sites differ in above[mild]" in note or "'south' contra" in note for note in notes)
    assert "no record has the level" in shell("show all.safetensors").stdout.replace("\n", " ")
    own = line.replace("-o all", "--own above -o own")
    if model == "ordinal":
        assert any(note.startswith(lacks) for note in document(*shlex.split(own))["notes"])
    else:  # thresholds of that site alone, of which no Gaussian holds what its records tell
        refuse(own, 3, "no record with the level ['severe']")


@pytest.mark.parametrize("model", ["ordinal", "proportional-odds"])
def test_ordered_levels_have_thresholds_in_place_of_an_intercept(levels, model):
    model = f"{ORDERED} --model {model}"
    sites = ("north", "west")
    way = "'above' in place of 'intercept'"
    refuse(f"fit north.csv {model} --own intercept -o own.safetensors", 2, way)
    for site in sites:
        shell(f"fit {site}.csv {model} --own above -o {site}.safetensors")
    shell("fuse north.safetensors west.safetensors -o own.safetensors")
    for site in sites:
        shell(f"fit {site}.csv {model} -o {site}.safetensors")
    line = "fuse north.safetensors west.safetensors -o apart.safetensors --personal"
    refuse(f"{line} intercept", 2, way)
    shell(f"{line} above")


def test_clusters_at_one_site_alone_lead_to_clusters_at_all():
    rng = np.random.default_rng(1)
    data = pd.DataFrame({"patient": np.arange(80), "age": rng.normal(60, 9, 80)})
    data = data.assign(y=rng.normal(size=80))
    data.to_csv("north.csv", index=False)
    data.drop(columns="patient").to_csv("plain.csv", index=False)
    pairs = data["patient"] // 2
    data.assign(patient=pairs, y=rng.normal(size=40)[pairs]).to_csv("west.csv", index=False)
    line = "--target y --model linear --columns age -o"
    shell(f"fit north.csv {line} north.safetensors")
    notes = document(*shlex.split("fit west.csv --like north.safetensors -o w.safetensors"))[
        "notes"
    ]
    assert any("pass --cluster patient at every site" in note for note in notes)
    also = "fit west.csv --like north.safetensors --cluster patient -o w.safetensors"
    refuse(also, 2, "or fit every site with it")
    shell(f"fit west.csv {line} west.safetensors --cluster patient")
    for files in ("north.safetensors west.safetensors", "west.safetensors north.safetensors"):
        way = "Fit 'north' again by the recipe of 'west'"
        refuse(f"fuse {files} -o both.safetensors", 4, way)
    shell("fit north.csv --like west.safetensors -o north.safetensors")
    shell("fuse north.safetensors west.safetensors -o both.safetensors")
    numbered = "add a column that numbers them"
    refuse("fit plain.csv --like west.safetensors -o plain.safetensors", 4, numbered)


def test_patients_with_few_records_each_are_clusters_and_a_formula_has_covariates():
    rng = np.random.default_rng(1)
    patients = np.concatenate([np.arange(75), rng.choice(75, 45, replace=False)])
    data = pd.DataFrame({"patient": 1000 + patients, "age": rng.normal(60, 9, 120)})
    data = data.assign(y=rng.normal(size=120))
    data.to_csv("t.csv", index=False)
    line = "fit t.csv --target y --model linear -o t.safetensors"
    notes = document(*shlex.split(line))["notes"]
    assert any("'patient' (75 different whole numbers in 120 records)" in note for note in notes)
    assert any("pass --cluster patient" in note for note in notes)
    shell(f"{line} --columns age --cluster patient")
    pytest.importorskip("formulaic")
    data = data.assign(dose=np.sort(rng.integers(1, 15, 120))).drop(columns="patient")
    data.to_csv("t.csv", index=False)
    line = "fit t.csv --model linear -o t.safetensors --formula 'y ~ age + dose'"
    assert not any("--cluster" in note for note in document(*shlex.split(line))["notes"])
    refuse(f"{line} --target y", 2, "--target beside --formula; Leave --target out")


@pytest.mark.parametrize("role", ["record-weights", "trials"])
def test_a_table_without_weights_has_ones(role):
    data = pd.DataFrame({"y": np.arange(40) % 7 % 2, "x": np.arange(40) % 5, "n": [1, 2] * 20})
    data.to_csv("a.csv", index=False)
    data.drop(columns="n").to_csv("b.csv", index=False)
    shell(f"fit a.csv --target y --model logistic --columns x --{role} n -o a.safetensors")
    line = "fit b.csv --like a.safetensors -o b.safetensors"
    refuse(line, 4, f"no column 'n'; the column of --{role}; add it, with 1 in each record")
    data.assign(n=1).to_csv("b.csv", index=False)
    shell(line)
    shell("fuse a.safetensors b.safetensors -o ab.safetensors")


def test_flags_that_differ_are_none_in_one_file():
    data = pd.DataFrame(
        {"y": np.arange(40) % 7, "x": np.arange(40) % 5, "ward": np.arange(40) % 13}
    )
    data.to_csv("t.csv", index=False)
    line = "fit t.csv --target y --model linear --columns x"
    shell(f"{line} -o a.safetensors")
    shell(f"{line} --cluster ward -o b.safetensors")
    refuse("fuse a=a.safetensors b=b.safetensors -o c.safetensors", 4, '--cluster none and "ward"')
    refuse("fit t.csv --like a.safetensors --columns x -o c.safetensors", 2, "--columns beside")


@pytest.mark.slow
def test_a_file_in_which_sites_differ_already_is_not_pooled_again():
    rng = np.random.default_rng(3)
    for site in "abcd":
        x = rng.normal(size=30)
        y = "abcd".index(site) + x + rng.normal(size=30)
        pd.DataFrame({"x": x, "y": y}).to_csv(f"{site}.csv", index=False)
    sites = "a.csv b.csv c.csv d.csv --model linear --noise-variance 1 --target y --intercept"
    line = f"federate {sites} --personal true -o pooled.safetensors"
    cut = document(*shlex.split(f"{line} --steps 4 --tolerance 1e-3"), code=9)
    assert "--steps 8 goes on from the checkpoint" in cut["warning"]
    for site in "abcd":
        shell(f"fit {site}.csv --model linear --noise-variance 1 --target y -o {site}.safetensors")
    files = " ".join(f"{site}.safetensors" for site in "abcd")
    shell(f"fuse {files} --personal intercept -o f.safetensors")
    for file in ("pooled", "f"):
        line = f"fuse {file}.safetensors -o again.safetensors --personal intercept"
        refuse(line, 2, "files whose sites differ already; without --own")


def test_records_of_weight_zero_are_those_that_are_not_there():
    rng = np.random.default_rng(0)
    data = pd.DataFrame(rng.normal(size=(60, 2)), columns=["x", "y"])
    data = data.assign(w=rng.choice([0, 1, 2.5], 60), ward=np.arange(60) % 12)
    data.to_csv("t.csv", index=False)
    data[data["w"] > 0].to_csv("u.csv", index=False)
    line = "--target y --model linear --columns x --record-weights w --weights sampling --site t"
    for more in ("", " --cluster ward"):
        notes = document(*shlex.split(f"fit t.csv {line}{more} -o t.safetensors"))["notes"]
        left = (data["w"] == 0).sum()
        assert f"{left} records of weight 0 are left out" in notes
        shell(f"fit u.csv {line}{more} -o u.safetensors")
        one, other = (posterity.load(f"{name}.safetensors") for name in "tu")
        assert one == other
    shell(f"fit u.csv {line} -o u.safetensors")
    data.assign(x=data["x"].where(data["w"] > 0)).to_csv("t.csv", index=False)  # with gaps there
    shell(f"fit t.csv {line} -o t.safetensors")
    assert posterity.load("t.safetensors") == posterity.load("u.safetensors")
    data.assign(w=-1).to_csv("t.csv", index=False)
    refuse(f"fit t.csv {line} -o t.safetensors", 5, "'w' in line 2 that is not positive")


@pytest.mark.parametrize("model", ["logistic --target ill", "survival --target time --event ill"])
def test_a_row_is_scored_as_the_number_of_records_that_its_weight_is(model):
    rng = np.random.default_rng(1)
    data = pd.DataFrame({"x": rng.normal(size=60), "ill": rng.choice([0, 1], 60)})
    data = data.assign(time=rng.exponential(size=60) + 0.1, w=rng.choice([0, 1, 3], 60))
    data.to_csv("t.csv", index=False)
    data.loc[data.index.repeat(data["w"])].assign(w=1).to_csv("u.csv", index=False)
    more = "--cuts 1" if "time" in model else ""
    line = f"fit t.csv --model {model} {more} --columns x -o t.safetensors --record-weights w"
    shell(line)
    found, other = (document("evaluate", "t.safetensors", f"{name}.csv") for name in "tu")
    for groups in zip(*(own["all"].pop("calibration", []) for own in (found, other)), strict=True):
        assert groups[0] == pytest.approx(groups[1], rel=1e-12)
    assert found["all"] == pytest.approx(other["all"], rel=1e-12)
    zero = (data["w"] == 0).sum()
    assert found["notes"] == [
        f"{zero} records of weight 0 are left out",
        f"{60 - zero} rows of the table count as {data['w'].sum()} records in the scores",
    ]
    shell("report t.safetensors --data t.csv -o t.html")
    assert f"On {data['w'].sum()} records of t.csv." in Path("t.html").read_text()
    shell(f"{line} --weights sampling")
    scored = document("evaluate", "t.safetensors", "t.csv")
    assert scored["all"]["records"] == 60 - zero
    assert any("counts once in the scores" in note for note in scored["notes"])
    data.assign(w=0).to_csv("t.csv", index=False)
    refuse("evaluate t.safetensors t.csv", 4, "no records in 't.csv'; 60 records of weight 0")


def test_a_table_whose_weights_are_all_zero_is_one_of_no_records():
    data = pd.DataFrame({"x": range(40), "ill": [0, 1, 1, 0] * 10, "w": 1})
    data.to_csv("t.csv", index=False)
    data.assign(w=0).to_csv("none.csv", index=False)
    line = "--model logistic --target ill --record-weights w"
    shell(f"fit t.csv {line} -o t.safetensors")
    none = "no records in 'none.csv'; 40 records of weight 0 are left out"
    for way in (line, "--like t.safetensors"):
        refuse(f"fit none.csv {way} -o none.safetensors", 4, none)
    shell(f"federate t.csv none.csv {line} --intercept -o f.safetensors")
    same("t", "f")


def test_advice_with_names_of_columns_can_be_pasted_into_a_shell(tmp_path):
    pytest.importorskip("formulaic")
    name = "CRP (mg/L)"
    data = pd.DataFrame({"ill": [0, 1] * 20, "age": range(40), name: [2, 3, 5, 4] * 10})
    data.to_csv("a.csv", index=False)
    data.rename(columns={name: "CRP in mg"}).to_csv("b.csv", index=False)
    shell("fit a.csv --target ill --model logistic -o a.safetensors")
    lacking = fail(4, *shlex.split("fit b.csv --like a.safetensors -o b.safetensors"))["fix"]
    rename = "--rename 'CRP (mg/L)=CRP in mg'"
    term = "missing(`CRP (mg/L)`)"
    assert rename in lacking and term in lacking
    shell(f"fit b.csv --like a.safetensors {rename} -o b.safetensors")
    formula = shlex.quote(f"ill ~ age + `{name}` + {term}")
    shell(f"fit a.csv --model logistic --formula {formula} -o a.safetensors")
    shell("fit b.csv --like a.safetensors -o b.safetensors")
    refuse(
        f"fit b.csv --like a.safetensors --unit '{name}=g' -o c.safetensors",
        2,
        f"--convert '{name}=FACTOR'",
    )


def test_names_and_levels_that_are_nearly_right_are_shown(tmp_path):
    data = pd.DataFrame({"ill": [0, 1] * 10, "sexe": ["homme", "femme"] * 10, "age": range(20)})
    data.to_csv("t.csv", index=False)
    line = "fit t.csv --model logistic -o t.safetensors"
    refuse(f"{line} --target il", 4, "Write ill; --rename il=ill")
    refuse(f"{line} --target disease", 4, "Use the table's name")
    way = "--category sexe=TEXT,TEXT; ['femme', 'homme']"
    refuse(f"{line} --target ill --category sexe=1,2", 5, way)
    shell(f"{line} --target ill --category sexe=femme,homme")
    refuse(f"{line} --target ill --category sexe=homme,f", 5, "'femme' in line 3; at every site")
    refuse("forget t.safetensors --site nowhere -o u.safetensors", 6, "'nowhere'")
    refuse("forget t.safetensors --site t -o u.safetensors", 2, "--receipt")
    text = "[data]\ndrop-missing = true\ncategory = { sexe = ['femme', 'homme'] }\n"
    Path("t.toml").write_text(f"{text}[model]\ntarget = 'ill'\nkind = 'logistic'\n")
    data.assign(age=[None, *range(19)]).to_csv("t.csv", index=False)
    assert document(*shlex.split("fit t.toml t.csv -o t.safetensors"))["dropped"] == 1


def test_a_site_with_labels_of_one_kind_is_told_in_a_federation(tmp_path):
    rng = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        age = rng.normal(size=60)
        ill = (rng.random(60) < 0.5) * (site != "west")
        pd.DataFrame({"ill": ill.astype(int), "age": age}).to_csv(f"{site}.csv", index=False)
    line = "federate north.csv south.csv west.csv --target ill --model logistic -o f.safetensors"
    assert "the target is 0 in every record: this alone" in shell(line).stderr
    for site in ("north", "west"):
        shell(f"fit {site}.csv --target ill --model logistic -o {site}.safetensors")
    told = shell("fuse north.safetensors west.safetensors -o both.safetensors").stderr
    assert "all but ignore the records of west. If the sites can take part again, federate" in told
    assert "note: west: the target is 0 in every record" in told and "may hardly count" in told


def test_a_column_of_one_site_alone_is_named_with_those_of_all(tmp_path):
    data = pd.DataFrame({"ill": [0, 1] * 10, "age": np.arange(20) % 9, "bmi": np.arange(20) % 7})
    data.to_csv("north.csv", index=False)
    data.assign(crp=0.5).to_csv("south.csv", index=False)
    line = "federate north.csv south.csv --target ill --model logistic -o f.safetensors"
    refuse(line, 4, "site 'south'; ['crp'] unknown; --columns age,bmi")
    shell(f"{line} --columns age,bmi")
