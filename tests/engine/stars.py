"""A star in one process: the real machines, and letters between them over the memory transport."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from engine.coins import PRIOR

from benchmarks.network import Faults, Network
from posterity.engine.agreement import Terms
from posterity.engine.machine import Machine
from posterity.engine.memory import Memory, Step
from posterity.engine.signing import PrivateKey
from posterity.engine.star import Server
from posterity.federation.site import Site

SITES = ("a", "b", "c", "d")
KEYS = {name: PrivateKey(bytes([n + 1]) * 32) for n, name in enumerate((*SITES, "server"))}
COINS = {name: np.random.default_rng(n).integers(0, 2, 30) for n, name in enumerate(SITES)}
FAULTS = Faults(drop=0.2, duplicate=0.2, flip=0.05, misdeliver=0.05, delay=3.0)
LONG = 20_000


def terms(kind: str = "sequential", **options: Any) -> Terms:
    options = {
        "model": "beta-bernoulli",
        "prior": PRIOR,
        "members": {name: str(key.public) for name, key in KEYS.items()},
        "schedule": {"kind": kind},
        "server": "server",
    } | options
    return Terms.of("star", **options)


class Star:
    """Machines and memories of a server and its sites.

    With ``killed`` a process ends after each of its steps, and the next one goes on from bytes; in
    that share of cases it ends before the step was written, and nothing was sent.
    """

    def __init__(
        self,
        agreed: Terms,
        data: Mapping[str, Any] = COINS,
        faults: Faults | None = None,
        killed: float | None = None,
        seed: int = 0,
    ):
        self.terms, self.killed, self.rng = agreed, killed, np.random.default_rng(seed)
        self.machines, self.memories = {}, {}
        silent = {"server": np.zeros(0)}
        for name in agreed.members:
            kind = Server if name == agreed.server else Machine
            site = Site.of(agreed.agreement, name, (silent | dict(data))[name])
            self.machines[name] = kind(agreed, site, KEYS[name])
            self.memories[name] = self.loaded(name, Step(kind.MEMORY.empty(name)))
        self.network = Network(agreed.members, faults, seed=seed)
        self.log: list[tuple[str, dict]] = []

    def loaded(self, name: str, step: Step) -> Memory:
        change = step.change
        return self.machines[name].load(change.state, change.outbox)

    def take(self, name: str, step: Step) -> Step:
        if self.killed is not None and self.rng.random() < self.killed:
            return step
        self.memories[name] = step.memory if self.killed is None else self.loaded(name, step)
        self.log += [(name, json.loads(entry)) for entry in step.entries]
        self.network.send(name, step.sent)
        return step

    def command(self, name: str, command: str, *arguments: Any, **options: Any) -> Step:
        killed, self.killed = self.killed, None
        method = getattr(self.machines[name], command)
        step = self.take(name, method(self.memories[name], *arguments, **options))
        self.killed = killed
        return step

    def deliver(self, name: str, content: bytes) -> Step:
        return self.take(name, self.machines[name].receive(self.memories[name], content))

    def send(self, sender: str, receiver: str, body: Any) -> Step:
        """Deliver a letter that a member's software would not write."""
        machine, memory = self.machines[sender], self.memories[sender]
        return self.deliver(receiver, machine._sealed(memory, receiver, body).content)

    def run(self, most: int = LONG, deaf: tuple[str, ...] = ()) -> None:
        """Deliver letters until the server rests, and nobody has anything to say any more."""
        for now in range(1, most):
            for name, content in self.network.arrived(now):
                if name not in deaf:
                    self.deliver(name, content)
            waiting = any(memory.outbox for memory in self.memories.values())
            if self.course.phase == "rest" and not waiting:
                return
            if now % 15 == 0:
                for name, memory in self.memories.items():
                    self.network.send(name, self.machines[name].resend(memory))

    @property
    def course(self) -> Any:
        memory: Any = self.memories["server"]
        return memory.course

    def reasons(self, name: str = "server") -> list[str]:
        entries = [entry for who, entry in self.log if who == name]
        return [entry["reason"] for entry in entries if entry["event"] == "refused"]
