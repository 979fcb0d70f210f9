"""What is asked by flags is what a file asks: both are made of the same declarations."""

import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, refuse
from cli.configurations import CONJUGATE

import posterity
from posterity.cli import schema
from posterity.cli.options import Settings, read
from posterity.cli.schema import commands, options_of
from posterity.errors import UsageError

VERBS = [name for name, declared in commands().items() if "files" in declared]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_place_and_a_flag_of_its_own(verb):
    places = [option.place for option in options_of(verb)]
    flags = [option.name for option in options_of(verb)]
    assert len({*places}) == len(places) and len({*flags}) == len(flags)
    for one, other in itertools.permutations(places, 2):
        assert not other.startswith(f"{one}."), "no value where there is a table"


SAID = [
    ("schedule.steps", "--steps", "30", "30"),
    ("schedule.tolerance", "--tolerance", "1", "1"),
    ("schedule.damping", "--damping", ".5", "0.5"),
    ("model.intercept", "--intercept", None, "true"),
    ("model.covariance", "--model-covariance", "[[1, 0], [0, 1.5]]", "[[1, 0], [0, 1.5]]"),
    ("prior.mean", "--prior-mean", "0,1.5", "[0, 1.5]"),
    ("weights", "--weight", ["a=2", "b=.5"], "{a = 2, b = 0.5}"),
    ("sites", "--site", ["a b=x=1.csv"], '{"a b=x" = "1.csv"}'),
    ("model.personal", "--personal", "true", "true"),
    ("model.personal", "--personal", "age,1", '["age", 1]'),
    ("model.personal", "--personal", ["age=0.5"], "{age = 0.5}"),
    ("schedule.links", "--links", '[["a", "b"]]', '[["a", "b"]]'),
    ("model.target", "--target", "3", '"3"'),
]


@pytest.mark.parametrize(("place", "flag", "text", "toml"), SAID)
def test_a_flag_says_what_a_key_says(place, flag, text, toml, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option = next(option for option in options_of("federate") if option.place == place)
    assert option.name == flag
    by_flag = read("federate", {place: True if text is None else text}, None)
    table, _, key = place.rpartition(".")
    Path("f.toml").write_text(f"[{table}]\n{key} = {toml}" if table else f"{key} = {toml}")
    by_file = read("federate", {}, Path("f.toml"))
    assert by_flag[place] == by_file[place]
    assert repr(by_flag[place]) == repr(by_file[place]), "of one type too"


@pytest.mark.parametrize("verb", VERBS)
def test_no_option_of_one_value_is_taken_twice(verb):
    single = [option for option in options_of(verb) if option.kind is not schema.FLAG]
    for option in single:
        if not (option.kind.many or option.kind.by_name):
            result = call(*verb.split(), option.name, "one", option.name, "other")
            assert result.exit_code == 2
            assert f"expected {option.kind.metavar}, once" in result.stderr


def test_a_list_is_the_only_value_of_its_option():
    line = ["fit", "a.csv", "--columns", "age", "--columns", '["bmi"]']
    result = call(*line)
    assert result.exit_code == 2 and "expected NAME,NAME, once" in result.stderr


def test_flags_go_before_the_file(folder):
    document("federate", "gossip.toml")
    whole = posterity.load("shared.safetensors")
    Path("gossip.toml").write_text(CONJUGATE.replace("seed = 3", "seed = 9"))
    line = "federate gossip.toml --seed 3 -o again.safetensors --steps 30"
    assert document(*line.split())["steps"] == 30
    assert posterity.load("again.safetensors") == whole


def test_forgetting_fusing_and_fitting_by_files_alone(files):
    rows = "\n".join(f"{x},{int(x > 0)}" for x in np.random.default_rng(0).normal(size=20))
    Path("t.csv").write_text("x,y\n" + rows)
    pairs = {
        "fuse n.safetensors s.safetensors --rule product -o OUT": (
            'posteriors = ["n.safetensors", "s.safetensors"]\nrule = "product"\n'
            '[output]\nfile = "OUT"'
        ),
        "forget n.safetensors --site north -o OUT --receipt OUT.json": (
            'ledger = "n.safetensors"\nsites = ["north"]\n'
            '[output]\nfile = "OUT"\nreceipt = "OUT.json"'
        ),
        "fit t.csv --model logistic --target y --scale x=2 --prior-sd 3 -o OUT": (
            '[data]\nfile = "t.csv"\nscale = {x = 2}\n[model]\nkind = "logistic"\ntarget = "y"\n'
            '[prior]\nsd = 3\n[output]\nfile = "OUT"'
        ),
    }
    for line, text in pairs.items():
        Path("c.toml").write_text(text.replace("OUT", "file.safetensors"))
        by_flags = call(*line.replace("OUT", "flags.safetensors").split())
        by_file = call(line.split()[0], "c.toml")
        assert by_flags.exit_code == by_file.exit_code == 0, by_flags.stderr + by_file.stderr
        assert posterity.load("flags.safetensors") == posterity.load("file.safetensors")


def test_what_no_flag_and_no_key_takes(files):
    Path("c.toml").write_text("rule = 3\n")
    refuse("fuse n.safetensors s.safetensors c.toml -o o.safetensors", 2, "rule = 3; a string")
    Path("c.toml").write_text("rules = 'product'\n")
    refuse("fuse n.safetensors s.safetensors c.toml -o o.safetensors", 2, "rules; matching; rule")
    line = "fuse n.safetensors s.safetensors -o o.safetensors --components 1.5"
    refuse(line, 2, "--components = 1.5; whole number")
    assert not schema.COUNT.allows(True)


WRITING = [name for name in VERBS if any(option.kind.written for option in options_of(name))]


@pytest.mark.parametrize("verb", WRITING)
def test_no_output_is_an_input_or_another_output_or_in_a_folder_that_is_not_there(verb, files):
    """Of every verb alike, before anything is read: by each option that names a file."""
    options = [option for option in options_of(verb) if option.kind.written is not None]
    texts = lambda kind: ["x=n.safetensors" if kind.by_name else "n.safetensors"]
    given = {option.place: option.kind.parsed(texts(option.kind)) for option in options}
    outputs = [option for option in options if option.kind.written]
    known = {option.place: f"{place}.png" for place, option in enumerate(outputs)}
    every = {option.place: option for option in options_of(verb)}
    read_ = lambda values: Settings(values, every, files=(Path("s.safetensors"),))
    read_(known).check_outputs()
    for output in outputs:
        inputs = [option.place for option in options if not option.kind.written]
        wrong = [{place: given[place], output.place: "n.safetensors"} for place in inputs]
        wrong += [{output.place: path} for path in ("./s.safetensors", "no/file", ".")]
        wrong += [{output.place: known[other.place]} for other in outputs if other != output]
        for own in wrong:
            with pytest.raises(posterity.errors.PosterityError, match="output"):
                read_(known | own).check_outputs()


WRONG = {
    "count": [0, -1, 1.5, True, "30", None],
    "natural": [-1, 0.5, False, "0"],
    "seed": [2**70, 1.0, True, "3"],
    "positive": [0, -1.0, float("inf"), float("nan"), True, "1"],
    "share": [0, 1.5, -0.5, "half"],
    "weight": [-2, float("nan"), "2"],
    "text": [3, ["a"], None],
    "file": ["", 5],
    "names": [[1], 3],
    "flag": [0, "true"],
    "table": [3, []],
    "pair": [["north"], ["north", ["south"]], "ab"],
    "sgld|sghmc": ["hmc", "", 3],
}


@pytest.mark.parametrize("kind", WRONG)
def test_values_of_another_kind_are_refused_and_named_alone_in_lists_and_by_name(kind):
    for value in WRONG[kind]:
        for declared, given, place in (
            (kind, value, "a.b"),
            (["list", kind], [value], "a.b"),
            (["by NAME", kind], {"x": value}, "a.b.x"),
        ):
            if declared == kind and schema.kind_of(kind).many and not isinstance(value, list):
                continue  # one of several needs no list
            with pytest.raises(posterity.errors.UsageError) as refused:
                schema.kind_of(declared).check("a.b", given)
            assert place in refused.value.found and refused.value.expected


@pytest.mark.parametrize(
    "texts, value",
    [
        (["intercept=3,bmi=1"], {"intercept": 3, "bmi": 1}),
        (["intercept=3", "bmi=1"], {"intercept": 3, "bmi": 1}),
        (["a,b=3"], {"a,b": 3}),
        (["age,bmi"], ["age", "bmi"]),
    ],
)
def test_names_with_numbers_may_be_between_commas(texts, value):
    (personal,) = (each for each in options_of("federate") if each.place == "model.personal")
    assert personal.kind.parsed(texts) == value


@pytest.mark.parametrize(
    "place, texts, value",
    [
        ("data.rename", ["age=Alter,sex=Geschlecht"], {"age": "Alter", "sex": "Geschlecht"}),
        ("data.rename", ["age=Alter, in Jahren"], {"age": "Alter, in Jahren"}),
        ("data.unit", ["ldl=mg/dL,age=years"], {"ldl": "mg/dL", "age": "years"}),
        ("data.category", ["sex=f,m"], {"sex": "f,m"}),
        ("sites", ["a=a.csv,b=b.csv"], {"a": "a.csv", "b": "b.csv"}),
        ("tables", ["b={convert={ldl=2,age=3}}"], {"b": {"convert": {"ldl": 2, "age": 3}}}),
    ],
)
def test_names_with_texts_may_be_between_commas(place, texts, value):
    (option,) = (each for each in options_of("federate") if each.place == place)
    assert option.kind.parsed(texts) == value


def test_every_option_of_a_kind_takes_what_that_kind_takes():
    """Each is declared by a kind that is known, with a sentence, for a function that there is."""
    for name in VERBS:
        module, _, function = commands()[name]["run"].partition(":")
        assert hasattr(importlib.import_module(f"posterity.cli.{module}"), function)
        for option in options_of(name):
            assert isinstance(option.kind, schema.Kind) and option.help.endswith(".")
            assert option.default is None or option.kind.allows(option.default)


DEEP = ".".join("a" * 40)


@pytest.mark.parametrize(
    "text",
    [
        f"{DEEP} = 1",
        f"[{DEEP}]",
        f"schedule = {{ {DEEP} = 1 }}",
        f"""schedule = {{ n = ",", {DEEP} = 1, m = "," }}""",
        f"""name = "a" # ' \"\"\" \n{DEEP} = 1\n# \"\"\" '""",
        'name = """\n""""\n' + f'{DEEP} = "x"',
        f"""name = 'a\\'\n{DEEP} = 'b'""",
        ".".join(["' '", '"a b"'] * 20) + " = 1",
        " . ".join("a" * 40) + " = 1",
        f"schedule = {{ x = {'[' * 40}{']' * 40} }}",
        "schedule = " + "{ a.b.c.d = " * 12 + "1" + " }" * 12,
        "#" * (2**24 + 1),
    ],
)
def test_what_is_too_deep_or_too_large_is_refused_before_it_costs(tmp_path, text):
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(UsageError, match=r"more than 32|at most 16,777,216"):
        read("federation-file", {}, tmp_path / "f.toml")


def test_dots_in_texts_and_numbers_are_no_depth(tmp_path):
    dots, numbers = "." * 99, ", ".join(["0.5"] * 99)
    lines = f"""name = "{dots}" # {dots}\nserver = '{dots}'\n[schedule]\nspeeds = [{numbers}]\n"""
    (tmp_path / "f.toml").write_text(lines)
    values = read("federation-file", {}, tmp_path / "f.toml").values
    assert values["name"] == values["server"] == dots and len(values["schedule"]["speeds"]) == 99
