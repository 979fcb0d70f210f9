"""What long calls show while they run: bars in terminals, lines in logs, nothing in pipes."""

import json
import math
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli.commands import call

import posterity
from posterity.cli.streams import explain
from posterity.families import Beta
from posterity.models import BetaBernoulli
from posterity.runtime.progress import Pace, moving, sentence, shown
from posterity.status import Progress

SOURCE = str(Path(posterity.__file__).parents[1])
COUNTED = """
from posterity.runtime.progress import shown
from posterity.status import Progress
with shown("Counting", {style!r}) as progress:
    for step in range(1, 4):
        progress(Progress(step, 3, left=0.5))
"""
WAITING = """
import signal
import time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs behind a shell
from posterity.runtime.progress import shown
from posterity.status import Progress
with shown("Waiting", "json") as progress:
    progress(Progress(1, 1000))
    time.sleep(300)
"""


def begin(code, **streams):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": SOURCE,
            "TERM": "xterm",
            "COLUMNS": "80",
            "PYTHONUTF8": "1",
        },
        **streams,
    )


def clock(*times):
    return iter(times).__next__


def test_rate_and_time_left_are_of_the_steps_since_the_first_report():
    pace = Pace(clock(0.0, 100.0, 104.0))
    first = pace.measured(Progress(50, 60))  # a run that goes on from step 49
    assert first["rate"] is None and first["seconds_left"] is None
    second = pace.measured(Progress(52, 60, left=math.inf))
    assert (second["rate"], second["seconds_left"], second["left"]) == (0.5, 16.0, None)
    assert sentence(second) == "52 of 60, 0.5 a second, at most 16 s left"


def test_a_later_stage_begins_anew_and_the_last_step_has_no_time_left():
    pace = Pace(clock(0.0, 1.0, 2.0, 3.0))
    pace.measured(Progress(10, 10))
    assert pace.measured(Progress(1))["rate"] is None
    known = pace.measured(Progress(3, 3))
    assert known["rate"] == 2.0 and known["seconds_left"] == 0.0
    assert sentence(known) == "3 of 3, 2 a second"


@pytest.mark.parametrize("seconds, text", [(30.0, "30 s"), (3000.0, "50 min"), (9e4, "25.0 h")])
def test_times_are_in_units_that_people_read(seconds, text):
    known = {"step": 1, "steps": 9, "rate": 0.01, "seconds_left": seconds, "left": None}
    assert sentence(known) == f"1 of 9, 100 s each, at most {text} left"


@pytest.mark.parametrize(
    "title", ["Counting", "Counting what is in a very long name of a file" * 2]
)
def test_a_terminal_sees_a_bar(title):
    """Whatever the load: what was drawn when the block ended is what is looked at."""
    mine, theirs = pty.openpty()
    process = begin(COUNTED.format(style="auto").replace("Counting", title), stderr=theirs)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            some = os.read(mine, 1 << 16)
        except OSError:  # Linux: the other end is closed
            break
        if not some:
            break
        drawn += some
    os.close(mine)
    assert process.wait() == 0
    text = drawn.decode()
    assert "━" in text and title[:16] in text
    assert ": 3 of 3" in text and "0.5 nats to go" in text  # however long the title is


@pytest.mark.parametrize("style", ["auto", "none"])
def test_a_pipe_hears_nothing(style):
    process = begin(COUNTED.format(style=style), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.communicate() == (b"", b"") and process.returncode == 0


@pytest.mark.parametrize("style", ["auto", "bar", "json"])
def test_a_call_whose_standard_error_is_closed_goes_on_in_silence(style):
    code = f"import sys\nsys.stderr = None\n{COUNTED.format(style=style)}"
    process = begin(code, stdout=subprocess.PIPE)
    assert process.communicate() == (b"", None) and process.returncode == 0


def test_a_log_that_nobody_reads_stops_no_work():
    mine, theirs = os.pipe()
    os.close(mine)
    process = begin(
        COUNTED.format(style="json") + "print('done')", stderr=theirs, stdout=subprocess.PIPE
    )
    os.close(theirs)
    assert process.communicate()[0].strip() == b"done"


def test_a_log_has_a_line_when_it_begins_ends_and_at_most_each_second(capsys):
    with shown("Counting", "json") as progress:
        for step in range(1, 50):
            progress(Progress(step, 50))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    events = [line["event"] for line in lines]
    assert events[0] == "begin" and events[1] == "progress" and events[-1] == "end"
    assert len(lines) < 50 and {line["title"] for line in lines} == {"Counting"}
    assert (lines[-1]["step"], lines[-1]["steps"], lines[-1]["left"]) == (49, 50, None)


def test_a_log_says_where_ctrl_c_stopped_it():
    process = begin(WAITING, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = [process.stderr.readline(), process.stderr.readline()]
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=120)
    lines += [line for line in rest.splitlines() if line.startswith("{")]
    events = [json.loads(line)["event"] for line in lines]
    assert events == ["begin", "progress", "stopped"] and json.loads(lines[-1])["step"] == 1
    assert process.returncode != 0


@pytest.fixture
def interruptible():
    """Tests that run behind a shell (``pytest &``) ignore the signal otherwise."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_a_run_to_go_on_from():
    """As the signal does between two lines of Python, so at every load."""
    coins = {name: np.array([1, 0, 1]) for name in ("north", "south")}
    run = posterity.federate(coins, BetaBernoulli(), Beta.from_standard(1.0, 1.0), steps=0)
    kept = []

    def stop(now):
        kept.append(now.result)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.advance(3, progress=stop)
    assert kept[0].state.step == 1 and kept[0].advance(2).state.step == 3


def test_an_interrupted_command_says_what_goes_on(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["posterity", "federate", "my file.toml"])
    found, _, fix, code = explain(KeyboardInterrupt())
    assert (found, code) == ("an interruption", 130)
    assert fix == "Run the command again: posterity federate 'my file.toml'"


class Bar:
    """What tqdm's bars have."""

    n, total, postfix = 0, None, ""

    def update(self, more):
        self.n += more

    def set_postfix(self, nats_left, refresh):
        self.postfix = nats_left


def test_a_bar_of_tqdm_is_moved():
    move = moving(bar := Bar())
    for step in (2, 5):
        move(Progress(step, 10, left=0.25))
    assert (bar.n, bar.total, bar.postfix) == (5, 10, "0.25")


def test_fuse_in_passes_tells_of_each_pass():
    rng, steps = np.random.default_rng(0), []
    means = rng.normal(size=(40, 2, 1)) * 0.1 + np.array([[0.0], [6.0]])
    sites = posterity.Plate(
        posterity.DiagonalGaussian.from_standard(means, np.full(means.shape, 0.01))
    )
    fused = posterity.fuse(sites, budget=1000, progress=lambda now: steps.append(now))
    assert fused.components == 2
    passes = [now.step for now in steps if now.steps is None]
    assert passes == list(range(1, len(passes) + 1)) and len(passes) > 1
    assert (steps[-1].step, steps[-1].steps) == (1, 1)


def test_the_shell_logs_in_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{k % 7},{int(k % 3 > 0)}\n" for k in range(40))
    Path("north.csv").write_text("dose,ill\n" + rows)
    arguments = [
        "fit",
        "north.csv",
        "--target",
        "ill",
        "--model",
        "logistic",
        "-o",
        "a.safetensors",
    ]
    done = call(*arguments, "--log-format", "json")
    assert done.exit_code == 0
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [events[0]["event"], events[0]["title"]] == ["begin", "Fitting north.csv"]
    assert any(line["event"] == "end" and line["step"] >= 1 for line in events)
    broken = call("fit", "south.csv", *arguments[2:], "--log-format=json")
    assert json.loads(broken.stderr.splitlines()[-1])["error"]["exit_code"] == 5
