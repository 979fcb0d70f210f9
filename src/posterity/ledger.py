"""The ledger: a prior and one versioned factor a site, whose sum is the posterior."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from posterity.checks import check_finite, check_proper, check_same_structure, same_parameters
from posterity.errors import LedgerError, PosterityError
from posterity.families import ExponentialFamily, at_rest


class Entry(NamedTuple):
    """What one site last said: a factor, or ``None`` if it was forgotten.

    Entries of one site are ordered by epoch; within an epoch forgetting beats every factor,
    and a later sequence number beats an earlier one. A forgotten site therefore comes back
    only in a new epoch, never by a message that was replayed or overtaken.

    An *independent* factor was found from the site's own data alone, as conjugate factors and
    posteriors trained apart are; one that was fitted in the company of others' factors was not.
    Forgetting a site is exact if the factors that stay are independent.
    """

    epoch: int
    sequence: int
    factor: ExponentialFamily | None
    independent: bool = False

    @property
    def rank(self) -> tuple[int, bool, int]:
        """Which of two entries of a site wins: the higher."""
        return (self.epoch, self.factor is None, self.sequence)


@dataclasses.dataclass(frozen=True)
class Ledger:
    """A prior plus one factor a site; ``posterior`` is their sum.

    Immutable. At rest all numbers are NumPy float64 and sums run over the sites sorted by
    name, so a ledger that forgot a site has, to the last bit, the posterior of one that never
    saw it. ``merge`` keeps each site's highest entry: it commutes, associates and is
    idempotent (a join semilattice, shapiro2011), so replayed or reordered messages cannot
    count data twice.

    >>> from posterity.families import Gamma
    >>> ledger = Ledger(Gamma.from_standard(shape=1.0, rate=1.0))
    >>> ledger = ledger.update("north", Gamma(3.0, 2.0)).update("south", Gamma(5.0, 4.0))
    >>> float(ledger.posterior.rate), float(ledger.forget("south").posterior.rate)
    (7.0, 3.0)
    """

    prior: ExponentialFamily
    entries: Mapping[str, Entry] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_proper(self.prior, "the prior")
        for site, entry in self.entries.items():
            if entry.factor is not None:
                check_same_structure(self.prior, entry.factor, f"the factor of site {site!r}")
                check_finite(entry.factor, f"the factor of site {site!r}")
        resting = {s: _rested(self.entries[s]) for s in sorted(self.entries)}
        object.__setattr__(self, "prior", at_rest(self.prior))
        object.__setattr__(self, "entries", resting)

    @classmethod
    def of_site(
        cls, site: str, *, prior: ExponentialFamily, posterior: ExponentialFamily
    ) -> "Ledger":
        """One site's own posterior as a ledger: its factor is ``posterior - prior``.

        Raises:
            ParameterError: if either has NaN, infinite or improper parameters.
            StructureError: if they are not of one family and shape.
        """
        check_proper(posterior, f"the posterior of site {site!r}")
        check_same_structure(prior, posterior, f"site {site!r}")
        factor = at_rest(posterior) - at_rest(prior)
        return cls(prior).update(site, factor, independent=True)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that contribute, sorted."""
        return tuple(site for site, entry in self.entries.items() if entry.factor is not None)

    @property
    def forgotten(self) -> tuple[str, ...]:
        """Names of the sites that were forgotten and have not come back, sorted."""
        return tuple(site for site, entry in self.entries.items() if entry.factor is None)

    @functools.cached_property
    def posterior(self) -> ExponentialFamily:
        """Prior plus all factors.

        Raises:
            ParameterError: if the sum is not a distribution.
        """
        total = self._sum(self.sites)
        check_proper(total, "the posterior of the ledger")
        return total

    @property
    def independent(self) -> bool:
        """Whether every factor was found from its own site's data alone."""
        return all(self.entries[site].independent for site in self.sites)

    def factor(self, site: str) -> ExponentialFamily:
        """What one site contributes: its posterior minus the prior. May be improper.

        Raises:
            LedgerError: if the ledger holds no factor of the site.
        """
        entry = self.entries.get(site)
        if entry is None or entry.factor is None:
            raise self._unknown(site)
        return entry.factor

    def cavity(self, site: str) -> ExponentialFamily:
        """Prior plus the factors of all other sites. May be improper.

        Raises:
            LedgerError: if the ledger holds no factor of the site.
        """
        self.factor(site)
        return self._sum(name for name in self.sites if name != site)

    def update(
        self,
        site: str,
        factor: ExponentialFamily,
        *,
        epoch: int | None = None,
        sequence: int | None = None,
        independent: bool = False,
    ) -> "Ledger":
        """A ledger in which ``site`` contributes ``factor`` instead of what it did before.

        Without numbers the version is the next in the site's epoch; to let a forgotten site
        rejoin, name a higher epoch. Say ``independent=True`` if the factor was found without
        knowledge of the other sites' factors (:class:`Entry`).

        Raises:
            LedgerError: if the version is not above the one held.
            ParameterError: if the factor has NaN or infinite parameters.
            StructureError: if the factor is not of the prior's family and shape.
        """
        held = self.entries.get(site, Entry(0, -1, factor))
        epoch = held.epoch if epoch is None else epoch
        if sequence is None:
            sequence = held.sequence + 1 if epoch == held.epoch else 0
        entry = Entry(epoch, sequence, factor, independent)
        if entry.rank <= held.rank:
            raise _stale(site, entry, held)
        return Ledger(self.prior, {**self.entries, site: entry})

    def forget(self, *sites: str) -> "Ledger":
        """A ledger without these sites' factors, which remembers that they left.

        Raises:
            LedgerError: if the ledger holds no factor of a site; nothing is forgotten then.
        """
        for site in sites:
            self.factor(site)
        left = {s: Entry(self.entries[s].epoch, self.entries[s].sequence, None) for s in sites}
        return Ledger(self.prior, {**self.entries, **left})

    def merge(self, other: "Ledger") -> "Ledger":
        """Each site's highest entry of the two ledgers; also written ``self | other``.

        Raises:
            LedgerError: if the priors differ, or one version of a site has two contents.
            StructureError: if the priors are not of one family and shape.
        """
        check_same_structure(self.prior, other.prior, "the prior of the other ledger")
        if not same_parameters(self.prior, other.prior):
            raise LedgerError(
                found="two ledgers with different priors",
                expected="one prior, shared by all sites",
                fix="Fit every site with the same prior, or fuse with rule='barycenter'.",
            )
        return Ledger(self.prior, merge_entries(self.entries, other.entries))

    __or__ = merge

    def compact(self) -> "Ledger":
        """Without the memory of who was forgotten: equal to a ledger that never saw them.

        Use it when no copy with the forgotten factors is left to be merged.
        """
        return Ledger(self.prior, {site: self.entries[site] for site in self.sites})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger) or self.entries.keys() != other.entries.keys():
            return False
        pairs = ((self.entries[site], other.entries[site]) for site in self.entries)
        return same_parameters(self.prior, other.prior) and all(
            _same(mine, theirs) for mine, theirs in pairs
        )

    __hash__ = None  # type: ignore[assignment]  # equal by content, and the content is arrays

    def _sum(self, sites: Iterable[str]) -> ExponentialFamily:
        # One canonical order: floating-point addition does not associate.
        return functools.reduce(lambda total, site: total + self.factor(site), sites, self.prior)

    def _unknown(self, site: str) -> PosterityError:
        past = " (it was forgotten)" if site in self.forgotten else ""
        return LedgerError(
            found=f"no factor of site {site!r}{past}",
            expected=f"one of {list(self.sites)}",
            fix="Check the name of the site.",
        )


def _rested(entry: Entry) -> Entry:
    return entry if entry.factor is None else entry._replace(factor=at_rest(entry.factor))


def _same(mine: Entry, theirs: Entry) -> bool:
    return (
        mine.rank == theirs.rank
        and mine.independent == theirs.independent
        and same_parameters(mine.factor, theirs.factor)
    )


def merge_entries(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> dict[str, Entry]:
    """Each site's highest entry, by sorted name.

    Raises:
        LedgerError: if one version of a site has two contents.
    """
    merged = dict(mine)
    for site, entry in theirs.items():
        merged[site] = _join(site, merged[site], entry) if site in merged else entry
    return {site: merged[site] for site in sorted(merged)}


def _join(site: str, mine: Entry, theirs: Entry) -> Entry:
    if mine.rank == theirs.rank and not _same(mine, theirs):
        raise LedgerError(
            found=f"two different factors of site {site!r} at epoch {mine.epoch}, "
            f"sequence {mine.sequence}",
            expected="one content for one version",
            fix="Find which copy is genuine; the site must raise its sequence with each change.",
        )
    return max(mine, theirs, key=lambda entry: entry.rank)


def _stale(site: str, entry: Entry, held: Entry) -> PosterityError:
    state = "forgotten" if held.factor is None else "held"
    return LedgerError(
        found=f"epoch {entry.epoch}, sequence {entry.sequence} of site {site!r}",
        expected=f"a version above the one {state}: epoch {held.epoch}, sequence {held.sequence}",
        fix=f"To let the site rejoin, pass epoch={held.epoch + 1}."
        if held.factor is None
        else "Drop the message if it is a replay; else raise the sequence number.",
    )
