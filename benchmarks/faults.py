"""Seeded runs of durable sites under faults, and mutants of them that must be caught.

    python -m benchmarks.faults RUNS            # of the machine as it is
    python -m benchmarks.faults RUNS silent     # with members that are silent, and a quorum
    python -m benchmarks.faults RUNS mutants    # of each mutant, until one run catches it

A run is a federation of four sites, each with the real machine and a real store on disk, over a
network that drops, doubles, delays, reorders, alters and misdelivers letters, and is parted at
times. Sites are killed before and after their writes, lose power and whole disks; clocks jump;
stores are restored from older copies, of one site or of two at once, also of who was forgotten;
epochs are begun at once, sites are forgotten and join late; strangers and faulty members send
tokens. Members witness each other's logs. Half of the runs have noisy updates: a site that answers
twice then gives itself away. After a while the faults end, and within a limit the walk has to come
to rest. What is checked, of every letter and after every run, is said in :class:`World`.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar
from unittest import mock

import numpy as np

from benchmarks.network import Faults, Network
from experiments import provenance
from posterity.arrays.tree import leaves
from posterity.arrays.tree_sums import TreeSum
from posterity.artifact import digest
from posterity.artifact.artifact import from_bytes
from posterity.engine import admission, log, member, messages
from posterity.engine.agent import Agent
from posterity.engine.agreement import Terms
from posterity.engine.audit import audit_certificate, audit_log
from posterity.engine.log import Tree, TreeHead, key_name
from posterity.engine.machine import UNSEALED, Machine
from posterity.engine.memory import RESTING, TOKEN, Memory, Step
from posterity.engine.messages import Letter, Notice
from posterity.engine.notices import read
from posterity.engine.refusal import Refusal
from posterity.engine.signing import MESSAGE, Envelope, PrivateKey
from posterity.engine.star import Server
from posterity.engine.store import Change, Outgoing, Store
from posterity.errors import ArtifactError, PosterityError
from posterity.families import Beta
from posterity.federation import Token, federate
from posterity.federation.messages import Improvement
from posterity.federation.site import Site
from posterity.models import BetaBernoulli

SITES = ("a", "b", "c", "d")
KEYS = {site: PrivateKey(bytes([number]) * 32) for number, site in enumerate(SITES)}
PRIOR = Beta.from_standard(0.7, 1.3)
FAULTS = Faults(drop=0.2, duplicate=0.15, flip=0.02, misdeliver=0.02, straggle=0.05, delay=3.0)
CALM = Faults(delay=1.0)
ROUGH, LIMIT = 150, 1500  # ticks after which faults end, and by which a run must have come to rest
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where stores lie: what is tested is the order of writes, not how fast a disk is."""
RESULTS = Path(__file__).parent / "results"
DISASTERS = (
    "forget",
    "disk",
    "epoch",
    "race",
    "partition",
    "clock",
    "power",
    "respelled",
    "forged",
)


class Violation(AssertionError):
    """A run that broke what the machine promises."""


class Killed(Exception):
    """The process of a site is gone."""


def terms_of(links: list[list[str]] | None, **options) -> Terms:
    """Four sites, all linked or in a ring."""
    return Terms.of(
        "coins",
        model="beta-bernoulli",
        prior=PRIOR,
        members={site: str(KEYS[site].public) for site in SITES},
        links=links,
        **options,
    )


RING = [["a", "b"], ["b", "c"], ["c", "d"], ["a", "d"]]
ENDLESS = {"steps": 1_000_000}
IN_ORDER = terms_of(None, schedule={"kind": "sequential"}, **ENDLESS)
"""Nobody who sends a site the token has had it from the site, so only its seal tells it."""
TERMS = (
    terms_of(None),
    terms_of(RING, **ENDLESS),
    terms_of(None, schedule={"kind": "sequential"}),
    terms_of(RING),
    terms_of(None, **ENDLESS),
)
"""All linked or in a ring, at random or in order, until it has converged or without an end."""


@dataclasses.dataclass(frozen=True)
class Noisy(Site):
    """A site whose answers depend on when it is asked: none is ever given twice."""

    source: np.random.Generator = dataclasses.field(default_factory=np.random.default_rng)

    def answer(self, question):
        answer = super().answer(question)
        if isinstance(answer, Improvement):
            noise = Beta(*(1e-3 * self.source.random(2)))
            return dataclasses.replace(answer, factor=answer.factor + noise)
        return answer


class Disk(Store):
    """A store that is killed before or after its next commit, if that is its fate."""

    fate: str | None = None
    forced = 0

    @property
    def wal(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    def commit(self, change: Change) -> None:
        if self.fate != "before":
            self.forced = self.wal.stat().st_size if self.wal.exists() else 0
            super().commit(change)
        if self.fate in ("before", "after"):
            self.close()
            raise Killed

    def lose_power(self) -> None:
        """Commits that were not forced to disk are gone: here the last pages of SQLite's log."""
        forced = self._one("pragma synchronous")[0] >= 2
        log, database = self.wal.read_bytes(), self.path.read_bytes()
        self.close()
        if not forced:
            self.path.write_bytes(database)
            self.wal.write_bytes(log[: self.forced])


@dataclasses.dataclass(frozen=True)
class Kinds:
    """What a run is made of; a mutant has something else in one place."""

    machine: type[Machine] = Machine
    server: type[Server] = Server
    terms: tuple[Terms, ...] = TERMS
    disk: type[Disk] = Disk
    agent: type[Agent] = Agent
    floor: bool = True  # whether a store that begins empty is fenced at the epoch that lets it in
    patches: tuple[Callable[[], object], ...] = ()


class World:
    """A federation in one process. It checks of every letter that is sent, and at the end:

    * One version of a token, its epoch and sequence number, has one content, ever; but who was
      restored may answer again what it does not know that it answered.
    * Every token is, bit for bit, the prior and one factor of each site that it has visited.
    * Every token that a site answered is one that a site sent, to it.
    * The newest token is, bit for bit, the prior and the factors that the sites hold.
    * Where updates are exact it is what `federate` gives in process for the sites that stay.
    * Of who was forgotten no factor is left, neither in a store's files nor in a waiting letter,
      nor a notice of a posterior with it. No file of it waits any more, and no token of it counts.
    * Who was forgotten learns it when it is back, also from an older copy.
    * The log of a site continues the checkpoint that an auditor kept, except after a restoration;
      then it holds for an auditor if and only if it continues what the others cosigned.
    * Who has its store cosigns of a log only what continues what it cosigned before.
    * The walk reaches all who stay, once faults have ended, and all know that it converged.
    """

    usual: ClassVar[Kinds] = Kinds()  # what a run without a defect is made of

    def __init__(self, seed: int, folder: Path, kinds: Kinds):
        self.rng, self.folder, self.kinds = np.random.default_rng([seed, 1]), folder, kinds
        self.noisy, self.terms = bool(seed % 2), kinds.terms[seed // 2 % len(kinds.terms)]
        self.data = {site: self.rng.integers(0, 2, self.rng.integers(1, 40)) for site in SITES}
        self.network = Network(SITES, FAULTS, seed=seed)
        self.agents: dict[str, Agent] = {}
        self.tokens: dict[tuple, Token] = {}
        self.receivers: dict[str, set[str]] = {}
        self.checkpoints: dict[str, TreeHead] = {}
        self.heard, self.gone, self.alarm = 1, set[str](), dict.fromkeys(SITES, 15)
        self.count: Counter[str] = Counter()
        self.held: dict[str | None, dict] = {}
        self.broken_logs = set[str]()  # of who lost a store, or was restored
        self.cosigned: dict[tuple[str, str], TreeHead] = {}
        self.past, self.restored = np.random.default_rng([seed, 2]), set[str]()
        self.late = str(self.rng.choice(SITES[1:])) if self.rng.random() < 0.3 else None
        for site in SITES:
            if site != self.late:
                self.create(site, 0)

    # --- sites -----------------------------------------------------------------------------------

    def create(self, site: str, epoch: int) -> None:
        path = self.folder / f"{site}.db"
        for file in self.folder.glob(f"{site}.db*"):
            file.unlink()
            self.broken_logs.add(site)
        memory = self.kind(site).MEMORY.empty(site, epoch if self.kinds.floor else 0)
        self.kinds.disk.create(path, Step(memory).change).close()
        self.checkpoints.pop(site, None)
        self.open(site)

    def copy(self, site: str) -> None:
        """Keep a copy of a store, as a backup does, or a snapshot of its machine."""
        for file in self.folder.glob(f"{site}.db*"):
            shutil.copy(file, self.folder / f"copy of {file.name}")

    def restore(self, site: str) -> None:
        """The store is replaced by its copy; a restored machine does not notice it."""
        copies = [*self.folder.glob(f"copy of {site}.db*")]
        if not copies:
            return
        self.agents[site].store.close()
        for file in self.folder.glob(f"{site}.db*"):
            file.unlink()
        for file in copies:
            shutil.copy(file, file.with_name(file.name.removeprefix("copy of ")))
        self.checkpoints.pop(site, None)
        self.restored.add(site)
        self.broken_logs.add(site)
        self.count["restored"] += 1
        self.open(site)
        if self.past.random() < 0.7:
            self.start(site)

    def start(self, site: str) -> None:
        self.act(site, lambda agent: agent.command(agent.machine.start))

    def publish(self, site: str) -> None:
        """A site asks the others to sign for its log."""
        self.act(
            site,
            lambda agent: agent.command(lambda m: agent.machine.checkpoint(m, agent.store.log)),
        )

    def open(self, site: str) -> None:
        record = Site.of(self.terms.agreement, site, self.data[site])
        if self.noisy:
            record = Noisy(site, self.terms.agreement, record.records, self.rng)
        store = self.kinds.disk(self.folder / f"{site}.db")
        machine = self.kind(site)(self.terms, record, KEYS[site])
        self.agents[site] = self.kinds.agent(machine, store)

    def kind(self, site: str) -> type[Machine]:
        return self.kinds.server if site == self.terms.server else self.kinds.machine

    def act(self, site: str, action: Callable[[Agent], tuple[Outgoing, ...]], fate=None) -> None:
        """One step of a site, killed at its write if that is its fate; what it says is sent."""
        agent = self.agents.get(site)
        if agent is None:
            return
        agent.store.fate, known = fate, agent.memory.gone
        try:
            sent = action(agent)
        except Killed:
            self.count[f"killed {fate} a write"] += 1
            self.send(site, getattr(agent, "said", ()))
            self.open(site)
            self.note_waiting(self.agents[site])
            return
        except Refusal:
            agent.store.fate, self.count["commands refused"] = (
                None,
                self.count["commands refused"] + 1,
            )
            return
        agent.store.fate = None
        self.send(site, sent)
        self.note_waiting(agent)
        if agent.memory.gone != known:
            self.check_forgotten(site, agent)
        if fate == "power":
            self.count["lost power"] += 1
            agent.store.lose_power()
            self.open(site)

    def send(self, site: str, sent: Iterable[Outgoing]) -> None:
        for message in sent:
            letter = Letter.from_bytes(Envelope.from_bytes(message.content).payload)
            self.heard = max(self.heard, letter.highest)
            if isinstance(letter.body, Token):
                self.note(letter.body, message.receiver)
        self.network.send(site, sent)

    def note_waiting(self, agent: Agent) -> None:
        """A token that rests, or that its site was killed before it sent, has one content too."""
        for place in (RESTING, TOKEN):
            message = agent.memory.outbox.get(place)
            if message is not None:
                self.note(messages.body_of(message.content), message.receiver)

    def note(self, token: Token, receiver: str) -> None:
        version = (token.epoch, token.sequence)
        if self.tokens.setdefault(version, token).digest != token.digest:
            if token.sender not in self.restored:
                raise Violation(f"two contents of {version}")
            self.tokens[version] = token
        if token.digest not in self.receivers:
            self.check_sum(token)
        self.receivers.setdefault(token.digest, set()).add(receiver)

    def check_sum(self, token: Token) -> None:
        own = self.agents[str(token.sender)].memory.own
        held = {} if token.sequence == 1 else self.held.get(token.previous)
        if held is None or (own.epoch, own.answered + 1) != (token.epoch, token.sequence):
            return  # its site took another step at once
        held = {**held, own.name: own.entry and own.entry.factor if own.counted else None}
        self.held[token.digest] = held
        if TreeSum.of([PRIOR, *(f for f in held.values() if f is not None)]) != token.exact_sum:
            raise Violation(f"a token of {token.sender} is not the prior and factors of sites")

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        rough = now < ROUGH
        if now == ROUGH:
            self.network.faults, self.network.partition = CALM, frozenset()
        for site, content in self.network.arrived(now):
            fates = [None, "before", "after", "power"]
            fate = self.rng.choice(fates, p=[0.88, 0.05, 0.05, 0.02]) if rough else None
            self.receive(site, content, fate)
        for site in SITES:
            if now >= self.alarm[site]:
                self.alarm[site] = now + 15
                self.act(site, lambda agent: agent.resend())

    def receive(self, site: str, content: bytes, fate: str | None) -> None:
        self.act(site, lambda agent: agent.receive(content), fate)

    def disaster(self, what: str, now: int) -> None:
        self.count[what] += 1
        stay = [site for site in SITES if site not in self.gone and site in self.agents]
        site, other = map(str, self.rng.choice(stay, 2, replace=False))
        if what == "forget":
            self.forget(site)
            self.begin(other)
        elif what == "disk":
            self.agents[site].store.close()
            self.let_in(site, other)
        elif what == "epoch":
            self.begin(site)
        elif what == "race":
            number = self.agents[site].memory.highest + 1
            for each in (site, other):
                self.begin(each, number)
        elif what == "partition":
            self.network.partition = frozenset([site, other]) - self.network.partition
        elif what == "clock":
            self.alarm[site] = now + int(self.rng.choice([-1000, 40]))
        elif what == "power":
            self.begin(site, fate="power")
        elif what == "respelled":
            self.respell(now)
        elif what == "forged":
            self.forge(site, other, now)

    def forget(self, site: str) -> None:
        """The factor is gone; where updates are noisy its bytes are like no others."""
        entry = self.agents[site].memory.own.entry
        held = [] if entry is None else [leaf.tobytes() for leaf in leaves(entry.factor)]
        self.act(site, lambda agent: agent.command(agent.machine.forget))
        self.gone.add(site)
        files = [file.read_bytes() for file in self.folder.glob(f"{site}.db*")]
        if self.noisy and any(piece in content for piece in held for content in files):
            raise Violation(f"a factor that was forgotten is in the files of {site}")

    def forget_again(self) -> None:
        """An order to forget that reached nobody before its site was restored is given again."""
        for site in sorted(self.gone):
            if not any(site in agent.memory.gone for agent in self.agents.values()):
                self.forget(site)

    def begin(self, site: str, number: int | None = None, fate: str | None = None) -> None:
        self.act(site, lambda agent: agent.command(lambda m: agent.machine.begin(m, number)), fate)

    def let_in(self, site: str, other: str) -> None:
        """A site with an empty store takes part from an epoch on that is begun for it."""
        number = 1 + max(self.heard, *(agent.memory.highest for agent in self.agents.values()))
        self.create(site, number)
        self.begin(other, number)

    def respell(self, now: int) -> None:
        """A member's faulty software sends its newest token as a sum of another form."""
        for site, agent in self.agents.items():
            waiting = agent.memory.outbox.get(TOKEN)
            if waiting is not None:
                letter = Letter.from_bytes(Envelope.from_bytes(waiting.content).payload)
                layers = letter.body.exact_sum.layers
                other = TreeSum((*layers, layers[0].zero()))
                body = dataclasses.replace(letter.body, exact_sum=other)
                content = dataclasses.replace(letter, body=body).sealed(KEYS[site])
                self.network.put(waiting.receiver, content, now)

    def forge(self, site: str, other: str, now: int) -> None:
        """A stranger sends a token in the name of a member."""
        total = TreeSum.of([PRIOR, Beta(5.0, 5.0)])
        token = Token(self.terms.digest, (self.heard + 1, site), 1, total, site, None)
        letter = Letter(self.terms.digest, site, other, self.heard + 1, (), token)
        self.network.put(other, letter.sealed(PrivateKey(b"?" * 32)), now)

    def haunt(self, now: int) -> None:
        """Who was forgotten, and knows all tombstones, sends a token to who knows that it was."""
        knows = (s for s in self.staying() if self.gone & self.agents[s].memory.gone)
        for other in knows:
            gone = self.agents[other].memory.gone
            site = min(self.gone & gone)
            total, number = TreeSum.of([PRIOR, Beta(5.0, 5.0)]), self.heard + 1
            token = Token(self.terms.digest, (number, site), 1, total, site, None)
            letter = Letter(self.terms.digest, site, other, number, tuple(sorted(gone)), token)
            self.network.put(other, letter.sealed(KEYS[site]), now)
            self.count["haunted"] += 1

    # --- a run -----------------------------------------------------------------------------------

    def run(self, plain: bool) -> Counter[str]:
        plan: dict[int, str] = {}
        for what in () if plain else DISASTERS:
            if self.rng.random() < 0.5:
                plan[int(self.rng.integers(5, ROUGH))] = what
        past = () if plain else self.rollbacks()
        self.begin("a")
        joins, seen = int(self.rng.integers(20, ROUGH)), 0
        for now in range(1, LIMIT):
            self.tick(now)
            if now == joins and self.late is not None:
                self.let_in(self.late, "a" if "a" not in self.gone else self.staying()[0])
                self.count["joined"] += 1
            if now in plan:
                self.disaster(plan[now], now)
            if now == ROUGH:
                self.haunt(now)
            self.roll_back(past, now)
            if now % 40 == 0:
                self.audit()
            over = max(ROUGH, *(back for _, back, _ in past), 0)
            if now > over and now % 5 == 0 and self.is_at_rest():
                if past:
                    self.check_witnesses(now)
                self.check()
                self.count += self.network.count
                self.count["tokens"] += len(self.tokens)
                return self.count
            if now % 200 == 0:  # who watches the walk begins anew where it stands still
                if len(self.tokens) == seen:
                    self.begin(self.staying()[0])
                    self.count["begun anew"] += 1
                seen = len(self.tokens)
        raise Violation("the walk does not reach all who stay")

    def rollbacks(self) -> list[tuple[int, int, list[str]]]:
        """When which sites are copied and restored: in half of the runs, one or two at once."""
        plans = []
        for _ in range(int(self.past.choice([0, 0, 1, 2]))):
            copied, back = sorted(map(int, self.past.choice(2 * ROUGH, 2, replace=False)))
            sites = self.past.choice(SITES, int(self.past.choice([1, 2])), replace=False)
            plans.append((copied + 1, back + 1, [*map(str, sites)]))
        return plans

    def roll_back(self, plans: Iterable[tuple[int, int, list[str]]], now: int) -> None:
        for copied, back, sites in plans:
            for site in sites:
                if now == copied and site in self.agents:
                    self.copy(site)
                if now == back and site in self.agents:
                    self.restore(site)
            if now == back:
                self.forget_again()
        if plans and now % 30 == 0:
            for site in self.agents:
                self.publish(site)

    def staying(self) -> list[str]:
        return [site for site in SITES if site not in self.gone and site in self.agents]

    def is_at_rest(self) -> bool:
        """Whether all who stay are in the newest token, which rests, and know that it converged."""
        (epoch, _), _ = self.newest()
        stay = [self.agents[site] for site in self.staying()]
        return all(
            agent.memory.own.counted
            and agent.memory.own.epoch == epoch
            and agent.memory.gone == frozenset(self.gone)
            and (self.terms.steps or agent.machine.status(agent.memory).converged)
            for agent in stay
        ) and all(site in self.agents[site].memory.gone for site in self.gone)

    def newest(self) -> tuple[tuple, Token]:
        return max(self.tokens.items(), key=lambda pair: pair[0])

    # --- checks ----------------------------------------------------------------------------------

    def audit(self) -> None:
        """An auditor keeps a checkpoint of each log, and compares it with the one before."""
        for site, agent in self.agents.items():
            tree = Tree(agent.store.entries())
            new = TreeHead.of(tree, site, KEYS[site])
            old = self.checkpoints.get(site)
            path = () if old is None else tree.consistency(min(old.size, len(tree)))
            try:
                log.continues(old, new, path, KEYS[site].public)
            except Refusal as refusal:
                raise Violation(f"the log of {site}: {refusal}") from refusal
            self.checkpoints[site] = new
            self.check_cosigned(site, tree)

    def check_cosigned(self, site: str, tree: Tree) -> None:
        """What others cosigned of a log, as it is now, has all that they cosigned before."""
        for other, agent in self.agents.items():
            known = agent.memory.notices.get(f"checkpoint of {site}")
            if known is None or other in (site, *self.broken_logs):
                continue
            new, old = known.head, self.cosigned.get((other, site))
            self.cosigned[other, site] = new
            present = new.size <= len(tree) and tree.root(new.size) == new.root
            if old is None or not present:
                continue
            if old.size > new.size or tree.root(old.size) != old.root:
                raise Violation(f"{other} cosigned a log of {site} that was rewritten")

    def check_witnesses(self, now: int) -> None:
        """All are started again, twice, and their logs witnessed; then an auditor looks at each."""
        for begins in range(now + 1, now + 181, 60):
            for site in self.staying():
                self.start(site)
                self.publish(site)
            for each in range(begins, begins + 60):
                self.tick(each)
        held = {site: self.agents[site].memory.notices for site in self.staying()}
        for site, notices in held.items():
            tree, own = self.agents[site].store.log, f"checkpoint of {site}"
            notes = [n for n in notices.values() if n.claim == "cosignature" and n.site == site]
            signed = [n[own].head for other, n in held.items() if other != site and own in n]
            signed += [known.head for known in notes if known.signer in self.gone]
            fits = all(h.size <= len(tree) and tree.root(h.size) == h.root for h in signed)
            head = TreeHead.of(tree, key_name(self.terms.name, site), KEYS[site])
            bundle = {
                "site": site,
                "entries": [entry.decode() for entry in self.agents[site].store.entries()],
                "checkpoint": head.to_bytes().decode(),
                "cosignatures": [known.predicate["note"] for known in notes],
            }
            if audit_log(self.terms, bundle).passed != fits or not (
                fits or site in self.broken_logs
            ):
                raise Violation(f"what others cosigned of {site} is taken for something else")

    def check(self) -> None:
        self.audit()
        _, newest = self.newest()
        stay = [self.agents[site].memory.own for site in self.staying()]
        total = TreeSum.of([PRIOR, *(own.entry.factor for own in stay)])
        if total != newest.exact_sum:
            raise Violation("the newest token is not the prior and the factors that sites hold")
        if not self.noisy:
            data = {site: self.data[site] for site in self.staying()}
            there = federate(data, BetaBernoulli(), PRIOR, steps=1).posterior
            if digest(there) != digest(newest.posterior):
                raise Violation("another posterior than that of the sites that stay")
        for site, agent in self.agents.items():
            self.check_log(site, agent)
            self.check_forgotten(site, agent)

    def check_log(self, site: str, agent: Agent) -> None:
        for line in map(json.loads, agent.store.entries()):
            answered = "answer" in line and line["token"][2] > 0
            if answered and site not in self.receivers.get(line["token"][3], ()):
                raise Violation(f"{site} answered a token that nobody sent to it")

    def check_forgotten(self, site: str, agent: Agent) -> None:
        memory = agent.memory
        for name, known in memory.tombstones.items():
            last = known.predicate["highest"]
            held = [*memory.notices.values()]
            for message in memory.outbox.values():
                body = Letter.from_bytes(Envelope.from_bytes(message.content).payload).body
                if isinstance(body, Token) and body.epoch[0] <= last:
                    raise Violation(f"{site} still sends what holds the factor of {name}")
                held += [read(self.terms, body.content)] if isinstance(body, Notice) else []
            if any(known.epoch is not None and known.epoch[0] <= last for known in held):
                raise Violation(f"{site} keeps a notice of what holds the factor of {name}")
        entry = memory.own.entry
        if site in memory.gone and entry is not None and entry.factor is not None:
            raise Violation(f"{site} was forgotten, and has a factor")


# --- members that are silent --------------------------------------------------------------------


class Silences(World):
    """Members that are silent for a while, or one for good, and are passed over at a deadline.

    Who is silent reads nothing and sends nothing, and is started again in half of the cases. At
    random times a pass-over of one is typed at another, whether it is silent or not. In the end the
    posterior is that of all who came back; or, if one is silent for good, of all but this one, or
    of all if it fell silent after they had converged. The certificate says so, and an auditor
    confirms it.
    """

    def __init__(self, seed: int, folder: Path, kinds: Kinds):
        self.hush, self.now = np.random.default_rng([seed, 3]), 0
        self.mute, self.lost, self.without = set[str](), set[str](), set[str]()
        self.since: dict[str, dict[str, int]] = {site: {} for site in SITES}
        self.spoke: dict[tuple[str, str], int] = {}
        times = self.hush.integers(10, 2 * ROUGH, (int(self.hush.integers(1, 4)), 2))
        self.plan = [(int(a), int(a + b), str(self.hush.choice(SITES))) for a, b in times]
        self.typed = {*map(int, self.hush.integers(10, 2 * ROUGH, int(self.hush.integers(0, 3))))}
        self.over = int(self.hush.integers(10, 3 * ROUGH))  # when one may fall silent for good
        super().__init__(seed, folder, kinds)

    def act(self, site: str, action, fate=None) -> None:
        if site not in self.mute:
            super().act(site, action, fate)

    def receive(self, site: str, content: bytes, fate: str | None) -> None:
        with contextlib.suppress(PosterityError):
            letter = Letter.from_bytes(Envelope.from_bytes(content).payload)
            self.spoke[site, letter.sender] = self.now
        super().receive(site, content, fate)

    def forget(self, site: str) -> None:
        if site not in self.mute and self.can_lose(self.lost | {site}):
            super().forget(site)

    def begin(self, site: str, number: int | None = None, fate: str | None = None) -> None:
        awake = [each for each in self.staying() if each not in self.mute]
        super().begin(site if site in awake else awake[0], number, fate)

    def pass_over(self, site: str, others: Iterable[str]) -> None:
        self.act(site, lambda agent: agent.command(lambda m: agent.machine.pass_over(m, others)))

    def tick(self, now: int) -> None:
        self.now = now
        super().tick(now)
        for begins, ends, site in self.plan:
            if now == begins and self.can_lose(self.mute | {site}):
                self.mute.add(site)
                self.count["silent"] += 1
            if now == ends and site in self.mute - self.lost:
                self.mute.discard(site)
                self.count["back"] += 1
                if self.hush.random() < 0.5:
                    self.start(site)
        if now in self.typed:
            site, other = map(str, self.hush.choice(self.staying(), 2, replace=False))
            self.count["typed"] += 1
            self.pass_over(site, [other])
        if now == self.over and self.hush.random() < 0.5:
            site = str(self.hush.choice([s for s in self.staying() if s != self.terms.server]))
            if self.can_lose(self.mute | {site}):
                self.mute.add(site)
                self.lost = {site}
                self.count["silent for good"] += 1
        for site, agent in self.agents.items():
            if site not in self.mute:
                self.look_around(site, agent, now)

    def can_lose(self, silent: set[str]) -> bool:
        left = [site for site in SITES if site not in self.gone | silent]
        return self.terms.server not in silent and len(left) >= (self.terms.quorum or 0)

    def look_around(self, site: str, agent: Agent, now: int) -> None:
        """What a running site does about who is silent, with ticks for seconds."""
        memory, known = agent.memory, self.since[site]
        awaited = agent.machine.awaited(memory) - memory.absent
        self.since[site] = known = {name: known.get(name, now) for name in awaited}
        last = {n: max(first, self.spoke.get((site, n), 0)) for n, first in known.items()}
        silent = {n for n, heard in last.items() if now > heard + self.terms.deadline}
        left = self.terms.staying(memory.gone | memory.absent | silent)
        if silent and len(left) >= (self.terms.quorum or 0):
            self.count["passed over"] += 1
            self.pass_over(site, silent)

    def staying(self) -> list[str]:
        return [site for site in super().staying() if site not in self.without]

    def check_witnesses(self, now: int) -> None:
        """Of these runs only the posterior is checked."""

    def check_certificates(self, absent: set[str]) -> None:
        for site in self.staying():
            known = self.agents[site].memory.certificate
            if known is None or site in self.lost:
                continue
            audit = audit_certificate(self.terms, known.envelope)
            if not audit.passed or known.predicate["absent"] != sorted(absent):
                raise Violation(f"{site} has a certificate of others than {sorted(absent)}")
            self.count["certified without one" if absent else "certified by all"] += 1


class Silent(Silences):
    """A walk whose members are silent at times."""

    usual: ClassVar[Kinds] = Kinds(
        terms=tuple(
            terms_of(links, quorum=quorum, deadline=60.0, **options)
            for links, quorum, options in (
                (None, 2, {}),
                (RING, 2, {}),
                (None, 3, {"schedule": {"kind": "sequential"}}),
                (RING, 3, ENDLESS),
                (None, 2, ENDLESS),
            )
        )
    )

    def newest(self) -> tuple[tuple, Token]:
        """The newest token of an epoch that somebody who stays has reached."""
        epochs = {self.agents[site].memory.own.epoch for site in self.staying()}
        known = [pair for pair in self.tokens.items() if pair[0][0] in epochs]
        return max(known or self.tokens.items(), key=lambda pair: pair[0])

    def is_at_rest(self) -> bool:
        if self.now <= max(self.over, 2 * ROUGH) or self.mute != self.lost:
            return False
        self.without = self.lost
        (epoch, _), newest = self.newest()
        visited = {site: (epoch, answered) for site, answered, _ in newest.seals}
        absent = sorted(self.lost.difference(visited))
        known = [self.agents[site].memory.certificate for site in self.staying()]
        for own in (self.agents[site].memory.own for site in self.lost.intersection(visited)):
            if visited[own.name] != (own.epoch, own.answered):  # its last token reached nobody
                return False
        if not self.terms.steps and any(
            each is None or each.predicate["absent"] != absent for each in known
        ):
            return False
        return super().is_at_rest()

    def check(self) -> None:
        self.without = self.lost - {site for site, *_ in self.newest()[1].seals}
        super().check()
        if not self.terms.steps:
            self.check_certificates(self.without)


# --- mutants -------------------------------------------------------------------------------------


class NoFence(Machine):
    """Tokens of epochs that have ended are answered."""

    def _is_fenced(self, memory: Memory, token: Token) -> bool:
        return False

    def _answer(self, memory: Memory, token: Token) -> Step:
        if token.epoch < memory.own.epoch:
            own = dataclasses.replace(
                memory.own, epoch=token.epoch, answered=token.sequence - 1, counted=True
            )
            memory = dataclasses.replace(memory, own=own)
        return super()._answer(memory, token)


class NoSealTest(Machine):
    """Tokens are answered whatever factor of the site they hold."""

    def _seal_of(self, memory: Memory, token: Token) -> tuple[int, str]:
        return UNSEALED


class NothingSeen(Machine):
    """A site does not ask whether others have seen more of it than its store knows."""

    def _lost(self, memory: Memory, start: int = 0) -> Step:
        return Step(memory)


class NoAnsweredTest(NoSealTest):
    """A token that comes again is answered again."""

    def _is_answered(self, memory: Memory, token: Token) -> bool:
        return False

    def _answer(self, memory: Memory, token: Token) -> Step:
        if token.epoch == memory.own.epoch and token.sequence <= memory.own.answered:
            own = dataclasses.replace(memory.own, answered=token.sequence - 1)
            memory = dataclasses.replace(memory, own=own)
        return super()._answer(memory, token)


class NoTombstoneFence(Machine):
    """Tokens that hold a forgotten factor wait to be sent on."""

    def _fenced(self, memory: Memory, epoch: tuple[int, str]) -> Memory:
        return memory


class HandsOn(Machine):
    """A token that waits for who was passed over goes to another member in the same epoch."""

    def _goes_without(self, step: Step) -> Step:
        memory = self._rerouted(step.memory)
        return step.then(Step(memory, tuple(m for m in [memory.outbox.get(TOKEN)] if m)))


class NotErased(Machine):
    """What was forgotten stays in the pages of the file."""

    def forget(self, memory: Memory) -> Step:
        return dataclasses.replace(super().forget(memory), erase=False)


class NotSentAgain(Machine):
    """What is lost on the way is lost."""

    def resend(self, memory: Memory) -> tuple[Outgoing, ...]:
        return ()


class SentFirst(Agent):
    """Letters go out before what they follow from is on disk."""

    said: tuple[Outgoing, ...] = ()

    def _made(self, steps):
        made = []
        for step in steps:
            made.append(step(made[-1].memory if made else self.memory))
        self.said = tuple(message for each in made for message in each.sent)
        return super()._made([lambda memory, each=each: each for each in made])


class Unforced(Disk):
    """Commits are not forced to disk."""

    SYNCHRONOUS = "normal"


def any_spelling(body: bytes) -> Token:
    """A token as :func:`~posterity.federation.messages.loads` reads it, whatever its form."""
    try:
        return canonical(body)
    except (ArtifactError, ValueError):
        parts = from_bytes(body)
        head = json.loads(parts["head"])
        del head["kind"]
        head["epoch"] = tuple(head["epoch"])
        head["seals"] = tuple(map(tuple, head["seals"]))
        return Token(**head, exact_sum=TreeSum(tuple(parts["exact_sum"])))


canonical = messages._token


def for_anybody(terms: Terms, content: bytes, receiver: str, gone: dict) -> Letter:
    """A letter that is admitted wherever it arrives."""
    del receiver
    letter = Letter.from_bytes(Envelope.from_bytes(content).payload)
    return admission.admitted(terms, content, letter.receiver, gone)


def from_anybody(envelope: Envelope, keys: dict) -> tuple[str, ...]:
    """The signature of a letter, at which nobody looks; tombstones are looked at."""
    return tuple(keys) if envelope.kind == MESSAGE else verify(envelope, keys)


verify = Envelope.verify
MUTANTS = {
    "no fence": Kinds(machine=NoFence),
    "no seal test": Kinds(machine=NoSealTest, terms=(IN_ORDER,)),
    "no floor": Kinds(machine=NothingSeen),
    "no answered test": Kinds(machine=NoAnsweredTest),
    "commit after send": Kinds(agent=SentFirst),
    "floor 0": Kinds(floor=False),
    "no canonical check": Kinds(
        patches=(lambda: mock.patch.object(messages, "_token", any_spelling),)
    ),
    "log without fsync": Kinds(disk=Unforced),
    "no receiver check": Kinds(
        patches=(lambda: mock.patch.object(member, "admitted", for_anybody),)
    ),
    "no signature check": Kinds(
        patches=(lambda: mock.patch.object(Envelope, "verify", from_anybody),)
    ),
    "no fence at a tombstone": Kinds(machine=NoTombstoneFence),
    "forgotten, not erased": Kinds(machine=NotErased),
    "not sent again": Kinds(machine=NotSentAgain),
}


HANDS_ON = Kinds(machine=HandsOn, terms=Silent.usual.terms)
"""A mutant of the rules on silent members."""


# --- campaigns -----------------------------------------------------------------------------------


def one(seed: int, kinds: Kinds | None = None, world: type[World] = World) -> Counter[str]:
    """A run, a quarter of them without disasters; a Violation if it breaks a promise."""
    kinds = kinds or world.usual
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))
        for patch in kinds.patches:
            stack.enter_context(patch())
        made = world(seed, Path(folder), kinds)
        try:
            return made.run(plain=seed % 8 in (2, 5))
        finally:
            for agent in made.agents.values():
                agent.store.close()


def campaign(
    runs: int, start: int = 0, world: type[World] = World
) -> tuple[Counter[str], dict[int, str]]:
    """What happened in all runs, and which promises were broken, by seed."""
    count, broken = Counter[str](), {}
    for seed in range(start, start + runs):
        try:
            count += one(seed, None, world)
        except Violation as violation:
            broken[seed] = str(violation)
    return count, broken


def caught(
    mutant: Kinds, runs: int, start: int = 0, world: type[World] = World
) -> tuple[int, str] | None:
    """The first seed at which a mutant breaks a promise, and which; None if it never does."""
    for seed in range(start, start + runs):
        try:
            one(seed, mutant, world)
        except (Violation, AssertionError, PosterityError) as violation:
            return seed, f"{type(violation).__name__}: {violation}"
    return None


def main(
    world: type[World] = World,
    mutants: Mapping[str, Kinds] = MUTANTS,
    output: Path = RESULTS / "faults.json",
    silent: type[World] = Silent,
) -> None:
    """The campaign, or with ``mutants`` on the command line how soon each of these is caught, or
    with ``silent`` the one with silent members.
    """
    runs, start = int(sys.argv[1]), time.process_time()
    result = json.loads(output.read_text()) if output.exists() else {}
    if "mutants" in sys.argv:
        result["mutants"] = {}
        for name, mutant in mutants.items():
            found = caught(mutant, runs, 0, world)
            result["mutants"][name] = found and {"seed": found[0], "violation": found[1]}
            print(f"{name}: {found or 'NOT CAUGHT'}", flush=True)
    else:
        name = "silent members" if "silent" in sys.argv else "campaign"
        count, broken = campaign(runs, 0, world if name == "campaign" else silent)
        seconds = time.process_time() - start
        result[name] = {"runs": runs, "violations": broken, "cpu_s": round(seconds)}
        result[name][provenance.KEY] = provenance.made_with()
        result[name]["happened"] = dict(sorted(count.items()))
        print(json.dumps(result[name], indent=1))
    output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
