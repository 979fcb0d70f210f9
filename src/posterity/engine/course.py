"""The course of a star's server as a value: the state of its schedule, and its stored form.

The server stores the position where a step, a look or a survey began, and the answers since. From
these it restores its present state bit for bit.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from posterity.artifact.artifact import from_bytes, to_bytes
from posterity.artifact.manifest import as_text
from posterity.engine.memory import Memory, Place
from posterity.engine.refusal import RELEASE, reading
from posterity.engine.store import Outgoing
from posterity.entries import Entry
from posterity.families import ExponentialFamily
from posterity.federation import Run, Visit
from posterity.federation.checkpoint import of_visits, visits_of
from posterity.federation.driver import Federation
from posterity.federation.messages import Answer, Epoch, Improvement, Question, loads
from posterity.federation.run import NOISY_ROUNDS, ROUNDS
from posterity.federation.state import State
from posterity.federation.status import is_final
from posterity.status import Status

PART = "star "
RUN, SITE, ANSWER = f"{PART}run", f"{PART}site ", f"{PART}answer "
"""Rows of a store: one for the run, one per site, one per answer since the position."""
PLAIN = ("phase", "asked", "sweeps", "surveyed")


class Unanswered(Exception):
    """Raised with questions that have no answers yet."""

    def __init__(self, questions: Sequence[Question]):
        super().__init__(questions)
        self.questions = questions


@dataclasses.dataclass(frozen=True)
class Answered:
    """The courier to sites in other processes: their answers so far, by the question's digest."""

    answers: Mapping[str, Answer] = dataclasses.field(default_factory=dict)

    def prepare(self, questions: Sequence[Question]) -> None:
        """Raise Unanswered unless all questions have answers."""
        missing = [each for each in questions if each.digest not in self.answers]
        if missing:
            raise Unanswered(missing)

    def demand(self, question: Question) -> Answer:
        """Return the answer; raise Unanswered if there is none yet."""
        answer = self.answers.get(question.digest)
        if answer is None:
            raise Unanswered([question])
        return answer


@dataclasses.dataclass(frozen=True)
class Course:
    """The progress of a server through its schedule. Immutable.

    ``run`` is the position where the ``phase`` began; its trace is in ``recent``, the last two
    visits of each site. ``answers`` came since then, by the question's digest; ``open`` are the
    sites' unanswered questions. ``asked`` counts all questions. ``sweeps`` counts passes of
    refinement after a site left or came back; it is None if there is nothing to refine.
    """

    run: Run
    phase: Literal["look", "step", "newton", "certify", "rest"] = "look"
    answers: Mapping[str, Answer] = dataclasses.field(default_factory=dict)
    open: Mapping[str, Question] = dataclasses.field(default_factory=dict)
    recent: Mapping[str, tuple[Visit, ...]] = dataclasses.field(default_factory=dict)
    asked: int = 0
    sweeps: int | None = None
    status: Status | None = None
    surveyed: int = 0
    """The number of questions sent before the last survey."""
    live: State | None = None
    """The state within a step; None if it has to be restored from the answers."""
    proposed: ExponentialFamily | None = None

    @property
    def is_begun(self) -> bool:
        """True once an epoch began; before that it is at rest at the prior, without sites."""
        return self.run.state.epoch[0] > 0

    @property
    def state(self) -> State:
        """The state of the federation with all answers so far."""
        return self.run.state if self.live is None else self.live

    @property
    def total(self) -> ExponentialFamily:
        """The posterior if all answers of the step are used unchanged, up to rounding."""
        if self.proposed is not None:
            return self.proposed
        total: Any = self.run.posterior
        for answer in self.answers.values():
            if isinstance(answer, Improvement):
                total = total + (answer.factor - self.run.state.factor(answer.site))
        return total

    def position(self, absent: frozenset[str] = frozenset()) -> Run:
        """Return the run with the visits and the answers so far, as if ``absent`` sites had no
        records.
        """
        agreed = self.run.agreement
        agreed = dataclasses.replace(agreed, silent=agreed.silent | absent)
        federation = Federation(agreed, {}, courier=Answered(self.answers))
        trace = tuple(itertools.chain.from_iterable(self.recent.values()))
        return dataclasses.replace(self.run, federation=federation, trace=trace)

    def at(self, run: Run, phase: Any, **more: Any) -> Self:
        """Return the course at a new position."""
        fresh = {"answers": {}, "open": {}, "live": None, "proposed": None}
        run = dataclasses.replace(run, trace=())
        return dataclasses.replace(self, run=run, phase=phase, **fresh, **more)

    def status_at_goal(self, run: Run, steps: int | None, until_converged: bool) -> Status | None:
        """Return the status of a run that has reached its goal or is refined; None before."""
        if self.sweeps is not None:
            looked = self.sweeps > 0 and self.sweeps % looks(run) == 0
            over = self.sweeps >= ROUNDS or (looked and is_final(run))
        else:
            over = run.is_at_goal(ROUNDS * run.round if steps is None else steps, until_converged)
        return run.status if over else None

    # --- as bytes --------------------------------------------------------------------------------

    def head(self) -> Outgoing:
        """Return the row of the run, which is small."""
        state = self.run.state
        status = self.status
        own = state.schedule
        head = {name: getattr(self, name) for name in PLAIN} | {
            "step": state.step,
            "epoch": state.epoch,
            "schedule": None if own is None else sorted(own),
            "status": None if status is None else dataclasses.asdict(status),
        }
        return Outgoing("", as_text(head).encode())

    def parts(self, before: Mapping[str, Outgoing], sites: Iterable[str]) -> dict[str, Outgoing]:
        """Return all rows at a position: those in ``before``, updated for these sites."""
        kept = {name: part for name, part in before.items() if name.startswith(SITE)}
        return kept | {SITE + site: self._part(site) for site in sites} | {RUN: self.head()}

    def _part(self, site: str) -> Outgoing:
        state = self.run.state
        entry = state.entries.get(site)
        own = {k: each[site] for k, each in (state.schedule or {}).items() if site in each}
        content = {
            "entry": None if entry is None else [*entry],
            "count": state.counts.get(site),
            "silent": site in self.run.agreement.silent,
            "schedule": own,
            "trace": of_visits(self.recent.get(site, ())),
        }
        return Outgoing("", to_bytes(content))

    def with_parts(self, parts: Mapping[str, Outgoing], open_: Mapping[str, Question]) -> Self:
        """Return the course from these rows and open questions; a Refusal if they are invalid."""
        with reading("the course of a server", "what this release of posterity writes", RELEASE):
            head = json.loads(parts[RUN].content)
            status = None

            def of(kind):
                return {
                    k.removeprefix(kind): row.content
                    for k, row in parts.items()
                    if k.startswith(kind)
                }

            known = {site: _site(part) for site, part in sorted(of(SITE).items())}
            own = {site: plain for site, (plain, _) in known.items()}

            def pick(field):
                return {s: o[field] for s, o in own.items() if o[field] is not None}

            silent = frozenset(site for site, plain in own.items() if plain["silent"])
            agreed = dataclasses.replace(self.run.agreement, sites=tuple(own), silent=silent)
            schedule = head["schedule"]  # names of dictionaries by site
            if schedule is not None:
                plain = {s: o["schedule"] for s, o in own.items()}
                schedule = {n: {s: o[n] for s, o in plain.items() if n in o} for n in schedule}
            state = dataclasses.replace(
                State.of(agreed.prior).with_entries(pick("entry")),
                counts=pick("count"),
                step=head["step"],
                epoch=tuple(head["epoch"]),
                schedule=schedule,
            )
            if head["status"] is not None:
                status = Status(**head["status"] | {"reasons": tuple(head["status"]["reasons"])})
            run = dataclasses.replace(
                self.run, federation=Federation(agreed, {}, courier=Answered()), state=state
            )
            answers = {digest: loads(part) for digest, part in of(ANSWER).items()}
            recent = {site: visits for site, (_, visits) in known.items()}
            read: Any = {"run": run, "answers": answers, "open": open_, "recent": recent}
            plain = {name: head[name] for name in PLAIN}
            return dataclasses.replace(self, status=status, **read, **plain)


@dataclasses.dataclass(frozen=True)
class ServerMemory(Memory):
    """The state that a server must not lose: a member's memory, and the course of the federation.
    ``parts`` is the course as bytes, from which :meth:`Server.load` restores it.
    """

    course: Any = None  # a Course; None while the state is being read
    parts: Mapping[str, Outgoing] = dataclasses.field(default_factory=dict)

    @property
    def epoch(self) -> Epoch:
        return self.course.run.state.epoch

    @property
    def place(self) -> Place:
        """The present epoch, and the number of questions so far."""
        return [*self.epoch, self.course.asked]

    @property
    def rows(self) -> dict[str, Outgoing]:
        return {**super().rows, **self.parts}

    def with_course(self, **changes: Any) -> Self:
        """Return the memory with some changes of the course."""
        return dataclasses.replace(self, course=dataclasses.replace(self.course, **changes))

    def with_answer(self, asked: Question, answer: Answer, content: bytes) -> Self:
        """Return the memory with the answer to a question, also as bytes."""
        parts = {**self.parts, ANSWER + asked.digest: Outgoing("", content)}
        after = self.with_course(answers={**self.course.answers, asked.digest: answer})
        return dataclasses.replace(after, parts=parts)

    @classmethod
    def from_bytes(cls, content: bytes, rows: Mapping[str, Outgoing]) -> Self:
        """Return the memory in these rows, without the course; an ArtifactError if invalid."""
        parts = {place: row for place, row in rows.items() if place.startswith(PART)}
        others = {place: row for place, row in rows.items() if place not in parts}
        return dataclasses.replace(super().from_bytes(content, others), parts=parts)


def looks(run: Run) -> int:
    """Return the number of passes of refinement between two estimates of what is left to change."""
    return NOISY_ROUNDS if run.agreement.update.noisy else 1


def _site(part: bytes) -> tuple[dict[str, Any], tuple[Visit, ...]]:
    own = from_bytes(part, what="a site of a server's course")
    if own["entry"] is not None:
        own["entry"] = Entry(*own["entry"])
    return own, visits_of(own["trace"])
