"""Four hospitals as processes of their own: they converge, one is killed, one is forgotten.

    make deploy-demo
    make deploy-demo ENGINE=nvflare
    python -m examples.deploy [FOLDER]

Each hospital has a folder with its key, its records and its durable store, and one process, its
agent. What is run at a shell is printed; what agents tell is told line by line. Letters go by Unix
sockets, or over NVFlare with certificates if the variable ENGINE says so.
"""

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import posterity
from examples.deploy.nvflare import NVFlare
from experiments.data import heart_disease
from experiments.heart.preparation import COLUMNS, SITES, Split, prepare
from posterity import cli
from posterity.engine.transports.unix import Client
from posterity.errors import PosterityError
from posterity.families import Gaussian
from posterity.models import LogisticRegression

ROOT = Path(__file__).parents[2]
LATE, GONE = "hungary", "switzerland"
"""Who is killed, and who is forgotten."""
COMPILED = {"JAX_COMPILATION_CACHE_DIR": "compiled"}
"""What one process compiled others read, since they all run on one machine."""
ENGINE = os.environ.get("ENGINE", "unix")
BEGAN = time.monotonic()


def tell(text: str = "") -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}" if text else "", flush=True)


def run(*line: object) -> dict[str, Any]:
    """Run a command of posterity as a shell would; what it tells."""
    words = [str(word) for word in line]
    shown = [
        word[:12] + "..." if len(word) > 60 and word.startswith("--member") else word
        for word in words
    ]
    tell("$ posterity " + shlex.join(shown))
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.app([*words, "--json"])
    return json.loads(out.getvalue())


class Hospitals:
    """The folders of four hospitals in one, and their agents."""

    def __init__(self, folder: Path):
        self.folder, self.agents = folder, dict[str, subprocess.Popen[str]]()
        self.read = dict.fromkeys(SITES, 0)

    def make(self, patients: dict[str, Split]) -> None:
        """Each hospital makes its key; all agree; each makes its store."""
        prior = Gaussian.from_standard(np.zeros(len(COLUMNS)), np.eye(len(COLUMNS)))
        posterity.save(prior.named(list(COLUMNS)), "prior.safetensors")
        members = []
        for site in SITES:
            split = patients[site]
            rows = np.column_stack([split.x_train[:, 1:], split.y_train])  # ones need no column
            header = ",".join([*COLUMNS[1:], "ill"])
            np.savetxt(f"{site}.csv", rows, delimiter=",", header=header, comments="", fmt="%.17g")
            letters = [f"--socket={o}={o}/site.sock" for o in SITES if o != site]
            letters = ["--transport", "courier"] if ENGINE == "nvflare" else letters
            records = ["--data", f"{site}.csv", "--target", "ill"]
            made = run("site", "init", site, "--name", site, *records, *letters)
            members += [f"--member={site}={made['key']}"]
        model = ["--model", "logistic-regression", "--prior", "prior.safetensors"]
        made = run(
            "federation", "new", "--name", "hearts", *model, *members, "--output", "federation.toml"
        )
        for sentence in made["terms"]:
            tell(f"    {sentence}")
        for site in SITES:
            run("site", "init", site, "--federation", "federation.toml")

    def start(self, site: str) -> None:
        """Start the agent of a hospital."""
        tell(f"$ posterity site run {site} &")
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        line = [sys.executable, "-m", "posterity", "site", "run", site, "--log", f"{site}.log"]
        self.agents[site] = subprocess.Popen(
            line,
            env={**os.environ, "PYTHONPATH": path, **COMPILED},
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, site: str, number: int) -> None:
        """End it by a signal."""
        agent = self.agents.pop(site)
        agent.send_signal(number)
        _, said = agent.communicate()
        if said:
            tell(said)

    def until(self, done: Callable[[dict[str, dict[str, Any]]], bool], most: float = 120.0) -> None:
        """Tell of what happens until something holds of the statuses of all that run."""
        start = time.monotonic()
        while time.monotonic() < start + most:
            self.tell_of_events()
            statuses = {site: self.status(site) for site in self.agents}
            if None not in statuses.values() and done(statuses):
                return
            time.sleep(0.2)
        raise SystemExit(f"It does not come: see the logs in {self.folder}")

    def status(self, site: str) -> dict[str, Any] | None:
        if self.agents[site].poll() is not None:
            raise SystemExit(f"The agent of {site} ended: {self.agents[site].communicate()}")
        with contextlib.suppress(PosterityError), Client(f"{site}/site.sock") as client:
            return client.ask("status")[0]
        return None

    def new_lines(self, site: str) -> list[dict[str, Any]]:
        """The events that the agent of a hospital has written since."""
        log = Path(f"{site}.log")
        lines = log.read_text().split("\n") if log.exists() else [""]
        new, self.read[site] = lines[self.read[site] : -1], len(lines) - 1
        return [json.loads(line) | {"of": site} for line in new]

    def tell_of_events(self) -> None:
        """Tell of what has happened since, in the order in which it did."""
        events = [event for site in SITES for event in self.new_lines(site)]
        for event in sorted(events, key=lambda event: event["time"]):
            if said := in_words(event["of"], event):
                tell(said)

    def kill_at_its_visit(self, site: str, epoch: int) -> None:
        """Kill an agent as soon as it has answered a token of an epoch."""
        mark = f'"token": [{epoch},'
        while mark not in Path(f"{site}.log").read_text():
            time.sleep(0.002)
        self.end(site, signal.SIGKILL)
        tell(f"$ kill -9 the agent of {site}")


def in_words(site: str, event: dict[str, Any]) -> str | None:
    """An event of an agent as a sentence; None for those that are not told."""
    match event["event"]:
        case "started":
            return f"  {site} runs (start {event['number']})"
        case "begun":
            return f"  {site} begins epoch {event['epoch'][0]} at the prior"
        case "updated" | "entered":
            number, _, sequence, _ = event["token"]
            moved = "" if event.get("change") is None else f", moved by {event['change']:.2g} nats"
            token = f"token {number}.{sequence + 1} for {event['to']}"
            return f"  {site} improves its factor{moved}: {token}"
        case "rests":
            return f"  {site} has asked all: converged, the token rests"
        case "certified":
            return f"  {site} knows of the certificate: {event['left']:.2g} nats left to change"
        case "unreachable":
            return f"  {site} cannot reach {event['site']}: the token stays in its outbox"
        case "reached":
            return f"  {site} reaches {event['site']} again"
        case "forgotten":
            return f"  {site} has the tombstone of {event['site']}: no older token counts any more"
    return None


def converged(epoch: int) -> Callable[[dict[str, dict[str, Any]]], bool]:
    """Whether all know that an epoch as high has converged."""
    return lambda statuses: all(
        s["epoch"][0] >= epoch and s["posterior"]["state"] == "converged" for s in statuses.values()
    )


def score(file: str, patients: dict[str, Split]) -> str:
    """How well a posterior predicts patients whom no hospital has shown."""
    mean = np.asarray(posterity.load(file).mean)
    hits = [((split.x_test @ mean > 0) == split.y_test) for split in patients.values()]
    return f"{np.concatenate(hits).mean():.1%} of {sum(map(len, hits))} held-out patients"


def never_there(patients: dict[str, Split]) -> float:
    """Nats between what is left and a federation in one process of those who stay."""
    data = {s: (each.x_train, each.y_train) for s, each in patients.items() if s != GONE}
    prior = posterity.load("prior.safetensors")
    posterity.save(
        posterity.federate(data, LogisticRegression(), prior).posterior, "never.safetensors"
    )
    return run("diff", "left.safetensors", "never.safetensors")["kl_ab"]


def story(hospitals: Hospitals) -> None:
    patients = prepare(heart_disease())
    tell("Four hospitals make their keys, and agree.")
    hospitals.make(patients)
    tell()
    tell("Each runs its agent; a token walks until all are content.")
    for site in SITES:
        hospitals.start(site)
    hospitals.until(lambda statuses: len(statuses) == len(SITES))
    run("site", "begin", SITES[0])
    hospitals.until(converged(1))
    run("site", "result", SITES[0], "--output", "before.safetensors")
    tell(f"  The posterior tells {score('before.safetensors', patients)} right.")
    tell()
    tell(f"A new epoch, and {LATE} is killed (SIGKILL) once it has the token.")
    run("site", "begin", SITES[0])
    hospitals.kill_at_its_visit(LATE, 2)
    time.sleep(3.0)
    hospitals.tell_of_events()
    killed = time.monotonic()
    hospitals.start(LATE)
    hospitals.until(lambda statuses: len(statuses) == len(SITES))
    tell(f"  {LATE} was back {time.monotonic() - killed:.1f} s after its start.")
    hospitals.until(converged(2))
    run("site", "result", SITES[0], "--output", "again.safetensors")
    apart = run("diff", "before.safetensors", "again.safetensors")
    tell(
        f"  {apart['kl_ab']:.1g} nats from the posterior before: nothing was lost or counted twice."
    )
    tell()
    tell(f"{GONE} is forgotten: its factor is destroyed, and all messages that hold it.")
    run("site", "forget", GONE, "--yes")
    hospitals.until(lambda statuses: all(s["forgotten"] == [GONE] for s in statuses.values()))
    hospitals.end(GONE, signal.SIGTERM)
    hospitals.until(converged(3))
    run(
        "site",
        "result",
        SITES[0],
        "--output",
        "left.safetensors",
        "--certificate",
        "certificate.json",
    )
    tell(f"  What is left tells {score('left.safetensors', patients)} right.")
    tell(f"  {never_there(patients):.1g} nats from a federation that never had {GONE}.")
    tell()
    tell("An auditor checks that, with no word of any hospital but what it has signed.")
    for line in (["certificate.json"], ["audit.json"]):
        if line == ["audit.json"]:
            run("site", "audit", SITES[0], "--output", "audit.json")
        done = run("verify", *line, "--federation", "federation.toml")
        tell(f"  {done['headline']}")
        for claim in done["claims"]:
            tell(f"    - {claim}")
        tell(f"  {done['statement']}")
    for site in list(hospitals.agents):
        hospitals.end(site, signal.SIGTERM)
    tell()
    tell(f"Done. Folders, stores, logs and the certificate are in {hospitals.folder}")


@contextlib.contextmanager
def carried(folder: Path) -> Iterator[None]:
    """What carries letters, as long as a block lasts: nothing where sockets do."""
    if ENGINE != "nvflare":
        yield
        return
    tell("NVFlare: a server, a client for each hospital, certificates, and a job for letters.")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    nvflare = NVFlare(folder / "nvflare", SITES, {**os.environ, "PYTHONPATH": path})
    nvflare.provision()
    nvflare.start({site: folder / site for site in SITES})
    tell("$ posterity federation submit nvflare/kits/hearts/prod_00/admin@hearts.org &")
    with nvflare.carrying():
        tell()
        yield


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "posterity-deploy").resolve()
    mark = folder / "of-the-demo"
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not empty and not mark.exists():
        sys.exit(f"{folder} is not of an earlier run: delete it yourself, or name a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.touch()
    os.chdir(folder)
    jax.config.update("jax_compilation_cache_dir", "compiled")
    hospitals = Hospitals(folder)
    try:
        with carried(folder):
            story(hospitals)
    finally:
        for agent in hospitals.agents.values():
            agent.kill()


if __name__ == "__main__":
    main()
