"""The state of a federation, and the one way in which it changes: a visit of a site.

Factors are kept on a :class:`Grid`, so that the running sum is exact and equals, to the last
bit, the posterior of the ledger with the same factors.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

from posterity.checks import check_finite, check_proper
from posterity.errors import LedgerError, ParameterError, PosterityError, SiteError
from posterity.families import ExponentialFamily
from posterity.federation.grid import Grid
from posterity.federation.update import HALVINGS, LocalUpdate
from posterity.ledger import Entry, Ledger
from posterity.models import ConjugateModel, Model, Records

Outcome = Literal["updated", "relayed", "refused", "failed", "forgotten"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """What does not change during a federation: the model, private data, and the local rule."""

    model: Model
    sites: Mapping[str, Records]
    update: LocalUpdate
    grid: Grid
    on_error: Literal["raise", "pass"] = "raise"


@dataclasses.dataclass(frozen=True)
class Visit:
    """What happened when a site had its turn, for people.

    ``updated``: it has a new factor. ``relayed``: it has no data, or was forgotten. ``refused``:
    every shortened step would have made the posterior improper, so nothing changed. ``failed``:
    it raised, or its gradient was not finite (only with ``on_error="pass"``). ``forgotten``: its
    factor left.
    """

    step: int
    site: str
    outcome: Outcome
    halvings: int = 0
    residual: float | None = None
    """Fisher length of the last natural gradient, in sqrt(nats); None where it is not known."""
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class State:
    """Every site's factor, their sum, and how far each has come. Immutable."""

    prior: ExponentialFamily
    posterior: ExponentialFamily
    entries: Mapping[str, Entry]
    counts: Mapping[str, int]
    """Local steps that each site has taken."""
    step: int
    schedule: Any
    """What the schedule needs to go on."""

    @property
    def ledger(self) -> Ledger:
        """The prior and all factors, versioned."""
        return Ledger(self.prior, dict(self.entries))

    def factor(self, site: str) -> ExponentialFamily:
        """The site's factor; zero if it has none yet or was forgotten."""
        entry = self.entries.get(site)
        return self.prior.zero() if entry is None or entry.factor is None else entry.factor

    def is_forgotten(self, site: str) -> bool:
        """Whether the site left and has not rejoined."""
        return site in self.entries and self.entries[site].factor is None

    def with_factor(
        self, site: str, factor: ExponentialFamily, grid: Grid, *, independent: bool = False
    ) -> "State":
        """With another factor of the site, one version on; all checks come first.

        Raises:
            ParameterError: if the posterior would be improper or leave the grid.
        """
        posterior = self.posterior - self.factor(site) + factor
        check_finite(factor, f"the factor of site {site!r}")
        grid.check(factor, f"the factor of site {site!r}")
        grid.check(posterior, f"the posterior after site {site!r}")
        check_proper(posterior, f"the posterior after site {site!r}")
        held = self.entries.get(site, Entry(0, -1, factor))
        entry = Entry(held.epoch, held.sequence + 1, factor, independent)
        return dataclasses.replace(self, posterior=posterior, entries={**self.entries, site: entry})

    def without(self, *sites: str) -> "State":
        """With these sites' factors taken out and their return barred within their epochs.

        Raises:
            LedgerError: if a site is forgotten already, or named twice.
            ParameterError: if the posterior would be improper.
        """
        posterior, entries = self.posterior, dict(self.entries)
        for site in sites:
            held = entries.get(site, Entry(0, 0, self.prior.zero()))
            if held.factor is None:
                raise LedgerError(
                    found=f"site {site!r}, which is forgotten already",
                    expected="a site that contributes, named once",
                    fix="Nothing is left to take out.",
                )
            posterior = posterior - held.factor
            entries[site] = Entry(held.epoch, held.sequence, None)
        check_proper(posterior, f"the posterior without {', '.join(map(repr, sites))}")
        return dataclasses.replace(self, posterior=posterior, entries=entries)

    def rejoined(self, site: str) -> "State":
        """With the forgotten site let in again, at the next epoch, contributing nothing yet."""
        if not self.is_forgotten(site):
            raise LedgerError(
                found=f"site {site!r}, which was not forgotten",
                expected=f"one of {[s for s in self.entries if self.is_forgotten(s)]}",
                fix="Only a forgotten site can rejoin.",
            )
        entry = Entry(self.entries[site].epoch + 1, 0, self.prior.zero())
        return dataclasses.replace(self, entries={**self.entries, site: entry})


def visit(
    problem: Problem,
    state: State,
    site: str,
    *,
    key: jax.Array,
    view: ExponentialFamily | None = None,
    damping: float = 1.0,
) -> tuple[State, Visit]:
    """The site improves its factor, seeing the posterior ``view`` (the current one by default).

    Either the whole update is committed or nothing is. ``damping`` is the share of the change
    that is taken; all of it where the model is conjugate.

    Raises:
        SiteError: if the site raised or its gradient was not finite, and the problem says so.
    """
    if state.is_forgotten(site) or problem.sites[site].size == 0:
        return state, Visit(state.step, site, "relayed")
    damping = 1.0 if problem.update.conjugate else damping
    try:
        factor, details = propose(problem, state, site, view or state.posterior, key=key)
        updated, halvings = commit(problem, state, site, factor, damping)
    except Exception as error:
        failure = _failure(error, site)
        if problem.on_error == "raise":
            raise failure from error
        return state, Visit(state.step, site, "failed", error=str(failure))
    counts = {**state.counts, site: state.counts.get(site, 0) + (problem.update.steps or 1)}
    if updated is None:
        return state, Visit(state.step, site, "refused", halvings, details.get("residual"))
    updated = dataclasses.replace(updated, counts=counts)
    halvings += details.get("halvings", 0)
    return updated, Visit(state.step, site, "updated", halvings, details.get("residual"))


def propose(
    problem: Problem, state: State, site: str, view: ExponentialFamily, *, key: jax.Array
) -> tuple[ExponentialFamily, dict[str, Any]]:
    """The site's new factor on the grid, and what is to be told of how it was found."""
    records, update, model = problem.sites[site], problem.update, problem.model
    if update.conjugate and isinstance(model, ConjugateModel):
        return problem.grid.round(model.factor(records) / update.temperature), {}
    with jax.enable_x64(True):
        count = np.asarray(state.counts.get(site, 0))
        padded = _padded(records)
        factor, info = _local(update, model, view, state.factor(site), padded, count, key)
        info = jax.tree.map(np.asarray, info)
    if not info.finite:
        raise ParameterError(
            found="NaN or infinity in the gradient of the log likelihood",
            expected="finite log likelihoods near the posterior",
            fix="Check the model's function and the site's data; the factor was not changed.",
        )
    details = {"halvings": int(info.halvings), "residual": float(info.residual)}
    return problem.grid.round(factor), details


def commit(
    problem: Problem, state: State, site: str, factor: ExponentialFamily, damping: float = 1.0
) -> tuple[State | None, int]:
    """The state with the site's change, halved until the posterior is proper, and how often.

    None instead of a state if no share of the change keeps it proper.
    """
    old = state.factor(site)
    for halvings in range(HALVINGS):
        share = damping / 2**halvings
        new = factor if share == 1 else problem.grid.round(old + (factor - old) * share)
        if np.all((state.posterior - old + new).is_proper()):
            alone = problem.update.conjugate
            return state.with_factor(site, new, problem.grid, independent=alone), halvings
    return None, HALVINGS


@eqx.filter_jit
def _local(
    update: LocalUpdate, model: Any, q: Any, factor: Any, records: Any, count: Any, key: Any
) -> Any:
    return update(model, q, factor, records, count, key=key)


def _padded(records: Records) -> Records:
    """Up to a quarter more records, of no weight: few sizes, so that few programs are compiled."""
    step = 2 ** max(records.size.bit_length() - 3, 0)
    extra = -records.size % step
    repeat = lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], extra, axis=0)])
    weights = np.concatenate([records.weights, np.zeros(extra)])
    return Records(jax.tree.map(repeat, records.data), weights)


def _failure(error: Exception, site: str) -> PosterityError:
    place = f"the update of site {site!r}"
    if isinstance(error, PosterityError):
        return error.at(place)
    return SiteError(
        found=f"{type(error).__name__}: {error} in {place}",
        expected="an update that finishes",
        fix="Mend the site, then go on from the last state; the site's factor was not changed.",
    )
