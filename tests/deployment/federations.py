"""Hospitals as folders and processes: what a test of a deployment starts, kills and compares."""

import base64
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from typer.testing import CliRunner

import posterity
from experiments.data import heart_disease
from experiments.heart.preparation import COLUMNS, prepare
from posterity.cli import app
from posterity.cli.deployment import opened
from posterity.engine.memory import Memory
from posterity.engine.store import Store
from posterity.engine.transports.unix import Absent, Client
from posterity.families import Gaussian
from posterity.federation import Run, start
from posterity.federation.schedules import Schedule
from posterity.models import LogisticRegression

ROOT = Path(__file__).parents[2]
SITES = ("cleveland", "hungary", "switzerland", "va")
PRIOR = Gaussian.from_standard(np.zeros(len(COLUMNS)), np.eye(len(COLUMNS)))
PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(ROOT / "tests")])


def records(site: str) -> tuple[np.ndarray, np.ndarray] | None:
    """The training patients of a hospital: what its site.toml names; a server has none."""
    if site == "server":
        return None
    split = prepare(heart_disease())[site]
    return split.x_train, split.y_train


def command(*words: object) -> dict:
    """What a command of posterity tells, in this process."""
    result = CliRunner().invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@functools.cache
def compiled() -> tempfile.TemporaryDirectory[str]:
    """Where agents share what they compile, as long as this process lives."""
    return tempfile.TemporaryDirectory(prefix="posterity-jax-")


def environment(**variables: object) -> dict[str, str]:
    """The environment of a process that a test starts."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {
        "PATH": path,
        "PYTHONPATH": PATH,
        "JAX_COMPILATION_CACHE_DIR": compiled().name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        **{name: str(value) for name, value in variables.items()},
    }


def installed(words: list[str]) -> list[str]:
    """A command line whose program is that of this environment."""
    return [str(Path(sys.executable).parent / words[0]), *words[1:]]


def until(condition, seconds: float, what: str):
    """What a condition gives once it is true; it fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return found


def in_process(*sites: str, schedule: Schedule | None = None) -> Run:
    """A federation of hospitals in this process, before its first step."""
    data = {site: records(site) for site in sites}
    model, key = LogisticRegression(), jax.random.key(0)
    return start(data, model, PRIOR, schedule=schedule, padding=True, key=key)


class Federation:
    """A federation of hospitals in a folder, one folder for each site, and its agents."""

    def __init__(self, folder: Path, *terms: str, encrypted: bool = True, sites=SITES):
        self.folder, self.sites, self.file = folder, sites, folder / "federation.toml"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir()
        posterity.save(PRIOR, folder / "prior.safetensors")
        members = []
        for site in sites:
            options = ["--name", site, "--loader", "deployment.federations:records"]
            options += ["--loader-options", f'{{site = "{site}"}}', "--transport", "courier"]
            options += ["--encrypted" if encrypted else "--no-encrypted"]
            members += [
                "--member",
                f"{site}={command('site', 'init', self[site], *options)['key']}",
            ]
        model = ["--model", "logistic-regression"]
        prior = ["--prior", folder / "prior.safetensors", "--output", self.file]
        command("federation", "new", "--name", folder.name, *members, *model, *prior, *terms)
        for site in sites:
            command("site", "init", self[site], "--federation", self.file)

    def __getitem__(self, site: str) -> Path:
        return self.folder / site

    def start(self, *sites: str) -> None:
        """Start the agents of sites, of all by default, and wait until they answer."""
        for site in sites or self.sites:
            run = [sys.executable, "-m", "posterity", "site", "run", str(self[site])]
            with open(self.folder / f"{site}.log", "ab") as log:
                self.agents[site] = subprocess.Popen(run, env=environment(), stdout=log, stderr=log)
        for site in sites or self.sites:
            until(lambda site=site: self._answers(site), 240, f"an agent of {site}")

    def kill(self, site: str) -> None:
        """End an agent by SIGKILL."""
        self.agents[site].kill()
        self.agents.pop(site).wait()

    def stop(self) -> None:
        """End all agents, as a user would."""
        for site, agent in self.agents.items():
            self.ask(site, "stop")
            agent.wait(30)
        self.agents = {}

    def ask(self, site: str, do: str, **arguments):
        with Client(self[site] / "site.sock", timeout=60.0) as client:
            return client.ask(do, **arguments)[0]

    def sequence(self) -> int:
        """The highest sequence number that an agent has answered."""
        return max(self.ask(site, "status")["sequence"] for site in self.agents)

    def log(self, site: str) -> Iterator[dict]:
        """The entries of a site's log, once its agent is ended."""
        with Store(self[site] / "site.db") as store:
            yield from map(json.loads, store.entries())

    def memory(self, site: str) -> Memory:
        """The memory of a site, once its agent is ended."""
        with Store(self[site] / "site.db") as store:
            return Memory.from_bytes(store.state, store.outbox)

    def rests(self) -> bool:
        """Tell whether the server of a star has come to rest."""
        status = self.ask("server", "status")
        return not status["awaited"] and "nothing rests yet" not in status["posterior"]["reasons"]

    def course(self) -> Run:
        """The run of the server of a star, once its agent is ended."""
        with opened(self["server"]) as running:
            return running.agent.memory.course.run

    def _answers(self, site: str) -> bool:
        assert self.agents[site].poll() is None, (self.folder / f"{site}.log").read_text()
        try:
            return self.ask(site, "status")["site"] == site
        except Absent:
            return False


def readable(text: str) -> list[bytes]:
    """What to look for so as to find a text in bytes, as it is or within base64."""
    found = [text.encode()]
    for shift in range(3):
        coded = base64.b64encode(b"x" * shift + text.encode())
        found.append(coded[(0, 2, 3)[shift] : len(coded) // 4 * 4 - 4])
    return found
