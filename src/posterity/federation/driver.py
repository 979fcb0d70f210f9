"""The driver that has all sites in this process, and carries messages to them."""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from posterity.arrays.typing import KeyArray
from posterity.entries import Entry
from posterity.errors import SiteError
from posterity.federation.agreement import Agreement
from posterity.federation.messages import Answer, Failure, Question
from posterity.federation.schedules import Done, Machine, Turn
from posterity.federation.site import Site, exact_factors, failure_of
from posterity.federation.state import State, Visit, without_turn
from posterity.models import Records


@dataclasses.dataclass(frozen=True)
class Federation:
    """The agreement of a federation, and its sites; ``before`` are entries of a ledger that it went
    on from.
    """

    agreement: Agreement
    sites: Mapping[str, Site]
    before: Mapping[str, Entry] = dataclasses.field(default_factory=dict)

    @property
    def data(self) -> dict[str, Records]:
        """The records of the sites, for who sets a computation up within this process."""
        return {name: site.records for name, site in self.sites.items()}

    @functools.cached_property
    def records(self) -> dict[str, int]:
        """The number of records of each site."""
        return {name: site.records.size for name, site in self.sites.items()}

    def prepare(self, questions: Sequence[Question]) -> None:
        """Called with questions of which none waits for another's answer, before they are asked.
        Where all sites are in this process nothing has to be done; a driver with sites elsewhere
        sends them all at once.
        """

    def ask(self, question: Question) -> Answer:
        """The answer of the site that a question is for; a SiteError if the site fails, unless the
        federation passes over such sites: then the answer is a
        :class:`~posterity.federation.messages.Failure`.
        """
        try:
            return self.demand(question)
        except SiteError as failure:
            if self.agreement.on_error == "raise":
                raise
            return Failure(question.site, str(failure), **question.about)

    def demand(self, question: Question) -> Answer:
        """The answer to a question that nobody can be passed over for; a SiteError if it fails."""
        try:
            answer = self.answered(question)
        except Exception as error:
            raise failure_of(error, question.site) from error
        if isinstance(answer, Failure) or not answer.answers(question):
            raise SiteError(
                found=f"no answer of site {question.site!r} but {answer!r}",
                expected="an answer to the question that it was sent",
                fix="Mend the site, then go on from the last state; its factor was not changed.",
            )
        return answer

    def answered(self, question: Question) -> Answer:
        """The site's own answer; a driver with sites elsewhere overrides this."""
        return self.sites[question.site].answer(question)

    def step(
        self, machine: Machine, state: State, *, key: KeyArray, site: str | None = None
    ) -> Iterator[tuple[State, Sequence[Visit]]]:
        """One step of a schedule: the state after each message, at last with what happened. Errors
        are those of ``receive`` and ``ask``.
        """
        if (whole := self._at_once(machine, state)) is not None:
            yield whole
            return
        state, more = machine.receive(state, Turn(key, site))
        sent, visits = collections.deque(more), ()
        yield state, visits
        while sent:
            message = sent.popleft()
            if isinstance(message, Done):
                visits = message.visits
            else:
                state, more = machine.receive(state, self.ask(message))  # pyright: ignore[reportArgumentType]
                sent += more
            yield state, visits

    def _at_once(self, machine: Machine, state: State) -> tuple[State, Sequence[Visit]] | None:
        """A step in which each site, all of them here, gives its exact factor; None if not so."""
        agreed, schedule = machine.agreement, machine.schedule
        here = type(self).answered is Federation.answered
        if not (here and agreed.update.conjugate and schedule.whole):
            return None
        try:
            turns = [s for s in agreed.sites if without_turn(agreed, state, s) is None]
            factors = exact_factors([self.sites[site] for site in turns])
        except Exception:  # whoever fails is told by name when its turn comes
            return None
        return schedule.at_once(agreed, state, factors)
