"""What people bring that is not what a command takes: read, or refused with what does it here."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.commands import document, refuse, succeed

import posterity
from posterity.cli.streams import in_shell

COUNT = 90


@pytest.fixture(autouse=True)
def tables():
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"y": np.arange(COUNT) % 2, "x": rng.normal(size=COUNT).round(3)})
    data["time"] = rng.exponential(size=COUNT).round(3) + 0.01
    data["status"] = data["y"] + 1
    data["sex"] = rng.choice(["f", "m"], COUNT)
    data["stage"] = rng.integers(1, 4, COUNT)
    data.to_csv("n.csv", index=False)
    data.assign(x=data["x"] + 1).to_csv("s.csv", index=False)
    data.assign(ill=np.where(data["y"], "Y", "N")).drop(columns="y").to_csv("yn.csv", index=False)
    return data


FIT = "fit n.csv --columns x -o n.safetensors --target y --model "
TEXTS = "pass --category sex=f,m or leave columns out: --without sex"
REFUSED = {
    "fuse n.csv s.csv -o b.safetensors": (5, "a table of records, 'n.csv'; posterity fit n.csv"),
    "show n.csv": (5, "posterity fit n.csv"),
    "inspect n.csv": (5, "posterity fit n.csv"),
    "report n.csv -o n.html": (5, "posterity fit n.csv"),
    "diff n.csv s.csv": (5, "posterity fit n.csv"),
    "predict n.csv s.csv -o p.csv": (5, "posterity fit n.csv"),
    "fit n.rds --target y --model linear -o n.safetensors": (5, "a table of R; write.csv"),
    "fit n.nc --target y --model linear -o n.safetensors": (5, "from_netcdf; from_samples"),
    "fit n.pkl --target y --model linear -o n.safetensors": (5, "code; to_csv"),
    "import draws.csv -o d.safetensors": (4, "draws in table; from_samples"),
    "import draws.nc -o d.safetensors": (5, "from_netcdf; from_samples"),
    FIT + "cox": (2, "--model survival"),
    FIT + "ols": (2, "--model linear"),
    FIT + "logit": (2, "--model logistic"),
    FIT + "negbin": (2, "--model negative-binomial"),
    "federate -o f.safetensors --site n=n.csv --model cox": (2, "Pass --model survival."),
    "pursue --data n.csv -o p.safetensors --target y --model Logit": (2, "Pass --model logistic."),
    "fit n.csv --model survival --target time --event status --columns x -o n.safetensors": (
        *(5, "--category status=1,2, censored first"),
    ),
    "fit n.csv --model logistic --formula 'y ~ .' -o n.safetensors": (2, "leave --formula out"),
    "fit n.csv --model logistic --formula 'y ~ x + (1|sex)' -o n.safetensors": (
        *(2, "--cluster NAME; --personal"),
    ),
    "fit n.csv --model logistic --formula 'y ~ x + (1 + x | sex)' -o n.safetensors": (
        *(2, "--cluster NAME; --personal"),
    ),
    "fit yn.csv --model logistic --target ill -o n.safetensors": (
        *(5, "'sex' ['f', 'm']; 'ill' ['N', 'Y']; --category sex=f,m --category ill=N,Y"),
    ),
    "fit n.csv --model logistic --target y -o n.safetensors": (5, TEXTS),
    "federate n.csv n=s.csv --target y --model logistic -o b.safetensors": (
        2,
        "site 'n'",
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_says_the_way_on(line):
    Path("draws.csv").write_text("# model = m\nlp__,beta\n-1,0.1\n-2,0.3\n")
    Path("draws.nc").write_bytes(b"CDF")
    for name in ("n.rds", "n.nc", "n.pkl"):
        Path(name).write_bytes(b"not even read")
    refuse(line, *REFUSED[line])


@pytest.mark.parametrize("ending", ["dta", "xlsx", "csv"])
def test_tables_of_other_programs_are_read_as_a_csv_is(ending, tables):
    if ending == "dta":
        tables.to_stata("t.dta", write_index=False)
    elif ending == "xlsx":
        pytest.importorskip("openpyxl")
        tables.to_excel("t.xlsx", index=False)
    else:
        tables.to_csv("t.csv", index=False)
    more = "--target y --model logistic --without time,status --category sex=f,m"
    for file in ("n.csv", f"t.{ending}"):
        succeed(*shlex.split(f"fit {file} --site t {more} -o {file}.safetensors"))
    one, other = (posterity.load(f"{file}.safetensors") for file in ("n.csv", f"t.{ending}"))
    assert one == other


def test_tables_as_arguments_of_federate_are_its_sites():
    more = "--target y --model logistic --columns x --intercept -o b.safetensors"
    data = document(*shlex.split(f"federate n.csv south=s.csv {more}"))
    assert sorted(data["sites"]) == ["n", "south"]
    both = posterity.load("b.safetensors")
    document(*shlex.split(f"federate --site n=n.csv --site south=s.csv {more}"))
    assert posterity.load("b.safetensors") == both


def test_event_codes_and_labels_are_read_by_their_levels(tables):
    line = "--model survival --target time --columns x -o s.safetensors --site s"
    succeed(*shlex.split(f"fit n.csv {line} --event status --category status=1,2"))
    coded = posterity.load("s.safetensors").posterior
    tables.assign(status=np.where(tables["y"], "dead", "alive")).to_csv("t.csv", index=False)
    succeed(*shlex.split(f"fit t.csv {line} --event status --category status=alive,dead"))
    assert posterity.load("s.safetensors").posterior == coded
    succeed(*shlex.split(f"fit n.csv {line} --event y"))
    assert posterity.load("s.safetensors").posterior == coded


@pytest.mark.parametrize("written", ["1.0", "1", "01 is no level"])
def test_levels_of_floats_are_those_of_whole_numbers(written, tables):
    line = "--target y --model logistic --columns stage --site t"
    succeed(*shlex.split(f"fit n.csv {line} --category stage=1,2,3 -o a.safetensors"))
    stage = tables["stage"].astype(float) if written == "1.0" else tables["stage"]
    if "no level" in written:
        stage = "0" + stage.astype(str)
    tables.assign(stage=stage).to_csv("t.csv", index=False)
    like = "fit t.csv --like a.safetensors --site t -o b.safetensors"
    if "no level" in written:
        refuse(like, 5, "column 'stage'; one of its levels")
        return
    succeed(*shlex.split(like))
    levels = "--category stage=1.0,2.0,3.0"
    succeed(*shlex.split(f"fit t.csv {line} {levels} -o c.safetensors"))
    one, *others = (posterity.load(f"{name}.safetensors") for name in "abc")
    assert all(one == other for other in others)
    succeed("fuse", "a.safetensors", "u=c.safetensors", "-o", "d.safetensors")


def test_names_in_capitals_are_suggested(tables):
    tables.rename(columns={"y": "ILL", "x": "Dose"}).to_csv("t.csv", index=False)
    line = "fit t.csv --target {} --model logistic --columns {} -o t.safetensors"
    refuse(line.format("ill", "Dose"), 4, "'ill'; Write ILL, or; --rename ill=ILL")
    refuse(line.format("ILL", "dose"), 4, "'dose'; Write Dose, or; --rename dose=Dose")
    tables.assign(Y=tables["y"], X=0).rename(columns={"y": "ill"}).to_csv("t.csv", index=False)
    refuse("fit t.csv --target yy --model logistic --columns x -o t.safetensors", 4, "'yy'")


@pytest.mark.parametrize("missing", ["-99", "unknown", "-99,unknown"])
def test_what_stands_for_a_missing_value_can_be_said(missing, tables):
    values = tables["x"].astype(str)
    for place, text in enumerate(missing.split(",")):
        values[place::10] = text
    gaps = values.isin(missing.split(","))
    tables.assign(x=values).to_csv("t.csv", index=False)
    tables[~gaps].to_csv("u.csv", index=False)
    line = "--target y --model logistic --columns x --site t"
    succeed(*shlex.split(f"fit t.csv {line} --missing {missing} --drop-missing -o t.safetensors"))
    succeed(*shlex.split(f"fit u.csv {line} -o u.safetensors"))
    one, other = (posterity.load(f"{name}.safetensors") for name in "tu")
    assert one == other


@pytest.mark.parametrize(("mark", "more"), [(".", ""), (",", ""), (",", " --decimal ,")])
def test_a_number_stands_for_a_missing_value_however_it_is_written(mark, more, tables):
    values = [f"{value:.2f}".replace(".", mark) for value in tables["x"]]
    ways = ("-9", f"-9{mark}0", f" -9{mark}00")
    values[::10] = [ways[place % 3] for place in range(len(values[::10]))]
    tables.assign(x=values).to_csv("t.csv", index=False, sep=";")
    gaps = np.arange(len(tables)) % 10 == 0
    tables.assign(x=values)[~gaps].to_csv("u.csv", index=False, sep=";")
    line = f"--target y --model logistic --columns x --site t{more}"
    found = document(*shlex.split(f"fit t.csv {line} --missing -9 --drop-missing -o t.safetensors"))
    succeed(*shlex.split(f"fit u.csv {line} -o u.safetensors"))
    one, other = (posterity.load(f"{name}.safetensors") for name in "tu")
    assert one == other
    assert any("pass it to predict" in note for note in found["notes"])
    (note,) = (note for note in found["notes"] if "by --missing" in note)
    assert note.startswith("no value in 'x', by --missing: -9 in") and f"-9{mark}00 in" in note


def test_true_and_false_are_logical_beside_ones_and_zeros(tables):
    line = "fit t.csv --target y --model logistic --columns x --site t -o"
    words = ["True", " TRUE", "1", "false", "0", "FALSE "]
    tables["x"] = [words[place % 6] for place in range(len(tables))]
    tables.to_csv("t.csv", index=False)
    succeed(*line.split(), "t.safetensors")
    tables.assign(x=[1 - place % 6 // 3 for place in range(len(tables))]).to_csv("t.csv")
    succeed(*line.split(), "u.safetensors")
    assert posterity.load("t.safetensors") == posterity.load("u.safetensors")
    tables.loc[7, "x"] = "x"
    tables.to_csv("t.csv", index=False)
    refuse(f"{line} v.safetensors", 5, "'x', which; in line 9; --missing x")


def test_a_text_among_numbers_may_stand_for_a_missing_value(tables):
    values = tables["x"].astype(str)
    for text in ("k.A.", "not asked", "<0.1"):
        values[4] = text
        tables.assign(x=values).to_csv("t.csv", index=False)
        line = "fit t.csv --target y --model logistic --columns x -o t.safetensors"
        way = f"pass --missing {shlex.quote(text)}. Otherwise correct the file there"
        refuse(line, 5, f"{text!r}, which is not a number; line 6; 'x'; {way}")
        shell = f"{line} --missing {shlex.quote(text)}"
        refuse(shell, 5, "1 record with a missing value")
        succeed(*shlex.split(f"{shell} --drop-missing"))


@pytest.mark.parametrize(
    ("said", "shell"),
    [
        ("(federate(..., personal=True))", "(posterity federate --personal true)"),
        ("Pass prior= to choose", "Pass --prior to choose"),
        ("by fuse(..., rule='product').", "by posterity fuse --rule 'product'."),
        ("absorb=True for plates", "--absorb for plates"),
        ("x=3, y = 2 and a=b", "x=3, y = 2 and a=b"),
        (
            "pass lower_bound=, as in bs(age, degree=2).",
            "pass lower_bound=, as in bs(age, degree=2).",
        ),
        ("the key LlI/w= and l+b=", "the key LlI/w= and l+b="),
    ],
)
def test_notes_at_the_shell_speak_of_flags(said, shell):
    assert in_shell(said) == shell


@pytest.mark.parametrize("verb", ["fit", "federate"])
def test_texts_of_a_table_stand_for_false_and_true_of_another(verb, tables):
    tables = tables[["y", "x"]]
    logical = np.where(np.arange(COUNT) % 3, "TRUE", "FALSE")
    tables.assign(smoker=logical).to_csv("n.csv", index=False)
    texts = np.where(logical == "TRUE", "ja", "nein")
    tables.assign(smoker=texts).to_csv("s.csv", index=False)
    tables.assign(smoker=logical).to_csv("t.csv", index=False)
    line = "--target y --model logistic"
    succeed(*shlex.split(f"fit n.csv {line} -o n.safetensors"))
    if verb == "fit":
        other = "fit {}.csv --like n.safetensors --site s -o {}.safetensors"
        refuse(other.format("s", "s"), 5, "--category smoker=nein,ja")
        found = document(*shlex.split(f"{other.format('s', 's')} --category smoker=nein,ja"))
        succeed(*shlex.split(other.format("t", "t")))
        words = "which are none of the model's"
        refuse(f"{other.format('s', 's')} --category smoker=nein,ja,a", 2, words)
        refuse(f"{other.format('s', 's')} --category sex=f,m", 2, words)
        succeed(*shlex.split("predict s.safetensors s.csv -o p.csv --category smoker=nein,ja"))
        succeed(*shlex.split("predict s.safetensors t.csv -o q.csv"))
        assert Path("p.csv").read_text() == Path("q.csv").read_text()
    else:
        other = f"federate --site n=n.csv --site s={{}}.csv {line} --intercept -o {{}}.safetensors"
        own = "--table 's={category={smoker=\"nein,ja\"}}'"
        found = document(*shlex.split(f"{other.format('s', 's')} {own}"))
        succeed(*shlex.split(other.format("t", "t")))
    assert any("nein and ja in 'smoker' are read as 0 and 1" in note for note in found["notes"])
    assert posterity.load("s.safetensors") == posterity.load("t.safetensors")


def test_dates_with_points_are_texts_and_a_column_to_leave_out(tables):
    days = [f"{1 + place % 28:02d}.03.{2019 + place % 2}" for place in range(len(tables))]
    tables.assign(seen=days).to_csv("t.csv", index=False)
    line = "fit t.csv --target y --model logistic -o t.safetensors"
    refuse(line, 5, "columns of texts; 'seen'; '01.03.2019'; --without sex,seen")
    tables.assign(seen=days).to_csv("t.csv", index=False, sep=";", decimal=",")
    refuse(line, 5, "columns of texts; 'seen'; --without sex,seen")
    succeed(*line.split(), "--without", "sex,seen")
