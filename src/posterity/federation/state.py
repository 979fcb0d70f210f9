"""The state of a federation: every site's factor, their sum, and how far each has come.

The running sum is exact (:class:`~posterity.arrays.tree_sums.TreeSum`) and rounded once when it
is read: to the last bit, the posterior of the ledger with the same factors.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from posterity.arrays.tree_sums import TreeSum
from posterity.entries import Entry
from posterity.errors import LedgerError
from posterity.families import ExponentialFamily
from posterity.families.names import names_of, with_names
from posterity.federation.messages import FIRST, Epoch
from posterity.ledger import Ledger
from posterity.sharing import SharedMap

Map = Mapping[str, Entry]
"""Entries by site."""


@dataclasses.dataclass(frozen=True)
class State:
    """Plain data: members of the family, entries of ledgers, numbers and names. Immutable.

    What a step leaves as it is, the states before and after it share.
    """

    prior: ExponentialFamily
    exact_sum: TreeSum
    """Prior plus all factors."""
    entries: SharedMap[Entry] | Any
    """By site, from any mapping."""
    counts: SharedMap[int] | Any = dataclasses.field(default_factory=dict)
    """Local steps that each site has taken."""
    step: int = 0
    epoch: Epoch = FIRST
    """Raised by whatever changes it other than the schedule: questions asked before are void."""
    schedule: Any = None
    """What the schedule needs to go on: JSON data, and members of the family."""
    known: Mapping[str, Mapping[str, Map]] = dataclasses.field(default_factory=dict)
    """The entries that each token and each site holds, where they differ (LedgerGossip)."""
    leaving: tuple[str, ...] = ()
    """Sites whose factors leave when their turn next comes."""
    pending: Any = None
    """Of a step that is under way (:class:`~posterity.federation.schedules.Pending`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", SharedMap.of(self.entries))
        object.__setattr__(self, "counts", SharedMap.of(self.counts))

    @classmethod
    def of(cls, prior: ExponentialFamily) -> "State":
        """Nobody has contributed yet."""
        return cls(prior, TreeSum.of([prior]), {})

    @property
    def posterior(self) -> ExponentialFamily:
        """Prior plus all factors, rounded to nearest once."""
        return with_names(self.exact_sum.value, names_of(self.prior))

    @functools.cached_property
    def ledger(self) -> Ledger:
        """The prior and all factors, versioned."""
        return Ledger(self.prior).holding(self.entries)

    def factor(self, site: str) -> ExponentialFamily:
        """The site's factor; zero if it has none yet or was forgotten."""
        entry = self.entries.get(site)
        return self.prior.zero() if entry is None or entry.factor is None else entry.factor

    def is_forgotten(self, site: str) -> bool:
        """Whether the site left and was not readmitted."""
        return site in self.entries and self.entries[site].factor is None

    def with_entries(self, entries: Map) -> "State":
        """With these factors and no others, whether that is a distribution or not.

        Raises:
            ParameterError: if a sum is beyond the range of float64.
        """
        factors = [entry.factor for entry in entries.values() if entry.factor is not None]
        exact_sum = TreeSum.of([self.prior, *factors])
        return dataclasses.replace(self, exact_sum=exact_sum, entries=entries)

    def without(self, *sites: str) -> "State":
        """With these sites' factors taken out and their return barred within their epochs.

        Raises:
            LedgerError: if a site is forgotten already, or named twice.
        """
        left: dict[str, Entry] = {}
        leaving = []
        for site in sites:
            entry = self.entries.get(site, Entry(0, 0, self.prior.zero()))
            if entry.factor is None or site in left:
                raise LedgerError(
                    found=f"site {site!r}, which is forgotten already",
                    expected="a site that contributes, named once",
                    fix="Nothing is left to take out.",
                )
            leaving.append(entry.factor)
            left[site] = entry._replace(factor=None, independent=False)
        others = tuple(site for site in self.leaving if site not in sites)
        exact_sum, entries = self.exact_sum.changed(take=leaving), self.entries | left
        return dataclasses.replace(self, exact_sum=exact_sum, entries=entries, leaving=others)

    def readmitted(self, site: str) -> "State":
        """With the forgotten site let in again, at the next epoch, contributing nothing yet.

        Raises:
            LedgerError: if the site was not forgotten.
        """
        if not self.is_forgotten(site):
            raise LedgerError(
                found=f"site {site!r}, which was not forgotten",
                expected=f"one of {[s for s in self.entries if self.is_forgotten(s)]}",
                fix="Only a forgotten site can be readmitted.",
            )
        entry = self._nothing(self.entries[site].epoch + 1, 0)
        return dataclasses.replace(self, entries=self.entries | {site: entry})

    def restarted(self) -> "State":
        """With every factor zero again, to train anew those who are left."""
        entries = {
            site: entry if entry.factor is None else self._nothing(entry.epoch, entry.sequence + 1)
            for site, entry in self.entries.items()
        }
        return dataclasses.replace(self.with_entries(entries), counts={})

    def renewed(self) -> "State":
        """In an epoch of its own: nobody waits for answers to earlier questions any more."""
        return dataclasses.replace(self, epoch=(self.epoch[0] + 1, ""), pending=None)

    def _nothing(self, epoch: int, sequence: int) -> Entry:
        # Zero, which all sites' data leave as it is, was found without any.
        return Entry(epoch, sequence, self.prior.zero(), independent=True)
