"""Four sites with real stores, keys and configurations, whose letters are delivered in turn."""

import json
import shutil
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

from engine.folders import SITES, make

from posterity.cli.deployment import SiteFiles, configuration, read_site, read_terms
from posterity.engine.agent import Agent
from posterity.engine.agreement import Terms
from posterity.engine.messages import Acknowledgement, Letter
from posterity.engine.signing import PrivateKey
from posterity.engine.store import Outgoing, Store

OFFICER = PrivateKey(b"o" * 32)


class Town:
    """The agents of the sites that run, and the letters on their way."""

    def __init__(self, folder: Path, *options: str, run: Collection[str] = SITES):
        make(folder, f"--authority=officer={OFFICER.public}", *options)
        self.folder, self.agents = folder, dict[str, Agent]()
        self.letters = deque[Outgoing]()
        for site in run:
            self.start(site)

    @property
    def terms(self) -> Terms:
        """The terms, without any change of a key."""
        return read_terms(self.folder / "federation.toml")

    def files(self, site: str) -> SiteFiles:
        return read_site(configuration(self.folder / site))

    def start(self, site: str) -> Agent:
        files = self.files(site)
        store = Store(files.store)
        self.agents[site] = agent = Agent(files.machine(store), store)
        self.command(site, "start")
        return agent

    def stop(self, site: str) -> None:
        self.agents.pop(site).store.close()

    def restart(self, site: str) -> Agent:
        self.stop(site)
        return self.start(site)

    def command(self, site: str, do: str, **options: Any) -> None:
        command = getattr(self.agents[site].machine, do)
        self.send(self.agents[site].command(lambda memory: command(memory, **options)))

    def send(self, letters: Collection[Outgoing]) -> None:
        self.letters += letters

    def rotate(self, site: str) -> PrivateKey:
        """Make a new key and announce it; the agent has to be started again."""
        key = PrivateKey.generate()
        key.save(self.files(site).next_key)
        self.command(site, "rotate", key=str(key.public))
        return key

    def run(self, rounds: int = 12, most: int = 4000) -> None:
        """Deliver letters, and those again that are not acknowledged."""
        for _ in range(rounds):
            for _ in range(most):
                if not self.letters:
                    break
                receiver, content = self.letters.popleft()
                if receiver in self.agents:
                    self.send(self.agents[receiver].receive(content))
            assert not self.letters, "letters without an end"
            for agent in self.agents.values():
                self.send([m for m in agent.resend() if m.receiver in self.agents])
            if not self.letters:
                return
        self.letters.clear()

    def deliver(self, site: str, content: bytes) -> list[dict]:
        """Deliver a letter, and the answers to it; what the receiver then logs."""
        before = len(self.agents[site].store.log)
        self.send(self.agents[site].receive(content))
        lines = self.agents[site].store.entries(before)
        self.run()
        return [json.loads(line) for line in lines]

    def letter(self, sender: str, receiver: str, body: Any, key: PrivateKey) -> bytes:
        memory = self.agents[receiver].memory
        gone = tuple(sorted(memory.gone))
        return Letter(self.terms.digest, sender, receiver, memory.highest, gone, body).sealed(key)

    def converged(self, sites: Collection[str] = SITES) -> bool:
        """Whether all of these know the same posterior to have converged, and count in it."""
        agents = [self.agents[site] for site in sites]
        done = all(a.machine.status(a.memory).converged and a.memory.own.counted for a in agents)
        certificates = {a.memory.certificate and a.memory.certificate.digest for a in agents}
        return done and len(certificates) == 1

    def events(self, site: str) -> list[dict]:
        return [json.loads(entry) for entry in self.agents[site].store.entries()]

    def copy(self, site: str, name: str) -> Path:
        """A backup of the folder of a site that does not run."""
        return Path(shutil.copytree(self.folder / site, self.folder / name))


NOTHING = Acknowledgement("")
