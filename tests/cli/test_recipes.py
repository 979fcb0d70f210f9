"""A posterior that knows its model: recipes from a table to a prediction, in every unit."""

import csv
import dataclasses
import json
import re
import shlex
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, refuse, succeed
from scipy.special import expit, logsumexp
from scipy.stats import norm, poisson

import posterity
from posterity.errors import ArtifactError
from posterity.families import Gaussian, Mixture
from posterity.tabular import Reading, fit
from posterity.tabular.design import design
from posterity.tabular.one_shot import expected_distance
from posterity.tabular.predict import log_predictive, predict
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.scores import scores, with_interval
from posterity.tabular.sites import (
    as_provenance,
    kept,
    listed,
    moved,
    sites_in,
    tensor,
)
from posterity.tabular.tables.reader import read_cells

SMOKING = ("no", "ex", "yes")


def records(count, seed):
    rng = np.random.default_rng(seed)
    age, ldl = rng.normal(62, 9, count).round(), rng.normal(130, 25, count).round(1)
    smoker, years = rng.choice(SMOKING, count), rng.gamma(3, 1, count).round(2) + 0.1
    f = 0.06 * (age - 62) + 0.01 * (ldl - 130) + 0.6 * (smoker == "yes")
    return {
        "age": age, "ldl": ldl, "smoker": smoker, "years": years,
        "ill": (rng.random(count) < expit(f)).astype(int),
        "bp": (120 + 6 * f + rng.normal(0, 5, count)).round(1),
        "visits": rng.poisson(years * np.exp(f / 2)),
    }  # fmt: skip


def put(name, columns, delimiter=","):
    with Path(name).open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def rows(name):
    with Path(name).open() as file:
        return {
            key: np.array([float(cell or "nan") for cell in column])
            for key, column in zip(
                *(lambda lines: (lines[0], zip(*lines[1:], strict=True)))(list(csv.reader(file))),
                strict=True,
            )
        }


def take(columns, *names, rows=slice(None)):
    return {name: np.asarray(columns[name])[rows] for name in names}


def test_four_ugly_tables_become_one_model_that_predicts_raw_records():
    """Units, decimal commas, labels, order of columns and a level that one site never saw."""
    north, south, east = records(240, 0), records(180, 1), records(60, 2)
    names = ("age", "ldl", "smoker", "ill")
    keep = east["smoker"] != "ex"
    whole = {n: np.concatenate([north[n][1:], south[n], east[n][keep]]) for n in names}
    put("whole.csv", whole)
    ragged = take(north, *names)
    ragged["ldl"] = ["", *ragged["ldl"][1:]]
    put("north.csv", {"id": range(240), **ragged})
    put("south.csv", {
        "ill": np.where(south["ill"] == 1, "yes", "no"), "smoker": south["smoker"],
        "LDL-C": [f"{value / 38.67:.9f}".replace(".", ",") for value in south["ldl"]],
        "age": south["age"].astype(int),
    }, ";")  # fmt: skip
    put("east.csv", take(east, *reversed(names), rows=keep))
    flags = ("--target", "ill", "--model", "logistic", "--columns", "age,ldl,smoker",
             "--category", "smoker=no,ex,yes", "--center", "age=60", "--scale", "age=10",
             "--center", "ldl=130", "--scale", "ldl=25", "--unit", "ldl=mg/dL")  # fmt: skip
    refuse("fit north.csv --target ill --model logistic -o n.safetensors --without id,smoker", 5,
           "--drop-missing")  # fmt: skip
    data = document("fit", "north.csv", *flags, "--drop-missing", "-o", "n.safetensors")
    assert (data["records"], data["dropped"]) == (239, 1)
    line = "fit south.csv --like n.safetensors -o s.safetensors --rename ldl=LDL-C"
    refuse(f"{line} --unit ldl=mmol/L --category ill=no,yes", 2, "mmol/L; mg/dL; --convert ldl")
    refuse(f"{line} --center age=60", 2, "--center; --like")
    mend = ("--unit", "ldl=mmol/L", "--convert", "ldl=38.67", "--category", "ill=no,yes")
    succeed(*line.split(), *mend)
    succeed("fit", "east.csv", "--like", "n.safetensors", "-o", "e.safetensors")
    data = document("fuse", "n.safetensors", "s.safetensors", "e.safetensors", "-o",
                    "all.safetensors")  # fmt: skip
    assert data["rule"] == "product" and "read as no and yes" in data["notes"][0]
    succeed("fit", "whole.csv", *flags, "-o", "whole.safetensors")
    fused, pooled = (posterity.load(f"{n}.safetensors").posterior for n in ("all", "whole"))
    away = (fused.mean - pooled.mean) / np.sqrt(pooled.marginal_variance)
    assert abs(away).max() < 0.1, "one shot, of sites with records enough"
    told = document("predict", "all.safetensors", "north.csv", "-o", "p.csv")
    assert told["records"] == 239 and "1 of 240 records" in told["notes"][-1]
    succeed("predict", "whole.safetensors", "north.csv", "-o", "q.csv")
    ours, theirs = rows("p.csv"), rows("q.csv")
    assert np.isnan(ours["p"][0]) and len(ours["p"]) == 240
    np.testing.assert_allclose(ours["p"][1:], theirs["p"][1:], atol=0.02)
    converted = ("--convert", "ldl=38.67", "--rename", "ldl=LDL-C")
    scored = document("evaluate", "all.safetensors", "south.csv", *converted)
    assert scored["all"]["records"] == 180
    about = succeed("show", "all.safetensors").stdout
    total, used = re.search(r"Of (\d+) records, 1 dropped, (\d+) used\.", about).groups()
    assert "ill (yes rather than no)" in about and int(total) == int(used) + 1
    assert "ldl (in mg/dL, from 130, by 25)" in " ".join(about.split())


def test_federate_reads_the_same_tables_and_ends_at_the_pooled_posterior():
    """A site of one class adds what it knows, and one of other units is read in the model's."""
    north, south = records(120, 3), records(90, 4)
    south["ill"][:] = 0
    names = ("age", "ldl", "smoker", "ill")
    put("whole.csv", {n: np.concatenate([north[n], south[n]]) for n in names})
    put("north.csv", take(north, *names))
    put("south.csv", {**take(south, "smoker", "age"), "ldl": south["ldl"] / 38.67,
                      "sick": np.where(south["ill"] == 1, "yes", "no")})  # fmt: skip
    flags = ("--target", "ill", "--model", "logistic", "--columns", "age,ldl,smoker",
             "--category", "smoker=no,ex,yes", "--center", "age=60")  # fmt: skip
    own = 'south={convert={ldl=38.67},rename={ill="sick"},category={ill="no,yes"}}'
    data = document("federate", "--site", "north=north.csv", "--site", "south=south.csv", *flags,
                    "--intercept", "--table", own, "-o", "f.safetensors")  # fmt: skip
    assert data["status"]["state"] == "converged"
    succeed("fit", "whole.csv", *flags, "-o", "whole.safetensors")
    one, other = (posterity.load(f"{name}.safetensors").posterior for name in ("f", "whole"))
    assert float(one.kl(other)) < 1e-3
    told = recipe_in(posterity.inspect("f.safetensors").provenance)
    assert told is not None and told.levels == ("no", "yes")
    succeed("predict", "f.safetensors", "north.csv", "-o", "p.csv")
    succeed("predict", "whole.safetensors", "north.csv", "-o", "q.csv")
    np.testing.assert_allclose(rows("p.csv")["p"], rows("q.csv")["p"], atol=1e-3)
    line = "federate --site north=north.csv --model logistic --target ill -o g.safetensors"
    refuse(f"{line} --table west={{}}", 2, "'west'; north")
    refuse(f"{line} --columns age --table 'north={{scale={{age=2}}}}'", 2, "tables.north.scale")
    line = f"{line} --columns ldl --unit ldl=mg/dL"
    unit = 'unit={ldl="mmol/L"}'
    refuse(f"{line} --table 'north={{{unit}}}'", 2, "ldl=mmol/L; mg/dL in the model; --convert")
    succeed(*shlex.split(f"{line} --table 'north={{{unit},convert={{ldl=38.67}}}}'"))


@pytest.mark.parametrize(
    "model", ["logistic", "multinomial", "ordinal", "proportional-odds", "cuts", "spline", "own"]
)
def test_a_forgotten_conversion_is_noticed(model):
    """By fit beside the file that it is like, by fuse, federate of the tables, and predict.

    Records are counted as in the file, also where each is several lines of a regression.
    """
    flags = "--target ill"
    for site, (seed, factor) in {"n": (0, 1.0), "s": (1, 1 / 38.67)}.items():
        table = take(records(150, seed), "age", "ldl", "ill")
        table["ldl"] = table["ldl"] * factor
        if model in ("cuts", "spline"):
            table |= {"event": table.pop("ill"), "months": 1 + table["age"] % 7}
            hazard = " --hazard spline" * (model == "spline")
            flags = f"--target months --event event --cuts 2,3,5{hazard}"
        elif model in ("multinomial", "ordinal", "proportional-odds"):
            table["ill"] = np.array(["a", "b", "c"])[
                (table["ill"] + (table["age"] > 55)).astype(int)
            ]
            flags = "--target ill --category ill=a,b,c"
        elif model == "own":
            flags = "--formula ill~age+ldl+age:ldl --own intercept"
        put(f"{site}.csv", table)
    kind = {"own": "logistic", "cuts": "survival", "spline": "survival"}.get(model, model)
    succeed(*f"fit n.csv {flags} --model {kind} -o n.safetensors".split())
    command = "fit s.csv --like n.safetensors -o s.safetensors"
    fitted = document(*command.split())["notes"]
    fused = document("fuse", "n.safetensors", "s.safetensors", "-o", "o.safetensors")["notes"]
    command = "federate --site n=n.csv --site s=s.csv --like n.safetensors -o f.safetensors"
    federated = document(*command.split())
    assert [site["records"] for site in federated["sites"].values()] == [150, 150]
    command = f"predict n.safetensors s.csv -o p.csv{' --times 2' * (kind == 'survival')}"
    predicted = document(*command.split())["notes"]
    for notes in (fitted, fused, federated["notes"], predicted):
        (note,) = [note for note in notes if "is the unit the same?" in note]
        assert all(word in note for word in ("'ldl'", "--convert ldl=FACTOR", "about 3"))


def test_a_column_that_varies_little_is_doubted_in_units_that_are_near():
    """Centimetres and inches; °C and °F, of which no factor makes the other; a year and an age."""
    rng = np.random.default_rng(0)
    height = rng.normal(170, 9, 100)
    warm = rng.normal(37, 0.7, 100)
    age = rng.normal(60, 10, 100)
    target = rng.normal(size=100)
    put("a.csv", {"height": height, "warm": warm, "age": age, "y": target})
    other = {"height": height / 2.54, "warm": 32 + 1.8 * warm, "age": 2020 - age, "y": target}
    put("b.csv", other)
    flags = "--model linear --target y --noise-variance 1 --intercept"
    notes = document(*f"federate a=a.csv b=b.csv {flags} -o f.safetensors".split())["notes"]
    doubts = [note for note in notes if "is the unit the same?" in note]
    assert [note.split("'")[1] for note in doubts] == ["age", "height", "warm"]
    assert ["--convert height=FACTOR, which is about 2.5" in note for note in doubts] == [0, 1, 0]
    assert ["--convert" in note for note in doubts] == [0, 1, 0]


def test_no_unit_is_doubted_of_a_few_records_or_of_an_indicator():
    """Standard normals in 14 sites of 5, whose means differ by any factor, and a column of 0 and 1
    that is constant at a site and in the table of predict; factors of 100 and 1000 are noticed.
    """
    rng, sites = np.random.default_rng(3), []
    for site in range(14):
        x = rng.normal(size=(5, 2))
        table = {"a": x[:, 0], "b": 5 + x[:, 1], "m": np.full(5, site % 2), "y": x.sum(1)}
        put(f"s{site}.csv", table)
        sites += ["--site", f"s{site}=s{site}.csv"]
    flags = "--model linear --target y --noise-variance 1 --intercept"
    doubts = lambda notes: [note for note in notes if "is the unit the same?" in note]
    done = document(*f"federate {' '.join(sites)} {flags} -o f.safetensors".split())
    predicted = document("predict", "f.safetensors", "s1.csv", "-o", "p.csv")
    assert doubts(done["notes"]) == doubts(predicted["notes"]) == []
    put("s1.csv", {**table, "a": 1000 * table["a"], "b": 100 * table["b"]})
    done = document(*f"federate {' '.join(sites)} {flags} -o g.safetensors".split())
    for name in "ab":
        assert any(f"table of 's1': --convert {name}=" in note for note in doubts(done["notes"]))
    assert len(doubts(done["notes"])) == 2


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (("--columns", "age"), "--columns; --rename"),
        (("--unit", "ldl=mmol/L"), "--unit; mg/dL; mmol/L; --convert"),
        (("--no-intercept",), "--intercept true and false"),
        (("--model", "linear"), "--model"),
        (("--columns", "age,ldl", "--family", "diagonal"), "--family"),
    ],
)
def test_what_cannot_be_reconciled_is_refused_with_the_command_that_mends_it(other, words):
    put("t.csv", take(records(60, 0), "age", "ldl", "ill"))
    line = ["fit", "t.csv", "--target", "ill", "--prior-sd", "5", "-o"]
    usual = ["--model", "logistic", "--unit", "ldl=mg/dL"]
    succeed(*line, "a.safetensors", "--site", "a", *usual)
    kept = [] if "--model" in other else usual[: 2 if {"--unit", "age"} & {*other} else 4]
    succeed(*line, "b.safetensors", "--site", "b", *kept, *other)
    refuse("fuse a.safetensors b.safetensors -o c.safetensors", 4,
           f"'a' and 'b'; {words}; posterity fit TABLE --like FILE")  # fmt: skip


COMMON = Recipe("linear", "bp", ("age", "ldl", "smoker"), categories={"smoker": SMOKING},
                center={"age": 60}, scale={"age": 10, "ldl": 25}, noise_variance=25.0)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"center": {"age": 50, "ldl": 3}, "scale": {"ldl": 0.1}},
        {"categories": {"smoker": ("yes", "no", "ex")}},
        {"categories": {"smoker": ("no", "yes")}},
        {"center": {"age": 60, "bp": 120}, "scale": {"age": 10, "ldl": 25, "bp": 10},
         "noise_variance": 0.25},
    ],
)  # fmt: skip
def test_sites_in_other_units_and_levels_are_fused_as_one_fit_of_both(change):
    """Exactly, of a linear model with known noise, whatever form a site's own file has."""
    north, south = records(80, 0), records(70, 1)
    if change.get("categories") == {"smoker": ("no", "yes")}:
        keep = south["smoker"] != "ex"
        south = {name: values[keep] for name, values in south.items()}
    names = ("age", "ldl", "smoker", "bp")
    put("north.csv", take(north, *names))
    put("south.csv", take(south, *names))
    put("all.csv", {n: np.concatenate([north[n], south[n]]) for n in names})
    whole = fit("all.csv", COMMON).ledger.posterior
    own = dataclasses.replace(COMMON, **change)
    for name, recipe in (("north", COMMON), ("south", own)):
        made = fit(f"{name}.csv", recipe)
        posterity.save(made.ledger, f"{name}.safetensors", provenance=made.provenance)
    data = document("fuse", "north.safetensors", "south.safetensors", "-o", "both.safetensors")
    assert any("'south' is put into the units" in note for note in data["notes"])
    fused = posterity.load("both.safetensors").posterior
    assert fused.names == whole.names
    sd = np.sqrt(whole.marginal_variance)
    np.testing.assert_allclose((fused.mean - whole.mean) / sd, 0, atol=1e-6)
    np.testing.assert_allclose(fused.covariance / np.outer(sd, sd),
                               whole.covariance / np.outer(sd, sd), atol=1e-6)  # fmt: skip
    recipe = recipe_in(posterity.inspect("both.safetensors").provenance)
    assert recipe is not None and recipe.center == {"age": 60.0}


@pytest.mark.parametrize(
    "model, target, line, other, words",
    [
        ("logistic", "ill", "--category ill=no,yes", "--category ill=yes,no", "--category"),
        ("linear", "bp", "--noise-variance 1", "--noise-variance 1 --scale bp=10", "--scale"),
    ],
)
def test_an_offset_goes_with_one_form_of_the_target(model, target, line, other, words):
    """Its sign and size do not change with the coefficients', so that no affine function helps."""
    columns = take(records(40, 0), "age", "years", target)
    if model == "logistic":
        columns[target] = np.where(columns[target] == 1, "yes", "no")
    put("t.csv", columns)
    for site, own in {"a": line, "b": other}.items():
        succeed(*f"fit t.csv --target {target} --model {model} --offset years {own} --site {site} "
                f"-o {site}.safetensors".split())  # fmt: skip
    refuse("fuse a.safetensors b.safetensors -o c.safetensors", 4, f"{words}; posterity fit")


def test_labels_of_a_formulas_target_may_be_known_at_one_site_alone():
    for site in "ab":
        columns = take(records(40, ord(site)), "age", "ill")
        if site == "b":
            columns["ill"] = np.where(columns["ill"] == 1, "yes", "no")
        put(f"{site}.csv", columns)
    succeed("fit", "a.csv", "--model", "logistic", "--formula", "ill ~ age", "-o", "a.safetensors")
    succeed("fit", "b.csv", "--like", "a.safetensors", "--category", "ill=no,yes",
            "-o", "b.safetensors")  # fmt: skip
    data = document("fuse", "a.safetensors", "b.safetensors", "-o", "c.safetensors")
    assert "read as no and yes" in data["notes"][0]
    assert recipe_in(posterity.inspect("c.safetensors").provenance).levels == ("no", "yes")


def test_a_level_is_named_once_by_each_table():
    put("t.csv", take(records(40, 0), "smoker", "ill"))
    flags = "--target ill --model logistic --category smoker=no,ex,yes"
    succeed(*f"fit t.csv {flags} -o a.safetensors".split())
    for levels in ("no,ex,ex,yes", "no,no,yes", "no,yes"):
        like = f"fit t.csv --like a.safetensors --category smoker={levels} -o b.safetensors"
        refuse(like, 2, "the table's own text for each of ['no', 'ex', 'yes'], in this order")


def test_labels_that_are_0_and_1_are_matched_by_their_texts():
    columns = take(records(60, 0), "age", "ill")
    put("t.csv", columns)
    put("u.csv", {"age": columns["age"], "ill": 1 - columns["ill"]})
    line = "--target ill --model logistic --center age=60 --scale age=10"
    for site, own in {"a": line, "b": line, "c": f"{line} --category ill=1,0"}.items():
        succeed(*f"fit t.csv {own} --site {site} -o {site}.safetensors".split())
    like = "fit u.csv --like a.safetensors --category ill=1,0 --site b -o d.safetensors"
    assert "1, 0 in 'ill' are read as 0, 1" in document(*like.split())["notes"]

    def fused(*sites):
        files = [f"{site}.safetensors" for site in sites]
        assert "read as" not in str(document("fuse", *files, "-o", "f.safetensors")["notes"])
        return posterity.load("f.safetensors").posterior.mean

    mean = fused("a", "b")
    assert abs(mean[1]) > 0.1
    for sites, sign in {"ac": 1, "ca": -1, "ad": 1, "cd": -1}.items():
        np.testing.assert_allclose(fused(*sites), sign * mean, rtol=1e-6)


def test_numbers_of_records_that_are_rounded_to_nothing_leave_the_rest():
    put("t.csv", take(records(40, 0), "age", "bp"))
    for site in "ab":
        succeed(*f"fit t.csv --target bp --model linear --rounded 100 --site {site} "
                f"-o {site}.safetensors".split())  # fmt: skip
    succeed("fuse", "a.safetensors", "b.safetensors", "-o", "c.safetensors")
    for file in "ac":
        assert document("evaluate", f"{file}.safetensors", "t.csv")["all"]["coverage"] > 0.5


UNITS = [
    {},
    {"center": {"age": 60, "ldl": 130}},
    {"center": {"age": 60, "ldl": 130}, "scale": {"age": 10, "ldl": 25}},
]


@pytest.mark.parametrize(("model", "target"), [
    ("linear", "bp"), ("logistic", "ill"), ("poisson", "visits"),
])  # fmt: skip
def test_predictions_are_those_of_the_raw_columns_in_any_unit(model, target):
    """Under a prior that says nothing, and against sums over many draws of the coefficients."""
    columns = records(150, 3)
    put("t.csv", columns)
    exposure = {"exposure": "years"} if model == "poisson" else {}
    results = []
    for units in UNITS:
        recipe = Recipe(model, target, ("age", "ldl", "smoker"), categories={"smoker": SMOKING},
                        prior_sd={"": 1e6}, **units, **exposure)  # fmt: skip
        if model == "linear" and units:
            recipe = dataclasses.replace(recipe, center={**units["center"], target: 100.0},
                                         scale={**units.get("scale", {}), target: 7.0})  # fmt: skip
        made = fit("t.csv", recipe)
        from posterity.tabular.tables.reader import read_cells

        data = design(read_cells(Path("t.csv")), made.recipe, predicting=True)
        noise = {"noise_variance": made.noise_variance}
        results.append(predict(made.ledger.posterior, made.recipe, data, **noise, level=0.8))
        score = log_predictive(made.ledger.posterior, made.recipe, data, made.noise_variance)
        results[-1]["score"] = score
    for other in results[1:]:
        for name, values in results[0].items():
            np.testing.assert_allclose(other[name], values, rtol=2e-4, atol=1e-6)
    rng = np.random.default_rng(0)
    q, x = made.ledger.posterior, data.x
    draws = rng.multivariate_normal(q.mean, q.covariance, 20_000) @ x.T
    found, y = results[-1], np.asarray(columns[target])
    low, high = np.quantile(draws, [0.1, 0.9], axis=0)
    if model == "logistic":
        chance = expit(draws)
        error = chance.std(0) / np.sqrt(len(draws))
        assert (abs(found["p"] - chance.mean(0)) < 5 * error).all()
        inner = -(chance * np.log(chance) + (1 - chance) * np.log1p(-chance)).mean(0)
        np.testing.assert_allclose(found["entropy"] - found["mutual_information"], inner, atol=4e-3)
        low, high = expit(low), expit(high)
        logs = np.log(np.where(y == 1, chance.mean(0), 1 - chance.mean(0)))
    elif model == "poisson":
        rate = columns["years"] * np.exp(draws)
        np.testing.assert_allclose(found["mean"], rate.mean(0), rtol=0.02)
        np.testing.assert_allclose(found["variance"], rate.var(0), rtol=0.1)
        low, high = columns["years"] * np.exp(low), columns["years"] * np.exp(high)
        logs = logsumexp(poisson.logpmf(y, rate), axis=0) - np.log(len(draws))
    else:
        mean, sd = 100 + 7 * draws.mean(0), np.sqrt(49 * (draws.var(0) + made.noise_variance))
        np.testing.assert_allclose(found["target_high"], mean + norm.ppf(0.9) * sd, rtol=0.002)
        low, high = 100 + 7 * low, 100 + 7 * high
        logs = norm.logpdf(y, mean, sd)
    np.testing.assert_allclose(found["low"], low, rtol=0.05, atol=1e-3)
    np.testing.assert_allclose(found["high"], high, rtol=0.05, atol=1e-3)
    np.testing.assert_allclose(found["score"], logs, atol=0.03)


def test_records_of_an_unknown_level_are_left_out_of_predictions():
    columns = take(records(60, 0), "age", "smoker", "ill")
    put("t.csv", columns)
    category = f"--category=smoker={','.join(SMOKING)}"
    line = f"fit t.csv --model logistic --target ill -o t.safetensors {category}"
    succeed(*line.split())
    odd = {**columns, "smoker": [*columns["smoker"][:-2], "pipe", ""]}
    put("n.csv", odd)
    data = document("predict", "t.safetensors", "n.csv", "-o", "p.csv")
    assert data["records"] == 58 and "'pipe'] in line 60" in data["notes"][0]
    assert np.isnan(rows("p.csv")["p"][-2:]).all()
    succeed("predict", "t.safetensors", "t.csv", "-o", "q.csv")
    np.testing.assert_array_equal(rows("p.csv")["p"][:58], rows("q.csv")["p"][:58])
    refuse("fit n.csv --like t.safetensors -o n.safetensors --drop-missing", 5, "'pipe'")
    put("n.csv", {**columns, "smoker": np.where(columns["smoker"] == "no", "none", "NA")})
    succeed("predict", "t.safetensors", "n.csv", "-o", "p.csv", "--category", "smoker=none,ex,NA")
    same = columns["smoker"] != "ex"
    np.testing.assert_array_equal(rows("p.csv")["p"][same], rows("q.csv")["p"][same])
    put("n.csv", {"age": [60], "smoker": ["pipe"], "ill": [1]})  # and none is left
    data = document("predict", "t.safetensors", "n.csv", "-o", "p.csv")
    assert data["records"] == 0 and "'pipe'] in line 2" in data["notes"][0]
    assert np.isnan(rows("p.csv")["p"]).tolist() == [True]
    refuse("evaluate t.safetensors n.csv", 4, "1 dropped; column 'smoker'; ['pipe'] in line 2")


def test_a_mixture_of_posteriors_predicts_their_average():
    one = Gaussian.from_standard([1.0, 0.5], np.diag([0.1, 0.2]))
    two = Gaussian.from_standard([-4.0, 0.0], np.diag([0.3, 0.1]))
    names = ["intercept", "x"]
    both = Gaussian.from_standard(
        np.stack([one.mean, two.mean]), np.stack([one.covariance, two.covariance])
    )
    mixture = Mixture.from_standard([0.3, 0.7], both).named(names)
    recipe = Recipe("logistic", "y", ("x",), prior_sd={"": 1.0})
    put("t.csv", {"x": [0.0, 1.5, -8.0]})
    from posterity.tabular.tables.reader import read_cells

    data = design(read_cells(Path("t.csv")), recipe, predicting=True)
    found = predict(mixture, recipe, data, level=0.9)
    single = [predict(q.named(names), recipe, data) for q in (one, two)]
    np.testing.assert_allclose(found["p"], 0.3 * single[0]["p"] + 0.7 * single[1]["p"])
    rng = np.random.default_rng(1)
    first = rng.random(200_000) < 0.3
    each = [rng.multivariate_normal(q.mean, q.covariance, 200_000) for q in (one, two)]
    draws = np.where(first[:, None], *each) @ data.x.T
    np.testing.assert_allclose(found["high"], expit(np.quantile(draws, 0.95, axis=0)), atol=0.005)
    posterity.save(mixture, "m.safetensors", provenance=as_provenance(recipe))
    succeed("predict", "m.safetensors", "t.csv", "-o", "p.json")
    np.testing.assert_allclose(json.loads(Path("p.json").read_text())["p"], found["p"])


def test_weights_stand_for_replicates_and_offsets_are_added():
    columns = take(records(60, 5), "age", "ill", "visits", "bp")
    weights = np.random.default_rng(0).integers(1, 4, 60)
    put("t.csv", {**columns, "w": weights, "o": 0.7 * np.ones(60)})
    put("long.csv", {name: np.repeat(values, weights) for name, values in columns.items()})
    for model, target in (("logistic", "ill"), ("poisson", "visits"), ("linear", "bp")):
        recipe = Recipe(model, target, ("age",), center={"age": 60}, prior_sd={"": 3.0})
        plain, long = fit("t.csv", recipe), fit("long.csv", recipe)
        adjusted = fit("t.csv", dataclasses.replace(recipe, weights="w", offset="o"))
        q, other = adjusted.ledger.posterior, long.ledger
        wide = dataclasses.replace(recipe, prior_sd={"": 1e3}, weights="w")
        shifted = dataclasses.replace(wide, offset="o")
        moved = (fit("t.csv", shifted).ledger.posterior.mean
                 - fit("t.csv", wide).ledger.posterior.mean)  # fmt: skip
        np.testing.assert_allclose(moved, [-0.7, 0.0], atol=2e-3)
        if model == "linear":
            assert adjusted.noise_variance == pytest.approx(long.noise_variance)
        np.testing.assert_allclose(q.covariance, other.posterior.covariance, rtol=0.05)
        assert np.trace(q.covariance) < np.trace(plain.ledger.posterior.covariance)


def test_scores_are_those_of_another_library():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    p = rng.random(200).round(2).clip(0.01, 0.99)
    y = (rng.random(200) < p).astype(float)
    found = scores(y, {"p": p})
    assert found["log_score"] == pytest.approx(-metrics.log_loss(y, p))
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(y, p))
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(y, p))
    assert scores(np.ones(3), {"p": p[:3]})["auroc"] is None
    parts = {"mean": np.zeros(4), "variance": np.ones(4), "noise_variance": 3 * np.ones(4)}
    values = scores(np.arange(4.0), with_interval(parts, 0.9))
    assert "log_score" not in scores(np.arange(4.0), parts)
    assert values["log_score"] == pytest.approx(norm.logpdf(np.arange(4), 0, 2).mean())
    assert values["rmse"] == pytest.approx(np.sqrt(3.5))


def test_evaluation_by_group():
    columns = take(records(90, 6), "age", "ill")
    put("t.csv", {**columns, "ward": np.repeat(["a", "b", "c"], 30)})
    flags = "--target ill --model logistic --columns age --center age=60 -o m.safetensors"
    succeed("fit", "t.csv", *flags.split())
    data = document("evaluate", "m.safetensors", "t.csv", "--by", "ward")
    assert sum(one["records"] for one in data["groups"].values()) == data["all"]["records"] == 90
    mean = np.mean([one["log_score"] for one in data["groups"].values()])
    assert mean == pytest.approx(data["all"]["log_score"])
    text = succeed("evaluate", "m.safetensors", "t.csv").stdout
    assert "AUROC" in text
    put("new.csv", take(columns, "age"))
    refuse("evaluate m.safetensors new.csv", 4, "'ill'; --rename ill=NAME")
    refuse("evaluate m.safetensors t.csv --by bed", 4, "'bed'")
    refuse("predict m.safetensors t.csv -o p.csv --rename age=years", 4, "'years'; --rename")
    refuse("predict m.safetensors t.csv -o p.csv --samples 5", 2, "--samples for model logistic")
    refuse("predict m.safetensors t.csv -o p.csv --noise-variance 5", 2, "model logistic")
    np.savez("named.npz", x=columns["age"][:, None], columns=np.array(["age"]))
    refuse("predict m.safetensors named.npz -o p.csv", 5, "'named.npz', arrays; as .csv")


def test_a_recipe_and_its_records_travel_with_the_posterior():
    put("t.csv", take(records(50, 0), "age", "ill"))
    flags = ["--target", "ill", "--model", "logistic", "--center", "age=60", "--unit", "age=years"]
    for site in ("north", "south"):
        succeed(
            "fit", "t.csv", *flags, "--site", site, "-o", f"{site}.safetensors", "--rounded", 20
        )
    succeed("fuse", "north.safetensors", "south.safetensors", "-o", "both.safetensors")
    succeed("forget", "both.safetensors", "--site", "south", "-o", "left.safetensors",
            "--receipt", "r.json")  # fmt: skip
    about = {name: posterity.inspect(f"{name}.safetensors").provenance
             for name in ("north", "both", "left")}  # fmt: skip
    assert len({own["recipe"] for own in about.values()}) == 1
    known = {name: json.loads(own["sites"]) for name, own in about.items()}
    assert known["both"].keys() == {"north", "south"} and known["left"] == known["north"]
    assert "numpy" in known["left"]["north"]["versions"]
    assert known["left"]["north"]["records"] == 40, "50, to the even one of two multiples of 20"
    succeed("export", "both.safetensors", "-o", "both.json")
    told = json.loads(Path("both.json").read_text())["recipe"]
    assert told == json.loads(about["both"]["recipe"])
    refuse("export both.safetensors -o both.onnx", 4, "a Ledger; posterity distill")
    succeed("predict", "both.safetensors", "t.csv", "-o", "both.csv")
    q = posterity.load("both.safetensors").posterior
    posterity.save(q, "bare.safetensors")
    refuse("predict bare.safetensors t.csv -o p.csv", 4, "a Gaussian; --like; posterity distill")
    succeed("predict", "bare.safetensors", "t.csv", "--like", "north.safetensors", "-o", "c.csv")
    assert Path("c.csv").read_bytes() == Path("both.csv").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "__import__('os')"}, {"scale": {"age": -1}}, {"center": {"age": 1e999}},
        {"columns": "age"}, {"categories": {"sex": ["m", "m"]}}, {"evaluate": "1"},
        {"version": 99}, {"version": "9" * 9999}, {"model": "l" * 9999},
        {"prior_sd": {"": True}}, {"intercept": 1}, {"cuts": [1]},
        {"target": None}, {"model": "ordinal", "noise_variance": None},
        {"categories": {"age": "mf"}, "columns": ["age"]},
        {"weights": ["age"]}, {"family": {}}, {"noise_variance": []}, {"columns": None},
        {"terms": [[["levels", "age"]]]}, {"terms": [[["log", "dose"]]]}, {"terms": [[]]},
        {"terms": [[["spline", "age", 1e9, 0, 1]]]}, {"terms": [[["spline", "age", 3, 5, 1]]]},
        {"terms": [[["spline", "age", 3, 0, 9, 7, 4]]]}, {"terms": [[["power", "age", 0.5]]]},
    ],
)  # fmt: skip
def test_a_recipe_that_the_schema_does_not_know_is_refused(change):
    options = json.loads(Recipe("linear", "y", ("age",)).canonical()) | change
    with pytest.raises(ArtifactError) as caught:
        recipe_in({"recipe": json.dumps(options)})
    assert len(caught.value.found) < 300


@pytest.mark.parametrize(
    "own",
    [
        {"records": 10**400},
        {"third": [10**400]},
        {"noise_variance": [1]},
        {"rounded": 0},
        {"rounded": "50"},
        [],
    ],
)
def test_a_table_of_sites_has_finite_numbers(own):
    with pytest.raises(ArtifactError):
        sites_in({"sites": json.dumps({"a": own})})


def test_a_table_may_call_levels_otherwise():
    columns = take(records(40, 0), "age", "smoker", "ill")
    put("a.csv", columns)
    german = dict(zip(SMOKING, ("none", "früher", "ja"), strict=True))  # none is a level here
    texts = [unicodedata.normalize("NFD", german[one]) for one in columns["smoker"]]
    put("b.csv", {**columns, "smoker": texts})
    recipe = Recipe("logistic", "ill", ("age", "smoker"), categories={"smoker": SMOKING})
    levels = Reading(levels={"smoker": tuple(german.values())})
    one, other = fit("a.csv", recipe, "s"), fit("b.csv", recipe, "s", reading=levels)
    assert one.ledger == other.ledger and one.provenance == other.provenance
    result = call("fit", "a.csv", "--target", "ill", "--model", "logistic", "-o", "x.safetensors")
    assert result.exit_code == 5 and "--category smoker" in result.stderr


COLUMNS = {"NA": [50.0, np.nan, 61.5], "grade": [1, None, 3], "sex": ["f", None, "NA"],
           "ill": [True, None, False]}  # fmt: skip


def test_a_workbook_is_the_table_that_it_would_be_as_text():
    """Of several sheets none is taken silently, and blank rows within a table are records."""
    reason = "openpyxl reads and writes workbooks, and is not installed"
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("openpyxl", reason=reason)
    frame, own = pandas.DataFrame(COLUMNS), posterity.errors.ArtifactError
    frame.to_csv("t.csv", index=False)
    text = read_cells(Path("t.csv"))
    with pandas.ExcelWriter("t.xlsx") as file:
        frame.to_excel(file, sheet_name="data", index=False, startrow=2)
        pandas.DataFrame().to_excel(file, sheet_name="empty")
    read = read_cells(Path("t.xlsx"))
    assert read.header == text.header == tuple(COLUMNS) and read.lines == [4, 5, 6]
    assert read.rows == [["50", "1", "f", "1"], [""] * 4, ["61.5", "3", "NA", "0"]]
    frame[["grade"]].to_excel("t.xlsx", index=False)
    assert read_cells(Path("t.xlsx")).rows == [["1"], [""], ["3"]]
    frame.rename(columns={"sex": "NA"}).to_excel("t.xlsx", index=False)
    with pytest.raises(own, match="come twice"):
        read_cells(Path("t.xlsx"))
    frame.rename(columns={"sex": 2020}).to_excel("t.xlsx", index=False)
    with pytest.raises(own, match=r"of numbers, not names.*column names, then records"):
        read_cells(Path("t.xlsx"))
    with pandas.ExcelWriter("t.xlsx") as file:
        for name in ("data", "more"):
            frame.to_excel(file, sheet_name=name, index=False)
    with pytest.raises(own, match=r"2 sheets \['data', 'more'\] with cells.*save it as .csv"):
        read_cells(Path("t.xlsx"))


def test_a_parquet_file_has_all_its_rows_and_its_named_indices():
    reason = "pyarrow reads and writes Parquet files, and is not installed"
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow", reason=reason)
    frame = pandas.DataFrame({**COLUMNS, "0": [[1, 2], None, [3]]}).astype({"ill": "boolean"})
    frame = pandas.concat([frame, frame[1:2]])
    frame.to_parquet("t.parquet")
    read = read_cells(Path("t.parquet"))
    assert read.header == tuple(frame.columns) and read.lines == [2, 3, 4, 5] and not read.notes
    assert [row[:4] for row in read.rows[::2]] == [["50", "1", "f", "1"], ["61.5", "3", "NA", "0"]]
    assert read.rows[1] == read.rows[3] == [""] * 5 and "1" in read.column("0")[0]
    levels = [[7, 8, 9, 6], [1, 2, 3, 4], [2, 3, 4, 5]]
    frame = frame.set_index(pandas.MultiIndex.from_arrays(levels, names=["pid", "grade", None]))
    frame.drop(columns="0").to_parquet("t.parquet")
    read = read_cells(Path("t.parquet"))
    assert read.header == ("pid", *COLUMNS) and read.column("pid") == ["7", "8", "9", "6"]
    notes = dict(read.notes)
    assert "--without pid" in notes["pid"] and "grade" not in notes
    index = pandas.Index([3, 1, 2], name="pid")
    pandas.DataFrame({"x": [1.0, 2.0, 4.0], "y": [1.0, 3.0, 4.0]}, index).to_parquet("t.parquet")
    for without, noted in (((), True), (("pid",), False)):
        made = fit("t.parquet", Recipe("linear", "y", noise_variance=1.0, without=without))
        assert any("the index 'pid'" in note for note in made.notes) == noted


def test_a_file_that_is_no_table_and_text_with_blank_rows():
    pytest.importorskip("pandas")
    Path("bad.parquet").write_bytes(b"no table")
    with pytest.raises(posterity.errors.PosterityError, match=r"parquet|pyarrow"):
        read_cells(Path("bad.parquet"))
    Path("t.csv").write_text("sep=;\n;\n\nx;y,z\n1;2\n ;\n \n3;4\n;\n")
    read = read_cells(Path("t.csv"))
    assert (read.header, read.lines) == (("x", "y,z"), [5, 6, 8])
    assert read.rows == [["1", "2"], [" ", ""], ["3", "4"]]


def test_imputed_tables_are_put_together_by_rubins_rule():
    """Beside the rule by hand of statsmodels' fits."""
    api = pytest.importorskip("statsmodels.api")
    columns = take(records(400, 0), "age", "ill")
    rng, gone, fits = np.random.default_rng(0), np.arange(400) % 4 == 0, []
    for place in range(5):
        age = np.where(gone, rng.choice(columns["age"][~gone], 400), columns["age"]) - 60.0
        put(f"i{place}.csv", {"age": age, "ill": columns["ill"]})
        x = api.add_constant(age)
        fits.append(api.GLM(columns["ill"], x, family=api.families.Binomial()).fit())
    line = "fit i0.csv i1.csv i2.csv i3.csv i4.csv --model logistic --target ill -o i.safetensors"
    refuse(line, 2, "--site")
    refuse(f"{line.replace('i1', 'i0')} --site north", 2, "a file twice; i0.csv")
    data = document(*line.split(), "--site", "north")
    assert data["records"] == 400 and "5 imputed tables" in data["notes"][-1]
    q = posterity.load("i.safetensors").posterior
    means = np.stack([own.params for own in fits])
    covariance = np.mean([own.cov_params() for own in fits], 0) + 1.2 * np.cov(means.T)
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((q.mean - means.mean(0)) / sd, 0, atol=0.1)
    np.testing.assert_allclose(np.sqrt(q.marginal_variance) / sd, 1, atol=0.05)
    put("i1.csv", {"age": columns["age"][1:], "ill": columns["ill"][1:]})
    refuse(f"{line} --site north", 2, "400, 399; same records")


def test_imputed_tables_are_put_together_by_name_and_by_record():
    """Columns in another order are the same; other columns, or other records left out, are not."""
    table = take(records(60, 5), "age", "ldl", "ill")
    put("a.csv", table)
    put("b.csv", take(table, "ill", "ldl", "age"))
    put("c.csv", take(table, "age", "ill"))
    for row, name in enumerate("de"):
        put(
            f"{name}.csv",
            table | {"ldl": ["" if k == row else v for k, v in enumerate(table["ldl"])]},
        )
    options = "--model logistic --target ill --site north -o i.safetensors"
    succeed(*f"fit a.csv {options}".split())
    alone = posterity.load("i.safetensors").posterior
    succeed(*f"fit a.csv b.csv {options}".split())
    both = posterity.load("i.safetensors").posterior
    assert both.names == alone.names
    np.testing.assert_allclose(both.mean, alone.mean, rtol=1e-6)
    np.testing.assert_allclose(both.covariance, alone.covariance, rtol=1e-6)
    refuse(f"fit a.csv c.csv {options}", 2, "['age', 'ldl']; ['age']; same columns")
    refuse(f"fit d.csv e.csv --drop-missing {options}", 2, "59, 59; same records")


def test_a_site_of_one_class_says_that_it_says_nothing():
    columns = take(records(200, 0), "age", "ill")
    put("n.csv", columns)
    zeros = take(records(150, 1), "age", "ill")
    put("s.csv", take(zeros, "age", "ill", rows=zeros["ill"] == 0))
    put("m.csv", take(records(200, 2), "age", "ill"))
    for site in "nsm":
        succeed(*f"fit {site}.csv --target ill --model logistic -o {site}.safetensors".split())
    data = document("fuse", "n.safetensors", "s.safetensors", "-o", "o.safetensors")
    assert (
        data["one_shot"] is None
        and "likelihoods of s are not nearly Gaussian" in data["warnings"][0]
    )
    document("fuse", *(f"{site}.safetensors" for site in "nms"), "-o", "o.safetensors")
    succeed("report", "o.safetensors", "-o", "o.html")
    page = Path("o.html").read_text(encoding="utf-8")
    assert "contradicts the others" not in page


def drawn(rng, model, rate):
    """Targets of a model; of gamma values with a dispersion of 1/2."""
    if model == "logistic":
        return rng.random(len(rate)) < rate / (1 + rate)
    return rng.poisson(rate) if model == "poisson" else rate * rng.gamma(2, 1 / 2, len(rate)) + 1e-9


def far_apart(seed, empty=False):
    """The true and the expected distance of sites' fusion from the posterior of all records.

    The first site may have an ``empty`` level: records, and among them no event.
    """
    rng, names = np.random.default_rng(seed), ("x", "z", "level")
    model = ("logistic", "poisson", "gamma")[seed % 3]
    spread = {"dispersion": 0.5} if model == "gamma" else {}
    recipe = Recipe(model, "y", names, **spread).filled(names)
    beta, tables, sites, ledger = rng.normal(0, 0.6, 4), [], {}, None
    for place in range(int(rng.integers(2, 6))):
        count = int(rng.integers(40, 300))
        x = np.column_stack([np.ones(count), rng.normal(size=(count, 2)), rng.random(count) < 0.3])
        rate = np.exp(x @ beta - 0.5)
        y = drawn(rng, model, rate)
        y = np.where((x[:, 3] == 1) & empty & (place == 0), 0, y)
        tables.append(np.column_stack([x[:, 1:], y]))
    for site, table in [*enumerate(tables), ("all", np.concatenate(tables))]:
        put("t.csv", dict(zip((*names, "y"), table.T, strict=True)))
        made = fit("t.csv", recipe, str(site))
        sites |= sites_in(made.provenance)
        if site == "all":
            assert ledger is not None
            true = float(ledger.posterior.kl(made.ledger.posterior))
            return true, expected_distance(ledger, sites).distance
        ledger = made.ledger if ledger is None else ledger | made.ledger


@pytest.mark.parametrize("count", [12, pytest.param(80, marks=pytest.mark.slow)])
def test_the_distance_of_one_shot_from_all_records_is_known_beforehand(count):
    pairs = [far_apart(seed) for seed in range(count)]
    ratios = np.array([expected / true for true, expected in pairs if expected is not None])
    assert len(ratios) > 0.7 * count
    assert np.mean((ratios > 1 / 2) & (ratios < 2)) > (0.8 if count < 50 else 0.93)
    assert ((ratios > 1 / 8) & (ratios < 8)).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_distance_is_not_known_where_a_level_of_a_site_has_no_event(seed):
    true, expected = far_apart(seed, empty=True)
    assert true > 0.3 and expected is None


def test_the_distance_is_the_same_of_columns_far_from_zero():
    """As raw ones are: what third derivatives are rounded to is far below what cancels of them."""
    rng, distances = np.random.default_rng(0), []
    year, sodium = rng.integers(1990, 2021, 400), rng.normal(140, 3.5, 400).round(1)
    y = rng.random(400) < expit(0.05 * (year - 2005) + 0.1 * (sodium - 140))
    table = {"year": year, "sodium": sodium, "y": 1 * y}
    for site, own in {"a": slice(200), "b": slice(200, 400)}.items():
        put(f"{site}.csv", take(table, *table, rows=own))
    for center in ({}, {"year": 2005.0, "sodium": 140.0}):
        recipe = Recipe("logistic", "y", center=center)
        one, other = (fit(f"{site}.csv", recipe, site) for site in "ab")
        sites = sites_in(one.provenance) | sites_in(other.provenance)
        (student,) = sites_in(kept(one.provenance)).values()  # which nobody fuses
        assert student["records"] == 200 and "third" not in student and "third" in sites["a"]
        expected = expected_distance(one.ledger | other.ledger, sites)
        assert not expected.warnings
        distances.append(expected.distance)
    np.testing.assert_allclose(distances[0], distances[1], rtol=0.02)


def test_the_distance_of_a_linear_model_is_that_of_its_noise():
    """Each site weighs its records by a noise of its own; in one table there is one."""
    rng, x = np.random.default_rng(0), np.random.default_rng(1).normal(50, 9, 300)
    y = 3 + 0.2 * x + rng.normal(size=300) * np.repeat([1.0, 3.0], [200, 100])
    for site, own in {"a": slice(200), "b": slice(200, 300), "all": slice(300)}.items():
        put(f"{site}.csv", {"x": x[own], "y": y[own]})
        succeed(*f"fit {site}.csv --model linear --target y -o {site}.safetensors".split())
    fused = document("fuse", "a.safetensors", "b.safetensors", "-o", "both.safetensors")
    both, whole = (posterity.load(f"{name}.safetensors").posterior for name in ("both", "all"))
    assert fused["one_shot"] > 0.3 and "federate" in fused["warnings"][0]
    np.testing.assert_allclose(fused["one_shot"], float(both.kl(whole)), rtol=0.02)


def test_third_derivatives_are_moved_to_other_coefficients():
    """As the cubic of a site's coefficients is, at any coefficients in common."""
    rng = np.random.default_rng(0)
    matrix, mine, names = rng.normal(size=(3, 3)), ("b", "c", "a"), ("z", "x", "y")
    third = sum(np.einsum("i,j,k", u, u, u) for u in rng.normal(size=(4, 3)))
    there = tensor(moved(listed(third, mine), matrix, mine, names), 3)
    order, z = np.argsort(names), rng.normal(size=3)
    site = matrix @ z
    np.testing.assert_allclose(
        np.einsum("ijk,i,j,k", there, *3 * [z[order]]),
        np.einsum("ijk,i,j,k", third, *3 * [site]),
        rtol=1e-9,
    )
    assert tensor([1.0], 3) is None and moved([1.0], matrix, mine, names) == []


@pytest.mark.parametrize("ending", ["dta", "sav", "xpt"])
def test_tables_of_statistical_programs_are_read_as_their_text_is(ending):
    """Zeros, missing values and texts with an accent; labels of values take their place."""
    pandas = pytest.importorskip("pandas")
    rows = {"age": [61.5, np.nan, 0.0, 58.0], "ill": [0.0, 1.0, 1.0, 0.0]}
    frame = pandas.DataFrame(rows | {"city": ["Köln", "Bonn", "Bonn", "Köln"]})
    if ending == "dta":
        frame.to_stata("t.dta", write_index=False)
    else:
        write = pytest.importorskip("pyreadstat")
        labels = {"city": {1.0: "Köln", 2.0: "Bonn"}}
        coded = frame.assign(city=[1.0, 2.0, 2.0, 1.0])
        if ending == "sav":
            write.write_sav(coded, "t.sav", variable_value_labels=labels)
        else:
            write.write_xport(frame, "t.xpt", file_format_version=5)
    frame.to_csv("t.csv", index=False)
    read = read_cells(Path(f"t.{ending}"))
    wanted = read_cells(Path("t.csv"))
    assert tuple(map(str.lower, read.header)) == wanted.header
    assert [[cell.removesuffix(".0") for cell in row] for row in wanted.rows] == read.rows
    with pytest.raises(posterity.errors.PosterityError, match=f"bad.{ending}"):
        Path(f"bad.{ending}").write_bytes(b"no table")
        read_cells(Path(f"bad.{ending}"))


def test_a_sites_own_missing_values_are_texts_as_a_whole():
    rng = np.random.default_rng(4)
    for site in ("north", "south"):
        x = rng.integers(0, 70, 40)
        put(f"{site}.csv", {"x": x, "ill": (rng.random(40) < expit((x - 35) / 20)).astype(int)})
    lines = ["[model]", 'kind = "logistic"', 'target = "ill"', "[sites]"]
    lines += ['north = "north.csv"', 'south = "south.csv"', "[tables.north]", 'missing = "-60"']
    Path("one.toml").write_text("\n".join(lines))
    Path("list.toml").write_text("\n".join([*lines[:-1], 'missing = ["-60"]']))
    Path("none.toml").write_text("\n".join(lines[:-2]))
    for name in ("one", "list", "none"):
        succeed("federate", f"{name}.toml", "-o", f"{name}.safetensors")
    found = [posterity.load(f"{name}.safetensors").posterior.mean for name in ("one", "list")]
    wanted = posterity.load("none.safetensors").posterior.mean
    assert np.array_equal(found, [wanted, wanted])


def lines_are_fitted(more):
    """Files of a line at the sites of ``more``, whose values are further options of ``fit``."""
    rng = np.random.default_rng(5)
    for site, options in more.items():
        x = rng.normal(5, 1, 30)
        put(f"{site}.csv", {"x": x, "y": 2 * x + rng.normal(size=30)})
        line = f"fit {site}.csv --model linear --target y --noise-variance 1 --prior-sd 10"
        succeed(*line.split(), *options.split(), "-o", f"{site}.safetensors")


def a_line_is_imported(site):
    Path("c.csv").write_text("name,mean,sd\nintercept,0.1,0.2\nx,2.1,0.2\n")
    Path("v.csv").write_text("name,intercept,x\nintercept,0.04,0.01\nx,0.01,0.04\n")
    line = f"import c.csv --covariance v.csv -o {site}.safetensors --site {site} --flat-prior"
    succeed(*line.split())


def test_one_shot_is_exact_only_of_files_that_tell_of_their_records():
    lines_are_fitted({"a": "", "b": ""})
    a_line_is_imported("c")
    exact = document("fuse", "a.safetensors", "b.safetensors", "-o", "ab.safetensors")
    assert exact["one_shot"] == 0
    for line in ("a.safetensors c.safetensors", "c.safetensors a.safetensors --budget 1"):
        beside = document(*f"fuse {line} -o ac.safetensors --rule product".split())
        assert beside["one_shot"] is None
        assert any("unknown" in note for note in beside["notes"])
    again = document("fuse", "ac.safetensors", "b.safetensors", "-o", "acb.safetensors")
    assert again["one_shot"] is None


def test_files_read_in_passes_are_compared_whatever_comes_first():
    lines_are_fitted({"m": "", "n": "--center x=5"})
    a_line_is_imported("a")
    line = "fuse a.safetensors m.safetensors n.safetensors -o z.safetensors --budget 1"
    refuse(line, 4, "center; 'm'; 'n'")


def test_a_target_moved_without_an_intercept_is_refused():
    lines_are_fitted({"m": "--no-intercept", "n": "--no-intercept --center y=100"})
    refuse("fuse m.safetensors n.safetensors -o z.safetensors", 4, "column 'y'; no intercept")


def test_rows_of_weight_zero_are_not_dropped_for_a_missing_value():
    put("w.csv", {"x": [1, 2, 3, 4], "y": [1, 2, 2, 5], "n": [1, 0, 2, 1]})
    found = fit("w.csv", Recipe("linear", "y", weights="n", noise_variance=1.0))
    assert (found.records, found.dropped) == (3, 0)


def test_numbers_of_rows_without_a_name_are_not_shifted_over_an_empty_last_column():
    Path("r.csv").write_text("age,bmi,ill\n1,50,20,\n2,60,30,\n")  # write.table(na = "") of R
    with pytest.raises(ArtifactError, match="one cell more than the header"):
        read_cells(Path("r.csv"), unnamed=True)
    Path("ends.csv").write_text("age,bmi,ill\nA,50,20,\nB,60,30,\n")
    assert read_cells(Path("ends.csv"), unnamed=True).header == ("age", "bmi", "ill")
    Path("ends.csv").write_text("age,bmi,ill\n60,50,20,\n50,60,30,\n")
    assert read_cells(Path("ends.csv"), unnamed=True).header == ("age", "bmi", "ill")
