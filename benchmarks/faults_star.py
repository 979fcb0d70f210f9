"""Seeded runs of a star under faults, and mutants of its server that must be caught.

    python -m benchmarks.faults_star RUNS            # of the server as it is
    python -m benchmarks.faults_star RUNS silent     # with sites that are silent, and a quorum
    python -m benchmarks.faults_star RUNS mutants    # of each mutant, until one run catches it

The world is that of :mod:`benchmarks.faults`: real machines and stores, and a network that loses,
doubles, alters and reorders. Here member ``a`` is the server, with records of its own; it is killed
before and after its writes like any other, loses power and its disk, is restored from older copies
as its sites are, goes on without who is silent, waits for a member that comes late, and has another
one forgotten.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from benchmarks.faults import (
    LIMIT,
    PRIOR,
    RESULTS,
    ROUGH,
    Kinds,
    SentFirst,
    Silences,
    Violation,
    World,
    main,
    terms_of,
)
from posterity.arrays.tree import leaves
from posterity.arrays.tree_sums import TreeSum
from posterity.artifact import digest
from posterity.engine import conductor
from posterity.engine.agent import Agent
from posterity.engine.course import ServerMemory
from posterity.engine.memory import Memory, Step
from posterity.engine.messages import Answer, Letter, Question, body_of, digest_of
from posterity.engine.signing import Envelope, PrivateKey
from posterity.engine.star import Server
from posterity.engine.store import Outgoing
from posterity.families import Beta
from posterity.federation import federate
from posterity.federation.messages import Improvement, dumps, loads
from posterity.models import BetaBernoulli

SERVER = "a"
SCHEDULES = ("sequential", "synchronous", "asynchronous")
TERMS = tuple(terms_of(None, schedule={"kind": kind}, server=SERVER) for kind in SCHEDULES)
DISASTERS = ("forget", "disk", "server", "partition", "clock", "absent", "forged")


class Star(World):
    """A star in one process. It checks of every position of the server, and at the end:

    * One position, its epoch and step, has one content, ever, and so has each question by its
      number; but a restored server may repeat one.
    * The posterior is, bit for bit, the prior and the factors that the server has.
    * A question is answered once; no letter makes a machine fail.
    * Where updates are exact it is what `federate` gives in process for the sites that stay.
    * Of who was forgotten no factor is left in the server's files, nor in a waiting question.
    * It comes to rest with all who stay, once faults have ended.
    """

    usual: ClassVar[Kinds] = Kinds(terms=TERMS)

    def __init__(self, seed: int, folder: Path, kinds: Kinds):
        self.positions: dict[tuple, str] = {}
        self.questions: dict[tuple, str] = {}
        self.buried: dict[str, list[bytes]] = {}
        super().__init__(seed, folder, kinds)

    @property
    def course(self) -> Any:
        memory: Any = self.agents[SERVER].memory
        return memory.course

    def command(self, name: str, *arguments: Any, **options: Any) -> None:
        def run(agent: Agent) -> tuple[Outgoing, ...]:
            method = getattr(agent.machine, name)
            return agent.command(lambda memory: method(memory, *arguments, **options))

        self.act(SERVER, run)

    def act(self, site: str, action: Any, fate: Any = None) -> None:
        super().act(site, action, fate)
        if site == SERVER and self.course is not None:
            state = self.course.run.state
            factors = [e.factor for e in state.entries.values() if e.factor is not None]
            if TreeSum.of([PRIOR, *factors]) != state.exact_sum:
                raise Violation("the posterior is not the prior and the factors")
            self.note_one(self.positions, (state.epoch, state.step), digest(state.posterior))

    def send(self, site: str, sent: Iterable[Outgoing]) -> None:
        letters = list(sent)
        super().send(site, letters)
        for message in letters:
            body = body_of(message.content)
            if isinstance(body, Question):
                place = (loads(body.content).epoch, body.number)
                self.note_one(self.questions, place, digest_of(body.content))

    def note_one(self, known: dict[tuple, str], place: tuple, content: str) -> None:
        if known.setdefault(place, content) != content and SERVER not in self.restored:
            raise Violation(f"two contents of {place}")

    def disaster(self, what: str, now: int) -> None:
        self.count[what] += 1
        site = str(self.rng.choice([s for s in self.staying() if s != SERVER]))
        if what == "forget":
            entry = self.course and self.course.state.entries.get(site)
            self.buried[site] = [leaf.tobytes() for leaf in leaves(entry.factor)] if entry else []
            self.forget(site)
        elif what == "disk":
            self.agents[site].store.close()
            self.create(site, self.agents[SERVER].memory.highest)
        elif what == "server":
            self.agents[SERVER].store.close()
            self.create(SERVER, 0)
            self.command("begin", 1 + self.heard)
        elif what == "partition":
            self.network.partition = frozenset([site]) - self.network.partition
        elif what == "clock":
            self.alarm[site] = now + int(self.rng.choice([-1000, 40]))
        elif what == "absent":
            self.command("pass_over", [site])
        elif what == "forged" and self.course is not None and site in self.course.open:
            asked = self.course.open[site]
            version = {"epoch": asked.epoch, "step": asked.step, "asked": asked}
            body = Answer(asked.digest, dumps(Improvement(site, Beta(5.0, 5.0), **version)))
            letter = Letter(self.terms.digest, site, SERVER, self.heard, (), body)
            self.network.put(SERVER, letter.sealed(PrivateKey(b"?" * 32)), now)

    def run(self, plain: bool) -> Counter[str]:
        plan: dict[int, str] = {}
        for what in () if plain else DISASTERS:
            if self.rng.random() < 0.5:
                plan[int(self.rng.integers(5, ROUGH))] = what
        joins = int(self.rng.integers(20, ROUGH))
        past = () if plain else self.rollbacks()
        self.command("begin")
        if self.late is not None:
            self.command("pass_over", [self.late])
        for now in range(1, LIMIT):
            self.tick(now)
            if now == joins and self.late is not None:
                self.create(self.late, self.agents[SERVER].memory.highest)
                self.act(self.late, lambda agent: agent.command(agent.machine.start))
            if now in plan:
                self.disaster(plan[now], now)
            self.roll_back(past, now)
            if now % 40 == 0:
                self.audit()
            over = max(ROUGH, *(back for _, back, _ in past), 0)
            if now > over and now % 10 == 0 and self.is_at_rest():
                if past:
                    self.check_witnesses(now)
                self.check()
                return self.count + self.network.count
        raise Violation("the star does not come to rest with all who stay")

    def is_at_rest(self) -> bool:
        """Whether the server rests with all; if without some, it is told to go on."""
        server, course = self.agents[SERVER].memory, self.course
        if course.phase != "rest" or server.gone != frozenset(self.gone):
            return False
        if any(site not in self.agents[site].memory.gone for site in self.gone):
            return False
        stay = [site for site in self.staying() if course.run.state.entries.get(site) is None]
        if course.status.converged and not stay:
            return True
        self.command("resume")
        return False

    def check(self) -> None:
        self.audit()
        if not self.noisy:
            data = {site: self.data[site] for site in self.staying()}
            there = federate(data, BetaBernoulli(), PRIOR, steps=1).posterior
            if digest(there) != digest(self.course.run.posterior):
                raise Violation("another posterior than that of the sites that stay")
        for site, agent in self.agents.items():
            self.check_log(site, agent)
            self.check_forgotten(site, agent)

    def check_log(self, site: str, agent: Agent) -> None:
        lines = [json.loads(entry) for entry in agent.store.entries()]
        if failed := [line["error"] for line in lines if "error" in line]:
            raise Violation(f"a letter at which the machine of {site} fails: {failed[0]}")
        answers = Counter(line["question"] for line in lines if line["event"] == "answer")
        if answers and max(answers.values()) > 1:
            raise Violation("a question that was answered twice")

    def check_forgotten(self, site: str, agent: Agent) -> None:
        memory: Any = agent.memory
        last = max((k.predicate["highest"] for k in memory.tombstones.values()), default=-1)
        for message in memory.outbox.values():
            body = Letter.from_bytes(Envelope.from_bytes(message.content).payload).body
            if isinstance(body, Question) and loads(body.content).epoch[0] <= last:
                raise Violation("a question waits that holds the factor of who was forgotten")
        if site != SERVER or memory.course is None:
            return
        content = b"".join(file.read_bytes() for file in self.folder.glob(f"{site}.db*"))
        for name in memory.gone:
            entry = memory.course.run.state.entries.get(name)
            if entry is not None and entry.factor is not None:
                raise Violation(f"{name} was forgotten, and has a factor")
            if self.noisy and any(piece in content for piece in self.buried.get(name, ())):
                raise Violation(f"the factor of {name}, which was forgotten, is in the files")


class SilentStar(Silences, Star):
    """A star whose sites are silent at times. The server passes them over."""

    usual: ClassVar[Kinds] = Kinds(
        terms=tuple(
            terms_of(None, schedule={"kind": kind}, server=SERVER, quorum=2, deadline=60.0)
            for kind in SCHEDULES
        )
    )

    def is_at_rest(self) -> bool:
        if self.now <= max(self.over, 2 * ROUGH) or self.mute != self.lost or self.course is None:
            return False
        known, entries = self.agents[SERVER].memory.certificate, self.course.run.state.entries
        self.without = self.lost.difference(entries)
        if known is None or known.predicate["absent"] != sorted(self.without):
            if self.course.phase == "rest":
                self.command("resume")
            return False
        return super().is_at_rest()

    def check(self) -> None:
        super().check()
        self.check_certificates(self.without)


class TakesTwice(Server):
    """An answer that comes again is added again."""

    def _receive_answer(self, memory: Memory, sender: str, answer: Answer) -> Step:
        course: Any = getattr(memory, "course", None)
        again = course is not None and sender not in course.open
        if not again or (held := course.run.state.entries.get(sender)) is None or not held.factor:
            return super()._receive_answer(memory, sender, answer)
        taken = loads(answer.content)
        if not isinstance(taken, Improvement):
            return super()._receive_answer(memory, sender, answer)
        total = course.run.state.exact_sum.changed(add=[taken.factor])
        state = dataclasses.replace(course.run.state, exact_sum=total)
        run = dataclasses.replace(course.run, state=state)
        after: Any = dataclasses.replace(memory, course=dataclasses.replace(course, run=run))  # type: ignore
        return Step(after)


class TakesAnyAnswer(Server):
    """Whatever a site answers is taken for what it was asked last."""

    def _receive_answer(self, memory: Memory, sender: str, answer: Answer) -> Step:
        course: Any = getattr(memory, "course", None)
        if course is not None and sender in course.open:
            answer = dataclasses.replace(answer, question=course.open[sender].digest)
        return super()._receive_answer(memory, sender, answer)


class NotErased(Server):
    """What a server subtracted stays in the pages of its file."""

    def _buried(self, step: Step, known: Any, sender: str | None) -> Step:
        return dataclasses.replace(super()._buried(step, known, sender), erase=False)


class NotAskedAgain(Server):
    """A question that is lost is lost."""

    def resend(self, memory: Memory) -> tuple[Outgoing, ...]:
        return ()


def not_kept(memory: Any, asked: Any, answer: Any, content: bytes) -> Any:
    after = with_answer(memory, asked, answer, content)
    return dataclasses.replace(after, parts=memory.parts)


def asks_on() -> object:
    return mock.patch.object(conductor, "without_questions", lambda memory: memory)


with_answer = ServerMemory.with_answer
MUTANTS = {
    "an answer counts twice": Kinds(server=TakesTwice, terms=TERMS),
    "any answer counts": Kinds(server=TakesAnyAnswer, terms=TERMS),
    "answers are not kept": Kinds(
        terms=TERMS, patches=(lambda: mock.patch.object(ServerMemory, "with_answer", not_kept),)
    ),
    "questions of before a forgetting wait": Kinds(terms=TERMS, patches=(asks_on,)),
    "commit after send": Kinds(agent=SentFirst, terms=TERMS),
    "forgotten, not erased": Kinds(server=NotErased, terms=TERMS),
    "not asked again": Kinds(server=NotAskedAgain, terms=TERMS),
}


if __name__ == "__main__":
    main(Star, MUTANTS, RESULTS / "faults_star.json", SilentStar)
