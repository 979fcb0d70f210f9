"""A federation after some number of steps, and methods to continue it."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posterity.arguments import NATURAL, POSITIVE, Constraint, one_of
from posterity.errors import LedgerError, PosterityError
from posterity.families.names import posterior_line
from posterity.federation.gossip import Gossip, OverGraph, token_of
from posterity.federation.keys import step_key
from posterity.federation.messages import DescribeOwn, Token
from posterity.federation.newton import applies
from posterity.federation.optimum import Descent, Effort
from posterity.federation.remaining import Position, measurable, reports_of
from posterity.federation.schedules import Machine, Schedule, Sequential
from posterity.federation.state import State, Visit, leave
from posterity.federation.status import is_final, status_of
from posterity.ledger import Ledger
from posterity.runtime.text import cut, listed
from posterity.runtime.tracing import as_found
from posterity.status import Progress, ProgressCallback, Status

if TYPE_CHECKING:
    from posterity.federation.personal import Population, SitePosterior

WHEN = one_of("now", "visit")
GOSSIP = Constraint(
    "Gossip, which alone has one token",
    lambda it: isinstance(it, Gossip),
    fix="Use `advance` and `forget`, or start the run with schedule=Gossip(graph).",
)
ROUNDS = 100
"""Rounds after which a run that has not converged ends by default."""
STUCK = (10, 20, 40, 80)
"""Rounds after which a run that has not converged is measured, and compared with a second start."""
JOINT = Effort(most=12)
"""What the steps between two rounds may cost where means have to move together."""
NOISY_ROUNDS = 5
"""Rounds between two convergence checks where gradients are noisy; a check costs some rounds."""


@dataclasses.dataclass(frozen=True)
class Run(Position):
    """A federation after some number of steps. Immutable: methods return a new run.

    >>> import numpy as np
    >>> from posterity import Beta
    >>> from posterity.federation import start
    >>> from posterity.models import BetaBernoulli
    >>> run = start({"a": np.array([1, 0, 1])}, BetaBernoulli(), Beta.from_standard(1.0, 1.0))
    >>> run.posterior, run.advance(1).posterior
    (Beta(0.5 ± 0.29), Beta(0.6 ± 0.2))
    """

    def __repr__(self) -> str:
        """Return one line without the history; never raise."""
        try:
            sites = self.sites
            count = f"{len(sites)} sites" + (f": {listed(sites)}" if sites else "")
            step = f"step {self.state.step} of {type(self.schedule).__name__}"
            law = posterior_line(self.state.prior, sites, lambda: self.posterior)
            return cut(f"Run({step}, {count}; {law})")
        except Exception:
            return f"{type(self).__name__}(?)"

    @functools.cached_property
    def population(self) -> "Population":
        """The posterior of shared parameters, also correct for few sites (partial pooling only).

        Queries the sites. ``law`` has the means and covariances of the population's coefficients
        and of the log spreads that all factors imply jointly. The run's posterior, whose factors
        treat the two separately, is too narrow. ``effects`` has the population's intervals and
        spreads, and sites' own laws. With a local rule other than
        :class:`~posterity.inference.PartialPooling` it is None, and ``law`` the run's posterior.
        Raises UsageError if the model has no site-specific parameters.
        """
        from posterity.federation.personal import population_of

        agreed = self.agreement
        reports = functools.partial(reports_of, self, ("gradient",))
        return population_of(agreed.model, agreed.update, self.ledger, reports)

    def site(self, name: str) -> "SitePosterior":
        """Return a site's parameters and predictions (partial pooling only); queries the site.

        Raises:
            LedgerError: if the site is unknown or was forgotten.
            UsageError: if the model has no site-specific parameters.
            SiteError: if the site fails.
        """
        from posterity.federation.personal import SitePosterior, check_personal
        from posterity.models.personal import Law

        self._check_known(name)
        check_personal(self.agreement.model)
        if self.state.is_forgotten(name):
            found = f"site {name!r}, which was forgotten"
            expected = f"one of {list(self.sites)}; or `new_site()`, or to `readmit` it first"
            raise LedgerError(found=found, expected=expected)
        shared = self.population.law
        model = self.agreement.model
        own: Any = self.federation.demand(DescribeOwn(name, shared, **self.state.place))
        return SitePosterior(model, shared, Law(own.mean, own.scale))  # pyright: ignore[reportArgumentType]

    def new_site(self) -> "SitePosterior":
        """Return the predictive distribution for a new site without records (partial pooling only).
        Raises UsageError if the model has no site-specific parameters.
        """
        from posterity.federation.personal import site_posterior

        return site_posterior(self.agreement.model, self.population.law)

    @functools.cached_property
    @as_found()
    def status(self) -> Status:
        """The status: convergence, and the estimated remaining change in nats."""
        with self._kept():
            return status_of(self)

    @property
    def rule(self) -> str:
        """A description of how sites compute their factors, and of the order of their turns."""
        return f"{self.agreement.update.rule}; {self.schedule.rule}"

    @as_found()
    def converge(
        self,
        tolerance: float | None = None,
        *,
        steps: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> "Run":
        """Return the run at convergence, or after ``steps`` more steps of its schedule.
        ``tolerance`` is in nats, by default the run's; ``steps`` are by default those of a hundred
        rounds. The run ends early if rounds diverge, unless a site waits for the visit at which it
        is forgotten. Errors are those of ``advance``.
        """
        POSITIVE.or_none().check(tolerance=tolerance)
        NATURAL.or_none().check(steps=steps)
        run = self if tolerance is None else dataclasses.replace(self, tolerance=float(tolerance))
        more = ROUNDS * run.round if steps is None else steps
        return run.until(run.state.step + more, True, progress)

    def until(self, steps: int, converged: bool, progress: ProgressCallback | None = None) -> "Run":
        """Return the run at its goal (:meth:`is_at_goal`)."""
        run = self
        while not run.is_at_goal(steps, converged):
            run = run.towards(steps, converged, progress)
        return run

    def is_at_goal(self, steps: int, converged: bool) -> bool:
        """Return whether the run has made ``steps`` steps or, with ``converged``, whether further
        rounds are useless.
        """
        if self.state.step >= steps or not converged:
            return self.state.step >= steps
        looks = NOISY_ROUNDS if self.agreement.update.noisy else 1
        if self.state.step == 0 or self.state.step % (looks * self.round):
            return False
        return is_final(self)

    def towards(
        self, steps: int, converged: bool, progress: ProgressCallback | None = None
    ) -> "Run":
        """Return the run after one more step, plus a Newton step if it is to converge."""
        run = (self.from_better() if converged else self)._stepped(self.schedule)
        if converged and run.state.step % run.round == 0:
            run = run.newton_step()
        return run._reported(progress, run.state.step, steps)

    @as_found()
    def refined(self, *, sweeps: int = ROUNDS, progress: ProgressCallback | None = None) -> "Run":
        """Return the run after as many sweeps as convergence takes, at most ``sweeps``. Errors are
        those of ``advance``.
        """
        run = self._under(Sequential())
        try:
            run = run.converge(steps=sweeps, progress=progress)
        except BaseException as error:
            left = getattr(error, "run", run)
            error.run = left._under(self.schedule)  # type: ignore[attr-defined]
            raise
        return run._under(self.schedule)

    def from_better(self) -> "Run":
        """Return the run at the end of its second start if that is better, at the optimum if that
        was measured, else itself. After ``STUCK`` rounds both are computed here, as the run may be
        at a saddle point, or follow a curved ridge.
        """
        stuck = self.state.step / self.round in STUCK
        second: Any = self.__dict__.get("second")
        if second is None and stuck:
            with contextlib.suppress(PosterityError):
                second = self.second
        if second is not None and second.is_better(self.tolerance):
            return self._restarted_at(second.state, second.evaluations)
        update = self.agreement.update
        walks = isinstance(self.schedule, OverGraph) and applies(self.agreement)
        if update.noisy or update.pools or walks or not measurable(self.agreement):
            return self
        ended = self.descended if stuck else self.__dict__.get("descended")
        if ended is None or not self.tolerance < ended.left < math.inf:
            return self
        return self._restarted_at(ended.state, ended.evaluations)

    @as_found()
    def newton_step(self) -> "Run":
        """Return the run after joint Newton steps on the mean where they are needed, else itself.
        They are needed over a server, for diagonal Gaussians and Products of Gaussians
        (:mod:`posterity.federation.optimum`).
        """
        if isinstance(self.schedule, OverGraph) or not applies(self.agreement):
            return self
        begun = [s for s in self.contributing if np.any(self.state.factor(s).natural_parameters)]
        try:
            with self._kept():
                ended = Descent(self.federation, self.state, JOINT, begun).end(self.tolerance)
        except self.agreement.skipped:
            return self
        return self._with(ended.state, self.agreement.sites) if ended.asked > 1 else self

    @as_found()
    def advance(self, steps: int, *, progress: ProgressCallback | None = None) -> "Run":
        """Return the run after ``steps`` more steps of its schedule.

        Raises:
            SiteError: as in :func:`federate`. Every exception that ends a step, including
                KeyboardInterrupt, has the attribute ``run``: the run after the completed visits.
                ``advance`` on that run first makes the rest of the step.

        >>> import numpy as np
        >>> from posterity import Beta
        >>> from posterity.federation import Sequential, start
        >>> from posterity.models import BetaBernoulli
        >>> sites, prior = {"a": np.array([1, 0]), "b": np.array([1])}, Beta.from_standard(1.0, 1.0)
        >>> start(sites, BetaBernoulli(), prior, schedule=Sequential()).advance(1).posterior
        Beta(0.6 ± 0.2)
        """
        NATURAL.check(steps=steps)
        run = self
        for done in range(steps):
            run = run._stepped(run.schedule)._reported(progress, done + 1, steps)
        return run

    @as_found()
    def sweep(self, sweeps: int = 1, *, progress: ProgressCallback | None = None) -> "Run":
        """Return the run after every site has had ``sweeps`` turns, for every schedule. Errors are
        those of ``advance``.
        """
        NATURAL.check(sweeps=sweeps)
        run = self
        for done in range(sweeps):
            run = run._stepped(Sequential())
            run = run._with(run.state, run.agreement.sites)._reported(progress, done + 1, sweeps)
        return run

    def forget(self, *sites: str, when: Literal["now", "visit"] = "now") -> "Run":
        """Return the run without these sites' factors, without refining the others.

        With ``when="visit"`` (gossip only) each factor is removed when the token next reaches its
        site, and the walk continues until then. A forgotten site still relays the token.
        :func:`posterity.forget` also refines the other factors and issues a receipt.

        Raises:
            LedgerError: if a site is unknown or was already forgotten; none is forgotten then.
            ParameterError: if the remaining posterior is improper, which can happen if the model
                is not conjugate; none is forgotten then.
            UsageError: if ``when`` has another value, or is "visit" without gossip.
        """
        WHEN.check(when=when)
        for site in sites:
            self._check_known(site)
        if when == "visit":
            GOSSIP.check(schedule=self.schedule)
        state = leave(self.agreement, self.state, *sites)
        if when == "visit":  # `leave` above has raised now if the removal is not possible
            leaving = tuple(sorted({*self.state.leaving, *sites}))
            return dataclasses.replace(self, state=dataclasses.replace(self.state, leaving=leaving))
        trace = (*self.trace, *(Visit(state.step, s, "forgotten") for s in sites))
        return dataclasses.replace(self._with(state, sites), trace=trace)

    def readmit(self, site: str) -> "Run":
        """Return the run with a forgotten site readmitted under a new epoch. Raises LedgerError if
        the site is unknown or was not forgotten.
        """
        self._check_known(site)
        return self._with(self.state.readmitted(site), [site])

    def restarted(self) -> "Run":
        """Return the run with every factor set to zero, to retrain the remaining sites."""
        return self._restarted_at(self.state.restarted())

    def with_ledger(self, ledger: Ledger) -> "Run":
        """Return the run with the factors of a ledger. Raises LedgerError if the ledger's prior
        differs, or it has sites that are not of this federation.
        """
        known = {*self.agreement.sites, *self.federation.before}
        strangers = sorted(set(ledger.entries) - known)
        if strangers or ledger.prior != self.state.prior:
            what = f"{strangers} among them" if strangers else "another prior"
            raise LedgerError(
                found=f"a ledger of sites {sorted(ledger.entries)} with {what}",
                expected=f"the federation's prior, and sites among {list(self.agreement.sites)}",
            )
        return self._restarted_at(self.state.with_entries(ledger.entries))

    @property
    def token(self) -> Token:
        """The token that the next site is to receive (gossip only). Raises UsageError without
        gossip.
        """
        GOSSIP.check(schedule=self.schedule)
        return token_of(self.state, self.agreement.digest)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Set the attribute ``run`` of every exception that is raised inside to this run."""
        try:
            yield
        except BaseException as error:
            error.run = self  # type: ignore[attr-defined]
            raise

    def _reported(self, progress: ProgressCallback | None, step: int, steps: int) -> "Run":
        if progress is not None:
            known = self.__dict__.get("status")
            left = {} if known is None else {"left": known.left}
            progress(Progress(step, steps, partial=lambda: self, **left))
        return self

    def _stepped(self, schedule: Schedule) -> "Run":
        """Return the run after one more step of a schedule, or the rest of an interrupted one."""
        key = step_key(self.key, self.state.step)
        machine = Machine(self.agreement, schedule)
        state = self.state
        visits = ()
        if state.pending is not None and schedule != self.schedule:
            state = dataclasses.replace(state, pending=None)
        try:
            for reached in self.federation.step(machine, state, key=key):
                state, visits = reached
        except BaseException as error:
            error.run = self._broken_off(schedule, state)  # type: ignore[attr-defined]
            raise
        return dataclasses.replace(self, state=state, trace=(*self.trace, *visits))

    def _broken_off(self, schedule: Schedule, state: State) -> "Run":
        """Return the run after the completed visits of an interrupted step, else itself."""
        pending = state.pending
        if pending is None or not pending.begun:
            return self
        run = dataclasses.replace(self, trace=(*self.trace, *pending.visits))
        if schedule != self.schedule:  # the run's own schedule cannot continue this step
            return run._with(state, self.agreement.sites)
        rest = dataclasses.replace(pending, visits=(), bases={}, asked={})
        return dataclasses.replace(run, state=dataclasses.replace(state, pending=rest))

    def _restarted_at(self, state: State, evaluations: float = 0) -> "Run":
        """Return the run with a state whose factors are all new, found by so many evaluations by
        each site; marks earlier visits outdated.
        """
        step = state.step
        looks = round(evaluations)
        restarted = (Visit(step, s, "restarted", evaluations=looks) for s in self.contributing)
        run = dataclasses.replace(self, trace=(*self.trace, *restarted))
        return run._with(state, state.entries)

    def _under(self, schedule: Schedule) -> "Run":
        """Return the run with another schedule, which learns of all factors and leaves out the rest
        of an interrupted step.
        """
        run = dataclasses.replace(self, schedule=schedule)
        return run._with(run.state, run.agreement.sites)

    def _with(self, state: State, sites: Iterable[str]) -> "Run":
        """Return the run with a state in which other code than the schedule changed these sites."""
        changed = {site: state.entries[site] for site in sites if site in state.entries}
        return dataclasses.replace(self, state=self.schedule.learn(state, changed))

    def _check_known(self, site: str) -> None:
        known = self.agreement.members
        if site not in known:
            raise LedgerError(found=f"site {site!r}", expected=f"one of {list(known)}")
