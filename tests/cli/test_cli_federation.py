"""``posterity federate``, ``forget`` and ``verify``, as a user calls them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import posterity
from posterity import models
from posterity.arrays.tree import identical
from posterity.federation import Gossip
from posterity.graphs import ring
from tests.cli.test_cli import call, document, fail, succeed

CONJUGATE = """
seed = 3
[sites]
east = "east.csv"
north = "north.npz"
south = "south.npz"
[model]
kind = "gamma-poisson"
[prior]
family = "Gamma"
shape = 2.0
rate = 1.0
[schedule]
kind = "gossip"
graph = "ring"
steps = 30
[output]
ledger = "shared.safetensors"
history = "history.jsonl"
"""
LOGISTIC = """
[sites]
a = "a.csv"
b = "b.csv"
c = "c.csv"
[model]
kind = "logistic-regression"
[prior]
file = "prior.safetensors"
[schedule]
steps = 2
[output]
ledger = "coupled.safetensors"
"""
COUNTS = {"north": [3, 0, 2], "south": [5, 5], "east": [1, 2, 0, 4]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two federations, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        np.savez(f"{name}.npz", x=np.array(COUNTS[name]))
    Path("east.csv").write_text("\n".join(["count", *map(str, COUNTS["east"])]) + "\n")
    rng = np.random.default_rng(0)
    for name in "abc":
        x, y = rng.normal(size=(30, 2)), rng.integers(0, 2, 30)
        rows = [f"{u},{label},{v}" for (u, v), label in zip(x, y, strict=True)]
        Path(f"{name}.csv").write_text("\n".join(["u, y, v", *rows]))
    prior = posterity.Gaussian.from_standard(mean=np.zeros(2), covariance=4 * np.eye(2))
    posterity.save(prior, "prior.safetensors")
    Path("gossip.toml").write_text(CONJUGATE)
    Path("logistic.toml").write_text(LOGISTIC)
    return tmp_path


def test_federate_is_what_the_library_does(folder):
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
    history = [json.loads(line) for line in Path("history.jsonl").read_text().splitlines()]
    assert [visit["site"] for visit in history] == [visit.site for visit in run.history]
    assert {path.name for path in folder.iterdir() if path.name.startswith(".")} == set()


def test_federate_again_goes_on_from_the_checkpoint(folder):
    document("federate", "gossip.toml")
    before = posterity.load("shared.safetensors")
    longer = CONJUGATE.replace("steps = 30", "steps = 40")
    Path("gossip.toml").write_text(longer)
    data = document("federate", "gossip.toml")
    assert (data["resumed"], data["steps"]) == (30, 40)
    assert len(Path("history.jsonl").read_text().splitlines()) == 40
    assert identical(posterity.load("shared.safetensors").posterior, before.posterior)
    Path("gossip.toml").write_text(longer.replace("seed = 3", "seed = 4"))
    assert "another federation" in fail(5, "federate", "gossip.toml")["found"]


def test_federate_survives_a_kill(folder):
    """Killed at some hop and run again, it ends where it would have ended."""
    config = CONJUGATE.replace("steps = 30", "steps = 80") + "every = 1\n"
    Path("gossip.toml").write_text(config)
    checkpoint = Path("shared.safetensors.checkpoint")
    command = [sys.executable, "-m", "posterity", "federate", "gossip.toml"]
    source = str(Path(posterity.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert posterity.inspect(checkpoint).kind == "Ledger", "whole, whenever it was killed"
    resumed = document("federate", "gossip.toml")["resumed"]
    assert resumed > 0
    killed = posterity.load("shared.safetensors")
    checkpoint.unlink()
    assert document("federate", "gossip.toml")["resumed"] == 0
    assert posterity.load("shared.safetensors") == killed


def test_forget_and_verify_exactly(folder):
    document("federate", "gossip.toml")
    text = succeed(
        *("forget", "shared.safetensors", "--site", "south"),
        *("-o", "left.safetensors", "--receipt", "receipt.json"),
    ).stdout
    assert "Exact" in text and "2 sites are left" in text
    left = posterity.load("left.safetensors")
    assert float(left.posterior.shape) == 2 + sum(COUNTS["north"]) + sum(COUNTS["east"])
    assert left.forgotten == ("south",)
    claims = document("verify", "receipt.json", "shared.safetensors", "left.safetensors")["claims"]
    assert claims["every other factor is the same, to the last bit"] and all(claims.values())
    wrong = fail(6, "verify", "receipt.json", "left.safetensors", "shared.safetensors")
    assert "the ledger before is the one that the receipt names" in wrong["found"]
    Path("receipt.json").write_text(Path("receipt.json").read_text().replace("true", "false"))
    fail(5, "verify", "receipt.json", "shared.safetensors", "left.safetensors")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", "{}", "[" * 100_000, '{"digest": "", "receipt": 1, "sites": [[]]}'],
)
def test_receipts_that_are_none(folder, content):
    document("federate", "gossip.toml")
    Path("receipt.json").write_text(content)
    fail(5, "verify", "receipt.json", "shared.safetensors", "shared.safetensors")


@pytest.mark.parametrize("position", ["{}", "[]", "x", '{"fingerprint": 1}'])
def test_checkpoints_that_were_tampered_with(folder, position):
    document("federate", "gossip.toml")
    checkpoint, ledger = Path("shared.safetensors.checkpoint"), posterity.load("shared.safetensors")
    posterity.save(ledger, checkpoint, provenance={"federation": position})
    before = checkpoint.read_bytes()
    assert "another federation" in fail(5, "federate", "gossip.toml")["found"]
    assert checkpoint.read_bytes() == before


def test_an_interrupt_is_told_and_the_next_call_goes_on(folder, monkeypatch):
    document("federate", "gossip.toml")
    whole, update = posterity.load("shared.safetensors"), Gossip.step
    checkpoint = Path("shared.safetensors.checkpoint")
    checkpoint.unlink()

    def step(self, problem, state, *, key):
        if state.step == 17:
            raise KeyboardInterrupt
        return update(self, problem, state, key=key)

    with monkeypatch.context() as patch:
        patch.setattr(Gossip, "step", step)
        assert call("federate", "gossip.toml").exit_code == 130
    assert posterity.inspect(checkpoint).kind == "Ledger"
    assert document("federate", "gossip.toml")["resumed"] == 17
    assert posterity.load("shared.safetensors") == whole


def test_forget_says_that_it_is_not_exact_and_refines_with_a_configuration(folder):
    document("federate", "logistic.toml")
    arguments = ["forget", "coupled.safetensors", "--site", "b"]
    plain = document(*arguments, "-o", "plain.safetensors", "--receipt", "plain.json")
    assert (plain["exact"], plain["distance"]) == (False, None)
    out = ["-o", "refined.safetensors", "--receipt", "r.json"]
    refined = document(*arguments, *out, "--config", "logistic.toml")
    assert not refined["exact"] and 0 <= refined["distance"] < 1e-6
    succeed("verify", "r.json", "coupled.safetensors", "refined.safetensors")
    Path("logistic.toml").write_text(
        LOGISTIC.replace('b = "b.csv"\n', "")
        .replace("coupled", "retrained")
        .replace("steps = 2", "steps = 20")
    )
    document("federate", "logistic.toml")
    distances = [
        float(
            posterity.load(f"{name}.safetensors").posterior.kl(
                posterity.load("retrained.safetensors").posterior
            )
        )
        for name in ("plain", "refined")
    ]
    assert distances[1] < 1e-6 < distances[0]


def test_forget_refuses_and_writes_nothing(folder):
    document("federate", "gossip.toml")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    base = ["forget", "shared.safetensors"]
    out = ["-o", "left.safetensors", "--receipt", "r.json"]
    assert "nowhere" in fail(6, *base, "--site", "nowhere", *out)["found"]
    fail(6, *base, "--site", "south", "--site", "nowhere", *out)
    fail(2, *base, "--site", "south", "-o", "shared.safetensors", "--receipt", "r.json")
    fail(2, *base, "--site", "south", "-o", "left.safetensors", "--receipt", "left.safetensors")
    fail(2, *base, "--site", "south", *out, "--sweeps", "3")
    fail(5, *base, "--site", "south", "-o", "no/where", "--receipt", "r.json")
    fail(5, *base, "--site", "south", "-o", "/dev/null", "--receipt", "r.json")
    for input in ("gossip.toml", "north.npz", "east.csv"):
        fail(2, *base, "--site", "south", "-o", input, "--receipt", "r", "--config", "gossip.toml")
    fail(2, *base, "--site", "south", "-o", "left.safetensors", "--receipt", "history.jsonl")
    fail(4, "forget", "prior.safetensors", "--site", "south", *out)
    fail(2, *base, *out)
    wrong = fail(6, *base, "--site", "south", *out, "--config", "logistic.toml")
    assert "expected" in wrong and "prior" in wrong["expected"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "change, words",
    [
        (('kind = "gossip"', 'kind = "gosip"'), "schedule.kind = 'gosip'"),
        (('graph = "ring"', 'graph = "wheel"'), "schedule.graph = 'wheel'"),
        (('graph = "ring"', 'links = [["north", "south"]]'), "not connected|no neighbour|east"),
        (('graph = "ring"', 'links = [["north"]]'), "link"),
        (("steps = 30", 'steps = "30"'), "schedule.steps = '30'"),
        (("steps = 30", "steps = true"), "schedule.steps = True"),
        (("steps = 30", ""), "no schedule.steps"),
        (('kind = "gamma-poisson"', 'kind = "poisson"'), "model.kind = 'poisson'"),
        (('kind = "gamma-poisson"', 'kind = "gamma-poisson"\nrate = 2'), "rate"),
        (('family = "Gamma"', 'family = "Beta"'), "shape"),
        (("rate = 1.0", "rate = -1.0"), "improper"),
        (("north.npz", "nowhere.npz"), "nowhere.npz"),
        (("seed = 3", "seed = 3\nsede = 4"), "sede"),
        (("[output]", '[update]\nestimator = "magic"\n[output]'), "update.estimator = 'magic'"),
        (("[output]", "[update]\nsamples = 3\n[output]"), "update.samples"),
        (("[output]", "[update]\nrate = 7\n[output]"), "rate=7"),
        (("[output]", "[update]\nspeed = 7\n[output]"), "speed"),
        (("[output]", "[weights]\nwest = 2\n[output]"), "west"),
        (("[output]", '[weights]\neast = "2"\n[output]'), "weights.east = '2'"),
        (("[output]", "[update]\nsteps = true\n[output]"), "update.steps = True"),
        (("seed = 3", f"seed = {2**70}"), "seed"),
        (('"east.csv"', "5"), "sites.east = 5"),
        (("rate = 1.0", "rate = [[1.0], [1.0, 2.0]]"), "rate"),
        (('family = "Gamma"', 'family = "Product"'), "prior.family = 'Product'"),
        (('graph = "ring"', 'links = [["north", ["south"]]]'), "link ['north', ['south']]"),
        (('kind = "gossip"\ngraph = "ring"', 'kind = "asynchronous"\nspeeds = 3'), "speeds"),
        (('graph = "ring"', 'graph = "ring"\nwalk = "weighted"\nweights = {east = "x"}'), "'x'"),
        (("history.jsonl", "north.npz"), "one of the inputs"),
        (('"history.jsonl"', '"shared.safetensors"'), "another output too"),
        (("[output]", '[output]\ncheckpoint = "./shared.safetensors"'), "another output too"),
        (("[schedule]", "[schedule"), "cannot be read"),
        (("[model]", '[model]\nkind = "function"\nfunction = "os:nothing"\n[other]'), "os:nothing"),
    ],
)
def test_configurations_that_make_no_sense(folder, change, words):
    Path("gossip.toml").write_text(CONJUGATE.replace(*change))
    before = sorted(path.name for path in folder.iterdir())
    result = call("federate", "gossip.toml", "--json")
    error = json.loads(result.stderr)["error"]
    assert result.exit_code in (2, 3, 4, 5) and result.stdout == ""
    assert any(word in error["found"] + error["expected"] for word in words.split("|")), error
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("east.csv", "", "no header"),
        ("east.csv", "1\n2\n", "no header"),
        ("east.csv", "a,a\n1,2\n", "no header"),
        ("east.csv", "a,b,c,d\n1,2\n3,4\n", "4 names above 2 columns"),
        ("east.csv", "a\nmany\n", "many"),
        ("east.csv", "a,b\n1,2\n1\n", "columns changed"),
        ("north.npz", "", "not a whole archive"),
        ("north.npz", "PK\x03\x04", "not a whole archive"),
        ("north.npz", None, "Is a directory"),
    ],
)
def test_files_of_data_that_cannot_be_read(folder, name, content, words):
    Path(name).unlink()
    Path(name).mkdir() if content is None else Path(name).write_text(content)
    before = sorted(path.name for path in folder.iterdir())
    error = fail(5, "federate", "gossip.toml")
    assert words in error["found"] and name in error["found"]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_tables_of_spreadsheets_and_sites_without_records(folder):
    Path("east.csv").write_bytes('\ufeff"count"\r\n1\r\n2\r\n0\r\n4\r\n'.encode())
    document("federate", "gossip.toml")
    whole = posterity.load("shared.safetensors").posterior
    assert float(whole.shape) == 2 + sum(map(sum, COUNTS.values()))
    Path("east.csv").write_text("count\n")
    Path("shared.safetensors.checkpoint").unlink()
    assert document("federate", "gossip.toml")["sites"]["east"]["records"] == 0


def test_paths_are_relative_to_the_configuration_and_priors_may_be_ledgers(folder):
    Path("sub").mkdir()
    document("federate", "gossip.toml")
    Path("gossip.toml").write_text(
        CONJUGATE.replace(
            'family = "Gamma"\nshape = 2.0\nrate = 1.0', 'file = "shared.safetensors"'
        ).replace('ledger = "shared', 'checkpoint = "sub/where"\nledger = "sub/again')
    )
    document("federate", "gossip.toml")
    assert {path.name for path in Path("sub").iterdir()} == {"again.safetensors", "where"}
    again = posterity.load("sub/again.safetensors")
    assert identical(again.prior, posterity.Gamma.from_standard(2.0, 1.0))


def test_fewer_steps_than_were_made_are_refused(folder):
    document("federate", "gossip.toml")
    Path("gossip.toml").write_text(CONJUGATE.replace("steps = 30", "steps = 20"))
    assert (
        "schedule.steps = 20, of which 30 were made" in fail(2, "federate", "gossip.toml")["found"]
    )


@pytest.mark.parametrize(
    "code", ["def f(:", "raise RuntimeError", "import sys\nsys.exit()", "f = 3"]
)
def test_modules_that_cannot_be_imported(folder, code):
    Path("broken_model.py").write_text(code)
    sys.modules.pop("broken_model", None)
    function = 'kind = "function"\nfunction = "broken_model:f"'
    Path("own.toml").write_text(LOGISTIC.replace('kind = "logistic-regression"', function))
    assert "broken_model:f" in fail(2, "federate", "own.toml")["found"]


@pytest.mark.parametrize(
    "change, code",
    [
        ("width = -1", 2),
        ("depth = -1", 2),
        ("widht = 3", 2),
        ('noise_variance = "x"', 2),
        ("[other]", 2),
    ],
)
def test_networks_that_make_no_sense(folder, change, code):
    kind = f'kind = "network"\nlikelihood = "bernoulli"\n{change}'
    text = LOGISTIC.replace('kind = "logistic-regression"', kind)
    Path("net.toml").write_text(text.replace('file = "prior.safetensors"', "variance = 1.0"))
    fail(code, "federate", "net.toml")
    Path("net.toml").write_text(
        text.replace(change, "").replace('file = "prior', "variance = -1 #")
    )
    assert "prior.variance = -1" in fail(2, "federate", "net.toml")["found"]


def test_bad_data_names_the_site(folder):
    np.savez("south.npz", x=np.array([1.0, -2.0]))
    error = fail(3, "federate", "gossip.toml")
    assert "-2.0" in error["found"] and "south" in error["found"]
    np.savez("south.npz", x=np.array([1.0]), y=np.array([1.0]))
    error = fail(4, "federate", "gossip.toml")
    assert "2 arrays" in error["found"] and "south" in error["found"]


def test_a_function_and_a_network_from_a_configuration(folder):
    Path("my_model.py").write_text(
        "import jax\ndef log_likelihood(z, data):\n    x, y = data\n    f = x @ z\n"
        "    return y * f - jax.nn.softplus(f)\n"
    )
    function = 'kind = "function"\nfunction = "my_model:log_likelihood"'
    own = LOGISTIC.replace('kind = "logistic-regression"', function)
    Path("own.toml").write_text(own.replace("coupled", "own").replace("steps = 2", "steps = 40"))
    document("federate", "logistic.toml")
    document("federate", "own.toml")
    exact, ours = (posterity.load(f"{name}.safetensors").posterior for name in ("coupled", "own"))
    # The function is only known by its values: Bonnet and Price at draws, hence noise.
    assert float(ours.kl(exact)) < 0.05
    net = LOGISTIC.replace(
        'kind = "logistic-regression"', 'kind = "network"\nwidth = 3\nlikelihood = "bernoulli"'
    ).replace("coupled", "net")
    net = net.replace('file = "prior.safetensors"', "variance = 1.0")
    Path("net.toml").write_text(
        net + '[update]\nestimator = "variational-online-newton"\ndomain = "retract"\nrate = 0.1\n'
    )
    document("federate", "net.toml")
    assert posterity.load("net.safetensors").posterior.precision.shape == (13,)
