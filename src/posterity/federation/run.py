"""A federation up to some step, and the ways to go on from there."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Literal

import jax

from posterity.arguments import NATURAL, POSITIVE, one_of
from posterity.errors import LedgerError, SiteError, UsageError
from posterity.families import ExponentialFamily
from posterity.families.description import posterior_line
from posterity.federation.gossip import Gossip, OverGraph, Token, is_answered, token_of
from posterity.federation.keys import fold_in
from posterity.federation.personal import SitePosterior, site_posterior
from posterity.federation.schedules import Schedule, Sequential, Step
from posterity.federation.settle import creeps, settled, stiffness
from posterity.federation.state import State
from posterity.federation.status import TOLERANCE, Status, status_of
from posterity.federation.visit import Federation, Visit, leave
from posterity.ledger import Ledger
from posterity.notebook import html
from posterity.text import cut, listed

Callback = Callable[["Run"], None]
WHEN = one_of("now", "visit")


ROUNDS = 100
"""Rounds after which a run that has not converged ends, unless told otherwise."""
NOISY_ROUNDS = 5
"""Rounds between two looks at a run whose gradients are noisy, where a look costs some rounds."""


@dataclasses.dataclass(frozen=True)
class Goal:
    """Where a run is to end: at a number of steps, or before if it has converged."""

    steps: int
    until: bool = False

    def reached(self, run: "Run") -> bool:
        """Whether the run has come so far, or can get no further."""
        if run.state.step >= self.steps or not self.until:
            return run.state.step >= self.steps
        looks = NOISY_ROUNDS if run.federation.update.noisy else 1
        if run.state.step == 0 or run.state.step % (looks * run.round):
            return False
        return run.status.final

    def step(self, run: "Run", callback: "Callback | None" = None) -> "Run":
        """One step further."""
        run = run.advance(1)
        if self.until and run.state.step % run.round == 0:
            run = run.settled()
        if callback is not None:
            callback(run)
        return run

    def pursued(self, run: "Run", callback: "Callback | None" = None) -> "Run":
        """All steps up to there."""
        while not self.reached(run):
            run = self.step(run, callback)
        return run


@dataclasses.dataclass(frozen=True)
class Run:
    """A federation up to some step. Immutable: whatever goes on from it gives a new run."""

    federation: Federation
    schedule: Schedule
    state: State
    key: jax.Array
    history: tuple[Visit, ...] = ()
    tolerance: float = TOLERANCE
    """Nats that may be left to change in a posterior that is said to have converged."""

    def __repr__(self) -> str:
        """One line, without its history; never an error."""
        try:
            sites = self.sites
            count = f"{len(sites)} sites" + (f": {listed(sites)}" if sites else "")
            step = f"step {self.state.step} of {type(self.schedule).__name__}"
            law = posterior_line(self.state.prior, sites, lambda: self.posterior)
            return cut(f"Run({step}, {count}; {law})")
        except Exception:
            return f"{type(self).__name__}(?)"

    def _repr_html_(self) -> str:
        return html(self, "run")

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
        return tuple(s for s in self.federation.sites if not self.state.is_forgotten(s))

    @property
    def exact(self) -> bool:
        """Whether each factor depends on its own site's data alone: forgetting is then exact."""
        entries = self.state.entries.values()
        alone = all(entry.independent for entry in entries if entry.factor is not None)
        return self.federation.update.conjugate and alone

    def site(self, name: str) -> SitePosterior:
        """What a site knows of its own parameters, and its predictions (partial pooling only).

        Raises:
            LedgerError: if the site is unknown or was forgotten.
            UsageError: if the model has no parameters of a site's own.
        """
        self._check_known(name)
        if self.state.is_forgotten(name):
            raise LedgerError(
                found=f"site {name!r}, which was forgotten",
                expected=f"one of {list(self.sites)}",
                fix="Ask for `new_site()`, or let it `rejoin` first.",
            )
        return site_posterior(self.federation.model, self.posterior, self.federation.sites[name])

    def new_site(self) -> SitePosterior:
        """What the others tell of a site that has no records yet (partial pooling only).

        Raises:
            UsageError: if the model has no parameters of a site's own.
        """
        return site_posterior(self.federation.model, self.posterior)

    @functools.cached_property
    def status(self) -> Status:
        """Whether the posterior has converged, and what is left to change, in nats."""
        return status_of(self)

    @property
    def rule(self) -> str:
        """How sites find their factors, and who has a turn when, in words."""
        return f"{self.federation.update.rule}; {self.schedule.rule}"

    @property
    def round(self) -> int:
        """Steps after which every site has had a turn, or may be expected to."""
        return self.schedule.round(len(self.federation.sites))

    def until(
        self,
        tolerance: float | None = None,
        *,
        most: int | None = None,
        callback: Callback | None = None,
    ) -> "Run":
        """The run once its status says converged, or after ``most`` more steps.

        ``tolerance`` is in nats, the run's own by default; ``most`` is a hundred rounds by default.
        It ends early where rounds diverge.

        Raises:
            SiteError: as ``advance`` does.
        """
        POSITIVE.or_none().check(tolerance=tolerance)
        NATURAL.or_none().check(most=most)
        run = self if tolerance is None else dataclasses.replace(self, tolerance=float(tolerance))
        goal = Goal(run.state.step + (ROUNDS * run.round if most is None else most), True)
        return goal.pursued(run, callback)

    def refined(self, *, most: int = ROUNDS) -> "Run":
        """The run after as many sweeps as it takes to converge, ``most`` of them at most.

        Raises:
            SiteError: as ``advance`` does.
        """
        run, looks = self, NOISY_ROUNDS if self.federation.update.noisy else 1
        for done in range(0, most, looks):
            if done and run.status.final:
                break
            run = run.sweep(min(looks, most - done)).settled()
        return run

    def settled(self) -> "Run":
        """The run after the means of a diagonal posterior moved together, if that is needed.

        Over a server, where columns are alike (:mod:`posterity.federation.settle`); else itself.
        """
        if isinstance(self.schedule, OverGraph) or not creeps(self.federation, self.state):
            return self
        try:
            found = stiffness(self.federation, self.state)
            state = settled(self.federation, self.state, found)
        except SiteError:
            if self.federation.on_error == "raise":
                raise
            return self
        return self if state is None else self._with(state, self.federation.sites)

    def advance(self, steps: int, *, callback: Callback | None = None) -> "Run":
        """The run after ``steps`` more steps of its schedule.

        Raises:
            SiteError: as in :func:`federate`. Of whatever ends a step, an interrupt of the
                keyboard among it, the attribute ``run`` is the run before that step.
        """
        NATURAL.check(steps=steps)
        return self._repeated(steps, lambda run: run._stepped(run.schedule.step), callback)

    def sweep(self, sweeps: int = 1, *, callback: Callback | None = None) -> "Run":
        """The run after every site has had its turn ``sweeps`` times, whatever the schedule.

        Raises:
            SiteError: as ``advance`` does.
        """
        NATURAL.check(sweeps=sweeps)

        def swept(run: "Run") -> "Run":
            run = run._stepped(Sequential().step)
            return run._with(run.state, run.federation.sites)

        return self._repeated(sweeps, swept, callback)

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
        WHEN.check(when=when)
        for site in sites:
            self._check_known(site)
        if when == "visit":
            self._check_gossip()
        state = leave(self.federation, self.state, *sites)
        if when == "visit":  # if it is to be refused, then now rather than when the turn comes
            leaving = tuple(sorted({*self.state.leaving, *sites}))
            return dataclasses.replace(self, state=dataclasses.replace(self.state, leaving=leaving))
        gone = tuple(Visit(state.step, site, "forgotten") for site in sites)
        return dataclasses.replace(self._with(state, sites), history=(*self.history, *gone))

    def rejoin(self, site: str) -> "Run":
        """The run with a forgotten site let in again, under a new epoch.

        Raises:
            LedgerError: if the site is unknown or was not forgotten.
        """
        self._check_known(site)
        return self._with(self.state.rejoined(site), [site])

    def restarted(self) -> "Run":
        """The run with every factor zero again, to train anew those who are left."""
        return self._with(self.state.restarted(), self.state.entries)

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

    def _repeated(
        self, times: int, once: Callable[["Run"], "Run"], callback: Callback | None
    ) -> "Run":
        run = self
        for _ in range(times):
            run = once(run)
            if callback is not None:
                callback(run)
        return run

    def _stepped(self, step: Callable[..., Step]) -> "Run":
        key = fold_in(self.key, self.state.step + 1)
        try:
            state, visits = step(self.federation, self.state, key=key)
        except BaseException as error:
            error.run = self  # type: ignore[attr-defined]  # where to go on from
            raise
        state = dataclasses.replace(state, step=state.step + 1)
        return dataclasses.replace(self, state=state, history=(*self.history, *visits))

    def _with(self, state: State, sites: Iterable[str]) -> "Run":
        """With a state in which these sites were changed other than by the schedule."""
        changed = {site: state.entries[site] for site in sites if site in state.entries}
        return dataclasses.replace(self, state=self.schedule.learn(state, changed))

    def _check_known(self, site: str) -> None:
        if site not in self.federation.sites:
            raise LedgerError(
                found=f"site {site!r}",
                expected=f"one of {list(self.federation.sites)}",
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
