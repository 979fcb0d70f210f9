"""Four sites with coins: machines that need no compiling, and letters between them."""

import numpy as np
from engine.keys import KEYS, PUBLIC

from posterity.artifact import digest
from posterity.engine.agreement import Terms
from posterity.engine.machine import Machine
from posterity.engine.memory import Memory, Step
from posterity.engine.messages import Letter
from posterity.engine.signing import Envelope
from posterity.families import Beta
from posterity.federation import federate
from posterity.federation.site import Site
from posterity.models import BetaBernoulli

PRIOR = Beta.from_standard(0.7, 1.3)
DATA = {site: np.random.default_rng(number).integers(0, 2, 30) for number, site in enumerate(KEYS)}


def terms(**options) -> Terms:
    members = {site: str(key) for site, key in PUBLIC.items()}
    options = {
        "model": "beta-bernoulli",
        "prior": PRIOR,
        "members": members,
        "steps": 10_000,
    } | options
    return Terms.of("coins", **options)


class Coins:
    """Machines and memories of all sites; each step is taken at once, and comes back from bytes."""

    def __init__(self, agreed: Terms | None = None, data=DATA):
        self.terms = agreed or terms()
        self.machines = {
            site: Machine(self.terms, Site.of(self.terms.agreement, site, data[site]), KEYS[site])
            for site in KEYS
        }
        self.memories = {site: Memory.empty(site) for site in KEYS}
        self.log: list[tuple[str, bytes]] = []

    def take(self, site: str, step: Step) -> Step:
        change = step.change
        self.memories[site] = Memory.from_bytes(change.state, change.outbox)
        assert self.memories[site] == step.memory
        self.log += [(site, entry) for entry in step.entries]
        return step

    def begin(self, site: str, number: int | None = None) -> Step:
        return self.take(site, self.machines[site].begin(self.memories[site], number))

    def forget(self, site: str) -> Step:
        return self.take(site, self.machines[site].forget(self.memories[site]))

    def deliver(self, site: str, content: bytes) -> Step:
        return self.take(site, self.machines[site].receive(self.memories[site], content))

    def walk(self, step: Step, letters: int) -> list:
        """Deliver so many letters, beginning with those of a step; those that are left."""
        waiting = list(step.sent)
        for _ in range(letters):
            if waiting:
                receiver, content = waiting.pop(0)
                waiting += self.deliver(receiver, content).sent
        return waiting


def opened(content: bytes) -> Letter:
    return Letter.from_bytes(Envelope.from_bytes(content).payload)


def in_process(*sites: str) -> str:
    run = federate({site: DATA[site] for site in sites}, BetaBernoulli(), PRIOR, steps=1)
    return digest(run.posterior)
