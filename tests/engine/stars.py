"""A star in one process: the real machines, each step from bytes, over the memory transport."""

import json
from collections.abc import Mapping
from typing import Any

from posterity.engine.agreement import Terms
from posterity.engine.machine import Machine, Memory, Step
from posterity.engine.signing import PrivateKey
from posterity.engine.star import Server
from posterity.engine.transports.memory import Faults, Network
from posterity.federation.site import Site

HOUR = 10_000


def keys_of(names: Any) -> dict[str, PrivateKey]:
    return {name: PrivateKey(bytes([number + 1]) * 32) for number, name in enumerate(sorted(names))}


class Star:
    """Machines and memories of a server and its sites; each memory comes back from bytes."""

    def __init__(
        self, terms: Terms, data: Mapping[str, Any], faults: Faults | None = None, seed: int = 0
    ):
        self.terms, self.keys = terms, keys_of(terms.members)
        self.machines, self.memories = {}, {}
        for name in terms.members:
            kind = Server if name == terms.server else Machine
            site = Site.of(terms.agreement, name, data[name])
            self.machines[name] = kind(terms, site, self.keys[name])
            self.memories[name] = self.load(name, Step(Memory.empty(name)).change)
        self.network = Network(terms.members, faults, seed=seed)
        self.log: list[tuple[str, dict]] = []
        self.killed = False
        """Whether each process ends after each step, and the next one goes on from the disk."""

    def load(self, name: str, change: Any) -> Memory:
        return self.machines[name].load(change.state, change.outbox, change.parts)

    def take(self, name: str, step: Step) -> Step:
        change = step.change
        self.memories[name] = self.load(name, change) if self.killed else step.memory
        self.log += [(name, json.loads(entry)) for entry in step.entries]
        self.network.send(name, step.sent)
        return step

    def command(self, name: str, command: str, *arguments: Any, **options: Any) -> Step:
        method = getattr(self.machines[name], command)
        return self.take(name, method(self.memories[name], *arguments, **options))

    @property
    def course(self) -> Any:
        return self.memories[self.terms.server].course

    def deliver(self, name: str, content: bytes) -> Step:
        return self.take(name, self.machines[name].receive(self.memories[name], content))

    def run(self, most: int = HOUR, deaf: tuple[str, ...] = ()) -> None:
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

    def reasons(self) -> list[str]:
        return [entry["reason"] for _, entry in self.log if entry["event"] == "refused"]
