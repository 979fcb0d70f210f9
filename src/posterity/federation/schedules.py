"""Schedules over a server, which determine the order of updates: sequential, synchronous or
asynchronous.

A schedule is a pure state machine: :meth:`Schedule.receive` takes the state and a message, and
returns the next state and the messages to send. It has no access to records. A step begins with
a :class:`Turn`, continues with the answers of the queried sites, and ends with a :class:`Done`.
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
    committed,
    question,
    without_turn,
)
from posterity.runtime.sharing import SharedMap


@dataclasses.dataclass(frozen=True)
class Turn:
    """The message that starts the next step of a schedule, or resumes an interrupted one; ``key``
    is that step's source of randomness.
    """

    key: KeyArray


@dataclasses.dataclass(frozen=True)
class Done:
    """The message that a step is complete, with its visits."""

    visits: Sequence[Visit]


Received = Turn | Improvement | Failure
Sent = tuple[Improve | Done, ...]


@dataclasses.dataclass(frozen=True)
class Pending:
    """A step in progress.

    ``turns`` are the sites that have a turn in it; the first ``had`` turns are complete, and
    ``visits`` records them. By site, ``asked`` are the questions that were sent, ``bases`` the
    states that these refer to, and ``answers`` the answers so far.
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
        """The sites whose turn is not complete and that have not answered."""
        return tuple(site for site in self.turns[self.had :] if site not in self.answers)

    @property
    def begun(self) -> bool:
        """True if at least one site has completed its turn or answered."""
        return bool(self.visits or self.answers)


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """An order of visits, with pure ``init`` and ``receive``. By default the sites that
    :meth:`turns` returns have their turns one after the other.
    """

    unit: ClassVar[str] = "rounds"
    """The name of the steps, in the plural."""
    whole: ClassVar[bool] = False
    """True if every site has one turn per step."""

    def init(self, state: State, sites: tuple[str, ...], *, key: KeyArray) -> State:
        """Return the state with the schedule's own part as it is before the first step."""
        return state

    def receive(self, agreed: Agreement, state: State, message: Received) -> tuple[State, Sent]:
        """Return the state after a message, and the messages to send.

        Raises LedgerError if the message is an answer that is not awaited. Raises SiteError if an
        answer is unusable, unless the federation skips sites that fail. Raises ParameterError if
        the posterior would be improper without a site that is to leave.
        """
        if isinstance(message, Turn):
            pending = self._begun(agreed, state, message)
        else:
            pending = expected(state, message)
            after = answered(agreed, pending.bases[message.site], message, self.share)
            state, pending = self._happened(agreed, state, pending, *after)
        while pending.had < len(pending.turns):
            site = pending.turns[pending.had]
            key = pending.key
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
        visits = (*pending.visits, visit)
        return state, dataclasses.replace(pending, had=pending.had + 1, visits=visits)

    def _begun(self, agreed: Agreement, state: State, turn: Turn) -> Pending:
        return state.pending or Pending(turn.key, self.turns(agreed, state))

    def at_once(
        self, agreed: Agreement, state: State, factors: Mapping[str, ExponentialFamily]
    ) -> tuple[State, Sequence[Visit]] | None:
        """Return state and visits of a step with exact ``factors``; None if made site by site."""
        after = all_answered(agreed, state, factors) if state.pending is None else None
        return None if after is None else (_ended(after[0]), after[1])

    @property
    def share(self) -> float:
        """The share of a site's change that is applied if the model is not conjugate."""
        return 1.0

    @abc.abstractmethod
    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        """Return the sites that have a turn in the next step, in their order."""

    def seen(self, agreed: Agreement, state: State, site: str) -> State | None:
        """Return the state in which the site's turn begins; None if the turn is refused."""
        return state

    def view(self, state: State, site: str) -> ExponentialFamily:
        """Return the posterior that is sent to the site."""
        return state.posterior

    def concluded(
        self, agreed: Agreement, state: State, after: State, visit: Visit, *, key: KeyArray
    ) -> tuple[State, Visit]:
        """Return the state and the visit that follow a turn from the seen state to ``after``."""
        return after, visit

    def round(self, sites: int) -> int:
        """Return the (expected) number of steps after which every site has had a turn."""
        return 1

    @property
    def rule(self) -> str:
        """A description of the order of turns."""
        return f"{type(self).__name__}, {self.unit}"

    def learn(self, state: State, changed: Map) -> State:
        """Return the state in a new epoch, after other code than the schedule changed entries."""
        return state.renewed()


@dataclasses.dataclass(frozen=True)
class Machine:
    """A federation without its sites: the agreement and the schedule."""

    agreement: Agreement
    schedule: Schedule

    def receive(self, state: State, message: Received) -> tuple[State, Sent]:
        """Return the state after a message, and the messages to send; see :class:`Schedule`."""
        return self.schedule.receive(self.agreement, state, message)


@dataclasses.dataclass(frozen=True)
class Sequential(Schedule):
    """Sites update in turn, each from the latest posterior; a step is one pass over all sites.

    Source: bui2018, sequential PVI.

    >>> import numpy as np
    >>> from posterity import Beta, federate
    >>> from posterity.models import BetaBernoulli
    >>> sites, prior = {"a": np.array([1, 0]), "b": np.array([1])}, Beta.from_standard(1.0, 1.0)
    >>> federate(sites, BetaBernoulli(), prior, schedule=Sequential(), steps=1).posterior
    Beta(0.6 ± 0.2)
    """

    whole: ClassVar[bool] = True

    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        return agreed.sites


@dataclasses.dataclass(frozen=True)
class Synchronous(Schedule):
    """All sites update at once from the same posterior; one step is one round.

    The share ``damping`` of each change is applied. If the posterior would be improper, all shares
    are halved until it is proper; after 40 halvings all changes are refused. Undamped rounds may
    oscillate if sites have the same information (bui2018, section 3); a damping of one over the
    number of sites is the cautious choice. Factors of conjugate models are exact and not damped.

    Source: bui2018, synchronous PVI.

    >>> import numpy as np
    >>> from posterity import Beta, federate
    >>> from posterity.models import BetaBernoulli
    >>> sites, prior = {"a": np.array([1, 0]), "b": np.array([1])}, Beta.from_standard(1.0, 1.0)
    >>> federate(sites, BetaBernoulli(), prior, schedule=Synchronous(), steps=1).posterior
    Beta(0.6 ± 0.2)
    """

    damping: float = 0.5

    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        SHARE.check(damping=self.damping)

    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        return tuple(s for s in agreed.sites if without_turn(agreed, state, s) is None)

    def receive(self, agreed: Agreement, state: State, message: Received) -> tuple[State, Sent]:
        if isinstance(message, Turn):
            pending = self._begun(agreed, state, message)
            view = state.posterior
            sent = tuple(question(agreed, state, s, view, pending.key) for s in pending.waiting)
            pending = dataclasses.replace(pending, asked={asked.site: asked for asked in sent})
        else:
            pending = expected(state, message)
            answers = SharedMap.of(pending.answers) | {message.site: message}
            pending = dataclasses.replace(pending, answers=answers)
            sent = ()
        if len(pending.answers) < len(pending.turns):
            return dataclasses.replace(state, pending=pending), sent
        return self._concluded(agreed, dataclasses.replace(state, pending=None), pending.answers)

    def _concluded(
        self, agreed: Agreement, state: State, answers: Mapping[str, Improvement | Failure]
    ) -> tuple[State, Sent]:
        # Each site's change must also be usable without the others, so that errors name the site.
        alone = {site: answered(agreed, state, answer) for site, answer in answers.items()}
        changed = {s: a.entries[s] for s, (a, v) in alone.items() if v.outcome == "updated"}
        together, _ = committed(agreed, state, changed, self.damping)
        visits = {site: Visit(state.step, site, "relayed") for site in agreed.sites}
        visits |= {site: visit for site, (_, visit) in alone.items()}
        if together is None:
            for site in changed:
                visits[site] = dataclasses.replace(visits[site], outcome="refused")
        return _ended(together or state), (Done(tuple(visits.values())),)


@dataclasses.dataclass(frozen=True)
class Asynchronous(Schedule):
    """Sites update the posterior that they last fetched and report when done; a step is one report.

    All begin at the prior, and fetch the current posterior when they report. Working times are
    exponential with mean ``1 / speed`` (``speeds`` by site; 1 by default), on a simulated clock.
    The share ``damping`` of each change is applied; a change that would make the current posterior
    improper is halved until it does not. Factors of conjugate models are exact and not damped.

    Source: bui2018, asynchronous PVI.

    >>> import numpy as np
    >>> from posterity import Beta, federate
    >>> from posterity.models import BetaBernoulli
    >>> sites, prior = {"a": np.array([1, 0]), "b": np.array([1])}, Beta.from_standard(1.0, 1.0)
    >>> schedule = Asynchronous(speeds={"a": 10.0, "b": 1.0})
    >>> federate(sites, BetaBernoulli(), prior, schedule=schedule).posterior
    Beta(0.6 ± 0.2)
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
        """Return the state with, by site, the time of its next report, the number of its reports,
        and the posterior that it fetched (None is the prior).
        """
        unknown = sorted(set(self.speeds) - set(sites))
        if unknown:
            raise UsageError(found=f"speeds of {unknown}", expected=f"sites of {list(sites)}")
        done = {site: self._duration(site, 0, key) for site in sites}
        own = {"done": done, "reports": dict.fromkeys(sites, 0), "fetched": dict.fromkeys(sites)}
        return dataclasses.replace(state, schedule=own)

    def turns(self, agreed: Agreement, state: State) -> tuple[str, ...]:
        done = state.schedule["done"]
        return (min(done, key=lambda name: (done[name], name)),)

    def view(self, state: State, site: str) -> ExponentialFamily:
        """Return the posterior that the site fetched, including its own factor at that time."""
        return state.schedule["fetched"].get(site, state.posterior) or state.prior

    def concluded(
        self, agreed: Agreement, state: State, after: State, visit: Visit, *, key: KeyArray
    ) -> tuple[State, Visit]:
        own = state.schedule
        site = visit.site
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
        """Let all sites fetch again, since what they fetched includes factors that have changed."""
        schedule = {**state.schedule, "fetched": {}}
        return dataclasses.replace(super().learn(state, changed), schedule=schedule)

    def _duration(self, site: str, report: int, key: KeyArray) -> float:
        own_key = fold_in(site_key(key, site), report)
        return exponential(own_key) / self.speeds.get(site, 1.0)


def expected(state: State, answer: Improvement | Failure) -> Pending:
    """Return the step that awaits this answer. Raises LedgerError if there is none, since the
    answer is a duplicate, or answers an older question.
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
