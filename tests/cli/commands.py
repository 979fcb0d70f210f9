"""Calling commands as users and programs do, and files for them to work on."""

import functools
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer.main
import typer.testing
from typer.testing import CliRunner

from posterity import cli
from posterity.families import Dirichlet, NormalWishart, Plate
from posterity.ledger import Ledger

try:  # click before 8.2 mixes the streams unless told
    RUNNER = CliRunner(mix_stderr=False)
except TypeError:
    RUNNER = CliRunner()
# Else the runner makes the commands anew from the functions' signatures at every call.
typer.testing._get_command = functools.cache(typer.main.get_command)


def call(*arguments, **environment):
    return RUNNER.invoke(cli.app, [str(argument) for argument in arguments], env=environment)


def succeed(*arguments, **environment):
    result = call(*arguments, **environment)
    assert result.exit_code == 0, result.stderr
    return result


def document(*arguments, code=0):
    """What a command prints with --json: one document, and nothing beside it."""
    result = call(*arguments, "--json")
    assert result.exit_code == code, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout, parse_constant=pytest.fail)


def fail(code, *arguments):
    """The error of a command that fails, which is the same for people and for programs."""
    plain, result = call(*arguments), call(*arguments, "--json")
    for one in (plain, result):
        assert (one.exit_code, one.stdout) == (code, ""), one.stderr
    error = json.loads(result.stderr)["error"]
    assert list(error) == ["type", "found", "expected", "fix", "exit_code"]
    assert error["exit_code"] == code
    sentences = "error: found {found}; expected {expected}".format(**error)
    sentences += f"; next: {error['fix']}" if error["fix"] else ""
    assert plain.stderr == f"{cli.printable(sentences)}\n"
    return error


def refuse(line, code, words):
    """``line`` fails with this exit code and all of these words, and leaves files as they are."""
    before = contents()
    error = fail(code, *shlex.split(line))
    told = " ".join((error["found"], error["expected"], error["fix"]))
    assert all(word in told for word in words.split("; ")), error
    assert contents() == before


def contents():
    """What is in every file of the working directory, and its folders."""
    return {path: path.is_file() and path.read_bytes() for path in Path().rglob("*")}


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
