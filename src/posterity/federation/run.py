"""A federation up to some step, and the ways to go on from there."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax

from posterity.errors import LedgerError, PosterityError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation.gossip import Gossip, Token, deliver, leave_when_reached, token_of
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
        return self.problem.update.conjugate

    def advance(self, steps: int, *, callback: Callback | None = None) -> "Run":
        """The run after ``steps`` more steps of its schedule.

        Raises:
            SiteError: as in :func:`federate`.
        """
        if steps < 0:
            raise UsageError(found=f"steps={steps}", expected="zero or more", fix="Mend it.")
        run = self
        for _ in range(steps):
            run = run._stepped(run.schedule.step)
            if callback is not None:
                callback(run)
        return run

    def sweep(self, sweeps: int = 1, *, callback: Callback | None = None) -> "Run":
        """The run after every site has had its turn ``sweeps`` times, whatever the schedule."""
        run = self
        for _ in range(sweeps):
            run = run._stepped(Sequential().step)
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
        """
        for site in sites:
            self._check_known(site)
        if when == "visit":
            self._check_gossip()
            return dataclasses.replace(self, state=leave_when_reached(self.state, *sites))
        state = self.state.without(*sites)
        for site in sites:
            state = self._replaced(state, site)
        gone = (Visit(state.step, site, "forgotten") for site in sites)
        return dataclasses.replace(self, state=state, history=(*self.history, *gone))

    def rejoin(self, site: str) -> "Run":
        """The run with a forgotten site let in again, under a new epoch.

        Raises:
            LedgerError: if the site is unknown or was not forgotten.
        """
        self._check_known(site)
        state = self._replaced(self.state.rejoined(site), site)
        return dataclasses.replace(self, state=state)

    def restarted(self) -> "Run":
        """The run with every factor zero again, to train anew those who are left."""
        state, zero = self.state, self.state.prior.zero()
        entries = {
            site: entry if entry.factor is None else Entry(entry.epoch, entry.sequence + 1, zero)
            for site, entry in state.entries.items()
        }
        state = dataclasses.replace(state, posterior=state.prior, entries=entries, counts={})
        for site in self.sites:
            state = self._replaced(state, site) if site in entries else state
        return dataclasses.replace(self, state=state)

    @property
    def token(self) -> Token:
        """The token on its way to the next site (gossip only)."""
        self._check_gossip()
        return token_of(self.state)

    def deliver(self, token: Token, site: str) -> "Run":
        """The run after a site receives a token, from wherever (gossip only).

        Raises:
            LedgerError: unless it is the current token, or the one the site answered last.
        """
        self._check_gossip()
        self._check_known(site)
        key = self._step_key()
        state, happened = deliver(self.problem, self.state, token, site=site, key=key)
        return dataclasses.replace(self, state=state, history=(*self.history, happened))

    def _stepped(self, step: Callable[..., Step]) -> "Run":
        try:
            state, visits = step(self.problem, self.state, key=self._step_key())
        except PosterityError as error:
            error.run = self  # type: ignore[attr-defined]  # where to go on from
            raise
        state = dataclasses.replace(state, step=state.step + 1)
        return dataclasses.replace(self, state=state, history=(*self.history, *visits))

    def _step_key(self) -> jax.Array:
        return jax.random.fold_in(self.key, self.state.step + 1)

    def _replaced(self, state: State, site: str) -> State:
        own = self.schedule.replace(state.schedule, site, state.entries[site])
        return dataclasses.replace(state, schedule=own)

    def _check_known(self, site: str) -> None:
        if site not in self.problem.sites:
            raise LedgerError(
                found=f"site {site!r}",
                expected=f"one of {list(self.problem.sites)}",
                fix="Check the name of the site.",
            )

    def _check_gossip(self) -> None:
        if not isinstance(self.schedule, Gossip):
            raise UsageError(
                found=f"schedule {type(self.schedule).__name__}",
                expected="Gossip, which alone has one token",
                fix="Use `advance` and `forget`.",
            )
