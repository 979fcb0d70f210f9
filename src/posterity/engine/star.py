"""The durable server of a star: it sends questions to the sites, and counts each answer once.

The member ``terms.server`` drives any server schedule of :mod:`posterity.federation.schedules` as
:func:`posterity.federation.federate` does in one process. It repeats a step of the schedule, the
joint Newton step where there is one, and an estimate of what is left to change, until the posterior
has converged or all steps are made; then it rests. Questions are letters that are sent again until
they are answered. An answer counts if it names the open question of its site. Sites that do not
answer can be passed over. A site keeps only its last answer, until the server has acknowledged it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from posterity import artifact
from posterity.arrays.keys import fold_in, seeded
from posterity.engine import messages as letters
from posterity.engine.conductor import ABSENT, Conductor, without_questions
from posterity.engine.course import RUN, Answered, Course, ServerMemory
from posterity.engine.memory import QUESTION, Memory, Step, line, refused
from posterity.engine.messages import MOST_EPOCHS, body_of, digest_of
from posterity.engine.notices import Known, read
from posterity.engine.questions import admitted_answer, failed
from posterity.engine.refusal import Refusal, forbidden
from posterity.engine.store import Outgoing
from posterity.errors import ParameterError
from posterity.federation import Run
from posterity.federation.driver import Federation
from posterity.federation.messages import Answer, Question, dumps, loads
from posterity.federation.remaining import TOLERANCE
from posterity.federation.state import State, leave
from posterity.status import Status


@dataclasses.dataclass(frozen=True)
class Server(Conductor):
    """The server of a star: its terms, its own records, if it has any, and its key."""

    MEMORY: ClassVar[type[Memory]] = ServerMemory

    def load(self, state: bytes, rows: Mapping[str, Outgoing]) -> ServerMemory:
        memory: Any = super().load(state, rows)
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

    def begin(self, memory: Any, number: int | None = None) -> Step:
        """Begin a new epoch at the prior.

        Sites that do not answer yet are asked until they do, or until they are passed over. The
        number is by default one above the highest that the server has recorded. Raises a Refusal if
        it is not above the present one, or if no site would take part.
        """
        name = self.name
        epoch = (memory.highest + 1 if number is None else number, name)
        last = memory.epoch
        absent = {*memory.gone, *([name] if self.site.records.silent else [])}
        sites = tuple(sorted(self.terms.members.keys() - absent))
        if not last < epoch < (MOST_EPOCHS, "") or epoch[0] < 1 or not sites:
            raise forbidden(f"epoch {epoch} of {len(sites)} sites, after {last}", "order")
        run = self._run(sites)
        state = run.schedule.init(run.state, sites, key=fold_in(run.key, 0))
        run = dataclasses.replace(run, state=dataclasses.replace(state, epoch=epoch))
        begun = dataclasses.replace(without_questions(memory), parts={})
        after = self._onward(self._at(begun, Course(run, asked=memory.course.asked), sites))
        entry = line("begun", epoch=epoch, sites=len(sites))
        return self._made(memory, after, entry, erase=memory.course.is_begun)

    def _goes_without(self, step: Step) -> Step:
        """Continue without members that do not answer; their open questions count as failed."""
        after: Any = step.memory
        for site in sorted(after.absent):
            asked = after.course.open.get(site)
            if asked is not None:
                answer = failed(asked, ABSENT)
                after = self._take(after, asked, answer, dumps(answer))
        return step.then(self._made(step.memory, after))

    def resume(self, memory: Any) -> Step:
        """Continue from a rest with more passes, in which all sites are asked again. Raises a
        Refusal if the server does not rest.
        """
        if memory.course.phase != "rest" or not memory.course.is_begun:
            raise forbidden("a server that is busy", "order")
        course = dataclasses.replace(memory.course, phase="look", sweeps=0)
        known = self._at(dataclasses.replace(memory, absent=frozenset()), course, ())
        return self._made(memory, self._onward(known), line("resumed"))

    # --- letters ---------------------------------------------------------------------------------

    def _receive_answer(self, memory: Any, sender: str, answer: letters.Answer) -> Step:
        """Take the answer of a site if it is to the site's open question. An invalid answer counts
        as a failure of its site, and the federation continues.
        """
        content = answer.content
        digest = digest_of(answer.content)
        asked = memory.course.open.get(sender)
        if asked is None or asked.digest != answer.question:
            refusal = forbidden(f"an unexpected answer of {sender!r}", "replay")
            return refused(memory, refusal, digest)
        step = Step(memory)
        total = memory.course.total
        try:
            taken, total = admitted_answer(self.terms, asked, content, total)
        except Refusal as refusal:
            taken = failed(asked, refusal.found)
            content = dumps(taken)
            step = refused(memory, refusal, digest)
        before: Any = step.memory
        before = before.with_course(proposed=total)
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

    # --- forgetting ------------------------------------------------------------------------------

    def _departed(self, known: ServerMemory, site: str) -> ServerMemory:
        """Return the server without a site's factor and all that holds it; the others are refined.
        If the remaining factors make no distribution, all sites train again from the prior.
        """
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

    def _buried(self, step: Step, known: Known, sender: str | None) -> Step:
        if known.site == self.name:
            raise forbidden("a tombstone of the server", "order", "one of another member")
        step = super()._buried(step, known, sender)
        memory: Any = step.memory
        after = self._departed(memory, known.site)
        return step.then(self._made(memory, self._onward(after)))

    def _returned(self, step: Step, site: str) -> Step:
        """Resume if the server rests, and a site returns without a factor or after a failure."""
        step = super()._returned(step, site)
        memory: Any = step.memory
        course = memory.course
        agreed = course.run.agreement
        asked = site in agreed.sites and site not in agreed.silent
        lacks = asked and site not in course.run.state.entries
        failed_last = any(each.outcome == "failed" for each in course.recent.get(site, ())[-1:])
        resumes = course.phase == "rest" and (lacks or failed_last)
        return step.then(self.resume(memory)) if resumes else step

    # --- status ----------------------------------------------------------------------------------

    def awaited(self, memory: Any) -> frozenset[str]:
        return frozenset(memory.course.open)

    def status(self, memory: Any) -> Status:
        """Return the status of the posterior when the server last came to rest."""
        course = memory.course
        return course.status or Status.of(math.inf, course.run.tolerance, ("nothing rests yet",))

    # --- helpers ---------------------------------------------------------------------------------

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

    def _made(self, before: Any, after: ServerMemory, *entries: bytes, erase: bool = False) -> Step:
        """Return the step between two memories, which sends what is new in the outbox."""
        course = after.course
        old = before.course
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
