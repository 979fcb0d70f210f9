"""``posterity distill``, as a user calls it."""

import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from cli.commands import call, document, fail, refuse, succeed

import posterity
from posterity.artifact import provenance
from posterity.cli import options
from posterity.cli.distill import distillation_of
from posterity.distillation import Box, Draws, Langevin, Mixup, Perturbed, Pool, Student, online
from posterity.distillation.sampling.kernels import SGHMC
from posterity.families import Gamma, Gaussian, Mixture, Network
from posterity.networks import Layers

LAYERS = Layers.dense(2, 3, 2)
DISTILL = "distill net.safetensors -o s.safetensors --inputs pool.npz"
LOGISTIC = """
seed = 2
[data]
file = "sick.csv"
[model]
kind = "logistic-regression"
target = "sick"
intercept = true
[prior]
variance = 4.0
[sampler]
chains = 8
burn_in = 500
thin = 10
[inputs]
noise = 0.5
[student]
hidden = [8]
steps = 400
batch_size = 32
tolerance = 0.5
[output]
file = "out.safetensors"
"""
NETWORK = """
[data]
file = "sick.csv"
[model]
target = "sick"
hidden = [4, 3]
activation = "tanh"
classes = 3
[prior]
variance = [1.0, 0.5, 0.25]
[sampler]
kernel = "sghmc"
friction = 0.2
step_size = 1e-3
noise = "normal"
chains = 3
batch_size = 10
thin = 2
burn_in = 7
[inputs]
kind = "box"
low = -1
high = [1.0, 2.0]
[student]
split = true
[output]
file = "out.safetensors"
"""


def configured(name):
    """The job that a configuration describes."""
    return distillation_of(options.read("distill", {}, Path(name)))


@pytest.fixture
def folder(tmp_path):
    """A network's posterior, a regression's, records with and without labels."""
    rng = np.random.default_rng(0)
    mean, variance = 0.3 * rng.normal(size=LAYERS.size), np.full(LAYERS.size, 0.05)
    network, prior = Network.from_standard(mean, variance, LAYERS), Network.prior(LAYERS, 1.0)
    ledger = posterity.Ledger.of_site("north", prior=prior, posterior=network)
    posterity.save(ledger, "net.safetensors")
    sharp = Network.from_standard(10 * mean, variance, LAYERS)
    posterity.save(sharp, "sharp.safetensors")
    single = Layers.dense(2, 1)
    posterity.save(Network.prior(single, 1.0), "single.safetensors")
    coefficients = Gaussian.from_standard([1.0, 0.0, 2.0], np.diag([0.1, 0.2, 0.3]))
    posterity.save(coefficients.named(["intercept", "age", "dose"]), "logit.safetensors")
    posterity.save(Gamma.from_standard(1.0, 1.0), "gamma.safetensors")
    student = Student(LAYERS, np.zeros(LAYERS.size), posterity.distillation.Head("categorical", 2))
    posterity.save(student, "student.safetensors")
    x = rng.normal(size=(40, 2))
    np.savez("pool.npz", x=x)
    np.savez("wide.npz", x=np.zeros((5, 3)))
    np.savez("two.npz", a=x, b=x)
    np.save("nan.npy", np.where(np.arange(2) > 0, np.nan, x))
    sick = (x[:, 0] + rng.normal(size=40) > 0).astype(int)
    table("pool.csv", {"dose": x[:, 1], "age": x[:, 0]})
    table("sick.csv", {"age": x[:, 0], "sick": sick, "dose": x[:, 1]})
    table("other.csv", {"age": x[:, 0], "height": x[:, 1]})
    Path("logistic.toml").write_text(LOGISTIC)
    Path("network.toml").write_text(NETWORK)
    return tmp_path


def table(path, columns):
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    Path(path).write_text("\n".join(lines) + "\n")


def same(one, other):
    return np.array_equal(one.parameters, other.parameters) and one.head == other.head


@pytest.mark.slow
def test_distilling_is_what_the_library_does(folder):
    line = (*DISTILL.split(), "--noise", 0.3, "--split", "--steps", 1500, "--seed", 3)
    data = document(*line)
    x = np.load("pool.npz")["x"]
    found = posterity.distill(
        posterity.load("net.safetensors"), inputs=Perturbed(x, np.full(2, 0.3)), split=True,
        steps=1500, key=jax.random.key(3),
    )  # fmt: skip
    assert same(posterity.load("s.safetensors"), found.student)
    assert data["status"]["state"] == "converged"
    assert data["status"]["left"] == found.status.left < data["status"]["tolerance"] == 0.01
    assert data["student"] == {
        "network": "2-12 relu-28 relu-3", "weights": 487, "likelihood": "categorical", "targets": 2,
        "split": True,
    }  # fmt: skip
    assert (data["steps"], data["resumed"]) == (1500, 0)
    about = posterity.inspect("s.safetensors")
    assert about.digest == data["digest"]
    assert about.provenance["teacher digest"] == posterity.inspect("net.safetensors").digest
    assert not Path("s.safetensors.checkpoint").exists(), "of what is done nothing is left"


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_student(folder, monkeypatch):
    line = (*DISTILL.split(), "--steps", 1500)
    document(*line)
    whole, chunk, checkpoint = posterity.load("s.safetensors"), online.chunk, "k.safetensors"
    Path("s.safetensors").unlink()

    def interrupted(plan, constants, state, sizes):
        if int(state.step) == 600:
            signal.raise_signal(signal.SIGINT)
        return chunk(plan, constants, state, sizes)

    with monkeypatch.context() as patch:
        patch.setattr(online, "chunk", interrupted)
        result = call(*line, "--checkpoint", checkpoint)
    assert (result.exit_code, result.stdout) == (130, "")
    assert not Path("s.safetensors").exists()
    assert "another computation" in fail(5, *line, "--seed", 1, "--checkpoint", checkpoint)["found"]
    data = document(*line, "--checkpoint", checkpoint)
    assert 600 <= data["resumed"] < 1500
    assert same(posterity.load("s.safetensors"), whole)
    assert not Path(checkpoint).exists()


def test_a_regression_of_named_columns(folder):
    """The pool has its columns in another order, and no intercept."""
    said = {"inputs.file": "pool.csv", "model.kind": "logistic"}
    job = distillation_of(options.read("distill", said, None, [Path("logit.safetensors")]))
    assert job.names == ("intercept", "age", "dose")
    raw = np.genfromtxt("pool.csv", delimiter=",")[1:]
    np.testing.assert_allclose(job.teacher.x, np.c_[np.ones(40), raw[:, 1], raw[:, 0]])
    stack = job.teacher.posterior.sample(jax.random.key(0), (4000,))
    found = Draws(job.teacher.model, stack, samples=1000).predict(x := job.teacher.x).mean
    # E[σ(f)] of a Gaussian f by its probit approximation, which is right within 0.02.
    mean, variance = x @ [1.0, 0.0, 2.0], (x**2) @ [0.1, 0.2, 0.3]
    odds = mean / np.sqrt(1 + np.pi * variance / 8)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-odds)), atol=0.02 + 4 * 0.5 / 4000**0.5)


@pytest.mark.slow
def test_a_student_of_scaled_columns_takes_raw_records_and_goes_out_with_its_recipe(folder):
    """Whatever it has learned: it is asked in the units in which it was trained."""
    onnx = pytest.importorskip("onnx")
    flags = "--target sick --model logistic --center age=3 --scale age=0.5 --scale dose=4"
    succeed("fit", "sick.csv", *flags.split(), "-o", "m.safetensors")
    line = "distill m.safetensors -o s.safetensors --inputs pool.csv --noise 0.1 --steps 5"
    found = document(*line.split(), code=9)
    assert found["columns"] == ["intercept", "age", "dose"]
    assert not any("the unit" in note for note in found["notes"])
    header, *rows = Path("pool.csv").read_text().splitlines()
    place = header.split(",").index("dose")
    cells = [[*map(float, row.split(","))] for row in rows]
    months = [[cell * (30 if k == place else 1) for k, cell in enumerate(row)] for row in cells]
    Path("far.csv").write_text("\n".join([header, *(",".join(map(str, r)) for r in months)]) + "\n")
    found = document(*line.replace("pool", "far").replace("s.s", "far.s").split(), code=9)
    assert any("is the unit the same" in note and "'dose'" in note for note in found["notes"])
    assert posterity.inspect("s.safetensors").provenance["status"].startswith("not converged")
    succeed("predict", "s.safetensors", "sick.csv", "-o", "p.json")
    raw = np.genfromtxt("sick.csv", delimiter=",")[1:]
    x = np.c_[np.ones(40), (raw[:, 0] - 3) / 0.5, raw[:, 2] / 4]
    p = posterity.load("s.safetensors").predict(x).mean
    np.testing.assert_allclose(json.loads(Path("p.json").read_text())["p"], p, rtol=1e-6)
    recipe = posterity.inspect("m.safetensors").provenance["recipe"]
    assert posterity.inspect("s.safetensors").provenance["recipe"] == recipe
    refuse("export s.safetensors -o t.onnx --covariance v.csv", 2, "--covariance v.csv; a graph")
    succeed("export", "s.safetensors", "-o", "s.onnx")
    known = {entry.key: entry.value for entry in onnx.load("s.onnx").metadata_props}
    assert known["recipe"] == recipe and known["likelihood"] == "bernoulli"


COMMON = "--columns age,sex,dose --category sex=f,m --center age=60 --scale age=10"
REGRESSIONS = {
    "linear": "--target value --scale value=2",
    "logistic": "--target ill --offset off",
    "ordinal": "--target grade --category grade=low,mid,high --offset off",
    "proportional-odds": "--target grade --category grade=low,mid,high --offset off",
    "multinomial": "--target grade --category grade=low,mid,high",
    "poisson": "--target count --exposure years --offset off",
    "negative-binomial": "--target count --exposure years --dispersion 0.7",
    "gamma": "--target time --dispersion 0.5",
}
"""Models, and the flags of their fits."""


@pytest.fixture(scope="module")
def regressions(tmp_path_factory):
    """A table of sixty records, and a posterior of each model of it."""
    rng, n = np.random.default_rng(3), 60
    place = tmp_path_factory.mktemp("regressions")
    age, male, dose = rng.normal(60, 9, n).round(), rng.random(n) < 0.5, rng.gamma(2, 1, n).round(1)
    off, years = rng.normal(0, 0.5, n).round(2), rng.gamma(3, 1, n).round(1) + 0.1
    eta = 0.03 * (age - 60) + 0.4 * male - 0.2 * dose + off
    columns = {
        "age": age, "sex": np.where(male, "m", "f"), "dose": dose, "off": off, "years": years,
        "value": 5 + eta + rng.normal(size=n), "ill": 1 * (rng.random(n) < 1 / (1 + np.exp(-eta))),
        "grade": np.array(["low", "mid", "high"])[rng.integers(3, size=n)],
        "count": rng.poisson(np.exp(eta) * years), "time": rng.exponential(np.exp(-eta)) + 0.01,
        "event": 1 * (rng.random(n) < 0.7),
    }  # fmt: skip
    table(place / "t.csv", columns)
    for model, flags in REGRESSIONS.items():
        line = f"fit {place}/t.csv {COMMON} --model {model.split()[0]} {flags} --no-one-shot"
        succeed(*line.split(), "-o", place / f"{model}.safetensors")
    return place


@pytest.mark.parametrize("model", REGRESSIONS)
def test_a_student_listens_to_what_the_posterior_itself_predicts(regressions, model):
    """Averages over draws of a teacher, beside those that `predict` has by quadrature."""
    file = regressions / f"{model}.safetensors"
    said = {"inputs.file": str(regressions / "t.csv")}
    job = distillation_of(options.read("distill", said, None, [file]))
    x, stack = job.teacher.x, job.teacher.posterior.sample(jax.random.key(1), (4000,))
    head, drawn = job.teacher.head(x), Draws(job.teacher.model, stack, samples=1000)
    found = drawn.predict(x)
    succeed("predict", file, regressions / "t.csv", "-o", "ledger.json")
    wanted = {k: np.array(v) for k, v in json.loads(Path("ledger.json").read_text()).items()}
    if head.likelihood == "categorical":
        chances = found.mean
        pairs = [(chances[:, k], wanted[f"p{k}"]) for k in range(3)]
        pairs += [(found.mutual_information, wanted["mutual_information"])]
        for own, theirs in pairs:
            np.testing.assert_allclose(own, theirs, atol=4 * 0.5 / 4000**0.5)
        return
    if head.likelihood == "bernoulli":
        np.testing.assert_allclose(found.mean, wanted["p"], atol=4 * 0.5 / 4000**0.5)
        return
    scale = 2.0 if model == "linear" else 1.0  # of its target, whose unit `predict` undoes
    mean, variance = wanted["mean"], wanted["variance"]
    error = 5 * np.sqrt(variance / 4000)
    assert (abs(found.mean[:, 0] * scale - mean) < error).all()
    np.testing.assert_allclose(found.variance[:, 0] * scale**2, variance, rtol=0.25)
    second = mean**2 + variance
    noise = {
        "poisson": mean, "negative-binomial": mean + 0.7 * second, "gamma": 0.5 * second,
        "linear": wanted.get("noise_variance"),
    }[model]  # fmt: skip
    np.testing.assert_allclose(found.noise_variance[:, 0] * scale**2, noise, rtol=0.05)


def test_a_mixture_of_posteriors_teaches_in_any_order_and_what_sites_have_alone_does_not(
    regressions,
):
    about = posterity.inspect(regressions / "poisson.safetensors").provenance
    q = posterity.load(regressions / "poisson.safetensors").posterior
    order = [3, 1, 0, 2]
    mean, covariance = np.asarray(q.mean)[order], np.asarray(q.covariance)[np.ix_(order, order)]
    parts = Gaussian.from_standard([mean, mean + 0.2], [covariance, 2 * covariance])
    mixture = Mixture.from_standard([0.3, 0.7], parts.named([q.names[k] for k in order]))
    posterity.save(mixture, "mixture.safetensors", provenance=dict(about))
    said = {"inputs.file": str(regressions / "t.csv")}
    job = distillation_of(options.read("distill", said, None, [Path("mixture.safetensors")]))
    stack = job.teacher.posterior.sample(jax.random.key(1), (4000,))
    found = Draws(job.teacher.model, stack, samples=1000).predict(job.teacher.x).mean[:, 0]
    succeed("predict", "mixture.safetensors", regressions / "t.csv", "-o", "p.json")
    wanted = {k: np.array(v) for k, v in json.loads(Path("p.json").read_text()).items()}
    assert (abs(found - wanted["mean"]) < 5 * np.sqrt(wanted["variance"] / 4000)).all()
    line = f"fit {regressions}/t.csv --columns age --target ill --model logistic --own intercept"
    succeed(*line.split(), "--site", "t", "-o", "own.safetensors")
    line = f"fit {regressions}/t.csv --columns age --target time --model survival --event event"
    succeed(*line.split(), "-o", "hazard.safetensors")
    line = f"distill hazard.safetensors -o s.safetensors --inputs {regressions}/t.csv"
    refuse(line, 2, "a student of survival; posterity predict")
    line = f"distill own.safetensors -o s.safetensors --inputs {regressions}/t.csv"
    refuse(line, 2, "unseen sites; own.safetensors; --site-column")


def test_a_student_predicts_from_raw_tables_and_goes_out(regressions):
    """However little it has learned: what it learns from is the test before this one's."""
    onnx = pytest.importorskip("onnx")
    file, pool = regressions / "poisson.safetensors", regressions / "t.csv"
    line = ["distill", file, "-o", "s.safetensors", "--inputs", pool, "--steps", 5]
    columns = ["intercept", "age", "dose", "sex[m]", "off+log(years)"]
    assert document(*line, code=9)["columns"] == columns
    succeed("predict", "s.safetensors", pool, "-o", "p.json")
    predicted = {k: np.array(v) for k, v in json.loads(Path("p.json").read_text()).items()}
    text = [row.split(",") for row in pool.read_text().splitlines()]
    raw = {name: np.array(own) for name, *own in zip(*text, strict=True)}
    number = lambda name: raw[name].astype(float)
    shift = number("off") + np.log(number("years"))
    x = [(number("age") - 60) / 10, number("dose"), 1.0 * (raw["sex"] == "m"), shift]
    x = np.column_stack([np.ones(60), *x])
    student = posterity.load("s.safetensors").predict(x)
    np.testing.assert_allclose(predicted["mean"], student.mean[:, 0], rtol=1e-6)
    evaluated = document("evaluate", "s.safetensors", pool)
    assert "rmse" in evaluated["all"] and "log_score" not in evaluated["all"]
    assert any("no log score" in note for note in evaluated["notes"])
    succeed("export", "s.safetensors", "-o", "s.onnx")
    known = {entry.key: entry.value for entry in onnx.load("s.onnx").metadata_props}
    assert json.loads(known["columns"]) == columns


def test_a_network_of_values_learns_its_noise_unless_it_is_known(folder):
    def written(*lines):
        model = "\n".join(['likelihood = "gaussian"', *lines])
        Path("values.toml").write_text(NETWORK.replace("classes = 3", model))

    for line, varying in (('noise = "varying"', True), ("", False)):
        written(line)
        model = configured("values.toml").teacher.target.model
        assert model.noise_variance is None and model.layers.outputs == 2
        assert model.apply.varying == varying
    written("noise_variance = 0.5")
    assert configured("values.toml").teacher.target.model.noise_variance == 0.5
    written("noise_variance = 0.5", 'noise = "constant"')
    refuse("distill values.toml", 2, "noise_variance = 0.5 beside model.noise")


def test_labels_of_texts_and_the_target_s_column_among_records_to_predict(folder):
    sick = Path("sick.csv").read_text().replace(",1,", ",yes,").replace(",0,", ",no,")
    Path("texts.csv").write_text(sick)
    said = {"data.file": "texts.csv", "model.target": "sick", "model.likelihood": "bernoulli"}
    job = distillation_of(options.read("distill", said, None, []))
    y = np.array([line.split(",")[1] == "yes" for line in sick.splitlines()[1:]])
    np.testing.assert_array_equal(job.teacher.target.data[1], y)
    assert job.notes == ("labels: 0 is 'no', 1 is 'yes'",)
    head, weights = posterity.distillation.Head("bernoulli", 1), [2.0, -1.0, 0.0]
    record = job.record | provenance.as_provenance(job.names)
    student = Student(Layers.dense(2, 1), np.array(weights), head)
    posterity.save(student, "s.safetensors", provenance=record)
    out = document("predict", "s.safetensors", "texts.csv", "-o", "p.csv")
    assert out["notes"] == list(job.notes) and out["records"] == 40
    scored = document("evaluate", "s.safetensors", "texts.csv")
    p = np.genfromtxt("p.csv", delimiter=",", names=True)["p"]
    assert scored["all"]["accuracy"] == np.mean((p > 0.5) == y)
    Path("texts.csv").write_text(sick.replace("no", ""))  # what is to be predicted
    succeed("predict", "s.safetensors", "texts.csv", "-o", "q.csv")
    assert Path("q.csv").read_text() == Path("p.csv").read_text()
    refuse("evaluate s.safetensors texts.csv", 5, "one of the labels")
    refuse("distill --data texts.csv --target sick -o t.safetensors", 5, "no value in line")


def test_a_configuration_says_all_there_is(folder):
    job = configured("network.toml")
    teacher = job.teacher
    assert isinstance(teacher, Langevin)
    assert teacher.kernel == SGHMC(1e-3, friction=0.2, noise="normal")
    assert (teacher.chains, teacher.thin, teacher.burn_in) == (3, 2, 7)
    assert teacher.target.batch_size == 10
    assert teacher.layers == Layers.dense(2, 4, 3, 3, activation="tanh")
    precisions = [float(np.min(layer["kernel"])) for layer in teacher.target.prior[1]]
    assert precisions == [1.0, 2.0, 4.0]
    assert isinstance(job.inputs, Box)
    assert (job.inputs.low.tolist(), job.inputs.high.tolist()) == ([-1, -1], [1, 2])
    Path("network.toml").write_text(
        '[data]\nfile = "sick.csv"\n[model]\ntarget = "sick"\n[output]\nfile = "a.safetensors"\n'
    )
    plain = configured("network.toml")
    assert plain.teacher.kernel == SGHMC(friction=None)
    assert plain.teacher.layers == Layers.dense(2, 50, 2)
    assert isinstance(plain.inputs, Perturbed)
    with Path("network.toml").open("a") as file:
        file.write("[sampler]\nfriction = 0.3\n")
    assert configured("network.toml").teacher.kernel == SGHMC(friction=0.3)


@pytest.mark.parametrize(
    "said, kind",
    [({"inputs.kind": "mixup"}, Mixup), ({}, Pool), ({"inputs.noise": "0.1"}, Perturbed),
     ({"inputs.kind": "pool"}, Pool), ({"inputs.kind": "perturbed"}, Perturbed)],
)  # fmt: skip
def test_ways_to_make_inputs(said, kind, folder):
    said = {"inputs.file": "pool.npz", **said}
    settings = options.read("distill", said, None, [Path("net.safetensors")])
    assert isinstance(distillation_of(settings).inputs, kind)


def test_a_constant_column_is_not_perturbed(folder):
    said = {"inputs.file": "pool.csv", "inputs.noise": "0.5", "model.kind": "logistic"}
    settings = options.read("distill", said, None, [Path("logit.safetensors")])
    inputs = distillation_of(settings).inputs
    x = np.asarray(jax.jit(lambda key: inputs.sample(50, key=key))(jax.random.key(0)))
    assert (x[:, 0] == 1).all() and x[:, 1:].std() > 0.5


@pytest.mark.parametrize(
    "line, code, words",
    [
        ("distill net.safetensors --inputs pool.npz", 2, "no output.file; --output"),
        ("distill net.safetensors -o s.safetensors", 2, "no inputs; --inputs; --low"),
        (f"{DISTILL} --low -1 --high 1", 2, "a box and"),
        (f"{DISTILL} --noise 0.1 --inputs-kind mixup", 2, "noise; [inputs]"),
        (f"{DISTILL} --model logistic", 2, "both --model logistic-regression and Network"),
        (f"{DISTILL} --noise-variance 1", 2, "noise variance 1.0 of labels"),
        (f"{DISTILL} --likelihood gaussian", 2, "no noise variance"),
        (f"{DISTILL} --likelihood poisson", 2, "poisson"),
        (f"{DISTILL} --likelihood bernoulli", 4, "2 outputs; bernoulli"),
        (f"{DISTILL} --array z", 5, "not 'z'"),
        ("distill net.safetensors -o s.safetensors --inputs nan.npy", 3, "NaN; first at [0"),
        ("distill net.safetensors -o s.safetensors --inputs two.npz", 5, "['a', 'b']; --array"),
        ("distill net.safetensors -o s.safetensors --inputs wide.npz", 4, "3 columns; 2 columns"),
        ("distill net.safetensors -o s.safetensors --inputs pool.csv --array x", 2, ".npz"),
        ("distill single.safetensors -o s.safetensors --inputs pool.npz", 2, "--likelihood"),
        ("distill student.safetensors -o s.safetensors --inputs pool.npz", 4, "a Student"),
        ("distill gamma.safetensors -o s.safetensors --inputs pool.npz", 2, "Gamma; --model"),
        ("distill logit.safetensors -o s.safetensors --inputs pool.csv", 2, "logistic"),
        (
            "distill logit.safetensors -o s.safetensors --inputs pool.csv --model probit",
            2,
            "--model probit; linear-regression or logistic-regression",
        ),
        (
            "distill logit.safetensors -o s.safetensors --inputs pool.csv --model linear",
            2,
            "no noise variance",
        ),
        (
            "distill logit.safetensors -o s.safetensors --inputs other.csv --model logistic",
            4,
            "['dose'] missing; ['height'] unknown",
        ),
        ("distill logistic.toml logit.safetensors", 2, "data.file and the posterior"),
    ],
)
def test_refusals(line, code, words, folder):
    refuse(line, code, words)


@pytest.mark.parametrize(
    "old, new, code, words",
    [
        ('file = "sick.csv"', 'file = "none.csv"', 5, "none.csv; logistic.toml"),
        ('target = "sick"', 'target = "well"', 4, "no column 'well'"),
        ('target = "sick"', "", 4, "no column 'y'"),
        ('kind = "logistic-regression"', 'kind = "tree"', 2, "model.kind = 'tree'; network"),
        ('kind = "logistic-regression"', 'kind = "network"', 2, "model.intercept; biases"),
        ("intercept = true", "hidden = [3]", 2, "model.hidden"),
        ("variance = 4.0", "", 2, "prior.variance"),
        ("chains = 8", "kernel = 'sgld'\nfriction = 0.1", 2, "friction; [sampler]"),
        ("chains = 8", "step_size = {a = 1}", 2, "sampler.step_size; a positive number"),
        ("noise = 0.5", 'kind = "box"\nlow = 0', 2, "[inputs]; high"),
        ("noise = 0.5", 'kind = "box"\nlow = 0\nhigh = 0', 3, "box; [inputs]"),
        ("noise = 0.5", 'file = "other.csv"', 4, "no column 'dose'; ['age', 'height']"),
    ],
)
def test_configurations_that_make_no_sense(old, new, code, words, folder):
    assert old in LOGISTIC
    Path("logistic.toml").write_text(LOGISTIC.replace(old, new))
    refuse("distill logistic.toml", code, words)


@pytest.mark.parametrize("target", ["0.5", "-1", "10001"])
def test_targets_that_are_no_classes(target, folder):
    Path("labels.csv").write_text(f"a,y\n1,0\n2,1\n3,{target}\n")
    words = f"{target} among 3; --likelihood gaussian"
    refuse("distill --data labels.csv -o s.safetensors", 2, words)
    refuse("distill --data labels.csv --without a -o s.safetensors", 2, "all columns but the")


def test_inspect_and_diff_know_a_student(folder):
    told = document("inspect", "student.safetensors")
    assert told["kind"] == "Student"
    assert told["student"] == {
        "likelihood": "categorical", "targets": 2, "split": False, "noise_variance": None,
        "degrees": None, "weights": LAYERS.size, "network": "2-3 relu-2",
        "rescaled": {"inputs": False, "outputs": False},
    }  # fmt: skip
    text = succeed("inspect", "student.safetensors").stdout
    assert "2-3 relu-2" in text and "categorical" in text and "0: Dense" in text
    for pair in ("student.safetensors net.safetensors", "student.safetensors student.safetensors"):
        refuse(f"diff {pair}", 4, "a Student; posterity predict")
