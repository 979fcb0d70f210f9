"""Real agents of four sites, killed with SIGKILL at random moments of a walk that never rests.

    python -m benchmarks.kills 50
    python -m benchmarks.kills 50 late    # of a mutant that sends first and writes later

A round kills one agent mid-walk and starts it again, lets the walk go on, and kills all four, each
at a moment of its own. Then their stores are looked at: one version of a token, its epoch and
sequence number, has one content in all logs, and the newest token is bit for bit the prior and the
factors that the sites hold. Updates are noisy, by the system's own randomness: a site that answers
a token twice gives itself away.
"""

import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import posterity
from benchmarks.faults import KEYS, PRIOR, SITES, Violation
from posterity.__main__ import main as command
from posterity.arrays.tree_sums import TreeSum
from posterity.cli.deployment import SOCKET, read_site
from posterity.engine.memory import RESTING, TOKEN, Memory, Step
from posterity.engine.messages import Letter
from posterity.engine.signing import Envelope
from posterity.engine.store import Store
from posterity.engine.transports.unix import Client
from posterity.errors import PosterityError
from posterity.families import Beta
from posterity.federation import Token
from posterity.federation.messages import Improvement
from posterity.federation.site import Site

MUTANT = "POSTERITY_WRITES_LATE"
ROOT = Path(__file__).parents[1]
FEDERATION = """
name = "coins"
steps = 1_000_000_000
model.kind = "beta-bernoulli"
prior.file = "prior.safetensors"
members = {{ {members} }}
"""
SITE = """
name = "{name}"
federation = "../federation.toml"
key = "site.key"
store = "site.db"
data.file = "records.npz"
transport.sockets = {{ {sockets} }}
"""


def agent() -> None:
    """The process of an agent whose updates are noisy."""
    exact = Site.answer

    def answer(self, question):
        found = exact(self, question)
        if not isinstance(found, Improvement):
            return found
        noise = Beta(*(1e-3 * np.random.default_rng().random(2)))
        return found.__class__(**{**vars(found), "factor": found.factor + noise})

    Site.answer = answer
    if os.environ.get(MUTANT):
        _write_late()
    sys.argv = ["posterity", "site", "run", *sys.argv[1:]]
    command()


def _write_late() -> None:
    """A store that says it has written what it writes a moment later."""
    commit, waiting = Store.commit, queue.SimpleQueue[tuple]()

    def write() -> None:
        while True:
            arguments = waiting.get()
            time.sleep(0.05)
            commit(*arguments)

    Store.commit = lambda *arguments: waiting.put(arguments)
    threading.Thread(target=write, daemon=True).start()


class Agents:
    """Four folders, and the agents that run in them."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.random = folder, random.Random(seed)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.contents: dict[tuple, str] = {}
        self.count, self.recovered = Counter[str](), list[float]()
        posterity.save(PRIOR, folder / "prior.safetensors")
        pairs = (f'"{site}" = "{key.public}"' for site, key in KEYS.items())
        (folder / "federation.toml").write_text(FEDERATION.format(members=", ".join(pairs)))
        for number, site in enumerate(SITES):
            own = folder / site
            own.mkdir(mode=0o700)
            KEYS[site].save(own / "site.key")
            x = np.random.default_rng([seed, number]).integers(0, 2, 30)
            np.savez(own / "records.npz", x=x)
            others = (f'{o} = "../{o}/{SOCKET}"' for o in SITES if o != site)
            (own / "site.toml").write_text(SITE.format(name=site, sockets=", ".join(others)))
            Store.create(own / "site.db", Step(Memory.empty(site)).change).close()

    def start(self, *sites: str) -> float:
        """Start agents; the seconds until all of them answer."""
        start = time.monotonic()
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        line = [sys.executable, "-c", "from benchmarks.kills import agent; agent()"]
        for site in sites:
            self.running[site] = subprocess.Popen(
                [*line, self.folder / site, "--log", self.folder / f"{site}.log"],
                env={**os.environ, "PYTHONPATH": path},
            )
        for site in sites:
            self.until(lambda site=site: self.answers(site))
        return time.monotonic() - start

    def kill(self, site: str) -> None:
        agent = self.running.pop(site)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        self.count["killed"] += 1

    def status(self, site: str) -> dict | None:
        try:
            with Client(self.folder / site / SOCKET) as client:
                return client.ask("status")[0]
        except PosterityError:
            return None

    def answers(self, site: str) -> bool:
        if self.running[site].poll() is not None:
            raise Violation(f"{site} does not come back: exit {self.running[site].returncode}")
        return self.status(site) is not None

    def until(self, condition, most: float = 300.0) -> None:
        deadline = time.monotonic() + most
        while not condition():
            if time.monotonic() > deadline:
                raise Violation("the walk does not go on")
            time.sleep(0.02)

    def walks_on(self) -> None:
        """Wait until the token has been at every site since now."""
        logs = {site: (self.status(site) or {"log": 0})["log"] for site in SITES}
        self.until(lambda: all((self.status(s) or {"log": 0})["log"] > n for s, n in logs.items()))

    def round(self) -> None:
        self.walks_on()
        victim = self.random.choice(SITES)
        time.sleep(self.random.uniform(0.0, 0.3))
        self.kill(victim)
        self.recovered.append(self.start(victim))
        self.walks_on()
        for site in self.random.sample(SITES, len(SITES)):
            time.sleep(self.random.uniform(0.0, 0.1))
            self.kill(site)
        self.check()

    def check(self) -> None:
        """What the stores hold, once nobody runs."""
        tokens, own = dict[tuple, Token](), {}
        for site in SITES:
            machine = read_site(self.folder / site / "site.toml").machine()
            with Store(self.folder / site / "site.db") as store:
                memory = machine.load(store.state, store.outbox)
                for line in map(json.loads, store.entries()):
                    self.note(line)
            own[site] = memory.own
            for place in {TOKEN, RESTING} & memory.outbox.keys():
                envelope = Envelope.from_bytes(memory.outbox[place].content)
                token = Letter.from_bytes(envelope.payload).body
                assert isinstance(token, Token)
                self.same((token.epoch, token.sequence), token.digest)
                tokens[token.epoch, token.sequence] = token
        (epoch, _), newest = max(tokens.items(), key=lambda pair: pair[0])
        counted = [each.entry.factor for each in own.values() if each.epoch == epoch]
        if TreeSum.of([PRIOR, *counted]) != newest.exact_sum:
            raise Violation("the newest token is not the prior and the factors that sites hold")
        self.count["rounds"] += 1

    def note(self, line: dict) -> None:
        if "answer" in line:
            number, who, sequence, digest = line["token"]
            self.same(((number, who), sequence), digest)
            self.same(((number, who), sequence + 1), line["answer"])

    def same(self, version: tuple, digest: str) -> None:
        if self.contents.setdefault(version, digest) != digest:
            raise Violation(f"two contents of {version}")


def campaign(kills: int, seed: int = 0) -> Agents:
    """So many kills of agents, and what came of them; a Violation if a promise is broken."""
    with tempfile.TemporaryDirectory() as folder:
        agents = Agents(Path(folder), seed)
        try:
            agents.start(*SITES)
            with Client(agents.folder / "a" / SOCKET, timeout=60.0) as client:
                client.ask("begin")
            while agents.count["killed"] < kills:
                agents.round()
                if agents.count["killed"] < kills:
                    agents.start(*SITES)
        finally:
            for process in agents.running.values():
                process.kill()
                process.wait()
        return agents


def main() -> None:
    start = time.monotonic()
    os.environ[MUTANT] = "1" if "late" in sys.argv else ""
    done = campaign(int(sys.argv[1]))
    times = sorted(done.recovered)
    print(
        f"{done.count['killed']} kills, {len(done.contents)} tokens, 0 violations; answered again "
        f"after {times[len(times) // 2]:.1f} s (median), {times[-1]:.1f} s (most); "
        f"{time.monotonic() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
