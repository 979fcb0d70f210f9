"""``posterity federate``, as a user calls it."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from cli.commands import call, contents, document, fail, refuse
from cli.configurations import CONJUGATE, COUNTS, LOGISTIC, NETWORK

import posterity
from posterity import models
from posterity.arrays.tree import identical
from posterity.federation import Gossip
from posterity.federation.checkpoint import visits_of
from posterity.graphs import ring


def test_federating_is_what_the_library_does(folder):
    data = document("federate", "gossip.toml")
    assert (data["steps"], data["unit"], data["resumed"], data["exact"]) == (30, "hops", 0, True)
    assert {site: told["records"] for site, told in data["sites"].items()} == {
        site: len(counts) for site, counts in COUNTS.items()
    }
    run = posterity.federate(
        {site: np.array(counts) for site, counts in COUNTS.items()},
        models.GammaPoisson(),
        posterity.Gamma.from_standard(2.0, 1.0),
        schedule=Gossip(ring(sorted(COUNTS))),
        steps=30,
        key=jax.random.key(3),
    )
    assert posterity.load("shared.safetensors") == run.ledger
    assert float(run.posterior.shape) == 2 + sum(map(sum, COUNTS.values()))
    assert {path.name for path in folder.iterdir() if path.name.startswith(".")} == set()


def test_another_call_goes_on_from_the_checkpoint(folder):
    document("federate", "gossip.toml")
    before = posterity.load("shared.safetensors")
    longer = CONJUGATE.replace("steps = 30", "steps = 40")
    Path("gossip.toml").write_text(longer)
    data = document("federate", "gossip.toml")
    assert (data["resumed"], data["steps"]) == (30, 40)
    assert identical(posterity.load("shared.safetensors").posterior, before.posterior)
    Path("gossip.toml").write_text(longer.replace("seed = 3", "seed = 4"))
    error = fail(5, "federate", "gossip.toml")
    assert "another computation in 'shared.safetensors.checkpoint'" in error["found"]
    assert error["fix"].startswith("Remove that file to begin anew")
    Path("shared.safetensors.checkpoint").unlink()
    assert document("federate", "gossip.toml")["resumed"] == 0


def test_what_has_converged_leaves_no_checkpoint(folder):
    Path("gossip.toml").write_text(CONJUGATE.replace("steps = 30\n", ""))
    assert document("federate", "gossip.toml")["status"]["state"] == "converged"
    assert not Path("shared.safetensors.checkpoint").exists()


def test_a_linear_model_of_sites_that_contradict_is_doubted_as_fuse_does(tmp_path, monkeypatch):
    """Its factors are normal, though they are not independent where the noise is estimated."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for site, slope in zip("abc", (1.0, 1.0, 1.8), strict=True):
        x = rng.normal(size=100)
        y = slope * x + rng.normal(size=100)
        rows = [f"{one},{two}" for one, two in zip(x, y, strict=True)]
        Path(f"{site}.csv").write_text("\n".join(["x,y", *rows]))
    line = "federate a.csv b.csv c.csv --target y --model linear --intercept -o f.safetensors"
    found = "site 'c' contradicts the others: x is"
    assert any(found in note for note in document(*line.split())["notes"])
    assert any(found in line for line in document("show", "f.safetensors")["warnings"])


@pytest.mark.slow
def test_a_federation_survives_a_kill(folder):
    """Killed at some hop and run again, it ends where it would have ended."""
    config = CONJUGATE.replace("steps = 30", "steps = 80")
    Path("gossip.toml").write_text(config)
    checkpoint = Path("shared.safetensors.checkpoint")
    command = [sys.executable, "-m", "posterity", "federate", "gossip.toml"]
    source = str(Path(posterity.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "POSTERITY_CHECKPOINT_SECONDS": "0"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert posterity.load(checkpoint)["ledger"].sites, "whole, whenever it was killed"
    resumed = document("federate", "gossip.toml")["resumed"]
    assert resumed > 0
    killed = posterity.load("shared.safetensors")
    checkpoint.unlink()
    assert document("federate", "gossip.toml")["resumed"] == 0
    assert posterity.load("shared.safetensors") == killed


def test_an_interrupt_is_told_and_the_next_call_goes_on(folder, monkeypatch):
    document("federate", "gossip.toml")
    whole, concluded = posterity.load("shared.safetensors"), Gossip.concluded
    checkpoint = Path("shared.safetensors.checkpoint")
    checkpoint.unlink()

    def interrupted(self, agreed, state, *others, key):
        if state.step == 17:
            raise KeyboardInterrupt
        return concluded(self, agreed, state, *others, key=key)

    with monkeypatch.context() as patch:
        patch.setattr(Gossip, "concluded", interrupted)
        assert call("federate", "gossip.toml").exit_code == 130
    assert len(visits_of(posterity.load(checkpoint)["trace"])) == 17
    assert document("federate", "gossip.toml")["resumed"] == 17
    assert posterity.load("shared.safetensors") == whole


TWO = "federate --site u=u.csv --site v=v.csv --intercept -o d.safetensors"
LINEAR = "--model linear --target y --columns x,x2"


def two_columns(ratio=1):
    """Two sites with columns x and x2, which are equal at u and of this ratio at v."""
    for site, offset, times in (("u", 0.0, 1), ("v", 0.37, ratio)):
        x = [round(50 + offset + 7.3 * i % 31, 1) for i in range(40)]
        y = [round(0.5 * own + i * 37 % 11 / 5, 2) for i, own in enumerate(x)]
        rows = [
            (own, times * own, y[i], i % 3 % 2, "abc"[i * 7 % 11 % 3]) for i, own in enumerate(x)
        ]
        lines = [",".join(map(str, row)) for row in rows]
        Path(f"{site}.csv").write_text("\n".join(["x,x2,y,ill,kind", *lines]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        LINEAR,
        f"{LINEAR} --personal intercept",
        f"{LINEAR} --own intercept",
        "--model logistic --target ill --columns x,x2 --prior-sd 1e7",
    ],
)
def test_columns_that_depend_on_each_other_at_all_sites_are_refused_as_fit_does(folder, options):
    two_columns()
    refuse(f"{TWO} {options}", 3, "linearly dependent, or nearly so: ['x', 'x2']; --prior-sd")
    assert not any(Path().glob("d.safetensors*"))


@pytest.mark.parametrize(
    ("ratio", "options"),
    [
        (2, LINEAR),
        (1, f"{LINEAR} --prior-sd 1"),
        (1, "--model multinomial --target kind --category kind=a,b,c --columns x --prior-sd 1e6"),
    ],
    ids=["another site", "the prior", "a column for each class"],
)
def test_columns_that_all_sites_and_the_prior_determine_are_federated(folder, ratio, options):
    two_columns(ratio)
    data = document(*TWO.split(), *options.split())
    assert data["status"]["state"] == "converged"
    assert posterity.load("d.safetensors").posterior.marginal_variance.max() < 100


@pytest.mark.parametrize("position", ["{}", "[]", "x", '{"fingerprint": 1}'])
def test_checkpoints_that_were_tampered_with(folder, position):
    document("federate", "gossip.toml")
    checkpoint, ledger = Path("shared.safetensors.checkpoint"), posterity.load("shared.safetensors")
    posterity.save(ledger, checkpoint, provenance={"federation": position})
    before = checkpoint.read_bytes()
    assert "no checkpoint" in fail(5, "federate", "gossip.toml")["found"]
    assert checkpoint.read_bytes() == before


def test_tables_of_spreadsheets_and_sites_without_records(folder):
    Path("east.csv").write_bytes('\ufeff"count"\r\n1\r\n2\r\n0\r\n4\r\n'.encode())
    document("federate", "gossip.toml")
    whole = posterity.load("shared.safetensors").posterior
    assert float(whole.shape) == 2 + sum(map(sum, COUNTS.values()))
    Path("east.csv").write_text("count\n")
    Path("shared.safetensors.checkpoint").unlink()
    assert document("federate", "gossip.toml")["sites"]["east"]["records"] == 0


def test_sites_that_contradict_each_other_and_copies_are_noted(folder):
    rng = np.random.default_rng(6)
    for site, slope in {"a": 1.0, "b": 1.0, "c": -1.0}.items():
        x = rng.normal(size=150)
        y = 1 * (rng.random(150) < 1 / (1 + np.exp(-slope * x)))
        rows = [f"{one},{two}" for one, two in zip(x, y, strict=True)]
        Path(f"{site}.csv").write_text("\n".join(["x,y", *rows]))
        Path(f"{site}2.csv").write_text("\n".join(["x,y", *rows[::-1]]))
    line = "federate --target y --model logistic --intercept -o out.safetensors"
    for checked, words in (
        (("a=a.csv", "b=b.csv"), None),
        (("a=a.csv", "b=b.csv", "c=c.csv"), "site 'c' contradicts the others: x is "),
        (("a=a.csv", "b=b.csv", "d=a2.csv"), "sites 'a' and 'd' have the same 150 records"),
    ):
        notes = document(*" --site ".join([line, *checked]).split())["notes"]
        assert [words in note for note in notes] == [True] if words else notes == []


@pytest.mark.parametrize(("distinct", "noted"), [(9, False), (10, True)])
def test_columns_of_few_values_are_alike_by_chance(folder, distinct, noted):
    rows = [f"{number % distinct / 9},{number % 2}" for number in range(60)]
    for site in "ab":
        Path(f"{site}.csv").write_text("\n".join(["x,y", *rows]))
    line = "federate --target y --model logistic --intercept -o out.safetensors"
    notes = document(*f"{line} --site a=a.csv --site b=b.csv".split())["notes"]
    assert any("the same 60 records" in note for note in notes) == noted


def test_paths_are_relative_to_the_configuration_and_priors_may_be_ledgers(folder):
    Path("sub").mkdir()
    document("federate", "gossip.toml")
    Path("gossip.toml").write_text(
        CONJUGATE.replace(
            'family = "Gamma"\nshape = 2\nrate = 1.0', 'file = "shared.safetensors"'
        ).replace(
            '[output]\nfile = "shared.safetensors"',
            '[output]\ncheckpoint = "sub/where"\nfile = "sub/again.safetensors"',
        )
    )
    document("federate", "gossip.toml")
    assert {path.name for path in Path("sub").iterdir()} == {
        "again.safetensors",
        "where",
    }
    again = posterity.load("sub/again.safetensors")
    assert identical(again.prior, posterity.Gamma.from_standard(2.0, 1.0))


def test_fewer_steps_than_were_made_are_refused(folder):
    document("federate", "gossip.toml")
    Path("gossip.toml").write_text(CONJUGATE.replace("steps = 30", "steps = 20"))
    assert (
        "steps = 20, and a checkpoint with 30 hops" in fail(2, "federate", "gossip.toml")["found"]
    )


@pytest.mark.slow
def test_a_function_and_a_network_from_a_configuration(folder):
    Path("my_model.py").write_text(
        "import jax\ndef log_likelihood(z, data):\n    x, y = data\n    f = x @ z\n"
        "    return y * f - jax.nn.softplus(f)\n"
    )
    function = 'kind = "function"\nfunction = "my_model:log_likelihood"'
    own = LOGISTIC.replace('kind = "logistic-regression"', function)
    Path("own.toml").write_text(own.replace("coupled", "own").replace("steps = 2", ""))
    document("federate", "logistic.toml")
    document("federate", "own.toml", "--function", "my_model:log_likelihood")
    exact, ours = (posterity.load(f"{name}.safetensors").posterior for name in ("coupled", "own"))
    # The function is only known by its values at nodes.
    assert float(ours.kl(exact)) < 1e-3
    net = NETWORK.replace("coupled", "net")
    Path("net.toml").write_text(
        net + '[update]\nestimator = "variational-online-newton"\nrate = 0.1\n'
    )
    told = document("federate", "net.toml", code=9)["status"]
    assert told["state"] == "not converged" and told["left"] > 1e-3
    posterior = posterity.load("net.safetensors").posterior
    assert posterior.layers.summary == "2-3 tanh-1" and posterior.precision.shape == (13,)


@pytest.mark.parametrize(
    "old, new, code, words",
    [
        # keys
        ("rate = 1.0", "", 2, "missing 1 required positional argument: 'rate'"),
        ('family = "Gamma"', "", 2, "no prior.family"),
        ('kind = "gamma-poisson"', "", 2, "no model.kind"),
        ("[schedule]", "[schedule", 2, "cannot be read"),
        # types and ranges
        ("rate = 1.0", "rate = [[1.0], [1.0, 2.0]]", 2, "rate"),
        ("rate = 1.0", "rate = -1.0", 3, "prior"),
        ("rate = 1.0", "rate = nan", 3, "nan"),
        ("[output]", "[weights]\nwest = 2\n[output]", 2, "west"),
        # models and priors
        ("gamma-poisson", "poisson", 2, "a prior Gamma; DiagonalGaussian; PoissonRegression"),
        ("gamma-poisson", "gama", 2, "model.kind = 'gama'; one of ['beta-bernoulli'"),
        ('"gamma-poisson"', '"poison"\nintercept = true', 2, "model.kind = 'poison'; 'network'"),
        ('"gamma-poisson"', '"gamma-poisson"\nnoise_variance = 2', 2, "noise_variance"),
        ('kind = "gamma-poisson"', 'kind = "dirichlet-categorical"', 2, "categories"),
        ('kind = "gamma-poisson"', 'kind = "function"\nfunction = "os:x"', 2, "--function os:x"),
        ('family = "Gamma"', 'family = "Product"', 2, "prior.family = 'Product'"),
        ('family = "Gamma"', 'file = "prior.safetensors"', 2, "prior.shape"),
        # schedules
        ('kind = "gossip"', 'kind = "gosip"', 2, "schedule.kind = 'gosip'; one of ['sequential'"),
        ('kind = "gossip"', 'kind = "synchronous"', 2, "graph"),
        ('kind = "gossip"\ngraph = "ring"', "damping = 0.5", 2, "damping"),
        ('graph = "ring"', "", 2, "a graph, one of; or links as pairs of sites"),
        ('graph = "ring"', 'graph = "wheel"', 2, "schedule.graph = 'wheel'"),
        ('graph = "ring"', 'graph = "ring"\nwalk = "run"', 2, "schedule.walk = 'run'"),
        ('graph = "ring"', 'graph = "ring"\nweights = {east = 1}', 2, "weights"),
        ('graph = "ring"', 'links = [["north", "south"]]', 4, "east"),
        # updates
        ("[output]", '[update]\nestimator = "magic"\n[output]', 2, "update.estimator = 'magic'"),
        ("[output]", "[update]\nsamples = 3\n[output]", 2, "no update.estimator"),
        ("[output]", '[update]\nestimator = "exact"\nsamples = 3\n[output]', 2, "samples"),
        ("[output]", "[update]\nspeed = 7\n[output]", 2, "update.speed"),
        # files
        ("north.npz", "nowhere.npz", 5, "nowhere.npz"),
        ("north.npz", "pipe", 5, "'pipe'; a pipe or a device"),
    ],
)
def test_configurations_that_make_no_sense(folder, old, new, code, words):
    assert CONJUGATE.count(old) == 1
    os.mkfifo("pipe")
    Path("gossip.toml").write_text(CONJUGATE.replace(old, new))
    refuse("federate gossip.toml", code, words)


@pytest.mark.parametrize(
    "old, new, code, words",
    [
        ('"bernoulli"', '"other"', 2, "likelihood='other'"),
        ("variance = 1.0", "variance = -1", 2, "prior.variance=-1"),
    ],
)
def test_networks_that_make_no_sense(folder, old, new, code, words):
    Path("net.toml").write_text(NETWORK.replace(old, new))
    refuse("federate net.toml", code, words)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("east.csv", "", "no rows"),
        ("east.csv", "1\n2\n", "of numbers, not names"),
        ("east.csv", "a,a\n1,2\n", "come twice"),
        ("east.csv", "a,b,c,d\n1,2\n3,4\n", "2 cells in line 2 under 4 names"),
        ("east.csv", "a\nmany\n", "many"),
        ("east.csv", "a,b\n1,2\n1\n", "1 cells in line 3 under 2 names"),
        ("north.npz", "", "No data left in file"),
        ("north.npz", "PK\x03\x04", "not a zip file"),
        ("north.npz", None, "Is a directory"),
    ],
)
def test_files_of_data_that_cannot_be_read(folder, name, content, words):
    Path(name).unlink()
    Path(name).mkdir() if content is None else Path(name).write_text(content)
    before = contents()
    error = fail(5, "federate", "gossip.toml")
    assert words in error["found"] and name in error["found"]
    assert contents() == before


@pytest.mark.parametrize(
    "arrays, code, words",
    [
        ({"x": [1.0, -2.0]}, 3, "-2.0"),
        ({"x": [1.0, math.nan]}, 3, "NaN"),
        ({"x": [1.0], "y": [1.0]}, 4, "2 arrays"),
        ({"z": [1.0]}, 5, "arrays ['z']"),
    ],
)
def test_bad_data_names_the_site(folder, arrays, code, words):
    np.savez("south.npz", **arrays)
    error = fail(code, "federate", "gossip.toml")
    assert words in error["found"] and "south" in error["found"]


@pytest.mark.parametrize(
    "code", ["def f(:", "raise RuntimeError", "import sys\nsys.exit()", "f = 3"]
)
def test_modules_that_cannot_be_imported(folder, code):
    Path("broken_model.py").write_text(code)
    sys.modules.pop("broken_model", None)
    function = 'kind = "function"\nfunction = "broken_model:f"'
    Path("own.toml").write_text(LOGISTIC.replace('kind = "logistic-regression"', function))
    error = fail(2, "federate", "own.toml", "--function", "broken_model:f")
    assert "broken_model:f" in error["found"] and "cannot be imported" in error["found"]


def test_code_that_a_file_names_runs_only_if_the_command_line_names_it(folder):
    Path("sent.py").write_text("import pathlib\npathlib.Path('imported').touch()\nf = 3\n")
    function = 'kind = "function"\nfunction = "sent:f"'
    Path("own.toml").write_text(LOGISTIC.replace('kind = "logistic-regression"', function))
    for more in ([], ["--function", "sent:g"], ["--function", "os:f"]):
        assert "pass --function sent:f" in fail(2, "federate", "own.toml", *more)["fix"]
    assert not Path("imported").exists()
    assert "sent:f" in fail(2, "federate", "own.toml", "--function", "sent:f")["found"]
    assert Path("imported").exists()
