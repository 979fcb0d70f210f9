"""``federate``, and the run that it gives back."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

from posterity.checks import check_proper
from posterity.errors import LedgerError, PosterityError, UsageError
from posterity.families import ExponentialFamily
from posterity.federation.gossip import Gossip, Token, deliver, leave_when_reached, token_of
from posterity.federation.grid import REACH, Grid
from posterity.federation.schedules import Schedule, Sequential, Step
from posterity.federation.state import Problem, State, Visit
from posterity.federation.update import LocalUpdate
from posterity.ledger import Entry, Ledger
from posterity.models import FunctionModel, Model, Records

Callback = Callable[["Run"], None]


def federate(
    sites: Mapping[str, Any],
    model: Model | Callable[[Any, Any], Any],
    prior: ExponentialFamily,
    *,
    schedule: Schedule | None = None,
    steps: int = 10,
    update: LocalUpdate | None = None,
    weights: Mapping[str, float] | None = None,
    reach: float = REACH,
    on_error: Literal["raise", "pass"] = "raise",
    key: jax.Array | None = None,
    callback: Callback | None = None,
) -> "Run":
    """Improve one posterior by local steps of sites whose data stay where they are.

    The posterior is ``q = prior · Π t_k``, one factor a site; it minimises the free energy
    ``Σ_k E_q[loss_k] + α KL(q ‖ prior)``, where the loss of a site is minus the *sum* of its
    records' log likelihoods. With α = 1 that is the posterior of all data, or the member of the
    family closest to it in reverse KL divergence.

    Args:
        sites: by name, each site's private data: arrays whose first axes count its records. A
            site without records takes part, relays, and contributes nothing.
        model: of :mod:`posterity.models`, or any function of a parameter and a batch that gives
            one log likelihood a record.
        prior: a proper member of the family that the posterior shall have.
        schedule: :class:`Sequential` (the default), :class:`Synchronous` or
            :class:`Asynchronous` over a server, :class:`Gossip` over a graph.
        steps: of the schedule: passes, rounds, reports or hops.
        update: how a site improves its factor in one visit.
        weights: factors of sites' losses, 1 by default. (The inverse of a site's number of
            records makes its loss a mean, as in gong2021, equation 1; such a posterior counts a
            site as one record.)
        reach: how much larger than the prior's parameters a sum may grow (:class:`Grid`).
        on_error: whether a site that fails ends the run, or is passed over and noted.
        key: of all that is random, ``jax.random.key(0)`` by default.
        callback: called with the run after each step; what it raises ends the run.

    Raises:
        UsageError: if arguments make no sense together.
        StructureError: if graph, sites or data do not fit together.
        ParameterError: if data or prior hold NaN, infinity or what the model cannot produce.
        SiteError: if a site fails; ``error.run`` is the run up to there, to go on from.

    Source: gong2021; bui2018.

    >>> from posterity.families import Beta
    >>> from posterity.models import BetaBernoulli
    >>> coins = {"north": np.array([1, 1, 0]), "south": np.array([0, 1])}
    >>> run = federate(coins, BetaBernoulli(), Beta.from_standard(1.0, 1.0), steps=1)
    >>> float(run.posterior.a), float(run.posterior.b)
    (4.0, 3.0)
    """
    run = start(
        sites,
        model,
        prior,
        schedule=schedule,
        update=update,
        weights=weights,
        reach=reach,
        on_error=on_error,
        key=key,
    )
    return run.advance(steps, callback=callback)


def start(
    sites: Mapping[str, Any],
    model: Model | Callable[[Any, Any], Any],
    prior: ExponentialFamily,
    *,
    schedule: Schedule | None = None,
    update: LocalUpdate | None = None,
    weights: Mapping[str, float] | None = None,
    reach: float = REACH,
    on_error: Literal["raise", "pass"] = "raise",
    key: jax.Array | None = None,
) -> "Run":
    """The run before its first step; arguments and errors as for :func:`federate`."""
    model = model if isinstance(model, Model) else FunctionModel(model)
    schedule = Sequential() if schedule is None else schedule
    if on_error not in ("raise", "pass") or not sites:
        raise UsageError(
            found=f"on_error={on_error!r} and {len(sites)} sites",
            expected="'raise' or 'pass', and at least one site",
            fix="Mend these arguments.",
        )
    check_proper(prior, "the prior")
    records = _records(sites, weights or {}, model)
    grid = Grid.of(prior, reach)
    prior = grid.round(prior)
    check_proper(prior, "the prior on its grid")
    update = (update or LocalUpdate()).resolve(model, prior)
    key = jax.random.key(0) if key is None else key
    problem = Problem(model, records, update, grid, on_error)
    own = schedule.init(tuple(records), key=jax.random.fold_in(key, 0))
    return Run(problem, schedule, State(prior, prior, {}, {}, 0, own), key)


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


def _records(
    sites: Mapping[str, Any], weights: Mapping[str, float], model: Model
) -> dict[str, Records]:
    """Every site's data, checked, by sorted name."""
    unknown = sorted(set(weights) - set(sites))
    if unknown or not all(math.isfinite(w) and w >= 0 for w in weights.values()):
        raise UsageError(
            found=f"weights {dict(weights)}",
            expected=f"finite weights, not negative, of sites among {sorted(sites)}",
            fix="Check names and numbers; weight 0 mutes a site.",
        )
    records = {}
    for site in sorted(sites):
        try:
            records[site] = _site_records(sites[site], weights.get(site, 1.0), model)
        except PosterityError as error:
            raise error.at(f"the data of site {site!r}") from error
    return records


def _site_records(data: Any, weight: float, model: Model) -> Records:
    records = Records(None, np.zeros(0)) if data is None else Records.of(data, weight)
    if records.size:
        model.check(records.data)
    return records
