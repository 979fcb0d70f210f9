"""The state of a federation, and the changes by the turns of its sites.

A state has all sites' factors, their sum, and each site's number of steps. The running sum is exact
(:class:`~posterity.arrays.tree_sums.TreeSum`) and rounded once when it is read. It equals, to the
last bit, the posterior of the ledger with the same factors.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from posterity.arrays.tree import identical
from posterity.arrays.tree_sums import TreeSum
from posterity.arrays.typing import KeyArray
from posterity.entries import Entry
from posterity.errors import LedgerError, ParameterError
from posterity.families import ExponentialFamily
from posterity.families.checks import check_finite, check_same_structure
from posterity.families.names import names_of, with_names
from posterity.federation.agreement import Agreement
from posterity.federation.keys import first_key, site_key
from posterity.federation.messages import FIRST, Epoch, Failure, Improve, Improvement, Measure
from posterity.federation.site import failure_of
from posterity.inference.descent import HALVINGS
from posterity.ledger import Ledger
from posterity.runtime.sharing import SharedMap

Map = Mapping[str, Entry]
"""Entries by site."""
Outcome = Literal["updated", "relayed", "refused", "failed", "forgotten", "restarted"]


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a federation as plain data: members of the family, entries, numbers and names.
    Immutable. States before and after a step share the parts that it does not change.
    """

    prior: ExponentialFamily
    exact_sum: TreeSum
    """Prior plus all factors."""
    entries: SharedMap[Entry] | Any
    """Entries by site; converted from any mapping."""
    counts: SharedMap[int] | Any = dataclasses.field(default_factory=dict)
    """Number of local steps of each site."""
    step: int = 0
    epoch: Epoch = FIRST
    """Raised by every change other than the schedule's, which voids all earlier questions."""
    schedule: Any = None
    """The schedule's own state: JSON data, and members of the family."""
    known: Mapping[str, Mapping[str, Map]] = dataclasses.field(default_factory=dict)
    """The entries of each token and each site, which may differ (LedgerGossip only)."""
    leaving: tuple[str, ...] = ()
    """Sites whose factors are removed at their next turn."""
    pending: Any = None
    """The step in progress, if any (:class:`~posterity.federation.schedules.Pending`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", SharedMap.of(self.entries))
        object.__setattr__(self, "counts", SharedMap.of(self.counts))

    @classmethod
    def of(cls, prior: ExponentialFamily) -> "State":
        """Return the state before any site has contributed."""
        return cls(prior, TreeSum.of([prior]), {})

    @property
    def posterior(self) -> ExponentialFamily:
        """Prior plus all factors, rounded to nearest once."""
        return with_names(self.exact_sum.value, names_of(self.prior))

    @functools.cached_property
    def ledger(self) -> Ledger:
        """The prior and all versioned factors."""
        return Ledger(self.prior).holding(self.entries)

    @property
    def place(self) -> dict[str, Any]:
        """The epoch and the step, which identify the answers to questions of this state."""
        return {"epoch": self.epoch, "step": self.step}

    def factor(self, site: str) -> ExponentialFamily:
        """Return the site's factor; zero if it has none yet or was forgotten."""
        entry = self.entries.get(site)
        return self.prior.zero() if entry is None or entry.factor is None else entry.factor

    def is_forgotten(self, site: str) -> bool:
        """Return whether the site was forgotten and not readmitted."""
        return site in self.entries and self.entries[site].factor is None

    def with_entries(self, entries: Map) -> "State":
        """Return the state with these factors and no others; its posterior may be improper. Raises
        ParameterError if a sum is beyond the range of float64.
        """
        factors = [entry.factor for entry in entries.values() if entry.factor is not None]
        exact_sum = TreeSum.of([self.prior, *factors])
        return dataclasses.replace(self, exact_sum=exact_sum, entries=entries)

    def without(self, *sites: str) -> "State":
        """Return the state without these sites' factors, with a tombstone for each. Raises
        LedgerError if a site is already forgotten, or named twice.
        """
        left: dict[str, Entry] = {}
        leaving = []
        for site in sites:
            entry = self.entries.get(site, Entry(0, 0, self.prior.zero()))
            if entry.factor is None or site in left:
                found = f"site {site!r}, which is forgotten already"
                raise LedgerError(found=found, expected="a site that contributes, named once")
            leaving.append(entry.factor)
            left[site] = entry._replace(factor=None, independent=False)
        others = tuple(site for site in self.leaving if site not in sites)
        exact_sum = self.exact_sum.changed(take=leaving)
        entries = self.entries | left
        return dataclasses.replace(self, exact_sum=exact_sum, entries=entries, leaving=others)

    def readmitted(self, site: str) -> "State":
        """Return the state with a forgotten site readmitted in its next epoch, with a factor of
        zero. Raises LedgerError if the site was not forgotten.
        """
        if not self.is_forgotten(site):
            raise LedgerError(
                found=f"site {site!r}, which was not forgotten",
                expected=f"one of {[s for s in self.entries if self.is_forgotten(s)]}",
            )
        entry = self._nothing(self.entries[site].epoch + 1, 0)
        return dataclasses.replace(self, entries=self.entries | {site: entry})

    def restarted(self) -> "State":
        """Return the state with every factor set to zero, to retrain the remaining sites."""
        entries = {
            site: entry if entry.factor is None else self._nothing(entry.epoch, entry.sequence + 1)
            for site, entry in self.entries.items()
        }
        return dataclasses.replace(self.with_entries(entries), counts={})

    def renewed(self) -> "State":
        """Return the state in a new epoch, in which no answers to earlier questions are awaited."""
        return dataclasses.replace(self, epoch=(self.epoch[0] + 1, ""), pending=None)

    def _nothing(self, epoch: int, sequence: int) -> Entry:
        # A factor of zero depends on no data.
        return Entry(epoch, sequence, self.prior.zero(), independent=True)


@dataclasses.dataclass(frozen=True)
class Visit:
    """The record of a site's turn.

    ``updated``: the site has a new factor. ``relayed``: it has no data, was forgotten, or had
    already answered the token. ``refused``: every shortened step would have made the posterior
    improper, so nothing changed. ``failed``: it raised, or its update was not finite or its sum
    beyond float64 (only with ``on_error="pass"``). ``forgotten``: its factor was removed.
    ``restarted``: its factor was set to zero or to that of a ledger, and it needs another turn.
    """

    step: int
    site: str
    outcome: Outcome
    halvings: int = 0
    residual: float | None = None
    """Fisher length of the last natural gradient, in sqrt(nats); None if unknown."""
    change: float | None = None
    """KL divergence of the new posterior from the one before, in nats. None if the site had no
    turn, or if factors are exact, whose changes say nothing about convergence."""
    quadrature_error: float = 0.0
    """Estimated displacement of the posterior, in nats, by the error of sums over nodes."""
    error: str | None = None
    evaluations: int = 0
    """Evaluations of the site's log likelihood, with more nodes counted as several."""


def distance(before: ExponentialFamily, after: ExponentialFamily) -> float:
    """Return ``KL(after || before)`` in nats; exactly zero if they are identical."""
    if before is after or identical(before, after):
        return 0.0
    return max(float(after.kl(before)), 0.0)


def contributing(agreed: Agreement, state: State) -> tuple[str, ...]:
    """Return the names of the sites that have records and have not been forgotten, sorted."""
    return tuple(s for s in agreed.sites if s not in agreed.silent and not state.is_forgotten(s))


def measures(
    state: State, sites: Iterable[str], parts: Any, samples: int = 1, key: KeyArray | None = None
) -> list[Measure]:
    """Return questions for parts of reports on the posterior; noisy updates need a key."""
    keys = {site: first_key() if key is None else site_key(key, site) for site in sites}
    view = state.posterior
    return [
        Measure(site, view, state.factor(site), parts, samples, own, **state.place)
        for site, own in keys.items()
    ]


def without_turn(agreed: Agreement, state: State, site: str) -> tuple[State, Visit] | None:
    """Return state and visit after a turn for which the site is not queried; None if it has to be.
    Raises ParameterError if the site is to leave, and the posterior would be improper without it.
    """
    if site in state.leaving:
        return leave(agreed, state, site), Visit(state.step, site, "forgotten")
    if state.is_forgotten(site) or site in agreed.silent:
        return state, Visit(state.step, site, "relayed")
    return None


def question(
    agreed: Agreement, state: State, site: str, view: ExponentialFamily, key: KeyArray
) -> Improve:
    """Return the question to a site at its turn; ``key`` is that of the step."""
    own_key = key if agreed.update.conjugate else site_key(key, site)
    factor = state.factor(site)
    count = state.counts.get(site, 0)
    return Improve(site, view, factor, count, own_key, **state.place)


def answered(
    agreed: Agreement, state: State, answer: Improvement | Failure, damping: float = 1.0
) -> tuple[State, Visit]:
    """Return the state after the share ``damping`` of a site's answer is applied, and the visit.
    Raises SiteError if the answer is not a factor, or the sum with it is beyond the range of
    float64, unless the federation skips sites that fail.
    """
    site = answer.site
    if isinstance(answer, Failure):
        return state, Visit(state.step, site, "failed", error=answer.error)
    try:
        committed, halvings = commit(agreed, state, site, answer.factor, damping)
    except Exception as error:
        failure = failure_of(error, site)
        if agreed.on_error == "raise":
            raise failure from error
        return state, Visit(state.step, site, "failed", error=str(failure))
    after = committed or state
    exact = agreed.update.conjugate
    moved = None if exact else distance(state.posterior, after.posterior)
    outcome = "refused" if committed is None else "updated"
    measured = halvings + answer.halvings, answer.residual, moved, answer.quadrature_error
    looks = answer.evaluations
    return after, Visit(state.step, site, outcome, *measured, evaluations=looks)


def all_answered(
    agreed: Agreement, state: State, factors: Mapping[str, ExponentialFamily]
) -> tuple[State, tuple[Visit, ...]] | None:
    """Return state and visits after turns of all sites in order, with exact ``factors`` at rest, by
    one summation. Sites without a factor relay. Return None if the turns must be made one by one:
    a site is to leave, or the posterior would not be admitted.
    """
    wanted = {site: revised(state, site, factor, True) for site, factor in factors.items()}
    after = part_of(state, wanted, 1.0)
    if state.leaving or not agreed.admits(after.posterior):
        return None
    visits = tuple(
        Visit(state.step, site, "updated" if site in factors else "relayed")
        for site in agreed.sites
    )
    return counted(agreed, after, factors), visits


def revised(state: State, site: str, factor: ExponentialFamily, independent: bool) -> Entry:
    """Return the next version of a site's entry, with this factor."""
    before = state.entries.get(site, Entry(0, -1, factor))
    return Entry(before.epoch, before.sequence + 1, factor, independent)


def commit(
    agreed: Agreement, state: State, site: str, factor: ExponentialFamily, damping: float = 1.0
) -> tuple[State | None, int]:
    """Return the state with the site's change, halved until admitted, and the number of halvings.

    The state is None if no share of the change is admitted. Raises StructureError if the factor is
    not like the prior, and ParameterError if it is not finite, or a sum is beyond float64.
    """
    wanted = {site: revised(state, site, factor, agreed.update.conjugate)}
    if agreed.update.conjugate and factor is state.factor(site):  # unchanged, so is the sum
        same = dataclasses.replace(state, entries=state.entries | wanted)
        return counted(agreed, same, wanted), 0
    check_same_structure(state.prior, factor, f"the factor of site {site!r}")
    check_finite(factor, f"the factor of site {site!r}")
    return committed(agreed, state, wanted, damping)


def committed(
    agreed: Agreement, state: State, wanted: Map, damping: float
) -> tuple[State | None, int]:
    """Return the state with the largest admitted share of the changes to the ``wanted`` entries,
    the same for all sites, and the number of halvings; no state if no share is admitted, which can
    happen if the posteriors that the model admits are not a convex set. Raises ParameterError if a
    sum is beyond the range of float64.
    """
    largest = 1.0 if agreed.update.conjugate else damping
    for halvings in range(HALVINGS):
        after = part_of(state, wanted, largest / 2**halvings)
        if agreed.admits(after.posterior):
            return counted(agreed, after, wanted), halvings
    return None, HALVINGS


def part_of(state: State, wanted: Map, share: float) -> State:
    """Return the state after a share of the changes to the ``wanted`` entries."""
    if share != 1:
        wanted = {site: _between(state, site, entry, share) for site, entry in wanted.items()}
    old = [state.factor(site) for site in wanted if site in state.entries]
    new = [entry.factor for entry in wanted.values()]
    exact_sum = state.exact_sum.changed(add=new, take=old)
    return dataclasses.replace(state, exact_sum=exact_sum, entries=state.entries | wanted)


def _between(state: State, site: str, entry: Entry, share: float) -> Entry:
    old: Any = state.factor(site)
    new: Any = entry.factor
    return entry._replace(factor=old + (new - old) * share, independent=False)


def counted(agreed: Agreement, state: State, sites: Iterable[str]) -> State:
    """Return the state in which these sites have taken the steps of a visit."""
    steps = agreed.update.steps or 1
    counts = {site: state.counts.get(site, 0) + steps for site in sites}
    return dataclasses.replace(state, counts=state.counts | counts)


def leave(agreed: Agreement, state: State, *sites: str) -> State:
    """Return the state without these sites' factors, with a tombstone for each.

    Raises LedgerError if a site is already forgotten or named twice, and ParameterError if the
    remaining posterior is improper, or the model's expectations under it are infinite.
    """
    left = state.without(*sites)
    check_left(agreed.admits(left.posterior), sites)
    return left


def check_left(proper: Any, sites: Iterable[str]) -> None:
    """Raise a ParameterError unless what is left without these sites is a distribution."""
    if not np.all(proper):
        raise ParameterError(
            found=f"an improper posterior without {', '.join(map(repr, sites))}",
            expected="factors of the sites that stay that, with the prior, are a distribution",
            fix="These were fitted together with the factors of the sites that leave. Forget with "
            "restart=True, which trains them anew, or in a run of the sites that stay (--config "
            "FILE, with their tables in [sites] and like = LEDGER in [data]), or fuse their own "
            "fits; nothing was changed.",
        )
