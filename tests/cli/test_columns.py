"""Columns of tables: matched by their names across sites, and named in what comes out."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, refuse, succeed

import posterity
from posterity import cli
from posterity.arrays.tree import identical
from posterity.artifact import Architecture, register_architecture
from posterity.cli.jobs import problem_of
from posterity.cli.options import read
from posterity.families.names import with_names

CONFIG = """
[sites]
a = "a.csv"
b = "b.csv"
[model]
kind = "linear-regression"
noise_variance = 1
[prior]
family = "Gaussian"
mean = [0, 0]
covariance = [[4, 0], [0, 9]]
[schedule]
steps = 1
[output]
file = "out.safetensors"
"""
A = "age,dose,y\n1,2,3\n0,1,2.5\n4,1,-1\n"
B = "age,dose,y\n2,0,1\n-1,3,0\n"
PERMUTED = "y,dose,age\n1,0,2\n0,3,-1\n"
WIDE = CONFIG.replace("[0, 0]", "[0, 0, 0]").replace(
    "[[4, 0], [0, 9]]", "[[1, 0, 0], [0, 4, 0], [0, 0, 9]]"
)


@pytest.fixture
def tables(monkeypatch):
    """A federation of two tables, in whose folder the test runs."""
    monkeypatch.delenv(cli.DEBUG, raising=False)
    Path("a.csv").write_text(A)
    Path("b.csv").write_text(B)
    Path("f.toml").write_text(CONFIG)


def federated(config=CONFIG, output="out", code=0):
    """The document of a federation, and its posterior."""
    Path("f.toml").write_text(config.replace('"out.', f'"{output}.'))
    data = document("federate", "f.toml", code=code)
    return data, posterity.load(f"{output}.safetensors").posterior


def with_model(line, config=CONFIG):
    return config.replace("[prior]", f"{line}\n[prior]")


def with_kind(kind, config):
    """With a model that has no noise."""
    return config.replace("linear-regression", kind).replace("noise_variance = 1\n", "")


@pytest.mark.parametrize(
    "table",
    [
        PERMUTED,
        "\ufeff" + PERMUTED,
        PERMUTED.replace("\n", "\r\n"),
        PERMUTED.replace("y,dose", '"y"," dose "'),
        PERMUTED.replace("1,0,2", '"1","0","2"'),
        PERMUTED.replace("\n", "\n\n"),
        "\n" + PERMUTED,
        PERMUTED.replace(",", ";"),
        PERMUTED.replace(",", "\t"),
    ],
)
def test_permuted_columns_are_put_in_the_order_of_the_first_site(tables, table):
    _, plain = federated()
    Path("b.csv").write_bytes(table.encode())
    data, permuted = federated(output="permuted")
    assert identical(permuted, plain)
    assert (data["columns"], data["notes"][1:]) == (["age", "dose"], [])


def test_the_target_and_an_intercept(tables):
    for name in "ab":
        Path(f"{name}.csv").write_text(Path(f"{name}.csv").read_text().replace("y", "pain"))
    wide = with_model('target = "pain"\nintercept = true', WIDE)
    data, q = federated(wide)
    (note,) = data["notes"]  # its prior has as much weight as a record, of five
    assert data["columns"] == ["intercept", "age", "dose"] and "precision of ['intercept']" in note
    x = np.array([[1, 1, 2], [1, 0, 1], [1, 4, 1], [1, 2, 0], [1, -1, 3]])
    y = np.array([3, 2.5, -1, 1, 0])
    prior = np.diag([1, 1 / 4, 1 / 9])
    np.testing.assert_allclose(q.mean, np.linalg.solve(prior + x.T @ x, x.T @ y), rtol=1e-4)
    wide = with_model('target = "dose"', CONFIG)
    assert federated(wide, "other")[0]["columns"] == ["age", "pain"]


def test_a_target_alone_under_an_intercept(tables):
    for name, values in {"a": [1, 2, 3], "b": [6]}.items():
        Path(f"{name}.csv").write_text("\n".join(map(str, ["y", *values])))
    one = CONFIG.replace("[0, 0]", "[0]").replace("[[4, 0], [0, 9]]", "[[1e6]]")
    data, q = federated(with_model("intercept = true", one))
    assert data["columns"] == ["intercept"]
    np.testing.assert_allclose(q.mean, [3.0], rtol=1e-4)
    Path("f.toml").write_text(one)
    refuse("federate f.toml", 4, "no columns but the target; 'a.csv'; site 'a'")


def test_letters_typed_in_two_ways_and_a_site_without_records(tables):
    Path("a.csv").write_text(A.replace("age", "\u00e2ge"), encoding="utf-8")
    Path("b.csv").write_text("dose,y,a\u0302ge\n", encoding="utf-8")
    data, _ = federated()
    assert data["columns"] == ["\u00e2ge", "dose"]
    assert data["sites"]["b"]["records"] == 0
    Path("b.csv").write_text("dose,y,other\n")
    refuse("federate f.toml", 4, "site 'b'; ['other'] unknown")


@pytest.mark.slow
def test_names_of_a_prior_s_file_set_the_order(tables):
    prior = posterity.Gaussian.from_standard(mean=[5.0, 0.0], covariance=np.diag([0.01, 1e4]))
    posterity.save(prior.named(["dose", "age"]), "prior.safetensors")
    named = CONFIG.partition("[prior]")[0] + '[prior]\nfile = "prior.safetensors"\n'
    named += "[schedule]" + CONFIG.partition("[schedule]")[2]
    data, q = federated(named)
    assert data["columns"] == ["dose", "age"]
    assert abs(q.mean[0] - 5) < 1
    posterity.save(prior.named(["dose", "size"]), "prior.safetensors")
    refuse("federate f.toml", 4, "['size'] missing, ['age'] unknown; the prior")
    posterity.save(prior.named(["y", "age"]), "prior.safetensors")
    refuse("federate f.toml", 4, "the target 'y' among the columns of the prior")


def test_arrays_without_names_are_taken_for_those_of_tables(tables):
    np.savez("b.npz", x=[[2, 0], [-1, 3.0]], y=[1, 0.0])
    data, q = federated(CONFIG.replace("b.csv", "b.npz"))
    assert identical(q, federated(output="tables")[1])
    assert data["columns"] == ["age", "dose"]
    assert data["notes"][0].startswith("no names of columns at ['b']")
    np.savez("b.npz", x=[[0, 2], [3.0, -1]], y=[1, 0.0], columns=["dose", "age"])
    data, named = federated(CONFIG.replace("b.csv", "b.npz"), "named")
    assert identical(named, q) and "names" not in data["notes"][0]
    np.savez("b.npz", x=[[0, 2], [3.0, -1]], y=[1, 0.0], columns=["dose"])
    refuse("federate f.toml", 5, "columns ['dose']; 'b.npz'")
    np.savez("b.npz", x=[[0, 2, 1], [3.0, -1, 1]], y=[1, 0.0], columns=["dose", "age", "y"])
    refuse("federate f.toml", 4, "the target 'y' among the columns of x; 'b.npz'; site 'b'")


@pytest.mark.parametrize(
    "column, model, words",
    [
        ([0, 1, 2, 3, 4], "", "no intercept: pass --intercept"),
        ([1, 1, 1, 1, 1], "", None),
        ([2, 2, 2, 2, 2], "", None),
        ([1, 1, 1, 2, 2], "", "no intercept"),
        ([0, 0, 0, 0, 0], "", "constant in all records: ['dose']"),
        ([1, 1, 1, 1, 1], "intercept = true", "constant in all records: ['dose']"),
        (
            [0, 1, 2, 3, 4],
            "intercept = true",
            "more than 25% of the precision of ['intercept']",
        ),
    ],
)
def test_constant_columns_and_a_missing_intercept(tables, column, model, words):
    for site, values in {"a": column[:3], "b": column[3:]}.items():
        rows = [f"{n},{value},{n % 2}" for n, value in enumerate(values)]
        Path(f"{site}.csv").write_text("\n".join(["age,dose,y", *rows]))
    Path("f.toml").write_text(with_model(model, WIDE if model else CONFIG))
    done = succeed("federate", "f.toml")
    assert (words is None) == (done.stderr == "")
    assert done.stderr.startswith("note: ") or words is None
    assert (words or "") in done.stderr
    notes = document("federate", "f.toml")["notes"]
    assert [f"note: {note}" for note in notes] == done.stderr.splitlines()


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_noise_of_one_that_nobody_gave_is_said(tables, suffix):
    """Of tables and of arrays alike, at each command that reads them."""
    one = "noise variance 1, since none was given: say --noise-variance"
    x, y = np.array([[1.0, 2.0], [0.0, 1.0], [4.0, 1.0]]), np.array([3.0, 2.5, -1.0])
    for site in "ab":
        np.savez(f"{site}.npz", x=x, y=y)
    known = CONFIG.replace(".csv", f".{suffix}")
    assert one in federated(known.replace("noise_variance = 1\n", ""))[0]["notes"]
    assert one not in federated(known)[0]["notes"]
    values = {"data.file": f"a.{suffix}", "model.kind": "linear-regression", "prior.variance": 4.0}
    assert one in problem_of(read("pursue", values, None)).notes
    values["model.noise_variance"] = 2.0
    assert one not in problem_of(read("pursue", values, None)).notes


def test_arrays_that_do_not_fit_the_names_of_a_prior(tables):
    prior = posterity.Gaussian.from_standard(mean=[5.0, 0.0], covariance=np.eye(2))
    posterity.save(prior.named(["dose", "age"]), "prior.safetensors")
    for site in "ab":
        np.savez(f"{site}.npz", x=np.ones((2, 3)), y=np.ones(2))
    named = CONFIG.partition("[prior]")[0] + '[prior]\nfile = "prior.safetensors"\n'
    named += "[schedule]" + CONFIG.partition("[schedule]")[2]
    Path("f.toml").write_text(named.replace(".csv", ".npz"))
    refuse("federate f.toml", 4, "a coefficient for each column")


@pytest.mark.parametrize(
    "table, code, words",
    [
        (B.replace("dose", "size"), 4, "site 'b'; ['dose'] missing, ['size'] unknown; site 'a'"),
        (B.replace("age", "Age"), 4, "['age'] missing, ['Age'] unknown"),
        ("age,y\n1,2\n", 4, "site 'b'; ['dose'] missing"),
        ("age,dose\n1,2\n", 4, "no column 'y'"),
        ("age,dose,sex,y\n1,2,1,2\n", 4, "['sex'] unknown"),
        ("2,0,1\n-1,3,0\n", 5, "of numbers, not names; 'b.csv'"),
        ('"2","0","1"\n', 5, "of numbers, not names; 'b.csv'"),
        ("age,age,y\n1,2,3\n", 5, "['age'] come twice; 'b.csv'"),
        ("age,y,y\n1,2,3\n", 5, "['y'] come twice"),
        ("age,,y\n1,2,3\n", 5, "one is empty"),
        (",age,y\n1,2,3\n", 4, "['dose'] missing"),
        ("", 5, "no rows; 'b.csv'"),
        (f"{'x' * 300},y\n1,2\n", 5, "300 characters of 200"),
        ('"age,dose,y\n1,2,3\n', 5, "'b.csv'; unexpected end"),
        (B.replace("2,0,1", "2,,1"), 5, "missing value; line 2 (column 'dose')"),
        (B.replace("-1,3,0", "\n-1,NA,0"), 5, "missing value; line 4 (column 'dose')"),
        (B.replace("2,0,1", "2,0"), 5, "2 cells in line 2 under 3 names"),
        (B.replace("2,0,1", "2,0,1,"), 5, "3 cells in line 3 under 4 names"),
        (B.replace("2,0,1", "2,nan,1"), 5, "missing value; line 2 (column 'dose'); 'b.csv'"),
    ],
)
def test_tables_that_are_refused(tables, table, code, words):
    Path("b.csv").write_text(table)
    refuse("federate f.toml", code, words)


@pytest.mark.parametrize(
    "model, code, words",
    [
        ('target = "pain"', 4, "no column 'pain'; ['age', 'dose', 'y']; 'a.csv'"),
        ('target = ""', 2, "no target"),
        ("target = 3", 2, "model.target = 3; a string"),
        ("intercept = 1", 2, "model.intercept = 1"),
        ("intercept = true", 4, "2 coefficients for 3 columns ['intercept', 'age', 'dose']"),
    ],
)
def test_targets_and_intercepts_that_make_no_sense(tables, model, code, words):
    Path("f.toml").write_text(with_model(model))
    refuse("federate f.toml", code, words)


def test_an_intercept_where_there_is_one_or_can_be_none(tables):
    Path("a.csv").write_text(A.replace("dose", "intercept"))
    Path("f.toml").write_text(with_model("intercept = true"))
    refuse("federate f.toml", 4, "two coefficients 'intercept'; site 'a'; --no-intercept")
    network = with_kind("network", with_model("intercept = true"))
    Path("f.toml").write_text(network)
    refuse("federate f.toml", 2, "model.kind = 'network'")


def test_names_cannot_steer_the_terminal(tables):
    for name in "ab":
        steering = Path(f"{name}.csv").read_text().replace("age", "a\x1b[31m[bold]g\u202ee")
        Path(f"{name}.csv").write_text(steering, encoding="utf-8")
    federated(CONFIG)
    shown = succeed("inspect", "out.safetensors", COLUMNS="100").stdout
    assert r"a\x1b[31m[bold]g\u202ee" in shown and "\x1b" not in shown
    Path("b.csv").write_text("a\x1b[31m,dose,y\n")
    shown = call("federate", "f.toml").stderr
    assert "unknown" in shown and "\x1b" not in shown


@pytest.fixture
def apart(tables):
    """Each site's own ledger, made from columns in another order."""
    for site, table in {"a": A, "b": PERMUTED}.items():
        Path(f"{site}.csv").write_text(table)
        other = {"a": "b", "b": "a"}[site]
        prior = "covariance = [[9, 0], [0, 4]]" if site == "b" else "covariance = [[4, 0], [0, 9]]"
        alone = CONFIG.replace(f'{other} = "{other}.csv"\n', "")
        federated(alone.replace("covariance = [[4, 0], [0, 9]]", prior), site)


def test_show_names_coefficients_with_their_mean_and_interval(tables):
    _, q = federated()
    found = document("show", "out.safetensors", "--level", 0.95)
    assert q.names == ("age", "dose")
    for k, row in enumerate(found["rows"]):
        assert (row["name"], row["block"]) == (["age", "dose"][k], "")
        deviation = np.sqrt(q.covariance[k, k])
        np.testing.assert_allclose((row["mean"], row["sd"]), (q.mean[k], deviation))
        ends = q.mean[k] + 1.959963984540054 * deviation * np.array([-1, 1])
        np.testing.assert_allclose([row["low"], row["high"]], ends, rtol=1e-9)


def test_fuse_puts_permuted_posteriors_in_one_order(apart):
    options = "--rule product -o both.safetensors"
    data = document("fuse", "a.safetensors", "b.safetensors", *shlex.split(options))
    assert (data["columns"], data["notes"]) == (["age", "dose"], [])
    both = posterity.load("both.safetensors").posterior
    _, pooled = federated()
    assert float(both.kl(pooled)) < 1e-8
    rows = document("show", "both.safetensors")["rows"]
    assert [row["name"] for row in rows] == ["age", "dose"]
    bare = with_names(posterity.load("a.safetensors").prior, {})
    posterity.save(bare, "prior.safetensors")
    prior = ["--prior", "prior.safetensors", "-o", "also.safetensors"]
    also = document("fuse", "a.safetensors", "b.safetensors", "--rule", "product", *prior)
    assert also["notes"][0].startswith("no names of columns at ['the prior']")
    fused = posterity.fuse(["a.safetensors", "b.safetensors"], rule="product").posterior
    assert identical(fused, both)
    one, other = (document("diff", a, "both.safetensors") for a in ("out.safetensors",) * 2)
    assert one == other and abs(one["kl_ab"]) < 1e-8


def test_other_names_are_refused_wherever_posteriors_meet(apart):
    q = posterity.load("b.safetensors").posterior
    posterity.save(q.named(["age", "size"]), "c.safetensors")
    words = "['dose'] missing, ['size'] unknown"
    refuse("diff a.safetensors c.safetensors", 4, f"{words}; 'b'; of 'a'")
    refuse("fuse a.safetensors c.safetensors -o out.safetensors", 4, f"{words}; at 'c'; of 'a'")
    product = "fuse a.safetensors b.safetensors --prior c.safetensors -o out.safetensors"
    refuse(product, 4, f"{words}; at the prior; of the sites")
    with pytest.raises(posterity.errors.StructureError, match="'c'"):
        posterity.fuse(["a.safetensors", "c.safetensors"])


def test_forget_keeps_names_and_refines_in_the_order_of_the_ledger(tables):
    rng = np.random.default_rng(0)
    for site in "ab":
        x = rng.normal(size=(20, 2)) * [1, 5]
        rows = [f"{u},{v},{int(u > 0)}" for u, v in x]
        Path(f"{site}.csv").write_text("\n".join(["age,dose,y", *rows]))
    logistic = with_kind("logistic-regression", CONFIG).replace(
        "[[4, 0], [0, 9]]", "[[4, 0], [0, 4]]"
    )
    federated(logistic.replace("steps = 1", ""))
    options = ["--site", "b", "--config", "f.toml", "--receipt"]
    succeed("forget", "out.safetensors", *options, "1.json", "-o", "one.safetensors")
    turned = [line.split(",")[::-1] for line in Path("a.csv").read_text().splitlines()]
    Path("a.csv").write_text("\n".join(map(",".join, turned)))
    succeed("forget", "out.safetensors", *options, "2.json", "-o", "two.safetensors")
    one, two = (posterity.load(f"{name}.safetensors").posterior for name in ("one", "two"))
    assert identical(one, two)
    rows = document("show", "two.safetensors")["rows"]
    assert [row["name"] for row in rows] == ["age", "dose"]
    Path("a.csv").write_text(Path("a.csv").read_text().replace("dose", "size"))
    Path("b.csv").write_text(Path("b.csv").read_text().replace("dose", "size"))
    line = "forget out.safetensors --site b --config f.toml --receipt 3.json -o 3.safetensors"
    refuse(line, 4, "['dose'] missing, ['size'] unknown")


def test_inspect_of_an_architecture_that_is_not_registered_here(tables, monkeypatch):
    from posterity.artifact import architecture

    name = "net\x1b[31m"
    register_architecture(name, lambda parameters, **options: None)
    net = Architecture(name, {"activation": "tanh"}, {"w": np.eye(2), "b": np.zeros(2)})
    posterity.save(net, "net.safetensors", provenance={"epoch": "7"})
    posterity.save({"blocks": np.eye(3), "nets": [net, net]}, "two.safetensors")
    monkeypatch.delitem(architecture._BUILDERS, name)
    found = document("inspect", "net.safetensors")
    assert (found["kind"], found["provenance"]) == ("Architecture", {"epoch": "7"})
    assert found["content"]["parameters"]["parameters"]["parameters"] == {"b": [2], "w": [2, 2]}
    text = (
        succeed("inspect", "net.safetensors").stdout + succeed("inspect", "two.safetensors").stdout
    )
    assert 'activation: "tanh"' in text and "blocks (3, 3)" in text and "\x1b" not in text
    content = Path("net.safetensors").read_bytes()
    Path("net.safetensors").write_bytes(content[:-1] + b"\x7f")
    refuse("inspect net.safetensors", 5, "'net.safetensors'")
