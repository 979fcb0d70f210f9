"""``posterity pursue``, as a user calls it."""

import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from cli.commands import call, contents, document, refuse, succeed

import posterity
from posterity.cli.jobs import problem_of
from posterity.cli.options import read
from posterity.cli.pursue import arguments_of
from posterity.errors import UsageError
from posterity.families import Mixture
from posterity.models import LogisticRegression
from posterity.pursuit import Joint

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

CONFIG = """
seed = 2
[data]
file = "sick.csv"
[model]
kind = "logistic-regression"
target = "sick"
[prior]
variance = 4.0
[pursuit]
base = "diagonal"
components = 2
polish = "none"
attempts = 2
finalists = 1
samples = 256
[output]
file = "out.safetensors"
"""
SHORT = CONFIG.replace("components = 2", "components = 3\ntolerance = 0.1")
SHORT = SHORT.replace('"diagonal"', '"full"')


def configured():
    """The problem and the arguments that the configuration describes."""
    settings = read("pursue", {}, Path("pursuit.toml"))
    return problem_of(settings), arguments_of(settings)


@pytest.fixture
def folder(tmp_path):
    """Records whose columns say nearly the same, so that single coefficients are not known."""
    rng = np.random.default_rng(0)
    age = 3 * rng.normal(size=40)
    dose, sick = age + 0.3 * rng.normal(size=40), (age + rng.normal(size=40) > 0).astype(int)
    rows = [f"{a},{s},{d}" for a, s, d in zip(age, sick, dose, strict=True)]
    Path("sick.csv").write_text("\n".join(["age,sick,dose", *rows]) + "\n")
    Path("pursuit.toml").write_text(CONFIG)
    return tmp_path


@pytest.mark.slow
def test_pursuing_is_what_the_library_does(folder):
    """And a posterior that is full of correlations is not what two diagonal components can be."""
    data = document("pursue", "pursuit.toml", code=9)
    problem = configured()[0]
    assert isinstance(problem.model, LogisticRegression)
    target = Joint(problem.model, problem.prior, problem.data)
    found = posterity.pursue(
        target, "diagonal", key=jax.random.key(2), components=2, polish=None,
        attempts=2, finalists=1, samples=256,
    )  # fmt: skip
    saved = posterity.load("out.safetensors")
    assert isinstance(saved, Mixture) and saved == found.posterior
    assert data["status"]["state"] == found.status.state != "converged"
    assert data["status"]["reasons"] == list(found.status.reasons)
    assert (data["components"], data["base"]) == (2, "diagonal")
    assert data["notes"][-1] == "pass --base full, whose components have correlations"
    assert [row["elbo"] for row in data["trace"]] == [row.elbo for row in found.trace]
    assert data["trace"][-1]["components"] == 2 and data["elbo"] == found.elbo
    about = posterity.inspect("out.safetensors")
    assert about.digest == data["digest"]
    assert json.loads(about.provenance["coefficients"]) == ["intercept", "age", "dose"]
    assert about.provenance["status"] == str(found.status)
    told = document("show", "out.safetensors")["components"]
    assert len(told) == 2 and sum(one["weight"] for one in told) == pytest.approx(1)


@pytest.mark.slow
def test_what_people_read(folder):
    Path("pursuit.toml").write_text(SHORT)
    result = call("pursue", "pursuit.toml")
    assert result.exit_code == 0, result.stderr
    assert "Pursued the posterior of a logistic-regression by full components" in result.stdout
    assert "components ELBO" in result.stdout and "The mixture has converged" in result.stdout
    assert "of the base's draws lead to are beyond what was searched" in " ".join(
        result.stdout.split()
    )
    assert "Wrote the mixture of " in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.slow
def test_an_interrupted_pursuit_goes_on_to_the_same_mixture(folder, monkeypatch):
    document("pursue", "pursuit.toml", code=9)
    whole, checkpoint = posterity.load("out.safetensors"), Path("out.safetensors.checkpoint")
    succeed("predict", "out.safetensors", "sick.csv", "-o", "p.json")  # by its recipe
    p, table = json.loads(Path("p.json").read_text())["p"], np.genfromtxt("sick.csv", delimiter=",")
    draws = whole.sample(jax.random.key(0), (4000,)) @ np.c_[np.ones(40), table[1:, [0, 2]]].T
    np.testing.assert_allclose(p, (1 / (1 + np.exp(-draws))).mean(0), atol=0.03)
    Path("out.safetensors").unlink()
    real = posterity.pursue

    def interrupted(*arguments, progress, **options):
        def noted(now):
            progress(now)  # from here on there is something that an interrupt would lose
            if now.step == 1:
                signal.raise_signal(signal.SIGINT)

        return real(*arguments, progress=noted, **options)

    with monkeypatch.context() as patch:
        patch.setattr(posterity, "pursue", interrupted)
        result = call("pursue", "pursuit.toml")
    assert (result.exit_code, result.stdout) == (130, "")
    assert checkpoint.exists() and not Path("out.safetensors").exists()
    document("pursue", "pursuit.toml", code=9)
    assert posterity.load("out.safetensors") == whole
    assert not checkpoint.exists() and not list(Path().glob("*.tmp"))


@pytest.mark.slow
def test_a_pursued_network_is_written(folder):
    """Its columns are inputs, and no names of its weights."""
    changed = CONFIG.replace('"logistic-regression"', '"network"\nhidden = [2]')
    Path("pursuit.toml").write_text(changed.replace("components = 2", "components = 1"))
    data = document("pursue", "pursuit.toml", code=9)
    about = posterity.inspect("out.safetensors").provenance
    assert json.loads(about["inputs"]) == data["columns"] == ["age", "dose"]


def test_options_are_the_verbs_arguments(folder):
    Path("pursuit.toml").write_text(CONFIG.replace('"none"', '"end"'))
    assert configured()[1] == {
        "base": "diagonal",
        "components": 2, "polish": "end", "attempts": 2, "finalists": 1,
        "samples": 256,
    }  # fmt: skip
    plain = '[data]\nfile = "sick.csv"\n[model]\ntarget = "sick"\n[output]\nfile = "a.st"\n'
    Path("pursuit.toml").write_text(plain)
    assert configured()[1] == {"base": "diagonal", "polish": "each"}


@pytest.mark.parametrize(
    "old, new, code, words",
    [
        ("variance = 4.0", "", 2, "prior.variance"),
        ('file = "out.safetensors"', "", 2, "output.file"),
    ],
)
def test_configurations_that_make_no_sense(old, new, code, words, folder):
    assert old in CONFIG
    Path("pursuit.toml").write_text(CONFIG.replace(old, new))
    before = contents()
    refuse("pursue pursuit.toml", code, words)
    assert contents() == before


@pytest.mark.parametrize("kind", ["negative-binomial", "gamma"])
def test_arrays_need_a_dispersion(kind):
    """Of tables it is estimated."""
    x = np.ones((20, 1))
    np.savez("counts.npz", x=x, y=1.0 + np.arange(20))
    text = CONFIG.replace("sick.csv", "counts.npz").replace('target = "sick"\n', "")
    text = text.replace('"logistic', f'"{kind}')
    Path("pursuit.toml").write_text(text)
    with pytest.raises(UsageError, match="no dispersion"):
        configured()
    Path("pursuit.toml").write_text(text.replace("[prior]", "dispersion = 0.5\n[prior]"))
    assert configured()[0].model.dispersion == 0.5
