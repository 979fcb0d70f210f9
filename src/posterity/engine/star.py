"""The durable server of a star: it asks the sites, and takes each answer once.

A member named ``terms.server`` drives any server schedule of :mod:`posterity.federation.schedules`
as :func:`posterity.federation.federate` does in one process: a step of the schedule, the joint
Newton step where there is one, and a look at how far all has come, until it has converged or made
all steps; then it rests. What it asks goes out as letters, sent again until they are answered; an
answer counts if it names the question that its site is asked now. Whoever is silent can be passed
over. A site keeps nothing but its last answer, until the server has acknowledged it.
"""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from posterity import artifact
from posterity.arrays.keys import fold_in, seeded
from posterity.engine import messages as letters
from posterity.engine.course import ANSWER, RUN, Course, Elsewhere, ServerMemory, Unanswered
from posterity.engine.machine import Machine, _forbidden
from posterity.engine.memory import Memory, Step, line, refused
from posterity.engine.messages import MOST_EPOCHS, body_of
from posterity.engine.notices import Known, read
from posterity.engine.questions import NO_RECORDS, admitted_answer, answer_of, failed, residual_of
from posterity.engine.refusal import Refusal
from posterity.engine.store import Outgoing
from posterity.errors import ParameterError
from posterity.federation import Machine as Schedules
from posterity.federation import Run, Sequential, Visit, step_key
from posterity.federation.keys import site_key
from posterity.federation.messages import Answer, Measure, Question, dumps, loads
from posterity.federation.optima import applies
from posterity.federation.run import NOISY_ROUNDS, ROUNDS
from posterity.federation.schedules import Done, Turn
from posterity.federation.state import State, leave
from posterity.federation.status import SAMPLES, TOLERANCE, is_final, parts_needed
from posterity.status import Status

ABSENT = "it was passed over"
"""The error of a site that does not answer for the time being."""
QUESTION = "question to "
"""The beginning of places in the outbox where a question waits for its answer."""


@dataclasses.dataclass(frozen=True)
class Server(Machine):
    """The server of a star: its terms, its own records, if it has any, and its key."""

    MEMORY: ClassVar[type[Memory]] = ServerMemory

    def load(self, state: bytes, rows: Mapping[str, Outgoing]) -> ServerMemory:
        """The memory that a store has; an ArtifactError if it has none, or one of other terms."""
        memory, course = _known(super().load(state, rows)), Course(self._run(()), "rest")
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
        return Run(Elsewhere(agreed, {}), schedule, State.of(agreed.prior), **options)

    # --- commands --------------------------------------------------------------------------------

    def begin(self, memory: Memory, number: int | None = None) -> Step:
        """A new epoch: everything begins at the prior.

        Who is not there yet is asked until it comes, or is passed over and asked once it does. The
        number is by default the next after all that the server has heard of. A Refusal if it is not
        above the present one, or nobody would take part.
        """
        name, known = self.name, _known(memory)
        epoch, last = (memory.highest + 1 if number is None else number, name), known.epoch
        absent = {*memory.gone, *([name] if self.site.records.silent else [])}
        sites = tuple(sorted(self.terms.members.keys() - absent))
        if not last < epoch < (MOST_EPOCHS, "") or epoch[0] < 1 or not sites:
            raise _forbidden(f"epoch {epoch} of {len(sites)} sites to begin after {last}", "order")
        run = self._run(sites)
        state = run.schedule.init(run.state, sites, key=fold_in(run.key, 0))
        run = dataclasses.replace(run, state=dataclasses.replace(state, epoch=epoch))
        erase, asked = known.course.is_begun, known.course.asked
        known = dataclasses.replace(known, parts={}, outbox=_without_questions(known))
        after = self._at(known, Course(run, asked=asked), sites)
        entry = line("begun", epoch=list(epoch), sites=len(sites))
        return self._made(memory, self._onward(after), entry, erase=erase)

    def pass_over(self, memory: Memory, sites: Iterable[str]) -> Step:
        """Go on without members that do not answer, until they are heard of again.

        What they were asked counts as failed. A Refusal if one of them is no member, or the server
        itself.
        """
        step = super().pass_over(memory, sites)
        after = _known(step.memory)
        for site in sorted(after.absent):
            if site in after.course.open:
                asked = after.course.open[site]
                answer = failed(asked, ABSENT)
                after = self._take(after, asked, answer, dumps(answer))
        return step.then(self._made(step.memory, after))

    def resume(self, memory: Memory) -> Step:
        """Go on from where the server rests, with more passes: all are asked anew; a Refusal if it
        does not rest.
        """
        known = _known(memory)
        if known.course.phase != "rest" or not known.course.is_begun:
            raise _forbidden("a server that does not rest", "order")
        course = dataclasses.replace(known.course, phase="look", sweeps=0)
        known = dataclasses.replace(known, absent=frozenset())
        after = self._onward(self._at(known, course, ()))
        return self._made(memory, after, line("resumed"))

    # --- letters ---------------------------------------------------------------------------------

    def _receive_answer(self, memory: Memory, sender: str, answer: letters.Answer) -> Step:
        """The answer of a site, which counts if it is to what the site is asked now.

        One that is of no use counts as a failure of its site, and the federation goes on.
        """
        known, digest = _known(memory), hashlib.sha256(answer.content).hexdigest()
        course = known.course
        asked = course.open.get(sender)
        if asked is None or asked.digest != answer.question:
            refusal = _forbidden(f"an answer of {sender!r} that nobody waits for", "replay")
            return refused(memory, refusal, digest)
        step, total = Step(known), course.total
        try:
            taken, total = admitted_answer(self.terms, asked, answer.content, total)
            content = answer.content
        except Refusal as refusal:
            taken = failed(asked, refusal.found)
            content = dumps(taken)
            step = refused(known, refusal, digest)
        course = dataclasses.replace(course, proposed=total)
        before = dataclasses.replace(_known(step.memory), course=course)
        before = self._with_residual(before, asked.site, answer.residual)
        made = self._made(before, self._take(before, asked, taken, content))
        entry = line(
            "answer", site=sender, kind=type(taken).__name__, question=asked.digest, answer=digest
        )
        return step.then(Step(before, entries=(entry,))).then(made)

    def _take(
        self, memory: ServerMemory, asked: Question, answer: Answer, content: bytes
    ) -> ServerMemory:
        """The server once the answer to an open question is taken, and what follows is asked."""
        course, site = memory.course, asked.site
        open_, outbox = dict(course.open), dict(memory.outbox)
        del open_[site], outbox[QUESTION + site]
        course = dataclasses.replace(course, open=open_)
        memory = dataclasses.replace(memory, course=course, outbox=outbox)
        memory = _with_answer(memory, asked, answer, content)
        if course.phase == "step":
            memory = self._stepping(memory, answer)
        return self._onward(memory)

    def _with_residual(self, memory: ServerMemory, site: str, envelope: str) -> ServerMemory:
        """The server with the residual that a site signed; one of no use is as if there was none.

        The site then counts as absent, so that nobody waits for it.
        """
        survey, course = self._own_survey(memory), memory.course
        if course.phase != "certify" or survey is None:
            return memory
        try:
            known = read(self.terms, envelope.encode())
            if (known.claim, known.site, known.version) != ("residual", site, survey.version):
                raise _forbidden(f"a {known.claim} of {known.site!r}", "schema")
        except Refusal:
            return dataclasses.replace(memory, absent=memory.absent | {site})
        return memory.with_notice(known)

    # --- the course ------------------------------------------------------------------------------

    def _onward(self, memory: ServerMemory) -> ServerMemory:
        while (course := memory.course).phase != "rest" and not course.open:
            match course.phase:
                case "step":
                    memory = self._stepping(memory)
                case "newton":
                    memory = self._newton(memory)
                case "look":
                    memory = self._look(memory)
                case "certify":
                    memory = self._certify(memory)
        return _known(self._heard(memory, course.state.epoch[0]))

    def _stepping(self, memory: ServerMemory, answer: Any = None) -> ServerMemory:
        course = memory.course
        run = course.run
        schedule = run.schedule if course.sweeps is None else Sequential()
        machine = Schedules(run.agreement, schedule)
        if course.live is None:
            answer = Turn(step_key(run.key, run.state.step))
        state, sent = machine.receive(course.state, answer)
        waiting, asked = collections.deque(sent), []
        while waiting:
            message = waiting.popleft()
            if isinstance(message, Done):
                return self._stepped(memory, state, message.visits)
            memory, answers, missing = self._answered(memory, [message])
            asked += missing
            for own in answers:
                state, more = machine.receive(state, own)  # pyright: ignore[reportArgumentType]
                waiting.extend(more)
        course = dataclasses.replace(memory.course, live=state)  # pyright: ignore
        return self._ask(dataclasses.replace(memory, course=course), asked)

    def _stepped(self, memory: ServerMemory, state: State, visits: Sequence[Visit]) -> ServerMemory:
        course, changed = memory.course, [visit.site for visit in visits]
        run, recent, sweeps = course.run, dict(course.recent), course.sweeps
        for visit in visits:
            if visit.outcome != "relayed":
                recent[visit.site] = (*recent.get(visit.site, ())[-1:], visit)
        without = [visit.site for visit in visits if visit.error == NO_RECORDS]
        federation = run.federation
        if without:
            silent = run.agreement.silent | set(without)
            agreed = dataclasses.replace(run.agreement, silent=silent)
            federation = Elsewhere(agreed, {})
        if sweeps is not None:
            sweeps, changed = sweeps + 1, list(run.agreement.sites)
            state = run.schedule.learn(state, state.entries)
            due = sweeps % _looks(run) == 0
        else:
            due = self.terms.tolerance is not None and state.step % run.round == 0
        run = dataclasses.replace(run, federation=federation, state=state)
        phase = "newton" if due and applies(run.agreement) else "look"
        return self._at(memory, course.at(run, phase, recent=recent, sweeps=sweeps), changed)

    def _newton(self, memory: ServerMemory) -> ServerMemory:
        course = memory.course
        try:
            run = course.position().newton_step()
        except Unanswered as unanswered:
            return self._wanted(memory, unanswered)
        changed = () if run.state is course.run.state else run.agreement.sites
        run = dataclasses.replace(course.run, state=run.state)
        return self._at(memory, course.at(run, "look"), changed)

    def _look(self, memory: ServerMemory) -> ServerMemory:
        course = memory.course
        run = course.position()
        try:
            status = self._status_at_goal(course, run)
            converges = course.sweeps is not None or self.terms.tolerance is not None
            onward = run.from_better() if status is None and converges else run
        except Unanswered as unanswered:
            return self._wanted(memory, unanswered)
        if status is None and onward is not run:  # from where a second start led
            better = dataclasses.replace(course.run, state=onward.state)
            return self._at(memory, course.at(better, "step", recent={}), run.agreement.sites)
        if status is None:
            return self._at(memory, course.at(course.run, "step"), ())
        if course.sweeps is not None:  # refined; is that the goal?
            return self._at(memory, course.at(course.run, "look", sweeps=None, status=status), ())
        more = {"sweeps": None, "status": status, "surveyed": course.asked}
        return self._at(memory, course.at(course.run, "certify", **more), ())

    def _certify(self, memory: ServerMemory) -> ServerMemory:
        """All members sign how they stand to what was reached; then the server rests."""
        course = memory.course
        run, version = course.run, (course.state.epoch, course.surveyed)
        survey = self._own_survey(memory)
        if survey is None or survey.version != version:
            survey = self.author.survey(*version, run.posterior, memory.gone)
            memory = memory.with_notice(survey)
        signed, missing = self._residuals(memory, survey), []
        for site in self.terms.staying(memory.gone | memory.absent):
            if site in signed:
                continue
            key = site_key(fold_in(run.key, course.surveyed), site)
            place = {"epoch": run.state.epoch, "step": run.state.step}
            parts = parts_needed(run.agreement)
            view, factor = run.posterior, run.state.factor(site)
            asked = Measure(site, view, factor, parts, SAMPLES, key, **place)
            if site != self.name:
                missing.append(asked)
                continue
            answer, _ = answer_of(self.site, asked)
            own = residual_of(self.author, survey, answer, self.site, memory.gone)
            memory = memory.with_notice(own)
        if missing:
            return self._ask(memory, missing, survey.text)
        return self._at(memory, course.at(run, "rest"), ())

    def _status_at_goal(self, course: Course, run: Run) -> Status | None:
        """The status of a run that is to go no further, or is refined; None before."""
        most = self.terms.steps
        if course.sweeps is not None:
            looked = course.sweeps > 0 and course.sweeps % _looks(run) == 0
            return run.status if course.sweeps >= ROUNDS or (looked and is_final(run)) else None
        most = ROUNDS * run.round if most is None else most
        return run.status if run.is_at_goal(most, self.terms.tolerance is not None) else None

    def _certified(self, memory: ServerMemory) -> Step:
        survey = self._own_survey(memory)
        if survey is None or survey.epoch != memory.course.state.epoch:
            return Step(memory)
        residuals, now = self._residuals(memory, survey), int(self.clock())
        certificate = self.author.certificate(survey, residuals, memory.tombstones, now)
        return self._noticed(Step(memory), certificate)

    # --- forgetting ------------------------------------------------------------------------------

    def _departed(self, memory: Memory, site: str) -> ServerMemory:
        """The server without a site's factor, and without what holds it; the others refine theirs.

        Where the factors that stay would be no distribution, all train anew.
        """
        known = _known(memory)
        course, outbox = known.course, _without_questions(known)
        if site not in course.run.agreement.sites:
            return known
        run, state = course.run, self._caught_up(known)
        try:
            left = leave(run.agreement, state, site)
        except ParameterError:
            left = state.restarted().without(site)
        left = run.schedule.learn(left, {site: left.entries[site]})
        epoch = (max(left.epoch[0], memory.highest + 1), self.name)
        run = dataclasses.replace(run, state=dataclasses.replace(left, epoch=epoch))
        more: dict[str, Any] = {"recent": {}}
        phase = "look"
        if not run.ledger.independent:
            more["sweeps"] = 0
        elif course.phase == "rest":
            phase, more["status"] = "certify", Status.of(0.0, run.tolerance)
            more["surveyed"] = course.asked
        known = dataclasses.replace(known, outbox=outbox)
        return self._at(known, course.at(run, phase, **more), run.agreement.sites)

    def _caught_up(self, memory: ServerMemory) -> State:
        course = memory.course
        if course.phase == "step" and course.live is None:
            course = self._stepping(memory).course
        return course.state

    def _buried(self, step: Step, known: Known, sender: str | None) -> Step:
        if known.site == self.name:
            raise _forbidden("a tombstone of the server", "order", "one of another member")
        step = super()._buried(step, known, sender)
        after = self._departed(step.memory, known.site)
        return step.then(self._made(step.memory, self._onward(after)))

    def _returned(self, step: Step, site: str) -> Step:
        """Somebody is back: a server that rests without them asks them anew."""
        step = super()._returned(step, site)
        course = _known(step.memory).course
        if course.phase != "rest" or not course.recent.get(site):
            return step
        failed_last = course.recent[site][-1].outcome == "failed"
        return step.then(self.resume(step.memory)) if failed_last else step

    # --- how it stands ---------------------------------------------------------------------------

    def awaited(self, memory: Memory) -> frozenset[str]:
        """The members without whose answers nothing goes on here."""
        return frozenset(_known(memory).course.open)

    def status(self, memory: Memory) -> Status:
        """The status of the posterior, as it was when the server last came to rest."""
        course = _known(memory).course
        return course.status or Status.of(math.inf, course.run.tolerance, ("nothing rests yet",))

    # --- helpers ---------------------------------------------------------------------------------

    def _answered(
        self, memory: ServerMemory, questions: Iterable[Question]
    ) -> tuple[ServerMemory, list[Answer], list[Question]]:
        """The answers that are there, the server's own made now, and the questions without one."""
        answers, missing = [], []
        for asked in questions:
            answer = memory.course.answers.get(asked.digest)
            if answer is None and asked.site == self.name:
                answer, content = answer_of(self.site, asked)
                memory = _with_answer(memory, asked, answer, content)
            elif answer is None and asked.site in memory.absent:
                answer = failed(asked, ABSENT)
                memory = _with_answer(memory, asked, answer, dumps(answer))
            if answer is None:
                missing.append(asked)
            else:
                answers.append(answer)
        return memory, answers, missing

    def _wanted(self, memory: ServerMemory, unanswered: Unanswered) -> ServerMemory:
        memory, _, missing = self._answered(memory, unanswered.questions)
        return self._ask(memory, missing)

    def _ask(
        self, memory: ServerMemory, questions: Sequence[Question], survey: str = ""
    ) -> ServerMemory:
        """Put questions into the outbox, but for those that are there."""
        course = memory.course
        memory = _known(self._heard(memory, course.state.epoch[0]))
        outbox, open_, count = dict(memory.outbox), dict(course.open), course.asked
        for asked in questions:
            site = asked.site
            if site not in open_ or open_[site].digest != asked.digest:
                count, open_[site] = count + 1, asked
                body = letters.Question(count, dumps(asked), survey)
                outbox[QUESTION + site] = self._sealed(memory, site, body)
        course = dataclasses.replace(course, open=open_, asked=count)
        parts = {**memory.parts, RUN: course.head()}
        return dataclasses.replace(memory, course=course, outbox=outbox, parts=parts)

    def _at(self, memory: ServerMemory, course: Course, changed: Iterable[str]) -> ServerMemory:
        parts = course.parts(memory.parts, changed)
        return dataclasses.replace(memory, course=course, parts=parts)

    def _made(
        self, before: Memory, after: ServerMemory, *entries: bytes, erase: bool = False
    ) -> Step:
        """The step between two memories: what was not in the outbox before is sent."""
        course, old = after.course, _known(before).course
        ended = old.phase == "rest" and old.run.state.epoch == course.run.state.epoch
        rests = course.phase == "rest" and not ended
        if rests:
            end = line(
                "rests",
                step=course.run.state.step,
                posterior=artifact.digest(course.run.posterior),
                status=str(course.status),
            )
            entries = (*entries, end)
            step = self._certified(after)
            after, entries = _known(step.memory), (*entries, *step.entries)
        held, sent = before.outbox, ()
        if rests or course.asked > old.asked:
            sent = tuple(m for place, m in after.outbox.items() if held.get(place) is not m)
        return Step(after, sent, entries, erase)


def _with_answer(
    memory: ServerMemory, asked: Question, answer: Answer, content: bytes
) -> ServerMemory:
    course = memory.course
    course = dataclasses.replace(course, answers={**course.answers, asked.digest: answer})
    parts = {**memory.parts, ANSWER + asked.digest: Outgoing("", content)}
    return dataclasses.replace(memory, course=course, parts=parts)


def _known(memory: Memory) -> ServerMemory:
    assert isinstance(memory, ServerMemory)
    return memory


def _without_questions(memory: Memory) -> dict[str, Outgoing]:
    return {k: message for k, message in memory.outbox.items() if not k.startswith(QUESTION)}


def _looks(run: Run) -> int:
    return NOISY_ROUNDS if run.agreement.update.noisy else 1
