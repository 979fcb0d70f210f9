"""The durable server of a star: it sends questions to the sites, and counts each answer once.

The member ``terms.server`` drives any server schedule of :mod:`posterity.federation.schedules` as
:func:`posterity.federation.federate` does in one process. It repeats a step of the schedule, the
joint Newton step where there is one, and an estimate of what is left to change, until the posterior
has converged or all steps are made; then it rests. Questions are letters that are sent again until
they are answered. An answer counts if it names the open question of its site. Sites that do not
answer can be passed over. A site keeps only its last answer, until the server has acknowledged it.
"""

import collections
import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from posterity import artifact
from posterity.arrays.keys import fold_in, seeded
from posterity.engine import messages as letters
from posterity.engine.author import among
from posterity.engine.course import RUN, Answered, Course, ServerMemory, Unanswered, looks
from posterity.engine.machine import Machine
from posterity.engine.memory import QUESTION, Memory, Step, line, refused
from posterity.engine.messages import MOST_EPOCHS, body_of, digest_of
from posterity.engine.notices import Known, read
from posterity.engine.questions import NO_RECORDS, admitted_answer, answer_of, failed, residual_of
from posterity.engine.refusal import Refusal, forbidden
from posterity.engine.store import Outgoing
from posterity.errors import ParameterError
from posterity.federation import Machine as Schedules
from posterity.federation import Run, Sequential, Visit, step_key
from posterity.federation.driver import Federation
from posterity.federation.messages import Answer, Question, dumps, loads
from posterity.federation.optima import applies
from posterity.federation.remaining import SAMPLES, TOLERANCE
from posterity.federation.schedules import Done, Turn
from posterity.federation.state import State, leave, measures
from posterity.federation.status import parts_needed
from posterity.status import Status

ABSENT = "it was passed over"
"""The error in the answer that stands for an absent site."""


@dataclasses.dataclass(frozen=True)
class Server(Machine):
    """The server of a star: its terms, its own records, if it has any, and its key."""

    MEMORY: ClassVar[type[Memory]] = ServerMemory

    def load(self, state: bytes, rows: Mapping[str, Outgoing]) -> ServerMemory:
        memory = _known(super().load(state, rows))
        course = Course(self._run(()), "rest")
        open_ = {
            place.removeprefix(QUESTION): loads(body_of(message.content).content)
            for place, message in memory.outbox.items()
            if place.startswith(QUESTION)
        }
        if RUN in memory.parts:
            course = course.with_parts(memory.parts, open_)
        return dataclasses.replace(memory, course=course)

    def _run(self, sites: tuple[str, ...]) -> Run:
        agreed = dataclasses.replace(self.terms.agreement, sites=sites, silent=frozenset())
        options = {"key": seeded(self.terms.seed), "tolerance": self.terms.tolerance or TOLERANCE}
        schedule: Any = self.terms.schedule
        federation = Federation(agreed, {}, courier=Answered())
        return Run(federation, schedule, State.of(agreed.prior), **options)

    # --- commands --------------------------------------------------------------------------------

    def begin(self, memory: Memory, number: int | None = None) -> Step:
        """Begin a new epoch at the prior.

        Sites that do not answer yet are asked until they do, or until they are passed over. The
        number is by default one above the highest that the server has recorded. Raises a Refusal if
        it is not above the present one, or if no site would take part.
        """
        name = self.name
        known = _known(memory)
        epoch = (memory.highest + 1 if number is None else number, name)
        last = known.epoch
        absent = {*memory.gone, *([name] if self.site.records.silent else [])}
        sites = tuple(sorted(self.terms.members.keys() - absent))
        if not last < epoch < (MOST_EPOCHS, "") or epoch[0] < 1 or not sites:
            raise forbidden(f"epoch {epoch} of {len(sites)} sites, after {last}", "order")
        run = self._run(sites)
        state = run.schedule.init(run.state, sites, key=fold_in(run.key, 0))
        run = dataclasses.replace(run, state=dataclasses.replace(state, epoch=epoch))
        begun = dataclasses.replace(_without_questions(known), parts={})
        after = self._onward(self._at(begun, Course(run, asked=known.course.asked), sites))
        entry = line("begun", epoch=list(epoch), sites=len(sites))
        return self._made(memory, after, entry, erase=known.course.is_begun)

    def _goes_without(self, step: Step) -> Step:
        """Continue without members that do not answer; their open questions count as failed."""
        after = _known(step.memory)
        for site in sorted(after.absent):
            asked = after.course.open.get(site)
            if asked is not None:
                answer = failed(asked, ABSENT)
                after = self._take(after, asked, answer, dumps(answer))
        return step.then(self._made(step.memory, after))

    def resume(self, memory: Memory) -> Step:
        """Continue from a rest with more passes, in which all sites are asked again. Raises a
        Refusal if the server does not rest.
        """
        known = _known(memory)
        if known.course.phase != "rest" or not known.course.is_begun:
            raise forbidden("a server that is busy", "order")
        course = dataclasses.replace(known.course, phase="look", sweeps=0)
        known = self._at(dataclasses.replace(known, absent=frozenset()), course, ())
        return self._made(memory, self._onward(known), line("resumed"))

    # --- letters ---------------------------------------------------------------------------------

    def _receive_answer(self, memory: Memory, sender: str, answer: letters.Answer) -> Step:
        """Take the answer of a site if it is to the site's open question. An invalid answer counts
        as a failure of its site, and the federation continues.
        """
        known = _known(memory)
        content = answer.content
        digest = digest_of(answer.content)
        asked = known.course.open.get(sender)
        if asked is None or asked.digest != answer.question:
            refusal = forbidden(f"an unexpected answer of {sender!r}", "replay")
            return refused(memory, refusal, digest)
        step = Step(known)
        total = known.course.total
        try:
            taken, total = admitted_answer(self.terms, asked, content, total)
        except Refusal as refusal:
            taken = failed(asked, refusal.found)
            content = dumps(taken)
            step = refused(known, refusal, digest)
        before = _known(step.memory).with_course(proposed=total)
        before = self._with_residual(before, sender, answer.residual)
        made = self._made(before, self._take(before, asked, taken, content))
        about = {"kind": type(taken).__name__, "question": asked.digest, "answer": digest}
        return step.then(Step(before).logging("answer", site=sender, **about)).then(made)

    def _take(
        self, memory: ServerMemory, asked: Question, answer: Answer, content: bytes
    ) -> ServerMemory:
        """Return the server with one answer taken and the questions that follow from it asked."""
        open_ = {site: each for site, each in memory.course.open.items() if site != asked.site}
        memory = memory.without_letters({QUESTION + asked.site}).with_course(open=open_)
        memory = memory.with_answer(asked, answer, content)
        if memory.course.phase == "step":
            memory = self._stepping(memory, answer)
        return self._onward(memory)

    def _with_residual(self, memory: ServerMemory, site: str, envelope: str) -> ServerMemory:
        """Return the server with a site's signed residual. A site whose residual is invalid counts
        as absent, so that the server does not wait for it.
        """
        survey = memory.own_survey
        course = memory.course
        if course.phase != "certify" or survey is None:
            return memory
        try:
            known = read(self.terms, envelope.encode())
            if (known.claim, known.site, known.version) != ("residual", site, survey.version):
                raise forbidden(f"a {known.claim} of {known.site!r}", "schema")
        except Refusal:
            return dataclasses.replace(memory, absent=memory.absent | {site})
        return memory.with_notice(known)

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
        absent = memory.absent if self.terms.is_quorum(len(present)) else frozenset()
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

    def _certified(self, memory: ServerMemory) -> Step:
        survey = memory.own_survey
        if survey is None or survey.epoch != memory.course.state.epoch:
            return Step(memory)
        residuals = memory.residuals(survey)
        now = int(self.clock())
        gone = memory.tombstones
        own = memory.course.status
        certificate = self.author.certificate(survey, residuals, gone, now, own)
        return self._noticed(Step(memory), certificate)

    # --- forgetting ------------------------------------------------------------------------------

    def _departed(self, memory: Memory, site: str) -> ServerMemory:
        """Return the server without a site's factor and all that holds it; the others are refined.
        If the remaining factors make no distribution, all sites train again from the prior.
        """
        known = _known(memory)
        course = known.course
        if site not in course.run.agreement.sites:
            return known
        run = course.run
        if course.phase == "step" and course.live is None:  # just read from the disk
            course = self._stepping(known).course
        state = course.state
        try:
            left = leave(run.agreement, state, site)
        except ParameterError:
            left = state.restarted().without(site)
        left = run.schedule.learn(left, {site: left.entries[site]})
        return self._in_epoch(known, left)

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
        return self._at(_without_questions(known), course, run.agreement.sites)

    def _buried(self, step: Step, known: Known, sender: str | None) -> Step:
        if known.site == self.name:
            raise forbidden("a tombstone of the server", "order", "one of another member")
        step = super()._buried(step, known, sender)
        after = self._departed(step.memory, known.site)
        return step.then(self._made(step.memory, self._onward(after)))

    def _returned(self, step: Step, site: str) -> Step:
        """Resume if the server rests, and a site returns without a factor or after a failure."""
        step = super()._returned(step, site)
        course = _known(step.memory).course
        agreed = course.run.agreement
        asked = site in agreed.sites and site not in agreed.silent
        lacks = asked and site not in course.run.state.entries
        failed_last = any(each.outcome == "failed" for each in course.recent.get(site, ())[-1:])
        resumes = course.phase == "rest" and (lacks or failed_last)
        return step.then(self.resume(step.memory)) if resumes else step

    # --- status ----------------------------------------------------------------------------------

    def awaited(self, memory: Memory) -> frozenset[str]:
        return frozenset(_known(memory).course.open)

    def status(self, memory: Memory) -> Status:
        """Return the status of the posterior when the server last came to rest."""
        course = _known(memory).course
        return course.status or Status.of(math.inf, course.run.tolerance, ("nothing rests yet",))

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

    def _made(
        self, before: Memory, after: ServerMemory, *entries: bytes, erase: bool = False
    ) -> Step:
        """Return the step between two memories, which sends what is new in the outbox."""
        course = after.course
        old = _known(before).course
        run = course.run
        made = Step(after, (), entries, erase)
        ended = old.phase == "rest" and old.run.state.epoch == run.state.epoch
        rests = course.phase == "rest" and not ended
        if rests:
            about = {"step": run.state.step, "status": str(course.status)}
            made = made.logging("rests", posterior=artifact.digest(run.posterior), **about)
            made = made.then(self._certified(after))
        held = before.outbox
        sent = ()
        if rests or course.asked > old.asked:
            letters = made.memory.outbox.items()
            sent = tuple(letter for place, letter in letters if held.get(place) is not letter)
        return dataclasses.replace(made, sent=sent)


def _known(memory: Memory) -> ServerMemory:
    assert isinstance(memory, ServerMemory)
    return memory


def _without_questions(memory: ServerMemory) -> ServerMemory:
    return memory.without_letters({k for k in memory.outbox if k.startswith(QUESTION)})
