"""Letters of every kind, as sites wrote them, for what they come to when they are altered."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.faults import KEYS, PRIOR, SITES
from posterity.engine.agreement import Terms
from posterity.engine.log import Tree
from posterity.engine.machine import Machine
from posterity.engine.memory import Memory, Step
from posterity.engine.messages import Letter, Notice
from posterity.engine.notices import read
from posterity.engine.signing import Envelope
from posterity.engine.star import Server
from posterity.families import DiagonalGaussian
from posterity.federation import Site


class World:
    """Sites in one process, and letters of every kind that they wrote, each with whom it came to.

    The walk of ``kind`` coins or logistic ends by a certificate; in a star "a" is the server.
    """

    def __init__(self, kind: str):
        options: dict[str, Any] = {
            "model": "beta-bernoulli",
            "prior": PRIOR,
            "members": {site: str(KEYS[site].public) for site in SITES},
            "limits": {"bytes": 200_000},
        }
        if kind == "star":
            options |= {"server": "a", "schedule": {"kind": "synchronous"}}
        if kind == "logistic":
            prior = DiagonalGaussian.from_standard(np.zeros(2), np.ones(2))
            options |= {"prior": prior, "model": "logistic-regression"}
        self.terms, rng = Terms.of(kind, **options), np.random.default_rng(0)
        agreement, self.machines, self.memories = self.terms.agreement, {}, {}
        for n, site in enumerate(SITES):
            y = np.arange(6 + n) % 2
            data = (rng.normal(size=(len(y), 2)), y * 1.0) if kind == "logistic" else y
            machine = Server if kind == "star" and site == "a" else Machine
            own = Site.of(agreement, site, data)
            self.machines[site] = machine(self.terms, own, KEYS[site], lambda: 1e9)
            empty = Step(machine.MEMORY.empty(site)).change
            self.memories[site] = self.machines[site].load(empty.state, empty.outbox)
        self.found: dict[str, list[Case]] = {}
        self.walk("a", lambda machine, memory: machine.begin(memory))
        self.walk("c", lambda machine, memory: machine.start(memory))
        if kind == "coins":
            tree = Tree([b"one"])
            for _ in range(2):
                tree.append(b"another")
                self.walk("b", lambda machine, memory: machine.checkpoint(memory, tree))
        self.walk("d", lambda machine, memory: machine.forget(memory))

    def walk(self, site: str, act: Callable[[Any, Memory], Step], most: int = 600) -> None:
        """A command, and all that follows from it."""
        step = act(self.machines[site], self.memories[site])
        self.memories[site], waiting = step.memory, list(step.sent)
        while waiting and most:
            receiver, content = waiting.pop(0)
            most -= 1
            case = Case(self, receiver, self.memories[receiver], content)
            body: Any = case.letter.body
            notice = isinstance(body, Notice)
            kind = read(self.terms, body.content).claim if notice else type(body).__name__
            known = self.found.setdefault(kind, [])
            if len(known) < 12:
                known.append(case)
            step = self.machines[receiver].receive(case.memory, content)
            self.memories[receiver] = step.memory
            waiting += step.sent


class Case(NamedTuple):
    """A letter as it came to a site, whose memory was this."""

    world: World
    site: str
    memory: Memory
    content: bytes

    @property
    def letter(self) -> Letter:
        return Letter.from_bytes(Envelope.from_bytes(self.content).payload)

    @property
    def machine(self) -> Machine:
        return self.world.machines[self.site]
