"""A federation up to some step, and the ways to go on from there."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Literal

import jax

from posterity.errors import LedgerError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation.gossip import Gossip, Token, is_answered, token_of
from posterity.federation.schedules import Schedule, Sequential, Step
from posterity.federation.state import Problem, State, Visit
from posterity.ledger import Entry, Ledger

Callback = Callable[["Run"], None]


@dataclasses.dataclass(frozen=True)
class Run:
    """A federation up to some step. Immutable: whatever goes on from it gives a new run."""

    problem: Problem
    schedule: Schedule
    state: State
    key: jax.Array
    history: tuple[Visit, ...] = ()

    @property
    def posterior(self) -> ExponentialFamily:
        """The current posterior."""
        return self.state.posterior

    @property
    def ledger(self) -> Ledger:
        """The prior and every site's factor; its posterior is the run's, to the last bit."""
        return self.state.ledger

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that have not been forgotten, sorted."""
        return tuple(s for s in self.problem.sites if not self.state.is_forgotten(s))

    @property
    def exact(self) -> bool:
        """Whether each factor depends on its own site's data alone: forgetting is then exact."""
        entries = self.state.entries.values()
        alone = all(entry.independent for entry in entries if entry.factor is not None)
        return self.problem.update.conjugate and alone

    def advance(self, steps: int, *, callback: Callback | None = None) -> "Run":
        """The run after ``steps`` more steps of its schedule.

        Raises:
            SiteError: as in :func:`federate`. Of whatever ends a step, an interrupt of the
                keyboard among it, the attribute ``run`` is the run before that step.
        """
        _check_count(steps, "steps")
        run = self
        for _ in range(steps):
            run = run._stepped(run.schedule.step)
            if callback is not None:
                callback(run)
        return run

    def sweep(self, sweeps: int = 1, *, callback: Callback | None = None) -> "Run":
        """The run after every site has had its turn ``sweeps`` times, whatever the schedule.

        Raises:
            SiteError: as ``advance`` does.
        """
        _check_count(sweeps, "sweeps")
        run = self
        for _ in range(sweeps):
            swept = run._stepped(Sequential().step)
            run = swept._replaced(swept.state, run.problem.sites)
            if callback is not None:
                callback(run)
        return run

    def forget(self, *sites: str, when: Literal["now", "visit"] = "now") -> "Run":
        """The run without these sites' factors, before anything is refined.

        With ``when="visit"`` (gossip only) each factor leaves when the token next comes to its
        site; the walk goes on meanwhile. A forgotten site still relays the token. To forget with
        refinement and a receipt, see :func:`posterity.forget`.

        Raises:
            LedgerError: if a site is unknown or was forgotten; nothing is forgotten then.
            ParameterError: if what is left is no distribution, which can happen where models are
                not conjugate; nothing is forgotten then.
            UsageError: if ``when`` is something else, or "visit" without gossip.
        """
        for site in sites:
            self._check_known(site)
        if when == "visit":
            self._check_gossip()
            return dataclasses.replace(self, state=self.state.leave_in_turn(self.problem, *sites))
        if when != "now":
            raise UsageError(
                found=f"when={when!r}", expected="'now' or 'visit'", fix="Choose one of these."
            )
        run = self._replaced(self.state.without(self.problem, *sites), sites)
        gone = (Visit(run.state.step, site, "forgotten") for site in sites)
        return dataclasses.replace(run, history=(*run.history, *gone))

    def rejoin(self, site: str) -> "Run":
        """The run with a forgotten site let in again, under a new epoch.

        Raises:
            LedgerError: if the site is unknown or was not forgotten.
        """
        self._check_known(site)
        return self._replaced(self.state.rejoined(site), [site])

    def restarted(self) -> "Run":
        """The run with every factor zero again, to train anew those who are left."""
        state, zero = self.state, self.state.prior.zero()
        entries = {
            site: entry
            if entry.factor is None
            else Entry(entry.epoch, entry.sequence + 1, zero, independent=True)
            for site, entry in state.entries.items()
        }
        state = dataclasses.replace(state.with_entries(entries), counts={})
        return self._replaced(state, entries)

    @property
    def token(self) -> Token:
        """The token on its way to the next site (gossip only)."""
        self._check_gossip()
        return token_of(self.state)

    def deliver(self, token: Token, site: str) -> "Run":
        """The run after a site receives a token, from wherever (gossip only); a step of its own.

        The newest token may reach any site: the order of visits does not matter to what factors
        mean, so one that went astray is answered by whom it reaches, and walks on from there. If
        the site has answered it, and its answer is the newest token, nothing changes.

        Raises:
            LedgerError: if the token is of another epoch, overtaken, not yet issued, or altered.
        """
        gossip = self._check_gossip()
        self._check_known(site)
        if is_answered(self.state, token, site):
            relayed = Visit(self.state.step, site, "relayed")
            return dataclasses.replace(self, history=(*self.history, relayed))
        return self._stepped(functools.partial(gossip.receive, site=site))

    def _stepped(self, step: Callable[..., Step]) -> "Run":
        key = jax.random.fold_in(self.key, self.state.step + 1)
        try:
            state, visits = step(self.problem, self.state, key=key)
        except BaseException as error:
            error.run = self  # type: ignore[attr-defined]  # where to go on from
            raise
        state = dataclasses.replace(state, step=state.step + 1)
        return dataclasses.replace(self, state=state, history=(*self.history, *visits))

    def _replaced(self, state: State, sites: Iterable[str]) -> "Run":
        """With a state in which these sites were changed other than by the schedule."""
        changed = {site: state.entries[site] for site in sites if site in state.entries}
        own = self.schedule.replace(state.schedule, changed)
        return dataclasses.replace(self, state=dataclasses.replace(state, schedule=own))

    def _check_known(self, site: str) -> None:
        if site not in self.problem.sites:
            raise LedgerError(
                found=f"site {site!r}",
                expected=f"one of {list(self.problem.sites)}",
                fix="Check the name of the site.",
            )

    def _check_gossip(self) -> Gossip:
        if not isinstance(self.schedule, Gossip):
            raise UsageError(
                found=f"schedule {type(self.schedule).__name__}",
                expected="Gossip, which alone has one token",
                fix="Use `advance` and `forget`.",
            )
        return self.schedule


def _check_count(number: int, name: str) -> None:
    if number < 0:
        raise UsageError(
            found=f"{name}={number}", expected="zero or more", fix="Mend this argument."
        )
