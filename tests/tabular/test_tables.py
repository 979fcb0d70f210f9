"""Tables of means and standard deviations, as R, Stata, statsmodels and people write them."""

import json
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import posterity
from posterity import errors
from posterity.families import DiagonalGaussian, Dirichlet, Gaussian
from posterity.tabular import tables
from posterity.tabular.tables.numbers import AmbiguousNumber, decimal_mark, number
from posterity.tabular.tables.reader import Cells, read_cells

R = '"","Estimate","Std. Error","t value","Pr(>|t|)"\n"(Intercept)",1.25,0.5,2.5,0.0124\n'
EUROPE = '"";"Estimate";"Std. Error"\n"(Intercept)";1,25;0,5\n'
STATSMODELS = """,coef,std err,t,P>|t|,[0.025,0.975]
(Intercept),1.2500,0.500,2.500,0.012,0.270,2.230
"""
BROOM = "term\testimate\tstd.error\tstatistic\tp.value\n(Intercept)\t1.25\t0.5\t2.5\t0.012\n"
STATA = """Variable,Coefficient,Std. err.,z,P>|z|,[95% conf.,interval]
(Intercept),1.25,.5,2.5,.01,.27,2.23
"""
ARVIZ = ",mean,sd,hdi_3%,hdi_97%,r_hat\n(Intercept),1.25,0.5,0.3,2.2,1.0\n"
WRITE_TABLE = '"Estimate"\t"Std. Error"\n"(Intercept)"\t1.25\t0.5\n'
LIMITS = "name,estimate,2.5 %,97.5 %\n(Intercept),1.25,0.2700180077,2.2299819923\n"
VARIANCE = "\ufeff\r\nname , mean , variance\r\n\r\n (Intercept) , 1.25 , 0.25\r\n,,\r\n"


@pytest.fixture
def put(tmp_path):
    def put(text, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return put


@pytest.mark.parametrize(
    "text",
    [
        R,
        EUROPE,
        STATSMODELS,
        BROOM,
        STATA,
        ARVIZ,
        LIMITS,
        VARIANCE,
        WRITE_TABLE,
        R.encode("utf-16"),
        "name,mean,sd,\n(Intercept),1.25,0.5,\n",
        "name;mean;sd\n(Intercept);1,25;0,5;\n",
        ",Estimate,Est.Error,Q2.5,Q97.5\n(Intercept),1.25,0.5,0.41,2.4\n".replace(
            "Est.Error", "Std. Error"
        ),
        # Rounded: the estimate and its deviation are 1.25 and 0.5 all the same.
        "name,mean,sd,2.5 %,97.5 %\n(Intercept),1.25,0.5,0.3,2.2\n",
    ],
)
def test_tables_of_other_programs_are_read(put, text):
    q = tables.read(put(text))
    assert isinstance(q, DiagonalGaussian)
    assert q.names == ("(Intercept)",)
    np.testing.assert_allclose([q.mean[0], q.variance[0] ** 0.5], [1.25, 0.5], rtol=1e-9)


def test_a_table_that_statsmodels_itself_wrote(put):
    api = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    x = api.add_constant(rng.normal(size=(50, 2)))
    fit = api.OLS(x @ [1.0, 2.0, -1.0] + rng.normal(size=50), x).fit()
    summary = put(fit.summary2().tables[1].to_csv())
    rounded = tables.read(summary, covariance=put(_matrix(fit.cov_params(), fit), "vcov.csv"))
    assert isinstance(rounded, Gaussian) and rounded.names == ("const", "x1", "x2")
    np.testing.assert_allclose(rounded.mean, fit.params, rtol=1e-12)
    np.testing.assert_allclose(rounded.covariance, fit.cov_params(), rtol=1e-9)


def _matrix(covariance, fit):
    import pandas

    names = fit.model.exog_names
    return pandas.DataFrame(covariance, names, names).iloc[[2, 0, 1], [1, 2, 0]].to_csv()


def test_numbers_come_back_to_the_last_digit(tmp_path):
    """Through natural parameters, a file and a table, for numbers of up to 14 digits."""
    rng = np.random.default_rng(1)
    scale = 10.0 ** rng.integers(-8, 9, 500)
    tidy = lambda values: np.array([float(f"{value:.13g}") for value in values])
    mean, sd = tidy(rng.normal(size=500) * scale), tidy(rng.gamma(2, size=500) * scale)
    names = [f"b, {i} “é”" for i in range(500)]
    posterity.save(tables.from_table(names, mean, sd), tmp_path / "q.safetensors")
    tables.write(posterity.load(tmp_path / "q.safetensors"), tmp_path / "q.csv")
    q = tables.read(tmp_path / "q.csv")
    told = tables.to_table(q)
    assert (told["names"], told["mean"], told["sd"]) == (names, mean.tolist(), sd.tolist())
    with open(tmp_path / "q.csv") as file:
        assert repr(float(mean[7])) in file.read()


def test_what_was_no_table_comes_back_within_rounding(tmp_path):
    rng = np.random.default_rng(2)
    q = DiagonalGaussian(rng.normal(size=99), rng.gamma(2, size=99))
    tables.write(q, tmp_path / "q.csv")
    back = tables.read(tmp_path / "q.csv")
    np.testing.assert_allclose(back.precision_mean, q.precision_mean, rtol=5e-15)
    np.testing.assert_allclose(back.precision, q.precision, rtol=5e-15)


def test_a_covariance_goes_out_and_comes_back(tmp_path):
    a = np.random.default_rng(3).normal(size=(4, 4))
    names = ["a", "b", "ü", "d,e"]
    q = Gaussian.from_standard([1.0, 2.0, 3.0, 4.0], a @ a.T + np.eye(4)).named(names)
    csv, matrix, json_ = (tmp_path / n for n in ("q.csv", "v.csv", "q.json"))
    tables.write(q, csv, covariance=matrix)
    tables.write(q, json_)
    back = tables.read(csv, covariance=matrix)
    assert back.names == q.names
    np.testing.assert_allclose(back.mean, q.mean, rtol=1e-13)
    np.testing.assert_allclose(back.covariance, q.covariance, rtol=1e-13)
    assert json.loads(json_.read_text()) == tables.to_table(q)


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["1.5", "1,234.5"], "."), (["1,5"], ","), (["1.234.567"], ","), (["1,234"], None),
        (["0,123"], ","), (["0.123"], "."), (["1.234,5"], ","), (["-3", "1e-6"], None), ([], None),
    ],
)  # fmt: skip
def test_decimal_marks(cells, mark):
    assert decimal_mark(cells) == mark


def test_a_mark_that_is_not_said_is_not_guessed():
    with pytest.raises(AmbiguousNumber):
        decimal_mark(["0.5", "0,5"])
    with pytest.raises(AmbiguousNumber):
        number("1,234", None)
    with pytest.raises(AmbiguousNumber, match="may separate thousands"):
        decimal_mark(["1.250", "7"], ";")
    assert decimal_mark(["1.250", "0.5"], ";") == "." and decimal_mark(["1.250", "0,5"], ";") == ","

    between_tabs = Cells(Path("t.txt"), ("x",), [["5.071"], ["956"]], [2, 3], "\t")
    assert between_tabs.numbers("x").tolist() == [[5.071], [956]]
    assert between_tabs.numbers("x", ",").tolist() == [[5071], [956]]
    assert (number("1,234", "."), number("1,234", ",")) == (1234.0, 1.234)
    assert number("1 234,5", ",") == number("1\u202f234,5", ",") == 1234.5
    for text in ("1,23,4", "1_000", "0x1", "inf", "nan", "1e999", "12 5", "--1", "٣"):
        with pytest.raises(ValueError):
            number(text, ".")


HEAD = "name,mean,sd\n"
BROOM_EXP = "term,estimate,std.error,conf.low,conf.high\nage,1.5,0.1,1.2330,1.8248\n"
WRONG = {
    "no rows": b"",
    "no rows (blanks)": b"\n \n",
    "line 3, column 'sd'": HEAD + "a,1,1\nb,2,oops\n",
    "no value in line 2, column 'mean'": HEAD + "a,NA,1\n",
    "'inf', which is not a number, in line 2": HEAD + "a,inf,1\n",
    "2 cells in line 4 under 3 names": HEAD + "a,1,1\n\nb,1\n",
    "'a' in line 2 and again in line 3": HEAD + "a,1,1\na,2,1\n",
    "'é' in line 2 and again": HEAD + "é,1,1\ne\u0301,2,1\n",
    "no name in line 3": HEAD + "a,1,1\n,2,1\n",
    "sd 0.0 of parameter 'a'": HEAD + "a,1,0\n",
    "sd -1.0 of parameter 'a'": HEAD + "a,1,-1\n",
    "two columns of a parameter's sd": "name,mean,sd,se\na,1,1,1\n",
    "both 'sd' and 'var'": "name,mean,sd,var\na,1,1,1\n",
    "columns ['a', 'b']": "a,b\n1,2\n",
    "means without standard deviations": "name,mean\na,2\n",
    "a header without rows": HEAD,
    "(line 2) without valid names": b"\n" + b"name,mean,mean\na,1,1\n",
    "numbers, not names": "a,1,1\nb,2,1\n",
    "may separate thousands or decimals": "name;mean;sd\na;1,234;2,345\n",
    "two decimal marks": "name;mean;sd\na;1,5;2.5\n",
    "for odds ratios use logarithms": "name,estimate,2.5 %,97.5 %\na,2,1,4\n",
    "'a' in line 2: 9 within 1 to 4": "name,estimate,sd,2.5 %,97.5 %\na,9,1,1,4\n",
    "logarithms: exponentiate": BROOM_EXP,
    "'1.250' between semicolons": "name;mean;sd\na;1.250;7\n",
    "one limit": "name,estimate,2.5 %\na,2,1\n",
    "not UTF-8": HEAD.encode() + b"caf\xe9,1,1\n",
    "NUL": b"name,mean,sd\0\n",
    "in line 2": HEAD + 'a,"1"2,3\n',
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_said_and_where(put, words):
    path = put(WRONG[words])
    with pytest.raises(errors.PosterityError) as raised:
        tables.read(path)
    told = str(raised.value)
    assert words.split(" (")[0] in told and str(path) in told, told


def test_folders_pipes_and_nothing_are_no_tables(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path, tmp_path / "pipe.csv", tmp_path / "none.csv", tmp_path / "a\0b.csv"):
        with pytest.raises(errors.ArtifactError, match="cannot be read"):
            tables.read(path)


def test_a_covariance_has_the_names_of_the_means_and_their_deviations(put):
    means = put(HEAD + "a,1,1\nb,2,2\n")
    good = put(",b,a\nb,4,0.5\na,0.5,1\n", "v.csv")
    np.testing.assert_allclose(tables.read(means, covariance=good).covariance, [[1, 0.5], [0.5, 4]])
    for text, words in (
        (",a,c\na,1,0\nc,0,4\n", r"\['b'\] missing"),
        (",a,b\na,1,0\n", r"\['b'\] missing"),
        (",a,b\na,9,0\nb,0,4\n", "sd 1 of 'a'"),
        (",a,b\na,1,0\nb,x,4\n", "line 3, column 'a'"),
    ):
        with pytest.raises(errors.PosterityError, match=words):
            tables.read(means, covariance=put(text, "w.csv"))


def test_moments_that_no_gaussian_has_are_refused():
    for sd, covariance, words in ((None, None, "neither"), ([1.0], [[1.0]], "both")):
        with pytest.raises(errors.UsageError, match=words):
            tables.from_table(["a"], [1.0], sd, covariance=covariance)
    odd = {"positive definite": [[1, 1], [1, 1]], "symmetric": [[1, 0.5], [0.4, 1]]}
    for words, matrix in odd.items():
        with pytest.raises(errors.ParameterError, match=words):
            tables.from_table(["a", "b"], [0, 0], covariance=matrix)
    for matrix in ([["x"]], [[1.0, 2.0], [3.0]]):
        with pytest.raises(errors.StructureError, match="numbers, in 1 rows of 1"):
            tables.from_table(["a"], [1.0], covariance=matrix)
    with pytest.raises(errors.StructureError, match="mean"):
        tables.from_table(["a", "b"], [[1.0], [1.0, 2.0]], [1.0, 1.0])
    for law in (
        Dirichlet.from_standard([1.0, 2.0]),
        DiagonalGaussian(np.ones((2, 1)), np.ones((2, 1))),
    ):
        with pytest.raises(errors.StructureError):
            tables.to_table(law)


def test_estimates_without_a_prior_are_what_sites_contribute():
    """Precisions add, as in a meta-analysis with fixed effects."""
    north = tables.from_table(["a", "b"], [1.0, -2.0], [0.1, 0.3])
    south = tables.from_table(["a", "b"], [2.0, -1.0], [0.2, 0.1])
    ledgers = [tables.to_ledger(q, n, flat_prior=True) for n, q in (("n", north), ("s", south))]
    assert ledgers[0].factor("n").precision.tolist() == north.precision.tolist()
    both = ledgers[0].merge(ledgers[1]).posterior
    pooled = (north + south).mean
    np.testing.assert_allclose(both.mean, pooled, rtol=1e-11)
    prior = DiagonalGaussian.from_standard([0.0, 0.0], [100.0, 100.0])
    assert tables.to_ledger(north, "n", prior=prior).posterior == north or np.allclose(
        tables.to_ledger(north, "n", prior=prior).posterior.mean, north.mean
    )
    with pytest.raises(errors.UsageError, match="'a' of mean 1e"):
        tables.to_ledger(tables.from_table(["a"], [1e5], [1.0]), "n", flat_prior=True)
    with pytest.raises(errors.UsageError, match="neither a prior"):
        tables.to_ledger(north, "n")
    for law in (None, 1.0, tables.to_ledger(north, "n", flat_prior=True)):
        with pytest.raises(errors.UsageError, match=type(law).__name__):
            tables.to_ledger(law, "n", flat_prior=True)


@pytest.mark.parametrize(
    ("ending", "package"), [("parquet", "pyarrow"), ("xlsx", "openpyxl"), ("sav", "pyreadstat")]
)
def test_the_package_that_is_missing_is_named(monkeypatch, tmp_path, ending, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    path = tmp_path / f"t.{ending}"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("xl/workbook.xml", "")
    with pytest.raises(errors.MissingExtraError, match=f"no installed package '{package}'"):
        read_cells(path)
