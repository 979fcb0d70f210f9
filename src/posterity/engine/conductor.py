"""The course of a star's server: the steps of its schedule, its looks and its surveys.

Each goes on until an answer is missing. Then its question is put into the outbox.
"""

import collections
import dataclasses
from collections.abc import Container, Iterable, Sequence
from typing import Any

from posterity.arrays.keys import fold_in
from posterity.engine import messages as letters
from posterity.engine.author import among
from posterity.engine.course import RUN, Answered, Course, ServerMemory, Unanswered, looks
from posterity.engine.machine import Machine
from posterity.engine.memory import QUESTION
from posterity.engine.questions import NO_RECORDS, answer_of, failed, residual_of
from posterity.federation import Machine as Schedules
from posterity.federation import Sequential, Visit, step_key
from posterity.federation.driver import Federation
from posterity.federation.messages import Answer, Question, dumps
from posterity.federation.newton import applies
from posterity.federation.remaining import SAMPLES
from posterity.federation.schedules import Done, Turn
from posterity.federation.state import State, measures
from posterity.federation.status import parts_needed
from posterity.status import Status

ABSENT = "it was passed over"
"""The error in the answer that stands for an absent site."""


@dataclasses.dataclass(frozen=True)
class Conductor(Machine):
    """A member that drives the schedule of a star, and asks the others."""

    # --- the course ------------------------------------------------------------------------------

    def _onward(self, memory: ServerMemory) -> ServerMemory:
        while (course := memory.course).phase != "rest" and not course.open:
            try:
                match course.phase:
                    case "step":
                        memory = self._stepping(memory)
                    case "newton":
                        memory = self._newton(memory)
                    case "look":
                        memory = self._look(memory)
                    case "certify":
                        memory = self._certify(memory)
            except Unanswered as unanswered:
                memory, _, missing = self._answered(memory, unanswered.questions)
                memory = self._ask(memory, missing)
        return memory.heard(course.state.epoch[0])

    def _stepping(self, memory: ServerMemory, answer: Any = None) -> ServerMemory:
        course = memory.course
        run = course.run
        schedule = run.schedule if course.sweeps is None else Sequential()
        machine = Schedules(run.agreement, schedule)
        if course.live is None:
            answer = Turn(step_key(run.key, run.state.step))
        state, sent = machine.receive(course.state, answer)
        waiting = collections.deque(sent)
        asked = []
        while waiting:
            message = waiting.popleft()
            if isinstance(message, Done):
                return self._stepped(memory, state, message.visits)
            memory, answers, missing = self._answered(memory, [message])
            asked += missing
            for own in answers:
                state, more = machine.receive(state, own)  # pyright: ignore[reportArgumentType]
                waiting.extend(more)
        return self._ask(memory.with_course(live=state), asked)

    def _stepped(self, memory: ServerMemory, state: State, visits: Sequence[Visit]) -> ServerMemory:
        course = memory.course
        changed = [visit.site for visit in visits]
        run = course.run
        recent = dict(course.recent)
        sweeps = course.sweeps
        for visit in visits:
            if visit.outcome != "relayed":
                recent[visit.site] = (*recent.get(visit.site, ())[-1:], visit)
        without = {visit.site for visit in visits if visit.error == NO_RECORDS}
        if without:
            silent = run.agreement.silent | without
            agreed = dataclasses.replace(run.agreement, silent=silent)
            run = dataclasses.replace(run, federation=Federation(agreed, {}, courier=Answered()))
        if sweeps is not None:
            sweeps = sweeps + 1
            changed = list(run.agreement.sites)
            state = run.schedule.learn(state, state.entries)
            due = sweeps % looks(run) == 0
        else:
            due = self.terms.tolerance is not None and state.step % run.round == 0
        run = dataclasses.replace(run, state=state)
        phase = "newton" if due and applies(run.agreement) else "look"
        return self._at(memory, course.at(run, phase, recent=recent, sweeps=sweeps), changed)

    def _newton(self, memory: ServerMemory) -> ServerMemory:
        course = memory.course
        state = course.position().newton_step().state
        changed = () if state is course.run.state else course.run.agreement.sites
        run = dataclasses.replace(course.run, state=state)
        return self._at(memory, course.at(run, "look"), changed)

    def _look(self, memory: ServerMemory) -> ServerMemory:
        course = memory.course
        more = {}
        present = self.terms.staying(memory.gone | memory.absent)
        enough = self.terms.is_quorum(len(present)) and {*present} & {*course.run.agreement.sites}
        absent = memory.absent if enough else frozenset()
        run = course.position(absent)
        reached = course.run
        changed = ()
        goal = self.terms.steps, self.terms.tolerance is not None
        status = course.status_at_goal(run, *goal)
        phase = "step"
        if status is not None:  # look again after the refinement
            phase = "look"
            more = {"sweeps": None, "status": among(status, absent)}
            if course.sweeps is None:
                phase, more["surveyed"] = "certify", course.asked
        elif course.sweeps is not None or self.terms.tolerance is not None:
            onward = run.from_better()
            if onward is not run:  # continue from the second start's posterior
                reached = dataclasses.replace(reached, state=onward.state)
                more = {"recent": {}}
                changed = run.agreement.sites
        return self._at(memory, course.at(reached, phase, **more), changed)

    def _certify(self, memory: ServerMemory) -> ServerMemory:
        """Collect all members' residuals of the posterior; then rest. The factors of members that
        were passed over leave it first, and the others are refined.
        """
        course = memory.course
        lacking = memory.absent.intersection(course.run.state.entries)
        if lacking:
            return self._without(memory, lacking)
        run = course.run
        version = (course.state.epoch, course.surveyed)
        survey = memory.own_survey
        if survey is None or survey.version != version:
            survey = self.author.survey(*version, run.posterior, memory.gone)
            memory = memory.with_notice(survey)
        signed = memory.residuals(survey)
        missing = []
        sites = [s for s in self.terms.staying(memory.gone | memory.absent) if s not in signed]
        key = fold_in(run.key, course.surveyed)
        parts = parts_needed(run.agreement)
        for asked in measures(run.state, sites, parts, SAMPLES, key):
            if asked.site == self.name:
                answer, _ = answer_of(self.site, asked)
                own = residual_of(self.author, survey, answer, self.site, memory.gone)
                memory = memory.with_notice(own)
            else:
                missing.append(asked)
        if missing:
            return self._ask(memory, missing, survey.text)
        return self._at(memory, course.at(run, "rest"), ())

    def _without(self, memory: ServerMemory, sites: Container[str]) -> ServerMemory:
        """Return the server as if these sites had not answered yet, in a new epoch."""
        run = memory.course.run
        entries = {s: entry for s, entry in run.state.entries.items() if s not in sites}
        left = run.state.with_entries(entries)
        if not run.agreement.admits(left.posterior):
            left = left.restarted()
        return self._in_epoch(memory, run.schedule.learn(left, {}))

    def _in_epoch(self, known: ServerMemory, left: State) -> ServerMemory:
        """Return the server in a new epoch without some factors; the others are refined."""
        course = known.course
        run = course.run
        epoch = (max(left.epoch[0], known.highest + 1), self.name)
        run = dataclasses.replace(run, state=dataclasses.replace(left, epoch=epoch))
        phase = "look"
        more = {}
        if not run.ledger.independent:
            more = {"sweeps": 0}
        elif course.phase == "rest":
            more = {"status": Status.of(0.0, run.tolerance), "surveyed": course.asked}
            phase = "certify"
        course = course.at(run, phase, recent={}, **more)
        return self._at(without_questions(known), course, run.agreement.sites)

    # --- helpers ---------------------------------------------------------------------------------

    def _answered(
        self, memory: ServerMemory, questions: Iterable[Question]
    ) -> tuple[ServerMemory, list[Answer], list[Question]]:
        """Return the known answers, computing the server's own, and the unanswered questions."""
        answers = []
        missing = []
        for asked in questions:
            answer = memory.course.answers.get(asked.digest)
            if answer is None and asked.site == self.name:
                answer, content = answer_of(self.site, asked)
                memory = memory.with_answer(asked, answer, content)
            elif answer is None and asked.site in memory.absent:
                answer = failed(asked, ABSENT)
                memory = memory.with_answer(asked, answer, dumps(answer))
            if answer is None:
                missing.append(asked)
            else:
                answers.append(answer)
        return memory, answers, missing

    def _ask(
        self, memory: ServerMemory, questions: Sequence[Question], survey: str = ""
    ) -> ServerMemory:
        """Put questions into the outbox, unless they are there already."""
        course = memory.course
        sealed = {}
        memory = memory.heard(course.state.epoch[0])
        open_ = dict(course.open)
        count = course.asked
        for asked in questions:
            site = asked.site
            if site not in open_ or open_[site].digest != asked.digest:
                count, open_[site] = count + 1, asked
                body = letters.Question(count, dumps(asked), survey)
                sealed[QUESTION + site] = self._sealed(memory, site, body)
        memory = memory.with_letters(sealed).with_course(open=open_, asked=count)
        return dataclasses.replace(memory, parts={**memory.parts, RUN: memory.course.head()})

    def _at(self, memory: ServerMemory, course: Course, changed: Iterable[str]) -> ServerMemory:
        parts = course.parts(memory.parts, changed)
        return dataclasses.replace(memory, course=course, parts=parts)


def without_questions(memory: ServerMemory) -> ServerMemory:
    """Return the memory without questions in the outbox."""
    return memory.without_letters({k for k in memory.outbox if k.startswith(QUESTION)})
