"""Ctrl-C and SIGTERM at any moment of a long command, as a shell sees them."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from cli.commands import call, document
from cli.configurations import CONJUGATE, COUNTS

import posterity
import posterity.cli.federate as command
from posterity import models
from posterity.federation import Gossip
from posterity.graphs import ring

REPORT = Path("report.txt")
CHECKPOINT = Path("shared.safetensors.checkpoint")
LONG = CONJUGATE.replace("steps = 30", "steps = 150")
ENDLESS = """
import pathlib

import jax
import jax.numpy as jnp

def likelihood(z, x):
    pathlib.Path("traced").touch()
    one = 1.0 + 0.0 * jax.lax.stop_gradient(z)
    return x * jnp.log(z) - z + jax.lax.while_loop(lambda u: u < 2.0, lambda u: u * one, one)
"""


SETTINGS = {"PYTHONUNBUFFERED": "1", "POSTERITY_CHECKPOINT_SECONDS": "0"}
STARTED = Path("started")
# Until a program's first line interrupts are Python's, which may lose one amid its own imports.
PROGRAM = f"from posterity.__main__ import main; open('{STARTED}', 'x').close(); main()"


def begin(*command, ignoring=False):
    """A command in a process of its own, which may be started with Ctrl-C ignored."""
    source = str(Path(posterity.__file__).parents[1])
    STARTED.unlink(missing_ok=True)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignoring else None
    try:
        with REPORT.open("w") as report:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *(command or ("federate", "gossip.toml"))],
                env={**os.environ, "PYTHONPATH": source, **SETTINGS},
                stdout=report,
                stderr=subprocess.PIPE,
                text=True,
            )
    finally:
        if ignoring:
            signal.signal(signal.SIGINT, before)
    wait_for(STARTED)
    return process


def ended(process):
    """What a shell says of it, which is all that it wrote to standard error."""
    _, told = process.communicate(timeout=60)
    code = process.returncode
    return (code if code >= 0 else 128 - code), told  # SIGTERM before there is something to save


def wait_for(path, size=-1):
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > size):
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.005)


@pytest.mark.slow
def test_signals_at_any_moment(folder):
    """Eight, from the first line to the middle of the walk; then to the end."""
    Path("gossip.toml").write_text(LONG)
    draw, codes = random.Random(0), []
    for attempt in range(8):
        number = signal.SIGTERM if attempt == 7 else signal.SIGINT
        process = begin()
        if attempt % 4 == 3:  # once it is under way
            wait_for(CHECKPOINT, CHECKPOINT.stat().st_size if CHECKPOINT.exists() else 0)
        else:
            time.sleep(draw.uniform(0.0, 0.6))
        done = REPORT.stat().st_size > 0
        process.send_signal(number)
        code, told = ended(process)
        assert code == 128 + number or (done and code == 0), told
        assert code == 0 or told.count("\n") <= 1, told
        codes.append(code)
    assert codes[3] == 130
    whole = posterity.federate(
        {site: np.array(counts) for site, counts in COUNTS.items()},
        models.GammaPoisson(),
        posterity.Gamma.from_standard(2.0, 1.0),
        schedule=Gossip(ring(sorted(COUNTS))),
        steps=150,
        key=jax.random.key(3),
    )
    assert document("federate", "gossip.toml")["resumed"] > 0
    assert posterity.load("shared.safetensors") == whole.ledger


GROWING = {
    "pursue": "--data twice.csv --target y --model logistic-regression --prior-variance 4 "
    "--polish none --attempts 1 --finalists 1 --tolerance 1e-9 --components 60",
    "distill": "prior.safetensors --model logistic-regression --low -2 --high 2 --hidden 4 "
    "--steps 1000000",
}
"""Commands that take long: a pursuit of a narrow ridge by round components, and many steps."""


ENDS = [("pursue", (signal.SIGINT, signal.SIGTERM)), ("distill", (signal.SIGINT,))]


@pytest.mark.slow
@pytest.mark.parametrize("verb, signals", ENDS)
def test_a_long_command_ends_with_a_state_and_says_how_it_goes_on(verb, signals, folder):
    """By Ctrl-C; by SIGTERM where the shell that started it ignores Ctrl-C, as for nohup."""
    rows = [f"{x},{y},{x + 0.01 * (-1) ** y}" for x in (-1.0, 0.5, 2.0) for y in (0, 1)]
    Path("twice.csv").write_text("\n".join(["u,y,v", *rows]))
    checkpoint = Path("out.safetensors.checkpoint")
    for number in signals:
        ignored = number == signal.SIGTERM
        line = (verb, *GROWING[verb].split(), "-o", "out.safetensors")
        process = begin(*line, ignoring=ignored)
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        deadline = time.monotonic() + 200
        while not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > before):
            assert process.poll() is None, ended(process)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if ignored:
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            assert process.poll() is None
        process.send_signal(number)
        code, told = ended(process)
        assert code == 128 + number, told
        assert told.endswith(f"next: Run the command again: posterity {shlex.join(line)}\n")
        assert told.count("\n") == 1 and not Path("out.safetensors").exists()
        assert posterity.inspect(checkpoint).digest


@pytest.mark.parametrize("function", ["_written", "status_of"])
def test_ctrl_c_after_the_last_step_is_heeded(function, folder, monkeypatch):
    Path("gossip.toml").write_text(CONJUGATE)
    original = getattr(command, function)

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(command, function, interrupted)
    assert call("federate", "gossip.toml").exit_code == 130
    monkeypatch.setattr(command, function, original)
    assert call("federate", "gossip.toml").exit_code == 0


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_a_step_that_never_ends(folder):
    Path("endless.py").write_text(ENDLESS)
    function = 'kind = "function"\nfunction = "endless:likelihood"'
    config = CONJUGATE.replace('kind = "gamma-poisson"', function)
    Path("gossip.toml").write_text(config)
    process = begin("federate", "gossip.toml", "--function", "endless:likelihood")
    wait_for(Path("traced"))
    time.sleep(4.0)  # until it is compiled and running
    assert process.poll() is None
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    code, _ = ended(process)
    assert code == 130


SWALLOWING = """
import contextlib, signal, sys, time
from posterity.cli import streams
def compute(settings):
    open("started", "x").close()
    for _ in range(200):
        with contextlib.suppress(BaseException):  # as finalisers and callbacks do
            time.sleep(0.05)
    return {}
streams.present(lambda: (None, streams.Verb(str, compute)), False)
"""


def test_an_interrupt_is_heeded_by_code_that_swallows_exceptions():
    process = subprocess.Popen(
        [sys.executable, "-c", SWALLOWING],
        env={**os.environ, "PYTHONPATH": str(Path(posterity.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(STARTED)
    process.send_signal(signal.SIGINT)
    code, told = ended(process)
    assert code == 130 and told.startswith("error: found an interruption")
