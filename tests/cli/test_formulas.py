"""Formulas as R and statsmodels write them: the same columns as another library's, from data."""

import re
from pathlib import Path

import numpy as np
import pytest
from cli.commands import document, refuse, succeed
from cli.test_recipes import put, records, rows, take

import posterity
from posterity.errors import ArtifactError, ParameterError, UsageError
from posterity.tabular.design import design
from posterity.tabular.reading import columns_of, names_in_r
from posterity.tabular.recipe import Recipe, recipe_in
from posterity.tabular.sites import as_provenance
from posterity.tabular.tables.reader import read_cells

formulaic = pytest.importorskip("formulaic")
from posterity.tabular.formula import with_formula  # noqa: E402

LEVELS = {"smoker": ("no", "ex", "yes"), "sex": ("f", "m")}
BOUNDS = "lower_bound=20, upper_bound=110"


@pytest.fixture
def table():
    columns = take(records(40, 0), "age", "ldl", "smoker", "bp", "ill")
    columns["sex"] = np.random.default_rng(0).choice(["f", "m"], 40)
    put("t.csv", columns)
    return columns


@pytest.mark.parametrize(
    "formula",
    [
        "bp ~ age + ldl",
        "bp ~ age * ldl",
        "bp ~ C(smoker) * age + log(ldl)",
        "bp ~ C(smoker):age",
        "bp ~ 0 + C(smoker) + age",
        "bp ~ (age + ldl + C(sex))**2",
        "bp ~ factor(sex)",
        "bp ~ I(age**2) + np.sqrt(ldl) + exp(age)",
        "bp ~ bs(age, knots=[50., 65.], lower_bound=20, upper_bound=110) + C(sex)",
        "bp ~ age + C(sex) - 1",
        "bp ~ 1",
    ],
)
def test_the_design_spans_what_another_librarys_does(table, formula):
    """Columns may be named and ordered otherwise; the space of predictors is the same."""
    pandas = pytest.importorskip("pandas")
    recipe = with_formula(Recipe("linear", categories=LEVELS), formula)
    read = read_cells(Path("t.csv"))
    scaled = recipe.replaced(scale={"age": 10.0} if "exp(age)" in formula else {})
    found = design(read, scaled.filled(recipe.columns or ())).x
    frame = pandas.DataFrame(table)
    frame["smoker"] = pandas.Categorical(frame["smoker"], LEVELS["smoker"])
    frame["sex"] = pandas.Categorical(frame["sex"], LEVELS["sex"])
    if "exp(age)" in formula:
        frame["age"] /= 10
    theirs = formula.replace("factor", "C")
    wanted = np.asarray(formulaic.model_matrix(theirs, frame).rhs, float)
    assert found.shape == wanted.shape
    both = np.column_stack([found, wanted]) / np.sqrt((wanted**2).mean())
    left = wanted - found @ np.linalg.lstsq(found, wanted, rcond=None)[0]
    np.testing.assert_allclose(left / np.abs(wanted).max(0), 0, atol=1e-8)
    assert np.isfinite(both).all() and len(recipe.coefficients()) == wanted.shape[1]
    assert recipe_in(as_provenance(recipe.filled(recipe.columns or ()))) is not None


def test_a_formula_is_kept_as_data_and_predicts_raw_records(table):
    formula = "ill ~ C(smoker) * age + log(ldl) + bs(bp, df=4, lower_bound=60, upper_bound=200)"
    line = ("--model", "logistic", "--category", "smoker=no,ex,yes", "--center", "age=60")
    data = document("fit", "t.csv", "--formula", formula, *line, "-o", "m.safetensors")
    names = [row["name"] for row in data["parameters"]]
    assert {"age:smoker[yes]", "log(ldl)", "bs(bp)[4]"} <= {*names}
    assert ["spline", "bp", 3.0, 60.0, 200.0, 130.0] in [t[0] for t in data["recipe"]["terms"]]
    succeed("predict", "m.safetensors", "t.csv", "-o", "p.csv")
    q = posterity.load("m.safetensors").posterior
    recipe = recipe_in(posterity.inspect("m.safetensors").provenance)
    x = design(read_cells(Path("t.csv")), recipe).x
    order = [recipe.coefficients().index(name) for name in q.names]
    f = x[:, order] @ q.mean
    assert np.corrcoef(rows("p.csv")["p"], f)[0, 1] > 0.8
    succeed("fit", "t.csv", "--like", "m.safetensors", "--site", "u", "-o", "u.safetensors")
    fused = document("fuse", "m.safetensors", "u.safetensors", "-o", "f.safetensors")
    assert fused["rule"] == "product" and {*fused["columns"]} == {*names}
    assert "log(ldl)" in succeed("show", "f.safetensors").stdout
    put("far.csv", {**take(table, "age", "smoker", "ldl"), "bp": table["bp"] + 100})
    refuse("predict m.safetensors far.csv -o q.csv", 5, "the bounds of its spline; 'bp'; line 2")
    succeed("federate", "--site", "a=t.csv", "--formula", "ill ~ age + C(smoker)", "--model",
            "logistic", *line[2:], "-o", "g.safetensors")  # fmt: skip
    assert posterity.load("g.safetensors").posterior.names[0] == "intercept"


@pytest.mark.parametrize(
    "formula, words",
    [
        ("ill ~ __import__('os').system('x')", "formula"),
        ("ill ~ eval(age)", "eval"),
        ("ill ~ I(age.__class__)", "age"),
        ("ill ~ I(age + ldl)", "I(age + ldl)"),
        ("ill ~ I(age**0.5)", "I(age"),
        ("ill ~ scale(age)", "--center and --scale"),
        ("ill ~ bs(age, df=4)", "a site's own data"),
        ("ill ~ bs(age, knots=[5], lower_bound=20, upper_bound=90)", "knots between"),
        ("ill ~ C(ward)", "--category ward=A,B"),
        ("ill + age ~ ldl", "one column"),
        ("log(ill) ~ age", "one column"),
        ("age + ldl", "TARGET ~ TERM"),
        ("ill ~ age | ldl", "not two sides"),
        ("ill ~ age; ldl", "(Unknown operator ';'.)"),
        ("ill ~ C(smoker, Treatment('ex'))", "C of a column alone; levels"),
        ("ill ~ C(smoker, levels=['ex', 'no', 'yes'])", "C of a column alone; levels"),
        ("ill ~ offset(age, 2)", "offset(COLUMN)"),
        ("ill ~ age +* ldl", "TARGET ~ TERM"),
        ("ill ~ log(age, 3)", "log of a column alone"),
        ("ill ~ bs(age, df=2, lower_bound=20, upper_bound=90)", "df of the degree"),
        ("ill ~ exp(sex)", "of a category"),
        ("ill ~ I(sex**2)", "of a category"),
        ("ill ~ bs(sex, knots=[1], lower_bound=0, upper_bound=2)", "of a category"),
    ],
)
def test_what_is_no_formula_of_ours_is_refused_and_never_run(formula, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        with_formula(Recipe("linear", categories=LEVELS), formula)


def test_a_logarithm_of_nothing_names_the_line():
    put("t.csv", {"dose": [1, 0, 2], "y": [1, 2, 3]})
    refuse("fit t.csv --model linear --formula 'y ~ log(dose)' -o t.safetensors", 5,
           "0 in line 3, column 'dose'; log; --missing 0")  # fmt: skip
    put("crp.csv", {"crp": [1, -9, 2], "y": [1, 2, 3]})
    refuse("fit crp.csv --model linear --formula 'y ~ log(crp)' -o t.safetensors", 5,
           "-9 in line 3, column 'crp'; pass --missing -9")  # fmt: skip
    refuse("fit t.csv --model linear --formula 'y ~ dose' --target y -o t.safetensors", 2,
           "--target; --formula")  # fmt: skip
    recipe = Recipe("linear", "y", ("dose",), terms=((("log", "dose"),),))
    with pytest.raises(ArtifactError, match="line 3"):
        design(read_cells(Path("t.csv")), recipe)


def test_a_column_may_also_be_the_offset_but_the_target_may_not(table):
    header = [*table]
    made = with_formula(Recipe("linear"), f"bp ~ bs(age, df=4, {BOUNDS}) + offset(age)")
    assert columns_of(made, header, Path("t.csv")) == ("age",)
    with pytest.raises(UsageError, match="'bp' in two of --columns, --target"):
        columns_of(with_formula(Recipe("linear"), "bp ~ age + offset(bp)"), header, Path("t.csv"))


def test_an_offset_of_a_logarithm_is_an_exposure():
    made = with_formula(Recipe("poisson"), "n ~ x + offset(log(years))")
    assert (made.exposure, made.offset, made.columns) == ("years", None, ("x",))
    assert with_formula(Recipe("logistic"), "n ~ x + offset(o)").offset == "o"
    made = with_formula(Recipe("negative-binomial"), "n ~ x + offset(log(years))")
    assert (made.exposure, made.offset) == ("years", None)


@pytest.mark.parametrize(
    "recipe, formula",
    [
        (Recipe("poisson"), "n ~ x + offset(a) + offset(b)"),
        (Recipe("poisson", offset="b"), "n ~ x + offset(a)"),
        (Recipe("poisson", exposure="b"), "n ~ x + offset(log(a))"),
    ],
)
def test_a_second_offset_is_refused(recipe, formula):
    with pytest.raises(UsageError, match="with a second"):
        with_formula(recipe, formula)


def test_names_with_blanks_and_brackets_are_written_between_backticks():
    recipe = Recipe("linear", categories={"sex (m/f)": ("f", "m"), "my ward": ("a", "b")})
    made = with_formula(
        recipe, "`out (z)` ~ `bp [mmHg]` * `sex (m/f)` + log(`a-b`) + C(`my ward`) + I(`a-b`**2)"
    )
    assert made.target == "out (z)"
    assert set(made.coefficients()) == {
        "intercept", "bp [mmHg]", "sex (m/f)[m]", "log(a-b)", "my ward[b]", "a-b^2",
        "bp [mmHg]:sex (m/f)[m]",
    }  # fmt: skip
    with pytest.raises(UsageError, match="C"):
        with_formula(recipe, "y ~ C('my ward')")


def test_a_formula_of_survival_is_described_without_its_baseline():
    survival = Recipe("survival", event="dead", cuts=(1.0, 2.0))
    (line, *_) = with_formula(survival, "time ~ x").describe()
    assert line.startswith("Predicts time from hazards that change at 1.0, 2.0, x of x:")


def test_the_order_of_an_interaction_is_no_matter():
    one, other = (
        with_formula(Recipe("linear"), f"y ~ {terms}").filled(("a", "b"))
        for terms in ("a * b", "b * a")
    )
    assert set(one.coefficients()) == set(other.coefficients())
    assert one.canonical() == other.canonical()


def test_a_missing_value_is_an_indicator_and_no_more(table):
    """The column's own terms are 0 there, so the rest is as if the indicator took all."""
    ldl = ["" if k % 4 == 0 else value for k, value in enumerate(table["ldl"].tolist())]
    put("n.csv", {**table, "ldl": ldl})
    put("s.csv", table)  # where none is missing
    # In units in which the least number of the spline is not one of its column.
    spline = "bp ~ bs(ldl, df=4, lower_bound=0.7, upper_bound=300) + missing(ldl)"
    recipe = with_formula(Recipe("linear", center={"ldl": 0.1}, scale={"ldl": 3.0}), spline)
    cells = read_cells(Path("n.csv"))
    assert design(cells, recipe.filled(recipe.columns or ())).x[0, 1:-1].any() == 0
    formula = "bp ~ age + log(ldl) + bs(ldl, df=4, lower_bound=1, upper_bound=900) + missing(ldl)"
    recipe = with_formula(Recipe("linear"), formula)
    recipe = recipe.filled(recipe.columns or ())
    found = design(read_cells(Path("n.csv")), recipe)
    full = design(read_cells(Path("s.csv")), recipe)
    gap = np.arange(40) % 4 == 0
    *others, missing = (found.names.index(n) for n in found.names if "ldl" in n)
    np.testing.assert_array_equal(found.x[:, missing], gap)
    np.testing.assert_array_equal(full.x[:, missing], 0)
    np.testing.assert_array_equal(found.x[:, others], full.x[:, others] * ~gap[:, None])
    assert found.dropped == 0
    line = [
        "--model",
        "linear",
        "--noise-variance",
        "50",
        "--formula",
        "bp ~ age + ldl + missing(ldl)",
    ]
    for site in "ns":
        succeed("fit", f"{site}.csv", *line, "-o", f"{site}.safetensors")
    fused = document("fuse", "n.safetensors", "s.safetensors", "-o", "b.safetensors")
    assert fused["one_shot"] == 0 and not fused["notes"]
    x = np.concatenate([np.column_stack([np.ones(40), table["age"], table["ldl"] * ~own, own])
                        for own in (gap, 0 * gap == 1)])  # fmt: skip
    q = posterity.load("b.safetensors").posterior
    wanted = np.linalg.lstsq(x, np.tile(table["bp"], 2), rcond=None)[0]
    at = [q.names.index(name) for name in ("intercept", "age", "ldl", "missing(ldl)")]
    np.testing.assert_allclose(q.mean[at], wanted, rtol=1e-4)
    succeed("predict", "b.safetensors", "n.csv", "-o", "p.csv")
    np.testing.assert_allclose(rows("p.csv")["mean"], x[:40] @ wanted, rtol=1e-4)
    refuse(
        "fit n.csv --model linear --target bp --columns age,ldl -o q.safetensors",
        5,
        "missing(NAME)",
    )


def test_a_column_of_texts_that_each_site_has_for_itself_stands_for_its_products():
    recipe = with_formula(Recipe("linear", categories=LEVELS), "bp ~ age * sex + sex:ldl")
    recipe = recipe.replaced(own=("sex",), strata=("n",))
    names = [name for name in recipe.coefficients() if "sex[" in name]
    assert len(names) > 2 and all(name.endswith("@n") for name in names)
    assert {"intercept", "age"} < {*recipe.coefficients()}


def test_names_as_r_writes_numbers():
    columns = ("t", "u", "v")
    recipe = Recipe("linear", columns=columns, center={"t": -3, "u": 60.5},
                    scale={"t": 1234567, "v": 1e5})  # fmt: skip
    assert {"I((t + 3)/1234567)", "I(u - 60.5)", "I(v/1e+05)"} < {*names_in_r(recipe)}


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("I(age**9)", "I(age**10)"),
        (f"bs(age, knots=[50.], degree=5, {BOUNDS})", f"bs(age, knots=[50.], degree=6, {BOUNDS})"),
    ],
)
def test_powers_and_degrees_have_a_last(inside, outside):
    assert with_formula(Recipe("linear"), f"bp ~ {inside}").coefficients()
    with pytest.raises(UsageError):
        with_formula(Recipe("linear"), f"bp ~ {outside}")


def test_a_number_whose_square_may_be_infinite_is_refused():
    recipe = Recipe("linear", "y", ("a",))
    for number, taken in (("9e99", True), ("2e100", False)):
        Path("vast.csv").write_text(f"a,y\n1,0\n{number},1\n")
        cells = read_cells(Path("vast.csv"))
        if taken:
            assert design(cells, recipe.filled(("a",))).x.max() == 9e99
        else:
            with pytest.raises(ParameterError, match="2e\\+100 in column 'a'"):
                design(cells, recipe.filled(("a",)))
