"""The schedules, which say who updates when: over a server, one by one, all at once, or whenever
one is done.

A schedule is a pure machine: :meth:`Schedule.receive` takes the state and a message and gives the
state after it and the messages to be sent. It knows no records. A step begins with a
:class:`Turn`, then come the answers of the sites that it asks, and it ends with a :class:`Done`.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from posterity.arguments import POSITIVE, SHARE
from posterity.arrays.keys import exponential, fold_in
from posterity.arrays.typing import KeyArray
from posterity.errors import LedgerError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation.agreement import Agreement
from posterity.federation.keys import site_key
from posterity.federation.messages import Failure, Improve, Improvement
from posterity.federation.state import (
    Map,
    State,
    Visit,
    all_answered,
    answered,
    part_way,
    question,
    without_turn,
)
from posterity.inference.descent import HALVINGS
from posterity.sharing import History, SharedMap


@dataclasses.dataclass(frozen=True)
class Turn:
    """Tells a schedule to make its next step, or to go on with one that was broken off.

    ``key`` is that step's source of randomness. Over a graph ``site`` may name where the token has
    come to, if not where it was sent.
    """

    key: KeyArray
    site: str | None = None


@dataclasses.dataclass(frozen=True)
class Done:
    """Tells that a step is complete, and what happened in it."""

    visits: Sequence[Visit]


Received = Turn | Improvement | Failure
Sent = tuple[Improve | Done, ...]


@dataclasses.dataclass(frozen=True)
class Pending:
    """A step that is under way.

    ``turns`` are the sites that have a turn in it, of whom the first ``had`` had theirs;
    ``visits`` is what happened in these, ``bases`` for those that were asked the state that they
    were asked about, ``answers`` what came back from them, ``asked`` what they were asked.
    """

    key: KeyArray
    turns: tuple[str, ...]
    had: int = 0
    visits: Sequence[Visit] = ()
    bases: Mapping[str, State] = dataclasses.field(default_factory=dict)
    answers: Mapping[str, Improvement | Failure] = dataclasses.field(default_factory=dict)
    asked: Mapping[str, Improve] = dataclasses.field(default_factory=dict)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The sites that have not had their turn, nor answered."""
        return tuple(site for site in self.turns[self.had :] if site not in self.answers)

    @property
    def begun(self) -> bool:
        """Return whether a site has done its part."""
        return bool(self.visits or self.answers)


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """An order of visits, as pure ``init`` and ``receive``. By itself it lets the sites that
    :meth:`turns` names have their turns one after the other.
    """

    unit: ClassVar[str] = "rounds"
    """What one step is called."""
    whole: ClassVar[bool] = False
    """Whether every site has one turn in a step."""

    def init(self, state: State, sites: tuple[str, ...], *, key: KeyArray) -> State:
        """The state with what the schedule itself needs before the first step."""
        return state

    def receive(self, agreed: Agreement, state: State, message: Received) -> tuple[State, Sent]:
        """The state after a message, and the messages to be sent.

        A LedgerError if the message is an answer that nobody waits for; a SiteError if an answer is
        of no use, and the federation does not pass over that; a ParameterError if a site is to
        leave, and what is left would be no distribution.
        """
        if isinstance(message, Turn):
            pending = self._begun(agreed, state, message)
        else:
            pending = expected(state, message)
            after = answered(agreed, pending.bases[message.site], message, self.share)
            state, pending = self._happened(agreed, state, pending, *after)
        while pending.had < len(pending.turns):
            site, key = pending.turns[pending.had], pending.key
            base = self.seen(agreed, state, site)
            if base is None:
                after = state, Visit(state.step, site, "refused")
            elif (after := without_turn(agreed, base, site)) is None:
                asked = question(agreed, base, site, self.view(base, site), key)
                pending = dataclasses.replace(pending, bases={site: base}, asked={site: asked})
                return dataclasses.replace(state, pending=pending), (asked,)
            state, pending = self._happened(agreed, state, pending, *after)
        return _ended(state), (Done(pending.visits),)

    def _happened(
        self, agreed: Agreement, state: State, pending: Pending, after: State, visit: Visit
    ) -> tuple[State, Pending]:
        state, visit = self.concluded(agreed, state, after, visit, key=pending.key)
        visits = History.of(pending.visits).then([visit])
        return state, dataclasses.replace(pending, had=pending.had + 1, visits=visits)

    def _begun(self, agreed: Agreement, state: State, turn: Turn) -> Pending:
        if turn.site is not None:
            return Pending(turn.key, (turn.site,))
        return state.pending or Pending(turn.key, self.turns(agreed, state))

    def at_once(
        self, agreed: Agreement, state: State, factors: Mapping[str, ExponentialFamily]
    ) -> tuple[State, Sequence[Visit]] | None:
        """A step, and what happens in it, where ``factors`` are exact; None if site by site."""
        after = all_answered(agreed, state, factors) if state.pending is None else None
        return None if after is None else (_ended(after[0]), after[1])

    @property
    def share(self) -> float:
        """The share of a site's change that is taken, unless the model is conjugate."""
        return 1.0

    @abc.abstractmethod
    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        """The sites that have a turn in the next step, in this order."""

    def seen(self, agreed: Agreement, state: State, site: str) -> State | None:
        """The state that the site's turn begins with; None where it must not have one."""
        return state

    def view(self, state: State, site: str) -> ExponentialFamily:
        """The posterior that reaches the site."""
        return state.posterior

    def concluded(
        self, agreed: Agreement, state: State, after: State, visit: Visit, *, key: KeyArray
    ) -> tuple[State, Visit]:
        """Return what follows a turn that led from the seen state to ``after``."""
        return after, visit

    def round(self, sites: int) -> int:
        """Steps after which every site has had a turn, or may be expected to."""
        return 1

    @property
    def rule(self) -> str:
        """The rule in words: who has a turn when."""
        return f"{type(self).__name__}, {self.unit}"

    def learn(self, state: State, changed: Map) -> State:
        """The state, in a new epoch, once entries were changed other than by the schedule."""
        return state.renewed()


@dataclasses.dataclass(frozen=True)
class Machine:
    """A federation but for its sites: what all know, and who updates when."""

    agreement: Agreement
    schedule: Schedule

    def receive(self, state: State, message: Received) -> tuple[State, Sent]:
        """The state after a message, and the messages to be sent; see :class:`Schedule`."""
        return self.schedule.receive(self.agreement, state, message)


@dataclasses.dataclass(frozen=True)
class Sequential(Schedule):
    """Each site in turn, seeing what all before it did; one step is one pass over all sites.

    Source: bui2018, sequential PVI.
    """

    whole: ClassVar[bool] = True

    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        return agreed.sites


@dataclasses.dataclass(frozen=True)
class Synchronous(Schedule):
    """All sites at once from the same posterior; one step is one round.

    Each change is taken to the share ``damping``; where their sum would make the posterior
    improper, all shares are halved until it is proper, or after 40 times all are refused. Undamped
    rounds may oscillate where sites share what they know (bui2018, section 3); a damping of one
    over the number of sites is the cautious end. Factors of conjugate models are never damped:
    they are exact.

    Source: bui2018, synchronous PVI.
    """

    damping: float = 0.5

    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        SHARE.check(damping=self.damping)

    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        return tuple(s for s in agreed.sites if without_turn(agreed, state, s) is None)

    def receive(self, agreed: Agreement, state: State, message: Received) -> tuple[State, Sent]:
        if isinstance(message, Turn):
            pending, view = self._begun(agreed, state, message), state.posterior
            sent = tuple(question(agreed, state, s, view, pending.key) for s in pending.waiting)
            pending = dataclasses.replace(pending, asked={asked.site: asked for asked in sent})
        else:
            pending = expected(state, message)
            answers = SharedMap.of(pending.answers) | {message.site: message}
            pending, sent = dataclasses.replace(pending, answers=answers), ()
        if len(pending.answers) < len(pending.turns):
            return dataclasses.replace(state, pending=pending), sent
        return self._concluded(agreed, dataclasses.replace(state, pending=None), pending.answers)

    def _concluded(
        self, agreed: Agreement, state: State, answers: Mapping[str, Improvement | Failure]
    ) -> tuple[State, Sent]:
        # On its own each site's change must be good: a bad site is found by name.
        alone = {
            site: answered(agreed, state, answers[site])
            if site in answers
            else (state, Visit(state.step, site, "relayed"))
            for site in agreed.sites
        }
        changed = {site: after for site, (after, v) in alone.items() if v.outcome == "updated"}
        visits = tuple(visit for _, visit in alone.values())
        together = _together(agreed, state, changed, self.damping)
        if together is None:
            refused = lambda v: dataclasses.replace(v, outcome="refused")
            visits = tuple(refused(v) if v.outcome == "updated" else v for v in visits)
            together = state
        return _ended(together), (Done(visits),)


@dataclasses.dataclass(frozen=True)
class Asynchronous(Schedule):
    """Sites work on the posterior they last fetched and report when done; a step is one report.

    All begin at the prior, and fetch the current posterior when they report. Working times are
    exponential with mean ``1 / speed`` (``speeds`` by site; 1 by default), on a simulated clock.
    A change that would make the current posterior improper is halved until it does not. Factors
    of conjugate models are never damped: they are exact.

    Source: bui2018, asynchronous PVI.
    """

    damping: float = 1.0
    speeds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    unit: ClassVar[str] = "reports"

    def __post_init__(self) -> None:
        SHARE.check(damping=self.damping)
        POSITIVE.check(**{f"speed of site {site!r}": v for site, v in self.speeds.items()})

    @property
    def share(self) -> float:
        return self.damping

    def init(self, state: State, sites: tuple[str, ...], *, key: KeyArray) -> State:
        """The first state: when each site reports, how often it has, and what it works on; None is
        the prior.
        """
        unknown = sorted(set(self.speeds) - set(sites))
        if unknown:
            raise UsageError(
                found=f"speeds of {unknown}", expected=f"sites of {list(sites)}", fix="Check names."
            )
        done = {site: self._duration(site, 0, key) for site in sites}
        zeros, nothing = dict.fromkeys(sites, 0), dict.fromkeys(sites)
        own = {"done": done, "reports": zeros, "fetched": nothing}
        return dataclasses.replace(state, schedule=own)

    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        done = state.schedule["done"]
        return (min(done, key=lambda name: (done[name], name)),)

    def view(self, state: State, site: str) -> ExponentialFamily:
        """The state that the site fetched, its own factor as it was then among it."""
        return state.schedule["fetched"].get(site, state.posterior) or state.prior

    def concluded(
        self, agreed: Agreement, state: State, after: State, visit: Visit, *, key: KeyArray
    ) -> tuple[State, Visit]:
        own, site = state.schedule, visit.site
        reports = {**own["reports"], site: own["reports"][site] + 1}
        wait = self._duration(site, reports[site], key)
        schedule = {
            "done": {**own["done"], site: own["done"][site] + wait},
            "reports": reports,
            "fetched": {**own["fetched"], site: after.posterior},
        }
        return dataclasses.replace(after, schedule=schedule), visit

    def round(self, sites: int) -> int:
        return sites

    def learn(self, state: State, changed: Map) -> State:
        """All fetch anew: what they hold was seen together with the site that left."""
        schedule = {**state.schedule, "fetched": {}}
        return dataclasses.replace(super().learn(state, changed), schedule=schedule)

    def _duration(self, site: str, report: int, key: KeyArray) -> float:
        own_key = fold_in(site_key(key, site), report)
        return exponential(own_key) / self.speeds.get(site, 1.0)


def expected(state: State, answer: Improvement | Failure) -> Pending:
    """The step in which this answer is awaited; a LedgerError if there is none: the answer is a
    duplicate, or one to an older question.
    """
    pending: Pending | None = state.pending
    asked = None if pending is None else pending.asked.get(answer.site)
    awaited = pending is not None and answer.site not in pending.answers
    if pending is None or asked is None or not (awaited and answer.answers(asked)):
        raise LedgerError(
            found=f"an answer of site {answer.site!r} that nobody waits for, to a question of "
            f"epoch {answer.epoch[0]}, step {answer.step}",
            expected="an answer to the question that was asked last, of "
            f"epoch {state.epoch[0]}, step {state.step}",
            fix="Drop it: it is a replay, or was overtaken.",
        )
    return pending


def _ended(state: State) -> State:
    return dataclasses.replace(state, step=state.step + 1, pending=None)


def _together(
    agreed: Agreement, start: State, changed: Mapping[str, State], damping: float
) -> State | None:
    """``start`` with the change of each site, all to one share, the largest that is admitted. None
    if no share is: where posteriors that the model admits are no convex set. A ParameterError if a
    sum is beyond the range of float64.
    """
    largest = 1.0 if agreed.update.conjugate else damping
    counts = start.counts | {site: after.counts[site] for site, after in changed.items()}
    for halvings in range(HALVINGS):
        share, entries = largest / 2**halvings, {}
        for site, after in changed.items():
            entry = after.entries[site]
            factor = part_way(start.factor(site), after.factor(site), share)
            alone = entry.independent and share == 1
            entries[site] = entry._replace(factor=factor, independent=alone)
        state = start.with_entries(start.entries | entries)
        if agreed.admits(state.posterior):
            return dataclasses.replace(state, counts=counts)
    return None
