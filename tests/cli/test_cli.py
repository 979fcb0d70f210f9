import errno
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from typer.testing import CliRunner

import posterity
from posterity import artifact, cli, errors
from posterity.families import Dirichlet, Gamma, Mixture, NormalWishart, Plate
from posterity.fusion import Divergence, Matching, Rule
from posterity.ledger import Ledger

try:  # click before 8.2 mixes the streams unless told
    RUNNER = CliRunner(mix_stderr=False)
except TypeError:
    RUNNER = CliRunner()


def plate(means, count, shares):
    size = len(means)
    mean = np.array([[m, -m] for m in means], float)
    scatter = np.stack([np.eye(2) / (1 + count)] * size)
    kappa = np.full(size, 0.1 + count)
    members = NormalWishart.from_standard(mean, kappa, scatter, 3 + kappa)
    return Plate(members, Dirichlet.from_standard(np.full(size, shares + count)))


def ledger(name, *means):
    size = len(means)
    prior = plate(np.zeros(size), 0.0, 1 / size)
    return Ledger.of_site(name, prior=prior, posterior=plate(means, 50.0, 1 / size))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with three sites, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    posterity.save(ledger("north", 0.0, 5.0), "n.safetensors")
    posterity.save(ledger("south", 5.1, 0.1), "s.safetensors")
    posterity.save(ledger("east", 9.0, 5.2, 0.2, 20.0, 30.0), "e.safetensors")
    posterity.save(plate([0.0, 5.0], 50.0, 0.5), "plain.safetensors")
    return tmp_path


def call(*arguments):
    return RUNNER.invoke(cli.app, [str(argument) for argument in arguments])


def succeed(*arguments):
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def document(*arguments):
    """What a command prints with --json: one document, and nothing beside it."""
    result = succeed(*arguments, "--json")
    assert result.stderr == ""
    return json.loads(result.stdout, parse_constant=pytest.fail)


def fail(code, *arguments):
    """The error of a command that fails, which must be the same for people and programs."""
    human, machine = call(*arguments), call(*arguments, "--json")
    assert human.exit_code == machine.exit_code == code, human.stderr
    assert human.stdout == machine.stdout == ""
    assert "Traceback" not in human.stderr + machine.stderr
    error = json.loads(machine.stderr)["error"]
    assert list(error) == ["type", "found", "expected", "fix", "exit_code"]
    assert error["exit_code"] == code
    assert re.fullmatch("error: found .+; expected .+; next: .+\n", human.stderr)
    return error


def refuse(code, *arguments):
    """As ``fail`` for fuse: it writes no output, and leaves alone what is there."""
    Path("kept.safetensors").write_bytes(b"kept")
    before = contents()
    fail(code, "fuse", *arguments, "-o", "out.safetensors")
    error = fail(code, "fuse", *arguments, "-o", "kept.safetensors")
    assert contents() == before
    return error


def contents():
    return {path: path.is_file() and path.read_bytes() for path in Path().rglob("*")}


def forge(source, target, change_arrays=None, change_manifest=None):
    """A file that says what the library refuses to write, with a digest that fits."""
    with safetensors.safe_open(source, framework="numpy") as file:
        manifest = json.loads(file.metadata()["posterity"])
        arrays = {name: file.get_tensor(name).copy() for name in list(file.keys())}
    if change_arrays:
        change_arrays(arrays)
    manifest.update(change_manifest or {})
    manifest["digest"] = artifact._digest(manifest, arrays)
    safetensors.numpy.save_file(arrays, target, {"posterity": json.dumps(manifest)})


# --- fuse ----------------------------------------------------------------------------------------


def test_fuse_writes_the_barycentre_and_says_what_matched(files):
    result = succeed("fuse", "n.safetensors", "s.safetensors", "-o", "out.safetensors")
    assert "Fused 2 sites" in result.stdout
    assert "2 components" in result.stdout
    assert "Wrote Plate to out.safetensors" in result.stdout
    assert isinstance(posterity.load("out.safetensors"), Plate)


def test_fuse_by_product_writes_a_ledger_that_can_forget(files):
    found = document(
        "fuse", "n.safetensors", "s.safetensors", "-o", "out.safetensors", "--rule", "product"
    )
    assert (found["kind"], found["rule"], found["divergence"]) == ("Ledger", "product", "reverse")
    assert found["plates"][""]["components"] == 2
    assert found["plates"][""]["matching"] in (
        {"north": [0, 1], "south": [1, 0]},
        {"north": [1, 0], "south": [0, 1]},
    )
    fused = posterity.load("out.safetensors")
    assert fused.sites == ("north", "south")
    assert fused.forget("south").sites == ("north",)


def test_fuse_records_where_its_output_came_from(files):
    found = document(
        "fuse", "n.safetensors", "plain.safetensors", "-o", "out.safetensors",
        "--divergence", "forward", "--matching", "hungarian", "--components", 2,
        "--weight", "north=2", "--weight", "plain=0.5",
    )  # fmt: skip
    written = posterity.inspect("out.safetensors")
    inputs = {name: posterity.inspect(f"{name[0]}.safetensors").digest for name in ["north"]}
    inputs["plain"] = posterity.inspect("plain.safetensors").digest
    assert found["sites"] == inputs
    assert found["digest"] == written.digest
    assert written.provenance == {
        "made by": f"posterity {posterity.__version__} fuse",
        "rule": "barycenter",
        "divergence": "forward",
        "matching": "hungarian",
        "components": "2",
        "input north": inputs["north"],
        "input plain": inputs["plain"],
        "weight north": "2.0",
        "weight plain": "0.5",
    }


def test_fuse_is_what_the_library_does(files):
    succeed("fuse", "n.safetensors", "e.safetensors", "-o", "out.safetensors")
    fused = posterity.fuse(["n.safetensors", "e.safetensors"]).posterior
    assert artifact.digest(posterity.load("out.safetensors")) == artifact.digest(fused)


def test_fuse_takes_the_prior_of_posteriors_that_are_no_ledgers(files):
    posterity.save(plate([0.1, 5.1], 50.0, 0.5), "other.safetensors")
    posterity.save(plate([0.0, 0.0], 0.0, 0.5), "prior.safetensors")
    arguments = ("plain.safetensors", "other.safetensors", "--rule", "product")
    refuse(2, *arguments)
    found = document("fuse", *arguments, "--prior", "prior.safetensors", "-o", "out.safetensors")
    assert list(found["sites"]) == ["other", "plain"]
    assert posterity.inspect("out.safetensors").provenance["prior"]
    fail(2, "fuse", *arguments, "--prior", "prior.safetensors", "-o", "prior.safetensors")


def test_fuse_replaces_an_older_output(files):
    Path("out.safetensors").write_bytes(b"old")
    succeed("fuse", "n.safetensors", "s.safetensors", "-o", "out.safetensors")
    assert posterity.inspect("out.safetensors").kind == "Plate"


def test_site_with_more_components_than_all_others(files):
    names = ("n.safetensors", "s.safetensors", "e.safetensors")
    found = document("fuse", *names, "-o", "out.safetensors")
    assert found["plates"][""]["components"] == 5
    error = refuse(2, *names, "--components", 4)
    assert error["found"] == "components=4"
    assert "between 5 and 9" in error["expected"]


def test_wide_matchings_are_cut_for_people_only(files):
    wide = [10.0 * k for k in range(30)]
    posterity.save(ledger("wide", *wide), "w.safetensors")
    arguments = ("fuse", "n.safetensors", "w.safetensors", "-o", "out.safetensors")
    assert "more" in succeed(*arguments).stdout
    assert len(document(*arguments)["plates"][""]["matching"]["wide"]) == 30


def test_names_from_files_cannot_steer_the_terminal(files):
    posterity.save(ledger("we\x1b[31mst", 0.0), "w.safetensors")
    arguments = ("fuse", "n.safetensors", "w.safetensors", "-o", "out.safetensors")
    shown = succeed(*arguments).stdout + succeed("inspect", "w.safetensors").stdout
    assert "\x1b" not in shown
    assert r"we\x1b[31mst" in shown
    assert "\x1b" not in call(*arguments, "--weight", "a=1").stderr


# --- fuse: what it refuses -----------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_parameters_that_are_not_finite(files, value):
    def spoil(arrays):
        arrays["members/precision_mean"][1, 0] = value

    forge("plain.safetensors", "bad.safetensors", spoil)
    error = refuse(3, "n.safetensors", "bad.safetensors")
    assert "bad.safetensors" in error["found"]
    assert "members/precision_mean" in error["found"]


def test_improper_parameters(files):
    posterity.save(-plate([0.0, 5.0], 50.0, 0.5), "bad.safetensors")
    error = refuse(3, "n.safetensors", "bad.safetensors")
    assert (error["type"], "site 'bad'" in error["found"]) == ("ParameterError", True)


def test_other_families_and_dimensions(files):
    posterity.save(Gamma.from_standard(1.0, 1.0), "gamma.safetensors")
    refuse(4, "n.safetensors", "gamma.safetensors")
    members = NormalWishart.from_standard(np.zeros((1, 3)), [1.0], np.eye(3)[None], [5.0])
    posterity.save(Plate(members, Dirichlet.from_standard([1.0])), "solid.safetensors")
    refuse(4, "n.safetensors", "solid.safetensors")
    posterity.save(Mixture.from_standard([1.0], members), "mixture.safetensors")
    refuse(4, "n.safetensors", "mixture.safetensors")


def test_no_site_one_site_the_same_site(files):
    assert "missing argument" in refuse(2)["found"]
    assert refuse(2, "n.safetensors")["found"] == "1 site"
    assert "'north'" in refuse(2, "n.safetensors", "n.safetensors")["found"]
    Path("sub").mkdir()
    posterity.save(plate([1.0], 50.0, 1.0), "sub/plain.safetensors")
    error = refuse(2, "plain.safetensors", "sub/plain.safetensors")
    assert "two files of site 'plain'" in error["found"]


def test_one_site_s_data_under_two_names(files):
    posterity.save(ledger("copy", 0.0, 5.0), "copy.safetensors")
    names = ("n.safetensors", "copy.safetensors", "-o", "out.safetensors")
    with pytest.warns(UserWarning, match="hold the same posterior"):
        assert call("fuse", *names, "--rule", "product").exit_code == 0


@pytest.mark.parametrize("option", ["--rule", "--divergence", "--matching"])
def test_choice_that_there_is_not(files, option):
    assert "'other'" in refuse(2, "n.safetensors", "s.safetensors", option, "other")["found"]


@pytest.mark.parametrize(
    "weights",
    [["north"], ["=1"], ["north=x"], ["north=1"], ["north=1", "north=1"], ["north=0", "south=1"]],
)
def test_weights_that_make_no_sense(files, weights):
    options = [part for weight in weights for part in ("--weight", weight)]
    refuse(2, "n.safetensors", "s.safetensors", *options)


def test_files_that_cannot_be_trusted(files):
    content = Path("s.safetensors").read_bytes()
    forge("plain.safetensors", "future.safetensors", change_manifest={"format": 99})
    safetensors.numpy.save_file({"w": np.ones(2)}, "foreign.safetensors")
    Path("truncated.safetensors").write_bytes(content[:-9])
    Path("tampered.safetensors").write_bytes(content[:-1] + b"\x7f")
    Path("text.safetensors").write_text("no posterior")
    Path("empty.safetensors").touch()
    Path("folder.safetensors").mkdir()
    kinds = ("future", "foreign", "truncated", "tampered", "text", "empty", "folder", "missing")
    for kind in kinds:
        error = refuse(5, "n.safetensors", f"{kind}.safetensors")
        assert f"{kind}.safetensors" in error["found"]
        fail(5, "inspect", f"{kind}.safetensors")


def test_unreadable_file(files, monkeypatch):
    # By hand: who runs tests as root can read everything.
    def denied(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(safetensors, "safe_open", denied)
    assert "Permission denied" in refuse(5, "n.safetensors", "s.safetensors")["found"]


def test_output_that_cannot_be_written(files, monkeypatch):
    arguments = ("fuse", "n.safetensors", "s.safetensors", "-o")
    fail(5, *arguments, "no/such/folder.safetensors")
    fail(5, *arguments, files)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refuse(5, *arguments[1:3])["found"]


def test_inputs_are_never_replaced(files):
    Path("link.safetensors").symlink_to("s.safetensors")
    before = contents()
    for output in ("s.safetensors", "./s.safetensors", "link.safetensors"):
        error = fail(2, "fuse", "n.safetensors", "s.safetensors", "-o", output)
        assert "one of the inputs" in error["found"]
    assert contents() == before


# --- inspect -------------------------------------------------------------------------------------


def test_inspect_a_ledger(files):
    both = ledger("north", 0.0, 5.0) | ledger("south", 1.0, 2.0)
    posterity.save(both.forget("north"), "both.safetensors", provenance={"fit": "by hand"})
    found = document("inspect", "both.safetensors")
    assert (found["kind"], found["format"], found["proper"]) == ("Ledger", 1, True)
    assert found["bytes"] == Path("both.safetensors").stat().st_size
    assert found["digest"] == posterity.inspect("both.safetensors").digest
    assert found["prior_digest"] == artifact.digest(both.prior)
    assert found["provenance"] == {"fit": "by hand"}
    assert found["sites"] == {
        "north": {"epoch": 0, "sequence": 0, "forgotten": True},
        "south": {"epoch": 0, "sequence": 0, "forgotten": False},
    }
    text = succeed("inspect", "both.safetensors").stdout
    for part in (found["digest"], found["prior_digest"], "fit: by hand", "no (forgotten)"):
        assert part in text


def test_inspect_a_family(files):
    found = document("inspect", "plain.safetensors")
    assert "sites" not in found
    assert found["family"]["type"] == "Plate"
    assert found["family"]["components"] == 2
    assert found["family"]["expected_weights"] == [0.5, 0.5]
    assert found["family"]["parameters"]["members"]["parameters"]["scatter"] == [2, 2, 2]
    text = succeed("inspect", "plain.safetensors").stdout
    assert "Plate of 2 components, expected weights 0.5 0.5" in text
    assert "scatter (2, 2, 2)" in text


def test_inspect_what_is_no_distribution(files):
    posterity.save(-plate([0.0], 50.0, 1.0), "factor.safetensors")
    assert document("inspect", "factor.safetensors")["proper"] is False


def test_inspect_blocks_and_mixtures(files):
    gamma = Gamma.from_standard([1.0, 2.0], [1.0, 1.0])
    posterity.save(Mixture.from_standard([1.0, 3.0], gamma), "m.safetensors")
    assert document("inspect", "m.safetensors")["family"]["expected_weights"] == [0.25, 0.75]
    product = posterity.Product({"a/b": gamma[0], "c": Plate(gamma)})
    posterity.save(product, "p.safetensors")
    blocks = document("inspect", "p.safetensors")["family"]["parameters"]["blocks"]
    assert blocks["c"]["components"] == 2
    text = succeed("inspect", "p.safetensors").stdout
    assert "a/b: Gamma" in text
    assert "c: Plate of 2 components" in text


# --- diff ----------------------------------------------------------------------------------------


def test_diff(files):
    found = document("diff", "n.safetensors", "e.safetensors")
    block = found["blocks"][""]
    assert found["kl_ab"] == block["kl_ab"] > 0 < found["kl_ba"]
    assert [(pair["a"], pair["b"]) for pair in block["components"]] == [(0, 2), (1, 1)]
    assert [lone["component"] for lone in block["only_in_b"]] == [0, 3, 4]
    assert block["only_in_a"] == []
    assert (found["sites_a"], found["sites_b"]) == (["north"], ["east"])
    text = succeed("diff", "n.safetensors", "e.safetensors").stdout
    for part in ("only in b", "total, in nats", "sites of b: east"):
        assert part in text


def test_diff_of_a_file_with_itself(files):
    found = document("diff", "n.safetensors", "n.safetensors")
    assert (found["kl_ab"], found["kl_ba"]) == (0.0, 0.0)


def test_wide_diffs_are_cut_for_people_only(files):
    posterity.save(ledger("wide", *[10.0 * k for k in range(40)]), "w.safetensors")
    assert "and 16 more" in succeed("diff", "w.safetensors", "w.safetensors").stdout
    found = document("diff", "w.safetensors", "w.safetensors")
    assert len(found["blocks"][""]["components"]) == 40


def test_diff_of_different_models(files):
    posterity.save(Gamma.from_standard(1.0, 1.0), "gamma.safetensors")
    assert fail(4, "diff", "n.safetensors", "gamma.safetensors")["type"] == "StructureError"


def test_diff_that_overflows_is_still_json(files):
    narrow = Gamma.from_standard(1e300, 1e-300), Gamma.from_standard(1.0, 1e300)
    for name, gamma in zip("ab", narrow, strict=True):
        posterity.save(gamma, f"{name}.safetensors")
    with np.errstate(all="ignore"):
        found = document("diff", "a.safetensors", "b.safetensors")
        assert found["kl_ab"] is None
        assert "overflow" in succeed("diff", "a.safetensors", "b.safetensors").stdout


# --- demo ----------------------------------------------------------------------------------------


@pytest.fixture
def demo(files, monkeypatch):
    """A stand-in for the demonstration, which has tests of its own."""
    calls = []

    def run(output, *, seed):
        print("working")
        calls.append((output, seed))
        return types.SimpleNamespace(
            table=lambda: "a table", to_json=lambda: f'{{"seed": {seed}}}\n'
        )

    monkeypatch.setitem(sys.modules, "posterity.cli.digits", types.SimpleNamespace(run=run))
    return calls


def test_demo(demo):
    assert succeed("demo").stdout == "working\na table\n"
    succeed("demo", "--output", "there", "--seed", 7)
    assert demo == [(Path("posterity-demo"), 0), (Path("there"), 7)]


def test_demo_keeps_standard_output_for_the_document(demo):
    result = succeed("demo", "--json", "--seed", 3)
    assert json.loads(result.stdout) == {"seed": 3}
    assert result.stderr == "working\n"


def test_missing_extra(demo, monkeypatch):
    def run(output, *, seed):
        raise errors.MissingExtraError.of("sklearn", "demo")

    monkeypatch.setattr(sys.modules["posterity.cli.digits"], "run", run)
    assert "pip install 'posterity[demo]'" in fail(7, "demo")["fix"]


# --- errors that are no one's fault, help --------------------------------------------------------


def test_unexpected_error_says_how_to_see_more(demo, monkeypatch):
    def run(output, *, seed):
        raise RuntimeError("out of\ncheese")

    monkeypatch.setattr(sys.modules["posterity.cli.digits"], "run", run)
    error = fail(70, "demo")
    assert (error["type"], "out of" in error["found"]) == ("RuntimeError", True)
    assert f"{cli.DEBUG}=1" in error["fix"]
    monkeypatch.setenv(cli.DEBUG, "1")
    result = call("demo")
    assert result.exit_code == 70
    assert "Traceback" in result.stderr


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space")])
def test_interruptions_and_the_system(demo, monkeypatch, raised):
    def run(output, *, seed):
        raise raised

    monkeypatch.setattr(sys.modules["posterity.cli.digits"], "run", run)
    code = 130 if raised is KeyboardInterrupt else 5
    for arguments in (["demo"], ["demo", "--json"]):
        result = call(*arguments)
        assert (result.exit_code, result.stdout) == (code, "")
        assert "Traceback" not in result.stderr


def test_usage_errors():
    for arguments in (["--nonsense"], ["nonsense"], ["diff", "a"], ["demo", "--seed", "x"]):
        assert "--help" in fail(2, *arguments)["fix"]


def test_help_has_every_command_and_exit_code():
    text = succeed("--help").stdout
    assert succeed().stdout == text
    for command in ("fuse", "inspect", "diff", "demo"):
        assert re.search(rf"^  {command} ", text, re.MULTILINE)
        assert f"posterity {command} " in succeed(command, "--help").stdout.split("Example:")[1]
    codes = {kind.exit_code for kind in errors.PosterityError.__subclasses__()}
    documented = (Path(__file__).parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    for code in {0, 1, 70, 130} | codes:
        assert re.search(rf"^ +{code} ", text, re.MULTILINE), code
        assert re.search(rf"^\| {code} +\|", documented, re.MULTILINE), code


def test_help_has_every_choice():
    text = succeed("fuse", "--help").stdout
    for kind in (Rule, Divergence, Matching):
        assert f"[{'|'.join(kind)}]" in text


def test_version():
    assert succeed("--version").stdout == f"posterity {posterity.__version__}\n"


# --- the real thing ------------------------------------------------------------------------------


def test_real_processes(files):
    command = [sys.executable, "-W", "error", "-m", "posterity"]
    options = {"capture_output": True, "text": True}
    inputs = ["n.safetensors", "s.safetensors", "--json"]
    done = subprocess.run([*command, "fuse", *inputs, "-o", "out.safetensors"], **options)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["digest"] == posterity.inspect("out.safetensors").digest
    done = subprocess.run([*command, "inspect", "nothing"], **options)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("error: found ")
    assert done.stderr.count("\n") == 1
