import errno
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.commands import call, fail, refuse, succeed

import posterity
from posterity import cli, errors

COMMANDS = (
    "demo",
    "diff",
    "distill",
    "federate",
    "forget",
    "fuse",
    "inspect",
    "predict",
    "pursue",
    "show",
    "verify",
)


@pytest.fixture
def broken(monkeypatch, request):
    """Reading files raises what the test asks for."""

    def read(path):
        raise request.param

    monkeypatch.delenv(cli.DEBUG, raising=False)
    monkeypatch.setattr("posterity.cli.files.read", read)


@pytest.mark.parametrize("broken", [RuntimeError("out of\ncheese")], indirect=True)
def test_unexpected_errors_say_how_to_see_more(broken, monkeypatch):
    error = fail(70, "inspect", "file")
    assert (error["type"], "out of" in error["found"]) == ("RuntimeError", True)
    assert f"{cli.DEBUG}=1" in error["fix"]
    monkeypatch.setenv(cli.DEBUG, "1")
    result = call("inspect", "file")
    assert result.exit_code == 70
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(
    "broken, code",
    [
        (KeyboardInterrupt(), 130),
        (OSError(errno.ENOSPC, "No space"), 5),
        (errors.LedgerError(found="a", expected="b", fix="c"), 6),
        (errors.MissingExtraError.of("this", "that"), 7),
        (errors.PosterityError(found="a", expected="b", fix="c"), 1),
    ],
    indirect=["broken"],
)
def test_every_kind_of_error_has_its_exit_code(broken, code):
    fail(code, "inspect", "file")


@pytest.mark.parametrize(
    "line", ["--nonsense", "nonsense", "diff a", "demo --seed x", "demo --seed -1", "verify a b"]
)
def test_arguments_that_make_no_sense(line):
    refuse(line, 2, "--help")


def test_help_has_every_command_and_exit_code():
    text = succeed("--help").stdout
    assert succeed().stdout == text
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", text, re.MULTILINE)
        assert f"posterity {command} " in succeed(command, "--help").stdout.split("Example:")[1]
    codes = {kind.exit_code for kind in errors.PosterityError.__subclasses__()}
    documented = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for code in {0, 1, 70, 130} | codes:
        assert re.search(rf"^ +{code} ", text, re.MULTILINE), code
        assert re.search(rf"^\| {code} +\|", documented, re.MULTILINE), code


def test_version():
    assert succeed("--version").stdout == f"posterity {posterity.__version__}\n"


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], capture_output=True, text=True
    )


@pytest.mark.slow
def test_real_processes(files):
    command, inputs = ("-m", "posterity"), ("n.safetensors", "s.safetensors", "--json")
    done = run(*command, "fuse", *inputs, "-o", "out.safetensors")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["digest"] == posterity.inspect("out.safetensors").digest
    done = run(*command, "inspect", "nothing")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("error: found ")
    assert done.stderr.count("\n") == 1


BARE = """
import importlib, sys
extras = "cryptography formulaic matplotlib onnx openpyxl pandas pyarrow sklearn statsmodels torch"
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in extras.split():
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Absent())
from posterity.cli import app, schema
for command in schema.commands().values():
    module = command.get("run", "diff:").partition(":")[0]
    if module not in ("federation", "site"):
        importlib.import_module(f"posterity.cli.{module}")
app()
"""


@pytest.mark.slow
def test_verbs_of_files_need_no_extra(files):
    line = "forget n.safetensors --site north -o left.safetensors --receipt r.json"
    succeed(*line.split())
    done = run("-c", BARE, "verify", "r.json", "n.safetensors", "left.safetensors")
    assert "The receipt holds" in done.stdout, done.stderr


def test_models_of_help_are_those_of_recipes():
    from posterity.cli import schema
    from posterity.tabular import options

    assert schema.MODELS == options.MODELS
