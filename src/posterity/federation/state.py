"""The state of a federation, and the one way in which it changes: a visit of a site.

Factors are kept on a :class:`Grid`, so that the running sum is exact and equals, to the last
bit, the posterior of the ledger with the same factors.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

from posterity.checks import check_finite, check_proper, check_same_structure
from posterity.errors import LedgerError, ParameterError, PosterityError, SiteError
from posterity.families import ExponentialFamily
from posterity.federation.exact import Grid, size
from posterity.inference.update import HALVINGS, LocalUpdate
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

    def admits(self, posterior: ExponentialFamily) -> bool:
        """Whether it is a distribution under which the model has expectations."""
        return bool(posterior.is_proper()) and bool(self.model.admits(posterior))


@dataclasses.dataclass(frozen=True)
class Visit:
    """What happened when a site had its turn, for people.

    ``updated``: it has a new factor. ``relayed``: it has no data, was forgotten, or had answered
    that token before. ``refused``: every shortened step would have made the posterior improper,
    so nothing changed. ``failed``: it raised, or its update was not finite or too large for the
    grid (only with ``on_error="pass"``). ``forgotten``: its factor left.
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
    load: ExponentialFamily
    """Sizes of the prior and all factors, summed: what the grid's range must hold."""
    entries: Mapping[str, Entry]
    counts: Mapping[str, int]
    """Local steps that each site has taken."""
    step: int
    schedule: Any
    """What the schedule needs to go on."""
    leaving: tuple[str, ...] = ()
    """Sites whose factors leave when their turn next comes."""

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
            ParameterError: if the posterior would be improper, or sums leave the grid.
        """
        check_finite(factor, f"the factor of site {site!r}")
        old = self.factor(site)
        load = self.load - size(old) + size(factor)
        grid.check(load, f"the posterior after site {site!r}")
        posterior = self.posterior - old + factor
        check_proper(posterior, f"the posterior after site {site!r}")
        held = self.entries.get(site, Entry(0, -1, factor))
        entry = Entry(held.epoch, held.sequence + 1, factor, independent)
        entries = {**self.entries, site: entry}
        return dataclasses.replace(self, posterior=posterior, load=load, entries=entries)

    def with_entries(self, entries: Mapping[str, Entry]) -> "State":
        """With these factors and no others, unchecked."""
        posterior, load = self.prior, size(self.prior)
        for entry in entries.values():
            if entry.factor is not None:
                posterior, load = posterior + entry.factor, load + size(entry.factor)
        entries = dict(entries)
        return dataclasses.replace(self, posterior=posterior, load=load, entries=entries)

    def without(self, problem: Problem, *sites: str) -> "State":
        """With these sites' factors taken out and their return barred within their epochs.

        Raises:
            LedgerError: if a site is forgotten already, or named twice.
            ParameterError: if what is left is no distribution, or one under which the model has
                no expectations.
        """
        posterior, load, entries = self.posterior, self.load, dict(self.entries)
        for site in sites:
            held = entries.get(site, Entry(0, 0, self.prior.zero()))
            if held.factor is None:
                raise LedgerError(
                    found=f"site {site!r}, which is forgotten already",
                    expected="a site that contributes, named once",
                    fix="Nothing is left to take out.",
                )
            posterior, load = posterior - held.factor, load - size(held.factor)
            entries[site] = Entry(held.epoch, held.sequence, None)
        if not problem.admits(posterior):
            raise ParameterError(
                found=f"an improper posterior without {', '.join(map(repr, sites))}",
                expected="factors of the sites that stay that, with the prior, are a distribution",
                fix="These were fitted in the company of who leaves. Use `forget` with "
                "restart=True, which trains them anew; nothing was changed.",
            )
        left = tuple(site for site in self.leaving if site not in sites)
        return dataclasses.replace(
            self, posterior=posterior, load=load, entries=entries, leaving=left
        )

    def leave_in_turn(self, problem: Problem, *sites: str) -> "State":
        """With these sites' factors to leave when their turn next comes.

        Raises:
            LedgerError, ParameterError: as ``without``; none is to leave then.
        """
        self.without(problem, *sites)  # refused now rather than when the turn comes
        return dataclasses.replace(self, leaving=tuple(sorted({*self.leaving, *sites})))

    def rejoined(self, site: str) -> "State":
        """With the forgotten site let in again, at the next epoch, contributing nothing yet."""
        if not self.is_forgotten(site):
            raise LedgerError(
                found=f"site {site!r}, which was not forgotten",
                expected=f"one of {[s for s in self.entries if self.is_forgotten(s)]}",
                fix="Only a forgotten site can rejoin.",
            )
        # Zero, which all sites' data leave as it is, was found without any.
        entry = Entry(self.entries[site].epoch + 1, 0, self.prior.zero(), independent=True)
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
    that is taken; all of it where the model is conjugate. ``key`` is that of the step, from which
    the site's own is made.

    Raises:
        SiteError: if the site raised, or its update was not finite or too large for the grid,
            and the problem says so.
        ParameterError: if the site is to leave, and what is left would be no distribution.
    """
    if site in state.leaving:
        return state.without(problem, site), Visit(state.step, site, "forgotten")
    if state.is_forgotten(site) or problem.sites[site].size == 0:
        return state, Visit(state.step, site, "relayed")
    damping = 1.0 if problem.update.conjugate else damping
    try:
        view = state.posterior if view is None else view
        factor, details = propose(problem, state, site, view, key=key)
        updated, halvings = commit(problem, state, site, factor, damping)
    except Exception as error:
        failure = failure_of(error, site)
        if problem.on_error == "raise":
            raise failure from error
        return state, Visit(state.step, site, "failed", error=str(failure))
    counts = {**state.counts, site: state.counts.get(site, 0) + (problem.update.steps or 1)}
    halvings += details.get("halvings", 0)
    if updated is None:
        return state, Visit(state.step, site, "refused", halvings, details.get("residual"))
    updated = dataclasses.replace(updated, counts=counts)
    return updated, Visit(state.step, site, "updated", halvings, details.get("residual"))


def propose(
    problem: Problem, state: State, site: str, view: ExponentialFamily, *, key: jax.Array
) -> tuple[ExponentialFamily, dict[str, Any]]:
    """The site's new factor on the grid, and what is to be told of how it was found."""
    records, update, model = problem.sites[site], problem.update, problem.model
    if update.conjugate and isinstance(model, ConjugateModel):
        factor = model.factor(records)
        check_same_structure(state.prior, factor, "what the model found")
        check_finite(factor, "what the model found")
        return problem.grid.round(factor / update.temperature), {}
    with jax.enable_x64(True):
        count = np.asarray(state.counts.get(site, 0))
        factor, info = _local(
            update, model, view, state.factor(site), padded(records), count, site_key(key, site)
        )
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
    """The state with the site's change, halved until the model admits it, and how often.

    None instead of a state if it admits no share of the change.
    """
    old = state.factor(site)
    for halvings in range(HALVINGS):
        share = damping / 2**halvings
        new = factor if share == 1 else problem.grid.round(old + (factor - old) * share)
        if problem.admits(state.posterior - old + new):
            alone = problem.update.conjugate and share == 1
            return state.with_factor(site, new, problem.grid, independent=alone), halvings
    return None, HALVINGS


@eqx.filter_jit
def _local(
    update: LocalUpdate, model: Any, q: Any, factor: Any, records: Any, count: Any, key: Any
) -> Any:
    return update(model, q, factor, records, count, key=key)


def site_key(key: jax.Array, site: str) -> jax.Array:
    """The site's own key: independent of which other sites there are."""
    word = int.from_bytes(hashlib.sha256(site.encode()).digest()[:4], "little")
    return jax.random.fold_in(key, np.uint32(word))


def padded(records: Records) -> Records:
    """Up to a quarter more records, of no weight: few sizes, so that few programs are compiled."""
    step = 2 ** max(records.size.bit_length() - 3, 0)
    extra = -records.size % step
    repeat = lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], extra, axis=0)])
    weights = np.concatenate([records.weights, np.zeros(extra)])
    return Records(jax.tree.map(repeat, records.data), weights)


def failure_of(error: Exception, site: str) -> SiteError:
    """What is said of a site that could not do its part."""
    place = f"the update of site {site!r}"
    if isinstance(error, PosterityError):
        return SiteError(found=f"{error.found} in {place}", expected=error.expected, fix=error.fix)
    return SiteError(
        found=f"{type(error).__name__}: {error} in {place}",
        expected="an update that finishes",
        fix="Mend the site, then go on from the last state; the site's factor was not changed.",
    )
