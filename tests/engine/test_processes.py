"""Four sites as real processes over Unix sockets: one is killed mid-walk, one is forgotten."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli.commands import document, succeed
from engine.coins import DATA, PRIOR
from engine.folders import SITES, make

import posterity
from posterity.arrays.tree_sums import TreeSum
from posterity.artifact import digest
from posterity.artifact.artifact import from_bytes
from posterity.cli.deployment import ask, opened
from posterity.engine.transports.unix import Client
from posterity.errors import PosterityError
from posterity.federation import federate
from posterity.models import BetaBernoulli

PROGRAM = "from posterity.__main__ import main; main()"


class Processes:
    """The agents of sites, by name."""

    def __init__(self, folder: Path):
        self.folder, self.running = folder, dict[str, subprocess.Popen]()

    def start(self, site: str) -> None:
        source = str(Path(posterity.__file__).parents[1])
        with (self.folder / f"{site}.log").open("a") as log:
            self.running[site] = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "site", "run", str(self.folder / site)],
                env={**os.environ, "PYTHONPATH": source},
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
            )

    def end(self, site: str, number: int) -> int:
        process = self.running.pop(site)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
        assert told == ""
        return process.returncode

    def status(self, site: str) -> dict:
        with Client(self.folder / site / "site.sock") as client:
            return client.ask("status")[0]

    def until(self, condition, seconds: float = 120.0) -> None:
        """Wait until a condition holds of the statuses of all that run."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all((self.folder / site / "site.sock").exists() for site in self.running):
                try:
                    statuses = {site: self.status(site) for site in self.running}
                except PosterityError:  # it has just begun, or is about to end
                    statuses = {}
                if statuses and condition(statuses):
                    return
            time.sleep(0.05)
        logs = "".join(log.read_text()[-500:] for log in self.folder.glob("*.log"))
        raise AssertionError(f"it does not come: {logs}")


@pytest.fixture
def processes(tmp_path, request):
    make(tmp_path, *getattr(request, "param", ()))
    processes = Processes(tmp_path)
    yield processes
    for process in processes.running.values():
        process.kill()
        process.communicate()


def converged(epoch: int):
    """Whether all count in an epoch as high, and all know that it has converged."""
    return lambda statuses: all(
        s["counted"] and s["epoch"][0] >= epoch and s["posterior"]["state"] == "converged"
        for s in statuses.values()
    )


def posterior(folder: Path, sites):
    factors = []
    for site in sites:
        with opened(folder / site) as running:
            factors.append(running.agent.memory.own.entry.factor)
    return TreeSum.of([PRIOR, *factors]).value


@pytest.mark.slow
def test_one_is_killed_and_one_forgotten_and_the_others_go_on(processes):
    folder = processes.folder
    for site in SITES:
        processes.start(site)
    processes.until(lambda statuses: len(statuses) == 4)
    ask(folder / "a", "begin")
    time.sleep(0.5)
    assert processes.end("b", signal.SIGKILL) == -signal.SIGKILL
    assert (folder / "b" / "site.sock").exists(), "left behind"
    ask(folder / "a", "begin")
    processes.start("b")
    processes.until(converged(2))
    ask(folder / "d", "forget")
    processes.until(lambda statuses: all(s["forgotten"] == ["d"] for s in statuses.values()))
    assert processes.end("d", signal.SIGTERM) == 0
    processes.until(converged(3))
    line = ("site", "result", folder / "c", "-o", folder / "shared.safetensors")
    document(*line, "--certificate", folder / "certificate.json")
    for site in "abc":
        assert processes.end(site, signal.SIGTERM) == 0
        assert not (folder / site / "site.sock").exists()
    stay = {site: DATA[site] for site in "abc"}
    there = federate(stay, BetaBernoulli(), PRIOR, steps=1).posterior
    assert digest(posterior(folder, "abc")) == digest(there)
    assert digest(posterity.load(folder / "shared.safetensors")) == digest(there)
    with opened(folder / "d") as running:
        assert running.agent.memory.own.entry.factor is None
    events = [json.loads(line) for line in (folder / "b.log").read_text().splitlines()]
    assert [event["event"] for event in events].count("started") == 2


@pytest.mark.slow
@pytest.mark.parametrize("processes", [("--quorum", "3")], indirect=True)
def test_one_never_joins_and_is_passed_over_where_the_token_does_not_wait(processes):
    folder = processes.folder
    for site in "abc":
        processes.start(site)
    processes.until(lambda statuses: len(statuses) == 3)
    ask(folder / "a", "begin")
    needs = lambda statuses: [s for s, each in statuses.items() if each["awaited"] == ["d"]]
    processes.until(lambda statuses: needs(statuses) and all(s["waits"] for s in statuses.values()))
    waiting = needs({site: processes.status(site) for site in "abc"})
    for site in "abc":
        state = document("site", "status", folder / site)["waits"]["d"]
        assert state["needed"] == (site in waiting) and state["seconds"] >= 1
        assert state["type"] == f"posterity site pass-over {folder / site} --site d"
        said = " ".join(succeed("site", "status", folder / site, COLUMNS="200").stdout.split())
        assert ("The federation waits for d since" in said) == (site in waiting)
        assert f"type at any member: {state['type']}" in said
    other = next(site for site in "abc" if site not in waiting)
    document("site", "pass-over", folder / other, "--site", "d")
    processes.until(converged(2))
    line = ("site", "result", folder / "c", "-o", folder / "shared.safetensors")
    document(*line, "--certificate", folder / "certificate.json")
    terms = ("--federation", folder / "federation.toml")
    verified = document("verify", folder / "certificate.json", *terms)
    assert all(verified["claims"].values()) and '"d"' in verified["statement"]
    stay = {site: DATA[site] for site in "abc"}
    there = federate(stay, BetaBernoulli(), PRIOR, steps=1).posterior
    assert digest(posterity.load(folder / "shared.safetensors")) == digest(there)
    processes.start("d")
    processes.until(lambda statuses: statuses["d"]["counted"])
    whole = lambda each: each["posterior"]["state"] == "converged" and not each["absent"]
    processes.until(lambda statuses: all(map(whole, statuses.values())))
    there = federate(DATA, BetaBernoulli(), PRIOR, steps=1).posterior
    head, content = ask(folder / "d", "result")
    assert digest(from_bytes(content)) == digest(there) and head["certificate"]
