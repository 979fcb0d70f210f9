"""``posterity fit``: a site's file from a table, against fits of other libraries."""

from pathlib import Path

import numpy as np
import pytest
from cli.commands import contents, document, fail, refuse, succeed
from cli.test_recipes import put, take

import posterity
from posterity import Ledger
from posterity.errors import ArtifactError
from posterity.families import DiagonalGaussian, Gaussian
from posterity.tabular import Reading, Recipe, check_same, fit

COUNT = 200


def records(seed=0, count=COUNT):
    rng = np.random.default_rng(seed)
    age, dose = rng.normal(60, 10, count), rng.gamma(2, 1e-6, count)
    sex = rng.choice(["female", "male"], count)
    f = 0.05 * (age - 60) + 3e5 * (dose - 2e-6) + 0.5 * (sex == "male")
    return {
        "age": age, "dose": dose, "sex": sex,
        "bp": 120 + 10 * f + rng.normal(0, 8, count),
        "ill": (rng.random(count) < 1 / (1 + np.exp(-f))).astype(int),
        "visits": rng.poisson(np.exp(f / 2)),
    }  # fmt: skip


def matrix(columns):
    male = 1.0 * (columns["sex"] == "male")
    return np.column_stack([np.ones(len(male)), columns["age"], columns["dose"], male])


def fitted(model, target, columns, *flags, wide=1e9):
    """A posterior under a prior so wide that it says nothing, by the command."""
    put("t.csv", take(columns, "age", "dose", "sex", target))
    told = document("fit", "t.csv", "--target", target, "--model", model, "-o", "t.safetensors",
                    "--category", "sex=female,male", "--prior-sd", wide, *flags)  # fmt: skip
    ledger = posterity.load("t.safetensors")
    assert told["site"] == "t" and ledger.sites == ("t",)
    assert ledger.posterior.names == ("intercept", "age", "dose", "sex[male]")
    return ledger, told


def agree(q, mean, covariance, rtol=1e-5):
    """In standard deviations, whatever the columns' units are."""
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=rtol)
    np.testing.assert_allclose(q.covariance / np.outer(sd, sd), covariance / np.outer(sd, sd),
                               atol=rtol)  # fmt: skip


def test_linear_is_least_squares():
    api = pytest.importorskip("statsmodels.api")
    columns = records()
    ledger, told = fitted("linear", "bp", columns)
    other = api.OLS(columns["bp"], matrix(columns)).fit()
    agree(ledger.posterior, other.params, other.cov_params())
    np.testing.assert_allclose(told["noise_variance"], other.scale, rtol=1e-9)


def closest(model, x, y, variance, exposure=1.0):
    """Mean and covariance of the Gaussian of least reverse KL, by SciPy over mean and factor."""
    from scipy.optimize import minimize

    size, (u, chances) = x.shape[1], np.polynomial.hermite_e.hermegauss(60)
    lower, chances = np.tril_indices(size), chances / chances.sum()
    unit = np.sqrt((x**2).mean(0))
    columns = x / unit  # of one size, in which SciPy goes about

    def energy(free):
        root = np.zeros((size, size))
        root[lower] = free[size:]
        own = columns @ root
        deviation = np.sqrt((own**2).sum(1))
        f = (columns @ free[:size])[:, None] + deviation[:, None] * u
        if model == "logistic":
            value, slope = np.logaddexp(0, f) - y[:, None] * f, 1 / (1 + np.exp(-f)) - y[:, None]
        else:
            rate = np.exp(f) * np.reshape(exposure, (-1, 1))
            value, slope = rate - y[:, None] * f, rate - y[:, None]
        precision = 1 / (variance * unit**2)
        logs = np.log(abs(np.diagonal(root)))
        prior = precision @ (free[:size] ** 2 + (root**2).sum(1)) / 2 - logs.sum()
        mean = columns.T @ (slope @ chances) + precision * free[:size]
        bend = ((slope @ (chances * u)) / deviation)[:, None] * own
        by_root = columns.T @ bend + precision[:, None] * root - np.diag(1 / np.diagonal(root))
        return (value @ chances).sum() + prior, np.concatenate([mean, by_root[lower]])

    start = np.concatenate([np.zeros(size), (0.1 * np.eye(size))[lower]])
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9}
    end = minimize(energy, start, jac=True, method="L-BFGS-B", options=options)
    root = np.zeros((size, size))
    root[lower] = end.x[size:]
    return end.x[:size] / unit, root @ root.T / np.outer(unit, unit)


@pytest.mark.parametrize(("model", "target"), [("logistic", "ill"), ("poisson", "visits")])
@pytest.mark.parametrize("wide", [0.7, 1e4])
def test_the_posterior_is_the_closest_gaussian_that_another_optimiser_finds(model, target, wide):
    columns = records(1, 40)
    flags = ("--center", "age=60", "--scale", "age=10", "--scale", "dose=1e-6")
    ledger, _ = fitted(model, target, columns, *flags, wide=wide)
    x, y = matrix(columns), columns[target]
    x[:, 1], x[:, 2] = (x[:, 1] - 60) / 10, x[:, 2] / 1e-6
    agree(ledger.posterior, *closest(model, x, y, wide**2), 2e-4)


def test_units_are_undone_exactly():
    """A fit in other units, and its prior with them, is the fit of the raw columns."""
    columns = records()
    raw, _ = fitted("logistic", "ill", columns, "--prior-sd", "age=0.2", "--prior-sd", "dose=3e5",
                    wide=4, )  # fmt: skip
    scaled, _ = fitted("logistic", "ill", columns, "--scale", "age=10", "--scale", "dose=1e-6",
                       "--prior-sd", "age=2", "--prior-sd", "dose=0.3", wide=4)  # fmt: skip
    units = np.array([1, 10, 1e-6, 1])
    agree(raw.posterior, scaled.posterior.mean / units,
          scaled.posterior.covariance / np.outer(units, units), 1e-6)  # fmt: skip


def test_an_exposure_is_time_at_risk():
    api = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(3)
    x, time_ = rng.normal(size=150), rng.gamma(2, 3, 150)
    n = rng.poisson(time_ * np.exp(0.3 * x - 1))
    put("n.csv", {"x": x, "n": n, "years": time_})
    succeed("fit", "n.csv", "--target", "n", "--model", "poisson", "--exposure", "years",
            "-o", "n.safetensors", "--prior-sd", 1e6)  # fmt: skip
    design = api.add_constant(x)
    other = api.GLM(n, design, family=api.families.Poisson(), exposure=time_).fit(tol=1e-14)
    q = posterity.load("n.safetensors").posterior
    agree(q, other.params, other.cov_params(), 0.12)
    agree(q, *closest("poisson", design, n, np.full(2, 1e12), time_), 2e-4)


def test_two_sites_are_fused_as_one_fit_of_both():
    """Exactly, of a linear model with known noise; columns in another order."""
    both = records(5)
    half = {name: values[:90] for name, values in both.items()}
    rest = {name: values[90:] for name, values in both.items()}
    names = ("age", "sex", "bp")
    put("north.csv", take(half, *names))
    put("south.csv", take(rest, *reversed(names)), ";")
    put("all.csv", take(both, *names))
    flags = ("--target", "bp", "--model", "linear", "--noise-variance", 64,
             "--category", "sex=female,male", "--center", "age=60")  # fmt: skip
    for site in ("north", "south", "all"):
        succeed("fit", f"{site}.csv", *flags, "-o", f"{site}.safetensors")
    succeed("fuse", "north.safetensors", "south.safetensors", "-o", "both.safetensors",
            "--rule", "product")  # fmt: skip
    fused, whole = posterity.load("both.safetensors"), posterity.load("all.safetensors")
    assert isinstance(fused, Ledger) and fused.sites == ("north", "south")
    agree(fused.posterior, whole.posterior.mean, whole.posterior.covariance, 1e-9)
    recipe = posterity.inspect("both.safetensors").provenance["recipe"]
    assert recipe == posterity.inspect("all.safetensors").provenance["recipe"]
    succeed("fit", "south.csv", *flags, "--scale", "age=10", "-o", "south.safetensors")
    two, before = ["north.safetensors", "south.safetensors"], contents()
    error = fail(4, "fuse", *two, "-o", "no.safetensors", "--budget", "64")  # in passes
    assert '--scale {} and {"age": 10.0}' in error["found"] and contents() == before
    for given in (two, {"a": two[0], "b": two[1]}):
        with pytest.warns(UserWarning, match="put into the units"):
            again = posterity.fuse(given).posterior
        agree(again, whole.posterior.mean, whole.posterior.covariance, 1e-6)
    line = ("--site", "south", "-o", "left.safetensors", "--receipt", "receipt.json")
    succeed("forget", "both.safetensors", *line)
    assert posterity.inspect("left.safetensors").provenance["recipe"] == recipe


def test_recipes_are_equal_texts_for_equal_requests_and_differ_by_a_flag():
    one = Recipe("linear", "y", columns=("a", "b"), scale={"a": 2, "b": 1}, center={"a": 0.0})
    other = Recipe("linear", "y", columns=("b", "a"), scale={"a": 2.0})
    assert one.canonical() == other.canonical()
    for change, flag in (
        ({"columns": ("a", "c")}, "--columns"), ({"target": "z"}, "--target"),
        ({"model": "poisson"}, "--model"), ({"intercept": False}, "--intercept"),
        ({"prior_sd": {"": 2.0}}, "--prior-sd"), ({"family": "diagonal"}, "--family"),
        ({"noise_variance": 2.0}, "--noise-variance"), ({"prior": "ab"}, "--prior "),
        ({"categories": {"a": ("x", "y")}}, "--category"),
        ({"model": "poisson", "exposure": "e"}, "--exposure"),
    ):  # fmt: skip
        told = {"columns": ("a", "b"), "scale": {"a": 2}, "model": "linear", "target": "y"}
        changed = Recipe(**(told | change))
        with pytest.raises(posterity.errors.StructureError, match=f"'n' and 's'.*{flag}"):
            check_same({"n": {"recipe": one.canonical()}, "s": {"recipe": changed.canonical()}})


def test_a_prior_from_a_file_by_name():
    put("t.csv", take(records(), "age", "ill"))
    prior = Gaussian.from_standard([0.1, -3.0], [[0.01, 0.0], [0.0, 4.0]])
    posterity.save(prior.named(["age", "intercept"]), "p.safetensors")
    line = ("fit", "t.csv", "--target", "ill", "--model", "logistic", "-o", "t.safetensors")
    succeed(*line, "--prior", "p.safetensors")
    np.testing.assert_allclose(posterity.load("t.safetensors").prior.mean, [-3.0, 0.1])
    posterity.save(prior, "p.safetensors")
    assert "a name for each" in fail(4, *line, "--prior", "p.safetensors")["expected"]


@pytest.mark.slow
def test_missing_values_are_told_or_dropped():
    columns = records(count=30)
    cells = {name: list(map(str, columns[name])) for name in ("age", "dose", "ill")}
    cells["age"][3], cells["dose"][7] = "NA", ""
    cells["other"] = [""] * 30
    put("t.csv", cells)
    line = "fit t.csv --target ill --model logistic -o t.safetensors --without other"
    refuse(line, 5, "2 records with a missing value; line 5 (column 'age'); 9; --drop-missing")
    told = document(*line.split(), "--drop-missing")
    assert (told["records"], told["dropped"]) == (28, 2)
    assert any("2 of 30 records are dropped" in note for note in told["notes"])
    cells["age"][3:6] = ["999"] * 3
    put("t.csv", cells)
    notes = document(*line.split(), "--drop-missing")["notes"]
    assert any("'age' is 999 in 3 records, and otherwise " in note for note in notes)
    assert not any("999" in note for note in told["notes"])
    put("t.csv", {name: [*own, *own] for name, own in cells.items()})
    cells["dose"][9] = "1e9"
    put("t.csv", cells)
    slip = document(*line.split(), "--drop-missing")["notes"]
    assert any("'dose' is 1e+09 in line 11, " in note for note in slip)
    assert not any("from the median" in note for note in notes)
    put("t.csv", {"age": [37, 37, 37, 36.999, 39], "ill": [0, 1, 0, 1, 1]})  # too few to tell
    few = document(*line.replace(" --without other", "").split())["notes"]
    assert not any("from the median" in note for note in few)


def test_a_column_to_leave_out_may_be_that_of_another_site():
    put("t.csv", {"age": [37, 41, 35, 52], "sbp": [121, 140, 118, 150]})
    line = "fit t.csv --target sbp --model linear -o t.safetensors"
    data = document(*line.split(), "--without", "bnp")
    assert data["columns"] == ["age"] and "no column 'bnp', which --without" in data["notes"][0]
    refuse(f"{line} --columns age,bnp", 4, "no column 'bnp'; Use the table's name; bnp=NAME")
    refuse(f"{line} --columns ages", 4, "Write age")


def test_separable_records_are_held_by_the_prior_and_said_to_be():
    put("t.csv", {"x": [1e6, 2e6, 3e6, 4e6], "ill": [0, 0, 1, 1]})
    line = ("fit", "t.csv", "--target", "ill", "--model", "logistic", "-o", "t.safetensors")
    told = document(*line, "--center", "x=2.5e6", "--scale", "x=1e6")
    assert any("without exception" in note for note in told["notes"])
    assert 1 < told["parameters"][1]["mean"] < 20
    line = ("federate", "--site", "t=t.csv", *line[2:], "--center", "x=2.5e6", "--scale", "x=1e6")
    notes = document(*line, "--intercept")["notes"]
    assert any("without exception" in note for note in notes) and any(
        "skewed" in note for note in notes
    )
    put("t.csv", {"x": [1e6, 2e6, 3e6, 4e6], "ill": [1, 1, 1, 1]})
    line = [part.replace("t.safetensors", "one.safetensors") for part in line]
    notes = document(*line, "--intercept")["notes"]
    assert any("the target is 1 in every record: only the prior" in note for note in notes)


@pytest.mark.parametrize("model", ["logistic", "poisson", "linear"])
def test_one_record_one_class_and_a_constant_column(model):
    put("t.csv", {"x": [3.0], "y": [1]})
    flags = ["--noise-variance", "1"] if model == "linear" else []
    line = ["fit", "t.csv", "--target", "y", "--model", model, "-o", "t.safetensors", *flags]
    told = document(*line)
    assert any("constant in all records" in note for note in told["notes"])
    assert any("more than 25% of the precision of" in note for note in told["notes"])
    assert posterity.load("t.safetensors").posterior.is_proper()
    told = document(*line, "--no-intercept")
    assert not any("constant in all records" in note for note in told["notes"])


def test_a_column_of_ones_is_noted_beside_hazards_by_whatever_name():
    put("t.csv", {"time": [1.0, 2.0, 3.0, 4.0], "ill": [1, 0, 1, 1], "intercept": [1] * 4})
    line = "fit t.csv --model survival --target time --event ill --cuts 2 -o t.safetensors"
    notes = document(*line.split(), "--columns", "intercept")["notes"]
    assert any(note.startswith("constant in all records: ['intercept']") for note in notes)


@pytest.mark.parametrize("size", [1e-6, 1e6])
@pytest.mark.parametrize("model", ["logistic", "poisson"])
def test_columns_of_any_size_converge_from_afar(model, size):
    """Counts in the millions, coefficients that are huge: Newton's steps are halved, and end."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=100)
    y = rng.random(100) < 0.5 + 0.3 * np.tanh(x) if model == "logistic" else rng.poisson(
        np.exp(14 + x))  # fmt: skip
    put("t.csv", {"x": 5 * size + size * x, "y": y.astype(int)})
    found = fit("t.csv", Recipe(model, "y", prior_sd={"": 1e9}))
    put("t.csv", {"x": 5 + x, "y": y.astype(int)})
    same = fit("t.csv", Recipe(model, "y", prior_sd={"": 1e9}))
    q, r = found.ledger.posterior, same.ledger.posterior
    np.testing.assert_allclose(q.mean * [1, size], r.mean, rtol=1e-5)


def test_a_diagonal_linear_posterior_has_the_mean_and_the_precisions_of_the_full_one():
    put("t.csv", take(records(), "age", "bp"))
    known = {"noise_variance": 64.0}
    full = fit("t.csv", Recipe("linear", "bp", **known)).ledger.posterior
    slim = fit("t.csv", Recipe("linear", "bp", family="diagonal", **known)).ledger.posterior
    assert isinstance(slim, DiagonalGaussian)
    np.testing.assert_allclose(slim.mean, full.mean, rtol=1e-5)
    np.testing.assert_allclose(slim.precision, np.diagonal(full.precision), rtol=1e-7)


def test_a_diagonal_posterior_is_where_its_free_energy_is_least():
    columns = take(records(), "age", "ill")
    put("t.csv", columns)
    flags = {"family": "diagonal", "center": {"age": 60.0}, "scale": {"age": 10.0}}
    q = fit("t.csv", Recipe("logistic", "ill", **flags)).ledger.posterior
    x = np.column_stack([np.ones(COUNT), (columns["age"] - 60) / 10])
    u, chances = np.polynomial.hermite_e.hermegauss(40)
    f = (x @ q.mean)[:, None] + np.sqrt(x**2 @ q.variance)[:, None] * u
    chance = 1 / (1 + np.exp(-f))
    mean, bend = (part @ chances / chances.sum() for part in (chance, chance * (1 - chance)))
    before = 1 / np.array([1000.0, 10.0]) ** 2
    slope = x.T @ (columns["ill"] - mean) - before * q.mean
    np.testing.assert_allclose(slope / np.sqrt(q.precision), 0, atol=1e-3)
    np.testing.assert_allclose(q.precision, before + bend @ x**2, rtol=1e-3)


def test_an_index_and_delimiters_at_the_ends_are_no_columns():
    columns = take(records(), "age", "ill")
    put("t.csv", columns)
    plain = fit("t.csv", Recipe("logistic", "ill"))
    lines = Path("t.csv").read_text().splitlines()
    numbered = [lines[0], *(f"{k},{line}" for k, line in enumerate(lines[1:]))]
    ways = {
        "pandas": ["," + numbered[0], *numbered[1:]],
        "write.table": numbered,
        "ends": [line + ",," for line in lines],
        "ends of rows": [lines[0], *(line + "," for line in lines[1:])],
    }
    for way, text in ways.items():
        Path("t.csv").write_text("\n".join(text) + "\n")
        found = fit("t.csv", Recipe("logistic", "ill"))
        assert found.ledger.posterior.names == ("intercept", "age")
        np.testing.assert_array_equal(found.ledger.posterior.mean, plain.ledger.posterior.mean)
        noted = any("no name, and is left out as an index" in note for note in found.notes)
        assert noted == (not way.startswith("ends"))


def test_row_numbers_that_were_read_and_saved_again_are_left_out():
    columns = take(records(), "age", "ill")
    put("t.csv", {"Unnamed: 0": np.arange(COUNT), **columns})
    for told in ({}, {"without": ("Unnamed: 0",)}, {"columns": ("age",)}):
        found = fit("t.csv", Recipe("logistic", "ill", **told))
        assert found.ledger.posterior.names == ("intercept", "age")
        assert any("'Unnamed: 0' (row numbers" in note for note in found.notes) == (not told)


def test_points_between_semicolons_are_asked_about():
    put("t.csv", {"dose": ["1.250", "2.500", "3.750"], "ill": [0, 1, 1]}, ";")
    with pytest.raises(ArtifactError, match=r"'1.250' between semicolons.*--decimal"):
        fit("t.csv", Recipe("logistic", "ill"))
    sums = []  # of the column, as the precision has them
    for mark in ".,":
        found = fit("t.csv", Recipe("linear", "ill", noise_variance=1.0),
                    reading=Reading(decimal=mark))  # fmt: skip
        sums.append(found.ledger.posterior.precision[0, 1])
    np.testing.assert_allclose(sums, [7.5, 7500.0])


LINE = "fit t.csv -o t.safetensors "
LOGISTIC = LINE + "--model logistic --target ill "
WRONG = [
    (LINE + "--model logistic", 2, "no target; --target"),
    (LINE + "--model probit --target ill", 2, "'probit'; survival"),
    (LINE + "--model logistic --target sick", 4, "'sick'; 'ill'; --target"),
    (LOGISTIC + "--columns age,weight", 4, "'weight'; --columns"),
    (LOGISTIC + "--columns age,ill", 2, "'ill'; target"),
    (LOGISTIC + "--columns age --without sex", 2, "columns and without"),
    (LOGISTIC, 5, "columns of texts: 'sex'; --category sex=female,male; --without sex"),
    (LOGISTIC + "--category sex=female,other", 5, "'male'; column 'sex'; levels"),
    (LOGISTIC + "--category sex=female", 2, "sex=('female',); two different texts"),
    (LOGISTIC + "--without sex --center sex=1", 2, "--center; 'sex'"),
    (LOGISTIC + "--without sex --scale age=0", 2, "--scale age = 0; positive"),
    (LOGISTIC + "--without sex --scale age=x", 2, "'x'"),
    (LOGISTIC + "--without sex --scale ill=2", 2, "--scale for 'ill'"),
    (LOGISTIC + "--without sex --prior-sd weight=2", 2, "--prior-sd for ['weight']"),
    (LOGISTIC + "--without sex --prior-sd 0", 2, "--prior-sd = 0"),
    (LOGISTIC + "--without sex --exposure age", 2, "exposure"),
    (LOGISTIC + "--without sex --noise-variance 1", 2, "noise variance"),
    (LOGISTIC + "--without sex --family full", 2, "'full'"),
    (LINE + "--model logistic --target age --without sex", 3, "line 2 of target 'age'; 0 or 1"),
    (LINE + "--model poisson --target age --without sex", 3, "line 2 of target 'age'; counts"),
    (LINE + "--model linear --target bp --columns age,dose,visits --drop-missing --decimal x", 2,
     "--decimal = 'x'"),
    ("fit none.csv --model logistic --target y -o t.safetensors", 5, "none.csv"),
    ("fit . --model logistic --target y -o t.safetensors", 5, "folder"),
    ("fit twice.csv --model logistic --target y -o t.safetensors", 5, "come twice"),
    ("fit empty.csv --model logistic --target y -o t.safetensors", 5, "no rows"),
    ("fit bare.csv --model logistic --target y -o t.safetensors", 4, "no records"),
    ("fit few.csv --model linear --target y -o t.safetensors", 3, "--noise-variance"),
    ("fit twin.csv --model logistic --target y -o t.safetensors --prior-sd 1e9", 3,
     "linearly dependent; ['a', 'b']; --without"),
    ("fit vast.csv --model logistic --target y -o t.safetensors", 3, "1e+200 in column 'a'"),
    ("fit far.csv --model linear --target y -o t.safetensors", 3, "--center"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "words"), WRONG)
def test_what_makes_no_sense_is_said_and_leaves_nothing_behind(line, code, words):
    put("t.csv", records(count=20))
    Path("twice.csv").write_text("x,x,y\n1,2,1\n")
    Path("empty.csv").write_text("\n")
    Path("bare.csv").write_text("x,y\n")
    Path("few.csv").write_text("x,y\n1,2\n2,3\n")
    Path("twin.csv").write_text("a,b,y\n1,1,0\n2,2,1\n3,3,0\n")
    Path("vast.csv").write_text("a,y\n1,0\n1e200,1\n")
    x = 1e9 + np.random.default_rng(0).normal(size=9)
    put("far.csv", {"x": x, "y": x - 1e9})
    refuse(line, code, words)


def test_more_columns_than_a_covariance_has_room_for():
    names = [f"c{place}" for place in range(5001)]
    Path("wide.csv").write_text(",".join(["y", *names]) + "\n" + ",".join(["1"] * 5002) + "\n")
    refuse("fit wide.csv --target y --model logistic -o w.safetensors", 4, "5,001 columns; 5,000")
