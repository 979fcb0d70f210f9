"""The driver of a federation: it carries messages between a schedule and sites."""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from posterity.arrays.typing import KeyArray
from posterity.entries import Entry, all_at_rest
from posterity.errors import SiteError
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.factors import symmetrical
from posterity.federation.messages import Answer, Failure, Question
from posterity.federation.schedules import Done, Machine, Turn
from posterity.federation.site import Site, failure_of
from posterity.federation.state import State, Visit, without_turn
from posterity.inference.update import exact_factor
from posterity.models import Records


class Courier(Protocol):
    """What brings questions to sites in other processes, and their answers back."""

    def prepare(self, questions: Sequence[Question]) -> None:
        """Send questions that do not depend on each other's answers, before they are asked."""

    def demand(self, question: Question) -> Answer:
        """Return the answer to a question; raise SiteError if the site cannot be asked."""
        ...


@dataclasses.dataclass(frozen=True)
class Federation:
    """The agreement of a federation and its sites in this process, or the ``courier`` to those that
    are in others; ``before`` has the entries of the ledger from which it continued, if any.
    """

    agreement: Agreement
    sites: Mapping[str, Site]
    before: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    courier: Courier | None = None

    @property
    def data(self) -> dict[str, Records]:
        """The records of the sites in this process, by name."""
        return {name: site.records for name, site in self.sites.items()}

    @functools.cached_property
    def records(self) -> dict[str, int]:
        """The number of records of each site."""
        return {name: site.records.size for name, site in self.sites.items()}

    def prepare(self, questions: Sequence[Question]) -> None:
        """Prepare questions that do not depend on each other's answers, before they are asked: a
        courier sends them all at once.
        """
        if self.courier is not None:
            self.courier.prepare(questions)

    def ask(self, question: Question) -> Answer:
        """Return the answer of the site that a question is for. If the site fails, raise SiteError,
        or return a :class:`~posterity.federation.messages.Failure` if the federation skips sites
        that fail.
        """
        try:
            return self.demand(question)
        except self.agreement.skipped as failure:
            return Failure(question.site, str(failure), **question.about)

    def demand(self, question: Question) -> Answer:
        """Return the answer to a question; raise SiteError if the site fails, in every case."""
        if self.courier is not None:
            answer = self.courier.demand(question)
        else:
            try:
                answer = self.sites[question.site].answer(question)
            except Exception as error:
                raise failure_of(error, question.site) from error
        if isinstance(answer, Failure) or not answer.answers(question):
            raise SiteError(
                found=f"no answer of site {question.site!r} but {answer!r}",
                expected="an answer to the question that it was sent",
                fix="Mend the site, then go on from the last state; its factor was not changed.",
            )
        return answer

    def step(
        self, machine: Machine, state: State, *, key: KeyArray
    ) -> Iterator[tuple[State, Sequence[Visit]]]:
        """Make one step of a schedule; yield the state after each message, and the visits at the
        end. Errors are those of ``receive`` and ``ask``.
        """
        whole = self._at_once(machine, state)
        if whole is not None:
            yield whole
            return
        state, more = machine.receive(state, Turn(key))
        sent = collections.deque(more)
        visits = ()
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
        """Return a step of local sites that all have exact factors, made at once; else None."""
        agreed = machine.agreement
        schedule = machine.schedule
        if self.courier is not None or not (agreed.update.conjugate and schedule.whole):
            return None
        try:
            turns = [s for s in agreed.sites if without_turn(agreed, state, s) is None]
            factors = exact_factors([self.sites[site] for site in turns])
            return schedule.at_once(agreed, state, factors)
        except Exception:  # a site that fails is reported by name at its own turn
            return None


def exact_factors(sites: Sequence[Site]) -> dict[str, ExponentialFamily]:
    """Return :attr:`Site.exact` of many sites of one federation, by name, checked together.

    Raises:
        StructureError, ParameterError: as ``Site.exact`` does, if any of them does.
    """
    new = {site.name: site for site in sites if "exact" not in site.__dict__}
    if new:
        prior = sites[0].agreement.prior
        found = {n: exact_factor(s.update, s.model, s.records) for n, s in new.items()}
        for site, factor in zip(new.values(), all_at_rest(prior, found), strict=True):
            site.__dict__["exact"] = symmetrical(factor)
    return {site.name: site.exact for site in sites}
