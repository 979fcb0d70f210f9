"""``posterity predict``, as a user calls it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call, document, refuse, succeed

import posterity
from posterity.distillation import Head, Student
from posterity.families import Gaussian, Network
from posterity.networks import Layers, describe


@pytest.fixture
def folder(tmp_path):
    """Students of each kind, a network, records with names and without."""
    rng = np.random.default_rng(1)

    def student(name, head, **about):
        layers = Layers.dense(2, 4, head.size)
        made = Student(layers, rng.normal(size=layers.size), head)
        posterity.save(made, f"{name}.safetensors", provenance=about)

    student("classes", Head("categorical", 3, split=True), columns='["age", "dose"]')
    student("plain", Head("categorical", 3))
    student("label", Head("bernoulli", 1))
    student("values", Head("gaussian", 2, split=True))
    student("value", Head("gaussian", 1, noise_variance=0.25, degrees=4))
    network = Network.prior(Layers.dense(2, 5, 3), 1.0)
    posterity.save(network, "net.safetensors")
    posterity.save(Network.prior(Layers.dense(2, 1), 1.0), "single.safetensors")
    posterity.save(Gaussian.from_standard([0.0], [[1.0]]), "gaussian.safetensors")
    posterity.save({"a": 1}, "other.safetensors")
    x = rng.normal(size=(7, 2))
    np.savez("new.npz", x=x)
    np.save("new.npy", x)
    np.savez("pair.npz", a=x, b=x + 1)
    Path("new.csv").write_text("dose,age\n" + "".join(f"{float(b)!r},{float(a)!r}\n" for a, b in x))
    Path("renamed.csv").write_text("age,height\n1,2\n")
    Path("bare.csv").write_text("1,2\n3,4\n")
    Path("words.csv").write_text("age,dose\n1,two\n")
    Path("empty.csv").write_text("age,dose\n")
    np.save("wide.npy", np.zeros((4, 3)))
    np.save("nan.npy", np.array([[0.0, 1.0], [np.inf, 1.0]]))
    np.save("flat.npy", np.zeros(2))
    return tmp_path


def rows(path):
    with Path(path).open() as file:
        return [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def column(table, name):
    return np.array([row[name] for row in table])


@pytest.mark.parametrize(
    "name, columns",
    [
        ("classes", ["p0", "p1", "p2", "entropy", "mutual_information"]),
        ("plain", ["p0", "p1", "p2", "entropy"]),
        ("label", ["p", "entropy"]),
        ("values", ["mean_0", "mean_1", "variance_0", "variance_1", "noise_variance_0",
                    "noise_variance_1", "target_low_0", "target_low_1", "target_high_0",
                    "target_high_1"]),
        ("value", ["mean", "variance", "noise_variance", "degrees", "target_low", "target_high"]),
    ],
)  # fmt: skip
def test_every_kind_of_student_in_every_format(name, columns, folder):
    file = f"{name}.safetensors"
    data = document("predict", file, "new.npz", "-o", "p.csv")
    assert (data["columns"], data["records"], data["kind"]) == (columns, 7, "Student")
    table = rows("p.csv")
    assert list(table[0]) == columns
    succeed("predict", file, "new.npy", "-o", "p.json")
    held = json.loads(Path("p.json").read_text())
    succeed("predict", file, "new.npz", "-o", "p.npz")
    with np.load("p.npz") as opened:
        arrays = dict(opened)
    found = posterity.load(file).predict(np.load("new.npy"))
    told = dict(vars(found))
    if found.log_chances is None:
        ends = zip(("target_low", "target_high"), found.law().interval(0.9), strict=True)
        told |= {"degrees": np.full_like(found.mean, found.degrees), **dict(ends)}
    for part in arrays:
        assert np.array_equal(arrays[part], told[part])
    joined = np.concatenate([arrays[part].reshape(7, -1) for part in arrays], axis=1)
    for place, label in enumerate(columns):
        assert np.array_equal(held[label], joined[:, place])
        assert np.allclose(column(table, label), joined[:, place], rtol=1e-8)


def test_a_student_of_values_is_scored_by_its_t_law(folder):
    x = np.load("new.npy")
    found = posterity.load("value.safetensors").predict(x)
    y = found.mean[:, 0] + [0.1, -0.1, 1.2, 0.3, -3.0, 0.0, 0.7]
    np.savez("scored.npz", x=np.column_stack([x, y]), columns=["age", "dose", "size"])
    line = "evaluate value.safetensors scored.npz --array x --target size --level 0.5"
    score = document(*line.split())["all"]
    assert score["log_score"] == pytest.approx(found.log_predictive(y).mean())
    low, high = found.law().interval(0.5)
    assert score["coverage"] == ((low[:, 0] <= y) & (y <= high[:, 0])).mean()
    assert document("inspect", "value.safetensors")["student"]["degrees"] == 4
    succeed("report", "value.safetensors", "-o", "page.html")
    assert "Degrees of freedom of new values" in Path("page.html").read_text()


def test_a_level_without_an_interval_is_refused(folder):
    for name in ("classes", "label"):
        line = f"predict {name}.safetensors new.npz -o p.csv --level 0.5"
        refuse(line, 2, "--level 0.5; no interval; Leave --level out")
    succeed("predict", "value.safetensors", "new.npz", "-o", "p.csv", "--level", "0.5")
    x = np.column_stack([np.load("new.npy"), [0, 1, 1, 0, 1, 0, 1]])
    np.savez("scored.npz", x=x, columns=["age", "dose", "y"])
    line = "evaluate label.safetensors scored.npz --array x --target y --level 0.5"
    refuse(line, 2, "--level 0.5; no interval")


def test_columns_are_matched_by_their_names(folder):
    succeed("predict", "classes.safetensors", "new.csv", "-o", "named.csv")
    result = call("predict", "classes.safetensors", "new.npz", "-o", "bare.csv")
    assert result.exit_code == 0 and "no names of columns" in result.stderr
    assert Path("named.csv").read_bytes() == Path("bare.csv").read_bytes()
    result = call("predict", "plain.safetensors", "new.csv", "-o", "plain.csv")
    assert (result.exit_code, result.stderr) == (0, ""), "as they come, where there are no names"
    assert rows("plain.csv") != rows("named.csv")


def test_the_target_may_stand_in_the_table(folder):
    first, *lines = Path("new.csv").read_text().splitlines()
    labelled = [f"{first},ill", *(f"{line},1" for line in lines)]
    Path("labelled.csv").write_text("\n".join(labelled) + "\n")
    succeed("predict", "classes.safetensors", "new.csv", "-o", "a.csv")
    succeed("predict", "classes.safetensors", "labelled.csv", "-o", "b.csv", "--target", "ill")
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    refuse("predict classes.safetensors labelled.csv -o c.csv", 4, "ill")
    refuse(
        "predict classes.safetensors new.csv -o c.csv --target ill",
        4,
        "target 'ill'",
    )


def test_a_student_of_classes_is_scored_by_the_target_in_the_table(folder):
    first, *lines = Path("new.csv").read_text().splitlines()
    labels = [0, 1, 2, 0, 1, 2, 1]
    rows = (f"{line},{label}" for line, label in zip(lines, labels, strict=True))
    Path("scored.csv").write_text("\n".join([f"{first},kind", *rows]) + "\n")
    line = ("classes.safetensors", "scored.csv", "--target", "kind")
    score = document("evaluate", *line)["all"]
    document("predict", *line, "-o", "p.npz")
    p = np.load("p.npz")["mean"]
    assert score["log_score"] == pytest.approx(np.log(p[np.arange(7), labels]).mean())
    assert score["brier"] == pytest.approx(((p - np.eye(3)[labels]) ** 2).sum(1).mean())
    refuse("evaluate classes.safetensors new.csv", 4, "no target; --target")


def test_a_network_is_averaged_over_draws(folder):
    document("predict", "net.safetensors", "new.npz", "-o", "p.npz", "--samples", 30, "--seed", 4)
    import jax

    x = np.load("new.npy")
    found = describe(posterity.load("net.safetensors"), x, key=jax.random.key(4), samples=30)
    assert np.array_equal(np.load("p.npz")["mean"], found.mean)
    assert np.array_equal(np.load("p.npz")["mutual_information"], found.mutual_information)
    line = "predict single.safetensors new.npz -o p.csv --likelihood gaussian --samples 0"
    assert document(*line.split())["columns"] == ["mean", "variance"]
    text = succeed(*line.replace("gaussian", "bernoulli").split()).stdout
    assert "Predicted 7 records by the Network in single.safetensors." in text
    assert "Wrote p, entropy, mutual_information to p.csv" in text


@pytest.mark.parametrize(
    "line, code, words",
    [
        ("classes.safetensors new.npz -o p.txt", 2, "p.txt; .csv"),
        ("classes.safetensors none.csv -o p.csv", 5, "none.csv"),
        ("none.safetensors new.csv -o p.csv", 5, "none.safetensors"),
        ("gaussian.safetensors new.csv -o p.csv", 4, "a Gaussian; posterity distill"),
        ("other.safetensors new.csv -o p.csv", 4, "a dict; a student"),
        ("single.safetensors new.npz -o p.csv", 2, "--likelihood"),
        ("single.safetensors new.npz -o p.csv --likelihood categorical", 4, "1 output"),
        ("net.safetensors new.npz -o p.csv --likelihood poisson", 2, "poisson"),
        ("classes.safetensors new.npz -o p.csv --samples 3 --seed 1", 2, "--samples"),
        ("classes.safetensors new.npz -o p.csv --samples -1", 2, "--help"),
        ("classes.safetensors wide.npy -o p.csv", 4, "(4, 3); 2 numbers each; wide.npy"),
        ("net.safetensors wide.npy -o p.csv", 4, "(4, 3); wide.npy"),
        ("classes.safetensors nan.npy -o p.csv", 3, "nan.npy; first at [1"),
        ("classes.safetensors flat.npy -o p.csv", 4, "(2,); flat.npy"),
        ("classes.safetensors empty.csv -o p.csv", 4, "at least one"),
        ("classes.safetensors words.csv -o p.csv", 5, "'two'"),
        ("classes.safetensors bare.csv -o p.csv", 5, "of numbers, not names"),
        ("classes.safetensors renamed.csv -o p.csv", 4, "['dose'] missing; ['height'] unknown"),
        ("classes.safetensors pair.npz -o p.csv", 5, "['a', 'b']; --array"),
        ("classes.safetensors new.csv -o p.csv --array a", 2, "--array a"),
        ("classes.safetensors new.csv -o p.csv --convert age=2", 2, "--convert; without a recipe"),
        ("value.safetensors new.csv -o p.csv --times 2", 2, "--times"),
    ],
)
def test_refusals(line, code, words, folder):
    refuse(f"predict {line}", code, words)


def test_one_array_of_several(folder):
    succeed("predict", "plain.safetensors", "pair.npz", "-o", "a.csv", "--array", "a")
    succeed("predict", "plain.safetensors", "new.npz", "-o", "x.csv")
    assert Path("a.csv").read_bytes() == Path("x.csv").read_bytes()


def test_a_file_that_names_too_many_columns_is_refused(folder):
    student = posterity.load("classes.safetensors")
    posterity.save(student, "odd.safetensors", provenance={"columns": '["a", "b", "c"]'})
    refuse("predict odd.safetensors new.csv -o p.csv", 5, "3 names of columns; odd.safetensors")


@pytest.mark.parametrize(
    "file, label, words",
    [
        ("label", 2, "label 2 of record 2; from 0 to 1"),
        ("classes", -1, "label -1 of record 2; from 0 to 2"),
        ("classes", 0.5, "label 0.5 of record 2"),
        ("plain", 3, "label 3 of record 2"),
    ],
)
def test_labels_that_none_of_the_chances_is_of_are_not_scored(file, label, words, folder):
    Path("odd.csv").write_text(f"dose,age,kind\n0.1,0.2,1\n0.3,0.1,{label}\n")
    refuse(f"evaluate {file}.safetensors odd.csv --target kind", 3, words)


def test_a_student_of_several_targets_has_no_scores_of_one(folder):
    Path("two.csv").write_text("dose,age,y\n0.1,0.2,1\n")
    refuse("evaluate values.safetensors two.csv --target y", 4, "2 numbers for each record; one")


def test_kept_columns_are_beside_predictions_and_not_in_their_place(folder):
    Path("keep.csv").write_text("file,p\n1,2\n3,4\n")
    for ending in ("csv", "npz", "json"):
        line = f"predict label.safetensors keep.csv -o out.{ending}"
        if ending != "npz":  # where it is called mean
            refuse(f"{line} --keep p", 2, "--keep ['p']; other columns")
        succeed(*line.split(), "--keep", "file")
    assert np.load("out.npz")["file"].tolist() == ["1", "3"]
    assert json.loads(Path("out.json").read_text())["file"] == ["1", "3"]
